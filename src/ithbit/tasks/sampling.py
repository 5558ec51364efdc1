"""Seeded examples as tensors: online batches for training, held-out and length-shifted sets.

The same stream as `stream.py`, word for word, for a stack of seeds at once and on any device.
Bits and indices do not depend on the task: only the order of the tokens does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.tasks.stream import GAMMA, LAST_SHIFT, MIX, stream_key, words_per_example

HELD_OUT_SEED = 10_000
HALF_LENGTH_SEED = 20_000
DOUBLE_LENGTH_SEED = 30_000


@dataclass(frozen=True)
class Examples:
    """A stack of batches: one batch a seed."""

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
    """Logical shift of an int64: torch's own shift copies the sign."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def stream_keys(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """The start of each seed's stream as int64, for `draw_examples`."""
    return torch.tensor([_signed(stream_key(seed)) for seed in seeds], device=device)


def draw_examples(keys: Tensor, n_bits: int, first: int | Tensor, count: int) -> Examples:
    """Examples number first … first + count - 1 of every seed of the stack.

    `first` may be a tensor (seed, 1) on the device: each seed at its own place, moved on by a
    captured step.

    >>> examples = draw_examples(stream_keys([0, 7]), n_bits=4, first=0, count=3)
    >>> examples.bits[0, 0].tolist(), examples.index.shape, examples.answer.tolist()[0][0]
    ([0, 1, 1, 1], torch.Size([2, 3]), 1)
    """
    n_words = words_per_example(n_bits)
    counter = torch.arange(1, count * n_words + 1, device=keys.device) + first * n_words
    word = keys[:, None] + counter * _signed(GAMMA)
    for shift, factor in MIX:
        word = (word ^ _shift_right(word, shift)) * _signed(factor)
    word = (word ^ _shift_right(word, LAST_SHIFT)).view(len(keys), count, n_words)
    index = 1 + ((_shift_right(word[..., 0], 32) * n_bits) >> 32)
    shifts = torch.arange(64, device=keys.device)
    bits = ((word[..., 1:, None] >> shifts) & 1).to(torch.uint8).flatten(-2)[..., :n_bits]
    return Examples(bits, index)
