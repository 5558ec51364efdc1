"""Mamba2, a block of a model: the twin of `models/mamba2.py`, in the dual form as there.

Going back from a query token by token, the decay is a running product: no exponentials of
differences, so nothing needs double precision. After the convolution a token has `conv` numbers:
x (d), B and C (d_state each); `u` has them before the convolution, followed by the steps' inputs.
"""

from typing import Any

import numpy as np

from ithbit.layouts import MAMBA2
from ithbit.native.entry import Parts, drive, entry, group
from ithbit.native.fours import fma4, get4, put4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import (
    Floats,
    LayerArgs,
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
from ithbit.native.tokens import take, take_back
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights, times

_NORM, _IN, _CONV, _CONV_BIAS, _DT_BIAS, _A_LOG, _SKIP, _GATE_NORM, _OUT = MAMBA2.places(
    *("norm.weight", "in.weight", "conv.weight", "conv.bias", "dt_bias", "a_log", "skip"),
    *("gate_norm.weight", "out.weight"),
)
_ONE, _TAPS = np.float32(1), MAMBA2.taps


@inline
def _silu(x: Any) -> Any:
    """SiLU and its derivative."""
    s = sigmoid(x)
    return x * s, s * fma(x, splat(_ONE) - s, splat(_ONE))


@part
def _convolve(layer: LayerArgs, w: int, b: int, m: Floats, u: int, y: int, slope: int) -> None:
    """y = SiLU of the causal, depthwise convolution, and its derivative."""
    p, conv = layer.p, layer.d + 2 * layer.inner
    step = conv + layer.heads
    for t in range(layer.tokens):
        for i in range(conv):
            v = each(p, b + i)
            for tap in range(max(0, _TAPS - 1 - t), _TAPS):
                past = u + (t + tap - _TAPS + 1) * step + i
                v = fma(each(p, w + tap * conv + i), get(m, past), v)
            v, rise = _silu(v)
            put(m, y + t * conv + i, v)
            put(m, slope + t * conv + i, rise)


@part
def _convolve_back(layer: LayerArgs, w: int, b: int, m: Floats, u: int, g: int, gu: int) -> None:
    """gu += the gradient of u, from g, that of the convolution."""
    p, gp, conv, tokens = layer.p, layer.gp, layer.d + 2 * layer.inner, layer.tokens
    step = conv + layer.heads
    for i in range(conv):
        summed = zero()
        for t in range(tokens):
            summed = summed + get(m, g + t * conv + i)
        more(m, gp + b + i, summed)
        for tap in range(_TAPS):
            back, summed, weight = _TAPS - 1 - tap, zero(), each(p, w + tap * conv + i)
            for t in range(back, tokens):
                v, past = get(m, g + t * conv + i), (t - back) * step + i
                summed = fma(v, get(m, u + past), summed)
                put(m, gu + past, fma(weight, v, get(m, gu + past)))
            more(m, gp + w + tap * conv + i, summed)


@part
def _steps(
    layer: LayerArgs, bias: int, a_log: int, m: Floats, u: int, dt: int, rise: int, decay: int
) -> None:
    """Each token's step dt, its derivative and its decay exp(dt A), for each head."""
    p, heads, conv = layer.p, layer.heads, layer.d + 2 * layer.inner
    step = conv + heads
    for h in range(heads):
        a = zero() - exp(each(p, a_log + h))
        for t in range(layer.tokens):
            v, at = get(m, u + t * step + conv + h) + each(p, bias + h), t * heads + h
            put(m, rise + at, sigmoid(v))
            v = softplus(v)
            put(m, dt + at, v)
            put(m, decay + at, exp(v * a))


@part
def _steps_back(
    layer: LayerArgs, bias: int, a_log: int, m: Floats, dt: int, rise: int, g_dt: int, g_sum: int,
    gu: int,
) -> None:  # fmt: skip
    """The gradients of the steps' inputs, of dt_bias and of a_log."""
    p, gp, heads, conv = layer.p, layer.gp, layer.heads, layer.d + 2 * layer.inner
    step = conv + heads
    for h in range(heads):
        a = zero() - exp(each(p, a_log + h))
        after, for_a, for_bias = zero(), zero(), zero()
        for t in range(layer.tokens - 1, -1, -1):
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
    layer: LayerArgs, skip: int, m: Floats, c: int, dt: int, decay: int, scores: int, weights: int,
    y: int,
) -> None:  # fmt: skip
    """y at the tokens whose output is wanted; the scores C_t . B_s are kept."""
    p, d, state, heads = layer.p, layer.d, layer.inner, layer.heads
    tokens, queries, conv, size = layer.tokens, layer.outputs, d + 2 * state, d // heads
    for a in range(queries):
        t = tokens - queries + a
        mine, row = c + t * conv, scores + a * tokens
        for s in range(t + 1):
            score, other = zero(), c + s * conv + d
            for i in range(state):
                score = fma(get(m, mine + d + state + i), get(m, other + i), score)
            put(m, row + s, score)
        for h in range(heads):
            product = splat(_ONE)
            for s in range(t, -1, -1):
                at = s * heads + h
                put(m, weights + s, product * get(m, row + s) * get(m, dt + at))
                product = product * get(m, decay + at)
            k = each(p, skip + h)
            for f in range(h * size, (h + 1) * size, 4):
                x = get4(m, mine + f)
                sums = k * x[0], k * x[1], k * x[2], k * x[3]
                for s in range(t + 1):
                    sums = fma4(get(m, weights + s), m, c + s * conv + f, sums)
                put4(m, y + a * d + f, sums)


@part
def mix_back(
    layer: LayerArgs, skip: int, m: Floats, c: int, dt: int, decay: int, scores: int, g: int,
    gs: int, gc: int, g_dt: int, g_sum: int,
) -> None:  # fmt: skip
    """From g, the gradient of y: those of the convolved numbers, of the steps where they scale, and
    of the sums of dt A up to each token."""
    p, gp, d, state, heads = layer.p, layer.gp, layer.d, layer.inner, layer.heads
    tokens, queries, conv, size = layer.tokens, layer.outputs, d + 2 * state, d // heads
    clear(m, gc, tokens * conv)
    clear(m, g_dt, tokens * heads)
    clear(m, g_sum, tokens * heads)
    for a in range(queries):
        t, row, mine = tokens - queries + a, scores + a * tokens, g + a * d
        clear(m, gs, t + 1)
        for h in range(heads):
            product, summed, for_skip, k = splat(_ONE), zero(), zero(), each(p, skip + h)
            for f in range(h * size, (h + 1) * size):
                v, at = get(m, mine + f), t * conv + f
                for_skip = fma(v, get(m, c + at), for_skip)
                put(m, gc + at, fma(k, v, get(m, gc + at)))
            more(m, gp + skip + h, for_skip)
            for s in range(t, -1, -1):
                at, score = s * heads + h, get(m, row + s)
                step = get(m, dt + at)
                w, dw = product * score * step, zero()
                for f in range(h * size, (h + 1) * size):
                    v, offset = get(m, mine + f), s * conv + f
                    dw = fma(v, get(m, c + offset), dw)
                    put(m, gc + offset, fma(w, v, get(m, gc + offset)))
                put(m, gs + s, fma(dw, product * step, get(m, gs + s)))
                put(m, g_dt + at, fma(dw, product * score, get(m, g_dt + at)))
                put(m, g_sum + at, get(m, g_sum + at) - dw * w)
                summed = fma(dw, w, summed)
                product = product * get(m, decay + at)
            at = g_sum + t * heads + h
            put(m, at, get(m, at) + summed)
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


def parts(T: int, outputs: int, d: int, heads: int, inner: int) -> Parts:
    """See `entry`; in the order in which both passes take them."""
    row, some, conv, dts = T * d, outputs * d, T * (d + 2 * inner), T * heads
    kept_sizes = (row, some, conv + dts, some, row, row, some, some, T, outputs)
    more = (conv, conv, dts, dts, dts, outputs * T)
    used = (row, row, d, d, 1, T, some, row, some, conv, conv + dts, T, dts, dts)
    return kept_sizes + more, used


@group
def forward(layer: Any, table: Any, m: Any) -> int:
    """See `group`."""
    p, d, T, outputs = layer.p, layer.d, layer.tokens, layer.outputs
    before, into, taps = layer.at[_NORM], layer.at[_IN], layer.at[_CONV]
    taps_bias, dt_bias, a_log = layer.at[_CONV_BIAS], layer.at[_DT_BIAS], layer.at[_A_LOG]
    skip, after, out = layer.at[_SKIP], layer.at[_GATE_NORM], layer.at[_OUT]
    x, gate, u, y, z1, y1, z2, y2, scale1, scale2 = layer.kept[:10]
    c, slope, dt, rise, decay, scores = layer.kept[10:]
    end, end_z, end_scale, weights, gated = layer.used[2:7]
    if not layer.first:
        norm(p, before, -1, False, m, x, d, y1, z1, scale1, T)
    take(layer, table, into, -1, m, x, y1, gate, u)
    _convolve(layer, taps, taps_bias, m, u, c, slope)
    _steps(layer, dt_bias, a_log, m, u, dt, rise, decay)
    mix(layer, skip, m, c, dt, decay, scores, weights, y)
    _gate(m, y, gate, gated, outputs * d)
    norm(p, after, -1, False, m, gated, d, y2, z2, scale2, outputs)
    linear(p, out, -1, m, y2, d, layer.above, d, outputs)
    add(m, layer.above, x + (T - outputs) * d, outputs * d)
    if outputs == 1:
        norm(p, layer.leave, -1, False, m, layer.above, d, end, end_z, end_scale, 1)
    return end


@group
def backward(layer: Any, d_table: Any, m: Any, g: int, gx: int) -> None:
    """See `group`."""
    p, gp, d, T, outputs = layer.p, layer.gp, layer.d, layer.tokens, layer.outputs
    before, into, taps = layer.at[_NORM], layer.at[_IN], layer.at[_CONV]
    taps_bias, dt_bias, a_log = layer.at[_CONV_BIAS], layer.at[_DT_BIAS], layer.at[_A_LOG]
    skip, after, out = layer.at[_SKIP], layer.at[_GATE_NORM], layer.at[_OUT]
    _, gate, u, y, z1, y1, z2, y2, scale1, scale2 = layer.kept[:10]
    c, slope, dt, rise, decay, scores = layer.kept[10:]
    end, end_z, end_scale, _, gated, gm, g_gate, gc, gu, gs, g_dt, g_sum = layer.used[2:14]
    some, conv = outputs * d, d + 2 * layer.inner
    if outputs == 1:
        clear(m, end, d)
        norm_back(p, gp, layer.leave, -1, m, g, d, end_z, end_scale, end, 1)
        g = end
    clear(m, gx, T * d)
    add(m, gx + T * d - some, g, some)
    clear(m, gated, some)
    linear_back(p, out, m, g, d, gated, d, outputs)
    linear_weights(gp, out, -1, m, g, d, y2, d, outputs)
    clear(m, gm, some)
    norm_back(p, gp, after, -1, m, gated, d, z2, scale2, gm, outputs)
    _gate_back(m, gm, y, gate, g_gate, some)
    mix_back(layer, skip, m, c, dt, decay, scores, gm, gs, gc, g_dt, g_sum)
    clear(m, gu, T * (conv + layer.heads))
    _steps_back(layer, dt_bias, a_log, m, dt, rise, g_dt, g_sum, gu)
    times(m, gc, slope, T * conv)
    _convolve_back(layer, taps, taps_bias, m, u, gc, gu)
    if not layer.first:
        clear(m, gm, T * d)
    take_back(layer, d_table, into, -1, m, y1, gx, g_gate, gu, gm)
    if not layer.first:
        norm_back(p, gp, before, -1, m, gm, d, z1, scale1, gx, T)


@entry(parts)
def run(data: Any, layout: Any, m: Any) -> None:
    """See `entry`."""
    drive(forward, backward, data, layout, m)
