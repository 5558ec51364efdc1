"""A stack of runs on a device: one epoch of training and one pass of evaluation at a time.

On a CPU a step is run as it stands. On a GPU it is captured in a CUDA graph once (drawing the data,
forward, backward, clipping and AdamW), and an epoch is that graph replayed: nothing crosses to the
host within it. The last, smaller batch of an epoch has a graph of its own.
"""

from collections.abc import Callable

import torch

from ithbit.engine.device import Device
from ithbit.engine.evaluate import bce, evaluate, held_out_examples
from ithbit.engine.optim import AdamState, Layout, adamw_step, clip_rows
from ithbit.engine.spec import RunSpec
from ithbit.models.classifier import init, logits
from ithbit.models.stacked import Params
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

_WARM_UP = 3  # steps before a capture, as CUDA graphs ask for


class Stack:
    """Runs that share model and protocol, each with its own data, weights and optimiser state."""

    def __init__(self, runs: list[RunSpec], state: AdamState, device: Device) -> None:
        self.runs, self.device = runs, device
        self.model, self.protocol = runs[0].model, runs[0].protocol
        assert all((run.model, run.protocol) == (self.model, self.protocol) for run in runs)
        seeds = [run.seed for run in runs]
        self.state = state.to(device.torch)
        self.layout = layout_of(runs[0])
        # Leaves that share the rows' memory: a step in place on the rows moves the parameters.
        views = self.layout.views(self.state.values)
        self.params: Params = {name: v.detach().requires_grad_() for name, v in views.items()}
        task, n_bits = self.model.task, self.model.n_bits
        self.table = token_table(task, n_bits, device=device.torch)
        self.held_out = held_out_examples(self.model, self.protocol, seeds, device.torch)
        self.keys = stream_keys(seeds, device.torch)
        self.first = torch.zeros(len(runs), 1, dtype=torch.int64, device=device.torch)
        self.loss_sum = torch.zeros(len(runs), dtype=torch.float64, device=device.torch)
        self._replay: dict[int, Callable[[], None]] = {}

    def train_epoch(self, epochs: list[int]) -> list[float]:
        """Train each run through its epoch of that number (from 0); the mean loss of each.

        Waits for the device.
        """
        protocol = self.protocol
        first = [[epoch * protocol.epoch_examples] for epoch in epochs]
        self.first.copy_(torch.tensor(first))
        self.loss_sum.zero_()
        whole, rest = divmod(protocol.epoch_examples, protocol.batch_size)
        for _ in range(whole):
            self._step(protocol.batch_size)
        if rest:
            self._step(rest)
        return [float(value) for value in (self.loss_sum / protocol.epoch_examples).tolist()]

    def evaluate(self) -> tuple[list[float], list[float]]:
        """Held-out loss and accuracy of each run. Waits for the device."""
        whole = self.held_out.index.shape[1]
        batch_size = whole if self.device.is_cuda else self.protocol.batch_size
        loss, accuracy = evaluate(self.params, self.model, self.table, self.held_out, batch_size)
        return loss.tolist(), accuracy.tolist()

    def set_rates(self, rates: list[float]) -> None:
        """Each run's learning rate from now on."""
        self.state.learning_rate.copy_(torch.tensor(rates, dtype=torch.float64).unsqueeze(1))

    def _step(self, batch_size: int) -> None:
        if not self.device.is_cuda:
            self._step_once(batch_size)
            return
        if batch_size not in self._replay:
            self._replay[batch_size] = self._capture(batch_size)
        self._replay[batch_size]()

    def _step_once(self, batch_size: int) -> None:
        """Draw a batch for every run and take one optimiser step, all in place."""
        examples = draw_examples(self.keys, self.model.n_bits, self.first, batch_size)
        out = logits(self.params, self.model, self.table, examples)
        loss = bce(out, examples.answer).mean(1)
        # What no logit depends on (a library's unused parameters) has gradient zero.
        grads = torch.autograd.grad(loss.sum(), list(self.params.values()), materialize_grads=True)
        rows = torch.cat([grad.flatten(1) for grad in grads], dim=1)
        adamw_step(self.state, clip_rows(rows, self.protocol.clip_norm), self.protocol)
        self.loss_sum += loss.detach().double() * batch_size
        self.first += batch_size

    def _capture(self, batch_size: int) -> Callable[[], None]:
        """The step as a CUDA graph. Warming up moves the state, so it is put back afterwards."""
        moved = [*vars(self.state).values(), self.loss_sum, self.first]
        before = [tensor.clone() for tensor in moved]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._step_once(batch_size)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step_once(batch_size)
        for tensor, value in zip(moved, before, strict=True):
            tensor.copy_(value)
        return graph.replay


def layout_of(run: RunSpec) -> Layout:
    """Where the run's parameters lie in a row."""
    return Layout.of(init(run.model, run.seed))


def fresh_state(run: RunSpec) -> AdamState:
    """The state before the first step: weights from the seed, no moments."""
    params = init(run.model, run.seed)
    return AdamState.start(Layout.of(params).pack(params), run.protocol.learning_rate)
