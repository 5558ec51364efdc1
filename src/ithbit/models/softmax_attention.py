"""The softmax attention that is trained: BERT's block, full or causal; rotary as in RoFormer.

Not the paper's formal layer, which has one head, no normalisation and a ReLU network: this one has
H heads, an output projection, LayerNorm after each residual sum, and a GELU feed-forward part.
`enter` is BERT's embedding stage for given embeddings: one type vector and a LayerNorm.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.families import FAMILIES
from ithbit.layouts import SOFTMAX, block_shapes
from ithbit.models.positions import rotate
from ithbit.models.stacked import Params, Stream, layer_norm, linear
from ithbit.spec import ModelSpec

_STD = 0.02  # BERT's initialisation


def init_enter(spec: ModelSpec, generator: torch.Generator) -> Params:
    """BERT's embedding stage: one type vector and a LayerNorm."""
    d = spec.d_model
    return {
        "type": torch.empty(d).normal_(std=_STD, generator=generator),
        "norm.weight": torch.ones(d),
        "norm.bias": torch.zeros(d),
    }


def enter(params: Params, rows: Tensor) -> Tensor:
    """Embedded tokens -> input of the first block."""
    rows = rows + params["type"][:, None]
    return layer_norm(rows, params["norm.weight"], params["norm.bias"], SOFTMAX.norm_eps)


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One block as BERT initialises it: weights normal(0, 0.02), biases 0, LayerNorms 1 and 0."""
    out: Params = {}
    for name, shape in block_shapes(spec).items():
        if name.endswith("bias"):
            out[name] = torch.zeros(shape)
        elif name.startswith("norm"):
            out[name] = torch.ones(shape)
        else:
            out[name] = torch.empty(shape).normal_(std=_STD, generator=generator)
    return out


def mix(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """Every token with what attention adds to it, or only the last: seed batch token dim."""
    d = spec.d_model
    weight, bias = params["qkv.weight"], params["qkv.bias"]
    at = stream.last if readout_only else stream.all
    x = at(stream.rows)
    q = at(linear(stream.rows, weight[:, :d], bias[:, :d]))
    k, v = stream.all(linear(stream.rows, weight[:, d:], bias[:, d:])).split(d, dim=-1)
    q, k, v = (_heads(t, spec.n_heads) for t in (q, k, v))
    # Written out: for short sequences and small heads two products beat fused attention kernels.
    mixed = (softmax_weights(q, k, spec, readout_only) @ v).transpose(1, 2).reshape(x.shape)
    return x + linear(mixed, params["out.weight"], params["out.bias"])


def feed_forward(params: Params, x: Tensor) -> Tensor:
    """The rest of the block, on every token alone: seed batch token dim."""
    x = layer_norm(x, params["norm1.weight"], params["norm1.bias"], SOFTMAX.norm_eps)
    hidden = F.gelu(linear(x, params["up.weight"], params["up.bias"]))
    x = x + linear(hidden, params["down.weight"], params["down.bias"])
    return layer_norm(x, params["norm2.weight"], params["norm2.bias"], SOFTMAX.norm_eps)


def softmax_weights(q: Tensor, k: Tensor, spec: ModelSpec, readout_only: bool = False) -> Tensor:
    """The attention map of queries and keys, both (…, head, token, dim): … head query key."""
    if spec.positions == "rotary":
        positions = torch.arange(k.shape[-2], device=k.device)
        q, k = rotate(q, positions[-q.shape[-2] :]), rotate(k, positions)
    scores = (q * spec.d_head**-0.5) @ k.mT
    if FAMILIES[spec.family].causal and not readout_only:  # the last token sees every token anyway
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=k.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores.softmax(-1)


def _heads(x: Tensor, n_heads: int) -> Tensor:
    """seed batch token (head dim) -> (seed batch) head token dim."""
    return x.unflatten(-1, (n_heads, -1)).flatten(0, 1).transpose(1, 2)
