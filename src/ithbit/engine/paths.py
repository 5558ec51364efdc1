"""The two ways to train a stack: plain stacked models, which serve everything, and fused kernels.

Both draw the same data, take the same steps and move the same rows in place; what they leave
differs by rounding. The kernels are imported where they are first wanted, so that a machine without
Triton has the plain way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ithbit.engine.device import Device
from ithbit.engine.evaluate import bce, evaluate, held_out_examples, ordered_mean
from ithbit.engine.optim import AdamState, Layout, adamw_step, clip_rows
from ithbit.engine.spec import Protocol, RunSpec
from ithbit.errors import DeviceError
from ithbit.models.classifier import logits
from ithbit.models.spec import ModelSpec
from ithbit.models.stacked import Params
from ithbit.tasks.sampling import HELD_OUT_SEED, Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

Kernels = Literal["auto", "on", "off"]
KERNELS: tuple[Kernels, ...] = ("auto", "on", "off")
PathName = Literal["kernels", "stacked"]


@dataclass(frozen=True)
class Rows:
    """What a step of a stack reads and moves on, a row a run."""

    state: AdamState
    keys: Tensor  # seed: of the training data
    first: Tensor  # seed 1: number of the next example
    loss_sum: Tensor  # seed, double: of the examples of the epoch so far


class Plain:
    """By the stacked models and autograd."""

    name: PathName = "stacked"
    max_chunk = 1  # steps a graph: one is some hundreds of launches, so that more save nothing

    def __init__(self, runs: list[RunSpec], rows: Rows, layout: Layout, device: Device) -> None:
        self.rows, self.model, self.protocol = rows, runs[0].model, runs[0].protocol
        # Leaves that share the rows' memory: a step in place on the rows moves the parameters.
        views = layout.views(rows.state.values)
        self.params: Params = {name: v.detach().requires_grad_() for name, v in views.items()}
        self.table = token_table(self.model.task, self.model.n_bits, device=device.torch)
        seeds = [run.seed for run in runs]
        self.held_out = held_out_examples(self.model, self.protocol, seeds, device.torch)
        whole = self.protocol.held_out_examples
        self.evaluation_batch = whole if device.is_cuda else self.protocol.batch_size

    def losses(self, examples: Examples) -> Tensor:
        """The mean loss of each run."""
        out = logits(self.params, self.model, self.table, examples)
        return bce(out, examples.answer).mean(1)

    def step(self, count: int) -> None:
        """Draw `count` examples for every run and take one optimiser step, all in place."""
        rows = self.rows
        loss = self.losses(draw_examples(rows.keys, self.model.n_bits, rows.first, count))
        # What no logit depends on (a library's unused parameters) has gradient zero.
        grads = torch.autograd.grad(loss.sum(), list(self.params.values()), materialize_grads=True)
        whole = torch.cat([grad.flatten(1) for grad in grads], dim=1)
        adamw_step(rows.state, clip_rows(whole, self.protocol.clip_norm), self.protocol)
        rows.loss_sum.add_(loss.detach().double() * count)
        rows.first.add_(count)

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Held-out loss and accuracy of each run."""
        return evaluate(self.params, self.model, self.table, self.held_out, self.evaluation_batch)


class Fused:
    """By the kernels."""

    name: PathName = "kernels"
    max_chunk = 16  # steps a graph: one is a handful of launches

    def __init__(self, runs: list[RunSpec], rows: Rows, layout: Layout, device: Device) -> None:
        from ithbit.kernels.step import Step

        self.rows, self.model, self.protocol = rows, runs[0].model, runs[0].protocol
        self.fused = Step(self.model, len(runs), self.protocol.batch_size, device.torch)
        assert self.fused.plan.n_parameters == layout.size
        seeds = [run.seed for run in runs]
        self.held_out_keys = stream_keys([seed + HELD_OUT_SEED for seed in seeds], device.torch)
        self.answer = held_out_examples(self.model, self.protocol, seeds, device.torch).answer

    def step(self, count: int) -> None:
        """Draw `count` examples for every run and take one optimiser step, all in place."""
        from ithbit.kernels.optimiser import adamw

        rows, state, protocol = self.rows, self.rows.state, self.protocol
        self.fused.gradients(state.values, rows.keys, rows.first, count, rows.loss_sum, state.steps)
        adamw(
            state.values,
            state.mean,
            state.square,
            self.fused.grads,
            self.fused.squares,
            state.steps,
            state.learning_rate,
            beta1=protocol.beta1,
            beta2=protocol.beta2,
            eps=protocol.eps,
            weight_decay=protocol.weight_decay,
            clip_norm=protocol.clip_norm,
        )

    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Held-out loss and accuracy of each run."""
        count = self.protocol.held_out_examples
        out = self.fused.logits(self.rows.state.values, self.held_out_keys, count)
        right = (out.sigmoid() >= 0.5) == (self.answer == 1)
        return ordered_mean(bce(out, self.answer)), ordered_mean(right)


def refusal(model: ModelSpec, protocol: Protocol, device: Device) -> str | None:
    """Why the kernels do not train such runs on such a device, or None if they do."""
    try:
        from triton import knobs

        from ithbit.kernels.step import refusal as refused_model
    except ImportError as error:
        return f"the kernels need Triton, which is not here ({error})"
    if not device.is_cuda and not knobs.runtime.interpret:
        return "the kernels need a CUDA GPU"
    if not (protocol.beta1 and protocol.beta2):
        return "the kernels need both betas of AdamW above 0"
    return refused_model(model)


@contextmanager
def compiling(
    runs: list[RunSpec], device: Device, say: Callable[[str], None]
) -> Iterator[Callable[[RunSpec], bool]]:
    """Compile what these runs want on a GPU in the background; gives whether a run can start.

    One that starts all the same compiles its kernels itself.
    """
    models: dict[int, dict[ModelSpec, None]] = defaultdict(dict)
    for model, protocol in dict.fromkeys((run.model, run.protocol) for run in runs):
        if refusal(model, protocol, device) is None:
            models[protocol.batch_size][model] = None
    with ExitStack() as stack:
        waited: dict[ModelSpec, list[Callable[[ModelSpec], bool]]] = defaultdict(list)
        for batch_size, served in models.items():
            from ithbit.kernels.ahead import Ahead

            ahead = stack.enter_context(Ahead(list(served), batch_size, device.torch, say))
            for model in served:
                waited[model].append(ahead.ready)
        yield lambda run: all(ready(run.model) for ready in waited.get(run.model, ()))


def kernels_named(name: str) -> Kernels:
    """The choice of that name.

    >>> kernels_named("yes")
    Traceback (most recent call last):
    ...
    ithbit.errors.DeviceError: unknown choice of kernels 'yes'; choose one of auto, on, off
    """
    for choice in KERNELS:
        if choice == name:
            return choice
    raise DeviceError(f"unknown choice of kernels {name!r}; choose one of {', '.join(KERNELS)}")


def check_kernels(kernels: Kernels, runs: list[RunSpec], device: Device) -> None:
    """A sentence if kernels were asked for that are not to be had for all the runs."""
    if kernels_named(kernels) == "on":
        for model, protocol in dict.fromkeys((run.model, run.protocol) for run in runs):
            why = refusal(model, protocol, device)
            if why:
                raise DeviceError(f"kernels 'on' were asked for, but {why}; use auto or off")
