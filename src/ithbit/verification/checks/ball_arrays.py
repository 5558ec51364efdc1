"""Arrays of balls for the checks: float64 centres with radii that grow with every rounding, and
functions of them from tables of arb balls. They share no code with the bounds of the search.

A radius is a bound in real arithmetic: `U` is more than four roundings of float64, relative to a
result, and `TINY` more than any underflow. Of a ball whose radius is NaN nothing is known, and
everything computed from it is NaN again.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx
from numpy.typing import NDArray

Array = NDArray[Any]
U = 1e-15  # more than four roundings of float64, relative
TINY = 1e-290  # more than any underflow
_STEP, _END = 256, 40  # of the tables of functions: points, and where they end
_TURN, _LEAST = -1.2784645, -0.2784646  # where SiLU is least, and less than it ever is


@dataclass(frozen=True, eq=False)
class BallArray:
    """Numbers within r of c, element by element; of a radius of NaN nothing is known."""

    c: Array
    r: Array

    def __getitem__(self, at: Any) -> "BallArray":
        return BallArray(self.c[at], self.r[at])

    @property
    def size(self) -> Array:
        return np.abs(self.c) + self.r

    @property
    def ends(self) -> tuple[Array, Array]:
        off = self.r + U * self.size + TINY
        return self.c - off, self.c + off

    @property
    def T(self) -> "BallArray":
        return BallArray(np.swapaxes(self.c, -1, -2), np.swapaxes(self.r, -1, -2))

    def __add__(self, other: "BallArray") -> "BallArray":
        c = self.c + other.c
        return BallArray(c, (self.r + other.r + np.abs(c) * U) * (1 + U) + TINY)

    def __mul__(self, other: "BallArray") -> "BallArray":
        c = self.c * other.c
        r = np.abs(self.c) * other.r + self.r * other.size + np.abs(c) * U
        return BallArray(c, r * (1 + U) + TINY)

    def __matmul__(self, other: "BallArray") -> "BallArray":
        """Matrix products: a sum of k products is off by k roundings of their sizes at most."""
        off = (self.c.shape[-1] + 4) * U
        r = np.abs(self.c) @ (other.r + off * np.abs(other.c)) + self.r @ other.size
        return BallArray(self.c @ other.c, r * (1 + off) + TINY)

    def sum(self) -> "BallArray":
        return (self @ point(np.ones((self.c.shape[-1], 1))))[..., 0]


def point(x: Any) -> BallArray:
    x = np.asarray(x, float)
    return BallArray(x, np.zeros_like(x))


def between(low: Array, high: Array) -> BallArray:
    c, r = (low + high) / 2, (high - low) / 2
    return BallArray(c, (np.where(r >= 0, r, np.nan) + U * np.abs(c)) * (1 + U) + TINY)


def image(name: str, of: BallArray) -> BallArray:
    """SiLU, softplus or exp of balls; all increase, but for SiLU, which turns once."""
    (a, off), (b, more) = (_value(name, x) for x in of.ends)
    low, high = np.minimum(a - off, b - more), np.maximum(a + off, b + more)
    turns = (of.ends[0] <= _TURN) & (of.ends[1] >= _TURN - 1e-6)
    low = np.where(turns, np.minimum(low, _LEAST), low) if name == "silu" else np.maximum(low, 0)
    return between(low, high)


def _value(name: str, x: Array) -> tuple[Array, Array]:
    """A function at floats, and how far the value may be off."""
    terms, remainder = _table(name)
    near = np.clip(x, -_END, _END)
    k = np.rint(near * _STEP)
    r = near - k / _STEP  # exact
    at = np.nan_to_num(k + _END * _STEP).astype(np.int64)
    value = terms[0][at] + r * (terms[1][at] + r * terms[2][at])
    beyond = 0 * x if name == "exp" else np.maximum(x, 0)  # to 40 e^-40 < 1e-15
    value = np.where(np.abs(x) > _END, beyond, value)
    value = np.where((name == "exp") & (x > _END), np.inf, value)
    return value, remainder + 1e-15 + 4 * U * (np.abs(value) + np.abs(x))


@cache
def _table(name: str) -> tuple[Array, float]:
    """Three Taylor terms at every point, and a bound on the next one in its cell. Of exp, values at
    x <= 0 are needed alone."""
    with ctx.workprec(90):
        rows, most = [], arb(0)
        for k in range(-_END * _STEP, _END * _STEP + 1):
            if name == "exp" and k > 0:
                rows.append([np.inf] * 3)
                continue
            terms = _series(name, arb(k) / _STEP, 3)
            rows.append([float(terms[j].mid()) for j in range(3)])
            most = most.max(abs(_series(name, arb(k, 0.5) / _STEP, 4)[3]))
        return np.array(rows).T.copy(), float((most / (2 * _STEP) ** 3).upper()) * (1 + U)


def _series(name: str, x: Any, terms: int) -> Any:
    at = arb_series([x, 1], prec=terms)
    if name == "exp":
        return at.exp()
    return at / (1 + (-at).exp()) if name == "silu" else (1 + at.exp()).log()
