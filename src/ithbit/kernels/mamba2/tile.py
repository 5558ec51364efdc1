"""What the Mamba2 kernels share: their constants, rows of tokens, and the parts of a block that act
on each token separately or shift it. Letters as in `models/mamba2.py`.

A `place` is (example, token, valid), with one entry per row of a tensor. Results on rows that are
not valid are finite and add nothing to a gradient. Buffers are (seed, example, token, number).
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from ithbit.kernels.tile import load_vector
from ithbit.layouts import MAMBA2

TAPS = tl.constexpr(MAMBA2.taps)
_EPS = tl.constexpr(MAMBA2.norm_eps)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG_2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Mamba2Shape:
    """What the kernels of a model are compiled for: sizes, and where parameters lie."""

    N: int  # bits
    LHI: int  # 1 for LHI, else 0
    WORDS: int
    TOKENS: int
    TAIL: int  # last tokens of a sequence, which the convolution brings to the very last
    ALONE: int  # last tokens of a sequence that are mixed one by one
    CHUNKS: int  # of a sequence, before those
    CHUNKS_WIDE: int  # the same, rounded up to a power of two
    STARTS: int  # states kept per sequence: at the start of each chunk and each single token
    CAPACITY: int  # examples of a run in the buffers
    SPAN: int  # rows that a sequence's bits take in a tile
    GROUP: int  # sequences per tile
    TILES: int  # tiles per program in the last block's mixing, which stores gradient shares
    ROWS: int  # of a tile that ignores sequences
    BACK_ROWS: int  # the same, backward
    BACK_TILES: int  # such tiles per program
    TALLIED: int  # examples that are summed at a time
    KIND_ROWS: int  # of a tile of kinds of tokens
    KIND_TURNS: int  # such tiles and those of queries, per program
    D: int
    STATE: int
    HEADS: int
    CONV_DIM: int  # numbers that go through the convolution: x, B, C
    WIDTH: int  # numbers that a token is projected to, without dt: gate, x, B, C
    WIDE: int  # the same, rounded up to a power of two
    STEPS: int  # three numbers per head, rounded up to a power of two
    POSITIONS: int
    ENCODING: str  # of positions
    IN: int  # this offset and those below are within a block
    CONV: int
    CONV_BIAS: int
    DT_BIAS: int  # a_log and skip follow it
    A_LOG: int
    SKIP: int
    GATE_NORM: int
    OUT: int


@triton.jit
def of_seed(pointer, COLUMNS: tl.constexpr, K: tl.constexpr):
    """The part of a buffer that belongs to this program's run."""
    return pointer + tl.program_id(1).to(tl.int64) * (K.CAPACITY * K.TOKENS * COLUMNS)


@triton.jit
def share_of_program(partials, PROGRAMS, PARAMETERS):
    """This program's row of the shares of the gradient."""
    row = tl.program_id(1).to(tl.int64) * PROGRAMS + tl.program_id(0)
    return partials + row * PARAMETERS


@triton.jit
def row_number(place, K: tl.constexpr):
    return place[0] * K.TOKENS + place[1]


@triton.jit
def _at(place, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr):
    """Where COLUMNS numbers of each row lie in a buffer of STRIDE numbers per token."""
    # 64-bit integers: addresses then differ by constants and need no separate registers.
    return (row_number(place, K).to(tl.int64) * STRIDE)[:, None] + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def load_rows(pointer, place, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr):
    """COLUMNS numbers of every row of a buffer of STRIDE numbers per token, 0 where not valid."""
    at = _at(place, COLUMNS, STRIDE, K)
    return tl.load(pointer + at, mask=place[2][:, None], other=0.0)


@triton.jit
def store_rows(pointer, place, x, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr):
    tl.store(pointer + _at(place, COLUMNS, STRIDE, K), x, mask=place[2][:, None])


@triton.jit
def rms(x, D: tl.constexpr):
    """RMS normalisation without gain: the normalised rows, and each row's 1 / root mean square."""
    square = tl.sum(x * x, 1) * (1.0 / D) + _EPS
    inverse = tl.rsqrt(square)
    # One Newton step: the hardware's root is off by up to two units in the last place.
    inverse += inverse * (0.5 - 0.5 * square * inverse * inverse)
    return x * inverse[:, None], inverse


@triton.jit
def rms_back(grad, normal, inverse, D: tl.constexpr):
    """Gradient of `rms`'s input, from that of its normalised rows."""
    return inverse[:, None] * (grad - normal * (tl.sum(grad * normal, 1) * (1.0 / D))[:, None])


@triton.jit
def exp(x, low=0.0):
    """exp(x + low) for a small `low`; 0 if that is below the smallest normal number.

    The hardware computes powers of 2, and x log2(e) is rounded, which costs |x| units in the last
    place: the rounding error is added back.
    """
    scaled = x * _LOG2_E
    power = tl.exp2(scaled)
    return power + power * (tl.fma(x, _LOG2_E, -scaled) * _LOG_2 + low)


@triton.jit
def load_rate(block, h, K: tl.constexpr):
    """A of head h, in double: it multiplies sums of dt over the whole sequence, so its error enters
    every decay, many times over."""
    return -tl.exp(tl.load(block + K.A_LOG + h).to(tl.float64))


@triton.jit
def head_columns(K: tl.constexpr):
    """The head of each column: 1 D."""
    return tl.arange(0, K.D)[None, :] // (K.D // K.HEADS)


@triton.jit
def _inverse(x):
    """1 / x for a finite x >= 1; a division takes more instructions and is no better."""
    root = tl.rsqrt(x)
    inverse = root * root
    return inverse + inverse * (1.0 - x * inverse)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), not less than 1e-38."""
    return _inverse(1.0 + tl.exp2(tl.minimum(x * -_LOG2_E, 126.0)))


@triton.jit
def softplus(x):
    """Like `tile.softplus`, but with the rounding errors of its exponential and quotient added
    back: a dt is summed over a whole sequence before it decays a state."""
    small = exp(-tl.abs(x))
    one_plus = 1.0 + small
    inverse = _inverse(one_plus)
    log = tl.log(one_plus) + (small - (one_plus - 1.0)) * inverse
    return tl.maximum(x, 0.0) + log, tl.where(x >= 0, 1.0, small) * inverse


@triton.jit
def silu_slope(x):
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


@triton.jit
def gate_back(d_gained, y, gate, normal, inverse, block, K: tl.constexpr):
    """Gradients of y and of the gate, from that of the gated, normalised rows after their gain."""
    gain = load_vector(block + K.GATE_NORM, K.D)
    d_gated = rms_back(d_gained * gain, normal, inverse, K.D)
    return d_gated * gate * sigmoid(gate), d_gated * y * silu_slope(gate)


@triton.jit
def convolve(raw, block, place, FROM: tl.constexpr, SIZE: tl.constexpr, K: tl.constexpr):
    """The causal convolution of SIZE columns from FROM on, before the silu: row SIZE."""
    c = tl.arange(0, SIZE).to(tl.int64)[None, :]
    at = _at(place, SIZE, K.WIDTH, K)
    out = tl.load(block + (c + (K.CONV_BIAS + FROM)))
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        live = place[2] & (place[1] >= back)
        value = tl.load(raw + (at + (K.D + FROM - back * K.WIDTH)), mask=live[:, None], other=0.0)
        out += value * tl.load(block + (c + (K.CONV + tap * K.CONV_DIM + FROM)))
    return out
