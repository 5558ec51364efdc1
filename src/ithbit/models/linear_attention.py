"""Linear attention as it is trained: pre-normalised blocks with the ELU + 1 feature map.

Bias-free q, k, v and output projections, denominator epsilon 1e-6, GELU feed-forward part. Full
attention uses global sums of keys and values. Causal attention at all tokens weights them through
the masked token-by-token matrix, which equals the prefix sums and is one product instead of a scan;
at the last token the prefix is everything, and the global sums serve again.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.families import FAMILIES
from ithbit.models.spec import ModelSpec
from ithbit.models.stacked import Params, layer_norm, linear
from ithbit.models.stream import Stream

_NORM_EPS = 1e-5  # PyTorch's LayerNorm
_DENOMINATOR_EPS = 1e-6


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One block with PyTorch's defaults: weights and biases uniform within 1 / sqrt(inputs)."""
    d, m = spec.d_model, spec.d_ff

    def uniform(*shape: int, fan_in: int) -> Tensor:
        return torch.empty(shape).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)

    return {
        "norm1.weight": torch.ones(d),
        "norm1.bias": torch.zeros(d),
        "qkv.weight": uniform(3 * d, d, fan_in=d),
        "out.weight": uniform(d, d, fan_in=d),
        "norm2.weight": torch.ones(d),
        "norm2.bias": torch.zeros(d),
        "up.weight": uniform(m, d, fan_in=d),
        "up.bias": uniform(m, fan_in=d),
        "down.weight": uniform(d, m, fan_in=m),
        "down.bias": uniform(d, fan_in=m),
    }


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One block's output at all tokens, or at the last alone: seed batch token dim."""
    d, weight = spec.d_model, params["qkv.weight"]
    at = stream.last if readout_only else stream.all
    x = at(stream.rows)
    normal = layer_norm(stream.rows, params["norm1.weight"], params["norm1.bias"], _NORM_EPS)
    q = at(F.elu(linear(normal, weight[:, :d])) + 1)
    key, value = linear(normal, weight[:, d:]).split(d, dim=-1)
    k, v = stream.all(torch.cat([F.elu(key) + 1, value], dim=-1)).split(d, dim=-1)
    q, k, v = (_heads(t, spec.n_heads) for t in (q, k, v))
    # The last token's prefix is the whole sequence, masked or not.
    if FAMILIES[spec.family].causal and not readout_only:
        weights = (q @ k.mT).tril()
        mixed = weights @ v / (weights.sum(-1, keepdim=True) + _DENOMINATOR_EPS)
    else:
        mixed = q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1) + _DENOMINATOR_EPS)
    x = x + linear(mixed.transpose(1, 2).reshape(x.shape), params["out.weight"])
    normal = layer_norm(x, params["norm2.weight"], params["norm2.bias"], _NORM_EPS)
    hidden = F.gelu(linear(normal, params["up.weight"], params["up.bias"]))
    return x + linear(hidden, params["down.weight"], params["down.bias"])


def _heads(x: Tensor, n_heads: int) -> Tensor:
    """seed batch token (head dim) -> (seed batch) head token dim."""
    return x.unflatten(-1, (n_heads, -1)).flatten(0, 1).transpose(1, 2)
