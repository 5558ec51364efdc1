"""The kinds of models that can be proved: for each its bounds and its second implementation.

A new kind is a file of bounds (`proofs/interface.py`), a file with a second implementation
(`checks/interface.py`), and an entry of `KINDS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ithbit.display import pluralize
from ithbit.families import FAMILIES
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.gru_balls import GruLeaves
from ithbit.verification.checks.interface import LeafCheck
from ithbit.verification.checks.mamba2_balls import TwoMamba2Layers
from ithbit.verification.checks.one_layer_balls import OneLayer
from ithbit.verification.checks.two_layers_balls import TwoAttentionLayers
from ithbit.verification.proofs.gru import GruBounds
from ithbit.verification.proofs.interface import ARITHMETIC, MarginBounds, NoBoundsError
from ithbit.verification.proofs.mamba2 import Mamba2Bounds
from ithbit.verification.proofs.one_layer import OneSoftmax
from ithbit.verification.proofs.two_layers import TwoLayers

LONGEST = 256  # for all but one layer; memory grows with n²
_STATE = 2_000_000  # numbers of a GRU's set of states, at most
_STATES = 4 * _STATE  # of those of all its layers
_HIDDEN = 1 << 26  # numbers of the sets of all feed-forward parts, at most
_BALLS = 1 << 23  # of one, in balls
_WIDEST = 64  # width and state of Mamba2
_SUMS = 70_000_000  # numbers that its first sums add up, in balls; 2 GB with what is made of them

Params = Mapping[str, FloatArray]


@dataclass(frozen=True)
class ProofKind:
    """What proofs know of a kind of model. `functionals` are what limits of leaves apply to, None
    to have the bounds choose them."""

    name: str  # as certificates state it
    models: str  # in words
    fits: Callable[[ModelSpec], bool]
    bounds: Callable[[ModelSpec, Params, FloatArray | None], MarginBounds]
    check: Callable[[ModelSpec, Params], LeafCheck] | None
    arithmetic: str  # in which a certificate is made
    trusted: tuple[str, ...]  # what *proved* rests on, besides `TRUSTED`
    # The check may bound a leaf this much lower than the least bound of the search; below, the leaf
    # is cut.
    close: float = 1.0
    tighten: float = 0.0  # the share of nodes spent on better bounds, see `search`
    # Whether leaves may have limits; and whether leaves that the check does not confirm may stay
    # bounded (unchecked), by the bounds of the search computed again.
    may_be_limited: bool = False
    may_be_unchecked: bool = False
    # The bounds to compute such leaves again, if not `bounds`: as tight as those of any version.
    bounds_again: Callable[[ModelSpec, Params, FloatArray | None], MarginBounds] | None = None


# What every *proved* rests on.
TRUSTED = (
    "verification/proofs/certificate.py: the reading of the file",
    "verification/proofs/coverage.py: that its leaves cover all inputs, in integers",
    "verification/checks/interface.py: that a leaf is bounded by its halves",
)
# What float64 is trusted for in checks that use it.
_NUMPY = (
    "numpy: its float64 +, -, *, / and square roots are those of IEEE 754, and a sum of k "
    "products is off by at most (k + 1) 2^-53 of the sum of their sizes"
)


def _is_one(spec: ModelSpec) -> bool:
    softmax = spec.family in FAMILIES and FAMILIES[spec.family].kind == "softmax"
    fits = spec.d_ff * (spec.n_bits + 3 * spec.d_model + spec.d_ff) <= _BALLS
    return (
        spec.n_layers == 1 and spec.task == "rhi" and softmax and fits
    )  # a user's may be named so


def _is_two(spec: ModelSpec) -> bool:
    attention = spec.family in FAMILIES and FAMILIES[spec.family].attention
    hidden = 2 * spec.n_bits * spec.d_ff * (spec.n_bits + 3 * spec.d_model)
    return spec.n_layers == 2 and attention and spec.n_bits <= LONGEST and hidden <= _HIDDEN


def _is_gru(spec: ModelSpec) -> bool:
    gru = spec.family in FAMILIES and FAMILIES[spec.family].kind == "gru"
    symbols = (1 + spec.n_layers * spec.d_model) * (spec.n_bits + 2)
    numbers = spec.d_model * symbols
    fits = numbers <= _STATE and spec.n_layers * numbers <= _STATES and spec.n_bits <= LONGEST
    return gru and spec.task == "lhi" and fits


def _is_mamba2(spec: ModelSpec) -> bool:
    fits = spec.n_bits <= LONGEST and max(spec.d_model, spec.d_state) <= _WIDEST
    # For each two places, each two values of three bits and each channel.
    fits = fits and (spec.n_bits + 2) ** 2 * 64 * spec.d_model <= _SUMS
    return spec.family == "mamba2" and spec.n_layers == 2 and spec.task == "lhi" and fits


KINDS: tuple[ProofKind, ...] = (
    ProofKind(
        name="one-layer",
        models="one layer of softmax attention on rhi",
        fits=_is_one,
        bounds=lambda spec, params, _: OneSoftmax(spec, params),
        check=OneLayer,
        arithmetic=ARITHMETIC,
        trusted=("verification/checks/one_layer_balls.py, in balls of python-flint",),
    ),
    ProofKind(
        name="two-layers",
        models=f"two layers of attention up to n = {LONGEST}",
        fits=_is_two,
        bounds=TwoLayers,
        check=TwoAttentionLayers,
        arithmetic=ARITHMETIC,
        trusted=(
            "verification/checks/two_layers_balls.py, affine_sets.py: float64 with error terms",
            "python-flint, for tables and for tokens before the first mixing",
            _NUMPY,
        ),
        close=0.97,
        tighten=1.0,
        may_be_limited=True,
        may_be_unchecked=True,
        bounds_again=lambda spec, params, rows: TwoLayers(spec, params, rows, gram=0.0),
    ),
    ProofKind(
        name="gru",
        models=f"GRUs of moderate size on lhi up to n = {LONGEST}",
        fits=_is_gru,
        bounds=lambda spec, params, _: GruBounds(spec, params),
        check=GruLeaves,
        arithmetic=ARITHMETIC.replace("exp and erf", "tanh"),
        trusted=(
            "verification/checks/gru_balls.py: float64 with error terms",
            "python-flint, for tanh and for tokens before the first gates",
            _NUMPY,
        ),
        close=0.97,
        tighten=0.5,
    ),
    ProofKind(
        name="mamba2",
        models=f"two layers of Mamba2 of moderate size on lhi up to n = {LONGEST}",
        fits=_is_mamba2,
        bounds=lambda spec, params, _: Mamba2Bounds(spec, params),
        check=TwoMamba2Layers,
        arithmetic=ARITHMETIC.replace("exp and erf", "exp, SiLU and softplus"),
        trusted=(
            "verification/checks/mamba2_balls.py, ball_arrays.py: float64 with error terms",
            "python-flint, for tables of functions",
            _NUMPY,
        ),
        close=0.9,
    ),
)


def kind_of(spec: ModelSpec) -> ProofKind | None:
    """The kind of a model; None if there are no bounds for it. That its weights can be bounded is
    another question."""
    if spec.positions != "polynomial":
        return None
    return next((kind for kind in KINDS if kind.fits(spec)), None)


def need_kind(spec: ModelSpec, params: Params) -> ProofKind:
    """The kind of a model; raises `NoBoundsError` unless there are bounds for it and its weights
    fit it."""
    kind = kind_of(spec)
    if kind is None:
        *others, last = (each.models for each in KINDS)
        raise NoBoundsError(
            f"there are no bounds for {spec.task} with {pluralize(spec.n_layers, 'layer')} of "
            f"{spec.family} and {spec.positions} positions at n = {spec.n_bits}; there are bounds "
            f"for {', for '.join(others)}, and for {last}, with polynomial positions and "
            "of moderate size"
        )
    if {name: value.shape for name, value in params.items()} != shapes(spec):
        raise NoBoundsError("the weights do not fit the model")
    if not all(np.isfinite(value).all() for value in params.values()):
        raise NoBoundsError("the weights are not finite, so nothing can be proved of them")
    return kind


def bounds_for(
    spec: ModelSpec, params: Params, functionals: FloatArray | None = None
) -> MarginBounds:
    """The bounds of a model with these weights; raises `NoBoundsError` if there are none."""
    return need_kind(spec, params).bounds(spec, params, functionals)


def second_check_for(spec: ModelSpec, params: Params) -> LeafCheck | None:
    """The second implementation for a model with these weights, None if its kind has none; raises
    `NoBoundsError` if there are no bounds for it."""
    kind = need_kind(spec, params)
    return None if kind.check is None else kind.check(spec, params)
