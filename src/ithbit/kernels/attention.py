"""Softmax and linear attention, full and causal: a step in eleven launches at two layers.

Work that treats each token by itself goes over the tokens of a run in flat tiles of rows
(`_enter`, `_tail`, `_tail_back`, `_project_back`); mixing goes over tiles of whole sequences
(`softmax_mix.py`, `linear_mix.py`, and at the last token `attention_read.py`); between them stand
queries, keys, values and mixed values in memory.

Exact savings: the answer is read at the last token, so the last block has one query a sequence and
its feed-forward part sees one row a sequence (`_answer`, which also has the head, the loss and
their backward pass). Blocks keep their input, queries, keys, values and mixed values; the rest is
recomputed in the backward pass.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ithbit.families import FAMILIES
from ithbit.kernels import attention_read, linear_mix, softmax_mix
from ithbit.kernels.plan import Plan
from ithbit.kernels.tile import (
    CHUNK,
    cross_entropy,
    dot,
    draw_bit,
    draw_index,
    gelu,
    gelu_slope,
    held,
    load_embedding,
    load_matrix,
    load_transposed,
    load_vector,
    normalise,
    normalise_back,
    put,
    put_matrix,
    put_vector,
    store_embedding,
    token_features,
)
from ithbit.models.positions import waves

_ROWS = 32  # tokens of a flat tile
_BACK_ROWS = 32
_PROGRAMS = 128  # about so many programs a run go over its tokens backwards, each over some tiles
_ANSWERS = 16  # examples of a tile of `_answer`
_READ_TOKENS = 128  # tokens, filled up, of a tile of `read`
_SLICE = tl.constexpr(32)  # hidden units of the feed-forward part at a time, to spare registers
# How each kernel is compiled; the fastest of those tried on an H200.
_FLAT: dict[str, int] = {"num_warps": 2}
_BACK: dict[str, int] = {"num_warps": 2, "num_stages": 1}
_MIX: dict[str, int] = {"num_warps": 1}
_MIX_BACK: dict[str, int] = {"num_warps": 1}
_READ: dict[str, int] = {"num_warps": 4}
_ANSWER: dict[str, int] = {"num_warps": 2}


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
def _slice(j, D: tl.constexpr, FF: tl.constexpr):
    """Hidden units j, j + 1 … of a slice: where their rows lie in `up` (unit D), their columns in
    `down` (D unit, and transposed unit D), and the units (unit)."""
    unit = j + tl.arange(0, _SLICE)
    d = tl.arange(0, D)
    rows = unit[:, None] * D + d[None, :]
    return rows, d[:, None] * FF + unit[None, :], d[None, :] * FF + unit[:, None], unit


@triton.jit
def _hidden(fed, w, j, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """A slice of the hidden units before their activation: row unit."""
    unit, d = j + tl.arange(0, _SLICE)[None, :], tl.arange(0, D)[:, None]
    weight = tl.load(w + _at("up.weight", D, FF, SOFTMAX) + unit * D + d)
    return dot(fed, weight) + tl.load(w + _at("up.bias", D, FF, SOFTMAX) + unit)


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
    out = y + load_vector(w + _at("down.bias", D, FF, SOFTMAX), D)
    for j in range(0, FF, _SLICE):
        _, _, at, _ = _slice(j, D, FF)
        act = gelu(_hidden(fed, w, j, D, FF, SOFTMAX))
        out += dot(act, tl.load(w + _at("down.weight", D, FF, SOFTMAX) + at))
    last_normal, last_inverse = normal, inverse
    if SOFTMAX:
        last_normal, last_inverse = normalise(out, D, _eps(SOFTMAX))
        out = last_normal * load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        out += load_vector(w + _at("norm2.bias", D, FF, SOFTMAX), D)
    return out, fed, normal, inverse, last_normal, last_inverse


@triton.jit
def _tail_back(
    grad, mixed, w, p, again, fed, normal, inverse, last_normal, last_inverse,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Gradients of the input (through the residual sums) and of the mixed values; this program's
    share of those of the parameters goes to `p`."""
    if SOFTMAX:
        put_vector(p + _at("norm2.weight", D, FF, SOFTMAX), tl.sum(grad * last_normal, 0), again, D)
        put_vector(p + _at("norm2.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
        gain = load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, last_normal, last_inverse, D)
    put_vector(p + _at("down.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
    d_fed = tl.zeros_like(grad)
    for j in range(0, FF, _SLICE):
        rows, columns, _, unit = _slice(j, D, FF)
        hidden = _hidden(fed, w, j, D, FF, SOFTMAX)
        down, up = _at("down.weight", D, FF, SOFTMAX), _at("up.weight", D, FF, SOFTMAX)
        put(p + down + columns, dot(tl.trans(grad), gelu(hidden)), again)
        d_hidden = dot(grad, tl.load(w + down + columns)) * gelu_slope(hidden)
        put(p + up + rows, dot(tl.trans(d_hidden), fed), again)
        put(p + _at("up.bias", D, FF, SOFTMAX) + unit, tl.sum(d_hidden, 0), again)
        d_fed += dot(d_hidden, tl.load(w + up + rows))
    if SOFTMAX:
        grad += d_fed
        put_vector(p + _at("norm1.weight", D, FF, SOFTMAX), tl.sum(grad * normal, 0), again, D)
        put_vector(p + _at("norm1.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
        gain = load_vector(w + _at("norm1.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, normal, inverse, D)
        put_vector(p + _at("out.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
    else:
        put_vector(p + _at("norm2.weight", D, FF, SOFTMAX), tl.sum(d_fed * normal, 0), again, D)
        put_vector(p + _at("norm2.bias", D, FF, SOFTMAX), tl.sum(d_fed, 0), again, D)
        gain = load_vector(w + _at("norm2.weight", D, FF, SOFTMAX), D)
        grad += normalise_back(d_fed * gain, normal, inverse, D)
    put_matrix(p + _at("out.weight", D, FF, SOFTMAX), dot(tl.trans(grad), mixed), again, D, D)
    return grad, dot(grad, load_matrix(w + _at("out.weight", D, FF, SOFTMAX), D, D))


@triton.jit
def _put_projection(
    p, again, which: tl.constexpr, grad, rows,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """This program's share of the gradients of the queries', keys' or values' projection."""
    weight = dot(tl.trans(grad), rows)
    put_matrix(p + _at("qkv.weight", D, FF, SOFTMAX) + which * D * D, weight, again, D, D)
    if SOFTMAX:
        put_vector(p + _at("qkv.bias", D, FF, SOFTMAX) + which * D, tl.sum(grad, 0), again, D)


@triton.jit
def _flat(tile, count, TOKENS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """The tokens of a flat tile: example, position, whether there is such a token (row each), and
    where they lie in (example, token, D)."""
    row = tile * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    return row // TOKENS, row % TOKENS, row < count * TOKENS, at


@triton.jit
def _embedded(
    features, waves, position, values, positions, enter,
    TOKENS: tl.constexpr, D: tl.constexpr, SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Embedded tokens, before softmax attention's first LayerNorm."""
    weight = load_embedding(values, positions, enter, D, POSITIONS == "polynomial", SOFTMAX)
    out = dot(features, weight)
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    if POSITIONS == "learned":
        out += tl.load(values + positions + at)
    if POSITIONS == "sinusoidal":
        out += tl.load(waves + at)
    return out


@triton.jit
def _project(
    x, w, waves, queries, keys, values, example, position, live, at,
    TOKENS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr,
    SOFTMAX: tl.constexpr, ROTARY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Store queries, keys and values of a block's input; in the last block the query of the last
    token alone, in (example, D)."""
    normal = _normal(x, w, D, FF, SOFTMAX)
    q = _projected(normal, w, waves, position, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    if LAST:
        one = example[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(queries + one, q, mask=(live & (position == TOKENS - 1))[:, None])
    else:
        tl.store(queries + at, q, mask=live[:, None])
    k = _projected(normal, w, waves, position, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    tl.store(keys + at, k, mask=live[:, None])
    v = _projected(normal, w, waves, position, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    tl.store(values + at, v, mask=live[:, None])


@triton.jit
def _enter(
    parameters, streams, firsts, count, x, queries, keys, values, waves,
    block, positions, enter, CAPACITY, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr, POSITIONS: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """Draw and embed the tokens into `x`, and project them for the first block."""
    seed = tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, D, ROWS)
    key = tl.load(streams + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    features = token_features(key, first + example, position, N, LHI, WORDS)
    rows = _embedded(
        features, waves, position, parameters, positions, enter, TOKENS, D, SOFTMAX, POSITIONS
    )
    if SOFTMAX:
        rows, _ = normalise(rows, D, _eps(SOFTMAX))
        rows = rows * load_vector(parameters + enter + D, D)
        rows += load_vector(parameters + enter + 2 * D, D)
    tl.store(x + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + block, waves,
        queries + (seed * CAPACITY * D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, D, FF, SOFTMAX, POSITIONS == "rotary", LAST,
    )  # fmt: skip


@triton.jit
def _block_end(
    parameters, count, x, mixed, out, queries, keys, values, waves,
    block, next_block, CAPACITY, PARAMETERS,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, FF: tl.constexpr,
    SOFTMAX: tl.constexpr, ROTARY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """From mixed values to the block's output, and its projections for the next block."""
    seed = tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    example, position, live, at = _flat(tl.program_id(0), count, TOKENS, D, ROWS)
    before = tl.load(x + shift + at, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + shift + at, mask=live[:, None], other=0.0)
    rows, _, _, _, _, _ = _tail(before, mix, parameters + block, D, FF, SOFTMAX)
    tl.store(out + shift + at, rows, mask=live[:, None])
    _project(
        rows, parameters + next_block, waves,
        queries + (seed * CAPACITY * D if LAST else shift), keys + shift, values + shift,
        example, position, live, at, TOKENS, D, FF, SOFTMAX, ROTARY, LAST,
    )  # fmt: skip


@triton.jit
def _answer(
    parameters, streams, firsts, count, x, mixed, d_mixed, dx, results, partials,
    block, head, PROGRAMS, CAPACITY, PARAMETERS,
    N: tl.constexpr, TOKENS: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """The last block's end and the head at the last token: logits into `results`, or in training
    the losses, the shares of these parameters, and the gradients of `mixed` and of the input."""
    tile, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parameters += seed * PARAMETERS
    w = parameters + block
    example = tile * ROWS + tl.arange(0, ROWS)
    live = example < count
    d = tl.arange(0, D)[None, :]
    one = seed * CAPACITY * D + example[:, None] * D + d
    last = (seed * CAPACITY + example)[:, None] * (TOKENS * D) + (TOKENS - 1) * D + d
    before = tl.load(x + last, mask=live[:, None], other=0.0)
    mix = tl.load(mixed + one, mask=live[:, None], other=0.0)
    out, fed, normal, inverse, last_normal, last_inverse = _tail(before, mix, w, D, FF, SOFTMAX)
    weight = load_vector(parameters + head, D)
    logit = tl.sum(out * weight, 1) + tl.load(parameters + head + D)
    result = results + seed * CAPACITY + example
    if TRAIN:
        key = tl.load(streams + seed).to(tl.uint64, bitcast=True)
        number = tl.load(firsts + seed) + example
        index = draw_index(key, number, N, WORDS)
        loss, slope = cross_entropy(logit, draw_bit(key, number, index, WORDS))
        tl.store(result, loss, mask=live)
        slope = tl.where(live, slope / count, 0.0)[:, None]
        share = partials + (seed * PROGRAMS + tile) * PARAMETERS
        put_vector(share + head, tl.sum(slope * out, 0), 0, D)
        tl.store(share + head + D, tl.sum(slope))
        grad, d_mix = _tail_back(
            slope * weight, mix, w, share + block, 0, fed, normal, inverse, last_normal,
            last_inverse, D, FF, SOFTMAX,
        )  # fmt: skip
        tl.store(d_mixed + one, d_mix, mask=live[:, None])
        tl.store(dx + one, grad, mask=live[:, None])
    else:
        tl.store(result, logit, mask=live)


@triton.jit
def _block_end_back(
    parameters, count, x, mixed, dx, d_mixed, partials,
    block, PROGRAMS, CAPACITY, PARAMETERS,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Backward of `_block_end`: `dx` holds the gradient of the output, then that of the input
    through the residual sums; `d_mixed` becomes that of the mixed values."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    weights = parameters + seed * PARAMETERS + block
    shift = seed * CAPACITY * TOKENS * D
    share = partials + (seed * PROGRAMS + program) * PARAMETERS
    for i in range(TILES):
        w = held(weights, i)
        _, _, live, at = _flat(program * TILES + i, count, TOKENS, D, ROWS)
        at += shift
        before = tl.load(x + at, mask=live[:, None], other=0.0)
        mix = tl.load(mixed + at, mask=live[:, None], other=0.0)
        grad = tl.load(dx + at, mask=live[:, None], other=0.0)
        _, fed, normal, inverse, last_normal, last_inverse = _tail(before, mix, w, D, FF, SOFTMAX)
        grad, d_mix = _tail_back(
            grad, mix, w, share + block, i, fed, normal, inverse, last_normal, last_inverse,
            D, FF, SOFTMAX,
        )  # fmt: skip
        tl.store(dx + at, grad, mask=live[:, None])
        tl.store(d_mixed + at, d_mix, mask=live[:, None])
        tl.debug_barrier()  # the next tile adds to what other threads may have stored


@triton.jit
def _project_back(
    parameters, streams, firsts, count, x, dx, last_dx, d_queries, d_keys, d_values,
    queries, keys, waves, partials,
    block, positions, enter, PROGRAMS, CAPACITY, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
    TILES: tl.constexpr, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    POSITIONS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Backward of a block's projections, and of the embedding below the first block.

    `dx` becomes the gradient of the block's input; it holds that through the residual sums, for the
    last block `last_dx` (example, D) does.
    """
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = N + 1 + LHI
    ROTARY: tl.constexpr = POSITIONS == "rotary"
    parameters += seed * PARAMETERS
    shift = seed * CAPACITY * TOKENS * D
    key = tl.load(streams + seed).to(tl.uint64, bitcast=True)
    first = tl.load(firsts + seed)
    share = partials + (seed * PROGRAMS + program) * PARAMETERS
    p = share + block
    for i in range(TILES):
        w = held(parameters + block, i)
        example, position, live, at = _flat(program * TILES + i, count, TOKENS, D, ROWS)
        at += shift
        there = live[:, None]
        one = seed * CAPACITY * D + example[:, None] * D + tl.arange(0, D)[None, :]
        is_last = (live & (position == TOKENS - 1))[:, None]
        rows = tl.load(x + at, mask=there, other=0.0)
        normal = _normal(rows, w, D, FF, SOFTMAX)
        if LAST:
            grad = tl.load(last_dx + one, mask=is_last, other=0.0)
            q = tl.load(queries + one, mask=is_last, other=0.0)
            dq = tl.load(d_queries + one, mask=is_last, other=0.0)
        else:
            grad = tl.load(dx + at, mask=there, other=0.0)
            q = tl.load(queries + at, mask=there, other=0.0)
            dq = tl.load(d_queries + at, mask=there, other=0.0)
        dq, d_normal = _projected_back(dq, q, w, waves, position, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
        _put_projection(p, i, 0, dq, normal, D, FF, SOFTMAX)
        k = tl.load(keys + at, mask=there, other=0.0)
        dk = tl.load(d_keys + at, mask=there, other=0.0)
        dk, by = _projected_back(dk, k, w, waves, position, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
        d_normal += by
        _put_projection(p, i, 1, dk, normal, D, FF, SOFTMAX)
        dv = tl.load(d_values + at, mask=there, other=0.0)
        dv, by = _projected_back(dv, k, w, waves, position, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
        d_normal += by
        _put_projection(p, i, 2, dv, normal, D, FF, SOFTMAX)
        by, gain, offset = _normal_back(d_normal, rows, w, D, FF, SOFTMAX)
        grad += by
        if not SOFTMAX:
            put_vector(p + _at("norm1.weight", D, FF, SOFTMAX), gain, i, D)
            put_vector(p + _at("norm1.bias", D, FF, SOFTMAX), offset, i, D)
        if FIRST:
            features = token_features(key, first + example, position, N, LHI, WORDS)
            if SOFTMAX:
                rows = _embedded(
                    features, waves, position, parameters, positions, enter,
                    TOKENS, D, SOFTMAX, POSITIONS,
                )  # fmt: skip
                normal, inverse = normalise(rows, D, _eps(SOFTMAX))
                put_vector(share + enter + D, tl.sum(grad * normal, 0), i, D)
                put_vector(share + enter + 2 * D, tl.sum(grad, 0), i, D)
                grad = normalise_back(
                    grad * load_vector(parameters + enter + D, D), normal, inverse, D
                )
            store_embedding(
                share, dot(tl.trans(features), grad), positions, enter,
                D, POSITIONS == "polynomial", SOFTMAX, i,
            )  # fmt: skip
        if not FIRST or POSITIONS == "learned":
            tl.store(dx + at, grad, mask=there)
        tl.debug_barrier()  # the next tile adds to what other threads may have stored


@triton.jit
def _learned_back(
    dx, count, partials, positions, PROGRAMS, CAPACITY, PARAMETERS,
    TOKENS: tl.constexpr, PAD: tl.constexpr, EXAMPLES: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Shares of the learned positions: the gradient of the embedded tokens, summed over
    examples."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token, d = tl.arange(0, PAD)[:, None], tl.arange(0, D)[None, :]
    total = tl.zeros([PAD, D], tl.float32)
    for i in range(EXAMPLES):
        example = program * EXAMPLES + i
        at = ((seed * CAPACITY + example) * TOKENS + token) * D + d
        total += tl.load(dx + at, mask=(token < TOKENS) & (example < count), other=0.0)
    share = partials + (seed * PROGRAMS + program) * PARAMETERS + positions
    tl.store(share + token * D + d, total, mask=token < TOKENS)


def _back_tiles(plan: Plan) -> tuple[int, int]:
    """Programs a run of the flat backward kernels, and the tiles that each goes over."""
    tiles = triton.cdiv(plan.capacity * plan.n_tokens, _BACK_ROWS)
    each = max(1, tiles // _PROGRAMS)
    return triton.cdiv(tiles, each), each


def programs(plan: Plan) -> int:
    """Rows of gradient shares a run: as many as the kernel with the most programs leaves."""
    return max(_back_tiles(plan)[0], triton.cdiv(plan.capacity, _ANSWERS))


def _waves(plan: Plan) -> Tensor:
    """The fixed numbers of sinusoidal (token, D) and rotary (cosine or sine, token, D)
    positions."""
    model, tokens = plan.model, torch.arange(plan.n_tokens)
    table = torch.zeros(1)
    if model.positions == "sinusoidal":
        sine, cosine = waves(tokens, model.d_model, torch.float32)
        table = torch.stack([sine, cosine], -1).flatten(-2)
    elif model.positions == "rotary":
        sine, cosine = waves(tokens, model.d_head, torch.float32)
        pairs = torch.stack([cosine, sine]).repeat_interleave(2, -1)
        table = pairs.repeat(1, 1, model.n_heads)
    return table.contiguous().to(plan.device)


@dataclass(frozen=True)
class _Launch:
    """The launches of a plan on one batch; arguments that several of them share."""

    plan: Plan
    parameters: Tensor
    streams: Tensor
    first: Tensor
    count: int

    def rows(self, name: str) -> Tensor:
        """(seed, example, token, D)."""
        plan = self.plan
        return plan.buffer(name, plan.capacity, plan.n_tokens, plan.model.d_model)

    def ones(self, name: str) -> Tensor:
        """(seed, example, D): of the last token."""
        return self.plan.buffer(name, self.plan.capacity, self.plan.model.d_model)

    def qkv(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        last = layer == self.plan.model.n_layers - 1
        q = self.ones("last_q") if last else self.rows(f"q{layer}")
        return q, self.rows(f"k{layer}"), self.rows(f"v{layer}")

    @property
    def sizes(self) -> tuple[int, int]:
        return self.plan.capacity, self.plan.n_parameters

    @property
    def positions(self) -> tuple[int, int]:
        """Where the encoding's and softmax attention's entering parameters start, if any."""
        offsets = self.plan.offsets
        return offsets.get(f"positions.{self.plan.model.positions}", 0), offsets.get(
            "enter.type", 0
        )

    @property
    def waves(self) -> Tensor:
        return self.plan.constant("waves", _waves)

    @property
    def tokens(self) -> dict[str, int]:
        return {"N": self.plan.model.n_bits, "LHI": int(self.plan.lhi), "WORDS": self.plan.n_words}

    @property
    def widths(self) -> dict[str, object]:
        model = self.plan.model
        softmax = model.family.startswith("softmax")
        return {"D": model.d_model, "FF": model.d_ff, "SOFTMAX": softmax}

    @property
    def heads(self) -> dict[str, object]:
        model = self.plan.model
        softmax = model.family.startswith("softmax")
        return {
            "D": model.d_model,
            "H": model.n_heads,
            "SCALE": model.d_head**-0.5,
            "SOFTMAX": softmax,
        }

    def grid(self, n_programs: int) -> tuple[int, int]:
        return n_programs, self.plan.n_seeds

    def enter(self) -> None:
        plan = self.plan
        _enter[self.grid(triton.cdiv(plan.capacity * plan.n_tokens, _ROWS))](
            self.parameters, self.streams, self.first, self.count,
            self.rows("x0"), *self.qkv(0), self.waves,
            plan.block(0), *self.positions, *self.sizes,
            **self.tokens, ROWS=_ROWS, **self.widths, POSITIONS=plan.model.positions,
            LAST=plan.model.n_layers == 1, **_FLAT,
        )  # fmt: skip

    def mix(self, layer: int) -> None:
        softmax, grid, constants = self._mix_shape()
        kernel = softmax_mix.mix if softmax else linear_mix.mix
        kernel[grid](
            *self.qkv(layer), self.rows(f"mixed{layer}"), self.sums(layer),
            self.count, self.plan.capacity, **constants, **_MIX,
        )  # fmt: skip

    def mix_back(self, layer: int) -> None:
        softmax, grid, constants = self._mix_shape()
        kernel = softmax_mix.mix_back if softmax else linear_mix.mix_back
        kernel[grid](
            *self.qkv(layer), self.rows(f"mixed{layer}"), self.sums(layer), self.rows("d_mixed"),
            self.rows("dq"), self.rows("dk"), self.rows("dv"), self.count, self.plan.capacity,
            **constants, **_MIX_BACK,
        )  # fmt: skip

    def sums(self, layer: int) -> Tensor:
        """What `mix` keeps for `mix_back` of the weights' sums; at most (seed, example, token,
        D)."""
        return self.rows(f"sums{layer}")

    def _mix_shape(self) -> tuple[bool, tuple[int, int], dict[str, object]]:
        """Whether softmax attention mixes; one warp a chunk there, one a sequence otherwise."""
        plan, model = self.plan, self.plan.model
        constants: dict[str, object] = {
            "TOKENS": plan.n_tokens,
            "D": model.d_model,
            "H": model.n_heads,
            "CAUSAL": FAMILIES[model.family].causal,
        }
        if not model.family.startswith("softmax"):
            return False, self.grid(plan.capacity), constants
        chunks = triton.cdiv(plan.n_tokens, CHUNK.value)
        return True, self.grid(plan.capacity * chunks), {**constants, "SCALE": model.d_head**-0.5}

    def block_end(self, layer: int) -> None:
        plan, last = self.plan, self.plan.model.n_layers - 1
        _block_end[self.grid(triton.cdiv(plan.capacity * plan.n_tokens, _ROWS))](
            self.parameters, self.count, self.rows(f"x{layer}"), self.rows(f"mixed{layer}"),
            self.rows(f"x{layer + 1}"), *self.qkv(layer + 1), self.waves,
            plan.block(layer), plan.block(layer + 1), *self.sizes,
            TOKENS=plan.n_tokens, ROWS=_ROWS, **self.widths,
            ROTARY=plan.model.positions == "rotary", LAST=layer + 1 == last, **_FLAT,
        )  # fmt: skip

    def _read_shape(self) -> tuple[tuple[int, int], dict[str, object]]:
        plan = self.plan
        pad = triton.next_power_of_2(plan.n_tokens)
        group = max(1, _READ_TOKENS // pad)
        grid = self.grid(triton.cdiv(plan.capacity, group))
        return grid, {
            "TOKENS": plan.n_tokens,
            "PAD": pad,
            "GROUP": group,
            **self.heads,
            **_READ,
        }

    def read(self) -> None:
        grid, constants = self._read_shape()
        qkv = self.qkv(self.plan.model.n_layers - 1)
        attention_read.read[grid](
            *qkv, self.ones("last_mixed"), self.count, self.plan.capacity, **constants
        )

    def read_back(self) -> None:
        grid, constants = self._read_shape()
        attention_read.read_back[grid](
            *self.qkv(self.plan.model.n_layers - 1),
            self.ones("last_mixed"), self.ones("d_last_mixed"), self.ones("last_dq"),
            self.rows("dk"), self.rows("dv"), self.count, self.plan.capacity,
            **constants,
        )  # fmt: skip

    def answer(self, results: Tensor, partials: Tensor | None) -> None:
        """The end of the last block; with `partials` its backward pass too."""
        plan, last = self.plan, self.plan.model.n_layers - 1
        _answer[self.grid(triton.cdiv(plan.capacity, _ANSWERS))](
            self.parameters, self.streams, self.first, self.count,
            self.rows(f"x{last}"), self.ones("last_mixed"), self.ones("d_last_mixed"),
            self.ones("last_dx"), results, results if partials is None else partials,
            plan.block(last), plan.offsets["head.weight"], programs(plan), *self.sizes,
            N=plan.model.n_bits, TOKENS=plan.n_tokens, WORDS=plan.n_words, ROWS=_ANSWERS,
            **self.widths, TRAIN=partials is not None, **_ANSWER,
        )  # fmt: skip

    def block_end_back(self, layer: int, partials: Tensor) -> None:
        plan = self.plan
        n_programs, each = _back_tiles(plan)
        _block_end_back[self.grid(n_programs)](
            self.parameters, self.count, self.rows(f"x{layer}"), self.rows(f"mixed{layer}"),
            self.rows("dx"), self.rows("d_mixed"), partials,
            plan.block(layer), programs(plan), *self.sizes,
            TOKENS=plan.n_tokens, ROWS=_BACK_ROWS, TILES=each, **self.widths, **_BACK,
        )  # fmt: skip

    def project_back(self, layer: int, partials: Tensor) -> None:
        plan = self.plan
        last = layer == plan.model.n_layers - 1
        n_programs, each = _back_tiles(plan)
        q, k, _ = self.qkv(layer)
        _project_back[self.grid(n_programs)](
            self.parameters, self.streams, self.first, self.count,
            self.rows(f"x{layer}"), self.rows("dx"), self.ones("last_dx"),
            self.ones("last_dq") if last else self.rows("dq"), self.rows("dk"), self.rows("dv"),
            q, k, self.waves, partials,
            plan.block(layer), *self.positions, programs(plan), *self.sizes,
            **self.tokens, ROWS=_BACK_ROWS, TILES=each, **self.widths,
            POSITIONS=plan.model.positions, FIRST=layer == 0, LAST=last, **_BACK,
        )  # fmt: skip

    def learned_back(self, partials: Tensor) -> None:
        plan = self.plan
        each = triton.cdiv(plan.capacity, _PROGRAMS)
        _learned_back[self.grid(triton.cdiv(plan.capacity, each))](
            self.rows("dx"), self.count, partials, self.positions[0], programs(plan), *self.sizes,
            TOKENS=plan.n_tokens, PAD=triton.next_power_of_2(plan.n_tokens), EXAMPLES=each,
            D=plan.model.d_model,
        )  # fmt: skip


def forward(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, logits: Tensor
) -> None:
    """Logits of a batch."""
    launch = _Launch(plan, values, keys, first, count)
    _up_to_answer(launch)
    launch.answer(logits, None)


def _up_to_answer(launch: _Launch) -> None:
    launch.enter()
    for layer in range(launch.plan.model.n_layers - 1):
        launch.mix(layer)
        launch.block_end(layer)
    launch.read()


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
    launch = _Launch(plan, values, keys, first, count)
    _up_to_answer(launch)
    launch.answer(losses, partials)
    launch.read_back()
    for layer in reversed(range(plan.model.n_layers)):
        launch.project_back(layer, partials)
        if layer > 0:
            launch.block_end_back(layer - 1, partials)
            launch.mix_back(layer - 1)
    if plan.model.positions == "learned":
        launch.learned_back(partials)
