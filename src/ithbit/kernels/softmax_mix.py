"""The mixing of softmax attention at all tokens: one warp takes a chunk of a sequence's tokens.

Tokens stand in their order; a sequence is cut into chunks of 16, the last one filled up. A program
of the forward pass takes a chunk of queries over all chunks of keys; one of the backward pass takes
a chunk as queries first, then as keys and values. `total` (seed, example, token, head) keeps the
logarithm of a query's sum of exponentials, so that the backward pass has every weight at once.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import CHUNK, chunk_of, chunk_transposed, dot

_NEVER = tl.constexpr(-1e30)


@triton.jit
def _seen(queries, keys, TOKENS: tl.constexpr, CAUSAL: tl.constexpr):
    """Whether a query sees a key, for tokens that broadcast against each other."""
    out = (keys < TOKENS) & (queries < TOKENS)
    if CAUSAL:
        out = out & (keys <= queries)
    return out


@triton.jit
def mix(
    queries, keys, values, out, total, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Mixed values (seed, example, token, D), and `total`."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mine, example = program % CHUNKS, program // CHUNKS
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS
        head = tl.arange(0, D)[None, :] // (D // H)
        _, live, at = chunk_of(mine, TOKENS, D)
        q = tl.load(queries + start * D + at, mask=live, other=0.0) * SCALE
        t = mine * CHUNK + tl.arange(0, CHUNK)
        mixed = tl.zeros([CHUNK, D], tl.float32)
        for h in tl.static_range(H):
            qh = tl.where(head == h, q, 0.0)
            top = tl.full([CHUNK], _NEVER, tl.float32)
            sum_ = tl.zeros([CHUNK], tl.float32)
            part = tl.zeros([CHUNK, D], tl.float32)
            for c in range(CHUNKS):
                if c <= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    _, there, where = chunk_of(c, TOKENS, D)
                    k = chunk_transposed(keys + start * D, c, TOKENS, D)
                    v = tl.load(values + start * D + where, mask=there, other=0.0)
                    see = _seen(t[:, None], s[None, :], TOKENS, CAUSAL)
                    score = tl.where(see, dot(qh, k), _NEVER)
                    new_top = tl.maximum(top, tl.max(score, 1))
                    shrink = tl.exp(top - new_top)
                    a = tl.exp(score - new_top[:, None])
                    sum_ = sum_ * shrink + tl.sum(a, 1)
                    part = part * shrink[:, None] + dot(a, v)
                    top = new_top
            mixed = tl.where(head == h, part / sum_[:, None], mixed)
            tl.store(total + (start + t) * H + h, top + tl.log(sum_), mask=t < TOKENS)
        tl.store(out + start * D + at, mixed, mask=live)


@triton.jit
def mix_back(
    queries, keys, values, out, total, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values from that of the mixed values `out`."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    mine, example = program % CHUNKS, program // CHUNKS
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS
        head, head_down = tl.arange(0, D)[None, :] // (D // H), tl.arange(0, D)[:, None] // (D // H)
        _, live, at = chunk_of(mine, TOKENS, D)
        t = mine * CHUNK + tl.arange(0, CHUNK)
        q = tl.load(queries + start * D + at, mask=live, other=0.0) * SCALE
        g = tl.load(d_out + start * D + at, mask=live, other=0.0)
        along = g * tl.load(out + start * D + at, mask=live, other=0.0)
        dq = tl.zeros([CHUNK, D], tl.float32)
        for h in tl.static_range(H):
            qh, gh = tl.where(head == h, q, 0.0), tl.where(head == h, g, 0.0)
            delta = tl.sum(tl.where(head == h, along, 0.0), 1)
            log = tl.load(total + (start + t) * H + h, mask=t < TOKENS, other=0.0)
            part = tl.zeros([CHUNK, D], tl.float32)
            for c in range(CHUNKS):
                if c <= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    see = _seen(t[:, None], s[None, :], TOKENS, CAUSAL)
                    score = tl.where(
                        see, dot(qh, chunk_transposed(keys + start * D, c, TOKENS, D)), _NEVER
                    )
                    da = (
                        dot(gh, chunk_transposed(values + start * D, c, TOKENS, D)) - delta[:, None]
                    )
                    _, there, where = chunk_of(c, TOKENS, D)
                    k = tl.load(keys + start * D + where, mask=there, other=0.0)
                    part += dot(tl.exp(score - log[:, None]) * da, k)
            dq = tl.where(head == h, part, dq)
        tl.store(d_queries + start * D + at, dq * SCALE, mask=live)

        k = tl.load(keys + start * D + at, mask=live, other=0.0)
        v = tl.load(values + start * D + at, mask=live, other=0.0)
        dk, dv = tl.zeros([CHUNK, D], tl.float32), tl.zeros([CHUNK, D], tl.float32)
        for h in tl.static_range(H):
            kh, vh = tl.where(head == h, k, 0.0), tl.where(head == h, v, 0.0)
            part_k, part_v = tl.zeros([CHUNK, D], tl.float32), tl.zeros([CHUNK, D], tl.float32)
            for c in range(CHUNKS):
                if c >= mine if CAUSAL else c >= 0:
                    s = c * CHUNK + tl.arange(0, CHUNK)
                    see = _seen(s[None, :], t[:, None], TOKENS, CAUSAL)
                    g_down = chunk_transposed(d_out + start * D, c, TOKENS, D)
                    along = g_down * chunk_transposed(out + start * D, c, TOKENS, D)
                    delta = tl.sum(tl.where(head_down == h, along, 0.0), 0)
                    log = tl.load(total + (start + s) * H + h, mask=s < TOKENS, other=0.0)
                    q_down = chunk_transposed(queries + start * D, c, TOKENS, D) * SCALE
                    score = tl.where(see, dot(kh, q_down), _NEVER)
                    a = tl.exp(score - log[None, :])
                    da = a * (dot(vh, g_down) - delta[None, :])
                    _, there, where = chunk_of(c, TOKENS, D)
                    part_v += dot(a, tl.load(d_out + start * D + where, mask=there, other=0.0))
                    part_k += dot(da, tl.load(queries + start * D + where, mask=there, other=0.0))
            dk, dv = tl.where(head == h, part_k, dk), tl.where(head == h, part_v, dv)
        tl.store(d_keys + start * D + at, dk * SCALE, mask=live)
        tl.store(d_values + start * D + at, dv, mask=live)
