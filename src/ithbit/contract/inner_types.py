"""The types in which a layer computes, as torch sees them: a layer in float64 may well have an
attention in bfloat16."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ithbit.contract.calling import Caller
from ithbit.contract.watching import CannotCheckError
from ithbit.models.user_code import FAILURES


class ResultTypes(TorchFunctionMode):
    """Context that notes the dtypes of what functions and methods of torch give.

    Not a mode of dispatch, which would import the compiler: more than a second."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        several = out if isinstance(out, tuple | list) else (out,)
        self.seen.update(each.dtype for each in several if isinstance(each, Tensor))
        return out


def coarse_type(caller: Caller, x: Tensor) -> torch.dtype | None:
    """The coarsest of bfloat16 and float16 in which a new layer computes something of a call, if it
    does; None too if torch cannot watch it."""
    used, results = caller.like(), ResultTypes()
    try:
        with results:
            used(x)
    except CannotCheckError:
        raise
    except FAILURES:
        return None
    found = [each for each in (torch.bfloat16, torch.float16) if each in results.seen]
    return found[0] if found else None
