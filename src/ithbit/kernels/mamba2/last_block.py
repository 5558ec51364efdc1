"""Mamba2's last block from its sum on: only at the last token, then the model's head, the loss, and
back through the sum.

A tile is the bits of a few sequences, each padded to a power of two rows. The tokens that are not
bits are kept apart, one row per sequence: the last token sees every bit, which costs one number per
bit, and in LHI the query. Names: x, b, c belong to the bits; with last_ or query_ to those tokens
(one row per sequence); with their_ to the last token, repeated for each bit (one row per bit).
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import stream_of
from ithbit.kernels.mamba2.tile import (
    convolve,
    exp,
    gate_back,
    head_columns,
    load_rate,
    load_rows,
    of_seed,
    rms,
    rms_back,
    row_number,
    share_of_program,
    sigmoid,
    silu_slope,
    store_rows,
)
from ithbit.kernels.tile import (
    SIZES,
    load_matrix,
    load_transposed,
    load_vector,
    loss_of,
    put_matrix,
    put_vector,
)


@triton.jit
def _bits_of(tile, count, K: tl.constexpr):
    """The place of a tile's bits."""
    r = tl.arange(0, K.GROUP * K.SPAN)
    example, i = tile * K.GROUP + r // K.SPAN, r % K.SPAN
    return example, i + K.LHI, (example < count) & (i < K.N)


@triton.jit
def _token_of(tile, count, TOKEN: tl.constexpr, K: tl.constexpr):
    """The place of one token of a tile's sequences."""
    example = tile * K.GROUP + tl.arange(0, K.GROUP)
    return example, tl.full([K.GROUP], TOKEN, tl.int32), example < count


@triton.jit
def _rows_to_bits(x, SIZE: tl.constexpr, K: tl.constexpr):
    x = tl.broadcast_to(x[:, None, :], [K.GROUP, K.SPAN, SIZE])
    return tl.reshape(x, [K.GROUP * K.SPAN, SIZE])


@triton.jit
def _sum_rows(x, SIZE: tl.constexpr, K: tl.constexpr):
    return tl.sum(tl.reshape(x, [K.GROUP, K.SPAN, SIZE]), 1)


@triton.jit
def _convolved(raw, block, place, K: tl.constexpr):
    """x, B and C before the silu."""
    x = convolve(raw, block, place, 0, K.D, K)
    b = convolve(raw, block, place, K.D, K.STATE, K)
    return x, b, convolve(raw, block, place, K.D + K.STATE, K.STATE, K)


@triton.jit
def _silu(before):
    x, b, c = before
    return x * sigmoid(x), b * sigmoid(b), c * sigmoid(c)


@triton.jit
def _load_dt(steps, h, place, K: tl.constexpr):
    """dt of head h, 0 where not valid, and its slope by the argument of the softplus."""
    at = steps + row_number(place, K) * (2 * K.HEADS) + h
    dt = tl.load(at, mask=place[2], other=0.0)
    return dt, tl.load(at + K.HEADS, mask=place[2], other=0.0)


@triton.jit
def _exp_of(total):
    high = total.to(tl.float32)
    return exp(high, (total - high.to(tl.float64)).to(tl.float32))


@triton.jit
def _load_head(steps, block, bits, last, h, K: tl.constexpr):
    """Of head h: 1 in its columns, else 0 (1 D); A; dt of the bits and of the last token, each with
    its slope; the sum of dt A from the first bit to the last token (GROUP, in double); and the
    decay from each bit to the last token."""
    columns = tl.where(head_columns(K) == h, 1.0, 0.0)
    a = load_rate(block, h, K)
    dt, slope = _load_dt(steps, h, bits, K)
    last_dt, last_slope = _load_dt(steps, h, last, K)
    terms = tl.reshape(dt.to(tl.float64) * a, [K.GROUP, K.SPAN])
    total, full_sum = tl.cumsum(terms, 1), tl.sum(terms, 1) + last_dt.to(tl.float64) * a
    to_last = tl.reshape(_exp_of(full_sum[:, None] - total), [K.GROUP * K.SPAN])
    return columns, a, dt, slope, last_dt, last_slope, full_sum, to_last


@triton.jit
def _load_skip(block, K: tl.constexpr):
    return tl.load(block + K.SKIP + head_columns(K))


@triton.jit
def _mix_last(steps, block, bits, last, query, x, b, last_in, query_in, K: tl.constexpr):
    """The state-space sum with its skip at the last token of each sequence: GROUP D. RHI ignores
    the query arguments: its query is the last token."""
    last_x, last_b, last_c = last_in
    score = tl.sum(_rows_to_bits(last_c, K.STATE, K) * b, 1)
    own = tl.sum(last_c * last_b, 1)
    y = last_x * _load_skip(block, K)
    if K.LHI:
        query_x, query_b, _ = query_in
        query_score = tl.sum(last_c * query_b, 1)
    weight = tl.full([K.GROUP * K.SPAN, K.D], 0, tl.float32)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns, _, dt, _, last_dt, _, full_sum, to_last = _load_head(
            steps, block, bits, last, h, K
        )
        weight += (score * to_last * dt)[:, None] * columns
        y += (own * last_dt)[:, None] * columns * last_x
        if K.LHI:
            query_dt, _ = _load_dt(steps, h, query, K)
            y += (query_score * _exp_of(full_sum) * query_dt)[:, None] * columns * query_x
    return y + _sum_rows(weight * x, K.D, K)


@triton.jit
def _times(x, matrix):
    """x @ matrix for fewer rows than a tile product needs."""
    return tl.sum(x[:, :, None] * matrix[None, :, :], 1)


@triton.jit
def _store_slopes(slopes, place, before, x, b, K: tl.constexpr):
    """Store the gradients of x and B before the silu."""
    store_rows(slopes + K.D, place, x * silu_slope(before[0]), K.D, K.WIDTH, K)
    store_rows(slopes + 2 * K.D, place, b * silu_slope(before[1]), K.STATE, K.WIDTH, K)


@triton.jit
def _store_steps(d_steps, h, place, d_dt, d_a, d_skip, K: tl.constexpr):
    """Store what tokens contribute to the gradients of dt before the softplus, a_log and skip."""
    at = d_steps + row_number(place, K) * (3 * K.HEADS) + h
    tl.store(at, d_dt, mask=place[2])
    tl.store(at + K.HEADS, d_a, mask=place[2])
    tl.store(at + 2 * K.HEADS, d_skip, mask=place[2])


@triton.jit
def _mix_back(
    steps, slopes, d_steps, block, bits, last, query, before, last_before, query_before, last_dy,
    K: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the sum's inputs in `slopes` and `d_steps`, from that of its output at
    the last token. Other tokens' C and gate have none; their entries are left as they are."""
    x, b, _ = _silu(before)
    last_x, last_b, last_c = _silu(last_before)
    their_c, their_dy = _rows_to_bits(last_c, K.STATE, K), _rows_to_bits(last_dy, K.D, K)
    score, d_score = tl.sum(their_c * b, 1), tl.full([K.GROUP * K.SPAN], 0, tl.float32)
    own, d_own = tl.sum(last_c * last_b, 1), tl.full([K.GROUP], 0, tl.float32)
    last_dx = last_dy * _load_skip(block, K)
    weight = tl.full([K.GROUP * K.SPAN, K.D], 0, tl.float32)
    if K.LHI:
        query_x, query_b, _ = _silu(query_before)
        query_dx = tl.full([K.GROUP, K.D], 0, tl.float32)
        query_score, d_query_score = tl.sum(last_c * query_b, 1), tl.full([K.GROUP], 0, tl.float32)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns, a, dt, slope, last_dt, last_slope, full_sum, to_last = _load_head(
            steps, block, bits, last, h, K
        )
        # The last token and the bits it sees.
        along = tl.sum(their_dy * x * columns, 1)
        weight += (score * to_last * dt)[:, None] * columns
        d_score += to_last * dt * along
        d_dt = score * to_last * along
        # dt A decays what earlier tokens contributed: its gradient is the sum of theirs.
        weighted = tl.reshape(d_dt.to(tl.float64) * dt, [K.GROUP, K.SPAN])
        d_term = tl.cumsum(weighted, 1) - weighted
        d_whole = tl.sum(weighted, 1)
        along = tl.sum(last_dy * last_x * columns, 1)
        last_dx += (own * last_dt)[:, None] * columns * last_dy
        d_own += last_dt * along
        d_last_dt = own * along
        if K.LHI:
            query_dt, query_slope = _load_dt(steps, h, query, K)
            from_query = _exp_of(full_sum) * tl.sum(last_dy * query_x * columns, 1)
            query_dx += (query_score * _exp_of(full_sum) * query_dt)[:, None] * columns * last_dy
            d_query_score += query_dt * from_query
            d_query_dt = query_score * from_query
            d_term += (d_query_dt.to(tl.float64) * query_dt)[:, None]
            d_whole += d_query_dt.to(tl.float64) * query_dt
            none = query_dt * 0.0
            _store_steps(d_steps, h, query, d_query_dt * query_slope, none, none, K)
        d_term = tl.reshape(d_term.to(tl.float32), [K.GROUP * K.SPAN]) * a.to(tl.float32)
        d_whole = d_whole.to(tl.float32) * a.to(tl.float32)
        _store_steps(d_steps, h, bits, (d_term + d_dt) * slope, d_term * dt, dt * 0.0, K)
        d_last_dt = (d_whole + d_last_dt) * last_slope
        _store_steps(d_steps, h, last, d_last_dt, d_whole * last_dt, along, K)
    last_dc = _sum_rows(d_score[:, None] * b, K.STATE, K) + d_own[:, None] * last_b
    if K.LHI:
        last_dc += d_query_score[:, None] * query_b
        query_db = d_query_score[:, None] * last_c
        _store_slopes(slopes, query, query_before, query_dx, query_db, K)
    _store_slopes(slopes, last, last_before, last_dx, d_own[:, None] * last_c, K)
    last_dc *= silu_slope(last_before[2])
    store_rows(slopes + 2 * K.D + K.STATE, last, last_dc, K.STATE, K.WIDTH, K)
    _store_slopes(slopes, bits, before, weight * their_dy, d_score[:, None] * their_c, K)


@triton.jit(do_not_specialize=SIZES)
def finish(
    values, keys, first, count, stream, raw, steps, slopes, d_steps, grads, results,
    partials, PROGRAMS, PARAMETERS, AT,
    TRAIN: tl.constexpr, CUTS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The last block's sum and output at the last token, with logits to `results`; in training the
    losses instead, and the gradients back through the sum."""
    seed = tl.program_id(1)
    key, start = stream_of(keys, first, seed)
    values += seed * PARAMETERS
    HEAD = PARAMETERS - K.D - 1  # last in a row, after the final norm and the unused word
    LEAVE = HEAD - 2 * K.D
    block = values + AT
    stream, grads = of_seed(stream, K.D, K), of_seed(grads, K.D, K)
    raw, steps = of_seed(raw, K.WIDTH, K), of_seed(steps, 2 * K.HEADS, K)
    slopes, d_steps = of_seed(slopes, K.WIDTH, K), of_seed(d_steps, 3 * K.HEADS, K)
    share = share_of_program(partials, PROGRAMS, PARAMETERS)
    for turn in tl.range(0, K.TILES, num_stages=1, disable_licm=True):
        tl.debug_barrier()  # what the previous tile added is read again
        tile = tl.program_id(0) * K.TILES + turn
        bits = _bits_of(tile, count, K)
        last, query = _token_of(tile, count, K.TOKENS - 1, K), _token_of(tile, count, 0, K)
        example = start + last[0]
        before, last_before = _convolved(raw, block, bits, K), _convolved(raw, block, last, K)
        query_before = _convolved(raw, block, query, K)
        gate, out = load_rows(raw, last, K.D, K.WIDTH, K), load_rows(stream, last, K.D, K.D, K)
        x, b, _ = _silu(before)
        last_in, query_in = _silu(last_before), _silu(query_before)
        y = _mix_last(steps, block, bits, last, query, x, b, last_in, query_in, K)
        gated, gated_inverse = rms(y * gate * sigmoid(gate), K.D)
        gained = gated * load_vector(block + K.GATE_NORM, K.D)
        out += _times(gained, load_transposed(block + K.OUT, K.D, K.D))
        normal, inverse = rms(out, K.D)
        gain, head = load_vector(values + LEAVE, K.D), load_vector(values + HEAD, K.D)
        logit = tl.sum(normal * gain * head, 1) + tl.load(values + HEAD + K.D)
        result = results + seed * K.CAPACITY + last[0]
        if TRAIN:
            loss, slope = loss_of(logit, key, example, K.N, K.WORDS, CUTS)
            tl.store(result, loss, mask=last[2])
            slope = tl.where(last[2], slope / count, 0.0)[:, None]
            put_vector(share + LEAVE, tl.sum(slope * head * normal, 0), turn, K.D)
            put_vector(share + HEAD, tl.sum(slope * gain * normal, 0), turn, K.D)
            put_vector(share + HEAD + K.D, tl.sum(slope, 0), turn, 1)
            grad = rms_back(slope * head * gain, normal, inverse, K.D)
            store_rows(grads, last, grad, K.D, K.D, K)
            d_weight = tl.sum(grad[:, :, None] * gained[:, None, :], 0)
            put_matrix(share + AT + K.OUT, d_weight, turn, K.D, K.D)
            d_gained = _times(grad, load_matrix(block + K.OUT, K.D, K.D))
            put_vector(share + AT + K.GATE_NORM, tl.sum(d_gained * gated, 0), turn, K.D)
            last_dy, d_gate = gate_back(d_gained, y, gate, gated, gated_inverse, block, K)
            store_rows(slopes, last, d_gate, K.D, K.WIDTH, K)
            _mix_back(
                steps, slopes, d_steps, block, bits, last, query, before, last_before,
                query_before, last_dy, K,
            )  # fmt: skip
        else:
            tl.store(result, logit, mask=last[2])
