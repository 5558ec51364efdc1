"""Our own models as an `nn.Module` of one seed, for use without the paper's libraries.

The functions are those that are trained (`models/`), with every token through every block. For a
user's layer, the blocks are modules of the user's class.
"""

import torch
from torch import Tensor, nn

from ithbit.models import own_layer, positions
from ithbit.models.classifier import blocks_of
from ithbit.models.stacked import Params, Sequence, part
from ithbit.reference.models import dense_features
from ithbit.spec import ModelSpec, RunSpec


class Part(nn.Module):
    """Parameters of one part of a model; `stacked` gives them in the form that `models/` takes."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        # PyTorch allows no dots in a name, nor the names of its own methods, such as type.
        self.names = {name: f"own_{name.replace('.', '_')}" for name in params}
        for name, value in params.items():
            self.register_parameter(self.names[name], nn.Parameter(value.clone()))

    def stacked(self) -> Params:
        """By name, with a seed axis of one."""
        return {name: getattr(self, own).unsqueeze(0) for name, own in self.names.items()}


class Block(Part):
    """One block: states in, states out, both batch token dim."""

    def __init__(self, params: Params, spec: ModelSpec) -> None:
        super().__init__(params)
        self.spec = spec

    def forward(self, x: Tensor) -> Tensor:
        stream = Sequence(x.unsqueeze(0))
        return blocks_of(self.spec).block(self.stacked(), self.spec, stream, False)[0]


class SingleSeedModel(nn.Module):
    """Token features and positions, the family's blocks, one logit at the last token."""

    def __init__(self, run: RunSpec, params: Params) -> None:
        super().__init__()
        self.spec = spec = run.model
        self.embed = Part({"weight": params["embed"]})
        self.positions = Part(part(params, "positions"))
        self.enter = Part(part(params, "enter"))
        self.body = nn.ModuleList(
            own_layer.trained_module(spec, run.seed, layer, part(params, f"blocks.{layer}"))
            if spec.code
            else Block(part(params, f"blocks.{layer}"), spec)
            for layer in range(spec.n_layers)
        )
        self.leave = Part(part(params, "leave"))
        self.head = Part(part(params, "head"))

    def forward(self, bits: Tensor, index: Tensor) -> Tensor:
        """The logit of answer 1, batch, for bits (batch, n) and index (batch) from 1."""
        spec, blocks = self.spec, blocks_of(self.spec)
        weight = self.embed.stacked()["weight"][0]
        x = dense_features(spec.task, bits, index, weight.dtype) @ weight.T
        places = torch.arange(x.shape[1], device=x.device)
        added = positions.encode(self.positions.stacked(), spec, places, x.dtype)
        x = x if added is None else x + added
        x = blocks.enter(self.enter.stacked(), x.flatten(0, 1).unsqueeze(0)).view_as(x)
        for block in self.body:
            x = block(x)
        last = blocks.leave(self.leave.stacked(), x[:, -1].unsqueeze(0))[0]
        head = self.head.stacked()
        return (last * head["weight"][0]).sum(-1) + head["bias"][0]

    def block_params(self) -> Params:
        """The parameters of the blocks of a family by our names, without a seed axis."""
        return {
            f"blocks.{layer}.{name}": value[0].detach()
            for layer, block in enumerate(self.body)
            if isinstance(block, Block)
            for name, value in block.stacked().items()
        }
