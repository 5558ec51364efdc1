"""A stepper takes optimiser steps for a stack of runs, and evaluates them.

There are four: `stacked` (the stacked models, for the six families on any device), `kernels` (the
same, fused, on a GPU), `compiled` (the same, compiled for this CPU) and `module` (a user's module).
All draw the same data, take the same steps and update the same rows in place; their results differ
by rounding.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ithbit.engine.optim import AdamState
from ithbit.spec import RunSpec
from ithbit.tasks.sampling import stream_keys

StepperName = Literal["stacked", "kernels", "compiled", "module"]  # as recorded with a run


@dataclass(frozen=True)
class StackRows:
    """What a step of a stack reads and updates, one row per run."""

    state: AdamState
    keys: Tensor  # seed: of the training data
    first: Tensor  # seed 1: number of the next example
    loss_sum: Tensor  # seed, double: of the examples of the epoch so far
    consistency: Tensor  # seed 2, double: weights of pairs and of single flips in this epoch


def rows_of(runs: list[RunSpec], state: AdamState, device: torch.device) -> StackRows:
    """The rows of runs in this state, before an epoch."""
    return StackRows(
        state.to(device),
        stream_keys([run.seed for run in runs], device),
        torch.zeros(len(runs), 1, dtype=torch.int64, device=device),
        torch.zeros(len(runs), dtype=torch.float64, device=device),
        torch.zeros(len(runs), 2, dtype=torch.float64, device=device),
    )


class Stepper(Protocol):
    """Built from `(runs, rows, device)`; none of its methods waits for the device."""

    name: StepperName
    max_chunk: int  # steps that are worth capturing in one graph
    terms: int  # of consistency, 0 to 2: whether any run has pairs, and flips; set for each epoch

    def step(self, count: int) -> None:
        """Draw `count` examples for every run and take one optimiser step, all in place."""

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Held-out loss and accuracy of each run."""
