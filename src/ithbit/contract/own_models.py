"""Our own models as token models: a trained run that `ithbit.load` gives, or one of the six
families as new, with logits at every token instead of the last alone.

Token ids are those of the task: 0 and 1 are bits, then the queries of 1 to n, then the end. A model
reads them in any order here, which training never shows it; the contract asks for no more than
that what it computes at a token depends on no later one.
"""

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError
from ithbit.families import FAMILIES, family_named
from ithbit.loading.model import ConstructionModel, TrainedModel
from ithbit.loading.single_seed import SingleSeedModel
from ithbit.models import classifier, positions
from ithbit.models.classifier import blocks_of
from ithbit.reference.models import Reference
from ithbit.spec import ModelSpec, RunSpec
from ithbit.tasks.tokens import token_table

_N_BITS, _LAYERS, _WIDTH = 64, 2, 16
_ALL_TOKENS = "{family} reads all tokens by design"


class TokenVectors(nn.Module):
    """What the model makes of each token, without its position."""

    def __init__(self, network: Reference | SingleSeedModel, spec: ModelSpec) -> None:
        super().__init__()
        n = spec.n_bits
        table = token_table(spec.task, n, torch.float64).features
        rows = torch.cat([table[[0, n]], table[2 * n :]])  # bits 0 and 1, queries, the end
        self.register_buffer("features", rows)
        self.num_embeddings = len(rows)
        self.embed = network.embed

    def forward(self, ids: Tensor) -> Tensor:
        if isinstance(self.embed, nn.Linear):
            weight = self.embed.weight
        else:
            weight = self.embed.stacked()["weight"][0]
        return self.get_buffer("features")[ids].to(weight) @ weight.T


class EveryTokenModel(nn.Module):
    """Token ids (batch, token) to the logit of answer 1 at every token (batch, token, 1)."""

    def __init__(self, network: Reference | SingleSeedModel, spec: ModelSpec) -> None:
        super().__init__()
        self.spec, self.network = spec, network
        self.vectors = TokenVectors(network, spec)

    def get_input_embeddings(self) -> nn.Module:
        """Where vectors can be put in the place of tokens."""
        return self.vectors

    def forward(self, ids: Tensor) -> Tensor:
        x, spec, network = self.vectors(ids), self.spec, self.network
        if spec.positions == "learned" and ids.shape[1] > 2 * spec.n_bits:
            raise LayerError(f"this model has positions for up to {2 * spec.n_bits} bits")
        places = torch.arange(ids.shape[1], device=ids.device)
        if isinstance(network, Reference):
            x = x if network.positions is None else x + network.positions(places)
            return network.head(network.body(x))
        added = positions.encode(network.positions.stacked(), spec, places, x.dtype)
        x = x if added is None else x + added
        blocks = blocks_of(spec)
        x = blocks.enter(network.enter.stacked(), x.flatten(0, 1)[None]).view_as(x)
        for block in network.body:
            x = block(x)
        x = blocks.leave(network.leave.stacked(), x.flatten(0, 1)[None]).view_as(x)
        head = network.head.stacked()
        return (x * head["weight"][0]).sum(-1, keepdim=True) + head["bias"][0]


def every_token(model: nn.Module) -> EveryTokenModel:
    """A model that `ithbit.load` gave, with logits at every token."""
    if isinstance(model, ConstructionModel):
        raise LayerError("a construction is made for one length; `ithbit certify` checks it")
    if not isinstance(model, TrainedModel):
        raise LayerError(f"{type(model).__name__} is no model that ithbit.load gives")
    return EveryTokenModel(model.network, model.run.model)


def family_model(family: str) -> EveryTokenModel:
    """Two layers of a family, with initial weights for torch's current seed.

    >>> family_model("gru")(torch.tensor([[0, 1, 1, 3]])).shape
    torch.Size([1, 4, 1])
    """
    spec = ModelSpec("rhi", family_named(family).name, _N_BITS, _LAYERS, _WIDTH)
    seed = int(torch.randint(0, 1 << 31, ()))
    return EveryTokenModel(SingleSeedModel(RunSpec(spec, 0), classifier.init(spec, seed)), spec)


def clauses_by_design(spec: ModelSpec) -> dict[str, str]:
    """Clauses that a family breaks by design, with the reason."""
    if spec.code or FAMILIES[spec.family].causal:
        return {}
    reason = _ALL_TOKENS.format(family=spec.family)
    clauses = ("causal", "length", "train-eval", "float32", "bfloat16", "overflow")
    return dict.fromkeys(clauses, reason)
