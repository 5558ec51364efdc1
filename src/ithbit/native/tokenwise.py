"""What acts on each token by itself, for a group of examples: forward, and backward beside it.

`p` is a run's row of parameters and `gp` that of their gradients, to which is added; a name such as
`w` is where a parameter starts in it. Arrays of vectors are (token, number), flat; `x0` is where
the first vector of `x` is.
"""

from typing import Any

import numpy as np
from numba import njit

from ithbit.native.simd import apart, LANES, fma, get, inline, normal, part, put, root, splat, total, zero

_ONE = np.float32(1)


@njit
def vectors(count: Any) -> Any:
    """Room for so many."""
    return np.empty(count * LANES, np.float32)


@part
def clear(x: Any, x0: Any, count: Any) -> None:
    apart()
    for i in range(x0, x0 + count):
        put(x, i, zero())


@part
def add(x: Any, x0: Any, y: Any, y0: Any, count: Any) -> None:
    """x += y."""
    apart()
    for i in range(count):
        put(x, x0 + i, get(x, x0 + i) + get(y, y0 + i))


@part
def linear(
    p: Any, w: Any, b: Any, x: Any, x0: Any, n_in: Any, y: Any, y0: Any, n_out: Any, tokens: Any
) -> None:
    """y = W x + b at each token; no b where it is below 0."""
    apart()
    for t in range(tokens):
        here, there = x0 + t * n_in, y0 + t * n_out
        for o in range(0, n_out - 3, 4):
            y_0 = y_1 = y_2 = y_3 = zero()
            if b >= 0:
                y_0, y_1 = splat(p[b + o]), splat(p[b + o + 1])
                y_2, y_3 = splat(p[b + o + 2]), splat(p[b + o + 3])
            w_0 = w + o * n_in
            for i in range(n_in):
                v = get(x, here + i)
                y_0 = fma(splat(p[w_0 + i]), v, y_0)
                y_1 = fma(splat(p[w_0 + n_in + i]), v, y_1)
                y_2 = fma(splat(p[w_0 + 2 * n_in + i]), v, y_2)
                y_3 = fma(splat(p[w_0 + 3 * n_in + i]), v, y_3)
            put(y, there + o, y_0)
            put(y, there + o + 1, y_1)
            put(y, there + o + 2, y_2)
            put(y, there + o + 3, y_3)
        for o in range(n_out - n_out % 4, n_out):
            y_0 = splat(p[b + o]) if b >= 0 else zero()
            for i in range(n_in):
                y_0 = fma(splat(p[w + o * n_in + i]), get(x, here + i), y_0)
            put(y, there + o, y_0)


@part
def linear_back(
    p: Any, w: Any, g: Any, g0: Any, n_out: Any, gx: Any, gx0: Any, n_in: Any, tokens: Any
) -> None:
    """gx += W^T g at each token."""
    apart()
    for t in range(tokens):
        here, there = g0 + t * n_out, gx0 + t * n_in
        for i in range(0, n_in - 3, 4):
            at = there + i
            x_0, x_1, x_2, x_3 = get(gx, at), get(gx, at + 1), get(gx, at + 2), get(gx, at + 3)
            for o in range(n_out):
                v, w_0 = get(g, here + o), w + o * n_in + i
                x_0 = fma(splat(p[w_0]), v, x_0)
                x_1 = fma(splat(p[w_0 + 1]), v, x_1)
                x_2 = fma(splat(p[w_0 + 2]), v, x_2)
                x_3 = fma(splat(p[w_0 + 3]), v, x_3)
            put(gx, at, x_0)
            put(gx, at + 1, x_1)
            put(gx, at + 2, x_2)
            put(gx, at + 3, x_3)
        for i in range(n_in - n_in % 4, n_in):
            x_0 = get(gx, there + i)
            for o in range(n_out):
                x_0 = fma(splat(p[w + o * n_in + i]), get(g, here + o), x_0)
            put(gx, there + i, x_0)


@part
def linear_weights(
    gp: Any, w: Any, b: Any, g: Any, g0: Any, n_out: Any, x: Any, x0: Any, n_in: Any, tokens: Any
) -> None:
    """gW += g x^T, gb += g, summed over tokens and lanes: four by two numbers of W at a time."""
    apart()
    for o in range(0, n_out - 3, 4):
        for i in range(0, n_in - 1, 2):
            a_0 = a_1 = a_2 = a_3 = b_0 = b_1 = b_2 = b_3 = zero()
            for t in range(tokens):
                here, there = g0 + t * n_out + o, x0 + t * n_in + i
                x_0, x_1 = get(x, there), get(x, there + 1)
                g_0, g_1, g_2, g_3 = (
                    get(g, here),
                    get(g, here + 1),
                    get(g, here + 2),
                    get(g, here + 3),
                )
                a_0, b_0 = fma(g_0, x_0, a_0), fma(g_0, x_1, b_0)
                a_1, b_1 = fma(g_1, x_0, a_1), fma(g_1, x_1, b_1)
                a_2, b_2 = fma(g_2, x_0, a_2), fma(g_2, x_1, b_2)
                a_3, b_3 = fma(g_3, x_0, a_3), fma(g_3, x_1, b_3)
            at = w + o * n_in + i
            gp[at] += total(a_0)
            gp[at + 1] += total(b_0)
            gp[at + n_in] += total(a_1)
            gp[at + n_in + 1] += total(b_1)
            gp[at + 2 * n_in] += total(a_2)
            gp[at + 2 * n_in + 1] += total(b_2)
            gp[at + 3 * n_in] += total(a_3)
            gp[at + 3 * n_in + 1] += total(b_3)
    tiled = n_out - n_out % 4
    for o in range(n_out):
        for i in range(n_in - n_in % 2 if o < tiled else 0, n_in):
            a_0 = zero()
            for t in range(tokens):
                a_0 = fma(get(g, g0 + t * n_out + o), get(x, x0 + t * n_in + i), a_0)
            gp[w + o * n_in + i] += total(a_0)
        if b >= 0:
            a_0 = zero()
            for t in range(tokens):
                a_0 = a_0 + get(g, g0 + t * n_out + o)
            gp[b + o] += total(a_0)


@part
def layer_norm(
    p: Any, w: Any, b: Any, eps: Any, x: Any, x0: Any, d: Any, y: Any, y0: Any, z: Any, z0: Any,
    scale: Any, s0: Any, tokens: Any,
) -> None:  # fmt: skip
    """y = w z + b, z the normalised x; z and the scale are kept for the way back.

    Without b (below 0) nothing is subtracted: root-mean-square normalisation.
    """
    apart()
    share = splat(_ONE / np.float32(d))
    for t in range(tokens):
        here, mean, square = t * d, zero(), zero()
        if b >= 0:
            for i in range(d):
                mean = mean + get(x, x0 + here + i)
            mean = mean * share
        for i in range(d):
            v = get(x, x0 + here + i) - mean
            square = fma(v, v, square)
        inverse = splat(_ONE) / root(fma(square, share, splat(eps)))
        put(scale, s0 + t, inverse)
        for i in range(d):
            v = (get(x, x0 + here + i) - mean) * inverse
            put(z, z0 + here + i, v)
            offset = splat(p[b + i]) if b >= 0 else zero()
            put(y, y0 + here + i, fma(v, splat(p[w + i]), offset))


@part
def layer_norm_back(
    p: Any, gp: Any, w: Any, b: Any, g: Any, g0: Any, d: Any, z: Any, z0: Any, scale: Any, s0: Any,
    gx: Any, gx0: Any, tokens: Any,
) -> None:  # fmt: skip
    """gx += what g, the gradient of y, is for x."""
    apart()
    share = splat(_ONE / np.float32(d))
    for i in range(d):
        for_w, for_b = zero(), zero()
        for t in range(tokens):
            v = get(g, g0 + t * d + i)
            for_w, for_b = fma(v, get(z, z0 + t * d + i), for_w), for_b + v
        gp[w + i] += total(for_w)
        if b >= 0:
            gp[b + i] += total(for_b)
    for t in range(tokens):
        here, mean, along = t * d, zero(), zero()
        for i in range(d):
            v = get(g, g0 + here + i) * splat(p[w + i])
            mean, along = mean + v, fma(v, get(z, z0 + here + i), along)
        inverse, along = get(scale, s0 + t), along * share
        mean = mean * share if b >= 0 else zero()
        for i in range(d):
            v = get(g, g0 + here + i) * splat(p[w + i]) - mean - get(z, z0 + here + i) * along
            put(gx, gx0 + here + i, fma(v, inverse, get(gx, gx0 + here + i)))


@part
def gelu(x: Any, x0: Any, slope: Any, s0: Any, count: Any) -> None:
    """GELU in place, its derivative beside it."""
    apart()
    for i in range(count):
        v = get(x, x0 + i)
        below, density = normal(v)
        put(slope, s0 + i, fma(v, density, below))
        put(x, x0 + i, v * below)


@part
def times(x: Any, x0: Any, y: Any, y0: Any, count: Any) -> None:
    """x *= y."""
    apart()
    for i in range(count):
        put(x, x0 + i, get(x, x0 + i) * get(y, y0 + i))
