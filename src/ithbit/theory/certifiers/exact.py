"""Exact arguments about stored weights: rationals and balls (python-flint), and what they give.

Every argument gives a `Bound`: a lower bound on the margin, rounded down to a float.

A `Line` is a ReLU function of one real variable, f(t) = sum_u o_u (w_u t + b_u)+ + c. An MLP with
one hidden layer that reads a single number is of this form. Between its breakpoints it is affine,
so its range on an interval is attained at the ends or at breakpoints, and where it vanishes can be
decided. *Exact*: rationals throughout.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flint import arb, fmpq, fmpq_mat

from ithbit.theory.layers import FloatArray, ReluNet

EXACT = "exact rationals"
BALLS = "exact rationals and arb balls"


class UnsuitableError(Exception):
    """The weights do not have the form that an argument needs; the message says which part."""


def need(condition: bool, what: str) -> None:
    """Raise `UnsuitableError` with this message unless the condition holds."""
    if not condition:
        raise UnsuitableError(what)


@dataclass(frozen=True)
class Bound:
    """A certified lower bound on the margin and the case (index, answer) where it is least."""

    margin: float
    index: int
    answer: int
    arithmetic: str


Rational = Any  # flint.fmpq, which has no type stubs
Ball = Any  # flint.arb
Matrix = Any  # flint.fmpq_mat


def exact(value: float) -> Rational:
    """The float as a rational number, exactly.

    >>> exact(0.75)
    3/4
    """
    return fmpq(*float(value).as_integer_ratio())


_LARGEST = exact(sys.float_info.max)
_SMALLEST = exact(math.ulp(0.0))


def exact_row(values: Iterable[float]) -> list[Rational]:
    return [exact(value) for value in values]


def exact_matrix(values: FloatArray) -> Matrix:
    return fmpq_mat(*values.shape, exact_row(values.ravel()))


def dot(a: Iterable[Rational], b: Iterable[Rational]) -> Rational:
    return sum((x * y for x, y in zip(a, b, strict=True) if x != 0 and y != 0), fmpq(0))


def rounded_down(value: Rational | Ball) -> float:
    """A float that is at most the rational, or at most every number in the ball.

    >>> rounded_down(fmpq(1, 4)), exact(rounded_down(fmpq(1, 3))) <= fmpq(1, 3)
    (0.25, True)
    >>> rounded_down(arb(1) / 4), rounded_down(arb(1) / 3) <= 1 / 3
    (0.25, True)
    """
    if isinstance(value, arb):
        need(bool(value.is_finite()), "the margin cannot be bounded")
        value = value.lower()
    if bool(value >= _LARGEST):
        return sys.float_info.max
    if bool(value < -_LARGEST):
        return -math.inf
    if bool(abs(value) < _SMALLEST):
        return 0.0 if bool(value >= 0) else -math.ulp(0.0)
    bound = value.fmpq() if isinstance(value, arb) else value
    nearest = int(bound.p) / int(bound.q)
    return nearest if exact(nearest) <= bound else math.nextafter(nearest, -math.inf)


def rational_above(ball: Ball) -> Rational:
    """A rational that is at least every number in the ball; `UnsuitableError` if none is near.

    A number with a huge exponent has no rational that fits memory: what is too large is refused,
    and what is too small is replaced by the smallest float.

    >>> rational_above(arb(3) / 4), rational_above(arb(-(10**9)).exp()) > 0
    (3/4, True)
    """
    need(bool(ball < _LARGEST) and bool(ball > -_LARGEST), "a number is too large to be bounded")
    upper = ball.upper()
    return _SMALLEST if bool(abs(upper) < _SMALLEST) else upper.fmpq()


@dataclass(frozen=True, eq=False)
class Line:
    """f(t) = sum_u o_u (w_u t + b_u)+ + c; `units` are the triples (o_u, w_u, b_u)."""

    units: tuple[tuple[Rational, Rational, Rational], ...]
    constant: Rational

    def __call__(self, t: Rational) -> Rational:
        total = self.constant
        for out, slope, shift in self.units:
            inner = slope * t + shift
            if inner > 0:
                total += out * inner
        return total

    def times(self, factor: Rational) -> "Line":
        units = tuple((factor * out, slope, shift) for out, slope, shift in self.units)
        return Line(units, factor * self.constant)

    def breakpoints(self) -> list[Rational]:
        return sorted({-shift / slope for _, slope, shift in self.units if slope != 0})

    def range(self, low: Rational, high: Rational) -> tuple[Rational, Rational]:
        """The least and the largest value on [low, high].

        >>> tent = Line(((fmpq(1), fmpq(1), fmpq(1)), (fmpq(-2), fmpq(1), fmpq(0))), fmpq(0))
        >>> tent.range(fmpq(-1, 2), fmpq(1, 4))
        (1/2, 1)
        """
        inside = [t for t in self.breakpoints() if low < t < high]
        values = [self(t) for t in (low, *inside, high)]
        return min(values), max(values)

    def support(self) -> tuple[Rational, Rational]:
        """An interval outside which f is exactly zero; `UnsuitableError` if there is none."""
        points = self.breakpoints()
        need(bool(points), "the marker MLP has no kink")
        outer = (points[0] - 1, points[0], points[-1], points[-1] + 1)
        # Affine beyond the outer breakpoints, so two zeros on either side mean zero throughout.
        need(not any(self(t) for t in outer), "the marker MLP does not vanish far from 0")
        return points[0], points[-1]


def linear_line(slope: Rational, constant: Rational = fmpq(0)) -> Line:
    """t -> slope t + constant."""
    return Line(((fmpq(1), slope, fmpq(0)), (fmpq(-1), -slope, fmpq(0))), constant)


def line_of(net: ReluNet, direction: Sequence[Rational]) -> Line:
    """t -> net(t · direction), for a net with one output and at most one hidden layer."""
    need(len(net.weights) <= 2, "an MLP has more than one hidden layer")
    starts = exact_row(net.biases[0])
    slopes = [dot(exact_row(weights), direction) for weights in net.weights[0]]
    if len(net.weights) == 1:
        return linear_line(*slopes, *starts)
    (outs,), (constant,) = net.weights[1], net.biases[1]
    return Line(tuple(zip(exact_row(outs), slopes, starts, strict=True)), exact(constant))


def line_direction(net: ReluNet) -> FloatArray:
    """The row that all hidden units of `net` read a multiple of; else `UnsuitableError`."""
    rows = net.weights[0]
    alike = exact_matrix(rows).rank() <= 1
    need(alike, "the marker MLP reads more than one combination of its inputs")
    first: FloatArray = next((row for row in rows if row.any()), rows[0])
    return first
