"""Linear attention, a block of a model: the twin of `models/linear_attention.py`.

The state of a head is S, the sum of keys times values, and Z, the sum of keys. Full attention reads
the state after all tokens, causal attention after each. The backward pass has the same shape: a
second state sums queries times gradients, starting from the last token.
"""

from typing import Any

import numpy as np

from ithbit.layouts import LINEAR
from ithbit.native.entry import Parts, drive, entry, group
from ithbit.native.feed_forward import feed_forward, feed_forward_back
from ithbit.native.fours import fma4, put4, zero4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import (
    Floats,
    LayerArgs,
    exp,
    fma,
    get,
    inline,
    largest,
    part,
    put,
    splat,
    zero,
)
from ithbit.native.tokens import take, take_back
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_NORM1, _QKV, _OUT, _NORM2, _UP, _DOWN = LINEAR.places(
    "norm1.weight", "qkv.weight", "out.weight", "norm2.weight", "up.weight", "down.weight"
)
_ONE, _EPS = np.float32(1), np.float32(LINEAR.denominator_eps)


@part
def _features(m: Floats, x: int, slope: int, d: int, step: int, tokens: int) -> None:
    """ELU + 1 in place for the first d of `step` numbers per token, its derivative at `slope`."""
    for t in range(tokens):
        for i in range(d):
            v = get(m, x + t * step + i)
            e = exp(zero() - largest(zero(), zero() - v))
            put(m, slope + t * d + i, e)
            put(m, x + t * step + i, e + largest(zero(), v))


@part
def _features_back(m: Floats, g: int, slope: int, d: int, step: int, tokens: int) -> None:
    for t in range(tokens):
        for i in range(d):
            put(m, g + t * step + i, get(m, g + t * step + i) * get(m, slope + t * d + i))


@part
def _grow(m: Floats, state: int, size: int, a: int, b: int, z: int) -> None:
    """S += a b^T, Z += a z, for one head; z is 1 if its place is below 0."""
    at = state
    for f in range(size):
        v = get(m, a + f)
        for e in range(size):
            put(m, at + e, fma(v, get(m, b + e), get(m, at + e)))
        more = v * get(m, z) if z >= 0 else v
        put(m, at + size, get(m, at + size) + more)
        at += size + 1


@part
def _left_product(m: Floats, state: int, size: int, a: int, y: int) -> None:
    """y = a S."""
    for e in range(0, size, 4):
        sums = zero4()
        for f in range(size):
            sums = fma4(get(m, a + f), m, state + f * (size + 1) + e, sums)
        put4(m, y + e, sums)


@part
def _right_product(m: Floats, state: int, size: int, b: int, z: int, y: int) -> None:
    """y = S b + Z z."""
    at = state
    for f in range(size):
        v = get(m, at + size)
        if z >= 0:
            v = v * get(m, z)
        for e in range(size):
            v = fma(get(m, at + e), get(m, b + e), v)
        put(m, y + f, v)
        at += size + 1


@inline
def _due(layer: Any, t: Any) -> Any:
    """The queries that read the state after token t: the first, and the one past the last."""
    own = t - layer.tokens + layer.outputs  # the query of that token
    if layer.causal:
        return max(own, 0), own + 1
    return 0, layer.outputs if t == layer.tokens - 1 else 0


@part
def _query(m: Floats, state: int, size: int, q: int, mixed: int, below: int) -> None:
    """What a query reads from the state; the inverse of the denominator is kept."""
    _left_product(m, state, size, q, mixed)
    denominator = splat(_EPS)
    for f in range(size):
        denominator = fma(get(m, q + f), get(m, state + f * (size + 1) + size), denominator)
    share = splat(_ONE) / denominator
    put(m, below, share)
    for f in range(mixed, mixed + size):
        put(m, f, get(m, f) * share)


@part
def mix(layer: LayerArgs, m: Floats, state: int, q: int, kv: int, mixed: int, below: int) -> None:
    """What the tokens whose output is wanted see."""
    d, heads = layer.d, layer.heads
    size = d // heads
    clear(m, state, d * (size + 1))
    for t in range(layer.tokens):
        since, until = _due(layer, t)
        for h in range(heads):
            own, key = state + h * size * (size + 1), kv + t * 2 * d + h * size
            _grow(m, own, size, key, key + d, -1)
            for a in range(since, until):
                offset = a * d + h * size
                _query(m, own, size, q + offset, mixed + offset, below + a * heads + h)


@part
def _query_back(
    m: Floats, state: int, size: int, mixed: int, below: int, g: int, gz: int, gq: int
) -> None:
    """The gradient of a query; g becomes that of its numerators, gz that of its denominator."""
    share, slope = get(m, below), zero()
    for f in range(size):
        v = get(m, g + f) * share
        slope = slope - v * get(m, mixed + f)
        put(m, g + f, v)
    put(m, gz, slope)
    _right_product(m, state, size, g, gz, gq)


@part
def mix_back(
    layer: LayerArgs, m: Floats, state: int, q: int, kv: int, mixed: int, below: int, g: int,
    gz: int, gq: int, gkv: int,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    d, heads = layer.d, layer.heads
    size = d // heads
    clear(m, state, d * (size + 1))
    for t in range(layer.tokens):
        since, until = _due(layer, t)
        for h in range(heads):
            own, key = state + h * size * (size + 1), kv + t * 2 * d + h * size
            _grow(m, own, size, key, key + d, -1)
            for a in range(since, until):
                offset, at = a * d + h * size, a * heads + h
                _query_back(
                    m, own, size, mixed + offset, below + at, g + offset, gz + at, gq + offset
                )
    clear(m, state, d * (size + 1))
    for t in range(layer.tokens - 1, -1, -1):
        since, until = _due(layer, t)
        for h in range(heads):
            own, key = state + h * size * (size + 1), t * 2 * d + h * size
            for a in range(until - 1, since - 1, -1):
                offset = a * d + h * size
                _grow(m, own, size, q + offset, g + offset, gz + a * heads + h)
            _right_product(m, own, size, kv + key + d, -1, gkv + key)
            _left_product(m, own, size, kv + key, gkv + key + d)


def parts(T: int, outputs: int, d: int, heads: int, inner: int) -> Parts:
    """See `entry`; in the order in which both passes take them. As if every output were wanted:
    parts that lie closer together are slower."""
    row, wide = T * d, T * inner
    kept_sizes = (row, row, 2 * row, *[row] * 7, T * heads, T, T, wide, wide)
    return kept_sizes, (*[row] * 6, 2 * row, wide, T * heads, d * (d // heads + 1))


@group
def forward(layer: Any, table: Any, m: Any) -> int:
    """See `group`."""
    p, d, T, outputs = layer.p, layer.d, layer.tokens, layer.outputs
    norm1, qkv, out = layer.at[_NORM1], layer.at[_QKV], layer.at[_OUT]
    norm2, up, down = layer.at[_NORM2], layer.at[_UP], layer.at[_DOWN]
    x, q, kv, mixed, slope_q, slope_k, z1, y1, z2, y2, below, scale1, scale2, h, slope = layer.kept
    y, state, some = layer.used[2], layer.used[9], outputs * d
    if not layer.first:
        norm(p, norm1, norm1 + d, False, m, x, d, y1, z1, scale1, T)
    take(layer, table, qkv, -1, m, x, y1, q, kv)
    if not layer.first:
        _features(m, q, slope_q, d, d, outputs)
        _features(m, kv, slope_k, d, 2 * d, T)
    mix(layer, m, state, q, kv, mixed, below)
    linear(p, out, -1, m, mixed, d, y, d, outputs)
    add(m, y, x + T * d - some, some)
    norm(p, norm2, norm2 + d, False, m, y, d, y2, z2, scale2, outputs)
    feed_forward(layer, up, down, m, y2, h, slope, layer.above)
    add(m, layer.above, y, some)
    return layer.above


@group
def backward(layer: Any, d_table: Any, m: Any, g: int, gx: int) -> None:
    """See `group`."""
    p, gp, d, T, outputs = layer.p, layer.gp, layer.d, layer.tokens, layer.outputs
    norm1, qkv, out = layer.at[_NORM1], layer.at[_QKV], layer.at[_OUT]
    norm2, up, down = layer.at[_NORM2], layer.at[_UP], layer.at[_DOWN]
    _, q, kv, mixed, slope_q, slope_k, z1, y1, z2, y2, below, scale1, scale2, h, slope = layer.kept
    gm, gy, gq, gkv, gh, gz, state = layer.used[3:10]
    some = outputs * d
    last = gx + T * d - some
    clear(m, gy, some)
    feed_forward_back(layer, up, down, m, y2, h, slope, g, gh, gy)
    clear(m, gx, T * d)
    add(m, last, g, some)
    norm_back(p, gp, norm2, norm2 + d, m, gy, d, z2, scale2, last, outputs)
    clear(m, gm, some)
    linear_back(p, out, m, last, d, gm, d, outputs)
    linear_weights(gp, out, -1, m, last, d, mixed, d, outputs)
    mix_back(layer, m, state, q, kv, mixed, below, gm, gz, gq, gkv)
    if not layer.first:
        _features_back(m, gq, slope_q, d, d, outputs)
        _features_back(m, gkv, slope_k, d, 2 * d, T)
        clear(m, gy, T * d)
    take_back(layer, d_table, qkv, -1, m, y1, gx, gq, gkv, gy)
    if not layer.first:
        norm_back(p, gp, norm1, norm1 + d, m, gy, d, z1, scale1, gx, T)


@entry(parts)
def run(data: Any, layout: Any, m: Any) -> None:
    """See `entry`."""
    drive(forward, backward, data, layout, m)
