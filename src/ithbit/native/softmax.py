"""Softmax attention, all blocks of a model: the twin of `models/softmax_attention.py`."""

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

_ONE, _LEAST, _EPS = np.float32(1), np.float32(-3e38), np.float32(1e-12)


@part
def mix(
    q: Any, q0: Any, kv: Any, kv0: Any, weights: Any, w0: Any, mixed: Any, tokens: Any,
    queries: Any, d: Any, heads: Any, causal: Any,
) -> None:  # fmt: skip
    """What the last `queries` tokens see; the weights (head, query, token) are kept."""
    apart()
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            seen = tokens - queries + a + 1 if causal else tokens
            row, mine = w0 + (h * queries + a) * tokens, q0 + a * d + h * size
            most, whole = splat(_LEAST), zero()
            for s in range(seen):
                score, key = zero(), kv0 + s * 2 * d + h * size
                for f in range(size):
                    score = fma(get(q, mine + f), get(kv, key + f), score)
                score = score * scale
                put(weights, row + s, score)
                most = largest(score, most)
            for s in range(seen):
                w = exp(get(weights, row + s) - most)
                put(weights, row + s, w)
                whole = whole + w
            share = splat(_ONE) / whole
            for s in range(seen):
                put(weights, row + s, get(weights, row + s) * share)
            for f in range(0, size, 4):
                y_0 = y_1 = y_2 = y_3 = zero()
                for s in range(seen):
                    w, v = get(weights, row + s), kv0 + s * 2 * d + d + h * size + f
                    y_0 = fma(w, get(kv, v), y_0)
                    y_1 = fma(w, get(kv, v + 1), y_1)
                    y_2 = fma(w, get(kv, v + 2), y_2)
                    y_3 = fma(w, get(kv, v + 3), y_3)
                at = q0 + a * d + h * size + f
                put(mixed, at, y_0)
                put(mixed, at + 1, y_1)
                put(mixed, at + 2, y_2)
                put(mixed, at + 3, y_3)


@part
def mix_back(
    q: Any, q0: Any, kv: Any, kv0: Any, weights: Any, w0: Any, mixed: Any, g: Any, gw: Any,
    gq: Any, gkv: Any, tokens: Any, queries: Any, d: Any, heads: Any, causal: Any,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    apart()
    size = d // heads
    scale = splat(np.float32(size**-0.5))
    for h in range(heads):
        for a in range(queries):
            seen = tokens - queries + a + 1 if causal else tokens
            row, mine, mean = (h * queries + a) * tokens, a * d + h * size, zero()
            for f in range(size):
                mean = fma(get(g, mine + f), get(mixed, q0 + mine + f), mean)
            for s in range(seen):
                dw, v = zero() - mean, kv0 + s * 2 * d + d + h * size
                for f in range(size):
                    dw = fma(get(g, mine + f), get(kv, v + f), dw)
                put(gw, row + s, get(weights, w0 + row + s) * dw * scale)
            for f in range(0, size, 4):
                q_0 = q_1 = q_2 = q_3 = zero()
                for s in range(seen):
                    w, k = get(gw, row + s), kv0 + s * 2 * d + h * size + f
                    q_0 = fma(w, get(kv, k), q_0)
                    q_1 = fma(w, get(kv, k + 1), q_1)
                    q_2 = fma(w, get(kv, k + 2), q_2)
                    q_3 = fma(w, get(kv, k + 3), q_3)
                put(gq, mine + f, q_0)
                put(gq, mine + f + 1, q_1)
                put(gq, mine + f + 2, q_2)
                put(gq, mine + f + 3, q_3)
        for s in range(tokens):
            since = max(0, s - tokens + queries) if causal else 0
            for f in range(0, size, 4):
                k_0 = k_1 = k_2 = k_3 = v_0 = v_1 = v_2 = v_3 = zero()
                for a in range(since, queries):
                    row, mine = (h * queries + a) * tokens + s, a * d + h * size + f
                    w, dw = get(weights, w0 + row), get(gw, row)
                    k_0 = fma(dw, get(q, q0 + mine), k_0)
                    k_1 = fma(dw, get(q, q0 + mine + 1), k_1)
                    k_2 = fma(dw, get(q, q0 + mine + 2), k_2)
                    k_3 = fma(dw, get(q, q0 + mine + 3), k_3)
                    v_0 = fma(w, get(g, mine), v_0)
                    v_1 = fma(w, get(g, mine + 1), v_1)
                    v_2 = fma(w, get(g, mine + 2), v_2)
                    v_3 = fma(w, get(g, mine + 3), v_3)
                at = s * 2 * d + h * size + f
                put(gkv, at, k_0)
                put(gkv, at + 1, k_1)
                put(gkv, at + 2, k_2)
                put(gkv, at + 3, k_3)
                put(gkv, at + d, v_0)
                put(gkv, at + d + 1, v_1)
                put(gkv, at + d + 2, v_2)
                put(gkv, at + d + 3, v_3)


@entry
def softmax(
    values: Any, grads: Any, wide: Any, d_wide: Any, bits: Any, index: Any, logits: Any, at: Any,
    head_at: Any, sizes: Any, lhi: Any, causal: Any, train: Any,
) -> None:  # fmt: skip
    """Logits of every run's examples; to train, gradients too, which are to be zero before."""
    layers, (d, heads, m) = len(at), (sizes[0], sizes[1], sizes[2])
    n = bits.shape[2]
    T = n + 1 + lhi
    row, matrix = T * d, heads * T * T
    bit, query = vectors(n), np.empty(LANES, np.int64)
    x, q, mixed = vectors((layers + 1) * row), vectors(layers * row), vectors(layers * row)
    kv, weights = vectors(layers * 2 * row), vectors((layers - 1) * matrix + heads * T)
    z1, y1, z2 = vectors(layers * row), vectors(layers * row), vectors(layers * row)
    scale1, scale2 = vectors(layers * T), vectors(layers * T)
    h, slope, temporary = vectors(layers * T * m), vectors(layers * T * m), vectors(row)
    g, gx, ga, gy, gm = vectors(row), vectors(row), vectors(row), vectors(row), vectors(row)
    gq, gkv, gh = vectors(row), vectors(2 * row), vectors(T * m)
    gw = vectors(matrix if layers > 1 else heads * T)
    for run in range(len(values)):
        p, gp, table, d_table = values[run], grads[run], wide[run], d_wide[run]
        both, ones = new_sums(d_table, n)
        for first in range(0, bits.shape[1], LANES):
            load(bits[run], index[run], first, bit, query)
            for layer in range(layers):
                asked = 1 if layer == layers - 1 else T
                here, mine = layer * row, (T - asked) * d
                qkv, out, up, down, norm1, norm2 = at[layer]
                if layer:
                    linear(p, qkv, qkv + 3 * d * d, x, here + mine, d, q, here, d, asked)
                    linear(
                        p, qkv + d * d, qkv + 3 * d * d + d, x, here, d, kv, 2 * here, 2 * d, T
                    )  # fmt: skip
                else:
                    spread(table, 0, d, n, lhi, asked, bit, query, x, mine)
                    spread(table, d, d, n, lhi, asked, bit, query, q, 0)
                    spread(table, 2 * d, 2 * d, n, lhi, T, bit, query, kv, 0)
                mix(
                    q, here, kv, 2 * here, weights, layer * matrix, mixed, T, asked, d, heads,
                    causal,
                )  # fmt: skip
                linear(p, out, out + d * d, mixed, here, d, temporary, 0, d, asked)
                add(temporary, 0, x, here + mine, asked * d)
                layer_norm(
                    p, norm1, norm1 + d, _EPS, temporary, 0, d, y1, here, z1, here, scale1,
                    layer * T, asked,
                )  # fmt: skip
                feed_forward(
                    p, up, down, d, m, y1, here, h, slope, layer * T * m, temporary, asked
                )
                add(temporary, 0, y1, here, asked * d)
                layer_norm(
                    p, norm2, norm2 + d, _EPS, temporary, 0, d, x, here + row, z2, here, scale2,
                    layer * T, asked,
                )  # fmt: skip
            head(p, gp, head_at, d, x, layers * row, bits[run], index[run], first, logits[run],
                 train, g)  # fmt: skip
            for layer in range(layers - 1, -1 if train else layers - 1, -1):
                asked = 1 if layer == layers - 1 else T
                here, mine, some = layer * row, (T - asked) * d, asked * d
                qkv, out, up, down, norm1, norm2 = at[layer]
                clear(ga, 0, some)
                layer_norm_back(
                    p, gp, norm2, norm2 + d, g, 0, d, z2, here, scale2, layer * T, ga, 0, asked
                )
                clear(gy, 0, some)
                add(gy, 0, ga, 0, some)
                feed_forward_back(
                    p, gp, up, down, d, m, y1, here, h, slope, layer * T * m, ga, gh, gy, asked
                )
                clear(gx, 0, row)
                layer_norm_back(
                    p, gp, norm1, norm1 + d, gy, 0, d, z1, here, scale1, layer * T, gx, mine, asked
                )
                clear(gm, 0, some)
                linear_back(p, out, gx, mine, d, gm, 0, d, asked)
                linear_weights(gp, out, out + d * d, gx, mine, d, mixed, here, d, asked)
                mix_back(
                    q, here, kv, 2 * here, weights, layer * matrix, mixed, gm, gw, gq, gkv, T,
                    asked, d, heads, causal,
                )  # fmt: skip
                if layer:
                    b = qkv + 3 * d * d
                    linear_back(p, qkv, gq, 0, d, gx, mine, d, asked)
                    linear_weights(gp, qkv, b, gq, 0, d, x, here + mine, d, asked)
                    linear_back(p, qkv + d * d, gkv, 0, 2 * d, gx, 0, d, T)
                    linear_weights(gp, qkv + d * d, b + d, gkv, 0, 2 * d, x, here, d, T)
                    g, gx = gx, g
                else:
                    collect(gx, mine, 0, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(gq, 0, d, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(gkv, 0, 2 * d, 2 * d, n, lhi, T, bit, query, d_table, both, ones)
        if train:
            finish(n, both, ones, d_table)
