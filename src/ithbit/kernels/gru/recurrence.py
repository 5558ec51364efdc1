"""The GRU's kernels: a layer's recurrence forward and backward, and the gradients of its input and
weights.

A recurrence of width 16 is latency-bound. So a program takes few sequences, a thread one unit of
one of them, with its column of every weight in registers, and products are plain fused
multiply-adds; a token costs one exchange of the state between threads forward, and one of the
gates' gradients backward. The waiting time is used for the input gates, which do not depend on the
state, and for the gradients of the first layer's weights; `rows_back` computes those of later
layers. A narrow layer is bound by memory instead: its backward pass computes the gates again rather
than load them, and all its weights' gradients. The equations and the order of the gates (r, z, n)
are those of `models/gru.py`.
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import stream_of
from ithbit.kernels.gru.tokens import FEATURES, draw, embedding_at, features, turned
from ithbit.kernels.tile import (
    SIZES,
    dot,
    held,
    load_matrix,
    load_transposed,
    load_vector,
    loss_of,
    store_matrix,
    store_vector,
)


@triton.jit
def _times(rows, weight):
    """rows (i k) times weight (k j): i j. Each thread computes whole sums over k."""
    return tl.sum(tl.trans(rows)[:, :, None] * weight[:, None, :], 0)


@triton.jit
def _logistic(x, SCALE: tl.constexpr):
    """1 / (1 + exp(-SCALE x)), with a single multiplication before the exponential."""
    return 1.0 / (1.0 + tl.exp2(x * (SCALE * -1.4426950408889634)))


@triton.jit
def _outer(left, right):
    """left (b i) times right (b j) of each sequence: i b j."""
    return tl.trans(left)[:, :, None] * right[None, :, :]


@triton.jit
def _load_maps(parameters, layer, positions, D: tl.constexpr, FIRST: tl.constexpr):
    """A layer's maps from its input (the FIRST one's from features) and from its state to the gates
    r, z and n, and their biases."""
    weights = parameters + layer
    hidden, bias = weights + 3 * D * D, weights + 6 * D * D
    w_r = load_transposed(hidden, D, D)
    w_z = load_transposed(hidden + D * D, D, D)
    w_n = load_transposed(hidden + 2 * D * D, D, D)
    # The two biases of r and of z only ever occur as sums.
    b_r = load_vector(bias, D) + load_vector(bias + 3 * D, D)
    b_z = load_vector(bias + D, D) + load_vector(bias + 4 * D, D)
    b_n, b_c = load_vector(bias + 2 * D, D), load_vector(bias + 5 * D, D)
    i_r = load_transposed(weights, D, D)
    i_z = load_transposed(weights + D * D, D, D)
    i_n = load_transposed(weights + 2 * D * D, D, D)
    if FIRST:
        embedding = tl.load(embedding_at(parameters, positions, D))
        i_r, i_z, i_n = _times(embedding, i_r), _times(embedding, i_z), _times(embedding, i_n)
    return i_r, i_z, i_n, w_r, w_z, w_n, b_r, b_z, b_n, b_c


@triton.jit
def _gates(x, h, maps):
    """r, z, n and c = W_hn h + b_hn of a token with input x after the state h."""
    i_r, i_z, i_n, w_r, w_z, w_n, b_r, b_z, b_n, b_c = maps
    r = _logistic(_times(x, i_r) + b_r + _times(h, w_r), 1.0)
    c = _times(h, w_n) + b_c
    z = _logistic(_times(x, i_z) + b_z + _times(h, w_z), 1.0)
    n = 2.0 * _logistic(_times(x, i_n) + b_n + r * c, 2.0) - 1.0
    return r, z, n, c


@triton.jit(do_not_specialize=SIZES)
def run_layer(
    values, keys, first, count, below, states, saved, logits,
    PARAMETERS, CAPACITY, layer, positions, head,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, D: tl.constexpr,
    SEQUENCES: tl.constexpr, FIRST: tl.constexpr, SAVE: tl.constexpr, READ: tl.constexpr,
    CUTS: tl.constexpr,
):  # fmt: skip
    """A layer's states; with SAVE also what backward needs, with READ the logits of the last."""
    TOKENS: tl.constexpr = N + 2 if LHI else N + 1
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = program * SEQUENCES + tl.arange(0, SEQUENCES)
    d = tl.arange(0, D)[None, :]
    start = (seed * tl.num_programs(0) * SEQUENCES + row)[:, None]
    parameters = values + seed * PARAMETERS
    maps = _load_maps(parameters, layer, positions, D, FIRST)
    at = states + start * (TOKENS + 1) * D + d
    pointer = saved + start * TOKENS * 4 * D + d
    if FIRST:
        key, example = stream_of(keys, first, seed)
        example += row
        query, low, high = draw(key, example, N, WORDS, CUTS)
    else:
        source = below + start * (TOKENS + 1) * D + d + D
        coming = tl.load(source)
    h = tl.zeros([SEQUENCES, D], tl.float32)
    for t in range(TOKENS):
        if FIRST:
            if N > 128:
                low = turned(low, t - LHI, 0, key, example, N, WORDS, CUTS)
                high = low
            x = features(t, query, low, high, N, LHI)
        else:
            x = coming
            coming = tl.load(source + tl.minimum(t + 1, TOKENS - 1) * D)
        r, z, n, c = _gates(x, h, maps)
        h = n + z * (h - n)
        if SAVE:
            tl.store(pointer, r)
            tl.store(pointer + D, z)
            tl.store(pointer + 2 * D, n)
            tl.store(pointer + 3 * D, c)
            pointer += 4 * D
        if SAVE or not READ:
            at += D
            tl.store(at, h)
    if READ:
        logit = tl.sum(h * load_vector(parameters + head, D), 1) + tl.load(parameters + head + D)
        tl.store(logits + seed * CAPACITY + row, logit, mask=row < count)


@triton.jit(do_not_specialize=SIZES)
def run_layer_back(
    values, keys, first, count, below, states, saved, above, losses, partials,
    PROGRAMS, PARAMETERS, CAPACITY, layer, positions, head,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, D: tl.constexpr,
    SEQUENCES: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, AGAIN: tl.constexpr,
    CUTS: tl.constexpr,
):  # fmt: skip
    """From the gradient of a layer's states to those of its gates and biases.

    That gradient is the last vector of a token in `above`, the `saved` of the layer above. The last
    layer takes the gradient of the loss instead, and also stores the head's share. The first stores
    the shares of its weights and of the embedding. For other layers `rows_back` does so, unless
    AGAIN: then the gates were not saved but are computed again, and this kernel stores the shares
    and the gradient of the input.
    """
    TOKENS: tl.constexpr = N + 2 if LHI else N + 1
    KEPT: tl.constexpr = D if AGAIN else 4 * D  # numbers of `saved` per token
    INPUTS: tl.constexpr = FEATURES if FIRST else D
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = program * SEQUENCES + tl.arange(0, SEQUENCES)
    d = tl.arange(0, D)[None, :]
    start = (seed * tl.num_programs(0) * SEQUENCES + row)[:, None]
    parameters = values + seed * PARAMETERS
    partial = partials + (seed * PROGRAMS + program) * PARAMETERS
    weights, share = parameters + layer, partial + layer
    w_r = load_matrix(weights + 3 * D * D, D, D)
    w_z = load_matrix(weights + 4 * D * D, D, D)
    w_n = load_matrix(weights + 5 * D * D, D, D)
    if AGAIN:
        maps = _load_maps(parameters, layer, positions, D, FIRST)
    key, example = stream_of(keys, first, seed)
    example += row
    query, low, high = draw(key, example, N, WORDS, CUTS)
    # At token t: the state before it, what was saved there, the gradient of the state after it.
    at = states + start * (TOKENS + 1) * D + d
    pointer = saved + start * TOKENS * KEPT + d
    source = above + start * TOKENS * KEPT + KEPT - D + d
    entered = below + start * (TOKENS + 1) * D + D + d
    if LAST:
        state = tl.load(at + TOKENS * D)
        weight = load_vector(parameters + head, D)
        logit = tl.sum(state * weight, 1) + tl.load(parameters + head + D)
        loss, slope = loss_of(logit, key, example, N, WORDS, CUTS)
        tl.store(losses + seed * CAPACITY + row, loss, mask=row < count)
        slope = tl.where(row < count, slope / count, 0.0)
        store_vector(partial + head, tl.sum(slope[:, None] * state, 0), D)
        tl.store(partial + head + D, tl.sum(slope, 0))
        dh = slope[:, None] * weight
    else:
        dh = tl.zeros([SEQUENCES, D], tl.float32)
        next_g = tl.load(source + (TOKENS - 1) * KEPT)
    nothing = tl.zeros([SEQUENCES, D], tl.float32)
    b_r, b_z, b_n, b_c = nothing, nothing, nothing, nothing
    if FIRST or AGAIN:
        g_r = tl.zeros([D, SEQUENCES, D], tl.float32)  # of W_h, for each sequence
        g_z, g_n = g_r, g_r
        i_r = tl.zeros([INPUTS, SEQUENCES, D], tl.float32)  # of the map from the input to the gates
        i_z, i_n = i_r, i_r
    if not AGAIN:
        last = pointer + (TOKENS - 1) * KEPT
        next_r, next_z = tl.load(last), tl.load(last + D)
        next_n, next_c = tl.load(last + 2 * D), tl.load(last + 3 * D)
    elif not FIRST:
        v_r = load_matrix(weights, D, D)
        v_z = load_matrix(weights + D * D, D, D)
        v_n = load_matrix(weights + 2 * D * D, D, D)
        next_x = tl.load(entered + (TOKENS - 1) * D)
    next_h = tl.load(at + (TOKENS - 1) * D)
    for back in range(TOKENS):
        t = TOKENS - 1 - back
        h = next_h
        if FIRST:
            if N > 128:
                low = turned(low, t - LHI, 63, key, example, N, WORDS, CUTS)
                high = low
            x = features(t, query, low, high, N, LHI)
        elif AGAIN:
            x = next_x
        if AGAIN:
            r, z, n, c = _gates(x, h, maps)
        else:
            r, z, n, c = next_r, next_z, next_n, next_c
        if not LAST:
            dh += next_g
        # Token t - 1 is loaded while t is computed.
        before = tl.maximum(t - 1, 0)
        if not AGAIN:
            next_r, next_z = tl.load(pointer + before * KEPT), tl.load(pointer + before * KEPT + D)
            next_n = tl.load(pointer + before * KEPT + 2 * D)
            next_c = tl.load(pointer + before * KEPT + 3 * D)
        elif not FIRST:
            next_x = tl.load(entered + before * D)
        next_h = tl.load(at + before * D)
        if not LAST:
            next_g = tl.load(source + before * KEPT)
        d_n = dh * ((1.0 - z) * (1.0 - n * n))
        d_z = dh * ((h - n) * z * (1.0 - z))
        d_r = d_n * (c * r * (1.0 - r))
        d_c = d_n * r
        dh = dh * z + _times(d_r, w_r) + _times(d_z, w_z) + _times(d_c, w_n)
        b_r += d_r
        b_z += d_z
        b_n += d_n
        b_c += d_c
        if FIRST or AGAIN:
            g_r += _outer(d_r, h)
            g_z += _outer(d_z, h)
            g_n += _outer(d_c, h)
            i_r += _outer(x, d_r)
            i_z += _outer(x, d_z)
            i_n += _outer(x, d_n)
            if not FIRST:
                tl.store(pointer + t * KEPT, _times(d_r, v_r) + _times(d_z, v_z) + _times(d_n, v_n))
        else:
            tl.store(pointer + t * KEPT, d_r)
            tl.store(pointer + t * KEPT + D, d_z)
            tl.store(pointer + t * KEPT + 2 * D, d_n)
            tl.store(pointer + t * KEPT + 3 * D, d_c)
    bias = share + 6 * D * D
    bias_r, bias_z = tl.sum(b_r, 0), tl.sum(b_z, 0)
    store_vector(bias, bias_r, D)
    store_vector(bias + D, bias_z, D)
    store_vector(bias + 2 * D, tl.sum(b_n, 0), D)
    store_vector(bias + 3 * D, bias_r, D)
    store_vector(bias + 4 * D, bias_z, D)
    store_vector(bias + 5 * D, tl.sum(b_c, 0), D)
    if FIRST or AGAIN:
        store_matrix(share + 3 * D * D, tl.sum(g_r, 1), D, D)
        store_matrix(share + 4 * D * D, tl.sum(g_z, 1), D, D)
        store_matrix(share + 5 * D * D, tl.sum(g_n, 1), D, D)
        m_r, m_z, m_n = tl.sum(i_r, 1), tl.sum(i_z, 1), tl.sum(i_n, 1)
    if FIRST:
        embedding = tl.load(embedding_at(parameters, positions, D))
        store_matrix(share, _times(tl.trans(m_r), embedding), D, D)
        store_matrix(share + D * D, _times(tl.trans(m_z), embedding), D, D)
        store_matrix(share + 2 * D * D, _times(tl.trans(m_n), embedding), D, D)
        grad = _times(m_r, load_matrix(weights, D, D))
        grad += _times(m_z, load_matrix(weights + D * D, D, D))
        grad += _times(m_n, load_matrix(weights + 2 * D * D, D, D))
        tl.store(embedding_at(partial, positions, D), grad)
    elif AGAIN:
        store_matrix(share, tl.trans(m_r), D, D)
        store_matrix(share + D * D, tl.trans(m_z), D, D)
        store_matrix(share + 2 * D * D, tl.trans(m_n), D, D)


@triton.jit(do_not_specialize=SIZES)
def rows_back(
    values, below, states, saved, partials, PROGRAMS, PARAMETERS, SEQUENCES, layer,
    TOKENS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """From the gradients of a layer's gates to those of its input and its weights.

    Nothing here depends on the previous token, so a program takes tiles of tokens, whatever their
    sequence, and uses the tensor cores.
    """
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    weights = values + seed * PARAMETERS + layer
    d = tl.arange(0, D)[None, :]
    i_r = tl.zeros([D, D], tl.float32)
    i_z, i_n, h_r, h_z, h_c = i_r, i_r, i_r, i_r, i_r
    for tile in range(TILES):
        w = held(weights, tile)
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)
        live = (row < SEQUENCES * TOKENS)[:, None]
        # A sequence's states have h_0 before them.
        before = ((seed * SEQUENCES * (TOKENS + 1) + row + row // TOKENS) * D)[:, None] + d
        at = saved + ((seed * SEQUENCES * TOKENS + row) * 4 * D)[:, None] + d
        # All of a tile's loads at once: one by one, each would wait for memory.
        x = tl.load(below + before + D, mask=live, other=0.0)
        h = tl.load(states + before, mask=live, other=0.0)
        d_r = tl.load(at, mask=live, other=0.0)
        d_z = tl.load(at + D, mask=live, other=0.0)
        d_n = tl.load(at + 2 * D, mask=live, other=0.0)
        d_c = tl.load(at + 3 * D, mask=live, other=0.0)
        grad = dot(d_r, load_matrix(w, D, D)) + dot(d_z, load_matrix(w + D * D, D, D))
        grad += dot(d_n, load_matrix(w + 2 * D * D, D, D))
        tl.store(at + 3 * D, grad, mask=live)
        i_r += dot(tl.trans(d_r), x)
        h_r += dot(tl.trans(d_r), h)
        i_z += dot(tl.trans(d_z), x)
        h_z += dot(tl.trans(d_z), h)
        i_n += dot(tl.trans(d_n), x)
        h_c += dot(tl.trans(d_c), h)
    share = partials + (seed * PROGRAMS + program) * PARAMETERS + layer
    store_matrix(share, i_r, D, D)
    store_matrix(share + D * D, i_z, D, D)
    store_matrix(share + 2 * D * D, i_n, D, D)
    store_matrix(share + 3 * D * D, h_r, D, D)
    store_matrix(share + 4 * D * D, h_z, D, D)
    store_matrix(share + 5 * D * D, h_c, D, D)
