"""Bits and indices in the forms that users give them, as tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ithbit.errors import SpecError

Bits = str | Sequence[Any] | np.ndarray[Any, Any] | Tensor
Index = int | Sequence[int] | np.ndarray[Any, Any] | Tensor


def read_inputs(bits: Bits, index: Index) -> tuple[Tensor, Tensor, bool]:
    """Bits (batch, n), index (batch), and whether a single input was given.

    Bits are a string such as "1011", a row of 0 and 1, or several of either; one index can go with
    several rows, and one row with several indices.

    >>> read_inputs("101", 2)
    (tensor([[1, 0, 1]]), tensor([2]), True)
    >>> read_inputs(["10", "01"], 1)[1].tolist(), len(read_inputs("10", [1, 2])[0])
    ([1, 1], 2)
    """
    rows, wanted = _bits(bits), _whole(index, "the index")
    if rows.dim() not in (1, 2) or wanted.dim() > 1 or not rows.numel():
        raise SpecError(
            f"give bits as (n) or (batch, n) and an index for each, got shapes "
            f"{tuple(rows.shape)} and {tuple(wanted.shape)}"
        )
    if not ((rows == 0) | (rows == 1)).all():
        other = rows[(rows != 0) & (rows != 1)][0].item()
        raise SpecError(f"bits must be 0 or 1, got {other}")
    n = rows.shape[-1]
    if not ((wanted >= 1) & (wanted <= n)).all():
        raise SpecError(f"the index must be in 1..{n}, got {wanted.tolist()}")
    single = rows.dim() == 1 and wanted.dim() == 0
    rows, wanted = torch.atleast_2d(rows), torch.atleast_1d(wanted)
    if len(rows) != len(wanted) and 1 not in (len(rows), len(wanted)):
        raise SpecError(f"got {len(rows)} rows of bits and {len(wanted)} indices; give one per row")
    size = max(len(rows), len(wanted))
    return rows.expand(size, n), wanted.expand(size), single


def _bits(bits: Bits) -> Tensor:
    if isinstance(bits, str):
        if set(bits) - {"0", "1"}:
            raise SpecError(f"bits must be a string of 0 and 1 such as 1011, got {bits!r}")
        return torch.tensor([int(bit) for bit in bits], dtype=torch.long)
    if isinstance(bits, Sequence) and bits and isinstance(bits[0], str):
        read = [_bits(row) for row in bits]
        if len({len(row) for row in read}) > 1:
            raise SpecError("all rows of a batch must have the same number of bits")
        return torch.stack(read)
    return _whole(bits, "bits")


def _whole(values: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
        kept = tensor.long()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{what} must be whole numbers, got {values!r:.80}") from error
    if not torch.equal(kept.to(tensor.dtype), tensor):
        raise SpecError(f"{what} must be whole numbers, got {values!r:.80}")
    return kept
