"""Softmax and linear attention blocks, full and causal, fused: one program a tile of sequences.

A tile is GROUP sequences: ROWS main rows for their bit tokens (each sequence filled up to PAD of
them) and SIDE rows for the tokens that are not bits, slot `which * 8 + sequence` with which = 0 for
the query and 1 for LHI's end token. n + 1 or n + 2 tokens filled up to a power of two in one tile
would cost two to three times as much. Both mixers have one form,

    out_t = sum over s of a_ts v_s / sum over s of a_ts,

with a = exp(score - largest) or a = score: they differ in two lines of `_weights` and one of
`_attend_back`.

Exact savings: the answer is read at the last token, which is a side row, so the last block has
queries, an attention row and a feed-forward part for the side rows alone, and its forward and
backward passes are one launch; other blocks keep only their input and are recomputed in the
backward pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ithbit.families import FAMILIES
from ithbit.kernels.plan import Plan
from ithbit.kernels.tile import (
    cross_entropy,
    dot,
    draw_bit,
    draw_index,
    gelu,
    gelu_slope,
    load_embedding,
    load_matrix,
    load_transposed,
    load_vector,
    normalise,
    normalise_back,
    store_embedding,
    store_matrix,
    store_vector,
    token_features,
)
from ithbit.models.positions import waves

_WARPS = 4
_SIDE = tl.constexpr(16)  # side rows of a tile: the least that a product takes
_SLOTS = tl.constexpr(8)  # sequences that they have room for
_DENOMINATOR_EPS = tl.constexpr(1e-6)


@triton.constexpr_function
def _at(name, D, FF, SOFTMAX):
    """Where a parameter starts within its block: the order of each family's `init_block`."""
    sizes = {
        "norm1.weight": D,
        "norm1.bias": D,
        "qkv.weight": 3 * D * D,
        "qkv.bias": 3 * D,
        "out.weight": D * D,
        "out.bias": D,
        "norm2.weight": D,
        "norm2.bias": D,
        "up.weight": FF * D,
        "up.bias": FF,
        "down.weight": D * FF,
        "down.bias": D,
    }
    if SOFTMAX:
        order = [key for key in sizes if "norm" not in key] + [k for k in sizes if "norm" in k]
    else:
        order = [key for key in sizes if key not in ("qkv.bias", "out.bias")]
    return sum(sizes[key] for key in order[: order.index(name)])


@triton.constexpr_function
def _eps(SOFTMAX):
    """The epsilon of the blocks' LayerNorms: BERT's, and PyTorch's."""
    return 1e-12 if SOFTMAX else 1e-5


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
    """The same of the side rows; and whether the answer is read there."""
    s = tl.arange(0, _SIDE)
    which, group = s // _SLOTS, s % _SLOTS
    example = tile * GROUP + group
    live = (group < GROUP) & (example < count) & (which <= LHI)
    position = tl.where(which == 0, 0 if LHI else N, N + LHI)
    return example, group, position, live, live & (which == LHI)


@triton.jit
def _rows(example, position, TOKENS: tl.constexpr, D: tl.constexpr):
    """Where tokens lie in (example, token, D): row D."""
    return (example * TOKENS + position)[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def _swap(D: tl.constexpr):
    """The matrix that takes neighbouring pairs (a, b) to (-b, a): D D."""
    r, c = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    return tl.where(
        (r % 2 == 0) & (c == r + 1), 1.0, tl.where((r % 2 == 1) & (c == r - 1), -1.0, 0.0)
    )


@triton.jit
def _turn(x, waves, position, sign, TOKENS: tl.constexpr, D: tl.constexpr):
    """RoFormer's rotation of rows at their positions; by the opposite angle with sign = -1."""
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    cosine, sine = tl.load(waves + at), tl.load(waves + TOKENS * D + at)
    return x * cosine + sign * dot(x, _swap(D)) * sine


@triton.jit
def _embedded(
    x, waves, example, position, live, values, key, first, positions, enter,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, D: tl.constexpr,
    SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Token features and the embedded rows, before softmax attention's first LayerNorm."""
    TOKENS: tl.constexpr = N + 1 + LHI
    features = token_features(key, first + example, position, N, LHI, WORDS)
    rows = dot(
        features, load_embedding(values, positions, enter, D, POSITIONS == "polynomial", SOFTMAX)
    )
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    if POSITIONS == "learned":
        rows += tl.load(values + positions + at, mask=live[:, None], other=0.0)
    if POSITIONS == "sinusoidal":
        rows += tl.load(waves + at, mask=live[:, None], other=0.0)
    return features, rows


@triton.jit
def _input(
    x, waves, example, position, live, values, key, first, positions, enter,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, D: tl.constexpr,
    SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """The block's input rows: embedded tokens, or what the block below left."""
    TOKENS: tl.constexpr = N + 1 + LHI
    if FIRST:
        _, rows = _embedded(
            x, waves, example, position, live, values, key, first, positions, enter,
            N, LHI, WORDS, D, SOFTMAX, POSITIONS,
        )  # fmt: skip
        if SOFTMAX:
            rows, _ = normalise(rows, D, _eps(SOFTMAX))
            rows = rows * load_vector(values + enter + D, D) + load_vector(
                values + enter + 2 * D, D
            )
    else:
        rows = tl.load(x + _rows(example, position, TOKENS, D), mask=live[:, None], other=0.0)
    return rows


@triton.jit
def _projected(
    rows, w, waves, position, which: tl.constexpr,
    TOKENS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Queries (0), keys (1) or values (2) of the rows that `_normal` gives."""
    out = dot(rows, load_transposed(w + _at("qkv.weight", D, FF, SOFTMAX) + which * D * D, D, D))
    if SOFTMAX:
        out += load_vector(w + _at("qkv.bias", D, FF, SOFTMAX) + which * D, D)
    elif which < 2:
        out = tl.exp(tl.minimum(out, 0.0)) + tl.maximum(out, 0.0)
    if ROTARY and which < 2:
        out = _turn(out, waves, position, 1.0, TOKENS, D)
    return out


@triton.jit
def _projected_back(
    grad, out, w, waves, position, which: tl.constexpr,
    TOKENS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Gradients before the feature map and the rotation, and of the projected rows."""
    if ROTARY and which < 2:
        grad = _turn(grad, waves, position, -1.0, TOKENS, D)
    if not SOFTMAX and which < 2:
        grad *= tl.minimum(out, 1.0)  # the slope of ELU + 1, from its value
    weight = load_matrix(w + _at("qkv.weight", D, FF, SOFTMAX) + which * D * D, D, D)
    return grad, dot(grad, weight)


@triton.jit
def _normal(x, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """What a block projects: its input, for linear attention through a LayerNorm."""
    if not SOFTMAX:
        x, _ = normalise(x, D, _eps(SOFTMAX))
        x = x * load_vector(w + _at("norm1.weight", D, FF, SOFTMAX), D)
        x += load_vector(w + _at("norm1.bias", D, FF, SOFTMAX), D)
    return x


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
def _tail(x, mixed, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """From a block's input and mixed values to its output, by the out projection and the
    feed-forward part: the output, and what the backward pass needs of the way."""
    y = x + dot(mixed, load_transposed(w + _at("out.weight", D, FF, SOFTMAX), D, D))
    if SOFTMAX:
        y += load_vector(w + _at("out.bias", D, FF, SOFTMAX), D)
        normal, inverse = normalise(y, D, _eps(SOFTMAX))
        y = normal * load_vector(w + _at("norm1.weight", D, FF, SOFTMAX), D)
        y += load_vector(w + _at("norm1.bias", D, FF, SOFTMAX), D)
        fed = y
    else:
        normal, inverse = normalise(y, D, _eps(SOFTMAX))
        fed = normal * load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        fed += load_vector(w + _at("norm2.bias", D, FF, SOFTMAX), D)
    hidden = dot(fed, load_transposed(w + _at("up.weight", D, FF, SOFTMAX), FF, D))
    hidden += load_vector(w + _at("up.bias", D, FF, SOFTMAX), FF)
    out = y + dot(gelu(hidden), load_transposed(w + _at("down.weight", D, FF, SOFTMAX), D, FF))
    out += load_vector(w + _at("down.bias", D, FF, SOFTMAX), D)
    last_normal, last_inverse = normal, inverse
    if SOFTMAX:
        last_normal, last_inverse = normalise(out, D, _eps(SOFTMAX))
        out = last_normal * load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        out += load_vector(w + _at("norm2.bias", D, FF, SOFTMAX), D)
    return out, fed, hidden, normal, inverse, last_normal, last_inverse


@triton.jit
def _tail_back(
    grad, mixed, w, fed, hidden, normal, inverse, last_normal, last_inverse,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Gradients of the input (through the residual sums) and of the mixed values; then those of
    out, up, down and their biases, norm1 and norm2 (for linear attention norm2 alone)."""
    dg2, db2 = tl.sum(grad * last_normal, 0), tl.sum(grad, 0)
    if SOFTMAX:
        gain = load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, last_normal, last_inverse, D)
    d_down = dot(tl.trans(grad), gelu(hidden))
    d_down_bias = tl.sum(grad, 0)
    d_hidden = dot(grad, load_matrix(w + _at("down.weight", D, FF, SOFTMAX), D, FF))
    d_hidden *= gelu_slope(hidden)
    d_up = dot(tl.trans(d_hidden), fed)
    d_up_bias = tl.sum(d_hidden, 0)
    d_fed = dot(d_hidden, load_matrix(w + _at("up.weight", D, FF, SOFTMAX), FF, D))
    if SOFTMAX:
        grad += d_fed
        dg1, db1 = tl.sum(grad * normal, 0), tl.sum(grad, 0)
        gain = load_vector(w + _at("norm1.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, normal, inverse, D)
    else:
        dg2, db2 = tl.sum(d_fed * normal, 0), tl.sum(d_fed, 0)
        dg1, db1 = dg2, db2  # norm1 stands before the projections
        gain = load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        grad += normalise_back(d_fed * gain, normal, inverse, D)
    d_out = dot(tl.trans(grad), mixed)
    d_out_bias = tl.sum(grad, 0)
    d_mixed = dot(grad, load_matrix(w + _at("out.weight", D, FF, SOFTMAX), D, D))
    return (
        grad, d_mixed, d_out, d_out_bias, d_up, d_up_bias, d_down, d_down_bias, dg1, db1, dg2, db2
    )  # fmt: skip


@triton.jit
def _store_tail(
    p, d_out, d_out_bias, d_up, d_up_bias, d_down, d_down_bias, dg1, db1, dg2, db2,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """This program's share of the gradients of `_tail`'s parameters."""
    store_matrix(p + _at("out.weight", D, FF, SOFTMAX), d_out, D, D)
    store_matrix(p + _at("up.weight", D, FF, SOFTMAX), d_up, FF, D)
    store_vector(p + _at("up.bias", D, FF, SOFTMAX), d_up_bias, FF)
    store_matrix(p + _at("down.weight", D, FF, SOFTMAX), d_down, D, FF)
    store_vector(p + _at("down.bias", D, FF, SOFTMAX), d_down_bias, D)
    store_vector(p + _at("norm2.weight", D, FF, SOFTMAX), dg2, D)
    store_vector(p + _at("norm2.bias", D, FF, SOFTMAX), db2, D)
    if SOFTMAX:
        store_vector(p + _at("out.bias", D, FF, SOFTMAX), d_out_bias, D)
        store_vector(p + _at("norm1.weight", D, FF, SOFTMAX), dg1, D)
        store_vector(p + _at("norm1.bias", D, FF, SOFTMAX), db1, D)


@triton.jit
def _store_projection(
    p, which: tl.constexpr, weight, bias, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr
):
    """This program's share of the gradients of the queries', keys' or values' projection."""
    store_matrix(p + _at("qkv.weight", D, FF, SOFTMAX) + which * D * D, weight, D, D)
    if SOFTMAX:
        store_vector(p + _at("qkv.bias", D, FF, SOFTMAX) + which * D, bias, D)


@triton.jit
def _normal_back(grad, x, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """Gradient of `_normal`'s input, and of its gain and offset."""
    if SOFTMAX:
        gain, offset = tl.sum(grad, 0), tl.sum(grad, 0)
    else:
        normal, inverse = normalise(x, D, _eps(SOFTMAX))
        gain, offset = tl.sum(grad * normal, 0), tl.sum(grad, 0)
        weight = load_vector(w + _at("norm1.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * weight, normal, inverse, D)
    return grad, gain, offset


@triton.jit
def _enter_back(
    grad, x, waves, example, position, live, values, key, first, positions, enter,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, D: tl.constexpr,
    SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Gradient of the embedded rows, of the embedding's map, and of the first LayerNorm."""
    features, rows = _embedded(
        x, waves, example, position, live, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS,
    )  # fmt: skip
    gain, offset = tl.sum(grad, 0), tl.sum(grad, 0)
    if SOFTMAX:
        normal, inverse = normalise(rows, D, _eps(SOFTMAX))
        gain = tl.sum(grad * normal, 0)
        grad = normalise_back(grad * load_vector(values + enter + D, D), normal, inverse, D)
    return grad, dot(tl.trans(features), grad), gain, offset


@triton.jit
def _input_back(
    dxm, dxs, x, dx, waves, em, gm, pm, lm, es, gs, ps, ls,
    values, share, key, first, positions, enter,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """Hand the gradient of the block's input down: to the block below, or to the embedding."""
    TOKENS: tl.constexpr = N + 1 + LHI
    if FIRST:
        dxm, weight_m, gain_m, offset_m = _enter_back(
            dxm, x, waves, em, pm, lm, values, key, first, positions, enter,
            N, LHI, WORDS, D, SOFTMAX, POSITIONS,
        )  # fmt: skip
        dxs, weight_s, gain_s, offset_s = _enter_back(
            dxs, x, waves, es, ps, ls, values, key, first, positions, enter,
            N, LHI, WORDS, D, SOFTMAX, POSITIONS,
        )  # fmt: skip
        store_embedding(
            share, weight_m + weight_s, positions, enter, D, POSITIONS == "polynomial", SOFTMAX
        )
        if SOFTMAX:
            store_vector(share + enter + D, gain_m + gain_s, D)
            store_vector(share + enter + 2 * D, offset_m + offset_s, D)
        if POSITIONS == "learned":
            d = tl.arange(0, D)[None, :]
            GROUP: tl.constexpr = ROWS // PAD
            bits = tl.sum(tl.reshape(dxm, (GROUP, PAD, D)), 0)
            i = tl.arange(0, PAD)[:, None]
            tl.store(share + positions + (i + LHI) * D + d, bits, mask=i < N)
            others = tl.sum(tl.reshape(dxs, (2, _SLOTS, D)), 1)
            which = tl.arange(0, 2)[:, None]
            at = tl.where(which == 0, 0 if LHI else N, N + LHI)
            tl.store(share + positions + at * D + d, others, mask=which <= LHI)
    else:
        tl.store(dx + _rows(em, pm, TOKENS, D), dxm, mask=lm[:, None])
        tl.store(dx + _rows(es, ps, TOKENS, D), dxs, mask=ls[:, None])


@triton.jit
def _forward_kernel(
    values, keys, firsts, count, x, out, waves,
    block, positions, enter, CAPACITY, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, FF: tl.constexpr, SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """A block at all tokens."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    ROTARY: tl.constexpr = POSITIONS == "rotary"
    values += seed * PARAMETERS
    w = values + block
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    x += seed * CAPACITY * TOKENS * D
    out += seed * CAPACITY * TOKENS * D
    em, gm, pm, lm = _main_tokens(tile, count, N, LHI, PAD, ROWS)
    es, gs, ps, ls, _ = _side_tokens(tile, count, N, LHI, ROWS // PAD)
    xm = _input(
        x, waves, em, pm, lm, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    xs = _input(
        x, waves, es, ps, ls, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    nm, ns = _normal(xm, w, D, FF, SOFTMAX), _normal(xs, w, D, FF, SOFTMAX)
    km = _projected(nm, w, waves, pm, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    ks = _projected(ns, w, waves, ps, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    vm = _projected(nm, w, waves, pm, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    vs = _projected(ns, w, waves, ps, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    q = _projected(nm, w, waves, pm, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    see_m, see_s = _seen(gm, pm, gm, pm, lm, CAUSAL), _seen(gm, pm, gs, ps, ls, CAUSAL)
    mixed = _attend(q, km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    ym, _, _, _, _, _, _ = _tail(xm, mixed, w, D, FF, SOFTMAX)
    tl.store(out + _rows(em, pm, TOKENS, D), ym, mask=lm[:, None])
    q = _projected(ns, w, waves, ps, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    see_m, see_s = _seen(gs, ps, gm, pm, lm, CAUSAL), _seen(gs, ps, gs, ps, ls, CAUSAL)
    mixed = _attend(q, km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    ys, _, _, _, _, _, _ = _tail(xs, mixed, w, D, FF, SOFTMAX)
    tl.store(out + _rows(es, ps, TOKENS, D), ys, mask=ls[:, None])


@triton.jit
def _backward_kernel(
    values, keys, firsts, count, x, dx, waves, partials,
    block, positions, enter, CAPACITY, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, FF: tl.constexpr, SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """A block's backward pass at all tokens: `dx` holds the gradient of its output, then of its
    input."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    ROTARY: tl.constexpr = POSITIONS == "rotary"
    values += seed * PARAMETERS
    w = values + block
    share = partials + (seed * tl.num_programs(0) + tile) * PARAMETERS
    p = share + block
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    x += seed * CAPACITY * TOKENS * D
    dx += seed * CAPACITY * TOKENS * D
    em, gm, pm, lm = _main_tokens(tile, count, N, LHI, PAD, ROWS)
    es, gs, ps, ls, _ = _side_tokens(tile, count, N, LHI, ROWS // PAD)
    xm = _input(
        x, waves, em, pm, lm, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    xs = _input(
        x, waves, es, ps, ls, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    nm, ns = _normal(xm, w, D, FF, SOFTMAX), _normal(xs, w, D, FF, SOFTMAX)
    km = _projected(nm, w, waves, pm, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    ks = _projected(ns, w, waves, ps, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    vm = _projected(nm, w, waves, pm, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    vs = _projected(ns, w, waves, ps, 2, TOKENS, D, FF, SOFTMAX, ROTARY)

    # Queries of the side rows.
    qs = _projected(ns, w, waves, ps, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    see_m, see_s = _seen(gs, ps, gm, pm, lm, CAUSAL), _seen(gs, ps, gs, ps, ls, CAUSAL)
    mixed = _attend(qs, km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    _, fed, hidden, normal, inverse, last_normal, last_inverse = _tail(xs, mixed, w, D, FF, SOFTMAX)
    grad = tl.load(dx + _rows(es, ps, TOKENS, D), mask=ls[:, None], other=0.0)
    dxs, d_mixed, o, ob, u, ub, dn, dnb, g1, b1, g2, b2 = _tail_back(
        grad, mixed, w, fed, hidden, normal, inverse, last_normal, last_inverse, D, FF, SOFTMAX
    )
    dqs, dkm, dks, dvm, dvs = _attend_back(
        qs, km, ks, vm, vs, see_m, see_s, mixed, d_mixed, D, H, SCALE, SOFTMAX
    )

    # Queries of the main rows.
    qm = _projected(nm, w, waves, pm, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    see_m, see_s = _seen(gm, pm, gm, pm, lm, CAUSAL), _seen(gm, pm, gs, ps, ls, CAUSAL)
    mixed = _attend(qm, km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    _, fed, hidden, normal, inverse, last_normal, last_inverse = _tail(xm, mixed, w, D, FF, SOFTMAX)
    grad = tl.load(dx + _rows(em, pm, TOKENS, D), mask=lm[:, None], other=0.0)
    dxm, d_mixed, o_, ob_, u_, ub_, dn_, dnb_, g1_, b1_, g2_, b2_ = _tail_back(
        grad, mixed, w, fed, hidden, normal, inverse, last_normal, last_inverse, D, FF, SOFTMAX
    )
    _store_tail(
        p, o + o_, ob + ob_, u + u_, ub + ub_, dn + dn_, dnb + dnb_, g1 + g1_, b1 + b1_, g2 + g2_,
        b2 + b2_, D, FF, SOFTMAX,
    )  # fmt: skip
    dqm, km_, ks_, vm_, vs_ = _attend_back(
        qm, km, ks, vm, vs, see_m, see_s, mixed, d_mixed, D, H, SCALE, SOFTMAX
    )
    dkm, dks, dvm, dvs = dkm + km_, dks + ks_, dvm + vm_, dvs + vs_

    # Projections, and down to the block below.
    dqm, dnm = _projected_back(dqm, qm, w, waves, pm, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    dqs, dns = _projected_back(dqs, qs, w, waves, ps, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    weight = dot(tl.trans(dqm), nm) + dot(tl.trans(dqs), ns)
    _store_projection(p, 0, weight, tl.sum(dqm, 0) + tl.sum(dqs, 0), D, FF, SOFTMAX)
    dnm, dns = _keys_values_back(
        dkm, dks, dvm, dvs, km, ks, vm, vs, nm, ns, dnm, dns, w, p, waves, pm, ps,
        TOKENS, D, FF, SOFTMAX, ROTARY,
    )  # fmt: skip
    dnm, gain_m, offset_m = _normal_back(dnm, xm, w, D, FF, SOFTMAX)
    dns, gain_s, offset_s = _normal_back(dns, xs, w, D, FF, SOFTMAX)
    if not SOFTMAX:
        store_vector(p + _at("norm1.weight", D, FF, SOFTMAX), gain_m + gain_s, D)
        store_vector(p + _at("norm1.bias", D, FF, SOFTMAX), offset_m + offset_s, D)
    _input_back(
        dxm + dnm, dxs + dns, x, dx, waves, em, gm, pm, lm, es, gs, ps, ls,
        values, share, key, first, positions, enter,
        N, LHI, WORDS, PAD, ROWS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip


@triton.jit
def _keys_values_back(
    dkm, dks, dvm, dvs, km, ks, vm, vs, nm, ns, dnm, dns, w, p, waves, pm, ps,
    TOKENS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Store the shares of the keys' and values' projections; the gradients of what was
    projected."""
    dkm, by_k = _projected_back(dkm, km, w, waves, pm, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    dnm += by_k
    dks, by_k = _projected_back(dks, ks, w, waves, ps, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    dns += by_k
    weight = dot(tl.trans(dkm), nm) + dot(tl.trans(dks), ns)
    _store_projection(p, 1, weight, tl.sum(dkm, 0) + tl.sum(dks, 0), D, FF, SOFTMAX)
    dvm, by_v = _projected_back(dvm, vm, w, waves, pm, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    dnm += by_v
    dvs, by_v = _projected_back(dvs, vs, w, waves, ps, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    dns += by_v
    weight = dot(tl.trans(dvm), nm) + dot(tl.trans(dvs), ns)
    _store_projection(p, 2, weight, tl.sum(dvm, 0) + tl.sum(dvs, 0), D, FF, SOFTMAX)
    return dnm, dns


@triton.jit
def _last_kernel(
    values, keys, firsts, count, x, dx, waves, results, partials,
    block, positions, enter, head, CAPACITY, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, PAD: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, FF: tl.constexpr, SCALE: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, POSITIONS: tl.constexpr, FIRST: tl.constexpr,
    TRAIN: tl.constexpr,
):  # fmt: skip
    """The last block and the head at the last token: logits into `results`, or in training the
    losses, every gradient of the block and the head, and that of the block's input."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    ROTARY: tl.constexpr = POSITIONS == "rotary"
    values += seed * PARAMETERS
    w = values + block
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    x += seed * CAPACITY * TOKENS * D
    em, gm, pm, lm = _main_tokens(tile, count, N, LHI, PAD, ROWS)
    es, gs, ps, ls, read = _side_tokens(tile, count, N, LHI, ROWS // PAD)
    xm = _input(
        x, waves, em, pm, lm, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    xs = _input(
        x, waves, es, ps, ls, values, key, first, positions, enter,
        N, LHI, WORDS, D, SOFTMAX, POSITIONS, FIRST,
    )  # fmt: skip
    nm, ns = _normal(xm, w, D, FF, SOFTMAX), _normal(xs, w, D, FF, SOFTMAX)
    km = _projected(nm, w, waves, pm, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    ks = _projected(ns, w, waves, ps, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    vm = _projected(nm, w, waves, pm, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    vs = _projected(ns, w, waves, ps, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    q = _projected(ns, w, waves, ps, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    # The last token sees every token anyway, and no other row of the side tile is read.
    see_m, see_s = _seen(gs, ps, gm, pm, lm, False), _seen(gs, ps, gs, ps, ls, False)
    mixed = _attend(q, km, ks, vm, vs, see_m, see_s, D, H, SCALE, SOFTMAX)
    out, fed, hidden, normal, inverse, last_normal, last_inverse = _tail(
        xs, mixed, w, D, FF, SOFTMAX
    )
    head_weight = load_vector(values + head, D)
    logit = tl.sum(out * head_weight, 1) + tl.load(values + head + D)
    result = results + seed * CAPACITY + es
    if TRAIN:
        index = draw_index(key, first + es, N, WORDS)
        loss, slope = cross_entropy(logit, draw_bit(key, first + es, index, WORDS))
        tl.store(result, loss, mask=read)
        slope = tl.where(read, slope / count, 0.0)
        share = partials + (seed * tl.num_programs(0) + tile) * PARAMETERS
        p = share + block
        store_vector(share + head, tl.sum(slope[:, None] * out, 0), D)
        tl.store(share + head + D, tl.sum(slope, 0))
        dxs, d_mixed, o, ob, u, ub, dn, dnb, g1, b1, g2, b2 = _tail_back(
            slope[:, None] * head_weight,
            mixed, w, fed, hidden, normal, inverse, last_normal, last_inverse, D, FF, SOFTMAX
        )  # fmt: skip
        _store_tail(p, o, ob, u, ub, dn, dnb, g1, b1, g2, b2, D, FF, SOFTMAX)
        dq, dkm, dks, dvm, dvs = _attend_back(
            q, km, ks, vm, vs, see_m, see_s, mixed, d_mixed, D, H, SCALE, SOFTMAX
        )
        dq, dns = _projected_back(dq, q, w, waves, ps, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
        _store_projection(p, 0, dot(tl.trans(dq), ns), tl.sum(dq, 0), D, FF, SOFTMAX)
        dnm, dns = _keys_values_back(
            dkm, dks, dvm, dvs, km, ks, vm, vs, nm, ns, tl.zeros_like(nm), dns, w, p, waves, pm, ps,
            TOKENS, D, FF, SOFTMAX, ROTARY,
        )  # fmt: skip
        dnm, gain_m, offset_m = _normal_back(dnm, xm, w, D, FF, SOFTMAX)
        dns, gain_s, offset_s = _normal_back(dns, xs, w, D, FF, SOFTMAX)
        if not SOFTMAX:
            store_vector(p + _at("norm1.weight", D, FF, SOFTMAX), gain_m + gain_s, D)
            store_vector(p + _at("norm1.bias", D, FF, SOFTMAX), offset_m + offset_s, D)
        _input_back(
            dnm, dxs + dns, x, dx + seed * CAPACITY * TOKENS * D, waves,
            em, gm, pm, lm, es, gs, ps, ls, values, share, key, first, positions, enter,
            N, LHI, WORDS, PAD, ROWS, D, SOFTMAX, POSITIONS, FIRST,
        )  # fmt: skip
    else:
        tl.store(result, logit, mask=read)


def _tile(plan: Plan) -> tuple[int, int]:
    """Rows that a sequence's bits are filled up to, and main rows of a tile."""
    pad = max(8, triton.next_power_of_2(plan.model.n_bits))
    return pad, max(64, pad)


def programs(plan: Plan) -> int:
    """Programs a run: one a tile."""
    pad, rows = _tile(plan)
    return triton.cdiv(plan.capacity, rows // pad)


def _constants(plan: Plan) -> dict[str, object]:
    model = plan.model
    pad, rows = _tile(plan)
    return {
        "N": model.n_bits,
        "LHI": int(plan.lhi),
        "WORDS": plan.n_words,
        "PAD": pad,
        "ROWS": rows,
        "D": model.d_model,
        "H": model.n_heads,
        "FF": model.d_ff,
        "SCALE": model.d_head**-0.5,
        "SOFTMAX": model.family.startswith("softmax"),
        "CAUSAL": FAMILIES[model.family].causal,
        "POSITIONS": model.positions,
        "num_warps": _WARPS,
    }


def _waves(plan: Plan) -> Tensor:
    """The fixed numbers of sinusoidal (token, D) and rotary (cosine or sine, token, D)
    positions."""
    model, tokens = plan.model, torch.arange(plan.n_tokens)
    if model.positions == "sinusoidal":
        sine, cosine = waves(tokens, model.d_model, torch.float32)
        table = torch.stack([sine, cosine], -1).flatten(-2)
    elif model.positions == "rotary":
        sine, cosine = waves(tokens, model.d_head, torch.float32)
        pairs = torch.stack([cosine, sine]).repeat_interleave(2, -1)
        table = pairs.repeat(1, 1, model.n_heads)
    else:
        table = torch.zeros(1)
    return table.contiguous().to(plan.device)


def _layers(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int
) -> tuple[tuple[int, int], dict[str, object], tuple[int, int, int, int], Tensor]:
    """Launch every block but the last; the grid, the constants and the sizes that the rest
    takes."""
    model = plan.model
    grid = (programs(plan), plan.n_seeds)
    constants = _constants(plan)
    encoding = plan.offsets.get(f"positions.{model.positions}", 0)
    enter = plan.offsets.get("enter.type", 0)
    sizes = (encoding, enter, plan.capacity, plan.n_parameters)
    table = plan.constant("waves", _waves)
    for layer in range(model.n_layers - 1):
        _forward_kernel[grid](
            values, keys, first, count, _rows_of(plan, layer), _rows_of(plan, layer + 1), table,
            plan.block(layer), *sizes, **constants, FIRST=layer == 0,
        )  # fmt: skip
    return grid, constants, sizes, table


def _rows_of(plan: Plan, layer: int) -> Tensor:
    """A block's input at all tokens: (seed, example, token, D)."""
    return plan.buffer(f"x{max(layer, 1)}", plan.capacity, plan.n_tokens, plan.model.d_model)


def backward(
    plan: Plan,
    values: Tensor,
    keys: Tensor,
    first: Tensor,
    count: int,
    losses: Tensor,
    partials: Tensor,
) -> None:
    """Losses and gradient shares of a batch."""
    last = plan.model.n_layers - 1
    grid, constants, (encoding, enter, *sizes), table = _layers(plan, values, keys, first, count)
    dx = plan.buffer("dx", plan.capacity, plan.n_tokens, plan.model.d_model)
    _last_kernel[grid](
        values, keys, first, count, _rows_of(plan, last), dx, table, losses, partials,
        plan.block(last), encoding, enter, plan.offsets["head.weight"], *sizes,
        **constants, FIRST=last == 0, TRAIN=True,
    )  # fmt: skip
    for layer in reversed(range(last)):
        _backward_kernel[grid](
            values, keys, first, count, _rows_of(plan, layer), dx, table, partials,
            plan.block(layer), encoding, enter, *sizes, **constants, FIRST=layer == 0,
        )  # fmt: skip


def forward(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, logits: Tensor
) -> None:
    """Logits of a batch."""
    last = plan.model.n_layers - 1
    grid, constants, (encoding, enter, *sizes), table = _layers(plan, values, keys, first, count)
    _last_kernel[grid](
        values, keys, first, count, _rows_of(plan, last), logits, table, logits, logits,
        plan.block(last), encoding, enter, plan.offsets["head.weight"], *sizes,
        **constants, FIRST=last == 0, TRAIN=False,
    )  # fmt: skip
