"""A stack of runs on a device: one epoch of training and one pass of evaluation at a time.

On a CPU, steps run eagerly. On a GPU, steps are captured once in a CUDA graph (drawing the data,
forward, backward, clipping and AdamW; several steps per graph where they are short), and an epoch
replays that graph: no data is copied to the host within it. The last, smaller batch of an epoch has
its own graph, and so does evaluation.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ithbit.engine.device import Device
from ithbit.engine.gpu_streams import current_gpu_stream, drop, gpu_stream
from ithbit.engine.optim import AdamState
from ithbit.engine.steppers import StepperName, rows_of
from ithbit.engine.steppers.choice import make_stepper
from ithbit.models.classifier import init
from ithbit.models.stacked import packed
from ithbit.spec import RunSpec

_WARM_UP = 3  # repetitions before a capture, as CUDA graphs require
_AHEAD = 32  # graphs that may be queued on the device: a stop waits for them


class Stack:
    """Runs that share model and protocol, each with its own data, weights and optimiser state.

    `kept` is the state at the last call of `keep`: after the last whole epoch.
    """

    def __init__(
        self,
        runs: list[RunSpec],
        state: AdamState,
        device: Device,
        stepper: StepperName = "stacked",
        captured: bool = True,
    ) -> None:
        self.runs, self.device = runs, device
        self.model, self.protocol = runs[0].model, runs[0].protocol
        assert all((run.model, run.protocol) == (self.model, self.protocol) for run in runs)
        self._captured = captured and device.is_cuda
        with gpu_stream(device):
            self.rows = rows_of(runs, state, device.torch)
            self.kept = self.state.clone()
            self.stepper = make_stepper(stepper, runs, self.rows, device)
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}
        self._evaluated: tuple[Tensor, Tensor] | None = None

    @property
    def state(self) -> AdamState:
        return self.rows.state

    def train_epoch(
        self, epochs: list[int], abandoned: Callable[[], bool] = lambda: False
    ) -> list[float] | None:
        """Train each run through the epoch of the given number (from 0); return the mean losses.

        None if abandoned between two steps. Waits for the device.
        """
        protocol = self.protocol
        with gpu_stream(self.device):
            first = [[epoch * protocol.epoch_examples] for epoch in epochs]
            self.rows.first.copy_(torch.tensor(first))
            self.rows.loss_sum.zero_()
            n_full, rest = divmod(protocol.epoch_examples, protocol.batch_size)
            for steps, count in ((n_full, protocol.batch_size), (min(rest, 1), rest)):
                chunk = chunk_size(steps, self.stepper.max_chunk)
                for k in range(steps // chunk):
                    if abandoned():
                        return None
                    self._take(chunk, count)
                    if self.device.is_cuda and k % _AHEAD == _AHEAD - 1:
                        torch.cuda.current_stream(self.device.torch).synchronize()
            losses: list[float] = (self.rows.loss_sum / protocol.epoch_examples).tolist()
        return losses

    def set_consistency(self, weights: list[tuple[float, float]]) -> None:
        """Set each run's weights of pairs and of single flips for the next epoch."""
        with gpu_stream(self.device):
            self.rows.consistency.copy_(torch.tensor(weights, dtype=torch.float64))
        pairs, flips = zip(*weights, strict=True)
        self.stepper.terms = any(pairs) + any(flips)

    def evaluate(self) -> tuple[list[float], list[float]]:
        """Held-out loss and accuracy of each run. Waits for the device."""
        with gpu_stream(self.device):
            self._run("evaluation", self._evaluate, self._evaluate)
            assert self._evaluated is not None
            loss, accuracy = self._evaluated
            return loss.tolist(), accuracy.tolist()

    def keep(self, rates: list[float]) -> None:
        """After a whole epoch, set each run's learning rate for the next and copy the state, on the
        device."""
        with gpu_stream(self.device):
            new = torch.tensor(rates, dtype=torch.float64).unsqueeze(1)
            self.state.learning_rate.copy_(new)
            for copy, now in zip(vars(self.kept).values(), vars(self.state).values(), strict=True):
                copy.copy_(now)

    def kept_rows(self) -> list[AdamState]:
        """The kept state of each run, in host memory. Waits for the device."""
        with gpu_stream(self.device):
            host = self.kept.to(torch.device("cpu"))
        return [host.rows([k]) for k in range(len(self.runs))]

    def close(self) -> None:
        """Release the captured graphs."""
        drop(self._graphs)

    def _take(self, chunk: int, count: int) -> None:
        """Train a chunk of steps of `count` examples."""

        def work() -> None:
            for _ in range(chunk):
                self.stepper.step(count)

        name = (chunk, count, self.stepper.terms)
        self._run(name, work, lambda: self.stepper.step(count))

    def _evaluate(self) -> None:
        self._evaluated = self.stepper.evaluate()

    def _run(self, name: object, work: Callable[[], None], warm_up: Callable[[], None]) -> None:
        """Do the work: on a GPU by replaying its graph, captured on first use."""
        if not self._captured:
            work()
            return
        if name not in self._graphs:
            self._graphs[name] = self._capture(work, warm_up)
        self._graphs[name].replay()

    def _capture(
        self, work: Callable[[], None], warm_up: Callable[[], None]
    ) -> torch.cuda.CUDAGraph:
        """The work as a CUDA graph. Warming up changes the state, which is restored afterwards."""
        own = current_gpu_stream()
        assert own is not None
        moved = [*vars(self.state).values(), self.rows.loss_sum, self.rows.first]
        before = [tensor.clone() for tensor in moved]
        for _ in range(_WARM_UP):
            warm_up()
        own.stream.synchronize()  # failures on the device surface here
        graph = own.capture(work)
        for tensor, value in zip(moved, before, strict=True):
            tensor.copy_(value)
        return graph


def chunk_size(steps: int, most: int) -> int:
    """The largest divisor of `steps` that is at most `most`; 1 for no steps.

    >>> chunk_size(195, 16), chunk_size(1, 16), chunk_size(0, 16)
    (15, 1, 1)
    """
    return max((size for size in range(1, min(steps, most) + 1) if steps % size == 0), default=1)


def fresh_state(run: RunSpec) -> AdamState:
    """The state before the first step: weights from the seed, no moments."""
    return AdamState.start(packed(init(run.model, run.seed)), run.protocol.learning_rate)
