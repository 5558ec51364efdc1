"""ReLU functions of one real variable, exactly: f(t) = sum_u o_u (w_u t + b_u)+ + c with rationals.

An MLP with one hidden layer that reads a single number is of this form. Between its breakpoints it
is affine, so its range on an interval is attained at the ends or at breakpoints, and where it
vanishes can be decided. *Exact*: python-flint rationals throughout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import fmpq

from ithbit.theory.certifiers.bound import UnsuitableError
from ithbit.theory.layers import FloatArray, ReluNet

Rational = Any  # flint.fmpq, which has no type stubs


def exact(value: float) -> Rational:
    """The float as a rational number, exactly.

    >>> exact(0.75)
    3/4
    """
    return fmpq(*float(value).as_integer_ratio())


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
        if not points:
            raise UnsuitableError("the marker MLP has no kink")
        outer = (points[0] - 1, points[0], points[-1], points[-1] + 1)
        # Affine beyond the outer breakpoints, so two zeros on either side mean zero throughout.
        if any(self(t) != 0 for t in outer):
            raise UnsuitableError("the marker MLP does not vanish far from 0")
        return points[0], points[-1]


def line_of(net: ReluNet, through: FloatArray, direction: Any, row: FloatArray) -> Line:
    """t -> row · net(through + t · direction), for a net with at most one hidden layer."""
    if len(net.weights) > 2:
        raise UnsuitableError("an MLP has more than one hidden layer")
    if len(net.weights) == 1:
        slope = _dot(row, [_dot(weights, direction) for weights in net.weights[0]])
        affine = zip(net.weights[0], net.biases[0], strict=True)
        at = _dot(row, [_dot(weights, through) + exact(bias) for weights, bias in affine])
        return Line(((fmpq(1), slope, fmpq(0)), (fmpq(-1), -slope, fmpq(0))), at)
    units = []
    for column, weights, bias in zip(net.weights[1].T, net.weights[0], net.biases[0], strict=True):
        out = _dot(row, column)
        units.append((out, _dot(weights, direction), _dot(weights, through) + exact(bias)))
    return Line(tuple(units), _dot(row, net.biases[1]))


def _dot(a: FloatArray, b: Any) -> Rational:
    pairs = zip(a, b, strict=True)
    return sum((exact(x) * (exact(y) if isinstance(y, float) else y) for x, y in pairs), fmpq(0))


def line_direction(net: ReluNet) -> FloatArray:
    """The row whose multiples all hidden units of `net` are; `UnsuitableError` if there is none."""
    rows = net.weights[0]
    first: FloatArray = next((row for row in rows if row.any()), rows[0])
    lead = int(np.argmax(first != 0))
    for row in rows:
        if any(
            exact(a) * exact(first[lead]) != exact(b) * exact(row[lead])
            for a, b in zip(row, first, strict=True)
        ):
            raise UnsuitableError("the marker MLP reads more than one combination of its inputs")
    return first
