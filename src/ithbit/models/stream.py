"""The tokens on their way through the blocks: a short table first, a sequence afterwards.

Before the first mixing there are few distinct tokens (see `tasks/tokens.py`), so operations on
single tokens are done on the rows of that table and then spread over the batch. The answer is read
at the last token, so the last block computes only that one. Both savings are exact: the same sums,
fewer of them. A bit token is its row for 0 plus the bit times the difference to its row for 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.families import Task


@dataclass(frozen=True)
class Sequence:
    """Every token of every example: rows are (seed, batch, token, dim)."""

    rows: Tensor

    def all(self, rows: Tensor) -> Tensor:
        """Results on `rows`, for all tokens: seed batch token dim."""
        return rows

    def last(self, rows: Tensor) -> Tensor:
        """Results on `rows`, for the last token, where the answer is read: seed batch 1 dim."""
        return rows[:, :, -1:]


@dataclass(frozen=True)
class Table:
    """The token table and the examples made of it: rows are (seed, row, dim)."""

    rows: Tensor
    task: Task
    bits: Tensor  # seed batch bit, in the dtype of the rows
    query: Tensor  # seed batch bit, one-hot of the index

    def _query(self, rows: Tensor) -> Tensor:
        n = self.bits.shape[-1]
        # A product with the one-hot index, not a gather: its gradient is a sum in a fixed order.
        return torch.bmm(self.query, rows[:, 2 * n : 3 * n]).unsqueeze(2)

    def _end(self, rows: Tensor) -> Tensor:
        return rows[:, None, -1:].expand(-1, self.bits.shape[1], -1, -1)

    def all(self, rows: Tensor) -> Tensor:
        """Results on the table's rows, for all tokens: seed batch token dim."""
        n = self.bits.shape[-1]
        zero, one = rows[:, None, :n], rows[:, None, n : 2 * n]
        bits = torch.addcmul(zero, self.bits.unsqueeze(-1), one - zero)
        if self.task == "rhi":
            return torch.cat([bits, self._query(rows)], dim=2)
        return torch.cat([self._query(rows), bits, self._end(rows)], dim=2)

    def last(self, rows: Tensor) -> Tensor:
        """Results on the table's rows, for the last token: seed batch 1 dim."""
        return self._query(rows) if self.task == "rhi" else self._end(rows)


Stream = Table | Sequence
