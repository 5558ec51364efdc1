"""Mamba2's convolution and state-space sum at all tokens: one warp goes over a sequence in chunks.

With G_ts the sum of dt A over s < j <= t and u = dt x, a token sees those of its own chunk through
a token-by-token matrix of exp(G_ts) (C_t . B_s), and those before it through the state at the
chunk's start, a sum of exp(G) B u^T. No sum of dt A is longer than a chunk. The numbers after the
silu with its slopes, the sums and the states stay in memory for the backward pass.

In the backward pass the adjoint state, a sum of exp(G) C dy^T, stands for the tokens after the
chunk. Let W_ts be what t takes from s, times dy_t; then the gradient of dt_j A is the sum of W_ts
over s < j <= t: pairs within the chunk, tokens before it with those in it, those in it with tokens
after it, and one number for all pairs that span it. None is a difference of larger sums, which
would cost accuracy.

Exact saving: one or two tokens left after whole chunks (`tile.alone`; as at n = 16, 32 and 64)
are mixed one by one (`one_token.py`), each at an eighth to a quarter of a chunk's instructions: as
a last chunk they would cost as much as a whole one.
"""

import triton
import triton.language as tl

from ithbit.kernels.mamba2.one_token import mix_back_one, mix_one
from ithbit.kernels.mamba2.tile import TAPS, exp, head_columns, load_rate, of_seed, sigmoid
from ithbit.kernels.tile import CHUNK, SIZES, along_rows, chunk_of, dot, dot_exact


@triton.jit
def _load_taps(block, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The convolution's bias for SIZE columns from FROM on, then its weights by tap: 1 SIZE."""
    column = FROM + tl.arange(0, SIZE)[None, :]
    out = (tl.load(block + K.CONV_BIAS + column),)
    for tap in tl.static_range(TAPS):
        out += (tl.load(block + K.CONV + tap * K.CONV_DIM + column),)  # type: ignore[assignment]
    return out


@triton.jit
def _load_raw(
    raw, token, FROM: tl.constexpr, SIZE: tl.constexpr, BACK: tl.constexpr, K: tl.constexpr
):
    """SIZE columns from FROM on of the convolution's input, BACK positions before these tokens."""
    at = token - BACK
    column = FROM + tl.arange(0, SIZE)[None, :]
    live = (at >= 0) & (token < K.TOKENS)
    return tl.load(raw + at * K.WIDTH + K.D + column, mask=live, other=0.0)


@triton.jit
def _load_all(raw, chunk, K: tl.constexpr):
    """The convolution's input for x, B and C of a chunk."""
    token, _, _ = chunk_of(chunk, K.TOKENS, K.D)
    x = _load_raw(raw, token, 0, K.D, 0, K)
    b = _load_raw(raw, token, K.D, K.STATE, 0, K)
    return x, b, _load_raw(raw, token, K.D + K.STATE, K.STATE, 0, K)


@triton.jit
def _load_earlier(raw, token, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The same for some columns at the tokens before, by tap: rows that are cached already."""
    values = ()
    for tap in tl.static_range(TAPS - 1):
        value = _load_raw(raw, token, FROM, SIZE, TAPS - 1 - tap, K)
        values += (value,)  # type: ignore[assignment]
    return values


@triton.jit
def _convolved(
    current, earlier, taps, inputs, token, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The causal convolution of SIZE columns from FROM on at a sequence's tokens (token 1), after
    the silu; also stored in `inputs`, with the slope of the silu."""
    out = taps[0]
    for tap in tl.static_range(TAPS - 1):
        out += earlier[tap] * taps[1 + tap]
    out += current * taps[TAPS]
    gate = sigmoid(out)
    after = tl.where(token < K.TOKENS, out * gate, 0.0)
    to = inputs + token * (2 * K.CONV_DIM) + FROM + tl.arange(0, SIZE)[None, :]
    tl.store(to, after, mask=token < K.TOKENS)
    tl.store(to + K.CONV_DIM, gate + after * (1.0 - gate), mask=token < K.TOKENS)
    return after


@triton.jit
def _load(
    pointer, token, FROM: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr
):
    """SIZE columns from FROM on of a sequence's rows of STRIDE numbers: token SIZE."""
    at = pointer + token * STRIDE + FROM + tl.arange(0, SIZE)[None, :]
    return tl.load(at, mask=token < K.TOKENS, other=0.0)


@triton.jit
def _load_along(
    pointer, chunk, FROM: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr
):
    """The same for a chunk, with its tokens in the order that `along_rows` gives a left factor."""
    i = tl.arange(0, CHUNK)[:, None]
    token = chunk * CHUNK + (i // 8 * 8 + i % 4 * 2 + i // 4 % 2)
    return _load(pointer, token, FROM, SIZE, STRIDE, K)


@triton.jit
def _load_down(
    pointer, chunk, FROM: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr
):
    """The same, loaded as SIZE token."""
    token = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    at = pointer + token * STRIDE + FROM + tl.arange(0, SIZE)[:, None]
    return tl.load(at, mask=token < K.TOKENS, other=0.0)


@triton.jit
def _load_slope(inputs, token, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The slope of the silu that `mix` stored, for SIZE columns from FROM on."""
    return _load(inputs, token, K.CONV_DIM + FROM, SIZE, 2 * K.CONV_DIM, K)


@triton.jit
def _store_slope(slopes, token, grad, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """Store the gradient of SIZE columns from FROM on before the silu."""
    to = slopes + token * K.WIDTH + K.D + FROM + tl.arange(0, SIZE)[None, :]
    tl.store(to, grad, mask=token < K.TOKENS)


@triton.jit
def _states(states, example, K: tl.constexpr):
    """Where the first state of an example lies (STATE D) in (seed, example, start, STATE, D)."""
    row = tl.program_id(1).to(tl.int64) * K.CAPACITY + example
    at = tl.arange(0, K.STATE)[:, None] * K.D + tl.arange(0, K.D)[None, :]
    return states + row * (K.STARTS * K.STATE * K.D) + at


@triton.jit
def _sums(sums, example, K: tl.constexpr):
    """An example's sums of dt A (seed, example, head, high and low, token of the chunks)."""
    row = tl.program_id(1).to(tl.int64) * K.CAPACITY + example
    return sums + row * (2 * K.HEADS * K.CHUNKS * CHUNK)


@triton.jit
def _store_sums(sums, steps, block, K: tl.constexpr):
    """Store the sums of dt A from the start of a chunk to each token: doubles as two numbers."""
    LENGTH: tl.constexpr = K.CHUNKS * CHUNK
    chunk, i = tl.arange(0, K.CHUNKS_WIDE)[:, None], tl.arange(0, CHUNK)[None, :]
    token = chunk * CHUNK + i
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        terms = _load_step(steps, token, h, K).to(tl.float64) * load_rate(block, h, K)
        total = tl.cumsum(terms, 1)
        high = total.to(tl.float32)
        low = (total - high.to(tl.float64)).to(tl.float32)
        to = sums + 2 * h * LENGTH + token
        tl.store(to, high, mask=token < LENGTH)
        tl.store(to + LENGTH, low, mask=token < LENGTH)


@triton.jit
def _load_step(steps, token, column, K: tl.constexpr):
    """dt of head `column`, or with HEADS added its slope; 0 past the end."""
    return tl.load(steps + token * (2 * K.HEADS) + column, mask=token < K.TOKENS, other=0.0)


@triton.jit
def _load_steps(steps, token, K: tl.constexpr):
    """dt of every head, then their slopes: each token 1."""
    out = ()
    COLUMNS: tl.constexpr = 2 * K.HEADS
    for column in tl.static_range(COLUMNS):
        out += (_load_step(steps, token, column, K),)  # type: ignore[assignment]
    return out


@triton.jit
def _decay(sums, h, later, earlier, K: tl.constexpr):
    """exp of the sum of dt A after the `earlier` token, up to the `later` one in its chunk."""
    LENGTH: tl.constexpr = K.CHUNKS * CHUNK
    high = sums + 2 * h * LENGTH
    # high + low is exact, and so is each difference.
    by = tl.load(high + later) - tl.load(high + earlier)
    return exp(by, tl.load(high + LENGTH + later) - tl.load(high + LENGTH + earlier))


@triton.jit
def _decay_to(high, token, K: tl.constexpr):
    """exp of the sum of dt A from the start of a chunk to a token."""
    return exp(tl.load(high + token), tl.load(high + K.CHUNKS * CHUNK + token))


@triton.jit
def _decay_within(sums, h, chunk, DOWN: tl.constexpr, K: tl.constexpr):
    """The decay where token t sees token s of its chunk, else 0: t s, or s t if DOWN."""
    t, s = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    if DOWN:
        t, s = tl.arange(0, CHUNK)[None, :], tl.arange(0, CHUNK)[:, None]
    decay = _decay(sums, h, chunk * CHUNK + t, chunk * CHUNK + s, K)
    return tl.where(s <= t, decay, 0.0)


@triton.jit
def _load_chunk(steps, sums, chunk, K: tl.constexpr):
    """dt (token D), and the decays from the chunk's start to each token (token D), from each token
    to its end (token D), and from start to end (1 D)."""
    token, _, _ = chunk_of(chunk, K.TOKENS, K.D)
    end = chunk * CHUNK + tl.full([1, 1], CHUNK - 1, tl.int32)
    head = head_columns(K)
    dt = tl.full([CHUNK, K.D], 0.0, tl.float32)
    since, until, chunk_decay = dt, dt, tl.full([1, K.D], 0.0, tl.float32)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        high = sums + 2 * h * (K.CHUNKS * CHUNK)
        dt = tl.where(head == h, _load_step(steps, token, h, K), dt)
        since = tl.where(head == h, _decay_to(high, token, K), since)
        until = tl.where(head == h, _decay(sums, h, end, token, K), until)
        chunk_decay = tl.where(head == h, _decay_to(high, end, K), chunk_decay)
    return dt, since, until, chunk_decay


@triton.jit(do_not_specialize=SIZES)
def mix(values, count, raw, steps, inputs, sums, states, mixed, PARAMETERS, AT, K: tl.constexpr):
    """The state-space sum with its skip at every token, to `mixed`; x, B and C with the slopes of
    their silu, to `inputs`; the sums of dt A, to `sums`; the state at the start of every chunk and
    every single token, to `states`."""
    example = tl.program_id(0)
    if example < count:
        block = values + tl.program_id(1) * PARAMETERS + AT
        row = example * K.TOKENS
        raw = of_seed(raw, K.WIDTH, K) + row * K.WIDTH
        steps = of_seed(steps, 2 * K.HEADS, K) + row * (2 * K.HEADS)
        inputs = of_seed(inputs, 2 * K.CONV_DIM, K) + row * (2 * K.CONV_DIM)
        mixed = of_seed(mixed, K.D, K) + row * K.D
        at_state, sums = _states(states, example, K), _sums(sums, example, K)
        _store_sums(sums, steps, block, K)
        tl.debug_barrier()  # the sums are read again
        head = head_columns(K)
        skip = tl.load(block + K.SKIP + head)
        x_taps = _load_taps(block, 0, K.D, K)
        b_taps = _load_taps(block, K.D, K.STATE, K)
        c_taps = _load_taps(block, K.D + K.STATE, K.STATE, K)
        state = tl.full([K.STATE, K.D], 0.0, tl.float32)
        HEADS: tl.constexpr = K.HEADS
        C: tl.constexpr = K.D + K.STATE
        coming = _load_all(raw, 0, K)
        for chunk in range(K.CHUNKS):
            token, live, at = chunk_of(chunk, K.TOKENS, K.D)
            x, b, c = coming
            # All loads before any store, as no load is moved ahead of one: the next chunk's rows
            # too. The last chunk loads its own again, so that the compiler sees that whole chunks
            # need no masks.
            coming = _load_all(raw, tl.minimum(chunk + 1, K.CHUNKS - 1), K)
            xs = _load_earlier(raw, token, 0, K.D, K)
            bs = _load_earlier(raw, token, K.D, K.STATE, K)
            cs = _load_earlier(raw, token, C, K.STATE, K)
            dt, since, until, chunk_decay = _load_chunk(steps, sums, chunk, K)
            x = _convolved(x, xs, x_taps, inputs, token, 0, K.D, K)
            b = tl.trans(_convolved(b, bs, b_taps, inputs, token, K.D, K.STATE, K))
            c = _convolved(c, cs, c_taps, inputs, token, C, K.STATE, K)
            tl.store(at_state + chunk * (K.STATE * K.D), state)
            u = x * dt
            y = x * skip + dot(c, state) * since
            scores = dot(c, b)
            for h in tl.static_range(HEADS):
                weights = scores * _decay_within(sums, h, chunk, False, K)
                y += dot(weights, tl.where(head == h, u, 0.0))
            tl.store(mixed + at, y, mask=live)
            state = state * chunk_decay + dot(b, u * until)
        ALONE: tl.constexpr = K.ALONE
        for i in tl.static_range(ALONE):
            tl.store(at_state + (K.CHUNKS + i) * (K.STATE * K.D), state)
            state = mix_one(state, block, raw, steps, inputs, mixed, K.TOKENS - ALONE + i, K)


@triton.jit(do_not_specialize=SIZES)
def mix_back(
    values, count, steps, inputs, sums, states, d_mixed, slopes, d_steps, PARAMETERS, AT,
    K: tl.constexpr,
):  # fmt: skip
    """`mix` backward: from `d_mixed` the gradients of x, B and C before the silu, to `slopes`, and
    what each token contributes to those of dt before the softplus, a_log and skip, to `d_steps`."""
    example = tl.program_id(0)
    if example < count:
        block = values + tl.program_id(1) * PARAMETERS + AT
        row = example * K.TOKENS
        steps = of_seed(steps, 2 * K.HEADS, K) + row * (2 * K.HEADS)
        inputs = of_seed(inputs, 2 * K.CONV_DIM, K) + row * (2 * K.CONV_DIM)
        d_mixed = of_seed(d_mixed, K.D, K) + row * K.D
        slopes = of_seed(slopes, K.WIDTH, K) + row * K.WIDTH
        d_steps = of_seed(d_steps, 3 * K.HEADS, K) + row * (3 * K.HEADS)
        at_state, sums = _states(states, example, K), _sums(sums, example, K)
        head = head_columns(K)
        head_down = tl.arange(0, K.D)[:, None] // (K.D // K.HEADS)
        t, s = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
        from_here, earlier = tl.where(s >= t, 1.0, 0.0), tl.where(s < t, 1.0, 0.0)
        adjoint = tl.full([K.STATE, K.D], 0.0, tl.float32)
        HEADS: tl.constexpr = K.HEADS
        ALONE: tl.constexpr = K.ALONE
        for i in tl.static_range(ALONE - 1, -1, -1):
            state = tl.load(at_state + (K.CHUNKS + i) * (K.STATE * K.D))
            adjoint = mix_back_one(
                adjoint, state, block, steps, inputs, d_mixed, slopes, d_steps,
                K.TOKENS - ALONE + i, K,
            )  # fmt: skip
        for turn in range(K.CHUNKS):
            chunk = K.CHUNKS - 1 - turn
            token, live, _ = chunk_of(chunk, K.TOKENS, K.D)
            x = _load(inputs, token, 0, K.D, 2 * K.CONV_DIM, K)
            b = _load(inputs, token, K.D, K.STATE, 2 * K.CONV_DIM, K)
            c = _load(inputs, token, K.D + K.STATE, K.STATE, 2 * K.CONV_DIM, K)
            c_down = _load_down(inputs, chunk, K.D + K.STATE, K.STATE, 2 * K.CONV_DIM, K)
            dy = _load(d_mixed, token, 0, K.D, K.D, K)
            dt, since, until, chunk_decay = _load_chunk(steps, sums, chunk, K)
            # Before any store: no load is moved ahead of one.
            by_step = _load_steps(steps, token, K)
            u, since = x * dt, since * dy
            state = tl.load(at_state + chunk * (K.STATE * K.D))
            # Pairs of tokens: before with here, here with after, and before with after.
            du = dot(b, adjoint) * until
            passed = dot_exact(from_here, since * dot(c, state))
            passed += dot_exact(earlier, u * du)
            passed += tl.sum(state * adjoint, 0)[None, :] * chunk_decay
            dc = dot(since, tl.trans(state))
            db = dot(u * until, tl.trans(adjoint))
            adjoint = adjoint * chunk_decay + dot(c_down, since)
            scores = dot(b, c_down)
            dy_down = _load_down(d_mixed, chunk, 0, K.D, K.D, K)
            dy_along = _load_along(d_mixed, chunk, 0, K.D, K.D, K)
            d_scores = tl.full([CHUNK, CHUNK], 0.0, tl.float32)
            for h in tl.static_range(HEADS):
                decay = _decay_within(sums, h, chunk, True, K)
                d_weights = dot(u, tl.where(head_down == h, dy_down, 0.0)) * decay
                d_scores += d_weights
                du += dot(along_rows(scores * decay), tl.where(head == h, dy_along, 0.0))
                # From every pair, to each token after the earlier one up to the later one.
                pairs = dot_exact(earlier, d_weights * scores)
                d_term = tl.sum(pairs * from_here, 1)
                d_term += tl.sum(tl.where(head == h, passed, 0.0), 1)
                d_term = d_term[:, None] * -exp(tl.load(block + K.A_LOG + h))
                to = d_steps + token * (3 * K.HEADS) + h
                d_dt = tl.sum(tl.where(head == h, du * x, 0.0), 1)[:, None] + d_term
                tl.store(to, d_dt * by_step[HEADS + h], mask=live)
                tl.store(to + K.HEADS, d_term * by_step[h], mask=live)
                d_skip = tl.sum(tl.where(head == h, dy * x, 0.0), 1)[:, None]
                tl.store(to + 2 * K.HEADS, d_skip, mask=live)
            C: tl.constexpr = K.D + K.STATE
            x_slope = _load_slope(inputs, token, 0, K.D, K)
            b_slope = _load_slope(inputs, token, K.D, K.STATE, K)
            c_slope = _load_slope(inputs, token, C, K.STATE, K)
            c_along = _load_along(inputs, chunk, C, K.STATE, 2 * K.CONV_DIM, K)
            dx = du * dt + dy * tl.load(block + K.SKIP + head)
            _store_slope(slopes, token, dx * x_slope, 0, K.D, K)
            db += dot(along_rows(d_scores), c_along)
            _store_slope(slopes, token, db * b_slope, K.D, K.STATE, K)
            dc += dot(tl.trans(d_scores), b)
            _store_slope(slopes, token, dc * c_slope, C, K.STATE, K)
