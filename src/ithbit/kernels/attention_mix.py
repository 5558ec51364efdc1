"""The mixing of softmax and linear attention: one program a tile of sequences.

Both have one form,

    out_t = sum over s of a_ts v_s / sum over s of a_ts,

with a = exp(score - largest) or a = score: they differ in two lines of `_weights` and one of
`_attend_back`.

At all tokens (`mix`), a tile is GROUP sequences: ROWS main rows for their bit tokens (each sequence
filled up to PAD of them) and SIDE rows for the tokens that are not bits, slot `which * 8 +
sequence` with which = 0 for the query and 1 for LHI's end token. n + 1 or n + 2 tokens filled up to
a power of two would cost two to three times as much. At the last token alone (`read`) there is one
query a sequence, and no matrix product at all.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import dot

_SIDE = tl.constexpr(16)  # side rows of a tile: the least that a product takes
_SLOTS = tl.constexpr(8)  # sequences that they have room for
_DENOMINATOR_EPS = tl.constexpr(1e-6)


@triton.jit
def _main_tokens(
    tile, count, N: tl.constexpr, LHI: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr
):
    """Example, sequence of the tile, position, and whether there is such a token: row each."""
    r = tl.arange(0, ROWS)
    example = tile * (ROWS // PAD) + r // PAD
    i = r % PAD
    return example, r // PAD, tl.minimum(i, N - 1) + LHI, (i < N) & (example < count)


@triton.jit
def _side_tokens(tile, count, N: tl.constexpr, LHI: tl.constexpr, GROUP: tl.constexpr):
    """The same of the side rows."""
    s = tl.arange(0, _SIDE)
    which, group = s // _SLOTS, s % _SLOTS
    example = tile * GROUP + group
    live = (group < GROUP) & (example < count) & (which <= LHI)
    position = tl.where(which == 0, 0 if LHI else N, N + LHI)
    return example, group, position, live


@triton.jit
def _rows(example, position, TOKENS: tl.constexpr, D: tl.constexpr):
    """Where tokens lie in (example, token, D): row D."""
    return (example * TOKENS + position)[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def _seen(q_group, q_position, group, position, live, CAUSAL: tl.constexpr):
    """Which tokens a query sees: query token."""
    out = (q_group[:, None] == group[None, :]) & live[None, :]
    if CAUSAL:
        out = out & (position[None, :] <= q_position[:, None])
    return out


@triton.jit
def _weights(q, km, ks, see_m, see_s, SCALE: tl.constexpr, SOFTMAX: tl.constexpr):
    """Unscaled weights of one head on main and side tokens, and 1 / their sum."""
    am, as_ = dot(q, tl.trans(km)), dot(q, tl.trans(ks))
    if SOFTMAX:
        am = tl.where(see_m, am * SCALE, -1e30)
        as_ = tl.where(see_s, as_ * SCALE, -1e30)
        top = tl.maximum(tl.max(am, 1), tl.max(as_, 1))[:, None]
        am = tl.where(see_m, tl.exp(am - top), 0.0)
        as_ = tl.where(see_s, tl.exp(as_ - top), 0.0)
        # The largest weight is 1; the sum is less only for a row that is no token.
        total = tl.maximum(tl.sum(am, 1) + tl.sum(as_, 1), 1.0)
    else:
        am = tl.where(see_m, am, 0.0)
        as_ = tl.where(see_s, as_, 0.0)
        total = tl.sum(am, 1) + tl.sum(as_, 1) + _DENOMINATOR_EPS
    return am, as_, (1.0 / total)[:, None]


@triton.jit
def _attend(
    q, km, ks, vm, vs, see_m, see_s,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """The mixed values of some queries, heads side by side: query D."""
    head = tl.arange(0, D)[None, :] // (D // H)
    out = tl.zeros_like(q)
    for h in tl.static_range(H):
        kmh, ksh = tl.where(head == h, km, 0.0), tl.where(head == h, ks, 0.0)
        am, as_, inverse = _weights(q, kmh, ksh, see_m, see_s, SCALE, SOFTMAX)
        mixed = dot(am, vm) + dot(as_, vs)
        out = tl.where(head == h, mixed * inverse, out)
    return out


@triton.jit
def _attend_back(
    q, km, ks, vm, vs, see_m, see_s, out, grad,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, main keys and values, side keys and values, from that of `out`."""
    head = tl.arange(0, D)[None, :] // (D // H)
    dq = tl.zeros_like(q)
    dkm, dks, dvm, dvs = tl.zeros_like(km), tl.zeros_like(ks), tl.zeros_like(vm), tl.zeros_like(vs)
    for h in tl.static_range(H):
        qh = tl.where(head == h, q, 0.0)
        kmh, ksh = tl.where(head == h, km, 0.0), tl.where(head == h, ks, 0.0)
        am, as_, inverse = _weights(q, kmh, ksh, see_m, see_s, SCALE, SOFTMAX)
        g = tl.where(head == h, grad * inverse, 0.0)
        along = tl.sum(g * out, 1)[:, None]
        dvm += dot(tl.trans(am), g)
        dvs += dot(tl.trans(as_), g)
        dam, das = dot(g, tl.trans(vm)) - along, dot(g, tl.trans(vs)) - along
        if SOFTMAX:
            dam, das = am * dam * SCALE, as_ * das * SCALE
        else:
            dam, das = tl.where(see_m, dam, 0.0), tl.where(see_s, das, 0.0)
        dq += dot(dam, kmh) + dot(das, ksh)
        dkm += dot(tl.trans(dam), qh)
        dks += dot(tl.trans(das), qh)
    return dq, dkm, dks, dvm, dvs


@triton.jit
def mix(
    queries, keys, values, out, count, CAPACITY,
    N: tl.constexpr, LHI: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Mixed values at all tokens; everything is (seed, example, token, D)."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    start = seed * CAPACITY * TOKENS * D
    em, gm, pm, lm = _main_tokens(tile, count, N, LHI, PAD, ROWS)
    es, gs, ps, ls = _side_tokens(tile, count, N, LHI, ROWS // PAD)
    at_m, at_s = start + _rows(em, pm, TOKENS, D), start + _rows(es, ps, TOKENS, D)
    km, ks = _load(keys, at_m, lm), _load(keys, at_s, ls)
    vm, vs = _load(values, at_m, lm), _load(values, at_s, ls)
    see_m, see_s = _seen(gs, ps, gm, pm, lm, CAUSAL), _seen(gs, ps, gs, ps, ls, CAUSAL)
    mixed = _attend(_load(queries, at_s, ls), km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    tl.store(out + at_s, mixed, mask=ls[:, None])
    see_m, see_s = _seen(gm, pm, gm, pm, lm, CAUSAL), _seen(gm, pm, gs, ps, ls, CAUSAL)
    mixed = _attend(_load(queries, at_m, lm), km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    tl.store(out + at_m, mixed, mask=lm[:, None])


@triton.jit
def mix_back(
    queries, keys, values, out, d_out, d_queries, d_keys, d_values, count, CAPACITY,
    N: tl.constexpr, LHI: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values from that of the mixed values `out`."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    start = seed * CAPACITY * TOKENS * D
    em, gm, pm, lm = _main_tokens(tile, count, N, LHI, PAD, ROWS)
    es, gs, ps, ls = _side_tokens(tile, count, N, LHI, ROWS // PAD)
    at_m, at_s = start + _rows(em, pm, TOKENS, D), start + _rows(es, ps, TOKENS, D)
    km, ks = _load(keys, at_m, lm), _load(keys, at_s, ls)
    vm, vs = _load(values, at_m, lm), _load(values, at_s, ls)
    see_m, see_s = _seen(gs, ps, gm, pm, lm, CAUSAL), _seen(gs, ps, gs, ps, ls, CAUSAL)
    dq, dkm, dks, dvm, dvs = _attend_back(
        _load(queries, at_s, ls), km, ks, vm, vs, see_m, see_s,
        _load(out, at_s, ls), _load(d_out, at_s, ls), D, H, SCALE, SOFTMAX,
    )  # fmt: skip
    tl.store(d_queries + at_s, dq, mask=ls[:, None])
    see_m, see_s = _seen(gm, pm, gm, pm, lm, CAUSAL), _seen(gm, pm, gs, ps, ls, CAUSAL)
    dq, more_km, more_ks, more_vm, more_vs = _attend_back(
        _load(queries, at_m, lm), km, ks, vm, vs, see_m, see_s,
        _load(out, at_m, lm), _load(d_out, at_m, lm), D, H, SCALE, SOFTMAX,
    )  # fmt: skip
    tl.store(d_queries + at_m, dq, mask=lm[:, None])
    tl.store(d_keys + at_m, dkm + more_km, mask=lm[:, None])
    tl.store(d_keys + at_s, dks + more_ks, mask=ls[:, None])
    tl.store(d_values + at_m, dvm + more_vm, mask=lm[:, None])
    tl.store(d_values + at_s, dvs + more_vs, mask=ls[:, None])


@triton.jit
def _load(pointer, at, live):
    return tl.load(pointer + at, mask=live[:, None], other=0.0)


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


@triton.jit
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


@triton.jit
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
