"""Seeded examples as tensors: online batches for training, held-out and length-shifted sets.

Example k of seed s is a pure function of (s, k): words of a counter-based generator (SplitMix64;
Steele, Lea and Flood, 2014) at the example's own counters. There is no state between draws, so a
run sees the same data on CPU and GPU, alone and in a stack, stopped and resumed. `kernels/draws.py`
draws the same examples with Triton, and the tests with plain integers: all three agree bit for bit,
which integer arithmetic makes possible. Bits and indices do not depend on the task; only the order
of the tokens does.

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

from dataclasses import dataclass

import torch
from torch import Tensor

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
HELD_OUT_SEED = 10_000
HALF_LENGTH_SEED = 20_000
DOUBLE_LENGTH_SEED = 30_000
BYTES_A_BIT = 16  # memory used in drawing: each word is expanded to 64 numbers and masked


@dataclass(frozen=True)
class Examples:
    """A stack of batches: one batch per seed."""

    bits: Tensor  # seed batch bit, uint8
    index: Tensor  # seed batch, from 1

    @property
    def answer(self) -> Tensor:
        """The indexed bit: seed batch, uint8."""
        return self.bits.gather(-1, (self.index - 1).unsqueeze(-1)).squeeze(-1)


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits: torch's integers wrap, but are signed."""
    return word - (1 << 64) if word >> 63 else word


def _shift_right(word: Tensor, by: int) -> Tensor:
    """Logical right shift of an int64: torch's own shift copies the sign bit."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def stream_keys(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """The start of each seed's stream, as int64, for `draw_examples`; stirred, so that the streams
    of neighbouring seeds do not overlap."""
    starts = [_signed((seed + 1) * GAMMA % (1 << 64)) for seed in seeds]
    return _stirred(torch.tensor(starts, dtype=torch.int64)).to(device)


def words_per_example(n_bits: int) -> int:
    """Counters that an example takes: one word for the index, then one per 64 bits."""
    return 1 + -(-n_bits // 64)


def words_per_odd(n_bits: int) -> int:
    """Counters that an odd example takes in the other half of the stream, unless it is uniform."""
    return -(-n_bits * SHARE // 64)


def draw_examples(
    keys: Tensor, n_bits: int, first: int | Tensor, count: int, examples: str = "uniform"
) -> Examples:
    """Examples first … first + count - 1 of every seed of the stack.

    `first` may be a tensor (seed, 1) on the device, one start per seed, which a captured step
    advances. `examples` is "uniform", "mixed" or "blocks".

    >>> examples = draw_examples(stream_keys([0, 7]), n_bits=4, first=0, count=3)
    >>> examples.bits[0, 0].tolist(), examples.index.shape, examples.answer.tolist()[0][0]
    ([0, 1, 1, 1], torch.Size([2, 3]), 1)
    """
    word = _words(keys, first, count, words_per_example(n_bits))
    index = 1 + ((_shift_right(word[..., 0], 32) * n_bits) >> 32)
    shifts = torch.arange(64, device=keys.device)
    bits = ((word[..., 1:, None] >> shifts) & 1).to(torch.uint8).flatten(-2)[..., :n_bits]
    if CUTS[examples]:
        odd = ((first + torch.arange(count, device=keys.device)) % 2 == 1).unsqueeze(-1)
        bits = torch.where(
            odd, _two_densities(keys, n_bits, first, word[..., :1], CUTS[examples]), bits
        )
    return Examples(bits, index)


def paired(examples: Examples) -> Examples:
    """The examples, where each of the second half takes over the index, and the bit there, of its
    partner in the first half; its other bits stay. Of an odd number the last stays as it is.

    >>> drawn = paired(draw_examples(stream_keys([0]), n_bits=4, first=0, count=5))
    >>> drawn.index.tolist(), drawn.answer.tolist()
    ([[3, 2, 3, 2, 2]], [[1, 1, 1, 1, 0]])
    """
    half = examples.index.shape[1] // 2
    one, other = examples.bits[:, :half], examples.bits[:, half : 2 * half]
    index = examples.index[:, :half]
    at = (index - 1).unsqueeze(-1)
    other = other.scatter(-1, at, one.gather(-1, at))
    return Examples(
        torch.cat([one, other, examples.bits[:, 2 * half :]], 1),
        torch.cat([index, index, examples.index[:, 2 * half :]], 1),
    )


def with_flips(examples: Examples, places: Tensor) -> Examples:
    """Each example, followed by copies of it with a single bit flipped: that at the first place,
    at the second, and so on. Places (seed flip) count from 0.

    >>> drawn = draw_examples(stream_keys([0]), n_bits=3, first=0, count=1)
    >>> with_flips(drawn, torch.tensor([[0, 2]])).bits.tolist()
    [[[0, 1, 1], [1, 1, 1], [0, 1, 0]]]
    """
    flips = torch.nn.functional.one_hot(places, examples.bits.shape[-1]).to(torch.uint8)
    flips = torch.cat([torch.zeros_like(flips[:, :1]), flips], 1)
    bits = examples.bits.unsqueeze(2) ^ flips.unsqueeze(1)
    index = examples.index.unsqueeze(2).expand(bits.shape[:-1])
    return Examples(bits.flatten(1, 2), index.flatten(1, 2))


def draw_densities(keys: Tensor, n_bits: int, first: int, count: int) -> Examples:
    """Examples drawn as odd mixed ones are, whatever their number: two densities with a cut, and a
    uniform index."""
    word = _words(keys, first, count, words_per_example(n_bits))[..., :1]
    index = 1 + ((_shift_right(word[..., 0], 32) * n_bits) >> 32)
    return Examples(_two_densities(keys, n_bits, first, word, 1), index)


def _words(keys: Tensor, first: int | Tensor, count: int, n_words: int, start: int = 0) -> Tensor:
    """The words of examples of `n_words` each, counting from `start`: seed count word."""
    counter = torch.arange(1, count * n_words + 1, device=keys.device) + first * n_words
    word = keys[:, None] + _signed(start * GAMMA % (1 << 64)) + counter * _signed(GAMMA)
    return _stirred(word).view(len(keys), count, n_words)


def _stirred(word: Tensor) -> Tensor:
    """SplitMix64's last step, which makes neighbouring words unlike each other."""
    for shift, factor in MIX:
        word = (word ^ _shift_right(word, shift)) * _signed(factor)
    return word ^ _shift_right(word, LAST_SHIFT)


def _two_densities(
    keys: Tensor, n_bits: int, first: int | Tensor, word: Tensor, n_cuts: int
) -> Tensor:
    """The bits of examples of two densities, drawn as odd ones are, from the words of their indices
    (seed count 1): seed count bit."""
    odd = 2 * (torch.cat([word, word >> STEP], -1) & (1 << STEP) - 1) + 1
    chance = RISE * odd // RUN - BELOW if n_cuts == 1 else BLOCKS_RISE * odd - BLOCKS_BELOW
    zeros, place = chance.clamp(0, 1 << SHARE), torch.arange(n_bits, device=keys.device)
    cut = ((word >> (32 - CUT)) & (1 << CUT) - 1) * (n_bits + 1) >> CUT
    one, more = place < cut, _stirred(word)
    for at in range(0, (n_cuts - 1) * MORE_CUT, MORE_CUT):
        share = (more >> at) & (1 << MORE_CUT) - 1
        one = one ^ (place < (share * 2 * (n_bits + 1) >> MORE_CUT))
    shares = torch.arange(0, 64, SHARE, device=keys.device)
    words = _words(keys, first, word.shape[1], words_per_odd(n_bits), OTHER_HALF)
    words = ((words[..., None] >> shares) & (1 << SHARE) - 1).flatten(-2)[..., :n_bits]
    return (words >= torch.where(one, zeros[..., :1], zeros[..., 1:])).to(torch.uint8)
