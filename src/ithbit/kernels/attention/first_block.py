"""Attention's first block backward, from the mixing to the embedding: over the kinds of tokens.

The gradients of queries, keys, values and of the block's input are summed over the examples by
position and bit (`tally`), and the rest is computed for kinds and queries (`tokens_back`): see
`token_kinds.py`. The forward pass stores only the bits for it. If the block is also the last,
queries and input have gradients only at the last token, in (seed, example, D).
"""

import triton
import triton.language as tl

from ithbit.kernels.attention.block import (
    norm_input,
    param_at,
    project_one,
    projections_back,
)
from ithbit.kernels.draws import stream_of
from ithbit.kernels.embedding import embedded
from ithbit.kernels.tile import (
    LENGTHS,
    SIZES,
    dot,
    load_vector,
    normalise,
    normalise_back,
    put_matrix,
    put_vector,
    store_embedding,
)
from ithbit.kernels.token_kinds import (
    added,
    features_of,
    in_kinds,
    place_of,
    store_positions,
    store_sums,
)

COLUMNS = tl.constexpr(16)  # of a gradient that a program sums; if it has fewer, all of them
_GRADS = tl.constexpr(4)  # of queries, keys, values and input, in this order


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def tally(
    count, bits, d_queries, d_keys, d_values, dx, sums, CAPACITY,
    N, LHI, ROWS: tl.constexpr, TILES: tl.constexpr, D: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Columns of a gradient at one token of all examples, summed by the token's bit: `sums` becomes
    (seed, gradient, bit, token, D). Queries, which are not of a kind, are left out.

    In the last block the gradients of queries and input have ONE token per sequence, the last; sums
    at the others are 0.
    """
    SOME: tl.constexpr = min(D, COLUMNS)
    PARTS: tl.constexpr = D // SOME
    TOKENS = N + 1 + LHI
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token, which = LHI + program // (_GRADS * PARTS), program // PARTS % _GRADS
    c = program % PARTS * SOME
    if which == 0:
        grads = d_queries
    elif which == 1:
        grads = d_keys
    elif which == 2:
        grads = d_values
    else:
        grads = dx
    ONE = LAST & ((which == 0) | (which == 3))
    stride = tl.where(ONE, 1, TOKENS)
    grads += (seed * CAPACITY * stride + tl.where(ONE, 0, token)) * D + c
    bits += (seed * TOKENS + token) * CAPACITY
    wanted = tl.where(ONE & (token < TOKENS - 1), 0, count)
    none = tl.zeros([ROWS // 8, SOME], tl.float32)
    total = none, none
    for i in range(TILES):
        example = (i * ROWS + tl.arange(0, ROWS))[:, None]
        live = example < wanted
        bit = tl.load(bits + example, mask=live, other=0.0)
        at = example * stride * D + tl.arange(0, SOME)[None, :]
        x = tl.load(grads + at, mask=live, other=0.0)
        total = added(total, x, bit)
    sums += ((seed * _GRADS + which) * 2 * TOKENS + token) * D + c
    store_sums(sums, total, tl.arange(0, SOME) < SOME, D, TOKENS)


@triton.jit
def _load_grad(
    sums, grads, which: tl.constexpr, place, of_kinds, CAPACITY, TOKENS, D: tl.constexpr,
    ONE: tl.constexpr,
):  # fmt: skip
    """Gradients of kinds, from what `tally` left, or of queries; with ONE token per sequence, only
    of queries that are the last token."""
    seed = tl.program_id(1).to(tl.int64)
    row, token, live = place
    if of_kinds:
        at = sums + (seed * _GRADS + which) * 2 * TOKENS * D
        number = row * TOKENS + token
    elif ONE:
        at = grads + seed * CAPACITY * D
        number = row
    else:
        at = grads + seed * CAPACITY * TOKENS * D
        number = row * TOKENS + token
    if ONE:
        live &= of_kinds | (token == TOKENS - 1)
    at += number[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(at, mask=live[:, None], other=0.0)


@triton.jit(do_not_specialize=SIZES + LENGTHS)
def tokens_back(
    parameters, streams, firsts, count, d_queries, d_keys, d_values, dx, sums, waves, partials,
    block, positions, enter, PROGRAMS, CAPACITY, PARAMETERS, N, LHI, WORDS,
    ROWS: tl.constexpr, TILES: tl.constexpr, LAST: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Shares of the embedding and of the first block's projections: tiles of what `tally` left, two
    rows per position, then tiles of queries, one row per example."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS = N + 1 + LHI
    parameters += seed * PARAMETERS
    w = parameters + block
    share = partials + (seed * PROGRAMS + program) * PARAMETERS
    p = share + block
    key, first = stream_of(streams, firsts, seed)
    for turn in tl.range(0, TILES, num_stages=1, disable_licm=True):
        tl.debug_barrier()  # what the previous tile added is read again
        tile = program + turn * tl.num_programs(0)
        place = place_of(tile, count, N, LHI, ROWS)
        token, of_kinds = place[1], in_kinds(tile, N, LHI, ROWS)
        # All loads before any store: no load is moved ahead of a store.
        dq = _load_grad(sums, d_queries, 0, place, of_kinds, CAPACITY, TOKENS, K.D, LAST)
        dk = _load_grad(sums, d_keys, 1, place, of_kinds, CAPACITY, TOKENS, K.D, False)
        dv = _load_grad(sums, d_values, 2, place, of_kinds, CAPACITY, TOKENS, K.D, False)
        grad = _load_grad(sums, dx, 3, place, of_kinds, CAPACITY, TOKENS, K.D, LAST)
        features = features_of(key, first, place, N, LHI, WORDS)
        ENCODING: tl.constexpr = K.ENCODING
        rows = embedded(
            features, parameters, positions, enter, waves, token, K.D, ENCODING, K.SOFTMAX
        )
        q, k = dq, dk
        if K.SOFTMAX:
            entering, inverse = normalise(rows, K.D, K.EPS)
            enter_gain = load_vector(parameters + enter + K.D, K.D)
            rows = entering * enter_gain + load_vector(parameters + enter + 2 * K.D, K.D)
        else:  # the slope of the feature map needs q and k
            normal = norm_input(rows, w, K)
            q = project_one(normal, w, waves, token, 0, TOKENS, K)
            k = project_one(normal, w, waves, token, 1, TOKENS, K)
        normal, dq, dk, dv, d_normal, by, gain = projections_back(
            rows, dq, dk, dv, q, k, w, waves, token, TOKENS, K
        )
        grad += by
        d_rows = grad
        if K.SOFTMAX:
            grad = normalise_back(grad * enter_gain, entering, inverse, K.D)
        weight = p + param_at("qkv.weight", K)
        put_matrix(weight, dot(tl.trans(dq), normal), turn, K.D, K.D)
        put_matrix(weight + K.D * K.D, dot(tl.trans(dk), normal), turn, K.D, K.D)
        put_matrix(weight + 2 * K.D * K.D, dot(tl.trans(dv), normal), turn, K.D, K.D)
        if K.SOFTMAX:
            bias = p + param_at("qkv.bias", K)
            put_vector(bias, tl.sum(dq, 0), turn, K.D)
            put_vector(bias + K.D, tl.sum(dk, 0), turn, K.D)
            put_vector(bias + 2 * K.D, tl.sum(dv, 0), turn, K.D)
            put_vector(share + enter + K.D, tl.sum(d_rows * entering, 0), turn, K.D)
            put_vector(share + enter + 2 * K.D, tl.sum(d_rows, 0), turn, K.D)
        else:
            put_vector(p + param_at("norm1.weight", K), tl.sum(gain, 0), turn, K.D)
            put_vector(p + param_at("norm1.bias", K), tl.sum(d_normal, 0), turn, K.D)
        d_map = dot(tl.trans(features), grad)
        store_embedding(share, d_map, positions, enter, K.D, ENCODING, K.SOFTMAX, turn)
        if ENCODING == "learned":
            store_positions(share + positions, grad, tile, N, LHI, K.D, ROWS)
