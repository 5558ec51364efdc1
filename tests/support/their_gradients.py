"""Gradients of a library's module, by the names of our parameters."""

from copy import deepcopy

import torch
from torch import nn

from ithbit.models.stacked import Params
from ithbit.reference.weights import export
from ithbit.spec import ModelSpec


def export_gradients(module: nn.Module, spec: ModelSpec) -> Params:
    """The gradients of the last backward pass; zero where there are none."""
    gradients = deepcopy(module)
    for own, p in zip(gradients.parameters(), module.parameters(), strict=True):
        own.data = torch.zeros_like(p) if p.grad is None else p.grad
    return export(gradients, spec)
