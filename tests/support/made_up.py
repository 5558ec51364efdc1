"""Models that nobody trained, as the page takes them and as PyTorch does."""

from dataclasses import replace

import torch
from torch import nn

from ithbit.explorer.page import PageModel
from ithbit.explorer.words import ModelVerdict, standing
from ithbit.loading.model import TrainedModel
from ithbit.models.classifier import init
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec, RunSpec


def drawn(spec: ModelSpec, seed: int = 0) -> Params:
    """Weights some way from where training starts, so that attention is sharp and gates close."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.4 * torch.randn(value.shape, generator=generator)
        for name, value in init(spec, seed).items()
    }


def entry(spec: ModelSpec, params: Params, said: ModelVerdict | None = None) -> PageModel:
    weights = {name: value.numpy() for name, value in params.items()}
    texts = ("Made up", "a model", "made_up", "drawn at random", "It does what it does.")
    return PageModel(*texts, spec, weights, said or standing(None))


def in_torch(spec: ModelSpec, params: Params) -> TrainedModel:
    """The plain PyTorch model of the same weights, in float64."""
    return TrainedModel(RunSpec(spec, 0), params, torch.float64, "cpu", library=False).eval()


def inputs(n_bits: int, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the strings fair, half nearly constant."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, (count, n_bits), generator=generator)
    rare = (torch.rand(count, n_bits, generator=generator) < 1 / n_bits).long()
    bits[::2] = rare[::2] ^ bits[::2, :1]
    return bits, torch.randint(1, n_bits + 1, (count,), generator=generator)


def streams(model: TrainedModel, bits: str, index: int) -> list[torch.Tensor]:
    """What the blocks of a PyTorch model read and write on one input: token dim each."""
    seen: list[torch.Tensor] = []
    blocks = list(model.network.body)
    hooks = [blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))]

    def keep(_: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        seen.append(out[0])

    hooks += [block.register_forward_hook(keep) for block in blocks]
    with torch.no_grad():
        model(bits, index)
    for hook in hooks:
        hook.remove()
    return seen


def renamed(made: PageModel, text: str) -> PageModel:
    """The same model with one text wherever a record's own text may stand."""
    said = ModelVerdict(text, text, text, "bad")
    return replace(
        made, label=text, title=text, name=text, origin=text, how=text, samples=text, standing=said
    )
