"""Linear attention, all blocks of a model: the twin of `models/linear_attention.py`.

The state of a head is S, the sum of keys with values, and Z, the sum of keys. Full attention reads
the state after all tokens, causal attention after each. The way back has the same shape: a second
state sums queries with gradients, from the last token on.
"""

from typing import Any

import numpy as np

from ithbit.native.entry import entry
from ithbit.native.feed_forward import feed_forward, feed_forward_back
from ithbit.native.simd import apart, LANES, exp, fma, get, largest, part, put, splat, zero
from ithbit.native.tokens import collect, finish, head, load, new_sums, spread
from ithbit.native.tokenwise import (
    add,
    clear,
    layer_norm,
    layer_norm_back,
    linear,
    linear_back,
    linear_weights,
    vectors,
)

_ONE, _EPS, _DENOMINATOR_EPS = np.float32(1), np.float32(1e-5), np.float32(1e-6)


@part
def _features(x: Any, x0: Any, slope: Any, s0: Any, d: Any, step: Any, tokens: Any) -> None:
    """ELU + 1 in place for the first d of `step` numbers a token, its derivative beside it."""
    apart()
    for t in range(tokens):
        for i in range(d):
            v = get(x, x0 + t * step + i)
            e = exp(zero() - largest(zero() - v, zero()))
            put(slope, s0 + t * d + i, e)
            put(x, x0 + t * step + i, e + largest(v, zero()))


@part
def _features_back(g: Any, slope: Any, s0: Any, d: Any, step: Any, tokens: Any) -> None:
    apart()
    for t in range(tokens):
        for i in range(d):
            put(g, t * step + i, get(g, t * step + i) * get(slope, s0 + t * d + i))


@part
def _grow(
    state: Any, h: Any, size: Any, a: Any, a0: Any, b: Any, b0: Any, z: Any, z0: Any
) -> None:
    """S += a b^T, Z += a z, for a head; without z (below 0) it is 1."""
    apart()
    at = h * size * (size + 1)
    for f in range(size):
        v = get(a, a0 + f)
        for e in range(size):
            put(state, at + e, fma(v, get(b, b0 + e), get(state, at + e)))
        more = v * get(z, z0) if z0 >= 0 else v
        put(state, at + size, get(state, at + size) + more)
        at += size + 1


@part
def _left(state: Any, h: Any, size: Any, a: Any, a0: Any, y: Any, y0: Any) -> Any:
    """y = a S."""
    apart()
    at = h * size * (size + 1)
    for e in range(0, size, 4):
        y_0 = y_1 = y_2 = y_3 = zero()
        for f in range(size):
            v, here = get(a, a0 + f), at + f * (size + 1) + e
            y_0 = fma(v, get(state, here), y_0)
            y_1 = fma(v, get(state, here + 1), y_1)
            y_2 = fma(v, get(state, here + 2), y_2)
            y_3 = fma(v, get(state, here + 3), y_3)
        put(y, y0 + e, y_0)
        put(y, y0 + e + 1, y_1)
        put(y, y0 + e + 2, y_2)
        put(y, y0 + e + 3, y_3)


@part
def _right(
    state: Any, h: Any, size: Any, b: Any, b0: Any, z: Any, z0: Any, y: Any, y0: Any
) -> None:
    """y = S b + Z z."""
    apart()
    at = h * size * (size + 1)
    for f in range(size):
        v = get(state, at + size)
        if z0 >= 0:
            v = v * get(z, z0)
        for e in range(size):
            v = fma(get(state, at + e), get(b, b0 + e), v)
        put(y, y0 + f, v)
        at += size + 1


@part
def _read(
    state: Any, q: Any, at: Any, mixed: Any, below: Any, below0: Any, d: Any, heads: Any
) -> None:
    """What a query sees of the state; the denominators are kept."""
    apart()
    size = d // heads
    for h in range(heads):
        mine, z = at + h * size, h * size * (size + 1) + size
        _left(state, h, size, q, mine, mixed, mine)
        whole = splat(_DENOMINATOR_EPS)
        for f in range(size):
            whole = fma(get(q, mine + f), get(state, z + f * (size + 1)), whole)
        share = splat(_ONE) / whole
        put(below, below0 + h, share)
        for f in range(size):
            put(mixed, mine + f, get(mixed, mine + f) * share)


@part
def mix(
    state: Any, q: Any, kv: Any, here: Any, mixed: Any, below: Any, below0: Any, tokens: Any,
    queries: Any, d: Any, heads: Any, causal: Any,
) -> None:  # fmt: skip
    """What the last `queries` tokens see."""
    apart()
    size, step = d // heads, causal and queries > 1
    clear(state, 0, d * (size + 1))
    for t in range(tokens):
        key = 2 * here + t * 2 * d
        for h in range(heads):
            _grow(state, h, size, kv, key + h * size, kv, key + d + h * size, kv, -1)
        if step:
            _read(state, q, here + t * d, mixed, below, below0 + t * heads, d, heads)
    for a in range(0 if step else queries):
        _read(state, q, here + a * d, mixed, below, below0 + a * heads, d, heads)


@part
def _query_back(
    state: Any, a: Any, mixed: Any, here: Any, below: Any, below0: Any, g: Any, gz: Any, gq: Any,
    d: Any, heads: Any,
) -> None:  # fmt: skip
    """The gradient of a query; g becomes that of its numerators, gz that of its denominators."""
    apart()
    size = d // heads
    for h in range(heads):
        mine, share, slope = a * d + h * size, get(below, below0 + a * heads + h), zero()
        for f in range(size):
            v = get(g, mine + f) * share
            slope = slope - v * get(mixed, here + mine + f)
            put(g, mine + f, v)
        put(gz, a * heads + h, slope)
        _right(state, h, size, g, mine, gz, a * heads + h, gq, mine)


@part
def _key_back(
    state: Any, t: Any, kv: Any, here: Any, gkv: Any, d: Any, heads: Any
) -> None:
    """The gradients of a key and its value."""
    apart()
    size = d // heads
    for h in range(heads):
        key, at = 2 * here + t * 2 * d + h * size, t * 2 * d + h * size
        _right(state, h, size, kv, key + d, kv, -1, gkv, at)
        _left(state, h, size, kv, key, gkv, at + d)


@part
def mix_back(
    state: Any, q: Any, kv: Any, here: Any, mixed: Any, below: Any, below0: Any, g: Any, gz: Any,
    gq: Any, gkv: Any, tokens: Any, queries: Any, d: Any, heads: Any, causal: Any,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    apart()
    size, step = d // heads, causal and queries > 1
    clear(state, 0, d * (size + 1))
    for t in range(tokens):
        key = 2 * here + t * 2 * d
        for h in range(heads):
            _grow(state, h, size, kv, key + h * size, kv, key + d + h * size, kv, -1)
        if step:
            _query_back(state, t, mixed, here, below, below0, g, gz, gq, d, heads)
    for a in range(0 if step else queries):
        _query_back(state, a, mixed, here, below, below0, g, gz, gq, d, heads)
    clear(state, 0, d * (size + 1))
    for a in range(queries - 1, -1, -1):
        for h in range(heads):
            mine = a * d + h * size
            _grow(state, h, size, q, here + mine, g, mine, gz, a * heads + h)
        if step:
            _key_back(state, a, kv, here, gkv, d, heads)
    for t in range(0 if step else tokens):
        _key_back(state, t, kv, here, gkv, d, heads)


@entry
def linear_attention(
    values: Any, grads: Any, wide: Any, d_wide: Any, bits: Any, index: Any, logits: Any, at: Any,
    head_at: Any, sizes: Any, lhi: Any, causal: Any, train: Any,
) -> None:  # fmt: skip
    """Logits of every run's examples; to train, gradients too, which are to be zero before."""
    layers, (d, heads, m) = len(at), (sizes[0], sizes[1], sizes[2])
    n = bits.shape[2]
    T = n + 1 + lhi
    row = T * d
    bit, query = vectors(n), np.empty(LANES, np.int64)
    x, q, mixed = vectors((layers + 1) * row), vectors(layers * row), vectors(layers * row)
    kv, state = vectors(layers * 2 * row), vectors(d * (d // heads + 1))
    below, slope_q, slope_k = vectors(layers * T * heads), vectors(layers * row), vectors(layers * row)
    z1, y1, z2, y2 = vectors(layers * row), vectors(layers * row), vectors(layers * row), vectors(layers * row)
    scale1, scale2 = vectors(layers * T), vectors(layers * T)
    h, slope, temporary = vectors(layers * T * m), vectors(layers * T * m), vectors(row)
    g, gx, gy, gm = vectors(row), vectors(row), vectors(row), vectors(row)
    gq, gkv, gh, gz = vectors(row), vectors(2 * row), vectors(T * m), vectors(T * heads)
    for run in range(len(values)):
        p, gp, table, d_table = values[run], grads[run], wide[run], d_wide[run]
        both, ones = new_sums(d_table, n)
        for first in range(0, bits.shape[1], LANES):
            load(bits[run], index[run], first, bit, query)
            for layer in range(layers):
                asked = 1 if layer == layers - 1 else T
                here, mine = layer * row, (T - asked) * d
                norm1, qkv, out, norm2, up, down = at[layer]
                if layer:
                    layer_norm(
                        p, norm1, norm1 + d, _EPS, x, here, d, y1, here, z1, here, scale1,
                        layer * T, T,
                    )  # fmt: skip
                    linear(p, qkv, -1, y1, here + mine, d, q, here, d, asked)
                    linear(p, qkv + d * d, -1, y1, here, d, kv, 2 * here, 2 * d, T)
                    _features(q, here, slope_q, here, d, d, asked)
                    _features(kv, 2 * here, slope_k, here, d, 2 * d, T)
                else:
                    spread(table, 0, d, n, lhi, asked, bit, query, x, mine)
                    spread(table, d, d, n, lhi, asked, bit, query, q, 0)
                    spread(table, 2 * d, 2 * d, n, lhi, T, bit, query, kv, 0)
                mix(
                    state, q, kv, here, mixed, below, layer * T * heads, T, asked, d, heads, causal
                )
                # What follows is kept for the last tokens of x, so x itself is added to.
                linear(p, out, -1, mixed, here, d, temporary, 0, d, asked)
                add(temporary, 0, x, here + mine, asked * d)
                layer_norm(
                    p, norm2, norm2 + d, _EPS, temporary, 0, d, y2, here, z2, here, scale2,
                    layer * T, asked,
                )  # fmt: skip
                feed_forward(
                    p, up, down, d, m, y2, here, h, slope, layer * T * m, gx, asked
                )
                clear(x, here + row, asked * d)
                add(x, here + row, temporary, 0, asked * d)
                add(x, here + row, gx, 0, asked * d)
            head(p, gp, head_at, d, x, layers * row, bits[run], index[run], first, logits[run],
                 train, g)  # fmt: skip
            for layer in range(layers - 1, -1 if train else layers - 1, -1):
                asked = 1 if layer == layers - 1 else T
                here, mine, some = layer * row, (T - asked) * d, asked * d
                norm1, qkv, out, norm2, up, down = at[layer]
                clear(gy, 0, some)
                feed_forward_back(
                    p, gp, up, down, d, m, y2, here, h, slope, layer * T * m, g, gh, gy, asked
                )
                clear(gx, 0, row)
                add(gx, mine, g, 0, some)
                layer_norm_back(
                    p, gp, norm2, norm2 + d, gy, 0, d, z2, here, scale2, layer * T, gx, mine, asked
                )
                clear(gm, 0, some)
                linear_back(p, out, gx, mine, d, gm, 0, d, asked)
                linear_weights(gp, out, -1, gx, mine, d, mixed, here, d, asked)
                mix_back(
                    state, q, kv, here, mixed, below, layer * T * heads, gm, gz, gq, gkv, T, asked,
                    d, heads, causal,
                )  # fmt: skip
                if layer:
                    _features_back(gq, slope_q, here, d, d, asked)
                    _features_back(gkv, slope_k, here, d, 2 * d, T)
                    clear(gy, 0, row)
                    linear_back(p, qkv, gq, 0, d, gy, mine, d, asked)
                    linear_weights(gp, qkv, -1, gq, 0, d, y1, here + mine, d, asked)
                    linear_back(p, qkv + d * d, gkv, 0, 2 * d, gy, 0, d, T)
                    linear_weights(gp, qkv + d * d, -1, gkv, 0, 2 * d, y1, here, d, T)
                    layer_norm_back(
                        p, gp, norm1, norm1 + d, gy, 0, d, z1, here, scale1, layer * T, gx, 0, T
                    )
                    g, gx = gx, g
                else:
                    collect(gx, mine, 0, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(gq, 0, d, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(gkv, 0, 2 * d, 2 * d, n, lhi, T, bit, query, d_table, both, ones)
        if train:
            finish(n, both, ones, d_table)
