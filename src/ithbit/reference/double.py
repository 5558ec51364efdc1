"""A reference module in double precision throughout, as an oracle for gradients and outputs.

`module.double()` is not enough: Mamba2 casts its states to single precision whatever the model's
dtype, and the tables of sines are made in single precision. Here such casts are intercepted, and
the tables are rebuilt.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ithbit.reference.models import Reference, Sinusoidal, waves


class InDouble(nn.Module):
    """The module, converted to float64 in place; its logits are computed entirely in float64.

    >>> from ithbit.spec import ModelSpec
    >>> from ithbit.reference.models import build
    >>> oracle = InDouble(build(ModelSpec("rhi", "gru", n_bits=2)))
    >>> oracle(torch.tensor([[0, 1]]), torch.tensor([1])).dtype
    torch.float64
    """

    def __init__(self, module: Reference) -> None:
        super().__init__()
        self.module = module.double()
        for part in module.modules():
            if isinstance(part, Sinusoidal):
                table = part.get_buffer("table")
                pair = torch.stack(waves(*table.shape), -1)
                part.register_buffer("table", pair.flatten(1).to(table.device))
            elif type(part).__name__ == "RoFormerSinusoidalPositionalEmbedding":
                assert isinstance(part, nn.Embedding)
                part.weight.data = torch.cat(waves(*part.weight.shape), -1).to(part.weight.device)

    def forward(self, bits: Tensor, index: Tensor) -> Tensor:
        """The logit of answer 1: batch."""
        with _KeepDouble():
            return self.module(bits, index)


class _KeepDouble(TorchFunctionMode):
    """Context in which a library's casts to float32 become casts to float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            func = Tensor.double
        elif func is Tensor.to:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return func(*args, **kwargs)
