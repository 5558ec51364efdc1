"""Mamba2, all blocks of a model: the twin of `models/mamba2.py`, in the dual form as there.

Going back from a query token by token, the decay is a running product: no exponentials of
differences, so nothing needs double precision. After the convolution a token has `conv` numbers:
x (d), B and C (d_state each); `u` has them before the convolution, followed by the steps' inputs.
"""

from typing import Any

import numpy as np

from ithbit.native.entry import drive, entry, group
from ithbit.native.fours import fma4, get4, put4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import (
    Floats,
    each,
    exp,
    fma,
    get,
    inline,
    more,
    part,
    put,
    sigmoid,
    softplus,
    splat,
    zero,
)
from ithbit.native.tokens import collect, head, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights, times

_ONE, _TAPS = np.float32(1), 3


@inline
def _silu(x: Any) -> Any:
    """SiLU and its derivative."""
    s = sigmoid(x)
    return x * s, s * fma(x, splat(_ONE) - s, splat(_ONE))


@part
def _convolve(
    p: Floats, w: int, b: int, m: Floats, u: int, step: int, y: int, slope: int, conv: int,
    tokens: int,
) -> None:  # fmt: skip
    """y = SiLU of the causal, depthwise convolution, and its derivative."""
    for t in range(tokens):
        for i in range(conv):
            v = each(p, b + i)
            for tap in range(max(0, _TAPS - 1 - t), _TAPS):
                past = u + (t + tap - _TAPS + 1) * step + i
                v = fma(each(p, w + tap * conv + i), get(m, past), v)
            v, rise = _silu(v)
            put(m, y + t * conv + i, v)
            put(m, slope + t * conv + i, rise)


@part
def _convolve_back(
    p: Floats, gp: int, w: int, b: int, m: Floats, u: int, step: int, g: int, gu: int,
    conv: int, tokens: int,
) -> None:  # fmt: skip
    """gu += the gradient of u, from g, that of the convolution."""
    for i in range(conv):
        whole = zero()
        for t in range(tokens):
            whole = whole + get(m, g + t * conv + i)
        more(m, gp + b + i, whole)
        for tap in range(_TAPS):
            back, whole, weight = _TAPS - 1 - tap, zero(), each(p, w + tap * conv + i)
            for t in range(back, tokens):
                v, past = get(m, g + t * conv + i), (t - back) * step + i
                whole = fma(v, get(m, u + past), whole)
                put(m, gu + past, fma(weight, v, get(m, gu + past)))
            more(m, gp + w + tap * conv + i, whole)


@part
def _steps(
    p: Floats, bias: int, a_log: int, m: Floats, u: int, step: int, conv: int, dt: int, rise: int,
    decay: int, heads: int, tokens: int,
) -> None:  # fmt: skip
    """Each token's step dt, its derivative and its decay exp(dt A), for each head."""
    for h in range(heads):
        a = zero() - exp(each(p, a_log + h))
        for t in range(tokens):
            v, at = get(m, u + t * step + conv + h) + each(p, bias + h), t * heads + h
            put(m, rise + at, sigmoid(v))
            v = softplus(v)
            put(m, dt + at, v)
            put(m, decay + at, exp(v * a))


@part
def _steps_back(
    p: Floats, gp: int, bias: int, a_log: int, m: Floats, dt: int, rise: int, g_dt: int,
    g_sum: int, gu: int, step: int, conv: int, heads: int, tokens: int,
) -> None:  # fmt: skip
    """The gradients of the steps' inputs, of dt_bias and of a_log."""
    for h in range(heads):
        a = zero() - exp(each(p, a_log + h))
        after, for_a, for_bias = zero(), zero(), zero()
        for t in range(tokens - 1, -1, -1):
            at = t * heads + h
            after = after + get(m, g_sum + at)
            for_a = fma(after, get(m, dt + at), for_a)
            v = fma(after, a, get(m, g_dt + at)) * get(m, rise + at)
            for_bias = for_bias + v
            put(m, gu + t * step + conv + h, v)
        more(m, gp + a_log + h, for_a * a)
        more(m, gp + bias + h, for_bias)


@part
def mix(
    p: Floats, skip: int, m: Floats, c: int, dt: int, decay: int, scores: int, weights: int, y: int,
    d: int, state: int, heads: int, tokens: int, queries: int,
) -> None:  # fmt: skip
    """y at the last `queries` tokens; the scores C_t . B_s are kept."""
    conv, size = d + 2 * state, d // heads
    for a in range(queries):
        t = tokens - queries + a
        mine, row = c + t * conv, scores + a * tokens
        for s in range(t + 1):
            score, other = zero(), c + s * conv + d
            for i in range(state):
                score = fma(get(m, mine + d + state + i), get(m, other + i), score)
            put(m, row + s, score)
        for h in range(heads):
            left = splat(_ONE)
            for s in range(t, -1, -1):
                at = s * heads + h
                put(m, weights + s, left * get(m, row + s) * get(m, dt + at))
                left = left * get(m, decay + at)
            k = each(p, skip + h)
            for f in range(h * size, (h + 1) * size, 4):
                x = get4(m, mine + f)
                sums = k * x[0], k * x[1], k * x[2], k * x[3]
                for s in range(t + 1):
                    sums = fma4(get(m, weights + s), m, c + s * conv + f, sums)
                put4(m, y + a * d + f, sums)


@part
def mix_back(
    p: Floats, gp: int, skip: int, m: Floats, c: int, dt: int, decay: int, scores: int, g: int,
    gs: int, gc: int, g_dt: int, g_sum: int, d: int, state: int, heads: int, tokens: int,
    queries: int,
) -> None:  # fmt: skip
    """From g, the gradient of y: those of the convolved numbers, of the steps where they scale, and
    of the sums of dt A up to each token."""
    conv, size = d + 2 * state, d // heads
    clear(m, gc, tokens * conv)
    clear(m, g_dt, tokens * heads)
    clear(m, g_sum, tokens * heads)
    for a in range(queries):
        t, row, mine = tokens - queries + a, scores + a * tokens, g + a * d
        clear(m, gs, t + 1)
        for h in range(heads):
            left, whole, for_skip, k = splat(_ONE), zero(), zero(), each(p, skip + h)
            for f in range(h * size, (h + 1) * size):
                v, at = get(m, mine + f), t * conv + f
                for_skip = fma(v, get(m, c + at), for_skip)
                put(m, gc + at, fma(k, v, get(m, gc + at)))
            more(m, gp + skip + h, for_skip)
            for s in range(t, -1, -1):
                at, score = s * heads + h, get(m, row + s)
                step = get(m, dt + at)
                w, dw = left * score * step, zero()
                for f in range(h * size, (h + 1) * size):
                    v, here = get(m, mine + f), s * conv + f
                    dw = fma(v, get(m, c + here), dw)
                    put(m, gc + here, fma(w, v, get(m, gc + here)))
                put(m, gs + s, fma(dw, left * step, get(m, gs + s)))
                put(m, g_dt + at, fma(dw, left * score, get(m, g_dt + at)))
                put(m, g_sum + at, get(m, g_sum + at) - dw * w)
                whole = fma(dw, w, whole)
                left = left * get(m, decay + at)
            at = g_sum + t * heads + h
            put(m, at, get(m, at) + whole)
        own = t * conv + d + state
        for s in range(t + 1):
            v, other = get(m, gs + s), s * conv + d
            for i in range(state):
                put(m, gc + own + i, fma(v, get(m, c + other + i), get(m, gc + own + i)))
                put(m, gc + other + i, fma(v, get(m, c + own + i), get(m, gc + other + i)))


@part
def _gate(m: Floats, y: int, gate: int, gated: int, count: int) -> None:
    """gated = y silu(gate)."""
    for i in range(count):
        opened, _ = _silu(get(m, gate + i))
        put(m, gated + i, get(m, y + i) * opened)


@part
def _gate_back(m: Floats, g: int, y: int, gate: int, g_gate: int, count: int) -> None:
    """The gradient of the gate, and in place that of y."""
    for i in range(count):
        opened, slope = _silu(get(m, gate + i))
        v = get(m, g + i)
        put(m, g_gate + i, v * get(m, y + i) * slope)
        put(m, g + i, v * opened)


def parts(layers: int, T: int, d: int, heads: int, state: int, *_: int) -> tuple[int, ...]:
    """The sizes of the parts of the memory, in the order in which `_mamba2` takes them."""
    row, conv = T * d, d + 2 * state
    kept = ((layers + 1) * row, *[layers * row] * 6, *[layers * T] * 2)
    kept += (layers * T * (conv + heads), *[layers * T * conv] * 2, *[layers * T * heads] * 3)
    kept += ((layers - 1) * T * T + T,)
    own = (d, d, 1, T, *[row] * 5, T * conv, T * (conv + heads), T, T * heads, T * heads)
    return kept + own


@group
def _mamba2(run: Any, how: Any, first: int, m: Any) -> None:
    """See `group`."""
    p, table, d_table, bits, index, logits = run
    at, head_at, sizes, lhi, _, train, places = how
    layers, d, heads, state, leave = len(at), sizes[0], sizes[1], sizes[2], sizes[3]
    n = bits.shape[1]
    T, conv = n + 1 + lhi, d + 2 * state
    row, step, convs, dts = T * d, conv + heads, T * conv, T * heads
    # Kept for every layer:
    x, gate, y, z1, y1, z2, y2, scale1, scale2 = places[:9]
    u, c, slope, dt, rise, decay, scores = places[9:16]
    # Temporary:
    end, end_z, end_scale, weights, gated, g, gx, gm, g_gate = places[16:25]
    gc, gu, gs, g_dt, g_sum, gp = places[25:]
    sums = gp + len(p)
    for layer in range(layers):
        asked = 1 if layer == layers - 1 else T
        here, mine, scales = layer * row, (T - asked) * d, layer * T
        before, into, taps, taps_bias, dt_bias, a_log, skip, after, out = at[layer]
        x_, y_, gate_ = x + here, y + here, gate + here
        u_, c_ = u + scales * step, c + layer * convs
        dt_, decay_ = dt + layer * dts, decay + layer * dts
        if layer:
            norm(p, before, -1, False, m, x_, d, y1 + here, z1 + here, scale1 + scales, T)
            linear(p, into, -1, m, y1 + here + mine, d, gate_, d, asked)
            linear(p, into + d * d, -1, m, y1 + here, d, u_, step, T)
        else:
            spread(table, 0, d, asked, m, x_ + mine)
            spread(table, d, d, asked, m, gate_)
            spread(table, 2 * d, step, T, m, u_)
        _convolve(p, taps, taps_bias, m, u_, step, c_, slope + layer * convs, conv, T)
        _steps(p, dt_bias, a_log, m, u_, step, conv, dt_, rise + layer * dts, decay_, heads, T)
        mix(
            p, skip, m, c_, dt_, decay_, scores + layer * T * T, weights, y_, d, state, heads, T,
            asked,
        )  # fmt: skip
        _gate(m, y_, gate_, gated, asked * d)
        norm(p, after, -1, False, m, gated, d, y2 + here, z2 + here, scale2 + scales, asked)
        linear(p, out, -1, m, y2 + here, d, x_ + row, d, asked)
        add(m, x_ + row, x_ + mine, asked * d)
    norm(p, leave, -1, False, m, x + layers * row, d, end, end_z, end_scale, 1)
    head(p, gp, head_at, d, m, end, bits, index, first, logits, train, gm)
    if train:
        clear(m, g, d)
        norm_back(p, gp, leave, -1, m, gm, d, end_z, end_scale, g, 1)
    for layer in range(layers - 1, -1 if train else layers - 1, -1):
        asked = 1 if layer == layers - 1 else T
        here, mine, scales = layer * row, (T - asked) * d, layer * T
        before, into, taps, taps_bias, dt_bias, a_log, skip, after, out = at[layer]
        y_, gate_, u_, c_ = y + here, gate + here, u + scales * step, c + layer * convs
        dt_, decay_, some = dt + layer * dts, decay + layer * dts, asked * d
        clear(m, gx, row)
        add(m, gx + mine, g, some)
        clear(m, gated, some)
        linear_back(p, out, m, g, d, gated, d, asked)
        linear_weights(gp, out, -1, m, g, d, y2 + here, d, asked)
        clear(m, gm, some)
        norm_back(p, gp, after, -1, m, gated, d, z2 + here, scale2 + scales, gm, asked)
        _gate_back(m, gm, y_, gate_, g_gate, some)
        mix_back(
            p, gp, skip, m, c_, dt_, decay_, scores + layer * T * T, gm, gs, gc, g_dt, g_sum, d,
            state, heads, T, asked,
        )  # fmt: skip
        clear(m, gu, T * step)
        _steps_back(
            p, gp, dt_bias, a_log, m, dt_, rise + layer * dts, g_dt, g_sum, gu, step, conv, heads, T
        )
        times(m, gc, slope + layer * convs, convs)
        _convolve_back(p, gp, taps, taps_bias, m, u_, step, gc, gu, conv, T)
        if layer:
            clear(m, gm, row)
            linear_back(p, into, m, g_gate, d, gm + mine, d, asked)
            linear_weights(gp, into, -1, m, g_gate, d, y1 + here + mine, d, asked)
            linear_back(p, into + d * d, m, gu, step, gm, d, T)
            linear_weights(gp, into + d * d, -1, m, gu, step, y1 + here, d, T)
            norm_back(p, gp, before, -1, m, gm, d, z1 + here, scale1 + scales, gx, T)
            g, gx = gx, g
        else:
            collect(d_table, 0, d, asked, m, gx + mine, sums)
            collect(d_table, d, d, asked, m, g_gate, sums)
            collect(d_table, 2 * d, step, T, m, gu, sums)


@entry(parts)
def run(data: Any, how: Any, m: Any) -> None:
    """See `entry`."""
    drive(_mamba2, data, how, m)
