"""Softmax attention, a block of a model: the twin of `models/softmax_attention.py`."""

from typing import Any

import numpy as np

from ithbit.layouts import SOFTMAX
from ithbit.native.entry import Parts, drive, entry, group
from ithbit.native.feed_forward import feed_forward, feed_forward_back
from ithbit.native.fours import fma4, put4, zero4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import Floats, LayerArgs, exp, fma, get, largest, part, put, splat, zero
from ithbit.native.tokens import take, take_back
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_QKV, _OUT, _UP, _DOWN, _NORM1, _NORM2 = SOFTMAX.places(
    "qkv.weight", "out.weight", "up.weight", "down.weight", "norm1.weight", "norm2.weight"
)
_ONE, _LEAST = np.float32(1), np.float32(-3e38)


@part
def mix(layer: LayerArgs, m: Floats, q: int, kv: int, weights: int, mixed: int) -> None:
    """What the tokens whose output is wanted see; the weights (head, query, token) are kept."""
    d, heads, tokens, queries = layer.d, layer.heads, layer.tokens, layer.outputs
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            visible = tokens - queries + a + 1 if layer.causal else tokens
            row, mine = weights + (h * queries + a) * tokens, a * d + h * size
            most, denominator = splat(_LEAST), zero()
            for s in range(visible):
                score, key = zero(), kv + s * 2 * d + h * size
                for f in range(size):
                    score = fma(get(m, q + mine + f), get(m, key + f), score)
                score = score * scale
                put(m, row + s, score)
                most = largest(score, most)
            for s in range(visible):
                w = exp(get(m, row + s) - most)
                put(m, row + s, w)
                denominator = denominator + w
            share = splat(_ONE) / denominator
            for s in range(visible):
                put(m, row + s, get(m, row + s) * share)
            for f in range(0, size, 4):
                y = zero4()
                for s in range(visible):
                    y = fma4(get(m, row + s), m, kv + s * 2 * d + d + h * size + f, y)
                put4(m, mixed + mine + f, y)


@part
def mix_back(
    layer: LayerArgs, m: Floats, q: int, kv: int, weights: int, mixed: int, g: int, gw: int,
    gq: int, gkv: int,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    d, heads, tokens, queries = layer.d, layer.heads, layer.tokens, layer.outputs
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            visible = tokens - queries + a + 1 if layer.causal else tokens
            row, mine, mean = (h * queries + a) * tokens, a * d + h * size, zero()
            for f in range(size):
                mean = fma(get(m, g + mine + f), get(m, mixed + mine + f), mean)
            for s in range(visible):
                dw, v = zero() - mean, kv + s * 2 * d + d + h * size
                for f in range(size):
                    dw = fma(get(m, g + mine + f), get(m, v + f), dw)
                put(m, gw + row + s, get(m, weights + row + s) * dw * scale)
            for f in range(0, size, 4):
                y = zero4()
                for s in range(visible):
                    y = fma4(get(m, gw + row + s), m, kv + s * 2 * d + h * size + f, y)
                put4(m, gq + mine + f, y)
        for s in range(tokens):
            since = max(0, s - tokens + queries) if layer.causal else 0
            for f in range(0, size, 4):
                k = v = zero4()
                for a in range(since, queries):
                    row, mine = (h * queries + a) * tokens + s, a * d + h * size + f
                    k = fma4(get(m, gw + row), m, q + mine, k)
                    v = fma4(get(m, weights + row), m, g + mine, v)
                at = gkv + s * 2 * d + h * size + f
                put4(m, at, k)
                put4(m, at + d, v)


def parts(T: int, outputs: int, d: int, heads: int, inner: int) -> Parts:
    """See `entry`; in the order in which both passes take them."""
    row, some, wide, weights = T * d, outputs * d, outputs * inner, heads * outputs * T
    kept_sizes = (row, some, 2 * row, weights, *[some] * 4, outputs, outputs, wide, wide)
    return kept_sizes, (row, row, *[some] * 5, 2 * row, wide, weights)


@group
def forward(layer: Any, table: Any, m: Any) -> int:
    """See `group`."""
    p, d, outputs = layer.p, layer.d, layer.outputs
    qkv, out, up = layer.at[_QKV], layer.at[_OUT], layer.at[_UP]
    down, norm1, norm2 = layer.at[_DOWN], layer.at[_NORM1], layer.at[_NORM2]
    x, q, kv, weights, mixed, z1, y1, z2, scale1, scale2, h, slope = layer.kept
    y, some = layer.used[2], outputs * d
    take(layer, table, qkv, qkv + 3 * d * d, m, x, x, q, kv)
    mix(layer, m, q, kv, weights, mixed)
    linear(p, out, out + d * d, m, mixed, d, y, d, outputs)
    add(m, y, x + layer.tokens * d - some, some)
    norm(p, norm1, norm1 + d, True, m, y, d, y1, z1, scale1, outputs)
    feed_forward(layer, up, down, m, y1, h, slope, y)
    add(m, y, y1, some)
    norm(p, norm2, norm2 + d, True, m, y, d, layer.above, z2, scale2, outputs)
    return layer.above


@group
def backward(layer: Any, d_table: Any, m: Any, g: int, gx: int) -> None:
    """See `group`."""
    p, gp, d, outputs = layer.p, layer.gp, layer.d, layer.outputs
    qkv, out, up = layer.at[_QKV], layer.at[_OUT], layer.at[_UP]
    down, norm1, norm2 = layer.at[_DOWN], layer.at[_NORM1], layer.at[_NORM2]
    x, q, kv, weights, mixed, z1, y1, z2, scale1, scale2, h, slope = layer.kept
    ga, gy, gm, gq, gkv, gh, gw = layer.used[3:10]
    row, some = layer.tokens * d, outputs * d
    last = gx + row - some
    clear(m, ga, some)
    norm_back(p, gp, norm2, norm2 + d, m, g, d, z2, scale2, ga, outputs)
    clear(m, gy, some)
    add(m, gy, ga, some)
    feed_forward_back(layer, up, down, m, y1, h, slope, ga, gh, gy)
    clear(m, gx, row)
    norm_back(p, gp, norm1, norm1 + d, m, gy, d, z1, scale1, last, outputs)
    clear(m, gm, some)
    linear_back(p, out, m, last, d, gm, d, outputs)
    linear_weights(gp, out, out + d * d, m, last, d, mixed, d, outputs)
    mix_back(layer, m, q, kv, weights, mixed, gm, gw, gq, gkv)
    take_back(layer, d_table, qkv, qkv + 3 * d * d, m, x, gx, gq, gkv, gx)


@entry(parts)
def run(data: Any, layout: Any, m: Any) -> None:
    """See `entry`."""
    drive(forward, backward, data, layout, m)
