"""The parts of a Mamba2 block on one tile of whole sequences, and their gradients.

A tile has main rows, the bits of G sequences each padded to a power of two, and 16 side rows for
the tokens that are not bits: slot g is the query of sequence g, slot 8 + g its end token (LHI).
Padding n + 1 or n + 2 tokens to a power of two would cost two to four times the work. Letters as in
`models/mamba2.py`; a `place` is (example, token, valid), one entry a row. What is computed on rows
that are not valid is finite and adds nothing to a gradient.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from ithbit.kernels.tile import (
    dot,
    load_embedding,
    load_matrix,
    load_transposed,
    load_vector,
    token_features,
)
from ithbit.models.mamba2 import CONV_WIDTH

SIDE = tl.constexpr(16)  # side rows
SLOTS = tl.constexpr(8)  # side rows of one kind: the most sequences a tile holds
_TAPS = tl.constexpr(CONV_WIDTH)
_EPS = tl.constexpr(1e-5)


@dataclass(frozen=True)
class Shape:
    """What the kernels of a model are compiled for; a constant, so that it is passed as one."""

    N: int  # bits
    LHI: bool
    WORDS: int
    TOKENS: int
    FIRST: int  # token of the first bit
    SPAN: int  # main rows of a sequence
    ROWS: int  # main rows
    GROUP: int  # sequences a tile
    TILES: int  # tiles a program
    D: int
    STATE: int
    HEADS: int
    CONV_DIM: int  # numbers that go through the convolution
    WIDTH: int  # numbers that a token is projected to, dt aside
    WIDE: int  # the same, as a power of two
    STEPS: int  # two numbers a head, filled up for a product
    PARAMETERS: int
    CAPACITY: int  # examples of a run in the buffers
    POSITIONS: int  # where parameters lie: of the model
    LEAVE: int
    HEAD: int
    IN: int  # of a block
    CONV: int
    CONV_BIAS: int
    DT_BIAS: int
    A_LOG: int
    SKIP: int
    GATE_NORM: int
    OUT: int


@triton.jit
def main_place(tile, count, K: tl.constexpr):
    r = tl.arange(0, K.ROWS)
    example = tile * K.GROUP + r // K.SPAN
    i = r % K.SPAN
    return example, i + K.FIRST, (example < count) & (i < K.N)


@triton.jit
def side_place(tile, count, K: tl.constexpr):
    s = tl.arange(0, SIDE)
    example = tile * K.GROUP + s % SLOTS
    valid = (example < count) & (s % SLOTS < K.GROUP)
    if K.LHI:
        token = tl.where(s < SLOTS, 0, K.N + 1)
    else:
        token = tl.full([SIDE], 0, tl.int32) + K.N
        valid = valid & (s < SLOTS)
    return example, token, valid


@triton.jit
def is_last(K: tl.constexpr):
    """Side rows of the token where the answer is read."""
    s = tl.arange(0, SIDE)
    return s >= SLOTS if K.LHI else s < SLOTS


@triton.jit
def row_number(place, K: tl.constexpr):
    return place[0] * K.TOKENS + place[1]


@triton.jit
def load_rows(pointer, place, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr):
    """COLUMNS numbers of every row of a buffer (example, token, STRIDE), 0 where not valid."""
    at = (row_number(place, K) * STRIDE)[:, None] + tl.arange(0, COLUMNS)[None, :]
    return tl.load(pointer + at, mask=place[2][:, None], other=0.0)


@triton.jit
def store_rows(pointer, place, x, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr):
    at = (row_number(place, K) * STRIDE)[:, None] + tl.arange(0, COLUMNS)[None, :]
    tl.store(pointer + at, x, mask=place[2][:, None])


@triton.jit
def add(pointer, value, mask, again):
    """Store a share, or add it to that of the program's tiles before."""
    tl.store(pointer, value + tl.load(pointer, mask=mask & again, other=0.0), mask=mask)


@triton.jit
def add_vector(pointer, value, again, SIZE: tl.constexpr):
    c = tl.arange(0, SIZE)
    add(pointer + c, value, c < SIZE, again)


@triton.jit
def add_matrix(pointer, value, again, ROWS: tl.constexpr, LIVE: tl.constexpr, D: tl.constexpr):
    """The first LIVE of ROWS rows of width D."""
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, D)[None, :]
    add(pointer + r * D + c, value, (r < LIVE) & (c < D), again)


@triton.jit
def features(key, first, place, K: tl.constexpr):
    return token_features(key, first + place[0], place[1], K.N, K.LHI, K.WORDS)


@triton.jit
def enter(key, first, values, stream, place, EMBED: tl.constexpr, K: tl.constexpr):
    """A block's input: row D."""
    if EMBED:
        map = load_embedding(values, K.POSITIONS, 0, K.D, True, False)
        return dot(features(key, first, place, K), map)
    else:
        return load_rows(stream, place, K.D, K.D, K)


@triton.jit
def rms(x, D: tl.constexpr):
    """RMS normalisation without gain: the normal rows, and each row's 1 / root mean square."""
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + _EPS)
    return x * inverse[:, None], inverse


@triton.jit
def rms_back(grad, normal, inverse, D: tl.constexpr):
    """Gradient of `rms`'s input, from that of its normal rows."""
    return inverse[:, None] * (grad - normal * (tl.sum(grad * normal, 1) / D)[:, None])


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu_slope(x):
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


@triton.jit
def load_in(block, K: tl.constexpr):
    """The input projection without the rows of dt, filled up with zeros: WIDE D."""
    r = tl.arange(0, K.WIDE)[:, None]
    at = block + K.IN + r * K.D + tl.arange(0, K.D)[None, :]
    return tl.load(at, mask=r < K.WIDTH, other=0.0)


@triton.jit
def load_step_weight(block, h, K: tl.constexpr):
    return load_vector(block + K.IN + (K.WIDTH + h) * K.D, K.D)


@triton.jit
def project(x, block, raw, steps, place, K: tl.constexpr):
    """Normalise and project: gate, x, B, C before the convolution to `raw`, dt to `steps`."""
    normal, _ = rms(x, K.D)
    normal *= load_vector(block, K.D)
    c = tl.arange(0, K.WIDE)[None, :]
    at = (row_number(place, K) * K.WIDTH)[:, None] + c
    live = place[2][:, None] & (c < K.WIDTH)
    tl.store(raw + at, dot(normal, tl.trans(load_in(block, K))), mask=live)
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        dt = tl.sum(normal * load_step_weight(block, h, K), 1)
        tl.store(steps + row_number(place, K) * K.HEADS + h, dt, mask=place[2])


@triton.jit
def convolve(raw, block, place, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The causal convolution of SIZE columns from FROM on, before the silu: row SIZE."""
    c = FROM + tl.arange(0, SIZE)[None, :]
    out = tl.load(block + K.CONV_BIAS + c)
    for tap in tl.static_range(_TAPS):
        back = _TAPS - 1 - tap
        at = ((row_number(place, K) - back) * K.WIDTH + K.D)[:, None] + c
        live = place[2] & (place[1] >= back)
        value = tl.load(raw + at, mask=live[:, None], other=0.0)
        out += value * tl.load(block + K.CONV + tap * K.CONV_DIM + c)
    return out


@triton.jit
def gate_norm(y, x, gate, block, K: tl.constexpr):
    """y with the skip, and its gated rows normalised, with each row's 1 / root mean square."""
    y += x * load_skip(block, K)
    normal, inverse = rms(y * gate * sigmoid(gate), K.D)
    return y, normal, inverse


@triton.jit
def load_skip(block, K: tl.constexpr):
    return tl.load(block + K.SKIP + tl.arange(0, K.D)[None, :] // (K.D // K.HEADS))


@triton.jit
def out(x, normal, block, K: tl.constexpr):
    """A block's output, from its input and the gated and normal rows: row D."""
    gained = normal * load_vector(block + K.GATE_NORM, K.D)
    return x + dot(gained, load_transposed(block + K.OUT, K.D, K.D))


@triton.jit
def out_back(grad, y, x, gate, normal, inverse, block, K: tl.constexpr):
    """Gradients of y without its skip and of the gate; shares of skip (a column), gain, weight."""
    gain = load_vector(block + K.GATE_NORM, K.D)
    d_gained = dot(grad, load_matrix(block + K.OUT, K.D, K.D))
    d_weight = dot(tl.trans(grad), normal * gain)
    d_gated = rms_back(d_gained * gain, normal, inverse, K.D)
    d_y = d_gated * gate * sigmoid(gate)
    d_gate = d_gated * y * silu_slope(gate)
    return d_y, d_gate, (tl.sum(d_y * x, 0), tl.sum(d_gained * normal, 0), d_weight)


@triton.jit
def add_out(share, skip, gain, weight, again, K: tl.constexpr):
    skip = tl.sum(tl.reshape(skip, [K.HEADS, K.D // K.HEADS]), 1)
    add_vector(share + K.SKIP, skip, again, K.HEADS)
    add_vector(share + K.GATE_NORM, gain, again, K.D)
    add_matrix(share + K.OUT, weight, again, K.D, K.D, K.D)


@triton.jit
def store_slopes(slopes, place, gate, before, grads, K: tl.constexpr):
    """Leave the gradients of the gate and of the convolution's x, B, C before the silu."""
    store_rows(slopes, place, gate, K.D, K.WIDTH, K)
    x, b, c = grads
    store_rows(slopes + K.D, place, x * silu_slope(before[0]), K.D, K.WIDTH, K)
    store_rows(slopes + 2 * K.D, place, b * silu_slope(before[1]), K.STATE, K.WIDTH, K)
    c *= silu_slope(before[2])
    store_rows(slopes + 2 * K.D + K.STATE, place, c, K.STATE, K.WIDTH, K)


@triton.jit
def project_back(x, grad, d_steps, raw, slopes, block, place, K: tl.constexpr):
    """Gradient of a block's input, from that of its output and `slopes`; the shares on the way."""
    c = tl.arange(0, K.WIDE)[None, :]
    is_conv = (c >= K.D) & (c < K.WIDTH)
    at = (row_number(place, K) * K.WIDTH)[:, None] + c
    value = tl.load(raw + at, mask=place[2][:, None] & is_conv, other=0.0)
    here = tl.load(slopes + at, mask=place[2][:, None] & (c < K.WIDTH), other=0.0)
    # The gate goes round the convolution.
    weight = block + K.CONV + c - K.D
    d_raw = here * tl.load(weight + 2 * K.CONV_DIM, mask=is_conv, other=1.0)
    live = (place[2] & (place[1] + 1 < K.TOKENS))[:, None] & is_conv
    later = tl.load(slopes + at + K.WIDTH, mask=live, other=0.0)
    d_raw += later * tl.load(weight + K.CONV_DIM, mask=is_conv, other=0.0)
    live = (place[2] & (place[1] + 2 < K.TOKENS))[:, None] & is_conv
    latest = tl.load(slopes + at + 2 * K.WIDTH, mask=live, other=0.0)
    d_raw += latest * tl.load(weight, mask=is_conv, other=0.0)
    taps = (tl.sum(latest * value, 0), tl.sum(later * value, 0), tl.sum(here * value, 0))
    normal, inverse = rms(x, K.D)
    gain = load_vector(block, K.D)
    r = tl.arange(0, K.STEPS)[:, None]
    step_weight = block + K.IN + (K.WIDTH + r) * K.D + tl.arange(0, K.D)[None, :]
    d_gained = dot(d_raw, load_in(block, K))
    d_gained += dot(d_steps, tl.load(step_weight, mask=r < K.HEADS, other=0.0))
    grad += rms_back(d_gained * gain, normal, inverse, K.D)
    shares = (
        tl.sum(d_gained * normal, 0),
        dot(tl.trans(d_raw), normal * gain),
        dot(tl.trans(d_steps), normal * gain),
        taps,
        tl.sum(here, 0),
        tl.sum(d_steps, 0),
    )
    return grad, shares


@triton.jit
def add_project(share, main, side, again, K: tl.constexpr):
    """Leave the shares of main and side rows that `project_back` gives."""
    add_vector(share, main[0] + side[0], again, K.D)
    add_matrix(share + K.IN, main[1] + side[1], again, K.WIDE, K.WIDTH, K.D)
    steps = share + K.IN + K.WIDTH * K.D
    add_matrix(steps, main[2] + side[2], again, K.STEPS, K.HEADS, K.D)
    c = tl.arange(0, K.WIDE)
    is_conv = (c >= K.D) & (c < K.WIDTH)
    for tap in tl.static_range(_TAPS):
        to = share + K.CONV + tap * K.CONV_DIM + c - K.D
        add(to, main[3][tap] + side[3][tap], is_conv, again)
    add(share + K.CONV_BIAS + c - K.D, main[4] + side[4], is_conv, again)
    # dt_bias, and a_log right after it.
    h = tl.arange(0, K.STEPS)
    add(share + K.DT_BIAS + h, main[5] + side[5], h < 2 * K.HEADS, again)
