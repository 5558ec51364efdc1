"""The mixing of linear attention at all tokens: one warp goes over a sequence in chunks of 16.

A query sees the tokens before its chunk through two sums, state = sum of k v^T and norm = sum of k,
and those of its own chunk through a token-by-token matrix; in full attention the sums are over all
tokens and there is no matrix. Heads are diagonal blocks of the state (`_same_head`).

With g = d_out / denominator and delta = g . out, both per head, the gradient of a weight is
g_t . v_s - delta_t, so the backward pass has the same form: queries see state and norm, keys and
values see the sums of q g^T and delta q over the queries that see them.

Exact saving: one or two tokens left after whole chunks (`tile.alone`; as at n = 16, 32 and 64)
see and enter the sums one by one, with plain multiply-adds. Each takes a seventh of a chunk's
instructions, or a quarter in full attention; as a last chunk they would cost as much as a whole
one.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import (
    CHUNK,
    SIZES,
    alone,
    chunk_of,
    chunk_transposed,
    chunks_of,
    dot,
    load_across,
    load_down,
)
from ithbit.layouts import LINEAR

_EPS = tl.constexpr(LINEAR.denominator_eps)  # in the denominator


@triton.jit
def _same_head(D: tl.constexpr, H: tl.constexpr):
    """1 where two columns belong to the same head, else 0: D D."""
    r, c = tl.arange(0, D)[:, None] // (D // H), tl.arange(0, D)[None, :] // (D // H)
    return tl.where(r == c, 1.0, 0.0)


@triton.jit
def _add(state, norm, keys, values, c, TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr):
    """State (D D) and norm (D 1) with chunk c added."""
    _, live, at = chunk_of(c, TOKENS, D)
    k = chunk_transposed(keys, c, TOKENS, D)
    v = tl.load(values + at, mask=live, other=0.0)
    return state + dot(k, v) * _same_head(D, H), norm + tl.sum(k, 1)[:, None]


@triton.jit
def _add_one(state, norm, keys, values, t, D: tl.constexpr, H: tl.constexpr):
    """The same with token t added."""
    k = load_down(keys, t, D)
    return state + k * load_across(values, t, D) * _same_head(D, H), norm + k


@triton.jit
def _mix_one(state, norm, queries, out, inverse, t, D: tl.constexpr, H: tl.constexpr):
    """`mix` for token t alone."""
    q = load_down(queries, t, D)
    inverted = 1.0 / (tl.sum(q * norm * _same_head(D, H), 0)[None, :] + _EPS)
    at = t * D + tl.arange(0, D)[None, :]
    tl.store(out + at, tl.sum(q * state, 0)[None, :] * inverted)
    tl.store(inverse + at, inverted)


@triton.jit
def _back_alone(
    carried, inputs, outputs,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """`mix_back` for the tokens taken one by one; returns the sums with their queries added."""
    state, norm, sums, along = carried
    queries, keys, values, out, inverse, d_out = inputs
    d_queries, d_keys, d_values = outputs
    ALONE: tl.constexpr = alone(TOKENS)
    FIRST: tl.constexpr = TOKENS - ALONE
    same = _same_head(D, H)
    down, across = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    tokens = ()  # loaded before any store: no load is moved ahead of a store
    for i in tl.static_range(ALONE):
        q, k = load_down(queries, FIRST + i, D), load_down(keys, FIRST + i, D)
        v, g = load_across(values, FIRST + i, D), load_across(d_out, FIRST + i, D)
        g *= load_across(inverse, FIRST + i, D)
        delta = tl.sum(g * load_across(out, FIRST + i, D) * same, 1)[:, None]
        if CAUSAL:
            state, norm = state + k * v * same, norm + k
        else:
            sums, along = sums + q * g * same, along + tl.trans(delta * q)
        dq = tl.sum(state * g, 1)[:, None] - delta * norm
        tokens += ((q, k, v, g, delta, dq),)  # type: ignore[assignment]
    for i in tl.static_range(ALONE - 1, -1, -1):
        q, k, v, g, delta, dq = tokens[i]
        if CAUSAL:
            sums, along = sums + q * g * same, along + tl.trans(delta * q)
        dk = tl.sum(sums * v, 1)[:, None] - tl.trans(along)
        tl.store(d_queries + (FIRST + i) * D + down, dq)
        tl.store(d_keys + (FIRST + i) * D + down, dk)
        tl.store(d_values + (FIRST + i) * D + across, tl.sum(sums * k, 0)[None, :])
    return sums, along


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
    """Mixed values, and 1 / denominator in each column of its head: seed example token D."""
    ALONE: tl.constexpr = alone(TOKENS)
    CHUNKS: tl.constexpr = chunks_of(TOKENS)
    example, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS * D
        queries, keys, values = queries + start, keys + start, values + start
        head, same = tl.arange(0, D)[None, :] // (D // H), _same_head(D, H)
        state, norm = tl.zeros([D, D], tl.float32), tl.zeros([D, 1], tl.float32)
        if not CAUSAL:
            for c in range(CHUNKS):
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
            for i in tl.static_range(ALONE):
                state, norm = _add_one(state, norm, keys, values, TOKENS - ALONE + i, D, H)
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
        for i in tl.static_range(ALONE):
            t = TOKENS - ALONE + i
            if CAUSAL:
                state, norm = _add_one(state, norm, keys, values, t, D, H)
            _mix_one(state, norm, queries, out + start, inverse + start, t, D, H)


@triton.jit(do_not_specialize=SIZES)
def mix_back(
    queries, keys, values, out, inverse, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values from that of the mixed values `out`."""
    ALONE: tl.constexpr = alone(TOKENS)
    CHUNKS: tl.constexpr = chunks_of(TOKENS)
    example, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if example < count:
        start = (seed * CAPACITY + example) * TOKENS * D
        queries, keys, values = queries + start, keys + start, values + start
        out, inverse, d_out = out + start, inverse + start, d_out + start
        head, same = tl.arange(0, D)[None, :] // (D // H), _same_head(D, H)
        head_down = tl.arange(0, D)[:, None] // (D // H)
        before = _before()

        # Queries, in forward order; in full attention the sums for keys and values too.
        state, norm = tl.zeros([D, D], tl.float32), tl.zeros([D, 1], tl.float32)
        sums, along = tl.zeros([D, D], tl.float32), tl.zeros([1, D], tl.float32)
        if not CAUSAL:
            for c in range(CHUNKS):
                state, norm = _add(state, norm, keys, values, c, TOKENS, D, H)
            for i in tl.static_range(ALONE):
                state, norm = _add_one(state, norm, keys, values, TOKENS - ALONE + i, D, H)
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

        # All gradients of the tokens taken one by one.
        if ALONE > 0:
            d_qkv = d_queries + start, d_keys + start, d_values + start
            sums, along = _back_alone(
                (state, norm, sums, along), (queries, keys, values, out, inverse, d_out), d_qkv,
                TOKENS, D, H, CAUSAL,
            )  # fmt: skip

        # Keys and values, in backward order.
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
