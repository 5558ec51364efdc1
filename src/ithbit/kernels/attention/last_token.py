"""The mixing of softmax and linear attention at the last token: one query a sequence.

Both have one form, out = sum over s of a_s v_s / sum over s of a_s, with a = exp(score - largest)
or a = score. No matrix product: a program takes some whole sequences, filled up to PAD tokens.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import SIZES

_DENOMINATOR_EPS = tl.constexpr(1e-6)  # of linear attention


@triton.jit
def _sequences(
    count, TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr
):
    """Whole sequences of a tile: where their tokens lie (sequence token D), which tokens there are
    (sequence token), where their one query lies in (example, D) and which sequences there are."""
    example = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    token, d = tl.arange(0, PAD), tl.arange(0, D)
    at = (example[:, None, None] * TOKENS + token[None, :, None]) * D + d[None, None, :]
    live = example < count
    there = live[:, None] & (token < TOKENS)[None, :]
    return at, there, example[:, None] * D + d[None, :], live


@triton.jit
def _read_weights(q, k, there, SCALE: tl.constexpr, SOFTMAX: tl.constexpr):
    """Weights of one head (sequence token) and 1 / their sum (sequence)."""
    score = tl.sum(q[:, None, :] * k, 2)
    if SOFTMAX:
        score = tl.where(there, score * SCALE, -1e30)
        a = tl.where(there, tl.exp(score - tl.max(score, 1)[:, None]), 0.0)
        total = tl.maximum(tl.sum(a, 1), 1.0)
    else:
        a = tl.where(there, score, 0.0)
        total = tl.sum(a, 1) + _DENOMINATOR_EPS
    return a, 1.0 / total


@triton.jit(do_not_specialize=SIZES)
def read(
    queries, keys, values, out, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Mixed values at the last token; queries and `out` are (seed, example, D)."""
    seed = tl.program_id(1).to(tl.int64)
    at, there, one, live = _sequences(count, TOKENS, PAD, GROUP, D)
    at, one = at + seed * CAPACITY * TOKENS * D, one + seed * CAPACITY * D
    q = tl.load(queries + one, mask=live[:, None], other=0.0)
    k = tl.load(keys + at, mask=there[:, :, None], other=0.0)
    v = tl.load(values + at, mask=there[:, :, None], other=0.0)
    head = tl.arange(0, D)[None, :] // (D // H)
    mixed = tl.zeros_like(q)
    for h in tl.static_range(H):
        a, inverse = _read_weights(tl.where(head == h, q, 0.0), k, there, SCALE, SOFTMAX)
        mixed = tl.where(head == h, tl.sum(a[:, :, None] * v, 1) * inverse[:, None], mixed)
    tl.store(out + one, mixed, mask=live[:, None])


@triton.jit(do_not_specialize=SIZES)
def read_back(
    queries, keys, values, out, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, PAD: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Gradients of `read`'s queries, keys and values."""
    seed = tl.program_id(1).to(tl.int64)
    at, there, one, live = _sequences(count, TOKENS, PAD, GROUP, D)
    at, one = at + seed * CAPACITY * TOKENS * D, one + seed * CAPACITY * D
    q = tl.load(queries + one, mask=live[:, None], other=0.0)
    k = tl.load(keys + at, mask=there[:, :, None], other=0.0)
    v = tl.load(values + at, mask=there[:, :, None], other=0.0)
    mixed = tl.load(out + one, mask=live[:, None], other=0.0)
    grad = tl.load(d_out + one, mask=live[:, None], other=0.0)
    head = tl.arange(0, D)[None, :] // (D // H)
    dq, dk, dv = tl.zeros_like(q), tl.zeros_like(k), tl.zeros_like(v)
    for h in tl.static_range(H):
        qh = tl.where(head == h, q, 0.0)
        a, inverse = _read_weights(qh, k, there, SCALE, SOFTMAX)
        g = tl.where(head == h, grad * inverse[:, None], 0.0)
        dv += a[:, :, None] * g[:, None, :]
        da = tl.sum(g[:, None, :] * v, 2) - tl.sum(g * mixed, 1)[:, None]
        da = a * da * SCALE if SOFTMAX else tl.where(there, da, 0.0)
        dq = tl.where(head == h, tl.sum(da[:, :, None] * k, 1), dq)
        dk += da[:, :, None] * qh[:, None, :]
    tl.store(d_queries + one, dq, mask=live[:, None])
    tl.store(d_keys + at, dk, mask=there[:, :, None])
    tl.store(d_values + at, dv, mask=there[:, :, None])
