"""The launches of attention that go over the tokens of a run in flat tiles of rows.

Forward `enter_rows` and `block_end`, at the loss `answer_rows`, backward `block_end_back` and
`project_back`. The mixing of tokens comes between them. Below the first mixing the backward pass
goes over the kinds of tokens instead (`first_block.py`).
"""

import triton
import triton.language as tl

from ithbit.kernels.attention.block import (
    block_tail_back,
    feed_forward,
    norm_eps,
    norm_input,
    norm_output,
    param_at,
    project_one,
    projections_back,
    to_feed,
)
from ithbit.kernels.draws import draw_bit, draw_index
from ithbit.kernels.embedding import add_positions
from ithbit.kernels.tile import (
    FEATURES,
    LENGTHS,
    SIZES,
    cross_entropy,
    dot,
    held,
    load_embedding,
    load_vector,
    normalise,
    put_vector,
    store_matrix,
    store_vector,
    token_features,
)


@triton.jit
def _flat(tile, count, TOKENS, D: tl.constexpr, ROWS: tl.constexpr):
    """The tokens of a flat tile: example, position, whether the token exists (all by row), and
    where they lie in (example, token, D)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    return row // TOKENS, row % TOKENS, row < count * TOKENS, at


@triton.jit
def embed(
    features, waves, position, values, positions, enter,
    D: tl.constexpr, SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Embedded tokens, before softmax attention's first LayerNorm."""
    weight = load_embedding(values, positions, enter, D, POSITIONS == "polynomial", SOFTMAX)
    out = dot(features, weight)
    return add_positions(out, values, positions, waves, position, D, POSITIONS)


@triton.jit
def _project(
    x, w, waves, queries, keys, values, example, position, live, at,
    TOKENS, D: tl.constexpr, FF: tl.constexpr,
    SOFTMAX: tl.constexpr, ROTARY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Store queries, keys and values of a block's input; in the last block only the query of the
    last token, in (example, D)."""
    normal = norm_input(x, w, D, FF, SOFTMAX)
    q = project_one(normal, w, waves, position, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    if LAST:
        one = example[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(queries + one, q, mask=(live & (position == TOKENS - 1))[:, None])
    else:
        tl.store(queries + at, q, mask=live[:, None])
    k = project_one(normal, w, waves, position, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    tl.store(keys + at, k, mask=live[:, None])
    v = project_one(normal, w, waves, position, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    tl.store(values + at, v, mask=live[:, None])


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def enter_rows(
    parameters, streams, firsts, count, bits, x, queries, keys, values, waves,
    block, positions, enter, CAPACITY, PARAMETERS,
    N, LHI, WORDS, ROWS: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
    LAST: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Draw and embed the tokens into `x`, and project them for the first block; their bits (0 if a
    token has none) go to `bits`, (seed, token, example)."""
    seed = tl.program_id(1).to(tl.int64)
    TOKENS = N + 1 + LHI
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, D, ROWS)
    key = tl.load(streams + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    features = token_features(key, first + example, position, N, LHI, WORDS, CUTS)
    # The feature in column 3 is the bit: storing it from there saves a second draw.
    column = tl.arange(0, FEATURES)[None, :] - 3
    to = bits + seed * TOKENS * CAPACITY + (position * CAPACITY + example)[:, None] + column
    tl.store(to, features, mask=live[:, None] & (column == 0))
    rows = embed(features, waves, position, parameters, positions, enter, D, SOFTMAX, POSITIONS)
    if SOFTMAX:
        rows, _ = normalise(rows, D, norm_eps(SOFTMAX))
        rows = rows * load_vector(parameters + enter + D, D)
        rows += load_vector(parameters + enter + 2 * D, D)
    tl.store(x + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + block, waves,
        queries + (seed * CAPACITY * D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, D, FF, SOFTMAX, POSITIONS == "rotary", LAST,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def block_end(
    parameters, count, x, mixed, raw, out, queries, keys, values, waves,
    block, next_block, CAPACITY, PARAMETERS,
    TOKENS, ROWS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr,
    SOFTMAX: tl.constexpr, ROTARY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """From mixed values to the block's output, and its projections for the next block; for softmax
    attention `raw` becomes the output before its LayerNorm."""
    seed = tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, D, ROWS)
    before = tl.load(x + shift + at, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + shift + at, mask=live[:, None], other=0.0)
    w = parameters + block
    y, fed, _, _ = to_feed(before, mix, w, D, FF, SOFTMAX)
    rows = feed_forward(y, fed, w, D, FF, SOFTMAX)
    if SOFTMAX:
        tl.store(raw + shift + at, rows, mask=live[:, None])
        rows, _, _ = norm_output(rows, w, D, FF)
    tl.store(out + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + next_block, waves,
        queries + (seed * CAPACITY * D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, D, FF, SOFTMAX, ROTARY, LAST,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def answer_rows(
    parameters, streams, firsts, count, x, mixed, d_mixed, dx, results, partials,
    block, head, PROGRAMS, CAPACITY, PARAMETERS,
    N, TOKENS, WORDS, ROWS: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr, TRAIN: tl.constexpr,
    CUTS: tl.constexpr,
):  # fmt: skip
    """The end of the last block and the head, at the last token: logits into `results`; in training
    the losses instead, the shares of these parameters, and the gradients of `mixed` and input."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    w = parameters + block
    example = tile * ROWS + tl.arange(0, ROWS)
    live = example < count
    d = tl.arange(0, D)[None, :]
    one = seed * CAPACITY * D + example[:, None] * D + d
    last = (seed * CAPACITY + example)[:, None] * (TOKENS * D) + (TOKENS - 1) * D + d
    before = tl.load(x + last, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + one, mask=live[:, None], other=0.0)
    y, fed, normal, inverse = to_feed(before, mix, w, D, FF, SOFTMAX)
    out = feed_forward(y, fed, w, D, FF, SOFTMAX)
    last_normal, last_inverse = normal, inverse
    if SOFTMAX:
        out, last_normal, last_inverse = norm_output(out, w, D, FF)
    weight = load_vector(parameters + head, D)
    logit = tl.sum(out * weight, 1) + tl.load(parameters + head + D)
    result = results + seed * CAPACITY + example
    if TRAIN:
        key = tl.load(streams + seed).to(tl.uint64, bitcast=True)
        number = tl.load(firsts + seed) + example
        index = draw_index(key, number, N, WORDS)
        answer = draw_bit(key, number, index, N, WORDS, CUTS)
        loss, slope = cross_entropy(logit, answer)
        tl.store(result, loss, mask=live)
        slope = tl.where(live, slope / count, 0.0)[:, None]
        share = partials + (seed * PROGRAMS + tile) * PARAMETERS
        put_vector(share + head, tl.sum(slope * out, 0), 0, D)
        tl.store(share + head + D, tl.sum(slope))
        grad, d_mix = block_tail_back(
            slope * weight, mix, w, share + block, 0, fed, normal, inverse, last_normal,
            last_inverse, D, FF, SOFTMAX,
        )  # fmt: skip
        tl.store(d_mixed + one, d_mix, mask=live[:, None])
        tl.store(dx + one, grad, mask=live[:, None])
    else:
        tl.store(result, logit, mask=live)


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def block_end_back(
    parameters, count, x, mixed, raw, dx, d_mixed, partials,
    block, PROGRAMS, CAPACITY, PARAMETERS,
    TOKENS, ROWS: tl.constexpr, TILES: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Backward of `block_end`: `dx` holds the gradient of the output, afterwards that of the input
    through the residual sums; `d_mixed` becomes that of the mixed values."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    weights = parameters + seed * PARAMETERS + block
    shift = seed * CAPACITY * TOKENS * D
    share = partials + (seed * PROGRAMS + program) * PARAMETERS
    for i in range(TILES):
        w = held(weights, i)
        _, _, live, at = _flat(program * TILES + i, count, TOKENS, D, ROWS)
        at += shift
        before = tl.load(x + at, mask=live[:, None], other=0.0)
        mix = tl.load(mixed + at, mask=live[:, None], other=0.0)
        grad = tl.load(dx + at, mask=live[:, None], other=0.0)
        out = tl.load(raw + at, mask=live[:, None], other=0.0) if SOFTMAX else grad
        _, fed, normal, inverse = to_feed(before, mix, w, D, FF, SOFTMAX)
        last_normal, last_inverse = normal, inverse
        if SOFTMAX:
            _, last_normal, last_inverse = norm_output(out, w, D, FF)
        grad, d_mix = block_tail_back(
            grad, mix, w, share + block, i, fed, normal, inverse, last_normal, last_inverse,
            D, FF, SOFTMAX,
        )  # fmt: skip
        tl.store(dx + at, grad, mask=live[:, None])
        tl.store(d_mixed + at, d_mix, mask=live[:, None])
        tl.debug_barrier()  # the next tile adds to what other threads may have stored


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def project_back(
    parameters, count, x, dx, last_dx, d_queries, d_keys, d_values, queries, keys, waves, partials,
    block, PROGRAMS, CAPACITY, PARAMETERS,
    TOKENS, ROWS: tl.constexpr,
    TILES: tl.constexpr, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Backward of the projections of a block that is not the first.

    `dx` becomes the gradient of the block's input. Before that it holds the part through the
    residual sums; for the last block that part is in `last_dx` (example, D).
    """
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    p = partials + (seed * PROGRAMS + program) * PARAMETERS + block
    w_q = tl.zeros([D, D], tl.float32)
    w_k, w_v = w_q, w_q
    # Sums over tokens that are not products are kept by row until the end.
    nothing = tl.zeros([ROWS, D], tl.float32)
    sum_q, sum_k, sum_v, sum_gain, sum_offset = nothing, nothing, nothing, nothing, nothing
    for i in range(TILES):
        w = held(parameters + block, i)
        example, position, live, at = _flat(program * TILES + i, count, TOKENS, D, ROWS)
        at += shift
        there = live[:, None]
        one = seed * CAPACITY * D + example[:, None] * D + tl.arange(0, D)[None, :]
        is_last = (live & (position == TOKENS - 1))[:, None]
        # All of a tile's loads at once: one by one, each would wait for memory.
        rows = tl.load(x + at, mask=there, other=0.0)
        if LAST:
            grad = tl.load(last_dx + one, mask=is_last, other=0.0)
            dq = tl.load(d_queries + one, mask=is_last, other=0.0)
        else:
            grad = tl.load(dx + at, mask=there, other=0.0)
            dq = tl.load(d_queries + at, mask=there, other=0.0)
        dk = tl.load(d_keys + at, mask=there, other=0.0)
        dv = tl.load(d_values + at, mask=there, other=0.0)
        q, k = dq, dk
        if not SOFTMAX:  # the slope of the feature map needs q and k
            k = tl.load(keys + at, mask=there, other=0.0)
            if LAST:
                q = tl.load(queries + one, mask=is_last, other=0.0)
            else:
                q = tl.load(queries + at, mask=there, other=0.0)
        normal, dq, dk, dv, d_normal, by, gain = projections_back(
            rows, dq, dk, dv, q, k, w, waves, position, TOKENS, D, FF, SOFTMAX, ROTARY
        )
        w_q += dot(tl.trans(dq), normal)
        sum_q += dq
        w_k += dot(tl.trans(dk), normal)
        sum_k += dk
        w_v += dot(tl.trans(dv), normal)
        sum_v += dv
        sum_gain += gain
        sum_offset += d_normal
        tl.store(dx + at, grad + by, mask=there)
    weight = p + param_at("qkv.weight", D, FF, SOFTMAX)
    store_matrix(weight, w_q, D, D)
    store_matrix(weight + D * D, w_k, D, D)
    store_matrix(weight + 2 * D * D, w_v, D, D)
    if SOFTMAX:
        bias = p + param_at("qkv.bias", D, FF, SOFTMAX)
        store_vector(bias, tl.sum(sum_q, 0), D)
        store_vector(bias + D, tl.sum(sum_k, 0), D)
        store_vector(bias + 2 * D, tl.sum(sum_v, 0), D)
    else:
        store_vector(p + param_at("norm1.weight", D, FF, SOFTMAX), tl.sum(sum_gain, 0), D)
        store_vector(p + param_at("norm1.bias", D, FF, SOFTMAX), tl.sum(sum_offset, 0), D)
