"""Mamba2, all blocks of a model: the twin of `models/mamba2.py`, in the dual form as there.

Going back from a query token by token, the decay is a running product: no exponentials of
differences, so nothing needs double precision. After the convolution a token has `conv` numbers:
x (d), B and C (d_state each); `u` has these before it, and the steps' inputs behind them.
"""

from typing import Any

import numpy as np

from ithbit.native.entry import entry
from ithbit.native.simd import apart, LANES, exp, fma, get, inline, part, put, sigmoid, softplus, splat, total, zero
from ithbit.native.tokens import collect, finish, head, load, new_sums, spread
from ithbit.native.tokenwise import (
    add,
    clear,
    layer_norm,
    layer_norm_back,
    linear,
    linear_back,
    linear_weights,
    times,
    vectors,
)

_ONE, _EPS, _TAPS = np.float32(1), np.float32(1e-5), 3


@inline
def _silu(x: Any) -> Any:
    s = sigmoid(x)
    return x * s, s * fma(x, splat(_ONE) - s, splat(_ONE))


@part
def convolve(
    p: Any, w: Any, b: Any, u: Any, u0: Any, step: Any, y: Any, slope: Any, y0: Any, conv: Any,
    tokens: Any,
) -> None:  # fmt: skip
    """SiLU of the causal convolution of each number by itself, and its derivative."""
    apart()
    for t in range(tokens):
        for i in range(conv):
            v = splat(p[b + i])
            for tap in range(max(0, _TAPS - 1 - t), _TAPS):
                past = u0 + (t + tap - _TAPS + 1) * step + i
                v = fma(splat(p[w + tap * conv + i]), get(u, past), v)
            v, rise = _silu(v)
            put(y, y0 + t * conv + i, v)
            put(slope, y0 + t * conv + i, rise)


@part
def convolve_back(
    p: Any, gp: Any, w: Any, b: Any, u: Any, u0: Any, step: Any, g: Any, gu: Any, conv: Any,
    tokens: Any,
) -> None:  # fmt: skip
    """gu += what g, the gradient of the convolution, is for u."""
    apart()
    for i in range(conv):
        whole = zero()
        for t in range(tokens):
            whole = whole + get(g, t * conv + i)
        gp[b + i] += total(whole)
        for tap in range(_TAPS):
            back, whole, weight = _TAPS - 1 - tap, zero(), splat(p[w + tap * conv + i])
            for t in range(back, tokens):
                v, past = get(g, t * conv + i), (t - back) * step + i
                whole = fma(v, get(u, u0 + past), whole)
                put(gu, past, fma(weight, v, get(gu, past)))
            gp[w + tap * conv + i] += total(whole)


@part
def steps(
    p: Any, bias: Any, a_log: Any, u: Any, u0: Any, step: Any, conv: Any, dt: Any, rise: Any,
    decay: Any, at: Any, heads: Any, tokens: Any,
) -> None:  # fmt: skip
    """Each token's step dt, its derivative and its decay exp(dt A), for each head."""
    apart()
    for t in range(tokens):
        for h in range(heads):
            v = get(u, u0 + t * step + conv + h) + splat(p[bias + h])
            put(dt, at + t * heads + h, softplus(v))
            put(rise, at + t * heads + h, sigmoid(v))
            a = zero() - exp(splat(p[a_log + h]))
            put(decay, at + t * heads + h, exp(get(dt, at + t * heads + h) * a))


@part
def mix(
    p: Any, skip: Any, c: Any, c0: Any, dt: Any, decay: Any, dt0: Any, scores: Any, s0: Any,
    weights: Any, y: Any, y0: Any, d: Any, state: Any, heads: Any, tokens: Any, queries: Any,
) -> None:  # fmt: skip
    """y at the last `queries` tokens; the scores C_t . B_s are kept."""
    apart()
    conv, size = d + 2 * state, d // heads
    for a in range(queries):
        t = tokens - queries + a
        mine, row = c0 + t * conv, s0 + a * tokens
        for s in range(t + 1):
            score, other = zero(), c0 + s * conv + d
            for i in range(state):
                score = fma(get(c, mine + d + state + i), get(c, other + i), score)
            put(scores, row + s, score)
        for h in range(heads):
            left = splat(_ONE)
            for s in range(t, -1, -1):
                at = dt0 + s * heads + h
                put(weights, s, left * get(scores, row + s) * get(dt, at))
                left = left * get(decay, at)
            for f in range(h * size, (h + 1) * size, 4):
                k = splat(p[skip + h])
                y_0, y_1 = k * get(c, mine + f), k * get(c, mine + f + 1)
                y_2, y_3 = k * get(c, mine + f + 2), k * get(c, mine + f + 3)
                for s in range(t + 1):
                    w, v = get(weights, s), c0 + s * conv + f
                    y_0 = fma(w, get(c, v), y_0)
                    y_1 = fma(w, get(c, v + 1), y_1)
                    y_2 = fma(w, get(c, v + 2), y_2)
                    y_3 = fma(w, get(c, v + 3), y_3)
                at = y0 + a * d + f
                put(y, at, y_0)
                put(y, at + 1, y_1)
                put(y, at + 2, y_2)
                put(y, at + 3, y_3)


@part
def mix_back(
    p: Any, gp: Any, skip: Any, c: Any, c0: Any, dt: Any, decay: Any, dt0: Any, scores: Any,
    s0: Any, g: Any, gs: Any, gc: Any, g_dt: Any, g_sum: Any, d: Any, state: Any, heads: Any,
    tokens: Any, queries: Any,
) -> None:  # fmt: skip
    """From g, the gradient of y: that of the convolved numbers, of the steps where they scale, and
    of the sums of dt A up to each token."""
    apart()
    conv, size = d + 2 * state, d // heads
    clear(gc, 0, tokens * conv)
    clear(g_dt, 0, tokens * heads)
    clear(g_sum, 0, tokens * heads)
    for a in range(queries):
        t = tokens - queries + a
        row = s0 + a * tokens
        clear(gs, 0, t + 1)
        for h in range(heads):
            left, whole, for_skip, k = splat(_ONE), zero(), zero(), splat(p[skip + h])
            for f in range(h * size, (h + 1) * size):
                v, at = get(g, a * d + f), t * conv + f
                for_skip = fma(v, get(c, c0 + at), for_skip)
                put(gc, at, fma(k, v, get(gc, at)))
            gp[skip + h] += total(for_skip)
            for s in range(t, -1, -1):
                at, score = s * heads + h, get(scores, row + s)
                step = get(dt, dt0 + at)
                w, dw = left * score * step, zero()
                for f in range(h * size, (h + 1) * size):
                    v, here = get(g, a * d + f), s * conv + f
                    dw = fma(v, get(c, c0 + here), dw)
                    put(gc, here, fma(w, v, get(gc, here)))
                put(gs, s, fma(dw, left * step, get(gs, s)))
                put(g_dt, at, fma(dw, left * score, get(g_dt, at)))
                put(g_sum, at, get(g_sum, at) - dw * w)
                whole = fma(dw, w, whole)
                left = left * get(decay, dt0 + at)
            put(g_sum, t * heads + h, get(g_sum, t * heads + h) + whole)
        mine = t * conv + d + state
        for s in range(t + 1):
            v, other = get(gs, s), s * conv + d
            for i in range(state):
                put(gc, mine + i, fma(v, get(c, c0 + other + i), get(gc, mine + i)))
                put(gc, other + i, fma(v, get(c, c0 + mine + i), get(gc, other + i)))


@part
def steps_back(
    p: Any, gp: Any, bias: Any, a_log: Any, dt: Any, rise: Any, at: Any, g_dt: Any, g_sum: Any,
    gu: Any, step: Any, conv: Any, heads: Any, tokens: Any,
) -> None:  # fmt: skip
    """The gradients of the steps' inputs, of dt_bias and of a_log."""
    apart()
    for h in range(heads):
        a = zero() - exp(splat(p[a_log + h]))
        after, for_a, for_bias = zero(), zero(), zero()
        for t in range(tokens - 1, -1, -1):
            here = t * heads + h
            after = after + get(g_sum, here)
            for_a = fma(after, get(dt, at + here), for_a)
            v = fma(after, a, get(g_dt, here)) * get(rise, at + here)
            for_bias = for_bias + v
            put(gu, t * step + conv + h, v)
        gp[a_log + h] += total(for_a * a)
        gp[bias + h] += total(for_bias)


@part
def gate_by(y: Any, y0: Any, gate: Any, g0: Any, gated: Any, count: Any) -> None:
    """gated = y silu(gate)."""
    apart()
    for i in range(count):
        opened, _ = _silu(get(gate, g0 + i))
        put(gated, i, get(y, y0 + i) * opened)


@part
def gate_back(g: Any, y: Any, y0: Any, gate: Any, g0: Any, g_gate: Any, count: Any) -> None:
    """The gradient of the gate, and in place that of y."""
    apart()
    for i in range(count):
        opened, slope = _silu(get(gate, g0 + i))
        v = get(g, i)
        put(g_gate, i, v * get(y, y0 + i) * slope)
        put(g, i, v * opened)


@entry
def mamba2(
    values: Any, grads: Any, wide: Any, d_wide: Any, bits: Any, index: Any, logits: Any, at: Any,
    head_at: Any, sizes: Any, lhi: Any, causal: Any, train: Any,
) -> None:  # fmt: skip
    """Logits of every run's examples; to train, gradients too, which are to be zero before."""
    layers, (d, heads, state, leave) = len(at), (sizes[0], sizes[1], sizes[2], sizes[3])
    n = bits.shape[2]
    T, conv = n + 1 + lhi, d + 2 * state
    row, step = T * d, conv + heads
    bit, query = vectors(n), np.empty(LANES, np.int64)
    x, gate, y = vectors((layers + 1) * row), vectors(layers * row), vectors(layers * row)
    z1, y1, scale1 = vectors(layers * row), vectors(layers * row), vectors(layers * T)
    z2, y2, scale2 = vectors(layers * row), vectors(layers * row), vectors(layers * T)
    u, c, slope = vectors(layers * T * step), vectors(layers * T * conv), vectors(layers * T * conv)
    dt, rise = vectors(layers * T * heads), vectors(layers * T * heads)
    decay, scores = vectors(layers * T * heads), vectors((layers - 1) * T * T + T)
    last, last_z, last_scale, weights, temporary = (
        vectors(d), vectors(d), vectors(1), vectors(T), vectors(row)
    )  # fmt: skip
    g, gx, gm, g_gate = vectors(row), vectors(row), vectors(row), vectors(row)
    gc, gu, gs = vectors(T * conv), vectors(T * step), vectors(T)
    g_dt, g_sum = vectors(T * heads), vectors(T * heads)
    for run in range(len(values)):
        p, gp, table, d_table = values[run], grads[run], wide[run], d_wide[run]
        both, ones = new_sums(d_table, n)
        for first in range(0, bits.shape[1], LANES):
            load(bits[run], index[run], first, bit, query)
            for layer in range(layers):
                asked = 1 if layer == layers - 1 else T
                here, mine = layer * row, (T - asked) * d
                norm, into, taps, taps_bias, dt_bias, a_log, skip, gate_norm, out = at[layer]
                u0, c0, dt0, s0 = layer * T * step, layer * T * conv, layer * T * heads, layer * T * T
                if layer:
                    layer_norm(
                        p, norm, -1, _EPS, x, here, d, y1, here, z1, here, scale1, layer * T, T
                    )
                    linear(p, into, -1, y1, here + mine, d, gate, here, d, asked)
                    linear(p, into + d * d, -1, y1, here, d, u, u0, step, T)
                else:
                    spread(table, 0, d, n, lhi, asked, bit, query, x, mine)
                    spread(table, d, d, n, lhi, asked, bit, query, gate, 0)
                    spread(table, 2 * d, step, n, lhi, T, bit, query, u, 0)
                convolve(p, taps, taps_bias, u, u0, step, c, slope, c0, conv, T)
                steps(p, dt_bias, a_log, u, u0, step, conv, dt, rise, decay, dt0, heads, T)
                mix(
                    p, skip, c, c0, dt, decay, dt0, scores, s0, weights, y, here, d, state, heads,
                    T, asked,
                )  # fmt: skip
                gate_by(y, here, gate, here, temporary, asked * d)
                layer_norm(
                    p, gate_norm, -1, _EPS, temporary, 0, d, y2, here, z2, here, scale2, layer * T,
                    asked,
                )  # fmt: skip
                linear(p, out, -1, y2, here, d, x, here + row, d, asked)
                add(x, here + row, x, here + mine, asked * d)
            layer_norm(
                p, leave, -1, _EPS, x, layers * row, d, last, 0, last_z, 0, last_scale, 0, 1
            )
            head(
                p, gp, head_at, d, last, 0, bits[run], index[run], first, logits[run], train, gm
            )
            if train:
                clear(g, 0, d)
                layer_norm_back(p, gp, leave, -1, gm, 0, d, last_z, 0, last_scale, 0, g, 0, 1)
            for layer in range(layers - 1, -1 if train else layers - 1, -1):
                asked = 1 if layer == layers - 1 else T
                here, mine, some = layer * row, (T - asked) * d, asked * d
                norm, into, taps, taps_bias, dt_bias, a_log, skip, gate_norm, out = at[layer]
                u0, c0, dt0, s0 = layer * T * step, layer * T * conv, layer * T * heads, layer * T * T
                clear(gx, 0, row)
                add(gx, mine, g, 0, some)
                clear(temporary, 0, some)
                linear_back(p, out, g, 0, d, temporary, 0, d, asked)
                linear_weights(gp, out, -1, g, 0, d, y2, here, d, asked)
                clear(gm, 0, some)
                layer_norm_back(
                    p, gp, gate_norm, -1, temporary, 0, d, z2, here, scale2, layer * T, gm, 0, asked
                )
                gate_back(gm, y, here, gate, here, g_gate, some)
                mix_back(
                    p, gp, skip, c, c0, dt, decay, dt0, scores, s0, gm, gs, gc, g_dt, g_sum, d,
                    state, heads, T, asked,
                )  # fmt: skip
                clear(gu, 0, T * step)
                steps_back(
                    p, gp, dt_bias, a_log, dt, rise, dt0, g_dt, g_sum, gu, step, conv, heads, T
                )
                times(gc, 0, slope, c0, T * conv)
                convolve_back(p, gp, taps, taps_bias, u, u0, step, gc, gu, conv, T)
                if layer:
                    clear(gm, 0, row)
                    linear_back(p, into, g_gate, 0, d, gm, mine, d, asked)
                    linear_weights(gp, into, -1, g_gate, 0, d, y1, here + mine, d, asked)
                    linear_back(p, into + d * d, gu, 0, step, gm, 0, d, T)
                    linear_weights(gp, into + d * d, -1, gu, 0, step, y1, here, d, T)
                    layer_norm_back(
                        p, gp, norm, -1, gm, 0, d, z1, here, scale1, layer * T, gx, 0, T
                    )
                    g, gx = gx, g
                else:
                    collect(gx, mine, 0, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(g_gate, 0, d, d, n, lhi, asked, bit, query, d_table, both, ones)
                    collect(gu, 0, 2 * d, step, n, lhi, T, bit, query, d_table, both, ones)
        if train:
            finish(n, both, ones, d_table)
