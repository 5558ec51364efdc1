"""Steps with the fused kernels. Needs Triton, so it is imported only where it is used."""

import math

import torch
from torch import Tensor

from ithbit.engine.device import Device
from ithbit.engine.evaluate import bce, held_out_examples, ordered_mean
from ithbit.engine.steppers import StackRows, StepperName
from ithbit.kernels.step import Step
from ithbit.models.classifier import init
from ithbit.models.magnitudes import safe_size, stays_finite
from ithbit.models.stacked import unpacked
from ithbit.spec import RunSpec
from ithbit.tasks.margins import counts_as_right
from ithbit.tasks.sampling import HELD_OUT_SEED, stream_keys

# No weight that was trained comes near it. The kernels' tanh and gates are exact to rounding in an
# absolute sense alone, which larger weights may amplify to a wrong answer.
_FAR = 1024.0


class KernelStepper:
    """The twin of the stacked models, in fused kernels."""

    name: StepperName = "kernels"
    max_chunk = 16  # a step is a handful of launches
    terms = 0

    def __init__(self, runs: list[RunSpec], rows: StackRows, device: Device) -> None:
        self.rows, self.model, self.protocol = rows, runs[0].model, runs[0].protocol
        batch, kind = self.protocol.batch_size, self.protocol.examples
        self.fused = Step(self.model, len(runs), batch, device.torch, kind)
        assert self.fused.plan.n_parameters == rows.state.values.shape[1]
        seeds = [run.seed for run in runs]
        self.held_out_keys = stream_keys([seed + HELD_OUT_SEED for seed in seeds], device.torch)
        self.like, self.safe_size = init(self.model, seeds[0]), safe_size(self.model)
        self.answer = held_out_examples(self.model, self.protocol, seeds, device.torch).answer

    def step(self, count: int) -> None:
        rows, state = self.rows, self.rows.state
        self.fused.gradients(state.values, rows.keys, rows.first, count, rows.loss_sum, state.steps)
        self.fused.adamw(
            state.values, state.mean, state.square, state.steps, state.learning_rate, self.protocol
        )

    def evaluate(self) -> tuple[Tensor, Tensor]:
        count = self.protocol.held_out_examples
        values = self.rows.state.values
        out = self.fused.logits(values, self.held_out_keys, count)
        # The kernels' maxima drop NaN: weights that may overflow get no answer. For most models one
        # look at the largest weight is enough; a bound of every number takes hundreds of launches.
        if self.safe_size >= _FAR:
            safe = values.abs().amax(1) <= _FAR
        else:
            doubles = unpacked(values.double(), self.like)  # one launch for all parameters
            safe = stays_finite(doubles, self.model, self.model.n_bits)
        out = torch.where(safe.unsqueeze(1), out, math.nan)
        right = counts_as_right(out, self.answer)
        return ordered_mean(bce(out, self.answer)), ordered_mean(right)
