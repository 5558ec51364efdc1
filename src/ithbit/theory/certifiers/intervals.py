"""Arrays of intervals that contain the true real numbers: float64 rounded outward.

Sums and products use the error-free transformations of Knuth and of Dekker and Veltkamp, which give
the rounding error of an operation as a float: an end is moved outward by one step only where the
operation was not exact. So small integers and dyadic fractions stay points, and a quantity that is
exactly zero stays exactly zero. Relies on IEEE 754 double arithmetic with rounding to nearest and,
for exp, on a table computed with arb balls (python-flint).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from ithbit.errors import normalize
from ithbit.theory.layers import FloatArray

Index = Any  # what numpy takes between brackets

EXP_LIMIT = 700  # beyond it, exp is bounded by 0 or by infinity
FINE = 64  # exp's table has one entry per integer and one per 64th
# Horner's rule for e^r to degree 6, |r| <= 1/128: the last addition rounds by at most
# 2^-53 (1 + |r|), earlier ones reach the result multiplied by |r|, and the remainder is below
# 2^-61. So 2^-51 is ample.
_HORNER_SLACK = 2.0**-51
_SPLIT = 2.0**27 + 1
_PRODUCT_FLOOR = 1e-250  # below it Dekker's error term may itself underflow


def _down(value: FloatArray, error: FloatArray) -> FloatArray:
    """A lower bound on value + error; a NaN error (overflow) counts as inexact."""
    fits = error >= 0
    return value if fits.all() else np.where(fits, value, np.nextafter(value, -np.inf))


def _up(value: FloatArray, error: FloatArray) -> FloatArray:
    fits = error <= 0
    return value if fits.all() else np.where(fits, value, np.nextafter(value, np.inf))


def _sum(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """a + b rounded, and the exact error of that rounding (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """a · b rounded, and the exact error of that rounding (Dekker, Veltkamp); NaN if unknown."""
    product = a * b
    a_big, b_big = a * _SPLIT, b * _SPLIT
    a_high, b_high = a_big - (a_big - a), b_big - (b_big - b)
    a_low, b_low = a - a_high, b - b_high
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    known = (np.abs(product) > _PRODUCT_FLOOR) | (a == 0) | (b == 0)
    return product, np.where(known, error, np.nan)


@dataclass(frozen=True, eq=False)
class Interval:
    """Arrays `lo` <= true value <= `hi`, element by element; equal shapes.

    >>> third = Interval.point([1.0]) / Interval.point([3.0])
    >>> bool(third.lo[0] < third.hi[0]), (third.lo - third.lo).tolist()
    (True, [0.0])
    >>> (Interval.point([0.5]) * Interval.point([3.0]) + 1).hi.tolist()
    [2.5]
    """

    lo: FloatArray
    hi: FloatArray

    def __post_init__(self) -> None:
        """Keep one array for both ends if they agree: then half of the work can be skipped."""
        if self.lo is not self.hi and np.array_equal(self.lo, self.hi):
            normalize(self, hi=self.lo)

    @classmethod
    def point(cls, values: Any) -> Self:
        array = np.asarray(values, dtype=np.float64)
        return cls(array, array)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    @property
    def ends(self) -> tuple[FloatArray, ...]:
        """The two arrays, or the one that is both."""
        return (self.lo,) if self.lo is self.hi else (self.lo, self.hi)

    @property
    def middle(self) -> FloatArray:
        """The midpoints, rounded. Each end is halved first: the sum of two may overflow."""
        return self.lo if self.lo is self.hi else self.lo / 2 + self.hi / 2

    def __getitem__(self, index: Index) -> "Interval":
        ends = [end[index] for end in self.ends]
        return Interval(ends[0], ends[-1])

    def reshape(self, *shape: int) -> "Interval":
        return Interval(self.lo.reshape(shape), self.hi.reshape(shape))

    def spread(self, *shape: int) -> "Interval":
        """The same, broadcast to a shape."""
        return Interval(np.broadcast_to(self.lo, shape), np.broadcast_to(self.hi, shape))

    def __neg__(self) -> "Interval":
        return Interval(-self.hi, -self.lo)

    def __add__(self, other: "Interval | float | FloatArray") -> "Interval":
        if not isinstance(other, Interval):
            other = Interval.point(other)
        with np.errstate(all="ignore"):
            low = high = _sum(self.lo, other.lo)
            if len(self.ends) + len(other.ends) > 2:
                high = _sum(self.hi, other.hi)
            return Interval(_down(*low), _up(*high))

    def __sub__(self, other: "Interval | float | FloatArray") -> "Interval":
        return self + (-(other if isinstance(other, Interval) else Interval.point(other)))

    def __mul__(self, other: "Interval | float | FloatArray") -> "Interval":
        if not isinstance(other, Interval):
            other = Interval.point(other)
        with np.errstate(all="ignore"):
            corners = [_product(a, b) for a in self.ends for b in other.ends]
            return Interval(
                np.minimum.reduce([_down(*corner) for corner in corners]),
                np.maximum.reduce([_up(*corner) for corner in corners]),
            )

    def __truediv__(self, other: "Interval") -> "Interval":
        """The quotient; the divisor must be positive."""
        assert (other.lo > 0).all()
        with np.errstate(all="ignore"):
            quotients = [a / b for a in self.ends for b in other.ends]
            return Interval(
                np.nextafter(np.minimum.reduce(quotients), -np.inf),
                np.nextafter(np.maximum.reduce(quotients), np.inf),
            )

    def exp(self) -> "Interval":
        """e^x; exactly 1 at 0, within about 2^-49 elsewhere."""
        with np.errstate(all="ignore"):
            return Interval(_exp(self.lo).lo, _exp(self.hi).hi)

    def relu(self) -> "Interval":
        return Interval(np.maximum(self.lo, 0), np.maximum(self.hi, 0))

    def meet(self, other: "Interval") -> "Interval":
        """The intersection: if both contain the true value, so does it."""
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def total(self, axis: int) -> "Interval":
        """The sum along an axis, by repeated halving."""
        items = Interval(np.moveaxis(self.lo, axis, 0), np.moveaxis(self.hi, axis, 0))
        if not items.shape[0]:
            return Interval.point(np.zeros(items.shape[1:]))
        while items.shape[0] > 1:
            half, odd = divmod(items.shape[0], 2)
            pairs = items[:half] + items[half : 2 * half]
            items = concatenate([pairs, items[2 * half :]], axis=0) if odd else pairs
        return items[0]


def concatenate(parts: list[Interval], axis: int) -> Interval:
    """The intervals one after another along an axis."""
    lows, highs = ([part.lo for part in parts], [part.hi for part in parts])
    return Interval(np.concatenate(lows, axis=axis), np.concatenate(highs, axis=axis))


def choose(condition: NDArray[np.bool_], yes: Interval, no: Interval) -> Interval:
    """`yes` where the condition holds, else `no`."""
    return Interval(np.where(condition, yes.lo, no.lo), np.where(condition, yes.hi, no.hi))


def sigmoid(x: Interval) -> Interval:
    """1 / (1 + e^{−x}), which is increasing; clipped to [0, 1]."""
    one = Interval.point(1.0)
    ends = one / ((-x).exp() + 1.0)
    return Interval(np.maximum(ends.lo, 0.0), np.minimum(ends.hi, 1.0))


def tanh(x: Interval) -> Interval:
    """2 sigmoid(2x) − 1."""
    return sigmoid(x * 2.0) * 2.0 - 1.0


@cache
def exp_tables() -> tuple[Interval, Interval]:
    """exp at −700 … 700 and at −32/64 … 32/64, as intervals computed with arb balls."""
    with ctx.workprec(100):
        whole = [arb(j).exp() for j in range(-EXP_LIMIT, EXP_LIMIT + 1)]
        fine = [(arb(m) / FINE).exp() for m in range(-FINE // 2, FINE // 2 + 1)]
        return _enclose(whole), _enclose(fine)


def _enclose(balls: list[Any]) -> Interval:
    lo = np.array([float(ball.lower()) for ball in balls])
    hi = np.array([float(ball.upper()) for ball in balls])
    return Interval(np.nextafter(lo, -np.inf), np.nextafter(hi, np.inf))


def _exp(x: FloatArray) -> Interval:
    """An enclosure of e^x at float points: e^j · e^{m/64} · e^r with |r| <= 1/128.

    Both subtractions are exact, since the integer (and the 64th) nearest to a float is within a
    factor of two of it or is 0.
    """
    whole, fine = exp_tables()
    unknown = np.isnan(x)
    inside = np.clip(np.where(unknown, 0.0, x), -EXP_LIMIT, EXP_LIMIT)
    j = np.rint(inside)
    m = np.rint((inside - j) * FINE)
    r = (inside - j) - m / FINE
    p = np.full_like(r, 1 / 720)
    for factor in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        p = p * r + factor
    tail = Interval(p - p * _HORNER_SLACK, p + p * _HORNER_SLACK)
    body = whole[j.astype(int) + EXP_LIMIT] * fine[m.astype(int) + FINE // 2] * tail
    lo = np.where((x < -EXP_LIMIT) | unknown, 0.0, body.lo)
    hi = np.where((x > EXP_LIMIT) | unknown, np.inf, body.hi)
    return Interval(np.where(x == 0, 1.0, lo), np.where(x == 0, 1.0, hi))
