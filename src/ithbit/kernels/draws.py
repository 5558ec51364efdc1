"""Examples drawn in place: any program can draw any bit of any example for itself.

Words and examples are those of `tasks/sampling.py`, bit for bit. An example is identified by its
number in the seed's stream.
"""

import triton
import triton.language as tl

from ithbit.tasks import sampling

_GAMMA = tl.constexpr(sampling.GAMMA)
_SHIFT_1, _FACTOR_1 = map(tl.constexpr, sampling.MIX[0])
_SHIFT_2, _FACTOR_2 = map(tl.constexpr, sampling.MIX[1])
_SHIFT_3 = tl.constexpr(sampling.LAST_SHIFT)
# Offset of the other half's counters.
_OTHER_HALF = tl.constexpr(sampling.OTHER_HALF * sampling.GAMMA % (1 << 64))
SHARES = tl.constexpr(64 // sampling.SHARE)  # bits of an odd example that a word decides
_SHARE, _CASES = tl.constexpr(sampling.SHARE), tl.constexpr(1 << sampling.SHARE)
_STEP, _STEPS = tl.constexpr(sampling.STEP), tl.constexpr(1 << sampling.STEP)
_CUT = tl.constexpr(sampling.CUT)
_MORE_CUT, _MORE_CUTS = tl.constexpr(sampling.MORE_CUT), tl.constexpr(1 << sampling.MORE_CUT)
_BLOCKS_RISE = tl.constexpr(sampling.BLOCKS_RISE)
_BLOCKS_BELOW = tl.constexpr(sampling.BLOCKS_BELOW)
_RISE, _RUN, _BELOW = map(tl.constexpr, (sampling.RISE, sampling.RUN, sampling.BELOW))


@triton.jit
def stream_word(key, example, j, WORDS):
    """Word j of an example (see `tasks/sampling.py`), as uint64."""
    counter = (example.to(tl.int64) * WORDS + 1 + j).to(tl.uint64, bitcast=True)
    return stirred(key + counter * _GAMMA)


@triton.jit
def stirred(word):
    """SplitMix64's last step, as uint64."""
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2
    return word ^ (word >> _SHIFT_3)


@triton.jit
def stream_of(keys, firsts, seed):
    """The key of a run's stream, and the number of its first example."""
    return tl.load(keys + seed).to(tl.uint64, bitcast=True), tl.load(firsts + seed)


@triton.jit
def draw_index(key, example, N, WORDS):
    """The index that an example asks for, from 0."""
    word = stream_word(key, example, 0, WORDS) >> 32
    return ((word * N) >> 32).to(tl.int32)


@triton.jit
def odd_word(key, example, j, N):
    """Word j of the bits of an odd example, as uint64."""
    return stream_word(key + _OTHER_HALF, example, j, (N + SHARES - 1) // SHARES)


@triton.jit
def odd_zeros(key, example, i, N, WORDS, CUTS: tl.constexpr):
    """In how many of a share's 2^16 cases bit i (from 0) of an odd example is 0, as int32."""
    word_64 = stream_word(key, example, 0, WORDS)
    word = word_64.to(tl.uint32)
    one = i < ((word >> (32 - _CUT)) * (N + 1) >> _CUT).to(tl.int32)
    if CUTS > 1:
        more = stirred(word_64)
        for cut in tl.static_range(CUTS - 1):
            share = (more >> (cut * _MORE_CUT)).to(tl.uint32) & (_MORE_CUTS - 1)
            one = one != (i < (share * (N + 1) >> (_MORE_CUT - 1)).to(tl.int32))
    odd = 2 * (tl.where(one, word, word >> _STEP) & (_STEPS - 1)).to(tl.uint32) + 1
    if CUTS == 1:
        zeros = (odd * _RISE // _RUN).to(tl.int32) - _BELOW
    else:
        zeros = (odd * _BLOCKS_RISE).to(tl.int32) - _BLOCKS_BELOW
    return tl.minimum(tl.maximum(zeros, 0), _CASES)


@triton.jit
def share_of(word, j):
    """Share j of a word, as int32."""
    return (word >> (j * _SHARE).to(tl.uint64)).to(tl.int32) & (_CASES - 1)


@triton.jit
def draw_bit(key, example, i, N, WORDS, CUTS: tl.constexpr):
    """Bit i (from 0) of an example with that many CUTS (0: uniform), as fp32; i must lie within the
    words drawn."""
    if CUTS == 0:
        word = stream_word(key, example, 1 + i // 64, WORDS)
        return ((word >> (i % 64).to(tl.uint64)) & 1).to(tl.float32)
    # One word for either kind of example: a fair bit has two cases and is 0 in one of them.
    odd = example % 2 == 1
    words = tl.where(odd, (N + SHARES - 1) // SHARES, WORDS)
    j = tl.where(odd, i // SHARES, 1 + i // 64)
    at = tl.where(odd, i % SHARES * _SHARE, i % 64)
    word = stream_word(key + tl.where(odd, _OTHER_HALF, 0), example, j, words)
    number = (word >> at.to(tl.uint64)).to(tl.int32) & tl.where(odd, _CASES - 1, 1)
    return (number >= tl.where(odd, odd_zeros(key, example, i, N, WORDS, CUTS), 1)).to(tl.float32)
