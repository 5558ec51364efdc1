"""Boxes: arrays of real numbers, each within a radius of a float64 centre, with all rounding in the
radius; and SiLU and softplus of them. Error terms are those of `affine_forms.py`.

A radius is not negative; where one is NaN nothing is known, and everything computed from it is NaN
again. The two functions are tables of Taylor polynomials computed with arb balls.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_series, ctx

from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, slack

_UP = 1 + slack(8)
_STEP, _END = 32, 40  # the tables have a point every 1/32 up to 40
_TERMS = 7
_BEYOND = 1e-15  # beyond them, SiLU and softplus are this close to 0 or x: 40 e^-40 < 2e-16
_TURN, _LEAST = -1.2784645, -0.2784646  # SiLU is least at -1.27846454…, and is -0.27846454… there


class Box(NamedTuple):
    """Numbers within r of c; the arrays may be of different shapes that go together."""

    c: FloatArray
    r: FloatArray

    def at(self, where: Any) -> "Box":
        return Box(self.c[where], self.r[where])

    @property
    def size(self) -> FloatArray:
        return np.abs(self.c) + self.r


def between(low: FloatArray, high: FloatArray) -> Box:
    """The box of an interval; inverted ends give NaN."""
    c, r = (low + high) / 2, (high - low) / 2
    return Box(c, np.where(r >= 0, r, np.nan) * _UP + slack(0) * np.abs(c) + TINY)


def plus(a: Box, b: Box) -> Box:
    c = a.c + b.c
    return Box(c, (a.r + b.r + slack(0) * np.abs(c)) * _UP + TINY)


def times(a: Box, b: Box) -> Box:
    c = a.c * b.c
    r = np.abs(a.c) * b.r + a.r * b.size + slack(0) * np.abs(c)
    return Box(c, r * _UP + TINY)


def products(what: str, a: Box, b: Box, terms: int) -> Box:
    """`numpy.einsum` of two boxes, for sums of that many products."""

    def summed(x: FloatArray, y: FloatArray) -> FloatArray:
        total: FloatArray = np.einsum(what, x, y, optimize=True)
        return total

    off = slack(terms)
    r = summed(np.abs(a.c), b.r + off * np.abs(b.c)) + summed(a.r, b.size)
    return Box(summed(a.c, b.c), r * (1 + off) * _UP + TINY)


def silu(low: FloatArray, high: FloatArray) -> Box:
    """SiLU of intervals: it falls up to `_TURN`, and rises from there."""
    ends, off = ([each("silu", x) for x in (low, high)] for each in (_value, _off))
    top = np.maximum(ends[0] + off[0], ends[1] + off[1])
    bottom = np.minimum(ends[0] - off[0], ends[1] - off[1])
    turns = (low < _TURN + 1e-6) & (high > _TURN - 1e-6)
    return between(np.where(turns, np.minimum(bottom, _LEAST), bottom), top)


def softplus(x: Box) -> tuple[FloatArray, FloatArray]:
    """The ends of softplus, which are not negative."""
    low, high = x.c - x.r - slack(0) * x.size, x.c + x.r + slack(0) * x.size
    bottom = _value("softplus", low) - _off("softplus", low)
    return np.maximum(bottom, 0), _value("softplus", high) + _off("softplus", high)


def _value(name: str, x: FloatArray) -> FloatArray:
    r = np.clip(x, -_END, _END) * _STEP
    k = np.rint(r)
    r -= k  # exact: a difference of near multiples of a power of two
    at = (k + _END * _STEP).astype(np.int64)
    *terms, last = _table(name)[0]
    value: FloatArray = last.take(at, mode="clip")  # NaN stays NaN
    for term in reversed(terms):
        value *= r
        value += term.take(at, mode="clip")
    return np.where(np.abs(x) > _END, np.maximum(x, 0), value)


def _off(name: str, x: FloatArray) -> FloatArray:
    """How far a value may be off."""
    return _table(name)[1] + _BEYOND + slack(0) * np.abs(x)


@cache
def _table(name: str) -> tuple[FloatArray, float]:
    """Taylor terms (term, point) for steps of the table, each rounded from a ball, and a bound on
    the remainder: the next term over every cell."""
    with ctx.workprec(120):
        rows, most = [], arb(0)
        for k in range(-_END * _STEP, _END * _STEP + 1):
            terms = _series(name, arb(k) / _STEP)
            rows.append([float(terms[j].mid()) / _STEP**j for j in range(_TERMS)])
            most = most.max(abs(_series(name, arb(k, 0.5) / _STEP)[_TERMS]))
        remainder = float((most / (2 * _STEP) ** _TERMS).upper()) * _UP
    return np.ascontiguousarray(np.transpose(rows)), remainder


def _series(name: str, x: Any) -> Any:
    at = arb_series([x, 1], prec=_TERMS + 1)
    return at / (1 + (-at).exp()) if name == "silu" else (1 + at.exp()).log()
