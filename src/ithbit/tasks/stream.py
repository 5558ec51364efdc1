"""The random stream behind every example, in plain integers; needs no tensors.

Example number k of seed s is a pure function of (s, k): words of a counter-based generator
(SplitMix64; Steele, Lea and Flood, 2014) at counters of its own. Nothing is carried from draw to
draw, so a run sees the same data on CPU and GPU, alone and in a stack, stopped and resumed.
`sampling.py` computes the same words with tensors and `kernels/tile.py` with Triton; tests hold the
three together, bit for bit: whatever decides a bit is an integer.

*Uniform* examples have fair bits. Of *mixed* examples those of even number are the uniform ones,
and those of odd number have two densities with a cut: up to a cut, uniform in 0 … n, every bit is 0
with one chance, after it with another. Each chance is 1.4 u - 0.2 for a uniform u, clipped to
[0, 1], so that one in seven is 0 and one in seven is 1. Strings that fair bits never show are
frequent so: constant ones, few bits set, a block of ones. The index is that of the uniform example,
by the upper half of its word; the lower half has the cut (12 bits, so uniform to 2^-12) and both u
(10 bits each). The bits are four a word, by 16 bits of it each, from the other half of the stream:
counters from 2^63.
"""

from ithbit.families import Task
from ithbit.tasks.indexing import Instance

GAMMA = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
OTHER_HALF = 1 << 63
SHARE = 16  # bits of a word that decide one bit of an odd mixed example
STEP, CUT = 10, 12  # bits of a word that decide a density, and the cut
RISE, RUN, BELOW = 224, 5, 13107  # 1.4 u - 0.2 in parts of 2^SHARE, for an odd number of 2^-11 as u
_MASK = (1 << 64) - 1


def _mixed(word: int) -> int:
    for shift, factor in MIX:
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return word ^ (word >> LAST_SHIFT)


def stream_key(seed: int) -> int:
    """Where a seed's stream starts; mixed, so that neighbouring seeds share no stretch of it."""
    return _mixed(((seed + 1) * GAMMA) & _MASK)


def stream_word(seed: int, counter: int) -> int:
    """The 64-bit word of a seed's stream at a counter.

    >>> stream_word(0, 0) == stream_word(0, 0) != stream_word(1, 0)
    True
    """
    return _mixed((stream_key(seed) + (counter + 1) * GAMMA) & _MASK)


def words_per_example(n_bits: int) -> int:
    """Counters an example takes: one word for the index, then 64 bits a word."""
    return 1 + -(-n_bits // 64)


def words_per_odd(n_bits: int) -> int:
    """Counters of the other half that a mixed example takes."""
    return -(-n_bits * SHARE // 64)


def zeros(step: int) -> int:
    """In how many of 2^16 cases a bit is 0, for a random number of 10 bits: 1.4 u - 0.2, clipped.

    >>> zeros(0), zeros(512), zeros(1023)
    (0, 32813, 65536)
    """
    return min(max(RISE * (2 * step + 1) // RUN - BELOW, 0), 1 << SHARE)


def draw(task: Task, n_bits: int, seed: int, k: int, examples: str = "uniform") -> Instance:
    """Example number k of a seed: index uniform (to 2^-32), bits independent given densities.

    >>> draw("rhi", 4, seed=0, k=0)
    Instance(task='rhi', bits=(0, 1, 1, 1), index=3)
    >>> "".join(map(str, draw("rhi", 32, seed=0, k=11, examples="mixed").bits))
    '00000111111111111111111111111111'
    """
    first = k * words_per_example(n_bits)
    word = stream_word(seed, first)
    index = 1 + (((word >> 32) * n_bits) >> 32)
    if examples == "mixed" and k % 2:
        return Instance(task, _two_densities(n_bits, seed, k, word), index)
    bits = tuple((stream_word(seed, first + 1 + j // 64) >> (j % 64)) & 1 for j in range(n_bits))
    return Instance(task, bits, index)


def _two_densities(n_bits: int, seed: int, k: int, word: int) -> tuple[int, ...]:
    first, steps = OTHER_HALF + k * words_per_odd(n_bits), (1 << STEP) - 1
    before, after = zeros(word & steps), zeros(word >> STEP & steps)
    cut = (word >> (32 - CUT) & (1 << CUT) - 1) * (n_bits + 1) >> CUT
    drawn = (
        stream_word(seed, first + j * SHARE // 64) >> (j * SHARE % 64) & (1 << SHARE) - 1
        for j in range(n_bits)
    )
    return tuple(int(x >= (before if j < cut else after)) for j, x in enumerate(drawn))
