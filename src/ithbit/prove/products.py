"""Products of forms, and convex functions of them: what a second layer of attention needs.

Axes are as a caller has them: dim last in c and e, symbols behind it in G.
"""

import numpy as np

from ithbit.prove.forms import TINY, Form, slack
from ithbit.theory.certifiers.arithmetic.intervals import Interval
from ithbit.theory.layers import FloatArray

_UP = 1 + slack(8)


def collapsed(x: Form, k: int) -> Form:
    """The form with all symbols but the first k as part of its error."""
    more = np.abs(x.G[..., k:]).sum(-1) * (1 + slack(x.G.shape[-1]))
    return Form(x.c, x.G[..., :k], (x.e + more) * _UP)


def dot(a: Form, b: Form, k: int) -> Form:
    """Σ a b over the last axis of c: a scalar form with the symbols of a, of which b shares the
    first k; what b has for itself, and what is not affine, is in its error."""
    c = (a.c * b.c).sum(-1)
    by_a, by_b = (np.matmul(x.c[..., None, :], y.G)[..., 0, :] for x, y in ((a, b), (b, a)))
    own = np.abs(by_a[..., k:]).sum(-1)
    ra, rb = a.spread() + a.e, b.spread() + b.e
    e = np.abs(a.c) * b.e + np.abs(b.c) * a.e + ra * rb
    e = e + slack(2 * a.c.shape[-1] + b.G.shape[-1]) * (np.abs(a.c) + ra) * (np.abs(b.c) + rb)
    by_b[..., :k] += by_a[..., :k]
    return Form(c, by_b, (e.sum(-1) + own) * _UP + TINY)


def product(weight: Form, value: Form) -> Form:
    """A scalar form times a vector form, whose symbols come first among those of the scalar."""
    more = weight.G.shape[-1] - value.G.shape[-1]
    G = np.concatenate([value.G, np.zeros((*value.G.shape[:-1], more))], -1)
    value = Form(value.c, G, value.e)
    w, W = weight.c[..., None], weight.G[..., None, :]
    rw, rv = (weight.spread() + weight.e)[..., None], value.spread() + value.e
    e = np.abs(value.c) * weight.e[..., None] + np.abs(w) * value.e + rw * rv
    e = e + slack(4) * (np.abs(w) + rw) * (np.abs(value.c) + rv)
    return Form(w * value.c, W * value.c[..., None] + w[..., None] * value.G, e * _UP + TINY)


def convex(x: Form, features: bool) -> Form:
    """exp, or ELU + 1, of every coordinate: between the chord and a tangent.

    Both functions are above e^t (1 + x - t), for ELU + 1 if t <= 0.
    """
    low, high = x.bounds()
    a, b = (_convex_at(end, features) for end in (low, high))
    width = high - low
    slope = np.where(width > 1e-6, (b.hi - a.lo) / np.maximum(width, 1e-6), b.hi)
    t = np.log(np.maximum(slope, 1e-300))
    if features:
        slope, t = np.minimum(slope, 1), np.minimum(t, 0)
    near = Interval(t, t).exp()
    far = np.maximum(np.abs(low), np.abs(high))
    off = slack(8) * (b.hi + slope * far)
    top = np.maximum(a.hi - slope * low, b.hi - slope * high) + off
    twist = np.maximum(np.abs(near.hi - slope), np.abs(near.lo - slope)) + slack(0) * slope
    tangent = np.minimum(near.lo * (1 - t), near.hi * (1 - t)) - twist * far
    bottom = np.minimum(tangent - slack(8) * near.hi * (1 + np.abs(t)) - off, top)
    middle, radius = (top + bottom) / 2, (top - bottom) / 2
    sizes = slope * (np.abs(x.c) + x.spread()) + np.abs(middle) + radius
    e = (x.e * slope + radius + slack(0) * sizes) * _UP + TINY
    return Form(slope * x.c + middle, x.G * slope[..., None], e)


def _convex_at(x: FloatArray, features: bool) -> Interval:
    """Bounds of exp, or ELU + 1, at float points."""
    value = Interval(x, x).exp()
    if not features:
        return value
    line = x + 1
    low, high = line - slack(0) * np.abs(line), line + slack(0) * np.abs(line)
    return Interval(np.where(x > 0, low, value.lo), np.where(x > 0, high, value.hi))
