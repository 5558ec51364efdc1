"""The cases a box analysis goes through: index i and answer sigma_i fixed, the other bits free."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.intervals import Interval
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Solution

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cases:
    """A block of cases: for every token and value of its own bit, a box true for all other bits.

    `box` is `case token bit dim`; `allowed` says which own bits a token may hold: tokens without a
    bit use bit 0, and the asked bit is fixed to the answer.
    """

    box: Interval
    allowed: Mask

    def hull(self, values: Interval) -> Interval:
        """Around the allowed values of a case: `case token bit …` to `case …`."""
        spread = self.allowed.reshape(*self.allowed.shape, *[1] * (values.lo.ndim - 3))
        lo = np.where(spread, values.lo, np.inf).min(axis=(1, 2))
        return Interval(lo, np.where(spread, values.hi, -np.inf).max(axis=(1, 2)))


def blocks(n_bits: int, size: int) -> Iterator[tuple[Numbers, Numbers]]:
    """(index, answer) of all 2n cases, `size` of them at a time.

    >>> [(index.tolist(), answer.tolist()) for index, answer in blocks(2, 3)]
    [([1, 1, 2], [0, 1, 0]), ([2], [1])]
    """
    for start in range(0, 2 * n_bits, size):
        number = np.arange(start, min(start + size, 2 * n_bits))
        yield number // 2 + 1, number % 2


def embed(solution: Solution, index: Numbers, answer: Numbers) -> Cases:
    """The embedded tokens of these cases: points."""
    table, n, d = solution.embedding, solution.n_bits, solution.embedding.d
    count = len(index)
    query = np.broadcast_to(table.index[index - 1][:, None, None], (count, 1, 2, d))
    bits = np.broadcast_to(table.bit, (count, n, 2, d))
    free = np.ones((count, n, 2), bool)
    free[np.arange(count), index - 1, 1 - answer] = False
    single = np.broadcast_to(np.array([True, False]), (count, 1, 2))
    if table.end is None:
        boxes, allowed = [bits, query], [free, single]
    else:
        end = np.broadcast_to(table.end, (count, 1, 2, d))
        boxes, allowed = [query, bits, end], [single, free, single]
    return Cases(Interval.point(np.concatenate(boxes, 1)), np.concatenate(allowed, 1))


def linear(weight: FloatArray, x: Interval) -> Interval:
    """weight · x on the last axis."""
    return (x[..., None, :] * weight).total(axis=-1)
