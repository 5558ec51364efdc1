"""The interface of a file of bounds: proved bounds on a model's margin over sets of inputs.

A *node* is an index and a string with some bits fixed, among them the bit at the index, whose value
is the answer. A new block needs one file with a class that implements `MarginBounds`, and a line in
`bounds_for`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ithbit.display import pluralize
from ithbit.errors import SpecError, normalize
from ithbit.families import FAMILIES
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import shapes

_LONGEST = 32  # for two layers; beyond it a batch takes minutes and closes nothing

Ints = NDArray[Any]
ARITHMETIC = "float64 with error terms for every rounding, tables of exp and erf from arb balls"


class Arrays:
    """A dataclass of arrays that share their first axis."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, at: Any) -> Self:
        return type(self)(*(each[at] for each in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True, eq=False)
class NodeBounds(Arrays):
    """For every node: proved bounds on the margin, and hints that prove nothing.

    Bounds that are NaN, inverted or infinite on the wrong side are none: on construction they
    become -inf and inf. Only a node that is decided to be empty has the bounds inf and -inf.
    """

    lower: FloatArray  # -inf where nothing is known
    upper: FloatArray
    slope: FloatArray  # node bit: how the margin's form moves with a bit
    weight: FloatArray  # node (bit, then functional): how much it matters for the enclosure
    empty: Ints  # node: decided exactly, see `bands.py`: it contains no input

    def __post_init__(self) -> None:
        known = (self.lower <= self.upper) & (self.lower < np.inf) & (self.upper > -np.inf)
        lower, upper = np.where(known, self.lower, -np.inf), np.where(known, self.upper, np.inf)
        normalize(
            self,
            lower=np.where(self.empty, np.inf, lower),
            upper=np.where(self.empty, -np.inf, upper),
        )


@dataclass(frozen=True, eq=False)
class Leaves(Arrays):
    """Nodes and what is proved of them, as in a certificate; the bound is infinite where a node
    contains no input."""

    index: Ints  # from 0
    bits: Ints  # -1 for a free one
    limits: FloatArray  # leaf functional 2
    lower: FloatArray


class MarginBounds(Protocol):
    """Bounds of nodes: index (node) from 0, bits (node, bit) in 0, 1 and -1 for a free bit, and
    limits (node, functional, 2) of functionals of the bits, see `bands.py`; None for no limits."""

    n: int
    functionals: FloatArray  # functional bit
    batch: int  # how many nodes are best bounded at once
    slack: float  # how close to the least margin met to raise them; inf: above 0 is enough

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> NodeBounds: ...


class NoBoundsError(SpecError):
    """There are no bounds for a model or its weights."""


def bounds_for(
    spec: ModelSpec, params: Mapping[str, FloatArray], functionals: FloatArray | None = None
) -> MarginBounds:
    """The bounds of a model with these weights; raises `NoBoundsError` if its blocks have none.

    Functionals are what limits apply to; the bounds choose them unless they are given.
    """
    from ithbit.verification.proofs.one_layer import OneSoftmax
    from ithbit.verification.proofs.two_layers import TwoLayers

    need_fit(spec, params)
    return OneSoftmax(spec, params) if is_one(spec) else TwoLayers(spec, params, functionals)


def is_one(spec: ModelSpec) -> bool:
    """Whether a model is one layer of softmax attention on RHI."""
    softmax = spec.family in FAMILIES and FAMILIES[spec.family].kind == "softmax"
    return spec.n_layers == 1 and spec.task == "rhi" and softmax  # a user's may be named so


def has_bounds(spec: ModelSpec) -> bool:
    """Whether there are bounds for such a model, provided that its weights can be bounded."""
    attention = spec.family in FAMILIES and FAMILIES[spec.family].attention
    two = spec.n_layers == 2 and attention and spec.n_bits <= _LONGEST
    return (is_one(spec) or two) and spec.positions == "polynomial"


def need_fit(spec: ModelSpec, params: Mapping[str, FloatArray]) -> None:
    """Raise `NoBoundsError` unless there are bounds for such a model and its weights fit it."""
    if not has_bounds(spec):
        raise NoBoundsError(
            f"there are no bounds for {spec.task} with {pluralize(spec.n_layers, 'layer')} of "
            f"{spec.family} and {spec.positions} positions at n = {spec.n_bits}; there are bounds "
            "for one layer of softmax attention on rhi, and for two layers of attention up to n = "
            f"{_LONGEST}, with polynomial positions"
        )
    if {name: value.shape for name, value in params.items()} != shapes(spec):
        raise NoBoundsError("the weights do not fit the model")
    if not all(np.isfinite(value).all() for value in params.values()):
        raise NoBoundsError("the weights are not finite, so nothing can be proved of them")
