"""Mamba2's convolution and state-space sum at all tokens: one warp goes over a sequence in chunks of
16.

With G_ts the sum of dt A over s < j <= t and u = dt x, a token sees those of its own chunk through
a token-by-token matrix of exp(G_ts) (C_t . B_s), and those before it through the state at the
chunk's start, a sum of exp(G) B u^T. Sums of dt A run over one chunk at most, and are taken forwards
for each pair, not as differences, so that they cost no accuracy. The numbers before the silu and
the states stay in memory for the way back.

Backwards the adjoint state, a sum of exp(G) C dy^T, stands for the tokens after the chunk. With W_ts
what a pair of tokens gives to the loss to first order, the gradient of dt_j A is the sum of W_ts
over s < j <= t: pairs within the chunk, tokens before it with those in it, those in it with tokens
after it, and one number for all that pass over it. None is a difference of larger sums.
"""

import triton
import triton.language as tl

from ithbit.kernels.mamba2_tile import TAPS, of_seed, sigmoid, silu_slope
from ithbit.kernels.tile import CHUNK, chunk_of, dot


@triton.jit
def _convolved(raw, block, token, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The causal convolution of SIZE columns from FROM on at a sequence's tokens (token 1)."""
    column = FROM + tl.arange(0, SIZE)[None, :]
    out = tl.load(block + K.CONV_BIAS + column)
    for tap in tl.static_range(TAPS):
        at = token - (TAPS - 1 - tap)
        live = (at >= 0) & (token < K.TOKENS)
        value = tl.load(raw + at * K.WIDTH + K.D + column, mask=live, other=0.0)
        out += value * tl.load(block + K.CONV + tap * K.CONV_DIM + column)
    return tl.where(token < K.TOKENS, out, 0.0)


@triton.jit
def _rows(pointer, token, FROM: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """Where SIZE columns from FROM on lie in a sequence's rows of STRIDE numbers."""
    return pointer + token * STRIDE + FROM + tl.arange(0, SIZE)[None, :]


@triton.jit
def _head(K: tl.constexpr):
    """The head of each column: 1 D."""
    return tl.arange(0, K.D)[None, :] // (K.D // K.HEADS)


@triton.jit
def _since_start(terms):
    """Sums over the tokens up to each one: token D."""
    return tl.cumsum(terms, 0)


@triton.jit
def _until_end(terms, steps, a, token, K: tl.constexpr):
    """Sums of dt A over the tokens after each one of its chunk: token D."""
    # The next token's numbers, added up from the end.
    after = (token + 1 < K.TOKENS) & (token % CHUNK + 1 < CHUNK)
    dt = tl.load(steps + (token + 1) * (2 * K.HEADS) + _head(K), mask=after, other=0.0)
    return tl.cumsum(dt * a, 0, reverse=True)


@triton.jit
def _load_dt(steps, token, column, K: tl.constexpr):
    """dt, 0 past the end. `column` is the head; with HEADS added, it is the slope of dt."""
    return tl.load(steps + token * (2 * K.HEADS) + column, mask=token < K.TOKENS, other=0.0)


@triton.jit
def _decay(steps, token, h, a, K: tl.constexpr):
    """exp(G_ts) where token t sees token s of its chunk, else 0: t s."""
    t, s = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    terms = tl.where(s < t, _load_dt(steps, token, h, K) * a, 0.0)
    return tl.where(s <= t, tl.exp(tl.cumsum(terms, 0)), 0.0)


@triton.jit
def _silu(x):
    return x * sigmoid(x)


@triton.jit
def mix(values, count, raw, steps, before, states, mixed, AT, K: tl.constexpr):
    """The state-space sum with its skip at every token, to `mixed`; x, B and C before the silu, to
    `before`; the state at the start of every chunk, to `states`."""
    example = tl.program_id(0)
    if example < count:
        block = values + tl.program_id(1) * K.PARAMETERS + AT
        row = example * K.TOKENS
        raw = of_seed(raw, K.WIDTH, K) + row * K.WIDTH
        steps = of_seed(steps, 2 * K.HEADS, K) + row * (2 * K.HEADS)
        before = of_seed(before, K.CONV_DIM, K) + row * K.CONV_DIM
        mixed = of_seed(mixed, K.D, K) + row * K.D
        states = state_of(states, example, K)
        head = _head(K)
        a = -tl.exp(tl.load(block + K.A_LOG + head))
        skip = tl.load(block + K.SKIP + head)
        state = tl.zeros([K.STATE, K.D], tl.float32)
        HEADS: tl.constexpr = K.HEADS
        for chunk in range(K.CHUNKS):
            token, live, at = chunk_of(chunk, K.TOKENS, K.D)
            tl.store(states + chunk * (K.STATE * K.D) + _square(K), state)
            x = _convolved(raw, block, token, 0, K.D, K)
            tl.store(_rows(before, token, 0, K.D, K.CONV_DIM), x, mask=live)
            x = _silu(x)
            b = _convolved(raw, block, token, K.D, K.STATE, K)
            tl.store(_rows(before, token, K.D, K.STATE, K.CONV_DIM), b, mask=live)
            b = tl.trans(_silu(b))
            c = _convolved(raw, block, token, K.D + K.STATE, K.STATE, K)
            tl.store(_rows(before, token, K.D + K.STATE, K.STATE, K.CONV_DIM), c, mask=live)
            c = _silu(c)
            dt = _load_dt(steps, token, head, K)
            u = x * dt
            y = x * skip + dot(c, state) * tl.exp(_since_start(dt * a))
            scores = dot(c, b)
            for h in tl.static_range(HEADS):
                a_head = -tl.exp(tl.load(block + K.A_LOG + h))
                weights = scores * _decay(steps, token, h, a_head, K)
                y += dot(weights, tl.where(head == h, u, 0.0))
            tl.store(mixed + at, y, mask=live)
            state *= tl.exp(tl.sum(dt * a, 0))[None, :]
            state += dot(b, u * tl.exp(_until_end(dt * a, steps, a, token, K)))


@triton.jit
def _square(K: tl.constexpr):
    """Where a state's numbers lie: STATE D."""
    return tl.arange(0, K.STATE)[:, None] * K.D + tl.arange(0, K.D)[None, :]


@triton.jit
def state_of(states, example, K: tl.constexpr):
    """An example's part of the states (seed, example, chunk, STATE, D)."""
    row = tl.program_id(1).to(tl.int64) * K.CAPACITY + example
    return states + row * (K.CHUNKS * K.STATE * K.D)


@triton.jit
def mix_back(
    values, count, steps, before, states, d_mixed, slopes, d_steps, AT, K: tl.constexpr
):  # fmt: skip
    """`mix` backward: from `d_mixed` the gradients of x, B and C before the silu, to `slopes`, and
    what each token gives to those of dt before the softplus, a_log and skip, to `d_steps`."""
    example = tl.program_id(0)
    if example < count:
        block = values + tl.program_id(1) * K.PARAMETERS + AT
        row = example * K.TOKENS
        steps = of_seed(steps, 2 * K.HEADS, K) + row * (2 * K.HEADS)
        before = of_seed(before, K.CONV_DIM, K) + row * K.CONV_DIM
        d_mixed = of_seed(d_mixed, K.D, K) + row * K.D
        slopes = of_seed(slopes, K.WIDTH, K) + row * K.WIDTH
        d_steps = of_seed(d_steps, 3 * K.HEADS, K) + row * (3 * K.HEADS)
        states = state_of(states, example, K)
        head = _head(K)
        a = -tl.exp(tl.load(block + K.A_LOG + head))
        skip = tl.load(block + K.SKIP + head)
        i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
        adjoint = tl.zeros([K.STATE, K.D], tl.float32)
        HEADS: tl.constexpr = K.HEADS
        for turn in range(K.CHUNKS):
            chunk = K.CHUNKS - 1 - turn
            token, live, at = chunk_of(chunk, K.TOKENS, K.D)
            x_in = tl.load(_rows(before, token, 0, K.D, K.CONV_DIM), mask=live, other=0.0)
            b_in = tl.load(_rows(before, token, K.D, K.STATE, K.CONV_DIM), mask=live, other=0.0)
            c_in = tl.load(
                _rows(before, token, K.D + K.STATE, K.STATE, K.CONV_DIM), mask=live, other=0.0
            )
            dy = tl.load(d_mixed + at, mask=live, other=0.0)
            x, b, c = _silu(x_in), _silu(b_in), _silu(c_in)
            dt = _load_dt(steps, token, head, K)
            u = x * dt
            state = tl.load(states + chunk * (K.STATE * K.D) + _square(K))
            since = dy * tl.exp(_since_start(dt * a))
            until = tl.exp(_until_end(dt * a, steps, a, token, K))
            whole = tl.exp(tl.sum(dt * a, 0))[None, :]
            # Tokens before with those here, those here with tokens after, and those around.
            du = dot(b, adjoint) * until
            around = tl.sum(state * adjoint, 0)[None, :] * whole
            passed = tl.cumsum(since * dot(c, state), 0, reverse=True) + around
            passed += tl.cumsum(u * du, 0) - u * du
            scores = dot(c, tl.trans(b))
            d_scores = tl.zeros([CHUNK, CHUNK], tl.float32)
            for h in tl.static_range(HEADS):
                a_head = -tl.exp(tl.load(block + K.A_LOG + h))
                decay = _decay(steps, token, h, a_head, K)
                own = tl.where(head == h, dy, 0.0)
                d_weights = dot(own, tl.trans(u)) * decay
                d_scores += d_weights
                du += dot(tl.trans(scores * decay), own)
                # Of every pair, to each j with s < j <= t.
                pairs = tl.cumsum(d_weights * scores, 0, reverse=True)
                d_term = tl.sum(tl.where(j < i, pairs, 0.0), 1)
                d_term += tl.sum(tl.where(head == h, passed, 0.0), 1)
                d_term = d_term[:, None] * a_head
                dt_head = _load_dt(steps, token, h, K)
                to = d_steps + token * (3 * K.HEADS) + h
                d_dt = tl.sum(tl.where(head == h, du * x, 0.0), 1)[:, None] + d_term
                tl.store(to, d_dt * _load_dt(steps, token, K.HEADS + h, K), mask=live)
                tl.store(to + K.HEADS, d_term * dt_head, mask=live)
                tl.store(to + 2 * K.HEADS, tl.sum(own * x, 1)[:, None], mask=live)
            dx = (du * dt + dy * skip) * silu_slope(x_in)
            tl.store(_rows(slopes, token, K.D, K.D, K.WIDTH), dx, mask=live)
            db = dot(tl.trans(d_scores), c) + dot(u * until, tl.trans(adjoint))
            db *= silu_slope(b_in)
            tl.store(_rows(slopes, token, 2 * K.D, K.STATE, K.WIDTH), db, mask=live)
            dc = dot(d_scores, b) + dot(since, tl.trans(state))
            dc *= silu_slope(c_in)
            tl.store(_rows(slopes, token, 2 * K.D + K.STATE, K.STATE, K.WIDTH), dc, mask=live)
            adjoint = adjoint * whole + dot(tl.trans(c), since)
