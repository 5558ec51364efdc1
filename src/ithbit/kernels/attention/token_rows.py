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
    norm_input,
    norm_output,
    param_at,
    project_one,
    projections_back,
    to_feed,
)
from ithbit.kernels.draws import stream_of
from ithbit.kernels.embedding import embedded
from ithbit.kernels.tile import (
    FEATURES,
    LENGTHS,
    SIZES,
    dot,
    held,
    load_vector,
    loss_of,
    normalise,
    put_vector,
    rows_of,
    store_matrix,
    store_vector,
    token_features,
)


@triton.jit
def _flat(tile, count, TOKENS, ROWS: tl.constexpr, K: tl.constexpr):
    """`rows_of` a tile, and where they lie in (example, token, D)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * K.D + tl.arange(0, K.D)[None, :]
    example, position, live = rows_of(tile, count, TOKENS, ROWS)
    return example, position, live, at


@triton.jit
def _project(
    x, w, waves, queries, keys, values, example, position, live, at, TOKENS,
    LAST: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Store queries, keys and values of a block's input; in the last block only the query of the
    last token, in (example, D)."""
    normal = norm_input(x, w, K)
    q = project_one(normal, w, waves, position, 0, TOKENS, K)
    if LAST:
        one = example[:, None] * K.D + tl.arange(0, K.D)[None, :]
        tl.store(queries + one, q, mask=(live & (position == TOKENS - 1))[:, None])
    else:
        tl.store(queries + at, q, mask=live[:, None])
    k = project_one(normal, w, waves, position, 1, TOKENS, K)
    tl.store(keys + at, k, mask=live[:, None])
    v = project_one(normal, w, waves, position, 2, TOKENS, K)
    tl.store(values + at, v, mask=live[:, None])


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def enter_rows(
    parameters, streams, firsts, count, bits, x, queries, keys, values, waves,
    block, positions, enter, CAPACITY, PARAMETERS, N, LHI, WORDS,
    ROWS: tl.constexpr, LAST: tl.constexpr, CUTS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Draw and embed the tokens into `x`, and project them for the first block; their bits (0 if a
    token has none) go to `bits`, (seed, token, example)."""
    seed = tl.program_id(1).to(tl.int64)
    TOKENS = N + 1 + LHI
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * K.D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, ROWS, K)
    key, first = stream_of(streams, firsts, seed)
    features = token_features(key, first + example, position, N, LHI, WORDS, CUTS)
    # The feature in column 3 is the bit: storing it from there saves a second draw.
    column = tl.arange(0, FEATURES)[None, :] - 3
    to = bits + seed * TOKENS * CAPACITY + (position * CAPACITY + example)[:, None] + column
    tl.store(to, features, mask=live[:, None] & (column == 0))
    ENCODING: tl.constexpr = K.ENCODING
    rows = embedded(
        features, parameters, positions, enter, waves, position, K.D, ENCODING, K.SOFTMAX
    )
    if K.SOFTMAX:
        rows, _ = normalise(rows, K.D, K.EPS)
        rows = rows * load_vector(parameters + enter + K.D, K.D)
        rows += load_vector(parameters + enter + 2 * K.D, K.D)
    tl.store(x + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + block, waves,
        queries + (seed * CAPACITY * K.D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, LAST, K,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def block_end(
    parameters, count, x, mixed, raw, out, queries, keys, values, waves,
    block, next_block, CAPACITY, PARAMETERS, TOKENS,
    ROWS: tl.constexpr, LAST: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """From mixed values to the block's output, and its projections for the next block; for softmax
    attention `raw` becomes the output before its LayerNorm."""
    seed = tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * K.D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, ROWS, K)
    before = tl.load(x + shift + at, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + shift + at, mask=live[:, None], other=0.0)
    w = parameters + block
    y, fed, _, _ = to_feed(before, mix, w, K)
    rows = feed_forward(y, fed, w, K)
    if K.SOFTMAX:
        tl.store(raw + shift + at, rows, mask=live[:, None])
        rows, _, _ = norm_output(rows, w, K)
    tl.store(out + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + next_block, waves,
        queries + (seed * CAPACITY * K.D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, LAST, K,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def answer_rows(
    parameters, streams, firsts, count, x, mixed, d_mixed, dx, results, partials,
    block, head, PROGRAMS, CAPACITY, PARAMETERS, N, TOKENS, WORDS,
    ROWS: tl.constexpr, TRAIN: tl.constexpr, CUTS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The end of the last block and the head, at the last token: logits into `results`; in training
    the losses instead, the shares of these parameters, and the gradients of `mixed` and input."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    w = parameters + block
    example = tile * ROWS + tl.arange(0, ROWS)
    live = example < count
    d = tl.arange(0, K.D)[None, :]
    one = seed * CAPACITY * K.D + example[:, None] * K.D + d
    last = (seed * CAPACITY + example)[:, None] * (TOKENS * K.D) + (TOKENS - 1) * K.D + d
    before = tl.load(x + last, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + one, mask=live[:, None], other=0.0)
    y, fed, normal, inverse = to_feed(before, mix, w, K)
    out = feed_forward(y, fed, w, K)
    last_normal, last_inverse = normal, inverse
    if K.SOFTMAX:
        out, last_normal, last_inverse = norm_output(out, w, K)
    weight = load_vector(parameters + head, K.D)
    logit = tl.sum(out * weight, 1) + tl.load(parameters + head + K.D)
    result = results + seed * CAPACITY + example
    if TRAIN:
        key, first = stream_of(streams, firsts, seed)
        loss, slope = loss_of(logit, key, first + example, N, WORDS, CUTS)
        tl.store(result, loss, mask=live)
        slope = tl.where(live, slope / count, 0.0)[:, None]
        share = partials + (seed * PROGRAMS + tile) * PARAMETERS
        put_vector(share + head, tl.sum(slope * out, 0), 0, K.D)
        tl.store(share + head + K.D, tl.sum(slope))
        grad, d_mix = block_tail_back(
            slope * weight, mix, w, share + block, 0, fed, normal, inverse, last_normal,
            last_inverse, K,
        )  # fmt: skip
        tl.store(d_mixed + one, d_mix, mask=live[:, None])
        tl.store(dx + one, grad, mask=live[:, None])
    else:
        tl.store(result, logit, mask=live)


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def block_end_back(
    parameters, count, x, mixed, raw, dx, d_mixed, partials,
    block, PROGRAMS, CAPACITY, PARAMETERS, TOKENS,
    ROWS: tl.constexpr, TILES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Backward of `block_end`: `dx` holds the gradient of the output, afterwards that of the input
    through the residual sums; `d_mixed` becomes that of the mixed values."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    weights = parameters + seed * PARAMETERS + block
    shift = seed * CAPACITY * TOKENS * K.D
    share = partials + (seed * PROGRAMS + program) * PARAMETERS
    for i in range(TILES):
        w = held(weights, i)
        _, _, live, at = _flat(program * TILES + i, count, TOKENS, ROWS, K)
        at += shift
        before = tl.load(x + at, mask=live[:, None], other=0.0)
        mix = tl.load(mixed + at, mask=live[:, None], other=0.0)
        grad = tl.load(dx + at, mask=live[:, None], other=0.0)
        out = tl.load(raw + at, mask=live[:, None], other=0.0) if K.SOFTMAX else grad
        _, fed, normal, inverse = to_feed(before, mix, w, K)
        last_normal, last_inverse = normal, inverse
        if K.SOFTMAX:
            _, last_normal, last_inverse = norm_output(out, w, K)
        grad, d_mix = block_tail_back(
            grad, mix, w, share + block, i, fed, normal, inverse, last_normal, last_inverse, K
        )
        tl.store(dx + at, grad, mask=live[:, None])
        tl.store(d_mixed + at, d_mix, mask=live[:, None])
        tl.debug_barrier()  # the next tile adds to what other threads may have stored


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def project_back(
    parameters, count, x, dx, last_dx, d_queries, d_keys, d_values, queries, keys, waves, partials,
    block, PROGRAMS, CAPACITY, PARAMETERS, TOKENS,
    ROWS: tl.constexpr, TILES: tl.constexpr, LAST: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Backward of the projections of a block that is not the first.

    `dx` becomes the gradient of the block's input. Before that it holds the part through the
    residual sums; for the last block that part is in `last_dx` (example, D).
    """
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * K.D
    p = partials + (seed * PROGRAMS + program) * PARAMETERS + block
    w_q = tl.full([K.D, K.D], 0.0, tl.float32)
    w_k, w_v = w_q, w_q
    # Sums over tokens that are not products are kept by row until the end.
    nothing = tl.full([ROWS, K.D], 0.0, tl.float32)
    sum_q, sum_k, sum_v, sum_gain, sum_offset = nothing, nothing, nothing, nothing, nothing
    for i in range(TILES):
        w = held(parameters + block, i)
        example, position, live, at = _flat(program * TILES + i, count, TOKENS, ROWS, K)
        at += shift
        mask = live[:, None]
        one = seed * CAPACITY * K.D + example[:, None] * K.D + tl.arange(0, K.D)[None, :]
        is_last = (live & (position == TOKENS - 1))[:, None]
        # All of a tile's loads at once: one by one, each would wait for memory.
        rows = tl.load(x + at, mask=mask, other=0.0)
        if LAST:
            grad = tl.load(last_dx + one, mask=is_last, other=0.0)
            dq = tl.load(d_queries + one, mask=is_last, other=0.0)
        else:
            grad = tl.load(dx + at, mask=mask, other=0.0)
            dq = tl.load(d_queries + at, mask=mask, other=0.0)
        dk = tl.load(d_keys + at, mask=mask, other=0.0)
        dv = tl.load(d_values + at, mask=mask, other=0.0)
        q, k = dq, dk
        if not K.SOFTMAX:  # the slope of the feature map needs q and k
            k = tl.load(keys + at, mask=mask, other=0.0)
            if LAST:
                q = tl.load(queries + one, mask=is_last, other=0.0)
            else:
                q = tl.load(queries + at, mask=mask, other=0.0)
        normal, dq, dk, dv, d_normal, by, gain = projections_back(
            rows, dq, dk, dv, q, k, w, waves, position, TOKENS, K
        )
        w_q += dot(tl.trans(dq), normal)
        sum_q += dq
        w_k += dot(tl.trans(dk), normal)
        sum_k += dk
        w_v += dot(tl.trans(dv), normal)
        sum_v += dv
        sum_gain += gain
        sum_offset += d_normal
        tl.store(dx + at, grad + by, mask=mask)
    weight = p + param_at("qkv.weight", K)
    store_matrix(weight, w_q, K.D, K.D)
    store_matrix(weight + K.D * K.D, w_k, K.D, K.D)
    store_matrix(weight + 2 * K.D * K.D, w_v, K.D, K.D)
    if K.SOFTMAX:
        bias = p + param_at("qkv.bias", K)
        store_vector(bias, tl.sum(sum_q, 0), K.D)
        store_vector(bias + K.D, tl.sum(sum_k, 0), K.D)
        store_vector(bias + 2 * K.D, tl.sum(sum_v, 0), K.D)
    else:
        store_vector(p + param_at("norm1.weight", K), tl.sum(sum_gain, 0), K.D)
        store_vector(p + param_at("norm1.bias", K), tl.sum(sum_offset, 0), K.D)
