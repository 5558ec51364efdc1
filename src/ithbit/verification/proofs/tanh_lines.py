"""Lines close to tanh and the sigmoid on intervals, with proved errors: numpy float64.

Values of tanh are quintics around the points of a table computed with arb balls, plus a Taylor
remainder. A line has the chord's slope, rounded: any slope is sound. What tanh and the line differ
by at most follows from tangents, since tanh is concave above 0, convex below and odd.
"""

from functools import cache

import numpy as np
from flint import arb, arb_series, ctx

from ithbit.theory.layers import FloatArray

_U = 2.0**-52
_STEP, _END = 128, 20  # the table has a point every 1/128 up to 20
# The sixth derivative is T (1 - T²) (-272 + 960 T² - 720 T⁴) with T = tanh x, at most 53 in size
# (52.27 at T = 0.2586…); beyond the table 1 - tanh x < 2 e^-40.
_SIXTH = 53.0
_OFF = _SIXTH / 720 / (2.0 * _STEP) ** 6 * 1.001 + 8 * _U
_NARROW = 1e-6  # of narrower intervals the slope is that of the middle


def tanh_value(x: FloatArray) -> FloatArray:
    """tanh at float points, off by at most `_OFF`; NaN stays NaN."""
    r = np.clip(x, -_END, _END) * _STEP
    k = np.rint(r)
    r = (r - k) / _STEP  # exact: a difference of near multiples of a power of two
    at = np.nan_to_num(k + _END * _STEP).astype(np.int64)
    *terms, last = _table()
    value: FloatArray = last[at]
    for term in reversed(terms):
        value = value * r + term[at]
    return value


@cache
def _table() -> FloatArray:
    """tanh and its first five Taylor coefficients (coefficient, point), rounded from balls."""
    with ctx.workprec(120):
        rows = []
        for k in range(-_END * _STEP, _END * _STEP + 1):
            x = arb_series([arb(k) / _STEP, 1], prec=6)
            e = (2 * x).exp()
            rows.append([float(each.mid()) for each in ((e - 1) / (e + 1)).coeffs()])
    return np.array(rows).T


def tanh_line(
    low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """(a, m, r, least, greatest): tanh is within a x + m ± r on [low, high], and between the last
    two. Where an end is NaN, infinite or beyond another: the constant 0 ± 1."""
    known = (low <= high) & (high < np.inf) & (low > -np.inf)
    low, high = np.where(known, low, -1.0), np.where(known, high, 1.0)
    ends = tanh_value(low), tanh_value(high)
    narrow = high - low < _NARROW
    with np.errstate(over="ignore"):
        chord = (ends[1] - ends[0]) / np.where(narrow, 1.0, high - low)
        middle = tanh_value(low / 2 + high / 2)
    a = np.clip(np.where(narrow, 1 - middle * middle, chord), 0, 1)
    top, bottom = _above(low, high, a, *ends), -_above(-high, -low, a, -ends[1], -ends[0])
    m, r = (top + bottom) / 2, (top - bottom) / 2
    r = r + (np.abs(top) + np.abs(bottom)) * (4 * _U)
    a, m = np.where(known, a, 0.0), np.where(known, m, 0.0)
    least = np.where(known, np.maximum(ends[0] - _OFF, -1.0), -1.0)
    greatest = np.where(known, np.minimum(ends[1] + _OFF, 1.0), 1.0)
    return a, m, np.where(known, r, 1.0), least, greatest


def sigmoid_line(
    low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """The same for the sigmoid, which is 1/2 + tanh(x/2) / 2."""
    a, m, r, least, greatest = tanh_line(low / 2, high / 2)
    return a / 4, 0.5 + m / 2, r / 2 + 4 * _U, (least / 2 + 0.5) - _U, (greatest / 2 + 0.5) + _U


def _above(
    low: FloatArray, high: FloatArray, a: FloatArray, at_low: FloatArray, at_high: FloatArray
) -> FloatArray:
    """At least the greatest tanh x - a x on [low, high], from the values at the ends.

    Below 0 it is convex: the greatest of the ends of that part. Above 0 it is concave, and below
    its tangent at any point p: the best has tanh² p = 1 - a.
    """
    with np.errstate(divide="ignore"):
        best = np.arctanh(np.sqrt(np.minimum(1 - a, 1 - 1e-16)))
    left = np.maximum(low, 0)
    p = np.clip(best, left, np.maximum(high, left))
    value = tanh_value(p)
    bend = (1 - value * value) - a
    rise = np.maximum(bend * (left - p), bend * (high - p))
    rise = rise + (3 * _OFF + 4 * _U) * np.maximum(high - left, 0)
    size = 1 + a * np.maximum(np.abs(low), np.abs(high))
    tangent = np.where(high > 0, value - a * p + rise, -np.inf)
    right = np.minimum(high, 0)
    at_right = np.where(high > 0, 0.0, at_high)
    ends = np.where(low < 0, np.maximum(at_low - a * low, at_right - a * right), -np.inf)
    found: FloatArray = np.maximum(tangent, ends) + _OFF + (8 * _U) * (size + np.abs(rise))
    return found
