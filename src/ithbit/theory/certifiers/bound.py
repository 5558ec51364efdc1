"""What every argument gives: a lower bound of the margin, rounded down to a float."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

EXACT = "exact rationals"
BALLS = "exact rationals and arb balls"


class UnsuitableError(Exception):
    """The weights do not have the form that an argument needs; the message says which part."""


@dataclass(frozen=True)
class Bound:
    """A certified lower bound of the margin and the case (index, answer) where it is least."""

    margin: float
    index: int
    answer: int
    arithmetic: str


def rounded_down(value: Any) -> float:
    """A float not above the rational.

    >>> from flint import fmpq
    >>> rounded_down(fmpq(1, 4)), Fraction(rounded_down(fmpq(1, 3))) <= Fraction(1, 3)
    (0.25, True)
    """
    exact = Fraction(int(value.p), int(value.q))
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)
