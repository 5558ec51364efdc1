"""Softmax attention, all blocks of a model: the twin of `models/softmax_attention.py`."""

from typing import Any

import numpy as np

from ithbit.native.entry import drive, entry, group
from ithbit.native.feed_forward import feed_forward, feed_forward_back
from ithbit.native.fours import fma4, put4, zero4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import Floats, exp, fma, get, largest, part, put, splat, zero
from ithbit.native.tokens import collect, head, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_ONE, _LEAST = np.float32(1), np.float32(-3e38)


@part
def mix(
    m: Floats, q: int, kv: int, weights: int, mixed: int, tokens: int, queries: int, d: int,
    heads: int, causal: bool,
) -> None:  # fmt: skip
    """What the last `queries` tokens see; the weights (head, query, token) are kept."""
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            seen = tokens - queries + a + 1 if causal else tokens
            row, mine = weights + (h * queries + a) * tokens, a * d + h * size
            most, whole = splat(_LEAST), zero()
            for s in range(seen):
                score, key = zero(), kv + s * 2 * d + h * size
                for f in range(size):
                    score = fma(get(m, q + mine + f), get(m, key + f), score)
                score = score * scale
                put(m, row + s, score)
                most = largest(score, most)
            for s in range(seen):
                w = exp(get(m, row + s) - most)
                put(m, row + s, w)
                whole = whole + w
            share = splat(_ONE) / whole
            for s in range(seen):
                put(m, row + s, get(m, row + s) * share)
            for f in range(0, size, 4):
                y = zero4()
                for s in range(seen):
                    y = fma4(get(m, row + s), m, kv + s * 2 * d + d + h * size + f, y)
                put4(m, mixed + mine + f, y)


@part
def mix_back(
    m: Floats, q: int, kv: int, weights: int, mixed: int, g: int, gw: int, gq: int, gkv: int,
    tokens: int, queries: int, d: int, heads: int, causal: bool,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            seen = tokens - queries + a + 1 if causal else tokens
            row, mine, mean = (h * queries + a) * tokens, a * d + h * size, zero()
            for f in range(size):
                mean = fma(get(m, g + mine + f), get(m, mixed + mine + f), mean)
            for s in range(seen):
                dw, v = zero() - mean, kv + s * 2 * d + d + h * size
                for f in range(size):
                    dw = fma(get(m, g + mine + f), get(m, v + f), dw)
                put(m, gw + row + s, get(m, weights + row + s) * dw * scale)
            for f in range(0, size, 4):
                y = zero4()
                for s in range(seen):
                    y = fma4(get(m, gw + row + s), m, kv + s * 2 * d + h * size + f, y)
                put4(m, gq + mine + f, y)
        for s in range(tokens):
            since = max(0, s - tokens + queries) if causal else 0
            for f in range(0, size, 4):
                k = v = zero4()
                for a in range(since, queries):
                    row, mine = (h * queries + a) * tokens + s, a * d + h * size + f
                    k = fma4(get(m, gw + row), m, q + mine, k)
                    v = fma4(get(m, weights + row), m, g + mine, v)
                at = gkv + s * 2 * d + h * size + f
                put4(m, at, k)
                put4(m, at + d, v)


def parts(layers: int, T: int, d: int, heads: int, up_to: int, *_: int) -> tuple[int, ...]:
    """The sizes of the parts of the memory, in the order in which `_softmax` takes them."""
    row, wider, last = T * d, T * up_to, heads * T
    matrices = (layers - 1) * T * last + last
    kept = ((layers + 1) * row, layers * row, 2 * layers * row, matrices, *[layers * row] * 4)
    kept += (*[layers * T] * 2, *[layers * wider] * 2)
    return (*kept, *[row] * 7, 2 * row, wider, T * last if layers > 1 else last)


@group
def _softmax(run: Any, how: Any, first: int, m: Any) -> None:
    """See `group`."""
    p, table, d_table, bits, index, logits = run
    at, head_at, sizes, lhi, causal, train, places = how
    layers, d, heads, up_to, n = len(at), sizes[0], sizes[1], sizes[2], bits.shape[1]
    T = n + 1 + lhi
    row, wider, matrix = T * d, T * up_to, heads * T * T
    # Kept for every layer:
    x, q, kv, weights, mixed, z1, y1, z2, scale1, scale2, h, slope = places[:12]
    # Temporary:
    y, g, gx, ga, gy, gm, gq, gkv, gh, gw, gp = places[12:]
    sums = gp + len(p)
    for layer in range(layers):
        asked = 1 if layer == layers - 1 else T
        here, mine, hidden, scales = layer * row, (T - asked) * d, layer * wider, layer * T
        qkv, _, out, _, up, _, down, _, norm1, _, norm2, _ = at[layer]
        x_, last, q_, kv_, mixed_ = x + here, x + here + mine, q + here, kv + 2 * here, mixed + here
        if layer:
            linear(p, qkv, qkv + 3 * d * d, m, last, d, q_, d, asked)
            linear(p, qkv + d * d, qkv + 3 * d * d + d, m, x_, d, kv_, 2 * d, T)
        else:
            spread(table, 0, d, asked, m, last)
            spread(table, d, d, asked, m, q_)
            spread(table, 2 * d, 2 * d, T, m, kv_)
        mix(m, q_, kv_, weights + layer * matrix, mixed_, T, asked, d, heads, causal)
        linear(p, out, out + d * d, m, mixed_, d, y, d, asked)
        add(m, y, last, asked * d)
        norm(p, norm1, norm1 + d, True, m, y, d, y1 + here, z1 + here, scale1 + scales, asked)
        feed_forward(p, up, down, d, up_to, m, y1 + here, h + hidden, slope + hidden, y, asked)
        add(m, y, y1 + here, asked * d)
        norm(p, norm2, norm2 + d, True, m, y, d, x_ + row, z2 + here, scale2 + scales, asked)
    head(p, gp, head_at, d, m, x + layers * row, bits, index, first, logits, train, g)
    for layer in range(layers - 1, -1 if train else layers - 1, -1):
        asked = 1 if layer == layers - 1 else T
        here, mine, hidden, scales = layer * row, (T - asked) * d, layer * wider, layer * T
        qkv, _, out, _, up, _, down, _, norm1, _, norm2, _ = at[layer]
        x_, last, q_, kv_, mixed_ = x + here, x + here + mine, q + here, kv + 2 * here, mixed + here
        some = asked * d
        clear(m, ga, some)
        norm_back(p, gp, norm2, norm2 + d, m, g, d, z2 + here, scale2 + scales, ga, asked)
        clear(m, gy, some)
        add(m, gy, ga, some)
        feed_forward_back(
            p, gp, up, down, d, up_to, m, y1 + here, h + hidden, slope + hidden, ga, gh, gy, asked
        )
        clear(m, gx, row)
        norm_back(p, gp, norm1, norm1 + d, m, gy, d, z1 + here, scale1 + scales, gx + mine, asked)
        clear(m, gm, some)
        linear_back(p, out, m, gx + mine, d, gm, d, asked)
        linear_weights(gp, out, out + d * d, m, gx + mine, d, mixed_, d, asked)
        mix_back(
            m, q_, kv_, weights + layer * matrix, mixed_, gm, gw, gq, gkv, T, asked, d, heads,
            causal,
        )  # fmt: skip
        if layer:
            b = qkv + 3 * d * d
            linear_back(p, qkv, m, gq, d, gx + mine, d, asked)
            linear_weights(gp, qkv, b, m, gq, d, last, d, asked)
            linear_back(p, qkv + d * d, m, gkv, 2 * d, gx, d, T)
            linear_weights(gp, qkv + d * d, b + d, m, gkv, 2 * d, x_, d, T)
            g, gx = gx, g
        else:
            collect(d_table, 0, d, asked, m, gx + mine, sums)
            collect(d_table, d, d, asked, m, gq, sums)
            collect(d_table, 2 * d, 2 * d, T, m, gkv, sums)


@entry(parts)
def run(data: Any, how: Any, m: Any) -> None:
    """See `entry`."""
    drive(_softmax, data, how, m)
