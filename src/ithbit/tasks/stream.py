"""The random stream behind every example, in plain integers; needs no tensors.

Example number k of seed s is a pure function of (s, k): words of a counter-based generator
(SplitMix64; Steele, Lea and Flood, 2014) at counters of its own. Nothing is carried from draw to
draw, so a run sees the same data on CPU and GPU, alone and in a stack, stopped and resumed.
`sampling.py` computes the same words with tensors; a test holds the two together.
"""

from ithbit.families import Task
from ithbit.tasks.indexing import Instance

GAMMA = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
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


def draw(task: Task, n_bits: int, seed: int, k: int) -> Instance:
    """Example number k of a seed: index uniform (to 2^-32), bits independent and fair.

    >>> draw("rhi", 4, seed=0, k=0)
    Instance(task='rhi', bits=(0, 1, 1, 1), index=3)
    """
    first = k * words_per_example(n_bits)
    index = 1 + (((stream_word(seed, first) >> 32) * n_bits) >> 32)
    bits = tuple((stream_word(seed, first + 1 + j // 64) >> (j % 64)) & 1 for j in range(n_bits))
    return Instance(task, bits, index)
