"""The cases a box analysis goes through: index i and answer sigma_i fixed, the other bits free.

For every token and every value of its own bit there is a box that holds for all other bits. At the
start the boxes are points, shared by all cases except for the index token: with one layer of
softmax or states nothing of size cases × tokens × width is ever formed. After a layer each case has
its own boxes.
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
    """A block of cases, with a box for each token and each value of its own bit.

    `allowed` says which own bits a token may hold: tokens without a bit use bit 0, and the asked
    bit is fixed to the answer. At the embedding, `box` has one case that stands for all, except for
    the index token at `place`, of which each case has its own, `index`.
    """

    box: Interval  # case token bit dim
    allowed: Mask
    index: FloatArray | None = None  # case dim
    place: int = 0

    def scores(self, u: FloatArray, bit: int) -> FloatArray:
        """u · x at the midpoints, `case query token`, for tokens that hold this bit: in floats."""
        middle = self.box[:, :, bit].middle
        scores: FloatArray = u @ middle.swapaxes(1, 2)
        if self.index is not None:
            scores[:, :, self.place] = (u * self.index[:, None]).sum(axis=2)
        return scores

    def gather(self, case: Numbers, token: Numbers) -> Interval:
        """The boxes of chosen tokens, both bits."""
        if self.index is None:
            return self.box[case, token]
        own, is_own = self.index[case][..., None, :], (token == self.place)[..., None, None]
        return Interval.point(np.where(is_own, own, self.box.lo[0, token]))

    def token(self, k: int) -> Interval:
        """Token k with both bits, `case bit dim`; one case stands for all if they share it."""
        if self.index is None or k != self.place:
            return self.box[:, k]
        return Interval.point(np.repeat(self.index[:, None], 2, axis=1))

    @cached_property
    def hull(self) -> Interval:
        """The hull of all tokens of a case, `case dim`."""
        if self.index is not None:
            others = np.delete(self.box.lo[0], self.place, axis=0)
            return Interval(
                np.minimum(self.index, others.min(axis=(0, 1))),
                np.maximum(self.index, others.max(axis=(0, 1))),
            )
        shape = (self.box.shape[0], -1, self.box.shape[3])
        return Interval(
            np.where(self.allowed[..., None], self.box.lo, np.inf).reshape(shape).min(axis=1),
            np.where(self.allowed[..., None], self.box.hi, -np.inf).reshape(shape).max(axis=1),
        )

    @cached_property
    def radius(self) -> FloatArray:
        """An upper bound on the radius of any box, `case dim`: the largest width."""
        return (self.box.hi - self.box.lo).max(axis=(1, 2))


def blocks(n_bits: int, size: int) -> Iterator[tuple[Numbers, Numbers]]:
    """(index, answer) of all 2n cases, `size` of them at a time.

    >>> [(index.tolist(), answer.tolist()) for index, answer in blocks(2, 3)]
    [([1, 1, 2], [0, 1, 0]), ([2], [1])]
    """
    for start in range(0, 2 * n_bits, size):
        number = np.arange(start, min(start + size, 2 * n_bits))
        yield number // 2 + 1, number % 2


def embed(solution: Solution, index: Numbers, answer: Numbers) -> Cases:
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
    return Cases(Interval.point(table[None]), allowed, source.index[index - 1], place)


def linear(weight: FloatArray, x: Interval) -> Interval:
    """weight · x on the last axis; coordinates with weight 0 are skipped."""
    rows = []
    for row in weight:
        used = np.flatnonzero(row)
        rows.append((x[..., used] * row[used]).total(axis=-1)[..., None])
    return concatenate(rows, axis=-1)
