"""Family name -> its functions. The only place that knows which family is which module."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.models import gru, linear_attention, mamba2, softmax_attention
from ithbit.models.spec import ModelSpec
from ithbit.models.stacked import Params
from ithbit.models.stream import Stream

Init = Callable[[ModelSpec, torch.Generator], Params]


def _no_params(spec: ModelSpec, generator: torch.Generator) -> Params:
    return {}


def _unchanged(params: Params, rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class Blocks:
    """A family's block, and what stands once before the first and after the last of them."""

    init_block: Init
    block: Callable[[Params, ModelSpec, Stream, bool], Tensor]
    init_enter: Init = _no_params
    enter: Callable[[Params, Tensor], Tensor] = _unchanged
    init_leave: Init = _no_params
    leave: Callable[[Params, Tensor], Tensor] = _unchanged


_SOFTMAX = Blocks(
    softmax_attention.init_block,
    softmax_attention.block,
    init_enter=softmax_attention.init_enter,
    enter=softmax_attention.enter,
)
_LINEAR = Blocks(linear_attention.init_block, linear_attention.block)

BLOCKS: dict[str, Blocks] = {
    "softmax-full": _SOFTMAX,
    "softmax-causal": _SOFTMAX,
    "linear-full": _LINEAR,
    "linear-causal": _LINEAR,
    "gru": Blocks(gru.init_block, gru.block),
    "mamba2": Blocks(
        mamba2.init_block, mamba2.block, init_leave=mamba2.init_leave, leave=mamba2.leave
    ),
}
