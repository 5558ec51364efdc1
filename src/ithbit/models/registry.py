"""Maps a family's name to its functions: the only place that knows which module implements which
family. All users' layers are in `own_layer`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.families import family_named
from ithbit.models import gru, linear_attention, mamba2, own_layer, softmax_attention
from ithbit.models.stacked import Params, Stream
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens

Init = Callable[[ModelSpec, torch.Generator], Params]


def _no_params(spec: ModelSpec, generator: torch.Generator) -> Params:
    return {}


def _unchanged(params: Params, rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class Blocks:
    """A family's block, and its stages before the first block and after the last."""

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
_OWN = Blocks(_no_params, own_layer.block)  # weights: `own_layer.init_block`, a seed per block
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


def blocks_of(spec: ModelSpec) -> Blocks:
    """The functions of a model's family."""
    return _OWN if spec.code else BLOCKS[spec.family]


def matrix_numbers(spec: ModelSpec, n_bits: int) -> int:
    """Entries of the token-by-token matrices, per example, of a block computed at all tokens; 0 if
    there is no such block or its matrices are unknown (a user's layer)."""
    family = family_named(spec.family)
    prefix = family.kind == "linear" and family.causal
    if spec.code or spec.n_layers == 1 or not (prefix or family.kind in ("softmax", "mamba2")):
        return 0
    return spec.n_heads * n_tokens(spec.task, n_bits) ** 2
