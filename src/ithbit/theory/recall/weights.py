"""Explicit weights for recall tasks.

The weights are layers of `ithbit.theory.layers`, an embedding with a row for every token at every
position, and an output matrix with a row for every answer, the strict argmax.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from ithbit.errors import SpecError
from ithbit.theory.layers import FloatArray, LinearAttention, Rnn, SoftmaxAttention, Ssm, matrix
from ithbit.theory.recall.tasks import Recall

RecallLayer = SoftmaxAttention | LinearAttention | Ssm | Rnn
MOST_NUMBERS = 20_000_000  # of an embedding


@dataclass(frozen=True, eq=False)
class RecallSolution:
    """Weights that are claimed to solve a recall task at one size.

    `embedding` has the axes position, token, coordinate. Tokens are counted from 1; of MQAR the
    keys come first, then the values. For copying, `again` embeds the tokens from the separator on,
    which is token 0.
    """

    task: Recall
    family: str
    n: int
    layers: tuple[RecallLayer, ...]
    embedding: FloatArray
    output: FloatArray
    again: FloatArray | None = None

    @property
    def width(self) -> int:
        return int(self.output.shape[1])


def checked_size(task: Recall, n: int, symbols: int, tokens: int, width: int) -> None:
    """Raise `SpecError` unless weights are built at this size."""
    least = 1 if task.values else 2
    if n < least:
        raise SpecError(f"n must be at least {least}, got {n}")
    if tokens * symbols * width > MOST_NUMBERS:
        raise SpecError(
            f"weights are built up to {MOST_NUMBERS:,} numbers, got {tokens * symbols * width:,}; "
            "`ithbit verdict` has what is proved at every size"
        )


def digits(symbols: int, width: int, start: int) -> FloatArray:
    """Output rows v y_1 - v^2 / 2 y_2 for v from `start` on: the greatest is that of the number
    nearest to y_1 / y_2."""
    rows, numbers = np.zeros((symbols, width)), np.arange(start, start + symbols, dtype=np.float64)
    rows[:, 0], rows[:, 1] = numbers, -(numbers**2) / 2
    return matrix(rows)


def same_weights(one: Any, other: Any) -> bool:
    """Whether every number, and every kind of layer, is the same."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        names = [field.name for field in fields(one)]
        return all(same_weights(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same_weights, one, other))
    return bool(np.array_equal(one, other))
