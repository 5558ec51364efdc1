"""Gradients of a library's module, by the names of our parameters."""

import torch
from torch import nn

from ithbit.models.stacked import Params
from ithbit.reference.weights import as_ours
from ithbit.spec import ModelSpec


def export_gradients(module: nn.Module, spec: ModelSpec) -> Params:
    """The gradients of the last backward pass; zero where there are none."""
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in module.named_parameters()
    }
    return as_ours(spec, gradients)
