"""Positional encodings: added to the embedded token (learned, sinusoidal, polynomial), or rotating
queries and keys inside softmax attention (rotary, as in RoFormer), or none.

Polynomial: position t is (p, p^2), p = t / (L - 1), through a learned bias-free map; as in the
paper, L is the length of the training sequence even when shorter or longer inputs are evaluated.
"""

import torch
from torch import Tensor

from ithbit.layouts import position_shapes
from ithbit.models.stacked import Params, linear, uniform
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens


def init(spec: ModelSpec, generator: torch.Generator) -> Params:
    """Parameters of one seed: PyTorch's defaults for a linear map and for an embedding."""
    return {
        name: uniform(generator, *shape, fan_in=2)
        if name == "polynomial"
        else torch.empty(shape).normal_(generator=generator)
        for name, shape in position_shapes(spec).items()
    }


def encode(params: Params, spec: ModelSpec, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The vectors to add at integer positions (row): seed row dim; None if nothing is added."""
    if spec.positions == "polynomial":
        p = positions.to(dtype) / (n_tokens(spec.task, spec.n_bits) - 1)
        weight = params["polynomial"]
        return linear(torch.stack([p, p**2], -1).expand(weight.shape[0], -1, -1), weight)
    if spec.positions == "learned":
        return params["learned"][:, positions]
    if spec.positions == "sinusoidal":
        sine, cosine = waves(positions, spec.d_model, dtype)
        return torch.stack([sine, cosine], -1).flatten(-2).unsqueeze(0)
    return None


def waves(positions: Tensor, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sines and cosines of position / 10000^(2j/dim), j < dim/2: (row, dim/2) each."""
    j = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double()[:, None] * 10000.0 ** (-j / dim)
    return angle.sin().to(dtype), angle.cos().to(dtype)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """RoFormer's rotation: neighbouring pairs of x (…, token, dim) rotated by their token's
    angles."""
    sine, cosine = waves(positions, x.shape[-1], x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1)
    return turned.flatten(-2)
