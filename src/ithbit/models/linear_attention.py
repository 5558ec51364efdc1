"""The linear attention that is trained: pre-norm blocks with the ELU + 1 feature map.

Bias-free q, k, v and output projections, denominator epsilon 1e-6, GELU feed-forward part. Full
attention uses global sums of keys and values. Causal attention at all tokens uses the masked
token-by-token matrix: it equals the prefix sums, and takes one product instead of a scan.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR, block_shapes
from ithbit.models.stacked import Params, Stream, layer_norm, linear, uniform
from ithbit.spec import ModelSpec


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One block with PyTorch's defaults: weights and biases uniform within 1 / sqrt(inputs)."""
    out: Params = {}
    for name, shape in block_shapes(spec).items():
        if name.startswith("norm"):
            out[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        else:
            inputs = spec.d_ff if name.startswith("down") else spec.d_model
            out[name] = uniform(generator, *shape, fan_in=inputs)
    return out


def mix(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """Every token with what attention adds to it, or only the last: seed batch token dim."""
    d, weight = spec.d_model, params["qkv.weight"]
    at = stream.last if readout_only else stream.all
    x = at(stream.rows)
    normal = layer_norm(stream.rows, params["norm1.weight"], params["norm1.bias"], LINEAR.norm_eps)
    q = at(features(linear(normal, weight[:, :d])))
    key, value = linear(normal, weight[:, d:]).split(d, dim=-1)
    k, v = stream.all(torch.cat([features(key), value], dim=-1)).split(d, dim=-1)
    if readout_only:
        mixed = _last_attention(q, k, v, spec.n_heads)
    elif FAMILIES[spec.family].causal:
        mixed = _prefix_attention(q, k, v, spec.n_heads)
    else:
        mixed = _global_attention(q, k, v, spec.n_heads)
    return x + linear(mixed, params["out.weight"])


def feed_forward(params: Params, x: Tensor) -> Tensor:
    """The rest of the block, on every token alone: seed batch token dim."""
    normal = layer_norm(x, params["norm2.weight"], params["norm2.bias"], LINEAR.norm_eps)
    hidden = F.gelu(linear(normal, params["up.weight"], params["up.bias"]))
    return x + linear(hidden, params["down.weight"], params["down.bias"])


def _same_head(q: Tensor, n_heads: int) -> Tensor:
    """1 where two coordinates belong to the same head, else 0: dim dim.

    It makes the heads diagonal blocks of one product, cheaper than many small products.
    """
    head = torch.arange(n_heads, device=q.device).repeat_interleave(q.shape[-1] // n_heads)
    return (head[:, None] == head).to(q.dtype)


def _last_attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int) -> Tensor:
    """The one query of the last token, whose prefix is everything: seed batch 1 dim."""
    weights = (q * k) @ _same_head(q, n_heads)  # each head's weight, at each of its coordinates
    return (weights * v).sum(2, True) / (weights.sum(2, True) + LINEAR.denominator_eps)


def _global_attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int) -> Tensor:
    """Every query against the sums over all tokens: seed batch token dim."""
    same_head = _same_head(q, n_heads)
    sums = (k.mT @ v) * same_head
    total = k.sum(-2).unsqueeze(-1) * same_head
    return q @ sums / (q @ total + LINEAR.denominator_eps)


def _prefix_attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int) -> Tensor:
    """Every query against the sums over the tokens up to its own: seed batch token dim."""
    q, k, v = (t.unflatten(-1, (n_heads, -1)).transpose(2, 3) for t in (q, k, v))
    weights = (q @ k.mT).tril()
    mixed = weights @ v / (weights.sum(-1, keepdim=True) + LINEAR.denominator_eps)
    return mixed.transpose(2, 3).flatten(-2)


class _Features(torch.autograd.Function):
    """ELU(x) + 1 as exp(min(x, 0)) + max(x, 0), whose derivative is the first term everywhere.

    Not `F.elu`: on a CPU it rounds the last few numbers of a tensor differently from the rest, so
    a seed's result would depend on its place in the stack. This one is also faster.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        slope = x.clamp(max=0).exp_()
        ctx.save_for_backward(slope)
        return x.relu() + slope  # in place, torch.compile of 2.11 would give a wrong gradient

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grad * slope


def features(x: Tensor) -> Tensor:
    """The feature map of queries and keys."""
    return _Features.apply(x)
