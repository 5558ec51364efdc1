"""Mamba2's state-space sum backward, and the turn at the loss: the last block's sum at the last
token alone, the model's head, and back. Tiles and names as in `mamba2_mix.py`.

A weight is a score times a decay: its gradient times the decay is the score's, and times the weight
that of the decay's exponent, a difference of totals of dt A.
"""

import triton
import triton.language as tl

from ithbit.kernels.embedding import add_positions
from ithbit.kernels.mamba2_mix import (
    bits_of,
    convolved,
    decay,
    exp_of,
    head_columns,
    load_dt,
    load_skip,
    mix_last,
    rows_to_bits,
    silu,
    sum_bits,
    sum_rows,
    to_bits,
    token_of,
    totals,
)
from ithbit.kernels.mamba2_tile import (
    add_matrix,
    add_vector,
    gate_back,
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
    cross_entropy,
    dot,
    draw_bit,
    draw_index,
    load_embedding,
    load_matrix,
    load_transposed,
    load_vector,
    token_features,
)


@triton.jit
def _times(x, matrix):
    """x @ matrix for fewer rows than a product of tiles takes."""
    return tl.sum(x[:, :, None] * matrix[None, :, :], 1)


@triton.jit
def _store_slopes(slopes, place, before, x, b, c, USED: tl.constexpr, K: tl.constexpr):
    """Leave the gradients of x, B and C before the silu; 0 for a C that was not USED."""
    store_rows(slopes + K.D, place, x * silu_slope(before[0]), K.D, K.WIDTH, K)
    store_rows(slopes + 2 * K.D, place, b * silu_slope(before[1]), K.STATE, K.WIDTH, K)
    if USED:
        c *= silu_slope(before[2])
    store_rows(slopes + 2 * K.D + K.STATE, place, c, K.STATE, K.WIDTH, K)


@triton.jit
def _bits_back(
    raw, steps, d_mixed, slopes, d_steps, d_totals, block, bits, K: tl.constexpr
):  # fmt: skip
    """What the outputs at bits give to the gradients of what bits put in: of x, B, C after the silu
    to `slopes`, of dt to `d_steps`, of the totals to `d_totals`. Returns what they give to skip."""
    x, b, c = silu(convolved(raw, block, bits, K))
    dy = load_rows(d_mixed, bits, K.D, K.D, K)
    d_skip = tl.sum(dy * x, 0)
    dx = dy * load_skip(block, K)
    scores = dot(c, tl.trans(b))
    d_scores = tl.full([K.GROUP * K.SPAN, K.GROUP * K.SPAN], 0, tl.float32)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns = head_columns(h, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        dt, _ = load_dt(steps, h, bits, K)
        total = tl.cumsum(tl.reshape(dt.to(tl.float64) * a, [K.GROUP, K.SPAN]), 1)
        seen = decay(total, K)
        d_values = dot(tl.trans(scores * seen), dy) * columns
        dx += d_values * dt[:, None]
        d_weights = dot(dy, tl.trans(x * dt[:, None] * columns)) * seen
        d_scores += d_weights
        d_weights *= scores
        at = row_number(bits, K) * K.HEADS + h
        d_total = tl.sum(d_weights, 1) - tl.sum(d_weights, 0)
        tl.store(d_totals + at, d_total, mask=bits[2])
        tl.store(d_steps + at, tl.sum(d_values * x, 1), mask=bits[2])
    store_rows(slopes + K.D, bits, dx, K.D, K.WIDTH, K)
    db, dc = dot(tl.trans(d_scores), c), dot(d_scores, b)
    store_rows(slopes + 2 * K.D, bits, db, K.STATE, K.WIDTH, K)
    store_rows(slopes + 2 * K.D + K.STATE, bits, dc, K.STATE, K.WIDTH, K)
    return d_skip


@triton.jit
def _mix_back(
    steps, slopes, d_steps, d_totals, block, share, bits, last, query, before, last_before,
    query_before, d_mixed, last_dy, d_skip, again, ALL: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The gradients of the sum's inputs to `slopes` and `d_steps`, from those of its outputs; and
    the shares of a_log and skip. With ALL, on top of what `_bits_back` left; without, neither bits
    nor query were asked for their output."""
    x, b, c = silu(before)
    last_x, last_b, last_c = silu(last_before)
    their_c, their_dy = rows_to_bits(last_c, K.STATE, K), rows_to_bits(last_dy, K.D, K)
    score, d_score = tl.sum(their_c * b, 1), tl.full([K.GROUP * K.SPAN], 0, tl.float32)
    own, d_own = tl.sum(last_c * last_b, 1), tl.full([K.GROUP], 0, tl.float32)
    skip = load_skip(block, K)
    last_dx = last_dy * skip
    d_skip += tl.sum(last_dy * last_x, 0)
    d_a = tl.full([K.HEADS], 0, tl.float32)
    weight = tl.full([K.GROUP * K.SPAN, K.D], 0, tl.float32)
    if K.LHI:
        query_x, query_b, query_c = silu(query_before)
        query_dx = tl.full([K.GROUP, K.D], 0, tl.float32)
        query_score, d_query_score = tl.sum(last_c * query_b, 1), tl.full([K.GROUP], 0, tl.float32)
        if ALL:
            dy = load_rows(d_mixed, bits, K.D, K.D, K)
            query_dy = load_rows(d_mixed, query, K.D, K.D, K)
            query_dx += query_dy * skip
            d_skip += tl.sum(query_dy * query_x, 0)
            query_own, d_query_own = tl.sum(query_c * query_b, 1), query_score * 0.0
            their_x, their_b = rows_to_bits(query_x, K.D, K), rows_to_bits(query_b, K.STATE, K)
            asked, d_asked = tl.sum(c * their_b, 1), d_score
            asked_weight = weight
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        columns = head_columns(h, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        dt, slope = load_dt(steps, h, bits, K)
        last_dt, last_slope = load_dt(steps, h, last, K)
        total, whole = totals(dt, last_dt, a, K)
        # The last token and the bits it sees.
        to_last = tl.reshape(exp_of(whole[:, None] - total), [K.GROUP * K.SPAN])
        along = tl.sum(their_dy * x * columns, 1)
        weight += (score * to_last * dt)[:, None] * columns
        d_score += to_last * dt * along
        d_dt = score * to_last * along
        d_total = -d_dt * dt
        d_whole = sum_bits(d_dt * dt, K)
        along = tl.sum(last_dy * last_x * columns, 1)
        last_dx += (own * last_dt)[:, None] * columns * last_dy
        d_own += last_dt * along
        d_last_dt = own * along
        at = row_number(bits, K) * K.HEADS + h
        if ALL:
            d_dt += tl.load(d_steps + at, mask=bits[2], other=0.0)
            d_total += tl.load(d_totals + at, mask=bits[2], other=0.0)
        if K.LHI:
            query_dt, query_slope = load_dt(steps, h, query, K)
            along = exp_of(whole) * tl.sum(last_dy * query_x * columns, 1)
            query_dx += (query_score * exp_of(whole) * query_dt)[:, None] * columns * last_dy
            d_query_score += query_dt * along
            d_query_dt = query_score * along
            d_whole += d_query_dt * query_dt
            if ALL:
                from_query = exp_of(tl.reshape(total, [K.GROUP * K.SPAN]))
                their_dt = to_bits(query_dt, K)
                along = from_query * tl.sum(dy * their_x * columns, 1)
                asked_weight += (asked * from_query * their_dt)[:, None] * columns
                d_asked += their_dt * along
                d_query_dt += sum_bits(asked * along, K)
                d_total += asked * along * their_dt
                along = tl.sum(query_dy * query_x * columns, 1)
                query_dx += (query_own * query_dt)[:, None] * columns * query_dy
                d_query_own += query_dt * along
                d_query_dt += query_own * along
            to = d_steps + row_number(query, K) * K.HEADS + h
            tl.store(to, d_query_dt * query_slope, mask=query[2])
        # dt A is in the totals of its own token and of all later ones of its sequence.
        d_term = tl.reshape(d_total.to(tl.float64), [K.GROUP, K.SPAN])
        d_term = tl.cumsum(d_term, 1, reverse=True) + d_whole.to(tl.float64)[:, None]
        d_term = tl.reshape(d_term.to(tl.float32), [K.GROUP * K.SPAN])
        d_head = (tl.sum(d_term * dt, 0) + tl.sum(d_whole * last_dt, 0)) * a
        d_a = tl.where(tl.arange(0, K.HEADS) == h, d_head, d_a)
        tl.store(d_steps + at, (d_term * a + d_dt) * slope, mask=bits[2])
        to = d_steps + row_number(last, K) * K.HEADS + h
        tl.store(to, (d_whole * a + d_last_dt) * last_slope, mask=last[2])
    add_vector(share + K.A_LOG, d_a, again, K.HEADS)
    d_skip = tl.sum(tl.reshape(d_skip, [K.HEADS, K.D // K.HEADS]), 1)
    add_vector(share + K.SKIP, d_skip, again, K.HEADS)
    last_dc = sum_rows(d_score[:, None] * b, K.STATE, K) + d_own[:, None] * last_b
    if K.LHI:
        last_dc += d_query_score[:, None] * query_b
        query_db = d_query_score[:, None] * last_c
        query_dc = tl.full([K.GROUP, K.STATE], 0, tl.float32)
        if ALL:
            query_dx += sum_rows(asked_weight * dy, K.D, K)
            query_db += sum_rows(d_asked[:, None] * c, K.STATE, K) + d_query_own[:, None] * query_c
            query_dc += d_query_own[:, None] * query_b
        _store_slopes(slopes, query, query_before, query_dx, query_db, query_dc, ALL, K)
    _store_slopes(slopes, last, last_before, last_dx, d_own[:, None] * last_c, last_dc, True, K)
    dx, db = weight * their_dy, d_score[:, None] * their_c
    dc = tl.full([K.GROUP * K.SPAN, K.STATE], 0, tl.float32)
    if ALL:
        dx += load_rows(slopes + K.D, bits, K.D, K.WIDTH, K)
        db += load_rows(slopes + 2 * K.D, bits, K.STATE, K.WIDTH, K)
        dc += load_rows(slopes + 2 * K.D + K.STATE, bits, K.STATE, K.WIDTH, K)
        if K.LHI:
            dc += d_asked[:, None] * their_b
    _store_slopes(slopes, bits, before, dx, db, dc, ALL, K)


@triton.jit
def mix_back(
    values, count, raw, steps, d_mixed, slopes, d_steps, d_totals, partials, PROGRAMS, AT,
    K: tl.constexpr,
):  # fmt: skip
    """`mix` backward, from `d_mixed`; in two parts, which keep to the registers there are."""
    block = values + tl.program_id(1) * K.PARAMETERS + AT
    raw, steps = of_seed(raw, K.WIDTH, K), of_seed(steps, 2 * K.HEADS, K)
    slopes, d_mixed = of_seed(slopes, K.WIDTH, K), of_seed(d_mixed, K.D, K)
    d_steps, d_totals = of_seed(d_steps, K.HEADS, K), of_seed(d_totals, K.HEADS, K)
    share = share_of_program(partials, PROGRAMS, K) + AT
    for turn in tl.range(0, K.TILES, num_stages=1, disable_licm=True):
        tile = tl.program_id(0) * K.TILES + turn
        bits = bits_of(tile, count, K)
        last, query = token_of(tile, count, K.TOKENS - 1, K), token_of(tile, count, 0, K)
        d_skip = _bits_back(raw, steps, d_mixed, slopes, d_steps, d_totals, block, bits, K)
        # What the part above left is read again, and what the tile before added.
        tl.debug_barrier()
        before, last_before = convolved(raw, block, bits, K), convolved(raw, block, last, K)
        query_before = convolved(raw, block, query, K)
        last_dy = load_rows(d_mixed, last, K.D, K.D, K)
        _mix_back(
            steps, slopes, d_steps, d_totals, block, share, bits, last, query, before, last_before,
            query_before, d_mixed, last_dy, d_skip, turn > 0, True, K,
        )  # fmt: skip


@triton.jit
def finish(
    values, keys, first, count, waves, stream, raw, steps, slopes, d_steps, grads, results,
    partials, PROGRAMS, AT, BOTTOM: tl.constexpr, TRAIN: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The last block's sum and output at the last token, and the logits to `results`; or, to train,
    the losses there, and the gradients back through the sum."""
    seed = tl.program_id(1)
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    start = tl.load(first + seed)
    values += seed * K.PARAMETERS
    block = values + AT
    stream, grads = of_seed(stream, K.D, K), of_seed(grads, K.D, K)
    raw, steps = of_seed(raw, K.WIDTH, K), of_seed(steps, 2 * K.HEADS, K)
    slopes, d_steps = of_seed(slopes, K.WIDTH, K), of_seed(d_steps, K.HEADS, K)
    share = share_of_program(partials, PROGRAMS, K)
    for turn in tl.range(0, K.TILES, num_stages=1, disable_licm=True):
        again = turn > 0
        tl.debug_barrier()  # what the tile before added is read again
        tile = tl.program_id(0) * K.TILES + turn
        bits = bits_of(tile, count, K)
        last, query = token_of(tile, count, K.TOKENS - 1, K), token_of(tile, count, 0, K)
        example = start + last[0]
        before, last_before = convolved(raw, block, bits, K), convolved(raw, block, last, K)
        query_before = convolved(raw, block, query, K)
        x, b, _ = silu(before)
        last_in, query_in = silu(last_before), silu(query_before)
        y = mix_last(steps, block, bits, last, query, x, b, last_in, query_in, K)
        gate = load_rows(raw, last, K.D, K.WIDTH, K)
        gated, gated_inverse = rms(y * gate * sigmoid(gate), K.D)
        gained = gated * load_vector(block + K.GATE_NORM, K.D)
        if BOTTOM:
            token = token_features(key, example, last[1], K.N, K.LHI, K.WORDS)
            ENCODING: tl.constexpr = K.ENCODING
            out = _times(
                token, load_embedding(values, K.POSITIONS, 0, K.D, ENCODING == "polynomial", False)
            )
            out = add_positions(out, values, K.POSITIONS, waves, last[1], K.D, ENCODING)
        else:
            out = load_rows(stream, last, K.D, K.D, K)
        out += _times(gained, load_transposed(block + K.OUT, K.D, K.D))
        normal, inverse = rms(out, K.D)
        gain, head = load_vector(values + K.LEAVE, K.D), load_vector(values + K.HEAD, K.D)
        logit = tl.sum(normal * gain * head, 1) + tl.load(values + K.HEAD + K.D)
        result = results + seed * K.CAPACITY + last[0]
        if TRAIN:
            asked = draw_index(key, example, K.N, K.WORDS)
            loss, slope = cross_entropy(logit, draw_bit(key, example, asked, K.WORDS))
            tl.store(result, loss, mask=last[2])
            slope = tl.where(last[2], slope / count, 0.0)[:, None]
            add_vector(share + K.LEAVE, tl.sum(slope * head * normal, 0), again, K.D)
            add_vector(share + K.HEAD, tl.sum(slope * gain * normal, 0), again, K.D)
            add_vector(share + K.HEAD + K.D, tl.sum(slope, 0), again, 1)
            grad = rms_back(slope * head * gain, normal, inverse, K.D)
            store_rows(grads, last, grad, K.D, K.D, K)
            d_weight = tl.sum(grad[:, :, None] * gained[:, None, :], 0)
            add_matrix(share + AT + K.OUT, d_weight, again, K.D, K.D, K.D)
            d_gained = _times(grad, load_matrix(block + K.OUT, K.D, K.D))
            add_vector(share + AT + K.GATE_NORM, tl.sum(d_gained * gated, 0), again, K.D)
            last_dy, d_gate = gate_back(d_gained, y, gate, gated, gated_inverse, block, K)
            store_rows(slopes, last, d_gate, K.D, K.WIDTH, K)
            none = tl.full([K.GROUP * K.SPAN, K.D], 0, tl.float32)
            store_rows(slopes, bits, none, K.D, K.WIDTH, K)
            if K.LHI:
                store_rows(slopes, query, tl.full([K.GROUP, K.D], 0, tl.float32), K.D, K.WIDTH, K)
            d_skip = tl.full([K.D], 0, tl.float32)
            _mix_back(
                steps, slopes, d_steps, d_steps, block, share + AT, bits, last, query, before,
                last_before, query_before, grads, last_dy, d_skip, again, False, K,
            )  # fmt: skip
        else:
            tl.store(result, logit, mask=last[2])
