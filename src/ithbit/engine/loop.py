"""Training: `train(runs)` takes runs of one shape from wherever the store has them to their
results.

An epoch in order: train, evaluate, record, schedule, stop or go on, save. A run that stops leaves
the stack and a waiting one takes its place; one whose loss is not finite is recorded as failed, and
the others do not notice. Kernels that fail give way to the plain models, a stack that is too large
for the memory is halved.
"""

import math
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Literal

import torch

from ithbit.engine.device import Device, choose_device, describe_environment
from ithbit.engine.evaluate import shifted_accuracy
from ithbit.engine.folder import Checkpoint, RunFolder, check_store
from ithbit.engine.lanes import give_memory_back, lane
from ithbit.engine.optim import AdamState, Plateau
from ithbit.engine.paths import Kernels, check_kernels, refusal
from ithbit.engine.record import Epoch, Failure, Result, StoppedBy
from ithbit.engine.spec import RunSpec
from ithbit.engine.stack import Stack, fresh_state
from ithbit.errors import BusyError, IthbitError, SpecError
from ithbit.models.classifier import n_parameters
from ithbit.tasks.indexing import n_tokens

SAVE_SECONDS = 10.0  # at most this much work is done again after a crash, and one epoch
_SAVE_SETTING = "ITHBIT_SAVE_SECONDS"  # instead, where a file system is slow or crashes are many
_CPU_TOKENS = 32_768  # tokens of a step above which a larger stack no longer helps a CPU
_CUDA_SEEDS = 64
_CUDA_SCRATCH = 2 << 30  # bytes that the kernels of one stack may work in
_MAX_SHARES = 512  # rows of partial gradients that the kernels keep for a run, at most


class Notice(str):
    """A remark on how all such runs are trained: one of a kind is enough."""


@dataclass(frozen=True)
class Event:
    """What a watcher is told: a run's new epoch, its result, its failure, or a remark on it."""

    run: RunSpec
    what: Epoch | Result | Failure | str


Watcher = Callable[[Event], None]
Reason = StoppedBy | Literal["failed"]


@dataclass
class _Member:
    """A run on its way: what the loop keeps of it between two epochs."""

    run: RunSpec
    folder: RunFolder
    adam: AdamState  # on the host, as it was when its stack was made
    epochs_in_adam: int
    plateau: Plateau
    rate: float  # learning rate of the next epoch
    started_at: str
    history: list[Epoch] = field(default_factory=list)
    evaluation_seconds: float = 0.0
    saved: float = field(default_factory=time.monotonic)  # when its state was last on disk
    claim: ExitStack = field(default_factory=ExitStack)  # closed when the run is left to others


def train(
    runs: Sequence[RunSpec],
    store: Path,
    device: Device | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
    kernels: Kernels = "auto",
) -> list[Result | Failure]:
    """Train what is not finished, and give every run's result or failure, in order.

    The runs must differ in nothing but the seed. A finished run is read, never trained again; an
    unfinished one goes on from its checkpoint and ends as if it had not been stopped. Runs that
    another process is training are left to it; `BusyError` says so once the others are done.
    """
    if len({(run.model, run.protocol) for run in runs}) != 1:
        raise SpecError("runs trained together must share model and protocol and have a seed each")
    if len({run.seed for run in runs}) != len(runs):
        raise SpecError("every seed may be given once")
    check_store(store)
    device = device or choose_device()
    check_kernels(kernels, list(runs), device)
    todo = []
    for run in runs:
        folder = RunFolder(store, run)
        done = folder.result() or folder.failure()
        if retry_failed and isinstance(done, Failure):
            folder.forget_failure()
            done = None
        if done is None:
            folder.create()
            todo.append(folder)
        else:
            watch(Event(run, done))
    if todo:
        with device.said_if_lost(), device.one_thread(), lane(device):
            busy = _Cell(todo, device, watch, kernels).train()
        if busy:
            raise BusyError(f"another process is training {', '.join(busy)}; wait for it")
    return [_outcome(RunFolder(store, run)) for run in runs]


def stack_size(run: RunSpec, device: Device) -> int:
    """How many runs to train at once: a GPU wants many, a CPU only as many as fit its caches."""
    model, batch_size = run.model, run.protocol.batch_size
    tokens = batch_size * n_tokens(model.task, model.n_bits)
    if device.is_cuda:
        # A few rows a token for each block and for the way back, and the gradient's shares; fp32.
        rows = 6 * (model.n_layers + 1) * tokens
        numbers = rows * model.d_model + _MAX_SHARES * n_parameters(model)
        return max(1, min(_CUDA_SEEDS, _CUDA_SCRATCH // (4 * numbers)))
    return max(1, _CPU_TOKENS // tokens)


class _Cell:
    """Runs of one model on their way: seated in the stack, or waiting for a place in it."""

    def __init__(
        self, folders: list[RunFolder], device: Device, watch: Watcher, kernels: Kernels
    ) -> None:
        self.device, self.kernels, self._watch = device, kernels, watch
        self.waiting = deque(folders)
        self.halted: deque[_Member] = deque()  # begun, but out of a stack that was too large
        self.seated: list[_Member] = []
        self.busy: list[str] = []
        run = folders[0].run
        self.size = stack_size(run, device)
        self.fused = kernels == "on"
        self._raised: list[BaseException] = []
        if kernels == "auto" and device.is_cuda:
            why = refusal(run.model, run.protocol, device)
            self.fused = why is None
            if why:
                self._tell(Event(run, Notice(f"{why}: trained by the plain models")))

    def train(self) -> list[str]:
        """Train every run that no other process holds; the names of those that one does."""
        try:
            while self._fill():
                try:
                    self._train_until_some_leave()
                    continue
                except IthbitError:
                    raise
                except Exception as error:
                    # A watcher that raises wants to stop, or nobody listens any more.
                    if error in self._raised or self.device.is_lost():
                        raise
                    said, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
                    too_large = _is_out_of_memory(error)
                self._recover(said, trace, too_large)  # out of reach of the error, and its tensors
        finally:
            for member in (*self.seated, *self.halted):
                member.claim.close()
        return self.busy

    def _tell(self, event: Event) -> None:
        try:
            self._watch(event)
        except BaseException as error:
            self._raised.append(error)
            raise

    def _fill(self) -> bool:
        """Seat whoever waits while there is room; whether anyone is seated."""
        while len(self.seated) < self.size and (self.halted or self.waiting):
            if self.halted:
                self.seated.append(self.halted.popleft())
                continue
            folder = self.waiting.popleft()
            with ExitStack() as claim:
                if not claim.enter_context(folder.claimed()):
                    self.busy.append(folder.run.name)
                # Looked at again now that the folder is ours: another process may have been faster.
                elif folder.result() is None and folder.failure() is None:
                    self.seated.append(_start(folder, self._tell))
                    self.seated[-1].claim = claim.pop_all()
        return bool(self.seated)

    def _train_until_some_leave(self) -> None:
        members = self.seated
        state = AdamState.join([m.adam for m in members])
        stack = Stack([m.run for m in members], state, self.device, self.fused)
        try:
            leaving = _train_until_one_stops(stack, members, self._tell)
            host = stack.on_host()
            for k, member in enumerate(members):
                member.adam = host.rows([k])
                if all(member is not gone for gone, _ in leaving):
                    member.epochs_in_adam = len(member.history)
        finally:
            stack.close()
        for member, reason in leaving:
            if reason == "failed":
                loss = member.history[-1].train_loss
                error = f"the loss is not finite in epoch {len(member.history)}: {loss}"
                _fail(member, error, "", self._tell)
            else:
                _finish(member, reason, stack, self._tell)
            self.seated = [m for m in self.seated if m is not member]
            member.claim.close()

    def _recover(self, said: str, trace: str, too_large: bool) -> None:
        """Go on after a crash: with a smaller stack, without kernels, or without these runs."""
        run = self.seated[0].run
        if too_large:
            give_memory_back(self.device)
        if too_large and len(self.seated) > 1:
            self.size = len(self.seated) // 2
            text = f"out of memory with {len(self.seated)} runs of {run.model.family} at once"
            self._tell(Event(run, Notice(f"{text}: trained {self.size} at a time")))
        elif self.fused and self.kernels == "auto" and not too_large:
            self.fused = False
            why = (
                f"the kernels of {run.model.family} failed ({shorten(said, 200, placeholder='…')})"
            )
            self._tell(Event(run, Notice(f"{why}: trained by the plain models")))
        else:  # a crash is a record of each run it hit, not the end of a sweep
            for member in self.seated:
                _fail(member, said, trace, self._tell)
                member.claim.close()
            self.seated = []
        self.halted.extendleft(reversed([_rewound(m, self._tell) for m in self.seated]))
        self.seated = []


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU's memory was too small: torch has a class for it, CUDA itself a word."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def _start(folder: RunFolder, watch: Watcher) -> _Member:
    """A run as the store has it: from its checkpoint, or from the beginning."""
    checkpoint, remark = folder.load()
    if remark:
        watch(Event(folder.run, f"{remark}; starting anew"))
    if checkpoint is None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        checkpoint = Checkpoint(0, Plateau(), fresh_state(folder.run), now)
    return _Member(
        folder.run,
        folder,
        checkpoint.adam,
        checkpoint.epochs_done,
        checkpoint.plateau,
        checkpoint.adam.learning_rate.item(),
        checkpoint.started_at,
        folder.keep_history(checkpoint.epochs_done),
    )


def _rewound(member: _Member, watch: Watcher) -> _Member:
    """A run out of a stack that crashed: as it was put in, or as the store has it if it moved."""
    if len(member.history) == member.epochs_in_adam:
        return member
    return replace(_start(member.folder, watch), claim=member.claim)


def _train_until_one_stops(
    stack: Stack, members: list[_Member], watch: Watcher
) -> list[tuple[_Member, Reason]]:
    """Epoch after epoch, until at least one run stops; who stops, and why."""
    save_seconds = _save_seconds()
    while True:
        start = time.perf_counter()
        losses = stack.train_epoch([len(m.history) for m in members])
        trained = time.perf_counter()
        held_out_losses, accuracies = stack.evaluate()
        evaluated = time.perf_counter()
        leaving: list[tuple[_Member, Reason]] = []
        for k, member in enumerate(members):
            epoch = Epoch(
                epoch=len(member.history) + 1,
                train_loss=losses[k],
                held_out_loss=held_out_losses[k],
                held_out_accuracy=accuracies[k],
                learning_rate=member.rate,
                seconds=(trained - start) / len(members),
            )
            member.history.append(epoch)
            member.evaluation_seconds = (evaluated - trained) / len(members)
            reason = _stop_reason(member)
            if reason != "failed":
                member.folder.append_epoch(epoch)
                watch(Event(member.run, epoch))
                member.rate = member.plateau.next_rate(
                    member.rate, epoch.train_loss, member.run.protocol
                )
            if reason:
                leaving.append((member, reason))
        # Before anyone leaves: the others take their new rates along to the next stack.
        stack.set_rates([m.rate for m in members])
        if leaving:
            return leaving
        due = [k for k, m in enumerate(members) if time.monotonic() - m.saved >= save_seconds]
        if due:
            host = stack.on_host()
            for k in due:
                m, row = members[k], host.rows([k])
                m.folder.save(Checkpoint(len(m.history), m.plateau, row, m.started_at))
                m.saved = time.monotonic()


def _save_seconds() -> float:
    text = os.environ.get(_SAVE_SETTING, str(SAVE_SECONDS))
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"{_SAVE_SETTING} must be a number of seconds, got {text!r}") from None


def _stop_reason(member: _Member) -> Reason | None:
    """Why the run stops after its last epoch, if it does."""
    epoch, protocol = member.history[-1], member.run.protocol
    if not (math.isfinite(epoch.train_loss) and math.isfinite(epoch.held_out_loss)):
        return "failed"
    if epoch.held_out_loss <= protocol.stop_loss:
        return "loss"
    if protocol.stop_when_solved and epoch.held_out_accuracy == 1.0:
        return "solved"
    return "epochs" if epoch.epoch >= protocol.max_epochs else None


def _finish(member: _Member, reason: StoppedBy, stack: Stack, watch: Watcher) -> None:
    """Evaluate the final weights at the shifted lengths and write the result."""
    run, history = member.run, member.history
    params = stack.layout.views(member.adam.values.to(stack.device.torch))
    half, double = shifted_accuracy(params, run.model, run.protocol, [run.seed])
    solved = [epoch.epoch for epoch in history if epoch.held_out_accuracy == 1.0]
    result = Result(
        spec=run,
        n_parameters=n_parameters(run.model),
        epochs=len(history),
        stopped_by=reason,
        max_accuracy=max(epoch.held_out_accuracy for epoch in history),
        first_solved_epoch=solved[0] if solved else None,
        final_accuracy=history[-1].held_out_accuracy,
        final_loss=history[-1].held_out_loss,
        half_length_accuracy=half[0] if half else None,
        double_length_accuracy=double[0],
        seconds_per_epoch=median(epoch.seconds for epoch in history),
        evaluation_seconds=member.evaluation_seconds,
        started_at=member.started_at,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=describe_environment(stack.device) | {"path": stack.path},
    )
    weights = {name: value[0].detach().cpu().contiguous() for name, value in params.items()}
    member.folder.complete_history(history)
    member.folder.finish(result, weights)
    watch(Event(run, result))


def _fail(member: _Member, error: str, trace: str, watch: Watcher) -> None:
    failure = Failure(member.run, error, trace, len(member.history))
    member.folder.fail(failure)
    watch(Event(member.run, failure))


def _outcome(folder: RunFolder) -> Result | Failure:
    outcome = folder.result() or folder.failure()
    assert outcome is not None
    return outcome
