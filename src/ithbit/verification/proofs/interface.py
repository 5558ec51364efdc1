"""The interface of a file of bounds: proved bounds on a model's margin over sets of inputs.

A *node* is an index and a string with some bits fixed, among them the bit at the index, whose value
is the answer. `kinds.py` says which models have bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ithbit.errors import SpecError, normalize
from ithbit.theory.layers import FloatArray

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
