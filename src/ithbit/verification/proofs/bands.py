"""Sets of bit strings defined by linear functionals: lo <= C ε <= hi for a few fixed rows C.

An average of all bits hardly changes with one of them, so fixing bits tells little about it; a band
of the functional that it follows tells much. For a generator g = p C + r, the product g ε is
p σ + r ε, where σ = C ε lies in the band: p becomes the generator of a symbol for each functional,
and r is what remains for the bits. Any p is sound; least squares makes r small.

Functionals and the ends of bands are multiples of `STEP`, small enough that their sums are exact.
Whether a band contains no string is decided in whole steps, by exact integers.
"""

import math
from dataclasses import dataclass

import numpy as np

from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import slack
from ithbit.verification.proofs.interface import Ints, NoBoundsError

STEP = 2.0**-12
_MOST = 2.0**30  # steps, so that all sums are exact
_GRID = 1024  # of the directions in which bands are tried for emptiness


@dataclass(frozen=True, eq=False)
class Bands:
    """For every node: the functionals on the bits that may be free (0 where one is fixed), and the
    band of their sum over the free bits."""

    C: FloatArray  # node functional free
    mid: FloatArray  # node functional
    half: FloatArray
    back: FloatArray  # node free functional: about a right inverse of C; any is sound
    empty: Ints  # node: no string can be in all bands, decided in exact integers

    @property
    def count(self) -> int:
        return self.C.shape[1]

    def only(self, node: int) -> "Bands":
        """Those of one node."""
        return Bands(*(each[node : node + 1] for each in vars(self).values()))

    def repeated(self, times: int) -> "Bands":
        """Every node so many times."""
        return Bands(*(np.repeat(each, times, 0) for each in vars(self).values()))

    def share(self, g: FloatArray) -> FloatArray:
        """p of generators (node ... free)."""
        return _each(g, self.back)

    def lifted(self, each: FloatArray, like: FloatArray) -> FloatArray:
        """node functional -> node 1 ... functional."""
        return each.reshape(len(each), *(1,) * (like.ndim - 2), -1)

    def centre(self, p: FloatArray) -> FloatArray:
        return (p * self.lifted(self.mid, p)).sum(-1)

    def generators(self, g: FloatArray, p: FloatArray) -> FloatArray:
        """What remains for the bits, r = g - p C, then the functionals."""
        return np.concatenate([g - _each(p, self.C), p * self.lifted(self.half, p)], -1)

    def off(self, g: FloatArray, p: FloatArray) -> FloatArray:
        """How far g ε may be from p σ + r ε due to rounding."""
        sizes = self.lifted(np.abs(self.C).sum(-1) + np.abs(self.mid), p)
        return slack(2 * self.count + 8) * (np.abs(g).sum(-1) + 2 * (np.abs(p) * sizes).sum(-1))


def _each(x: FloatArray, matrix: FloatArray) -> FloatArray:
    """Rows x (node ... a) times the node's matrix (node a b)."""
    shape = x.shape[:-1]
    flat = x.reshape(len(x), math.prod(shape[1:]), x.shape[-1])
    return np.matmul(flat, matrix).reshape(*shape, matrix.shape[-1])


def everything(functionals: FloatArray, nodes: int) -> FloatArray:
    """Limits that every string satisfies."""
    most = np.abs(functionals).sum(-1)
    return np.broadcast_to(np.stack([-most, most], -1), (nodes, len(functionals), 2)).copy()


def need_steps(values: FloatArray, name: str) -> None:
    """Raise `NoBoundsError` unless all values are whole steps, few enough for exact sums."""
    steps = values / STEP
    if not ((np.abs(steps) <= _MOST) & (steps == np.rint(steps))).all():
        raise NoBoundsError(f"the {name} are not whole steps of {STEP}")


def reached(functionals: FloatArray, limits: FloatArray, bits: Ints) -> FloatArray:
    """The limits (node, functional, 2) of C ε over all bits, cut to what a node's bits allow."""
    signs = np.where(bits < 0, 0.0, 2.0 * bits - 1)
    reach, fixed = (bits < 0) @ np.abs(functionals).T, signs @ functionals.T  # exact
    low = np.maximum(limits[..., 0], fixed - reach)
    return np.stack([low, np.minimum(limits[..., 1], fixed + reach)], -1)


def bands_of(functionals: FloatArray, limits: FloatArray, bits: Ints, free: Ints) -> Bands:
    """The bands of nodes from limits (node, functional, 2) of C ε over all bits."""
    fixed = np.where(bits < 0, 0.0, 2.0 * bits - 1) @ functionals.T
    low, high = np.moveaxis(reached(functionals, limits, bits) - fixed[..., None], -1, 0)
    mid, half = (low + high) / 2, np.maximum(high - low, 0) / 2
    C = functionals * (bits < 0)[:, None]  # node functional bit
    empty = _empty(C, low, high)
    C = C[..., free]
    back = np.linalg.pinv(C, rcond=1e-6).astype(np.float64)
    return Bands(C, mid, half, back, empty)


def _empty(C: FloatArray, low: FloatArray, high: FloatArray) -> Ints:
    """Whether no string can have low <= C ε <= high, in whole steps: a band has no end in reach, or
    a C ε is always less than in the bands, for a direction a towards a corner of them. Exact;
    other bands may be empty too."""
    rows, ends = (C / STEP).astype(np.int64), [(x / STEP).astype(np.int64) for x in (low, high)]
    outside = (ends[0] > ends[1]).any(-1)
    reach = np.maximum(np.abs(rows).sum(-1), 1)
    a = np.rint((ends[0] + ends[1]) * (_GRID / 2) / reach).astype(np.int64)
    a = np.clip(a, -_GRID, _GRID)
    most = np.abs((a[..., None] * rows).sum(1)).sum(-1)
    least = np.minimum(a * ends[0], a * ends[1]).sum(-1)
    return outside | (least > most)
