"""Training: `train(runs)` takes runs of one shape from wherever the store has them to their
results.

An epoch in order: train, evaluate, record, schedule, stop or go on, save. A run that stops leaves
the stack, one whose loss is not finite is recorded as failed, and the others do not notice.
"""

import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Literal

from ithbit.engine.device import Device, choose_device, describe_environment
from ithbit.engine.evaluate import shifted_accuracy
from ithbit.engine.folder import Checkpoint, RunFolder, check_store
from ithbit.engine.optim import AdamState, Plateau
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
    adam: AdamState  # as it was when its stack was made
    plateau: Plateau
    rate: float  # learning rate of the next epoch
    started_at: str
    history: list[Epoch] = field(default_factory=list)
    evaluation_seconds: float = 0.0
    saved: float = field(default_factory=time.monotonic)  # when its state was last on disk


def train(
    runs: Sequence[RunSpec],
    store: Path,
    device: Device | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
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
    todo = []
    for run in runs:
        folder = RunFolder(store, run)
        folder.create()
        if retry_failed:
            folder.forget_failure()
        done = folder.result() or folder.failure()
        if done is None:
            todo.append(folder)
        else:
            watch(Event(run, done))
    busy: list[str] = []
    size = stack_size(runs[0], device)
    for start in range(0, len(todo), size):
        busy += _train_free(todo[start : start + size], device, watch)
    if busy:
        raise BusyError(f"another process is training {', '.join(busy)}; wait for it")
    return [_outcome(RunFolder(store, run)) for run in runs]


def stack_size(run: RunSpec, device: Device) -> int:
    """How many runs to train at once: a GPU wants many, a CPU only as many as fit its caches."""
    if device.is_cuda:
        return _CUDA_SEEDS
    tokens = run.protocol.batch_size * n_tokens(run.model.task, run.model.n_bits)
    return max(1, _CPU_TOKENS // tokens)


def _train_free(folders: list[RunFolder], device: Device, watch: Watcher) -> list[str]:
    """Train one stack of the runs that no other process holds; the names of those that one does."""
    raised: list[Exception] = []

    def tell(event: Event) -> None:
        try:
            watch(event)
        except Exception as error:
            raised.append(error)
            raise

    with ExitStack() as held, device.one_thread():
        free = [folder for folder in folders if held.enter_context(folder.claimed())]
        # Looked at again now that the folder is ours: another process may have been faster.
        open_still = [f for f in free if f.result() is None and f.failure() is None]
        members = [_start(folder, watch) for folder in open_still]
        try:
            _train_stack(members, device, tell)
        except IthbitError:
            raise
        except Exception as error:  # a crash is a record of each run it hit, not the end of a sweep
            if error in raised:  # unless it is the watcher's: it wants to stop, or nobody listens
                raise
            for member in members:
                if member.folder.result() is None and member.folder.failure() is None:
                    _fail(member, f"{type(error).__name__}: {error}", traceback.format_exc(), watch)
        return [folder.run.name for folder in folders if folder not in free]


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
        checkpoint.plateau,
        checkpoint.adam.learning_rate.item(),
        checkpoint.started_at,
        folder.keep_history(checkpoint.epochs_done),
    )


def _train_stack(members: list[_Member], device: Device, watch: Watcher) -> None:
    """Train until every member has stopped; whoever stops leaves the stack."""
    while members:
        stack = Stack([m.run for m in members], AdamState.join([m.adam for m in members]), device)
        leaving = _train_until_one_stops(stack, members, watch)
        for k, member in enumerate(members):
            member.adam = stack.state.rows([k])
        for member, reason in leaving:
            if reason == "failed":
                loss = member.history[-1].train_loss
                error = f"the loss is not finite in epoch {len(member.history)}: {loss}"
                _fail(member, error, "", watch)
            else:
                _finish(member, reason, stack, watch)
        members = [m for m in members if all(m is not gone for gone, _ in leaving)]


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
        for k, m in enumerate(members):
            if time.monotonic() - m.saved >= save_seconds:
                row = stack.state.rows([k])
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
    params = stack.layout.views(member.adam.values)
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
        environment=describe_environment(stack.device),
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
