"""The stacked models without their savings: every token of every example, through every block."""

import torch
from torch import Tensor

from ithbit.families import Task
from ithbit.models.classifier import blocks_of, token_vectors
from ithbit.models.stacked import Params, Sequence, part
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable


def token_rows(task: Task, bits: Tensor, index: Tensor) -> Tensor:
    """Rows of the token table for instances: bits (..., n), index (...) from 1 -> (..., token).

    >>> token_rows("lhi", torch.tensor([1, 0]), torch.tensor(2)).tolist()
    [5, 2, 1, 6]
    """
    n = bits.shape[-1]
    bit_rows = torch.arange(n, device=bits.device) + n * bits.long()
    query_row = (2 * n + index.long() - 1).unsqueeze(-1)
    rows = [bit_rows, query_row] if task == "rhi" else [query_row, bit_rows]
    if task == "lhi":
        rows.append(torch.full_like(query_row, 3 * n))
    return torch.cat(rows, dim=-1)


def logits(params: Params, spec: ModelSpec, table: TokenTable, examples: Examples) -> Tensor:
    """As `classifier.logits`: slower, and equal up to rounding."""
    blocks, rows = blocks_of(spec), token_vectors(params, spec, table)
    which = token_rows(table.task, examples.bits, examples.index)
    x = rows[torch.arange(len(which))[:, None, None], which]
    for layer in range(spec.n_layers):
        x = blocks.block(part(params, f"blocks.{layer}"), spec, Sequence(x), False)
    x = blocks.leave(part(params, "leave"), x[:, :, -1])
    return (x * params["head.weight"]).sum(-1) + params["head.bias"]
