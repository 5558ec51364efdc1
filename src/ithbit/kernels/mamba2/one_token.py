"""Mamba2's mixing of a single token, with the plain recurrence: state = exp(dt A) state + B u^T
with u = dt x, and y = C . state + skip x.

In the backward pass C dy^T is added to the adjoint state, which then gives the gradients of u, B
and dt A; that of C comes from the state. All of it is plain multiply-adds on STATE D numbers of one
warp.
"""

import triton
import triton.language as tl

from ithbit.kernels.mamba2.tile import convolve, exp, head_columns, sigmoid


@triton.jit
def _load_decay(block, steps, t, K: tl.constexpr):
    """dt, A and exp(dt A) of token t, each in the columns of its head: 1 D. Unlike a sum of many, a
    single dt A needs no double."""
    dt = tl.load(steps + t * (2 * K.HEADS) + head_columns(K))
    rate = -exp(tl.load(block + K.A_LOG + head_columns(K)))
    return dt, rate, exp(dt * rate)


@triton.jit
def _after_silu(x, to, SIZE: tl.constexpr, K: tl.constexpr):
    """A row (1 SIZE) after the silu; it and the slope of the silu are stored at `to`."""
    gate = sigmoid(x)
    after = x * gate
    to += tl.arange(0, SIZE)[None, :]
    tl.store(to, after)
    tl.store(to + K.CONV_DIM, gate + after * (1.0 - gate))
    return after


@triton.jit
def mix_one(state, block, raw, steps, inputs, mixed, t, K: tl.constexpr):
    """`mix.mix` for token t of a sequence, from the state before it; returns the state after it."""
    C: tl.constexpr = K.D + K.STATE
    zero = tl.full([1], 0, tl.int32)
    place = zero, zero + t, zero == 0
    # Loads before stores: no load is moved ahead of a store.
    x = convolve(raw, block, place, 0, K.D, K)
    b = convolve(raw, block, place, K.D, K.STATE, K)
    c = convolve(raw, block, place, C, K.STATE, K)
    dt, _, decay = _load_decay(block, steps, t, K)
    skip = tl.load(block + K.SKIP + head_columns(K))
    inputs += t * (2 * K.CONV_DIM)
    x = _after_silu(x, inputs, K.D, K)
    b = tl.trans(_after_silu(b, inputs + K.D, K.STATE, K))
    c = tl.trans(_after_silu(c, inputs + C, K.STATE, K))
    state = state * decay + b * (x * dt)
    y = x * skip + tl.sum(c * state, 0)[None, :]
    tl.store(mixed + t * K.D + tl.arange(0, K.D)[None, :], y)
    return state


@triton.jit
def _of_heads(x, K: tl.constexpr):
    """The sums of a row (1 D) over each head: HEADS."""
    return tl.sum(tl.reshape(x, [K.HEADS, K.D // K.HEADS]), 1)


@triton.jit
def mix_back_one(
    adjoint, state, block, steps, inputs, d_mixed, slopes, d_steps, t, K: tl.constexpr
):
    """`mix.mix_back` for token t of a sequence, from the adjoint state after it and the state
    before it; returns the adjoint state before it."""
    C: tl.constexpr = K.D + K.STATE
    HEADS: tl.constexpr = K.HEADS
    across, down = tl.arange(0, K.D)[None, :], tl.arange(0, K.STATE)[:, None]
    head = tl.arange(0, HEADS)
    inputs, steps_here = inputs + t * (2 * K.CONV_DIM), steps + t * (2 * HEADS) + head
    x, x_slope = tl.load(inputs + across), tl.load(inputs + K.CONV_DIM + across)
    b, b_slope = tl.load(inputs + K.D + down), tl.load(inputs + K.CONV_DIM + K.D + down)
    c, c_slope = tl.load(inputs + C + down), tl.load(inputs + K.CONV_DIM + C + down)
    dy = tl.load(d_mixed + t * K.D + across)
    dt, rate, decay = _load_decay(block, steps, t, K)
    skip = tl.load(block + K.SKIP + head_columns(K))
    step, step_slope = tl.load(steps_here), tl.load(steps_here + HEADS)
    u = x * dt
    adjoint += c * dy
    du = tl.sum(adjoint * b, 0)[None, :]
    db = tl.sum(adjoint * u, 1)[:, None]
    dc = tl.sum((state * decay + b * u) * dy, 1)[:, None]
    d_term = _of_heads(tl.sum(adjoint * state, 0)[None, :] * (decay * rate), K)
    to = d_steps + t * (3 * HEADS) + head
    tl.store(to, (_of_heads(du * x, K) + d_term) * step_slope)
    tl.store(to + HEADS, d_term * step)
    tl.store(to + 2 * HEADS, _of_heads(dy * x, K))
    to = slopes + t * K.WIDTH + K.D
    tl.store(to + across, (du * dt + dy * skip) * x_slope)
    tl.store(to + K.D + down, db * b_slope)
    tl.store(to + C + down, dc * c_slope)
    return adjoint * decay
