"""The random stream behind every example, in plain integers; needs no tensors.

Example k of seed s is a pure function of (s, k): words of a counter-based generator (SplitMix64;
Steele, Lea and Flood, 2014) at the example's own counters. There is no state between draws, so a
run sees the same data on CPU and GPU, alone and in a stack, stopped and resumed. `sampling.py`
computes the same words with tensors and `kernels/draws.py` with Triton; tests check that the three
agree bit for bit, which integer arithmetic makes possible.

*Uniform* examples have fair bits. In *mixed* examples and in *blocks*, examples of even number are
uniform, and those of odd number alternate between two densities: up to a cut every bit is 0 with
one probability, after it with another, after a second cut with the first again, and so on. This
makes strings frequent that fair bits never show: constant ones, few bits set, long constant blocks.

- *Mixed* has one cut, uniform in 0 … n, and each probability is 1.4 u - 0.2 for a uniform u,
  clipped to [0, 1]: one in seven is 0 and one in seven is 1.
- *Blocks* has four more cuts, each uniform in 0 … 2 n + 1, so that each falls into the string with
  probability 1/2; the probabilities are 2 u - 0.5, clipped: one in four is 0, one in four is 1.

The index is that of the uniform example, from the upper half of its word; the lower half gives the
first cut (12 bits, so uniform to 2^-12) and both u (10 bits each). The same word stirred once more
gives the other cuts, 16 bits each. The bits take 16 bits of a word each, four per word, from the
other half of the stream: counters from 2^63.
"""

from ithbit.families import Task
from ithbit.tasks.indexing import Instance

GAMMA = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
OTHER_HALF = 1 << 63
SHARE = 16  # bits of a word that decide one bit of an odd example
STEP, CUT = 10, 12  # bits of a word that decide a density, and the first cut
# Probabilities in units of 2^-SHARE, where u is an odd multiple of 2^-11: for one cut and for more.
RISE, RUN, BELOW = 224, 5, 13107  # 1.4 u - 0.2
BLOCKS_RISE, BLOCKS_BELOW = 64, 32768  # 2 u - 0.5
CUTS = {"uniform": 0, "mixed": 1, "blocks": 5}  # at most, in an odd example
MORE_CUT = 16  # bits of a word that decide a cut after the first
_MASK = (1 << 64) - 1


def stirred(word: int) -> int:
    """SplitMix64's last step, which makes neighbouring words unlike each other."""
    for shift, factor in MIX:
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return word ^ (word >> LAST_SHIFT)


def stream_key(seed: int) -> int:
    """Where a seed's stream starts; stirred, so that the streams of neighbouring seeds do not
    overlap."""
    return stirred(((seed + 1) * GAMMA) & _MASK)


def stream_word(seed: int, counter: int) -> int:
    """The 64-bit word of a seed's stream at a counter.

    >>> stream_word(0, 0) == stream_word(0, 0) != stream_word(1, 0)
    True
    """
    return stirred((stream_key(seed) + (counter + 1) * GAMMA) & _MASK)


def words_per_example(n_bits: int) -> int:
    """Counters that an example takes: one word for the index, then one per 64 bits."""
    return 1 + -(-n_bits // 64)


def words_per_odd(n_bits: int) -> int:
    """Counters that an odd example takes in the other half of the stream, unless it is uniform."""
    return -(-n_bits * SHARE // 64)


def zeros(step: int, n_cuts: int = 1) -> int:
    """In how many of 2^16 cases a bit is 0, for a random 10-bit number.

    >>> zeros(0), zeros(512), zeros(1023), zeros(300, n_cuts=5)
    (0, 32813, 65536, 5696)
    """
    odd = 2 * step + 1
    chance = RISE * odd // RUN - BELOW if n_cuts == 1 else BLOCKS_RISE * odd - BLOCKS_BELOW
    return min(max(chance, 0), 1 << SHARE)


def draw(task: Task, n_bits: int, seed: int, k: int, examples: str = "uniform") -> Instance:
    """Example k of a seed: index uniform (to 2^-32), bits independent given the densities.

    >>> draw("rhi", 4, seed=0, k=0)
    Instance(task='rhi', bits=(0, 1, 1, 1), index=3)
    >>> "".join(map(str, draw("rhi", 32, seed=0, k=11, examples="mixed").bits))
    '00000111111111111111111111111111'
    >>> "".join(map(str, draw("rhi", 32, seed=0, k=11, examples="blocks").bits))
    '11111000000000000111111111111111'
    """
    first = k * words_per_example(n_bits)
    word = stream_word(seed, first)
    index = 1 + (((word >> 32) * n_bits) >> 32)
    if CUTS[examples] and k % 2:
        return Instance(task, _two_densities(n_bits, seed, k, word, CUTS[examples]), index)
    bits = tuple((stream_word(seed, first + 1 + j // 64) >> (j % 64)) & 1 for j in range(n_bits))
    return Instance(task, bits, index)


def _two_densities(n_bits: int, seed: int, k: int, word: int, n_cuts: int) -> tuple[int, ...]:
    first, steps = OTHER_HALF + k * words_per_odd(n_bits), (1 << STEP) - 1
    one, other = zeros(word & steps, n_cuts), zeros(word >> STEP & steps, n_cuts)
    cuts = [(word >> (32 - CUT) & (1 << CUT) - 1) * (n_bits + 1) >> CUT]
    for at in range(0, (n_cuts - 1) * MORE_CUT, MORE_CUT):
        share = stirred(word) >> at & (1 << MORE_CUT) - 1
        cuts.append(share * 2 * (n_bits + 1) >> MORE_CUT)
    drawn = (
        stream_word(seed, first + j * SHARE // 64) >> (j * SHARE % 64) & (1 << SHARE) - 1
        for j in range(n_bits)
    )
    ahead = (sum(j < cut for cut in cuts) for j in range(n_bits))  # number of cuts after bit j
    return tuple(int(x >= (one if c % 2 else other)) for x, c in zip(drawn, ahead, strict=True))
