"""The optimiser for a stack of runs: per-seed clipping, AdamW and the plateau schedule.

The parameters of a stack lie in one buffer (seed, parameter), and so do their gradients and
moments: one run is one row, and a step takes a dozen operations for any model. `torch.optim` has
one step count and learning rate for such a buffer, and clipping one norm, so they cannot serve a
stack; tests check a row against `torch.optim.AdamW`, `clip_grad_norm_` and `ReduceLROnPlateau`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.spec import Protocol


@dataclass
class AdamState:
    """The rows that an optimiser step reads and writes, on the training device."""

    values: Tensor  # seed parameter
    mean: Tensor  # seed parameter: running mean of the gradient
    square: Tensor  # seed parameter: running mean of its square
    steps: Tensor  # seed 1, int64
    learning_rate: Tensor  # seed 1, float64: cast where it is used

    def to(self, device: torch.device) -> "AdamState":
        return AdamState(*(tensor.to(device) for tensor in vars(self).values()))

    def clone(self) -> "AdamState":
        return AdamState(*(tensor.clone() for tensor in vars(self).values()))

    def rows(self, which: list[int]) -> "AdamState":
        """The state of some runs of the stack, copied."""
        return AdamState(*(tensor[which].clone() for tensor in vars(self).values()))

    @classmethod
    def start(cls, row: Tensor, learning_rate: float) -> "AdamState":
        """One run's state before the first step."""
        row = row.unsqueeze(0)
        return cls(
            row.clone(),
            torch.zeros_like(row),
            torch.zeros_like(row),
            torch.zeros(1, 1, dtype=torch.int64),
            torch.full((1, 1), learning_rate, dtype=torch.float64),
        )

    @classmethod
    def join(cls, states: "list[AdamState]") -> "AdamState":
        """Several runs as one stack."""
        return cls(*map(torch.cat, zip(*(vars(s).values() for s in states), strict=True)))


def clip_rows(grads: Tensor, max_norm: float) -> Tensor:
    """Gradients scaled so that no row's norm exceeds `max_norm`; one norm for the whole stack
    would couple the runs."""
    norm = grads.norm(dim=1, keepdim=True)
    return grads * (max_norm / (norm + 1e-6)).clamp(max=1.0)


def clip_to_recent(grads: Tensor, state: AdamState, protocol: Protocol, times: float) -> Tensor:
    """Gradients scaled so that no row's norm exceeds `times` its recent one, by Adam's running mean
    of squares: where gradients have become small, a single large one would take a step many times
    the learning rate."""
    weight = (1 - protocol.beta2 ** state.steps.double()).clamp(min=1e-12)
    recent = (state.square.sum(1, keepdim=True) / weight).sqrt().to(grads.dtype)
    scale = (times * recent / (grads.norm(dim=1, keepdim=True) + 1e-30)).clamp(max=1.0)
    return grads * torch.where(recent > 0, scale, 1.0)


def adamw_step(state: AdamState, grads: Tensor, protocol: Protocol) -> None:
    """One AdamW step of every row, in place, each with its own step count and learning rate."""
    state.steps += 1
    # Double precision for the few per-seed scalars: torch.optim keeps them as Python floats.
    rate, steps = state.learning_rate, state.steps.double()
    dtype = state.values.dtype
    step_size = (rate / (1 - protocol.beta1**steps)).to(dtype)
    root_correction = (1 - protocol.beta2**steps).sqrt().to(dtype)
    if protocol.weight_decay:
        state.values *= (1 - rate * protocol.weight_decay).to(dtype)
    state.mean.lerp_(grads, 1 - protocol.beta1)
    state.square.mul_(protocol.beta2).addcmul_(grads, grads, value=1 - protocol.beta2)
    denominator = (state.square.sqrt() / root_correction).add_(protocol.eps)
    state.values -= step_size * (state.mean / denominator)


@dataclass
class Plateau:
    """`ReduceLROnPlateau` for one run: lower the rate after more than `plateau_patience` epochs
    in a row without progress."""

    best: float = math.inf
    bad_epochs: int = 0

    def next_rate(self, rate: float, train_loss: float, protocol: Protocol) -> float:
        """The learning rate of the next epoch, from this epoch's training loss."""
        if train_loss < self.best * (1 - protocol.plateau_threshold):
            self.best, self.bad_epochs = train_loss, 0
        else:
            self.bad_epochs += 1
        if self.bad_epochs <= protocol.plateau_patience:
            return rate
        self.bad_epochs = 0
        lower = max(rate * protocol.plateau_factor, protocol.min_learning_rate)
        return lower if rate - lower > 1e-8 else rate
