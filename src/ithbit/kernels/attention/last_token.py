"""The mixing of softmax and linear attention at the last token: one query per sequence.

Both have the same form, out = sum over s of a_s v_s / sum over s of a_s, with a = exp(score -
largest) or a = score. There is no matrix product: a program takes several whole sequences, padded
to PAD tokens (`read`, `read_back`). It takes a long sequence PAD tokens at a time, with its heads
in rows (`read_long`, `read_long_back`): once in the forward pass, with the largest score so far,
and twice in the backward pass, for the sum of the weights and for the gradients.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import SIZES
from ithbit.layouts import LINEAR

_DENOMINATOR_EPS = tl.constexpr(LINEAR.denominator_eps)


@triton.jit
def _load_whole(
    queries, keys, values, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Whole sequences of a tile: their one query (sequence D), keys and values (sequence token D);
    where these lie and which sequences exist, and where those lie and which tokens exist."""
    seed = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    token, d = tl.arange(0, PAD), tl.arange(0, K.D)
    at = (example[:, None, None] * TOKENS + token[None, :, None]) * K.D + d[None, None, :]
    live = example < count
    valid = live[:, None] & (token < TOKENS)[None, :]
    one = example[:, None] * K.D + d[None, :]
    at, one = at + seed * CAPACITY * TOKENS * K.D, one + seed * CAPACITY * K.D
    q = tl.load(queries + one, mask=live[:, None], other=0.0)
    k = tl.load(keys + at, mask=valid[:, :, None], other=0.0)
    v = tl.load(values + at, mask=valid[:, :, None], other=0.0)
    return q, k, v, one, live[:, None], at, valid


@triton.jit
def _read_weights(q, k, valid, K: tl.constexpr):
    """Weights of one head (sequence token) and 1 / their sum (sequence)."""
    score = tl.sum(q[:, None, :] * k, 2)
    if K.SOFTMAX:
        score = tl.where(valid, score * K.SCALE, -1e30)
        a = tl.where(valid, tl.exp(score - tl.max(score, 1)[:, None]), 0.0)
        total = tl.maximum(tl.sum(a, 1), 1.0)
    else:
        a = tl.where(valid, score, 0.0)
        total = tl.sum(a, 1) + _DENOMINATOR_EPS
    return a, 1.0 / total


@triton.jit(do_not_specialize=SIZES)
def read(
    queries, keys, values, out, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Mixed values at the last token; queries and `out` are (seed, example, D)."""
    q, k, v, one, live, _, valid = _load_whole(
        queries, keys, values, count, CAPACITY, TOKENS, PAD, GROUP, K
    )
    H: tl.constexpr = K.H
    head = tl.arange(0, K.D)[None, :] // (K.D // K.H)
    mixed = tl.zeros_like(q)
    for h in tl.static_range(H):
        a, inverse = _read_weights(tl.where(head == h, q, 0.0), k, valid, K)
        mixed = tl.where(head == h, tl.sum(a[:, :, None] * v, 1) * inverse[:, None], mixed)
    tl.store(out + one, mixed, mask=live)


@triton.jit(do_not_specialize=SIZES)
def read_back(
    queries, keys, values, out, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients of `read`'s queries, keys and values."""
    q, k, v, one, live, at, valid = _load_whole(
        queries, keys, values, count, CAPACITY, TOKENS, PAD, GROUP, K
    )
    H: tl.constexpr = K.H
    mixed = tl.load(out + one, mask=live, other=0.0)
    grad = tl.load(d_out + one, mask=live, other=0.0)
    head = tl.arange(0, K.D)[None, :] // (K.D // K.H)
    dq, dk, dv = tl.zeros_like(q), tl.zeros_like(k), tl.zeros_like(v)
    for h in tl.static_range(H):
        qh = tl.where(head == h, q, 0.0)
        a, inverse = _read_weights(qh, k, valid, K)
        g = tl.where(head == h, grad * inverse[:, None], 0.0)
        dv += a[:, :, None] * g[:, None, :]
        da = tl.sum(g[:, None, :] * v, 2) - tl.sum(g * mixed, 1)[:, None]
        da = a * da * K.SCALE if K.SOFTMAX else tl.where(valid, da, 0.0)
        dq = tl.where(head == h, tl.sum(da[:, :, None] * k, 1), dq)
        dk += da[:, :, None] * qh[:, None, :]
    tl.store(d_queries + one, dq, mask=live)
    tl.store(d_keys + at, dk, mask=valid[:, :, None])
    tl.store(d_values + at, dv, mask=valid[:, :, None])


@triton.jit
def _heads(rows, K: tl.constexpr):
    """One row per head, 0 outside that head: H D."""
    h, d = tl.arange(0, K.H)[:, None], tl.arange(0, K.D)[None, :]
    return tl.where(h == d // (K.D // K.H), rows, 0.0)


@triton.jit
def _part(q, keys, start, TOKENS: tl.constexpr, PAD: tl.constexpr, K: tl.constexpr):
    """PAD tokens from `start` on: where they lie (token D), which exist (token), their keys (token
    D), and the scores of each head's query (H D) with these: H token."""
    token = start + tl.arange(0, PAD)
    at, valid = token[:, None] * K.D + tl.arange(0, K.D)[None, :], token < TOKENS
    k = tl.load(keys + at, mask=valid[:, None], other=0.0)
    score = tl.sum(q[:, None, :] * k[None, :, :], 2)
    if K.SOFTMAX:
        score = tl.where(valid[None, :], score * K.SCALE, -1e30)
    else:
        score = tl.where(valid[None, :], score, 0.0)
    return at, valid, k, score


@triton.jit
def _taken(score, top, total, K: tl.constexpr):
    """Weights (H token), the largest score and the sum of weights so far (H), including these, and
    the factor for earlier sums."""
    if K.SOFTMAX:
        higher = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - higher)
        a = tl.exp(score - higher[:, None])
    else:
        higher, shrink, a = top, tl.full(top.shape, 1.0, tl.float32), score
    return a, higher, total * shrink + tl.sum(a, 1), shrink


@triton.jit(do_not_specialize=SIZES)
def read_long(
    queries, keys, values, out, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """`read` of one long sequence; GROUP is 1."""
    example, d = tl.program_id(0), tl.arange(0, K.D)
    if example < count:
        row = tl.program_id(1).to(tl.int64) * CAPACITY + example
        keys, values = keys + row * TOKENS * K.D, values + row * TOKENS * K.D
        q = _heads(tl.load(queries + row * K.D + d)[None, :], K)
        top, total = tl.full([K.H], -1e30, tl.float32), tl.full([K.H], 0.0, tl.float32)
        mixed = tl.full([K.H, K.D], 0.0, tl.float32)
        for start in range(0, TOKENS, PAD):
            at, valid, _, score = _part(q, keys, start, TOKENS, PAD, K)
            v = tl.load(values + at, mask=valid[:, None], other=0.0)
            a, top, total, shrink = _taken(score, top, total, K)
            mixed = mixed * shrink[:, None] + tl.sum(a[:, :, None] * v[None, :, :], 1)
        if not K.SOFTMAX:
            total += _DENOMINATOR_EPS
        tl.store(out + row * K.D + d, tl.sum(_heads(mixed / total[:, None], K), 0))


@triton.jit(do_not_specialize=SIZES)
def read_long_back(
    queries, keys, values, out, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """`read_back` of one long sequence."""
    example, d = tl.program_id(0), tl.arange(0, K.D)
    if example < count:
        row = tl.program_id(1).to(tl.int64) * CAPACITY + example
        first, one = row * TOKENS * K.D, row * K.D + d
        keys, values = keys + first, values + first
        q = _heads(tl.load(queries + one)[None, :], K)
        grad = _heads(tl.load(d_out + one)[None, :], K)
        top, total = tl.full([K.H], -1e30, tl.float32), tl.full([K.H], 0.0, tl.float32)
        for start in range(0, TOKENS, PAD):
            _, _, _, score = _part(q, keys, start, TOKENS, PAD, K)
            _, top, total, _ = _taken(score, top, total, K)
        if not K.SOFTMAX:
            total += _DENOMINATOR_EPS
        g = grad / total[:, None]
        own = tl.sum(g * tl.load(out + one)[None, :], 1)[:, None]
        dq = tl.full([K.H, K.D], 0.0, tl.float32)
        for start in range(0, TOKENS, PAD):
            at, valid, k, a = _part(q, keys, start, TOKENS, PAD, K)
            v = tl.load(values + at, mask=valid[:, None], other=0.0)
            da = tl.sum(g[:, None, :] * v[None, :, :], 2) - own
            if K.SOFTMAX:
                a = tl.exp(a - top[:, None])
                da = a * da * K.SCALE
            else:
                da = tl.where(valid[None, :], da, 0.0)
            dq += tl.sum(da[:, :, None] * k[None, :, :], 1)
            dk = tl.sum(da[:, :, None] * q[:, None, :], 0)
            dv = tl.sum(a[:, :, None] * g[:, None, :], 0)
            tl.store(d_keys + first + at, dk, mask=valid[:, None])
            tl.store(d_values + first + at, dv, mask=valid[:, None])
        tl.store(d_queries + one, tl.sum(_heads(dq, K), 0))
