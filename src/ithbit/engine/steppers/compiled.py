"""Steps with the compiled families. Needs numba, so it is imported only where it is used."""

from torch import Tensor

from ithbit.engine.evaluate import bce, evaluate
from ithbit.engine.optim import adamw_step, clip_rows
from ithbit.engine.steppers import StepperName
from ithbit.engine.steppers.plain import Plain
from ithbit.native.model import gradients, logits
from ithbit.tasks.sampling import Examples


class Compiled(Plain):
    """The twin of the plain models: same data and optimiser, but compiled logits and gradients."""

    name: StepperName = "compiled"

    def learn(self, examples: Examples) -> None:
        rows, count = self.rows, examples.index.shape[1]
        out, grads = gradients(self.params, self.model, self.table, examples)
        adamw_step(rows.state, clip_rows(grads, self.protocol.clip_norm), self.protocol)
        rows.loss_sum.add_(bce(out, examples.answer).mean(1).double() * count)
        rows.first.add_(count)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        every = self.protocol.held_out_examples  # compiled code works group by group anyway
        return evaluate(self.whole, self.model, self.table, self.held_out, every, logits)
