"""The mixing of linear attention at all tokens: one warp goes over a sequence in chunks of 16.

A query sees the tokens before its chunk through two sums, state = sum of k v^T and norm = sum of k,
and those of its own chunk through a token-by-token matrix; in full attention the sums are over all
tokens and there is no matrix. Heads are diagonal blocks of the state (`_same_head`).

With g = d_out / denominator and delta = g . out, both of a head, the gradient of a weight is
g_t . v_s - delta_t, so the backward pass has the same shape: queries see state and norm, keys and
values see the sums of q g^T and delta q over the queries that see them.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import CHUNK, SIZES, chunk_of, chunk_transposed, dot

_EPS = tl.constexpr(1e-6)  # in the denominator


@triton.jit
def _same_head(D: tl.constexpr, H: tl.constexpr):
    """1 where two columns belong to one head, else 0: D D."""
    r, c = tl.arange(0, D)[:, None] // (D // H), tl.arange(0, D)[None, :] // (D // H)
    return tl.where(r == c, 1.0, 0.0)


@triton.jit
def _add(state, norm, keys, values, c, TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr):
    """State (D D) and norm (D 1) with chunk c taken in."""
    _, live, at = chunk_of(c, TOKENS, D)
    k = chunk_transposed(keys, c, TOKENS, D)
    v = tl.load(values + at, mask=live, other=0.0)
    return state + dot(k, v) * _same_head(D, H), norm + tl.sum(k, 1)[:, None]


@triton.jit
def _before():
    """1 where a chunk's token s (column) is not after its token t (row), else 0."""
    t, s = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    return tl.where(s <= t, 1.0, 0.0)


@triton.jit(do_not_specialize=SIZES)
def mix(
    queries, keys, values, out, inverse, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Mixed values, and 1 / denominator in each column of its head (seed, example, token, D)."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    example, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS * D
        queries, keys, values = queries + start, keys + start, values + start
        head, same = tl.arange(0, D)[None, :] // (D // H), _same_head(D, H)
        state, norm = tl.zeros([D, D], tl.float32), tl.zeros([D, 1], tl.float32)
        if not CAUSAL:
            for c in range(CHUNKS):
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
        for c in range(CHUNKS):
            _, live, at = chunk_of(c, TOKENS, D)
            q = tl.load(queries + at, mask=live, other=0.0)
            mixed, total = dot(q, state), dot(q, norm * same)
            if CAUSAL:
                k = chunk_transposed(keys, c, TOKENS, D)
                v = tl.load(values + at, mask=live, other=0.0)
                for h in tl.static_range(H):
                    a = dot(tl.where(head == h, q, 0.0), k) * _before()
                    mixed += tl.where(head == h, dot(a, v), 0.0)
                    total += tl.where(head == h, tl.sum(a, 1)[:, None], 0.0)
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
            inverted = 1.0 / (total + _EPS)
            tl.store(out + start + at, mixed * inverted, mask=live)
            tl.store(inverse + start + at, inverted, mask=live)


@triton.jit(do_not_specialize=SIZES)
def mix_back(
    queries, keys, values, out, inverse, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values from that of the mixed values `out`."""
    CHUNKS: tl.constexpr = (TOKENS + CHUNK - 1) // CHUNK
    example, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS * D
        queries, keys, values = queries + start, keys + start, values + start
        out, inverse, d_out = out + start, inverse + start, d_out + start
        head, same = tl.arange(0, D)[None, :] // (D // H), _same_head(D, H)
        head_down = tl.arange(0, D)[:, None] // (D // H)
        before = _before()

        # Queries, forwards; in full attention the sums for keys and values too.
        state, norm = tl.zeros([D, D], tl.float32), tl.zeros([D, 1], tl.float32)
        sums, along = tl.zeros([D, D], tl.float32), tl.zeros([1, D], tl.float32)
        if not CAUSAL:
            for c in range(CHUNKS):
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
        for c in range(CHUNKS):
            _, live, at = chunk_of(c, TOKENS, D)
            g = tl.load(d_out + at, mask=live, other=0.0)
            g *= tl.load(inverse + at, mask=live, other=0.0)
            delta = dot(g * tl.load(out + at, mask=live, other=0.0), same)
            dq = dot(g, tl.trans(state)) - delta * tl.trans(norm)
            if CAUSAL:
                k = tl.load(keys + at, mask=live, other=0.0)
                v = chunk_transposed(values, c, TOKENS, D)
                for h in tl.static_range(H):
                    da = dot(tl.where(head == h, g, 0.0), v)
                    da -= tl.sum(tl.where(head == h, delta, 0.0), 1)[:, None] / (D // H)
                    dq += tl.where(head == h, dot(da * before, k), 0.0)
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
            else:
                q = chunk_transposed(queries, c, TOKENS, D)
                sums += dot(q, g) * same
                along += tl.sum(delta * tl.load(queries + at, mask=live, other=0.0), 0)[None, :]
            tl.store(d_queries + start + at, dq, mask=live)

        # Keys and values, backwards.
        for i in range(CHUNKS):
            c = CHUNKS - 1 - i
            _, live, at = chunk_of(c, TOKENS, D)
            k = tl.load(keys + at, mask=live, other=0.0)
            v = tl.load(values + at, mask=live, other=0.0)
            dk, dv = dot(v, tl.trans(sums)) - along, dot(k, sums)
            if CAUSAL:
                q = tl.load(queries + at, mask=live, other=0.0)
                q_down = chunk_transposed(queries, c, TOKENS, D)
                g = tl.load(d_out + at, mask=live, other=0.0)
                g *= tl.load(inverse + at, mask=live, other=0.0)
                g_down = chunk_transposed(d_out, c, TOKENS, D)
                g_down *= chunk_transposed(inverse, c, TOKENS, D)
                by = g_down * chunk_transposed(out, c, TOKENS, D)
                after = tl.trans(before)
                for h in tl.static_range(H):
                    delta = tl.sum(tl.where(head_down == h, by, 0.0), 0)[None, :]
                    da = (dot(tl.where(head == h, v, 0.0), g_down) - delta) * after
                    dk += tl.where(head == h, dot(da, q), 0.0)
                    a = dot(tl.where(head == h, k, 0.0), q_down) * after
                    dv += tl.where(head == h, dot(a, g), 0.0)
                sums += dot(q_down, g) * same
                delta = dot(g * tl.load(out + at, mask=live, other=0.0), same)
                along += tl.sum(delta * q, 0)[None, :]
            tl.store(d_keys + start + at, dk, mask=live)
            tl.store(d_values + start + at, dv, mask=live)
