"""The two indexing tasks as the paper defines them: instances, answers, and all inputs of a length.

RHI has n + 1 tokens, bit_1 … bit_n and the index, and is answered at the index token.
LHI has n + 2 tokens, the index, bit_1 … bit_n and an end token, and is answered at the end token.
In both the answer is read at the last token. The index counts from 1, as in the paper.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.errors import SpecError
from ithbit.families import Task, task_named

N_FEATURES = 6  # numbers that stand for a token, see `tokens.py`


@dataclass(frozen=True)
class Instance:
    """One input of an indexing task.

    >>> Instance("rhi", (1, 0, 1), 2).answer
    0
    >>> Instance("lhi", (1, 0, 1), 2).tokens
    ('index 2', 'bit 1', 'bit 0', 'bit 1', 'end')
    """

    task: Task
    bits: tuple[int, ...]
    index: int

    def __post_init__(self) -> None:
        task_named(self.task)
        if not self.bits or any(bit not in (0, 1) for bit in self.bits):
            raise SpecError(f"bits must be a non-empty string of 0 and 1, got {self.bits!r}")
        if not 1 <= self.index <= len(self.bits):
            raise SpecError(f"the index must be in 1..{len(self.bits)}, got {self.index}")

    @property
    def answer(self) -> int:
        return self.bits[self.index - 1]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens in order, in readable form; the answer is read at the last."""
        bits = tuple(f"bit {bit}" for bit in self.bits)
        index = (f"index {self.index}",)
        return bits + index if self.task == "rhi" else index + bits + ("end",)


def n_tokens(task: Task, n_bits: int) -> int:
    """Length of the token sequence: n + 1 for RHI, n + 2 for LHI."""
    return n_bits + (1 if task == "rhi" else 2)


def all_inputs(
    n_bits: int, batch_size: int = 65536
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """All n · 2^n inputs in batches (bits, index): strings in binary order, each with every index.

    >>> [(bits.tolist(), index.tolist()) for bits, index in all_inputs(1)]
    [([[0], [1]], [1, 1])]
    """
    if not 1 <= n_bits <= 48:
        raise SpecError(f"all inputs can be listed for n in 1..48, got n = {n_bits}")
    total = n_bits << n_bits
    for start in range(0, total, batch_size):
        number = np.arange(start, min(start + batch_size, total), dtype=np.int64)
        string, index = np.divmod(number, n_bits)
        shifts = np.arange(n_bits - 1, -1, -1, dtype=np.int64)
        yield ((string[:, None] >> shifts) & 1).astype(np.uint8), index + 1
