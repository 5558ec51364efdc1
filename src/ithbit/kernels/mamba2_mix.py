"""Mamba2's convolution and state-space sum in the dual form, forward.

A tile is the bits of a few sequences, each padded to a power of two rows. The tokens that are not
bits stand aside, one row a sequence: the last token sees every bit and no bit sees it, so it costs
one number a bit; in LHI every bit sees the query, another number a bit. Padding n + 1 or n + 2
tokens to a power of two would cost two to four times the work. Names: x, b, c are of the bits, with
last_ or query_ of those tokens (a row a sequence), with their_ of those tokens (a row a bit).
"""

import triton
import triton.language as tl

from ithbit.kernels.mamba2_tile import convolve, of_seed, row_number, sigmoid, store_rows
from ithbit.kernels.tile import dot


@triton.jit
def bits_of(tile, count, K: tl.constexpr):
    """The place of a tile's bits."""
    r = tl.arange(0, K.GROUP * K.SPAN)
    example, i = tile * K.GROUP + r // K.SPAN, r % K.SPAN
    return example, i + K.FIRST, (example < count) & (i < K.N)


@triton.jit
def token_of(tile, count, TOKEN: tl.constexpr, K: tl.constexpr):
    """The place of one token of a tile's sequences."""
    example = tile * K.GROUP + tl.arange(0, K.GROUP)
    return example, tl.full([K.GROUP], TOKEN, tl.int32), example < count


@triton.jit
def to_bits(x, K: tl.constexpr):
    """A number a sequence, given to its bits."""
    return tl.reshape(tl.broadcast_to(x[:, None], [K.GROUP, K.SPAN]), [K.GROUP * K.SPAN])


@triton.jit
def rows_to_bits(x, SIZE: tl.constexpr, K: tl.constexpr):
    x = tl.broadcast_to(x[:, None, :], [K.GROUP, K.SPAN, SIZE])
    return tl.reshape(x, [K.GROUP * K.SPAN, SIZE])


@triton.jit
def sum_bits(x, K: tl.constexpr):
    """The sum over a sequence's bits."""
    return tl.sum(tl.reshape(x, [K.GROUP, K.SPAN]), 1)


@triton.jit
def sum_rows(x, SIZE: tl.constexpr, K: tl.constexpr):
    return tl.sum(tl.reshape(x, [K.GROUP, K.SPAN, SIZE]), 1)


@triton.jit
def convolved(raw, block, place, K: tl.constexpr):
    """x, B and C before the silu."""
    x = convolve(raw, block, place, 0, K.D, K)
    b = convolve(raw, block, place, K.D, K.STATE, K)
    return x, b, convolve(raw, block, place, K.D + K.STATE, K.STATE, K)


@triton.jit
def silu(before):
    x, b, c = before
    return x * sigmoid(x), b * sigmoid(b), c * sigmoid(c)


@triton.jit
def load_dt(steps, h, place, K: tl.constexpr):
    """dt of head h, 0 where not valid, and its slope by what the softplus is taken of."""
    at = steps + row_number(place, K) * (2 * K.HEADS) + h
    dt = tl.load(at, mask=place[2], other=0.0)
    return dt, tl.load(at + K.HEADS, mask=place[2], other=0.0)


@triton.jit
def totals(dt, last_dt, a, K: tl.constexpr):
    """Sums of dt A from the first bit, in double: up to every bit (GROUP SPAN), and to the last
    token (GROUP)."""
    terms = tl.reshape(dt.to(tl.float64) * a, [K.GROUP, K.SPAN])
    return tl.cumsum(terms, 1), tl.sum(terms, 1) + last_dt.to(tl.float64) * a


@triton.jit
def exp_of(total):
    return tl.exp(total.to(tl.float32))


@triton.jit
def decay(total, K: tl.constexpr):
    """exp(total_t - total_s) where bit t sees bit s, else 0: t s."""
    ROWS: tl.constexpr = K.GROUP * K.SPAN
    total = tl.reshape(total, [ROWS])
    # total = high + low in fp32: each difference is then as exact as itself.
    high = total.to(tl.float32)
    low = (total - high.to(tl.float64)).to(tl.float32)
    difference = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    t, s = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    seen = s <= t
    if K.GROUP > 1:
        seen = seen & (t // K.SPAN == s // K.SPAN)
    # Masked before the exp, as it may overflow where t comes before s.
    return tl.exp(tl.where(seen, difference, float("-inf")))


@triton.jit
def head_columns(h, K: tl.constexpr):
    """1 in the columns of head h, else 0: 1 D."""
    return tl.where(tl.arange(0, K.D)[None, :] // (K.D // K.HEADS) == h, 1.0, 0.0)


@triton.jit
def load_skip(block, K: tl.constexpr):
    return tl.load(block + K.SKIP + tl.arange(0, K.D)[None, :] // (K.D // K.HEADS))


@triton.jit
def mix_last(steps, block, bits, last, query, x, b, last_in, query_in, K: tl.constexpr):
    """The state-space sum with its skip at the last token of each sequence: GROUP D. RHI reads
    nothing of the query, which is its last token."""
    last_x, last_b, last_c = last_in
    score = tl.sum(rows_to_bits(last_c, K.STATE, K) * b, 1)
    own = tl.sum(last_c * last_b, 1)
    y = last_x * load_skip(block, K)
    if K.LHI:
        query_x, query_b, _ = query_in
        query_score = tl.sum(last_c * query_b, 1)
    weight = tl.full([K.GROUP * K.SPAN, K.D], 0, tl.float32)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns = head_columns(h, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        dt, _ = load_dt(steps, h, bits, K)
        last_dt, _ = load_dt(steps, h, last, K)
        total, whole = totals(dt, last_dt, a, K)
        to_last = tl.reshape(exp_of(whole[:, None] - total), [K.GROUP * K.SPAN])
        weight += (score * to_last * dt)[:, None] * columns
        y += (own * last_dt)[:, None] * columns * last_x
        if K.LHI:
            query_dt, _ = load_dt(steps, h, query, K)
            y += (query_score * exp_of(whole) * query_dt)[:, None] * columns * query_x
    return y + sum_rows(weight * x, K.D, K)


@triton.jit
def mix(values, count, raw, steps, mixed, AT, K: tl.constexpr):
    """The state-space sum with its skip at every token, to `mixed`."""
    block = values + tl.program_id(1) * K.PARAMETERS + AT
    raw, steps = of_seed(raw, K.WIDTH, K), of_seed(steps, 2 * K.HEADS, K)
    mixed = of_seed(mixed, K.D, K)
    bits = bits_of(tl.program_id(0), count, K)
    last = token_of(tl.program_id(0), count, K.TOKENS - 1, K)
    query = token_of(tl.program_id(0), count, 0, K)
    x, b, c = silu(convolved(raw, block, bits, K))
    query_in = silu(convolved(raw, block, query, K))
    skip = load_skip(block, K)
    y = x * skip
    scores = dot(c, tl.trans(b))
    if K.LHI:
        query_x, query_b, query_c = query_in
        query_y = query_x * skip
        query_own = tl.sum(query_c * query_b, 1)
        their_x = rows_to_bits(query_x, K.D, K)
        query_score = tl.sum(c * rows_to_bits(query_b, K.STATE, K), 1)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns = head_columns(h, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        dt, _ = load_dt(steps, h, bits, K)
        last_dt, _ = load_dt(steps, h, last, K)
        total, _ = totals(dt, last_dt, a, K)
        y += dot(scores * decay(total, K), x * dt[:, None] * columns)
        if K.LHI:
            query_dt, _ = load_dt(steps, h, query, K)
            weight = exp_of(tl.reshape(total, [K.GROUP * K.SPAN])) * to_bits(query_dt, K)
            y += (query_score * weight)[:, None] * columns * their_x
            query_y += (query_own * query_dt)[:, None] * columns * query_x
    store_rows(mixed, bits, y, K.D, K.D, K)
    if K.LHI:
        store_rows(mixed, query, query_y, K.D, K.D, K)
    last_in = silu(convolved(raw, block, last, K))
    last_y = mix_last(steps, block, bits, last, query, x, b, last_in, query_in, K)
    store_rows(mixed, last, last_y, K.D, K.D, K)
