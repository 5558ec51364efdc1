"""Mamba2's parts that act on each token separately, forward and backward: rows are the tokens of
all sequences of a run, in any order.

A block's output and the next block's input projection are one launch, and so are their gradients.
The convolution's gradient is here too: it reads the rows of later tokens, which a mixing launch
stored. The backward pass from the bottom block to the embedding is in `first_block.py`.
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import stream_of
from ithbit.kernels.embedding import embedded
from ithbit.kernels.mamba2.tile import (
    TAPS,
    gate_back,
    load_rows,
    of_seed,
    rms,
    rms_back,
    row_number,
    share_of_program,
    sigmoid,
    softplus,
    store_rows,
)
from ithbit.kernels.tile import (
    FEATURES,
    SIZES,
    along_rows,
    dot,
    load_matrix,
    load_transposed,
    load_vector,
    matrix_at,
    put_matrix,
    put_vector,
    put_where,
    rows_of,
    so_far,
    token_features,
)


@triton.jit
def _rows_tails_first(tile, count, ROWS: tl.constexpr, K: tl.constexpr):
    """The place of a tile's rows, with the tails of all sequences before their other tokens."""
    row = tile * ROWS + tl.arange(0, ROWS)
    example, token = row // K.TAIL, K.TOKENS - K.TAIL + row % K.TAIL
    if K.TOKENS > K.TAIL:
        other = row - K.CAPACITY * K.TAIL
        example = tl.where(other < 0, example, other // (K.TOKENS - K.TAIL))
        token = tl.where(other < 0, token, other % (K.TOKENS - K.TAIL))
    return example, token, example < count


@triton.jit
def load_in(block, K: tl.constexpr):
    """The input projection without the rows of dt, padded with zeros: WIDE D."""
    r = tl.arange(0, K.WIDE)[:, None]
    at = block + K.IN + r * K.D + tl.arange(0, K.D)[None, :]
    return tl.load(at, mask=r < K.WIDTH, other=0.0)


@triton.jit(do_not_specialize=SIZES)
def project(
    values, keys, first, count, waves, bits, before, raw_before, mixed, stream, raw, steps,
    PARAMETERS, BEFORE, AT, BOTTOM: tl.constexpr, CUTS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The input of the block at AT, to `stream`: at the BOTTOM the embedded tokens, whose bits are
    stored too (0 if a token is not a bit), else the output of the block BEFORE. Its projections:
    gate, x, B, C to `raw`, dt and its slope to `steps`."""
    seed = tl.program_id(1)
    values += seed * PARAMETERS
    block = values + AT
    place = rows_of(tl.program_id(0), count, K.TOKENS, K.ROWS)
    if BOTTOM:
        key, start = stream_of(keys, first, seed)
        features = token_features(key, start + place[0], place[1], K.N, K.LHI, K.WORDS, CUTS)
        # The feature in column 3 is the bit.
        bit = tl.sum(tl.where(tl.arange(0, FEATURES)[None, :] == 3, features, 0.0), 1)
        tl.store(of_seed(bits, 1, K) + row_number(place, K), bit, mask=place[2])
        ENCODING: tl.constexpr = K.ENCODING
        x = embedded(features, values, K.POSITIONS, 0, waves, place[1], K.D, ENCODING, False)
    else:
        under = values + BEFORE
        x = load_rows(of_seed(before, K.D, K), place, K.D, K.D, K)
        y = load_rows(of_seed(mixed, K.D, K), place, K.D, K.D, K)
        gate = load_rows(of_seed(raw_before, K.WIDTH, K), place, K.D, K.WIDTH, K)
        normal, _ = rms(y * gate * sigmoid(gate), K.D)
        normal *= load_vector(under + K.GATE_NORM, K.D)
        x += dot(normal, load_transposed(under + K.OUT, K.D, K.D))
    store_rows(of_seed(stream, K.D, K), place, x, K.D, K.D, K)
    normal, _ = rms(x, K.D)
    normal *= load_vector(block, K.D)
    c = tl.arange(0, K.WIDE)[None, :]
    at = (row_number(place, K) * K.WIDTH)[:, None] + c
    live = place[2][:, None] & (c < K.WIDTH)
    projected = dot(along_rows(normal), tl.trans(along_rows(load_in(block, K))))
    tl.store(of_seed(raw, K.WIDTH, K) + at, projected, mask=live)
    to = of_seed(steps, 2 * K.HEADS, K) + row_number(place, K) * (2 * K.HEADS)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        weight = load_vector(block + K.IN + (K.WIDTH + h) * K.D, K.D)
        dt, slope = softplus(tl.sum(normal * weight, 1) + tl.load(block + K.DT_BIAS + h))
        tl.store(to + h, dt, mask=place[2])
        tl.store(to + K.HEADS + h, slope, mask=place[2])


@triton.jit
def _ahead(place, AHEAD: tl.constexpr, LAST: tl.constexpr, K: tl.constexpr):
    """The place of the tokens AHEAD positions after these; if LAST, only where that is the last."""
    token = place[1] + AHEAD
    if LAST:
        return place[0], token, place[2] & (token == K.TOKENS - 1)
    return place[0], token, place[2] & (token < K.TOKENS)


@triton.jit
def _load_columns(at, LAST: tl.constexpr, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The slopes of SIZE of the projected columns from FROM on, only at the LAST tokens or at all,
    and the convolution's input."""
    slopes, raw, _, _, place, _ = at
    d_raw = load_rows(slopes + FROM, _ahead(place, 0, LAST, K), SIZE, K.WIDTH, K)
    return d_raw, load_rows(raw + FROM, place, SIZE, K.WIDTH, K)


@triton.jit
def _convolution_back(
    loaded, at, LAST: tl.constexpr, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The slopes of loaded columns before the convolution; also stores its shares."""
    slopes, _, block, share, place, again = at
    d_raw, value = loaded
    conv, conv_share = block + (K.CONV + FROM - K.D), share + (K.CONV + FROM - K.D)
    END: tl.constexpr = (TAPS - 1) * K.CONV_DIM
    c = tl.arange(0, SIZE)
    to_bias = share + (K.CONV_BIAS + FROM - K.D) + c
    before = (so_far(to_bias, again), so_far(conv_share + END + c, again))
    later = ()
    for tap in tl.static_range(TAPS - 1):
        ahead = _ahead(place, TAPS - 1 - tap, LAST, K)
        later += (load_rows(slopes + FROM, ahead, SIZE, K.WIDTH, K),)  # type: ignore[assignment]
        share_sum = so_far(conv_share + tap * K.CONV_DIM + c, again)
        before += (share_sum,)  # type: ignore[assignment]
    tl.store(to_bias, before[0] + tl.sum(d_raw, 0))
    tl.store(conv_share + END + c, before[1] + tl.sum(d_raw * value, 0))
    d_raw *= load_vector(conv + END, SIZE)
    for tap in tl.static_range(TAPS - 1):
        share_sum = tl.sum(later[tap] * value, 0)
        tl.store(conv_share + tap * K.CONV_DIM + c, before[2 + tap] + share_sum)
        d_raw += later[tap] * load_vector(conv + tap * K.CONV_DIM, SIZE)
    return d_raw


@triton.jit
def _columns_back(gained, d_raw, at, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """Gradient of the `gained` rows through SIZE of the projected columns from FROM on; also stores
    the shares of those columns. A part of the columns at a time, to save registers."""
    _, _, block, share, _, again = at
    to_weight = matrix_at(share + (K.IN + FROM * K.D), SIZE, K.D)
    before = so_far(to_weight, again)
    weight = load_matrix(block + (K.IN + FROM * K.D), SIZE, K.D)
    tl.store(to_weight, before + dot(tl.trans(d_raw), gained))
    return dot(d_raw, weight)


@triton.jit
def load_steps(d_steps, place, K: tl.constexpr):
    """What tokens contribute to dt, by head; then to dt_bias, a_log and skip: row STEPS."""
    start = d_steps + row_number(place, K) * (3 * K.HEADS)
    by_head = ()
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        by_head += (tl.load(start + h, mask=place[2], other=0.0),)  # type: ignore[assignment]
    c = tl.arange(0, K.STEPS)[None, :]
    live = place[2][:, None] & (c < 3 * K.HEADS)
    return by_head, tl.load(start[:, None] + c, mask=live, other=0.0)


@triton.jit
def input_back(
    d_gained, gained, normal, inverse, gain, steps, block, share, again, K: tl.constexpr
):
    """Gradient of a block's input from that of its `gained` rows, to which dt's is added; also
    stores the shares of dt's projection, of dt_bias, a_log and skip, and of the norm."""
    by_head, by_token = steps
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        at = K.IN + (K.WIDTH + h) * K.D
        d_dt = by_head[h][:, None]
        d_gained += d_dt * load_vector(block + at, K.D)
        put_vector(share + at, tl.sum(d_dt * gained, 0), again, K.D)
    c = tl.arange(0, K.STEPS)
    total = tl.sum(by_token.to(tl.float64), 0)  # in double: only a few sums, but their terms cancel
    put_where(c < 3 * K.HEADS, share + K.DT_BIAS + c, total.to(tl.float32), again)
    put_vector(share, tl.sum(d_gained * normal, 0), again, K.D)
    return rms_back(d_gained * gain, normal, inverse, K.D)


@triton.jit
def _project_back(
    x, slopes, d_steps, raw, block, share, place, again, whole, TOP: tl.constexpr, K: tl.constexpr
):
    """Gradient of a block's input, except through the residual, from `slopes`; also stores its
    shares.

    The TOP block's gates and Cs count only at the last token, so only tiles with tails are taken
    `whole`. In other blocks all tiles are; the branch serves them too, as it keeps the compiler
    from loading all columns at once, which takes more registers than there are.
    """
    at = slopes, raw, block, share, place, again
    B: tl.constexpr = 2 * K.D
    C: tl.constexpr = 2 * K.D + K.STATE
    loaded = _load_columns(at, False, K.D, K.D, K)
    d_raw = _convolution_back(loaded, at, False, K.D, K.D, K)
    loaded = _load_columns(at, False, B, K.STATE, K)
    normal, inverse = rms(x, K.D)
    gain = load_vector(block, K.D)
    gained = normal * gain
    d_gained = _columns_back(gained, d_raw, at, K.D, K.D, K)
    d_raw = _convolution_back(loaded, at, False, B, K.STATE, K)
    d_gained += _columns_back(gained, d_raw, at, B, K.STATE, K)
    if whole:
        loaded = _load_columns(at, TOP, C, K.STATE, K)
        d_raw = load_rows(slopes, _ahead(place, 0, TOP, K), K.D, K.WIDTH, K)
        d_gained += _columns_back(gained, d_raw, at, 0, K.D, K)
        d_raw = _convolution_back(loaded, at, TOP, C, K.STATE, K)
        d_gained += _columns_back(gained, d_raw, at, C, K.STATE, K)
    steps = load_steps(d_steps, place, K)
    return input_back(d_gained, gained, normal, inverse, gain, steps, block, share, again, K)


@triton.jit(do_not_specialize=SIZES)
def project_back(
    values, count, stream, raw, slopes, d_steps, grads, raw_before, mixed, slopes_before, d_mixed,
    partials, PROGRAMS, PARAMETERS, BEFORE, AT, TOP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """`project` backward: turns `grads` from the gradient of the output of the block at AT into
    that of its input, and computes `d_mixed` and the gradient of the gate of the block BEFORE."""
    seed = tl.program_id(1)
    values += seed * PARAMETERS
    block, under = values + AT, values + BEFORE
    share = share_of_program(partials, PROGRAMS, PARAMETERS)
    raw, slopes, d_steps = (
        of_seed(raw, K.WIDTH, K),
        of_seed(slopes, K.WIDTH, K),
        of_seed(d_steps, 3 * K.HEADS, K),
    )
    grads = of_seed(grads, K.D, K)
    for turn in tl.range(0, K.BACK_TILES, num_stages=1, disable_licm=True):
        tl.debug_barrier()  # what the previous tile added is read again
        # Strided, which spreads the tails: they are all in the first tiles.
        tile = tl.program_id(0) + turn * tl.num_programs(0)
        whole = tile * K.BACK_ROWS < K.CAPACITY * (K.TAIL if TOP else K.TOKENS)
        if TOP:
            place = _rows_tails_first(tile, count, K.BACK_ROWS, K)
        else:
            place = rows_of(tile, count, K.TOKENS, K.BACK_ROWS)
        x = load_rows(of_seed(stream, K.D, K), place, K.D, K.D, K)
        grad = _project_back(
            x, slopes, d_steps, raw, block, share + AT, place, turn, whole, TOP, K
        )  # fmt: skip
        # The top block was computed only at the last token.
        has_grad = place[2]
        if TOP:
            has_grad = has_grad & (place[1] == K.TOKENS - 1)
        # All remaining loads before any store: no load is moved ahead of a store.
        y = load_rows(of_seed(mixed, K.D, K), place, K.D, K.D, K)
        gate = load_rows(of_seed(raw_before, K.WIDTH, K), place, K.D, K.WIDTH, K)
        grad += load_rows(grads, (place[0], place[1], has_grad), K.D, K.D, K)
        store_rows(grads, place, grad, K.D, K.D, K)
        normal, inverse = rms(y * gate * sigmoid(gate), K.D)
        gain = load_vector(under + K.GATE_NORM, K.D)
        d_gained = dot(grad, load_matrix(under + K.OUT, K.D, K.D))
        d_weight = dot(tl.trans(grad), normal * gain)
        put_matrix(share + BEFORE + K.OUT, d_weight, turn, K.D, K.D)
        put_vector(share + BEFORE + K.GATE_NORM, tl.sum(d_gained * normal, 0), turn, K.D)
        d_y, d_gate = gate_back(d_gained, y, gate, normal, inverse, under, K)
        store_rows(of_seed(d_mixed, K.D, K), place, d_y, K.D, K.D, K)
        store_rows(of_seed(slopes_before, K.WIDTH, K), place, d_gate, K.D, K.WIDTH, K)
