"""Arithmetic that counts itself: the operations of Definition 1, one by one.

The completion maps of `formal` and `trained` are written for any scalar; run on `Counted` numbers
they leave the number of each kind of operation in a `Tally`. Constants (weights) are plain floats
and free; what is done to an input or a fingerprint costs 1. A comparison is counted where it is
made, so a ReLU costs 1; `output` charges for the values a map gives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Scalar = Any  # float or Counted: the maps are the same program for both
Vector = Sequence[Scalar]
Matrix = Sequence[Sequence[float]]


@dataclass
class Tally:
    """Operations so far, by kind."""

    arithmetic: int = 0
    comparisons: int = 0
    exponentials: int = 0
    square_roots: int = 0
    logarithms: int = 0
    error_functions: int = 0
    outputs: int = 0

    @property
    def total(self) -> int:
        special = self.exponentials + self.square_roots + self.logarithms + self.error_functions
        return self.arithmetic + self.comparisons + special + self.outputs


class Counted:
    """A real number that adds every operation on it to its tally.

    >>> tally = Tally()
    >>> x = Counted(3.0, tally)
    >>> (2 * x + 1).value, relu(x).value, tally.arithmetic, tally.comparisons
    (7.0, 3.0, 2, 1)
    """

    __slots__ = ("tally", "value")

    def __init__(self, value: float, tally: Tally) -> None:
        self.value = value
        self.tally = tally

    def _done(self, value: float) -> "Counted":
        self.tally.arithmetic += 1
        return Counted(value, self.tally)

    def __add__(self, other: Scalar) -> "Counted":
        return self._done(self.value + plain(other))

    def __radd__(self, other: float) -> "Counted":
        return self._done(other + self.value)

    def __sub__(self, other: Scalar) -> "Counted":
        return self._done(self.value - plain(other))

    def __rsub__(self, other: float) -> "Counted":
        return self._done(other - self.value)

    def __mul__(self, other: Scalar) -> "Counted":
        return self._done(self.value * plain(other))

    def __rmul__(self, other: float) -> "Counted":
        return self._done(other * self.value)

    def __truediv__(self, other: Scalar) -> "Counted":
        return self._done(self.value / plain(other))

    def __rtruediv__(self, other: float) -> "Counted":
        return self._done(other / self.value)

    def __neg__(self) -> "Counted":
        return self._done(-self.value)

    def __gt__(self, other: Scalar) -> bool:
        self.tally.comparisons += 1
        return bool(self.value > plain(other))


def plain(x: Scalar) -> float:
    """The number itself."""
    return x.value if isinstance(x, Counted) else float(x)


def _applied(function: Callable[[float], float], x: Scalar, counted_as: str) -> Scalar:
    if not isinstance(x, Counted):
        return function(x)
    setattr(x.tally, counted_as, getattr(x.tally, counted_as) + 1)
    return Counted(function(x.value), x.tally)


def exp(x: Scalar) -> Scalar:
    """e^x; the one transcendental operation of Definition 1."""
    return _applied(math.exp, x, "exponentials")


def sqrt(x: Scalar) -> Scalar:
    """The square root of a normalisation; no operation of Definition 1."""
    return _applied(math.sqrt, x, "square_roots")


def log(x: Scalar) -> Scalar:
    """The logarithm of a softplus; no operation of Definition 1."""
    return _applied(math.log, x, "logarithms")


def erf(x: Scalar) -> Scalar:
    """The error function of GELU; no operation of Definition 1."""
    return _applied(math.erf, x, "error_functions")


def relu(x: Scalar) -> Scalar:
    """max(x, 0): one comparison with a jump. The zero still counts what is done to it."""
    if x > 0:
        return x
    return Counted(0.0, x.tally) if isinstance(x, Counted) else 0.0


def total(values: Vector) -> Scalar:
    """The sum; m - 1 operations."""
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def dot(a: Vector, b: Vector) -> Scalar:
    """The inner product; 2m - 1 operations."""
    return total([x * y for x, y in zip(a, b, strict=True)])


def matvec(matrix: Matrix, x: Vector) -> list[Scalar]:
    """Matrix times vector; 2m - 1 operations a row."""
    return [dot(row, x) for row in matrix]


def affine(matrix: Matrix, bias: Sequence[float], x: Vector) -> list[Scalar]:
    """Matrix times vector plus bias; 2m operations a row."""
    return [row + b for row, b in zip(matvec(matrix, x), bias, strict=True)]


def add(a: Vector, b: Vector) -> list[Scalar]:
    """The sum of two vectors."""
    return [x + y for x, y in zip(a, b, strict=True)]
