"""Exact conversion of weights between a reference module and the parameters of one seed.

A parameter of ours is one tensor of the library, or several concatenated along the first axis
(query, key and value). fla and Hugging Face use the same names for the parts of Mamba2.
"""

import torch
from torch import nn

from ithbit.families import family_named
from ithbit.models import classifier
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec

_BERT_BLOCK = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "norm1": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "norm2": ("output.LayerNorm",),
}
_MAMBA_BLOCK = {
    "norm.weight": "norm.weight",
    "in.weight": "mixer.in_proj.weight",
    "conv.weight": "mixer.conv1d.weight",
    "conv.bias": "mixer.conv1d.bias",
    "dt_bias": "mixer.dt_bias",
    "a_log": "mixer.A_log",
    "skip": "mixer.D",
    "gate_norm.weight": "mixer.norm.weight",
    "out.weight": "mixer.out_proj.weight",
}
_ONCE = {
    "embed": "embed.weight",
    "positions.polynomial": "positions.project.weight",
    "positions.learned": "positions.weight",
    "enter.type": "body.model.embeddings.token_type_embeddings.weight",
    "enter.norm.weight": "body.model.embeddings.LayerNorm.weight",
    "enter.norm.bias": "body.model.embeddings.LayerNorm.bias",
    "leave.norm.weight": "body.model.norm_f.weight",
    "leave.unused_word": "body.model.embeddings.weight",
    "head.weight": "head.weight",
    "head.bias": "head.bias",
}


def load(module: nn.Module, spec: ModelSpec, params: Params) -> None:
    """Copy the parameters of one seed (no seed axis) into a reference module."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in params.items():
            parts = [parameters[part] for part in _sources(name, spec)]
            if _is_convolution(name):
                value = value.T
            for part, chunk in zip(parts, value.chunk(len(parts)), strict=True):
                part.copy_(chunk.reshape(part.shape))


def export(module: nn.Module, spec: ModelSpec) -> Params:
    """The weights of a reference module as the parameters of one seed, on the module's device.

    >>> from ithbit.reference.models import build
    >>> spec = ModelSpec("lhi", "gru", n_bits=4)
    >>> params = export(build(spec), spec)
    >>> params["blocks.0.hh.weight"].shape
    torch.Size([48, 16])
    """
    parameters, out = dict(module.named_parameters()), Params()
    for name, like in classifier.init(spec, seed=0).items():
        value = torch.cat([parameters[part].detach() for part in _sources(name, spec)])
        if _is_convolution(name):
            value = value.squeeze(1).T
        out[name] = value.reshape(like.shape).clone(memory_format=torch.contiguous_format)
    return out


def _is_convolution(name: str) -> bool:
    """Whether a parameter is a convolution: ours is tap channel, the library's channel 1 tap."""
    return name.endswith("conv.weight")


def _sources(name: str, spec: ModelSpec) -> tuple[str, ...]:
    """The names of the module's parameters that make up one of ours."""
    if name in _ONCE:
        return (_ONCE[name],)
    _, layer, rest = name.split(".", 2)
    head, _, kind = rest.rpartition(".")
    family = family_named(spec.family)
    if family.kind == "gru":
        return (f"body.{kind}_{head}_l{layer}",)
    if family.kind == "mamba2":
        return (f"body.model.layers.{layer}.{_MAMBA_BLOCK[rest]}",)
    if family.kind == "softmax":
        block = f"body.model.encoder.layer.{layer}"
        return tuple(f"{block}.{part}.{kind}" for part in _BERT_BLOCK[head])
    parts = ("query", "key", "value") if head == "qkv" else (head,)
    return tuple(f"body.{layer}.{part}.{kind}" for part in parts)
