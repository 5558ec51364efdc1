"""Steps with the compiled families. Needs numba, so it is imported only where it is used."""

from torch import Tensor

from ithbit.engine.evaluate import bce, evaluate
from ithbit.engine.steppers import StepperName
from ithbit.engine.steppers.plain import Plain
from ithbit.native.model import gradients, logits
from ithbit.tasks.sampling import Examples


class Compiled(Plain):
    """The twin of the plain models: same data and optimiser, but compiled logits and gradients."""

    name: StepperName = "compiled"

    def gradients(self, examples: Examples) -> tuple[Tensor, Tensor]:
        out, grads = gradients(self.params, self.model, self.table, examples)
        return bce(out, examples.answer).mean(1), grads

    def evaluate(self) -> tuple[Tensor, Tensor]:
        every = self.protocol.held_out_examples  # compiled code works group by group anyway
        return evaluate(self.whole, self.model, self.table, self.held_out, every, logits)
