"""Steps with a user's module, by autograd.

`models/own_layer.py` puts the user's layer between our embedding and head, with the same functions
as the six families, so a step is that of the plain models; whether seeds can share a stack is
found by trying. On a GPU, steps that cannot be captured run eagerly (`faults.py`).
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from ithbit.engine.device import Device
from ithbit.engine.lanes import no_capture
from ithbit.engine.steppers import Rows, StepperName
from ithbit.engine.steppers.plain import Plain
from ithbit.errors import LayerError
from ithbit.models import own_layer
from ithbit.spec import ModelSpec, RunSpec


class Module(Plain):
    """Our embedding and head around the user's layers."""

    name: StepperName = "module"

    def __init__(self, runs: list[RunSpec], rows: Rows, device: Device) -> None:
        super().__init__(runs, rows, device)
        self.device, self.evaluation_batch = device, self.protocol.held_out_examples
        # Weights of a recurrent layer are views of our rows; cuDNN packs them at every step.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")

    def step(self, count: int) -> None:
        with no_capture(self.device):
            super().step(count)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        with no_capture(self.device):
            return super().evaluate()


@cache
def why_not_stacked(model: ModelSpec, device: torch.device) -> str | None:
    """Why seeds of a user's layer cannot share a stack, or None if they can; found by trying."""
    if device.type == "cpu" or torch.cuda.is_available():
        return own_layer.why_not_stacked(model, device)
    try:  # on a machine that only submits runs, to others that have a GPU
        return own_layer.why_not_stacked(model, torch.device("cpu"))
    except LayerError as error:
        return f"it cannot be tried here ({error})"
