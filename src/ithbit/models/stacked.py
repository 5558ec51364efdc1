"""The few operations of `torch.nn` that the models need, with a leading seed axis.

Each seed has its own weights, so a product is a batch of products over the stack, and a bias or
gain is broadcast over all axes between seed and feature. `torch.func.vmap` would give the same
products but not the chunked weight gradients, which a GPU needs (see `_Linear`).
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

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
