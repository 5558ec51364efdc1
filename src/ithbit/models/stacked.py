"""What the models are made of: a few operations of `torch.nn` with a leading seed axis, and the
tokens on their way through the blocks.

Each seed has its own weights, so a product is a batch of products over the stack, and a bias or
gain is broadcast over all axes between seed and feature. `torch.func.vmap` would give the same
products but not the chunked weight gradients, which a GPU needs (see `_Linear`).

The tokens are a short table first and a sequence afterwards. Before the first mixing there are few
distinct tokens (see `tasks/tokens.py`), so operations on single tokens are done on the rows of that
table and then spread over the batch. The answer is read at the last token, so the last block
computes only that one. Both savings are exact: the same sums, fewer of them. A bit token is its row
for 0 plus the bit times the difference to its row for 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.families import Task

Params = dict[str, Tensor]
T = TypeVar("T")

_MAX_CHUNKS = 32  # chunks that the rows of a weight gradient are split into on a GPU


def uniform(generator: torch.Generator, *shape: int, fan_in: int) -> Tensor:
    """Initial weights by PyTorch's default: uniform within 1 / sqrt(inputs)."""
    return torch.empty(shape).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)


def along(weight: Tensor, x: Tensor) -> Tensor:
    """A per-seed vector (seed, dim) shaped to broadcast over x (seed, …, dim)."""
    return weight.view(weight.shape[0], *(1,) * (x.dim() - 2), weight.shape[-1])


def part(params: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The parameters under a prefix, with the prefix taken off."""
    head = prefix + "."
    return {name[len(head) :]: p for name, p in params.items() if name.startswith(head)}


def packed(params: Params) -> Tensor:
    """One seed's parameters as a row."""
    return torch.cat([value.reshape(-1) for value in params.values()])


def unpacked(rows: Tensor, like: Params) -> Params:
    """The parameters as views of rows (seed, parameter), or of one row; names and shapes are those
    of one seed's, `like`."""
    pieces = rows.split([value.numel() for value in like.values()], dim=-1)
    return {
        name: piece.view(*rows.shape[:-1], *value.shape)
        for (name, value), piece in zip(like.items(), pieces, strict=True)
    }


class _Linear(torch.autograd.Function):
    """x (seed, row, in) @ weight (seed, out, in)^T, with a weight gradient suited to few outputs.

    The gradient of a 16 x 16 weight sums over tens of thousands of rows. A GPU library gives each
    such product one thread block; here the rows are split into chunks, summed in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        return grad_x, weight_gradient(grad, x)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x summed over rows, per seed: (seed, row, out), (seed, row, in) -> seed out in."""
    n_seeds, n_rows, _ = x.shape
    chunks = math.gcd(n_rows, _MAX_CHUNKS) if x.is_cuda else 1
    if chunks == 1:
        return torch.bmm(grad.mT, x)
    grad, x = (t.reshape(n_seeds * chunks, n_rows // chunks, -1) for t in (grad, x))
    return torch.bmm(grad.mT, x).unflatten(0, (n_seeds, chunks)).sum(1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` for each seed: x (seed, …, in), weight (seed, out, in)."""
    out = _Linear.apply(x.flatten(1, -2), weight)
    if bias is not None:
        out = out + bias.unsqueeze(1)
    return out.view(*x.shape[:-1], weight.shape[1])


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm over the last axis with per-seed gain and offset."""
    normal = F.layer_norm(x, x.shape[-1:], eps=eps)
    return torch.addcmul(along(bias, x), normal, along(weight, x))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last axis with per-seed gain."""
    return F.rms_norm(x, x.shape[-1:], eps=eps) * along(weight, x)


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
class TokenStream:
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


Stream = TokenStream | Sequence
