"""Instances as token features: six numbers per token, and the short table of all possible tokens.

Features of a token: one-hot type (bit, query, end), bit value, (i-1)/n and ((i-1)/n)^2; the last
two are zero except on the query token. Sequences of n bits have few distinct tokens, so these are
kept as rows of a table: bit 0 at each position, bit 1 at each position, each query, and for LHI
the end token; 3n or 3n + 1 rows in that order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.families import Task
from ithbit.tasks.indexing import N_FEATURES


@dataclass(frozen=True)
class TokenTable:
    """Every token of one task and length: its features and its position."""

    task: Task
    n_bits: int
    features: Tensor  # row feature
    positions: Tensor  # row


def token_table(
    task: Task,
    n_bits: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> TokenTable:
    """The token table of a task. As in the paper, n is the instance's own, even where it is not the
    length trained on.

    >>> table = token_table("rhi", 2)
    >>> table.features.tolist()[3], table.features.tolist()[5], table.positions.tolist()
    ([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.5, 0.25], [0, 1, 0, 1, 2, 2])
    """
    n = n_bits
    features = torch.zeros(3 * n + (task == "lhi"), N_FEATURES, dtype=torch.float64)
    features[: 2 * n, 0] = 1
    features[n : 2 * n, 3] = 1
    features[2 * n : 3 * n, 1] = 1
    fraction = torch.arange(n, dtype=torch.float64) / n
    features[2 * n : 3 * n, 4] = fraction
    features[2 * n : 3 * n, 5] = fraction**2
    features[3 * n :, 2] = 1
    bits = torch.arange(n) + (task == "lhi")
    query = torch.full((n,), n if task == "rhi" else 0)
    end = torch.full((int(task == "lhi"),), n + 1)
    positions = torch.cat([bits, bits, query, end])
    return TokenTable(task, n, features.to(device, dtype), positions.to(device))
