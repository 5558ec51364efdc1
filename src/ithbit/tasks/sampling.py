"""Seeded examples as tensors: online batches for training, held-out and length-shifted sets.

The same stream as in `stream.py`, word for word, for a stack of seeds at once and on any device.
Bits and indices do not depend on the task; only the order of the tokens does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.tasks.stream import (
    BELOW,
    BLOCKS_BELOW,
    BLOCKS_RISE,
    CUT,
    CUTS,
    GAMMA,
    LAST_SHIFT,
    MIX,
    MORE_CUT,
    OTHER_HALF,
    RISE,
    RUN,
    SHARE,
    STEP,
    stream_key,
    words_per_example,
    words_per_odd,
)

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
    """The start of each seed's stream, as int64, for `draw_examples`."""
    return torch.tensor([_signed(stream_key(seed)) for seed in seeds], device=device)


def draw_examples(
    keys: Tensor, n_bits: int, first: int | Tensor, count: int, examples: str = "uniform"
) -> Examples:
    """Examples first … first + count - 1 of every seed of the stack.

    `first` may be a tensor (seed, 1) on the device, one start per seed, which a captured step
    advances. `examples` is "uniform", "mixed" or "blocks" (see `stream.py`).

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
    drawn = _words(keys, first, word.shape[1], words_per_odd(n_bits), OTHER_HALF)
    drawn = ((drawn[..., None] >> shares) & (1 << SHARE) - 1).flatten(-2)[..., :n_bits]
    return (drawn >= torch.where(one, zeros[..., :1], zeros[..., 1:])).to(torch.uint8)
