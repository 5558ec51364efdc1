"""Exact rationals and balls (python-flint), shared by all arguments about stored weights."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from flint import arb, fmpq

from ithbit.theory.certifiers.bound import need

Rational = Any  # flint.fmpq, which has no type stubs
Ball = Any  # flint.arb


def exact(value: float) -> Rational:
    """The float as a rational number, exactly.

    >>> exact(0.75)
    3/4
    """
    return fmpq(*float(value).as_integer_ratio())


def exact_row(values: Iterable[float]) -> list[Rational]:
    return [exact(value) for value in values]


def dot(a: Iterable[Rational], b: Iterable[Rational]) -> Rational:
    return sum((x * y for x, y in zip(a, b, strict=True) if x != 0 and y != 0), fmpq(0))


def dyadic(ball: Ball) -> Rational:
    """A ball of radius 0 as a rational."""
    mantissa, exponent = ball.man_exp()
    return fmpq(mantissa) * fmpq(2) ** int(exponent)


def rounded_down(value: Rational | Ball) -> float:
    """A float that is at most the rational, or at most every number in the ball.

    >>> rounded_down(fmpq(1, 4)), Fraction(rounded_down(fmpq(1, 3))) <= Fraction(1, 3)
    (0.25, True)
    >>> rounded_down(arb(1) / 4), rounded_down(arb(1) / 3) <= 1 / 3
    (0.25, True)
    """
    if isinstance(value, arb):
        need(bool(value.is_finite()), "the margin cannot be bounded")
        value = dyadic(value.lower())
    below = Fraction(int(value.p), int(value.q))
    nearest = float(below)
    return nearest if Fraction(nearest) <= below else math.nextafter(nearest, -math.inf)
