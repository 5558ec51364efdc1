"""Weights with one number that float32 cannot bear, in every tensor in turn; and who is right."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ithbit.families import FAMILIES, TASKS
from ithbit.models.classifier import init, logits
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table

VALUES = (math.nan, math.inf, -math.inf, 1e38, -1e38, 3e38)
SPECS = [
    ModelSpec(task, family, n_bits=3, n_layers=layers)
    for task in TASKS
    for family in FAMILIES
    for layers in (1, 2)
]


def drawn(spec: ModelSpec, seed: int = 0) -> Params:
    """Weights some way off their start: no tensor is zero, and half of the answers are right."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + 0.4 * torch.randn(value.shape, generator=generator)
        for name, value in init(spec, seed).items()
    }


def damaged(
    spec: ModelSpec, values: Sequence[float] = VALUES, seed: int = 0
) -> Iterator[tuple[str, float, Params]]:
    """The name of a tensor, the value that one of its numbers has, and the weights."""
    generator = torch.Generator().manual_seed(seed)
    whole = drawn(spec, seed)
    for name, tensor in whole.items():
        for value in values:
            broken = tensor.clone()
            broken.view(-1)[torch.randint(tensor.numel(), (), generator=generator)] = value
            yield name, value, whole | {name: broken}


def stacked(members: list[Params]) -> Params:
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def every_input(n_bits: int, seeds: int) -> Examples:
    """All n 2^n inputs, for each of so many seeds."""
    strings = torch.arange(1 << n_bits).repeat_interleave(n_bits)
    bits = (strings[:, None] >> torch.arange(n_bits)) & 1
    index = torch.arange(1, n_bits + 1).repeat(1 << n_bits)
    return Examples(bits.to(torch.uint8).repeat(seeds, 1, 1), index.repeat(seeds, 1))


def plainly_right(params: Params, spec: ModelSpec, examples: Examples) -> Tensor:
    """Where the stacked float32 models give a finite logit of the right sign: seed batch."""
    with torch.no_grad():
        out = logits(params, spec, token_table(spec.task, spec.n_bits), examples)
    return (out.abs() < math.inf) & ((out > 0) == (examples.answer == 1)) & (out != 0)
