"""What a capacity is compared with: the state of the layers, and the limits that theory gives it.

The state is the causal rank of one layer (`probe/rank.py`), *measured* where the rank settles,
times the number of layers. Where measuring takes too long or the rank does not settle, the numbers
of the six families are *counted* from their definitions. With one layer, full attention keeps what
causal attention keeps; with more, and for softmax, what is kept grows with n and there is no such
number.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from ithbit.contract.layer_facts import layer_facts, usable
from ithbit.contract.rank import causal_rank
from ithbit.families import family_named
from ithbit.loading.single_seed import Block
from ithbit.models.classifier import init
from ithbit.models.layer_source import layer_for
from ithbit.models.stacked import part
from ithbit.models.user_code import FAILURES
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture, architecture
from ithbit.theory.bounds import NoBoundError, bound
from ithbit.theory.bounds.state import BITS, state_bits

_RANK_LENGTH = 32
_LARGEST = 400  # largest state of a layer, in numbers, that is measured: a minute on one core


@dataclass(frozen=True)
class StateLimits:
    """The state of all layers and the lengths that it cannot go past.

    `float_limit` holds for recurrent evaluation in 32-bit numbers; `n_star` holds in real
    arithmetic for all weights, and is None where there is none or it is above 32 times the state.
    """

    state: int | None = None
    state_origin: str = ""  # measured or counted
    float_limit: int | None = None
    n_star: int | None = None
    n_star_status: str = ""  # proved or conditional
    declared: int | None = None  # what a user's layer declares, all layers


def state_limits(model: ModelSpec, measure: bool = True) -> StateLimits:
    """What is known of a model's state.

    `measure` measures it, for the six families only up to `_LARGEST` numbers per layer.

    >>> state_limits(ModelSpec("rhi", "gru", 8, 2, 4), measure=False)
    StateLimits(state=8, state_origin='counted', float_limit=256, n_star=None, ...)
    """
    family, depth = family_named(model.family), model.n_layers
    if family.formal and not family.causal and depth > 1:
        return StateLimits()
    arch = _architecture(model) if family.formal else None
    by_definition = None if arch is None else _counted(arch)
    if arch is not None and by_definition is None:
        return StateLimits()
    # For full attention, its causal twin: with one layer they keep the same.
    twin = model.family if arch is None else arch.causal_twin
    one = replace(model, family=twin, n_bits=1, n_layers=1)
    measure = measure and (by_definition is None or by_definition // depth <= _LARGEST)
    a_layer, declared = _observed(one) if measure else (None, None)
    state = by_definition if a_layer is None else depth * a_layer
    limits = StateLimits(state, declared=None if declared is None else depth * declared)
    if state is None:
        return limits
    limit = BITS * state if model.task == "rhi" else None
    origin = "counted" if a_layer is None else "measured"
    limits = replace(limits, state_origin=origin, float_limit=limit)
    with suppress(NoBoundError):
        route = None if arch is None else bound(model.task, arch)
        if route is not None and route.n_star <= BITS * state:
            return replace(limits, n_star=route.n_star, n_star_status=route.status)
    return limits


@cache
def _observed(model: ModelSpec) -> tuple[int | None, int | None]:
    """The state of one layer: as measured, None if that is inconclusive, and as it declares it."""
    width, declared = model.d_model, None
    if (module := _module(model)) is not None:
        with suppress(*FAILURES):  # a layer that has no derivative
            if not model.code:  # one of the six, or a bidirectional one's causal twin
                return causal_rank(module, width, _RANK_LENGTH).state, None
            facts = layer_facts(layer_for(model), module, width, _RANK_LENGTH)
            declared = facts.declared_state
            if facts.obstacle is None:
                return causal_rank(module, width, _RANK_LENGTH).state, declared
    return None, declared


def _module(model: ModelSpec) -> nn.Module | None:
    """A family's block before training, or a user's layer where it runs: on the CPU, else on the
    GPU; None if on neither."""
    if not model.code:
        weights = part(init(model, 0), "blocks.0")
        return Block({name: value.double() for name, value in weights.items()}, model)
    for where in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        with suppress(*FAILURES):
            device = torch.device(where)
            return usable(layer_for(model), model.d_model, 2 * _RANK_LENGTH - 1, device)
    return None


def _architecture(model: ModelSpec) -> Architecture:
    return architecture(
        model.family,
        "trained",
        n_layers=model.n_layers,
        width=model.d_model,
        heads=model.n_heads if family_named(model.family).has_heads else None,
        hidden=model.d_ff,
        state=model.d_state,
    )


def _counted(arch: Architecture) -> int | None:
    """The size of the state after the last token, in numbers, all layers.

    Mamba2's convolution also keeps past tokens, one number per channel; but these are functions of
    the token, which has no more numbers than the width.
    """
    if (bits := state_bits("rhi", replace(arch, n_layers=1))) is None:
        return None
    window = (arch.conv - 1) * arch.width if arch.kind == "mamba2" else 0
    return arch.n_layers * (bits // BITS + window)
