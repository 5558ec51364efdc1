"""ReLU functions of one real variable, exactly: f(t) = sum_u o_u (w_u t + b_u)+ + c over rationals.

An MLP with one hidden layer that reads a single number is of this form. Between its breakpoints it
is affine, so its range on an interval is attained at the ends or at breakpoints, and where it
vanishes can be decided. *Exact*: python-flint rationals throughout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import fmpq

from ithbit.theory.certifiers.arithmetic.exact import Rational, dot, exact, exact_row
from ithbit.theory.certifiers.bound import need
from ithbit.theory.layers import FloatArray, ReluNet


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
        need(bool(points), "the marker MLP has no kink")
        outer = (points[0] - 1, points[0], points[-1], points[-1] + 1)
        # Affine beyond the outer breakpoints, so two zeros on either side mean zero throughout.
        need(not any(self(t) for t in outer), "the marker MLP does not vanish far from 0")
        return points[0], points[-1]


def line_of(net: ReluNet, through: FloatArray, direction: Any, row: FloatArray) -> Line:
    """t -> row · net(through + t · direction), for a net with at most one hidden layer."""
    need(len(net.weights) <= 2, "an MLP has more than one hidden layer")
    at, along = exact_row(through), [x if isinstance(x, fmpq) else exact(x) for x in direction]
    read, inner = exact_row(row), [exact_row(weights) for weights in net.weights[0]]
    slopes = [dot(weights, along) for weights in inner]
    starts = [
        dot(weights, at) + exact(bias) for weights, bias in zip(inner, net.biases[0], strict=True)
    ]
    if len(net.weights) == 1:
        slope = dot(read, slopes)
        return Line(((fmpq(1), slope, fmpq(0)), (fmpq(-1), -slope, fmpq(0))), dot(read, starts))
    outs = [dot(read, exact_row(column)) for column in net.weights[1].T]
    units = tuple(zip(outs, slopes, starts, strict=True))
    return Line(units, dot(read, exact_row(net.biases[1])))


def line_direction(net: ReluNet) -> FloatArray:
    """The row that all hidden units of `net` read a multiple of; else `UnsuitableError`."""
    rows = net.weights[0]
    first: FloatArray = next((row for row in rows if row.any()), rows[0])
    lead = int(np.argmax(first != 0))
    for row in rows:
        pairs = zip(exact_row(row), exact_row(first), strict=True)
        alike = all(a * exact(first[lead]) == b * exact(row[lead]) for a, b in pairs)
        need(alike, "the marker MLP reads more than one combination of its inputs")
    return first
