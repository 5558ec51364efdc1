"""The stacked models without their savings: every token goes through every block."""

import torch
from torch import Tensor

from ithbit.models.classifier import blocks_of, token_vectors
from ithbit.models.stacked import Params, Sequence, part
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable, token_rows


def logits(params: Params, spec: ModelSpec, table: TokenTable, examples: Examples) -> Tensor:
    """As `classifier.logits`: slower, and equal up to rounding."""
    blocks, rows = blocks_of(spec), token_vectors(params, spec, table)
    which = token_rows(table.task, examples.bits, examples.index)
    x = rows[torch.arange(len(which))[:, None, None], which]
    for layer in range(spec.n_layers):
        x = blocks.block(part(params, f"blocks.{layer}"), spec, Sequence(x), False)
    x = blocks.leave(part(params, "leave"), x[:, :, -1])
    return (x * params["head.weight"]).sum(-1) + params["head.bias"]
