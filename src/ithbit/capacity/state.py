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

from ithbit.families import FAMILIES, family_named
from ithbit.loading.plain import Block
from ithbit.models.classifier import init
from ithbit.models.layer_source import FAILURES, layer_for
from ithbit.models.stacked import part
from ithbit.probe.behaviour import behaviour, usable
from ithbit.probe.rank import causal_rank
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture, architecture
from ithbit.theory.bounds import NoBoundError, bound
from ithbit.theory.bounds.state import BITS, state_bits

_RANK_LENGTH = 32
_LARGEST = 400  # largest state of a layer, in numbers, that is measured: a minute on one core


@dataclass(frozen=True)
class Beside:
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


def beside(model: ModelSpec, measure: bool = True) -> Beside:
    """What is known of a model's state.

    `measure` measures it, for the six families only up to `_LARGEST` numbers per layer.

    >>> beside(ModelSpec("rhi", "gru", 8, 2, 4), measure=False)
    Beside(state=8, state_origin='counted', float_limit=256, n_star=None, ...)
    """
    family, depth = family_named(model.family), model.n_layers
    if not (family.own or family.causal or depth == 1):
        return Beside()
    arch = None if family.own else _architecture(model)
    counted = None if arch is None else _counted(arch)
    if arch is not None and counted is None:
        return Beside()
    one = replace(model, n_bits=1, n_layers=1)
    measure = measure and (counted is None or counted // depth <= _LARGEST)
    a_layer = measured_state(one) if measure else None
    declared = declared_state(one) if measure and family.own else None
    state = counted if a_layer is None else depth * a_layer
    known = Beside(state, declared=None if declared is None else depth * declared)
    if state is None:
        return known
    limit = BITS * state if model.task == "rhi" else None
    origin = "counted" if a_layer is None else "measured"
    known = replace(known, state_origin=origin, float_limit=limit)
    with suppress(NoBoundError):
        route = None if arch is None else bound(model.task, arch)
        if route is not None and route.n_star <= BITS * state:
            return replace(known, n_star=route.n_star, n_star_status=route.status)
    return known


@cache
def measured_state(model: ModelSpec) -> int | None:
    """The measured state of one layer; None if the measurement is inconclusive."""
    module = _module(model) if model.code else _block(model)
    try:
        if module is None:
            return None
        if model.code and behaviour(module, model.d_model, _RANK_LENGTH).leak is not None:
            return None
        return causal_rank(module, model.d_model, _RANK_LENGTH).state
    except FAILURES:  # a layer that has no derivative
        return None


def _block(model: ModelSpec) -> nn.Module:
    """The block of a family before training; for full attention, its causal twin."""
    twin = replace(model, family=_causal_twin(model.family))
    weights = part(init(twin, 0), "blocks.0")
    return Block({name: value.double() for name, value in weights.items()}, twin)


def declared_state(model: ModelSpec) -> int | None:
    """The state that one user's layer declares, as `ithbit probe` reads it."""
    module = _module(model)
    return None if module is None else behaviour(module, model.d_model, 4).declared_state


def _module(model: ModelSpec) -> nn.Module | None:
    """A user's layer where it runs: on the CPU, else on the GPU; None if on neither."""
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


def _causal_twin(name: str) -> str:
    kind = family_named(name).kind
    return next(f.name for f in FAMILIES.values() if f.kind == kind and f.causal)
