"""Attention maps of a trained model, from the states that its blocks read.

The library's modules give only the states: their fused attention keeps no maps. The maps are
computed as in `models/`: softmax, rotary or not, and linear attention, whose rows sum to a little
less than 1 because of the epsilon in its denominator.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.families import family_named
from ithbit.loading.plain import Block, Plain
from ithbit.models.positions import rotate
from ithbit.models.stacked import Params, part
from ithbit.reference import weights
from ithbit.reference.models import Reference
from ithbit.spec import ModelSpec


def attention_maps(
    module: nn.Module, network: Reference | Plain, spec: ModelSpec, bits: Tensor, index: Tensor
) -> Tensor:
    """Maps of all layers on a batch of inputs: batch layer head query key.

    `module` is what is called; `network` is the model inside it that holds the blocks.
    """
    seen: list[Tensor] = []

    def keep(block: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].detach())

    hooks = [block.register_forward_pre_hook(keep) for block in _blocks(network)]
    try:
        module(bits, index)
    finally:
        for hook in hooks:
            hook.remove()
    params = _params(network, spec)
    return torch.stack(
        [_map(part(params, f"blocks.{layer}"), spec, x) for layer, x in enumerate(seen)], dim=1
    )


def _blocks(network: Reference | Plain) -> list[nn.Module]:
    body = network.body
    encoder = getattr(getattr(body, "model", None), "encoder", None)
    return list(body.children() if encoder is None else encoder.layer)


def _params(network: Reference | Plain, spec: ModelSpec) -> Params:
    """The parameters of the blocks under our names."""
    if isinstance(network, Reference):
        return weights.export(network, spec)
    return {
        f"blocks.{layer}.{name}": value[0].detach()
        for layer, block in enumerate(network.body)
        if isinstance(block, Block)
        for name, value in block.stacked().items()
    }


def _map(params: Params, spec: ModelSpec, x: Tensor) -> Tensor:
    """One layer's map from the states it reads: batch head query key."""
    d, family = spec.d_model, family_named(spec.family)
    weight, bias = params["qkv.weight"][: 2 * d], params.get("qkv.bias")
    if family.kind == "linear":
        x = F.layer_norm(x, (d,), params["norm1.weight"], params["norm1.bias"])
    qk = F.linear(x, weight, None if bias is None else bias[: 2 * d])
    q, k = (t.unflatten(-1, (spec.n_heads, -1)).transpose(1, 2) for t in qk.split(d, dim=-1))
    if family.kind == "linear":
        scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        scores = scores.tril() if family.causal else scores
        return scores / (scores.sum(-1, keepdim=True) + 1e-6)
    if spec.positions == "rotary":
        places = torch.arange(x.shape[1], device=x.device)
        q, k = rotate(q, places), rotate(k, places)
    scores = (q * spec.d_head**-0.5) @ k.mT
    if family.causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores.softmax(-1)
