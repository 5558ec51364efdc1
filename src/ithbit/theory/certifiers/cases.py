"""The cases a box analysis goes through: index i and answer sigma_i fixed, the other bits free.

For every token and every value of its own bit there is a box that holds for all other bits. At the
start the boxes are points, shared by all cases except for the index token (`Embedded`): with one
layer nothing of size cases × tokens × width is ever formed. After a layer each case has its own
boxes (`Cases`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.intervals import Interval, concatenate
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Solution

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cases:
    """A block of cases, each with its own boxes.

    `box` is `case token bit dim`; `allowed` says which own bits a token may hold: tokens without a
    bit use bit 0, and the asked bit is fixed to the answer.
    """

    box: Interval
    allowed: Mask

    def scores(self, u: FloatArray, bit: int) -> FloatArray:
        """u · x at the midpoints, `case query token`, for tokens that hold this bit: in floats."""
        middle = (self.box.lo[:, :, bit] + self.box.hi[:, :, bit]) / 2
        return u @ middle.swapaxes(1, 2)

    def gather(self, case: Numbers, token: Numbers) -> Interval:
        """The boxes of chosen tokens, both bits."""
        return self.box[case, token]

    def token(self, k: int) -> Interval:
        """Token k with both bits, `case bit dim`; one case stands for all if they share it."""
        return self.box[:, k]

    @cached_property
    def hull(self) -> Interval:
        """The hull of all tokens of a case, `case dim`."""
        shape = (self.box.shape[0], -1, self.box.shape[3])
        return Interval(
            np.where(self.allowed[..., None], self.box.lo, np.inf).reshape(shape).min(axis=1),
            np.where(self.allowed[..., None], self.box.hi, -np.inf).reshape(shape).max(axis=1),
        )

    @cached_property
    def radius(self) -> FloatArray:
        """An upper bound on the radius of any box, `case dim`: the largest width."""
        return (self.box.hi - self.box.lo).max(axis=(1, 2))


@dataclass(frozen=True, eq=False)
class Embedded:
    """A block of cases at the embedding: one table for all, and each case's own index token."""

    table: FloatArray  # token bit dim; the index token's row is not used
    index: FloatArray  # case dim
    place: int  # of the index token
    allowed: Mask

    def scores(self, u: FloatArray, bit: int) -> FloatArray:
        product: FloatArray = u @ self.table[:, bit].T
        product[:, :, self.place] = (u * self.index[:, None]).sum(axis=2)
        return product

    def gather(self, case: Numbers, token: Numbers) -> Interval:
        own = np.broadcast_to(self.index[case][..., None, :], (*token.shape, 2, len(self.index[0])))
        shared = self.table[token]
        return Interval.point(np.where((token == self.place)[..., None, None], own, shared))

    def token(self, k: int) -> Interval:
        if k != self.place:
            return Interval.point(self.table[None, k])
        return Interval.point(np.repeat(self.index[:, None], 2, axis=1))

    @cached_property
    def hull(self) -> Interval:
        others = np.delete(self.table, self.place, axis=0)
        return Interval(
            np.minimum(self.index, others.min(axis=(0, 1))),
            np.maximum(self.index, others.max(axis=(0, 1))),
        )

    @cached_property
    def radius(self) -> FloatArray:
        return np.zeros_like(self.index)

    @cached_property
    def box(self) -> Interval:
        """All tokens written out, `case token bit dim`."""
        boxes = np.broadcast_to(self.table, (len(self.index), *self.table.shape)).copy()
        boxes[:, self.place] = self.index[:, None]
        return Interval.point(boxes)


def blocks(n_bits: int, size: int) -> Iterator[tuple[Numbers, Numbers]]:
    """(index, answer) of all 2n cases, `size` of them at a time.

    >>> [(index.tolist(), answer.tolist()) for index, answer in blocks(2, 3)]
    [([1, 1, 2], [0, 1, 0]), ([2], [1])]
    """
    for start in range(0, 2 * n_bits, size):
        number = np.arange(start, min(start + size, 2 * n_bits))
        yield number // 2 + 1, number % 2


def embed(solution: Solution, index: Numbers, answer: Numbers) -> Embedded:
    """The embedded tokens of these cases."""
    source, count = solution.embedding, len(index)
    place = solution.n_tokens - 1 if source.end is None else 0
    first = 0 if source.end is None else 1
    table = np.zeros((solution.n_tokens, 2, source.d))
    table[first : first + solution.n_bits] = source.bit
    if source.end is not None:
        table[-1] = source.end
    allowed = np.ones((count, solution.n_tokens, 2), bool)
    allowed[:, place, 1] = False
    allowed[:, -1, 1] = False
    allowed[np.arange(count), first + index - 1, 1 - answer] = False
    return Embedded(table, source.index[index - 1], place, allowed)


def linear(weight: FloatArray, x: Interval) -> Interval:
    """weight · x on the last axis; coordinates with weight 0 are skipped."""
    rows = []
    for row in weight:
        used = np.flatnonzero(row)
        rows.append((x[..., used] * row[used]).total(axis=-1)[..., None])
    return concatenate(rows, axis=-1)
