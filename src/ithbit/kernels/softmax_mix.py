"""The mixing of softmax attention at all tokens: one warp takes a chunk of a sequence's tokens.

Tokens stand in their order; a sequence is cut into chunks of 16, the last one filled up. A program
of the forward pass takes a chunk of queries over all chunks of keys; one of the backward pass takes
a chunk as queries first, then as keys and values. `total` (seed, example, token, head) keeps the
logarithm of a query's sum of exponentials, so that the backward pass has every weight at once.

A product sums over at least 16 numbers, a small head has fewer: its rows are loaded with copies of
themselves up to WIDE, and `_head_dot` puts the parts of three tf32 passes in the copies' places.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import CHUNK, SIZES, dot, high

_NEVER = tl.constexpr(-1e30)


@triton.jit
def _head_dot(a, b, HEAD: tl.constexpr):
    """a @ b over one head: a is (row, WIDE) and b (WIDE, row), each with copies of the head."""
    if HEAD >= CHUNK:
        out = dot(a, b)
    else:
        copy = tl.arange(0, CHUNK)[None, :] // HEAD
        a_high, b_high = high(a), high(b)
        once = tl.where(copy == 0, a_high, 0.0)
        both = tl.where(copy == 1, a - a_high, once)
        out = tl.dot(once, b - b_high, input_precision="tf32")
        out = tl.dot(both, b_high, out, input_precision="tf32")
    return out


@triton.jit
def _rows(
    pointer, t, TOKENS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr, WIDE: tl.constexpr
):
    """One head's rows at tokens t, with copies up to WIDE columns: token WIDE."""
    column = tl.arange(0, WIDE)[None, :] % HEAD
    return tl.load(pointer + t[:, None] * D + column, mask=t[:, None] < TOKENS, other=0.0)


@triton.jit
def _columns(
    pointer, t, TOKENS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr, WIDE: tl.constexpr
):
    """The same transposed: WIDE token."""
    row = tl.arange(0, WIDE)[:, None] % HEAD
    return tl.load(pointer + t[None, :] * D + row, mask=t[None, :] < TOKENS, other=0.0)


@triton.jit
def _seen(queries, keys, TOKENS: tl.constexpr, CAUSAL: tl.constexpr):
    """Whether a query sees a key, for tokens that broadcast against each other."""
    out = (keys < TOKENS) & (queries < TOKENS)
    if CAUSAL:
        out = out & (keys <= queries)
    return out


@triton.jit(do_not_specialize=SIZES)
def mix(
    queries, keys, values, out, total, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Mixed values (seed, example, token, D), and `total`."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    HEAD: tl.constexpr = D // H
    WIDE: tl.constexpr = HEAD if HEAD > CHUNK else CHUNK
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mine, example = program % CHUNKS, program // CHUNKS
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS
        queries, keys, values = queries + start * D, keys + start * D, values + start * D
        t = mine * CHUNK + tl.arange(0, CHUNK)
        at = (start + t)[:, None] * D + tl.arange(0, HEAD)[None, :]
        for h in tl.static_range(H):
            q = _rows(queries + h * HEAD, t, TOKENS, D, HEAD, WIDE) * SCALE
            top = tl.full([CHUNK], _NEVER, tl.float32)
            whole = tl.zeros([CHUNK], tl.float32)
            part = tl.zeros([CHUNK, HEAD], tl.float32)
            for c in range(CHUNKS):
                if c <= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    see = _seen(t[:, None], s[None, :], TOKENS, CAUSAL)
                    k = _columns(keys + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    score = tl.where(see, _head_dot(q, k, HEAD), _NEVER)
                    new_top = tl.maximum(top, tl.max(score, 1))
                    shrink = tl.exp(top - new_top)
                    a = tl.exp(score - new_top[:, None])
                    whole = whole * shrink + tl.sum(a, 1)
                    v = _rows(values + h * HEAD, s, TOKENS, D, HEAD, HEAD)
                    part = part * shrink[:, None] + dot(a, v)
                    top = new_top
            tl.store(out + at + h * HEAD, part / whole[:, None], mask=t[:, None] < TOKENS)
            tl.store(total + (start + t) * H + h, top + tl.log(whole), mask=t < TOKENS)


@triton.jit(do_not_specialize=SIZES)
def mix_back(
    queries, keys, values, out, total, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values from that of the mixed values `out`."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    HEAD: tl.constexpr = D // H
    WIDE: tl.constexpr = HEAD if HEAD > CHUNK else CHUNK
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mine, example = program % CHUNKS, program // CHUNKS
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS
        queries, keys, values = queries + start * D, keys + start * D, values + start * D
        out, d_out, total = out + start * D, d_out + start * D, total + start * H
        t = mine * CHUNK + tl.arange(0, CHUNK)
        live = t[:, None] < TOKENS
        at = (start + t)[:, None] * D + tl.arange(0, HEAD)[None, :]
        for h in tl.static_range(H):
            q = _rows(queries + h * HEAD, t, TOKENS, D, HEAD, WIDE) * SCALE
            g = _rows(d_out + h * HEAD, t, TOKENS, D, HEAD, WIDE)
            along = g * _rows(out + h * HEAD, t, TOKENS, D, HEAD, WIDE)
            delta = tl.sum(along, 1) / (WIDE // HEAD)
            log = tl.load(total + t * H + h, mask=t < TOKENS, other=0.0)
            dq = tl.zeros([CHUNK, HEAD], tl.float32)
            for c in range(CHUNKS):
                if c <= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    see = _seen(t[:, None], s[None, :], TOKENS, CAUSAL)
                    k = _columns(keys + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    score = tl.where(see, _head_dot(q, k, HEAD), _NEVER)
                    v = _columns(values + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    da = _head_dot(g, v, HEAD) - delta[:, None]
                    da *= tl.exp(score - log[:, None])
                    dq += dot(da, _rows(keys + h * HEAD, s, TOKENS, D, HEAD, HEAD))
            tl.store(d_queries + at + h * HEAD, dq * SCALE, mask=live)

        for h in tl.static_range(H):
            k = _rows(keys + h * HEAD, t, TOKENS, D, HEAD, WIDE) * SCALE
            v = _rows(values + h * HEAD, t, TOKENS, D, HEAD, WIDE)
            dk, dv = tl.zeros([CHUNK, HEAD], tl.float32), tl.zeros([CHUNK, HEAD], tl.float32)
            for c in range(CHUNKS):
                if c >= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    see = _seen(s[None, :], t[:, None], TOKENS, CAUSAL)
                    g = _columns(d_out + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    along = g * _columns(out + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    delta = tl.sum(along, 0) / (WIDE // HEAD)
                    log = tl.load(total + s * H + h, mask=s < TOKENS, other=0.0)
                    q = _columns(queries + h * HEAD, s, TOKENS, D, HEAD, WIDE)
                    score = tl.where(see, _head_dot(k, q, HEAD), _NEVER)
                    a = tl.exp(score - log[None, :])
                    da = a * (_head_dot(v, g, HEAD) - delta[None, :])
                    dv += dot(a, _rows(d_out + h * HEAD, s, TOKENS, D, HEAD, HEAD))
                    dk += dot(da, _rows(queries + h * HEAD, s, TOKENS, D, HEAD, HEAD))
            tl.store(d_keys + at + h * HEAD, dk * SCALE, mask=live)
            tl.store(d_values + at + h * HEAD, dv, mask=live)
