"""Steps of a user's module, by autograd.

`models/own_layer.py` puts the user's layer between our embedding and head, with the functions that
the six families have, so the step is that of the plain models; whether seeds can share a stack is
found out by trying. On a GPU a step that cannot be captured is run as it stands (`faults.py`).
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from ithbit.engine.device import Device
from ithbit.engine.lanes import no_capture
from ithbit.engine.optim import Layout
from ithbit.engine.steppers import Rows, StepperName
from ithbit.engine.steppers.plain import Plain
from ithbit.errors import LayerError
from ithbit.models import own_layer
from ithbit.spec import ModelSpec, RunSpec
from ithbit.tasks.sampling import Examples, draw_examples

_DRAWN = 16  # batches at a time on a CPU: drawing one by one costs a small model a tenth of a step


class Module:
    """Our embedding and head around the user's layers."""

    name: StepperName = "module"
    max_chunk = 1

    def __init__(self, runs: list[RunSpec], rows: Rows, layout: Layout, device: Device) -> None:
        self.rows, self.device = rows, device
        self.plain = Plain(runs, rows, layout, device)
        self.plain.evaluation_batch = self.plain.protocol.held_out_examples
        self._drawn = draw_examples(rows.keys, runs[0].model.n_bits, 0, 0)
        self._next = rows.first.clone()  # number of the first example that is drawn already
        # Weights of a recurrent layer are views of our rows; cuDNN packs them at every step.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")

    def step(self, count: int) -> None:
        if self.device.is_cuda:
            with no_capture(self.device):
                self.plain.step(count)
        else:
            self.plain.learn(self._examples(count))

    def _examples(self, count: int) -> Examples:
        """The next examples, out of those that were drawn ahead."""
        rows, drawn = self.rows, self._drawn
        if drawn.index.shape[1] < count or not torch.equal(rows.first, self._next):
            n_bits, kind = self.plain.model.n_bits, self.plain.protocol.examples
            drawn = draw_examples(rows.keys, n_bits, rows.first, _DRAWN * count, kind)
        self._drawn = Examples(drawn.bits[:, count:], drawn.index[:, count:])
        self._next = rows.first + count
        return Examples(drawn.bits[:, :count], drawn.index[:, :count])

    def evaluate(self) -> tuple[Tensor, Tensor]:
        with no_capture(self.device):
            return self.plain.evaluate()


@cache
def why_not_stacked(model: ModelSpec, device: torch.device) -> str | None:
    """Why seeds of a user's layer cannot share a stack, or None if they can; tried for real."""
    if device.type == "cpu" or torch.cuda.is_available():
        return own_layer.why_not_stacked(model, device)
    try:  # where runs are only handed over, to machines that have a GPU
        return own_layer.why_not_stacked(model, torch.device("cpu"))
    except LayerError as error:
        return f"it cannot be tried here ({error})"
