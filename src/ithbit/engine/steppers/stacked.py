"""Steps with the stacked models and autograd, for the six families and for a user's layer, and the
same steps with compiled code."""

import warnings

import torch
from torch import Tensor

from ithbit.engine.consistency import ConsistentLoss
from ithbit.engine.device import Device
from ithbit.engine.evaluate import Logits, batch_that_fits, bce, evaluate, held_out_examples
from ithbit.engine.gpu_streams import no_capture
from ithbit.engine.optim import adamw_step, clip_rows, clip_to_recent
from ithbit.engine.steppers import StackRows, StepperName
from ithbit.models.classifier import init, logits, with_buffers
from ithbit.models.stacked import Params, unpacked
from ithbit.spec import RunSpec
from ithbit.tasks.sampling import Examples, draw_examples
from ithbit.tasks.tokens import token_table

_BATCHES = 16  # drawn at a time on a CPU,
_BITS = 1 << 22  # unless they have more bits than this
_STEADY = 4.0  # largest gradient, in recent ones, while consistency is tightened


class StackedStepper:
    """The stacked models, run as they are written."""

    name: StepperName = "stacked"
    max_chunk = 1  # a step is some hundreds of launches: more steps per graph save nothing
    terms = 0

    def __init__(self, runs: list[RunSpec], rows: StackRows, device: Device) -> None:
        self.rows, self.model, self.protocol = rows, runs[0].model, runs[0].protocol
        self.device = device
        # Leaves that share the rows' memory: an in-place step on the rows updates the parameters.
        views = unpacked(rows.state.values, init(self.model, runs[0].seed))
        self.params: Params = {name: v.detach().requires_grad_() for name, v in views.items()}
        self.table = token_table(self.model.task, self.model.n_bits, device=device.torch)
        seeds = [run.seed for run in runs]
        self.all_tensors = with_buffers(self.params, self.model, seeds)
        self.held_out = held_out_examples(self.model, self.protocol, seeds, device.torch)
        weight, weights = self.protocol.consistency, rows.consistency
        self.consistent = weight and ConsistentLoss(self.model, self.table, weight, weights)
        self._drawn, self._first = self._draw(0, 0), rows.first.clone()
        # Compiled code works group by group anyway, and a user's layer gets the whole set.
        self.evaluation_batch = self.protocol.held_out_examples
        if self.name == "stacked":
            most = self.evaluation_batch if device.is_cuda else self.protocol.batch_size
            self.evaluation_batch = batch_that_fits(self.model, self.model.n_bits, most)

    def losses(self, examples: Examples) -> Tensor:
        """The mean loss of each run."""
        out = logits(self.all_tensors, self.model, self.table, examples)
        return bce(out, examples.answer).mean(1)

    def gradients(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """The mean loss of each run, and its gradient: seed, seed parameter."""
        if self.consistent and self.terms:
            first, flips = self.rows.first, self.terms > 1
            return self.consistent.gradients(self.params, self.all_tensors, examples, first, flips)
        loss = self.losses(examples)
        # Parameters that no logit depends on (unused ones of a library) have gradient zero.
        grads = torch.autograd.grad(loss.sum(), list(self.params.values()), materialize_grads=True)
        return loss.detach(), torch.cat([grad.reshape(len(grad), -1) for grad in grads], dim=1)

    def step(self, count: int) -> None:
        self.learn(self._draw(1, count) if self.device.is_cuda else self._next(count))

    def _draw(self, batches: int, count: int) -> Examples:
        rows, n_bits, kind = self.rows, self.model.n_bits, self.protocol.examples
        return draw_examples(rows.keys, n_bits, rows.first, batches * count, kind)

    def _next(self, count: int) -> Examples:
        """The next examples, from those drawn ahead: drawing batch by batch costs a small model a
        tenth of a step."""
        examples = self._drawn
        if examples.index.shape[1] < count or not torch.equal(self.rows.first, self._first):
            size = len(self.rows.keys) * count * self.model.n_bits
            examples = self._draw(max(1, min(_BATCHES, _BITS // size)), count)
        self._drawn = Examples(examples.bits[:, count:], examples.index[:, count:])
        self._first = self.rows.first + count
        return Examples(examples.bits[:, :count], examples.index[:, :count])

    def learn(self, examples: Examples) -> None:
        """Take one optimiser step on these examples, which are the next."""
        rows, count, (loss, grads) = self.rows, examples.index.shape[1], self.gradients(examples)
        if self.terms:
            steady = clip_to_recent(grads, rows.state, self.protocol, _STEADY)
            grads = torch.where(rows.consistency[:, :1] > 0, steady, grads)
        adamw_step(rows.state, clip_rows(grads, self.protocol.clip_norm), self.protocol)
        rows.loss_sum.add_(loss.double() * count)
        rows.first.add_(count)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        ask, batch = evaluator(self.name), self.evaluation_batch
        return evaluate(self.all_tensors, self.model, self.table, self.held_out, batch, ask)


class ModuleStepper(StackedStepper):
    """Our embedding and head around a user's layers.

    `models/own_layer.py` has the same functions for them as the six families have, so a step is
    that of the stacked models. On a GPU, steps that cannot be captured run eagerly.
    """

    name: StepperName = "module"

    def __init__(self, runs: list[RunSpec], rows: StackRows, device: Device) -> None:
        super().__init__(runs, rows, device)
        # Weights of a recurrent layer are views of our rows; cuDNN packs them at every step.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")

    def step(self, count: int) -> None:
        with no_capture(self.device):
            super().step(count)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        with no_capture(self.device):
            return super().evaluate()


class CompiledStepper(StackedStepper):
    """The twin of the stacked models: same data and optimiser; logits and gradients compiled."""

    name: StepperName = "compiled"

    def gradients(self, examples: Examples) -> tuple[Tensor, Tensor]:
        from ithbit.native.model import gradients  # needs numba

        out, grads = gradients(self.params, self.model, self.table, examples)
        return bce(out, examples.answer).mean(1), grads


def evaluator(name: StepperName) -> Logits:
    """The function that evaluates weights trained by this stepper."""
    if name != "compiled":
        return logits
    from ithbit.native.model import logits as compiled  # needs numba

    return compiled
