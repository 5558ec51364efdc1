"""Training: `train_cell` takes runs of one spec from their state in the store to their results.

`_epochs` is the loop: train, evaluate, record and schedule an epoch; then runs stop or continue,
and are saved. A run that stops leaves the stack and a waiting one takes its place; a run whose loss
is not finite is recorded as failed without affecting the others.

All other faults are handled around the loop, by `_run_with_recovery`. A stack too large for memory
is halved, kernels and compiled code that fail are replaced by the stacked models, steps that cannot
be captured in a graph run one by one, and runs of a user's layer that fail in a stack are trained
one at a time; every run resumes from its last whole epoch. Any other fault is recorded as a failure
of the runs it hit, and the sweep continues. A lost device, a watcher that raises and user errors
end the training without failing any run.
"""

import math
import os
import time
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from statistics import median
from textwrap import shorten
from typing import Literal

import torch

from ithbit.engine.cell import CellTraining, Progress
from ithbit.engine.device import describe_environment, one_thread
from ithbit.engine.evaluate import shifted_accuracy, structured_answers
from ithbit.engine.gpu_streams import CaptureError, give_memory_back, gpu_stream, no_capture
from ithbit.engine.steppers.stacked import evaluator
from ithbit.engine.tightening import Tightening
from ithbit.engine.training_context import Event, Notice, TrainingContext, UnfinishedRuns
from ithbit.errors import BusyError, IthbitError, SpecError
from ithbit.models.classifier import init, n_parameters
from ithbit.models.stacked import unpacked
from ithbit.spec import RunSpec
from ithbit.store.records import Epoch, Failure, FailureKind, Result, StoppedBy

SAVE_SECONDS = 10.0  # a crash costs at most this much work, plus one epoch
_SAVE_SETTING = "ITHBIT_SAVE_SECONDS"  # overrides it, for slow file systems or frequent crashes


def train_cell(runs: list[RunSpec], context: TrainingContext) -> UnfinishedRuns:
    """Train runs of one spec from their state in the store; return those that were stopped before
    their end.

    An unfinished run resumes from its checkpoint and ends as if it had never been stopped. Runs
    that another process is training are not touched, and `BusyError` is raised once the others are
    done.
    """
    if not runs:
        return {}
    if len({(run.model, run.protocol) for run in runs}) > 1 or len(set(runs)) < len(runs):
        raise SpecError("runs trained together must share model and protocol and have a seed each")
    with context.device.raise_if_device_lost(), one_thread(), gpu_stream(context.device):
        cell = CellTraining(runs, context)
        try:
            _run_with_recovery(cell)
        except BaseException as error:
            # An interruption saves the runs, as a stop does, unless it is the second request.
            # An error (of the watcher, of a lost device) leaves them as they were last saved.
            cell.release_all(save=not (isinstance(error, Exception) or context.stop.requested))
            raise
        unfinished = cell.release_all()
    if not context.stop.expired and cell.busy:
        names = ", ".join(folder.run.name for folder in cell.busy)
        raise BusyError(f"another process is training {names}; wait for it")
    return unfinished | {folder.run: 0 for folder in cell.busy}


def _epochs(cell: CellTraining) -> None:
    """Train epoch after epoch until every run has ended or a stop is due."""
    stop, save_seconds = cell.context.stop, _save_seconds()
    while not stop.requested and cell.fill():
        if _stop(cell):  # a run that a fault sent back after its last epoch
            continue
        stack, active = cell.stack(), cell.active
        if stack.protocol.consistency:
            tightening = [Tightening.after(progress.history) for progress in active]
            stack.set_consistency([each.weights(stack.protocol) for each in tightening])

        start = time.perf_counter()
        losses = stack.train_epoch([len(p.history) for p in active], lambda: stop.requested)
        if losses is None:
            return
        trained = time.perf_counter()
        held_out_losses, accuracies = stack.evaluate()
        evaluated = time.perf_counter()

        # Record and schedule all runs first, then make the copy that they are saved from.
        for k, progress in enumerate(active):
            epoch = Epoch(
                epoch=len(progress.history) + 1,
                train_loss=losses[k],
                held_out_loss=held_out_losses[k],
                held_out_accuracy=accuracies[k],
                learning_rate=progress.rate,
                seconds=(trained - start) / len(active),
            )
            protocol = progress.run.protocol
            progress.history.append(epoch)
            progress.evaluation_seconds = (evaluated - trained) / len(active)
            progress.rate = progress.plateau.next_rate(progress.rate, epoch.train_loss, protocol)
            if protocol.consistency:
                tightened = Tightening.after(progress.history)
                progress.rate = tightened.rate(protocol, progress.rate)
        stack.keep([p.rate for p in active])
        sound = [p for p in active if _stop_reason(p) != "failed"]
        for progress in sound:
            progress.folder.append_epoch(progress.history[-1])
        for progress in sound:
            cell.notify(Event(progress.run, progress.history[-1]))

        # Stop or continue.
        _stop(cell)
        cell.save(older_than=save_seconds)
        if cell.active:
            cell.maybe_switch_stepper()
        if stop.expired:
            return


def _save_seconds() -> float:
    text = os.environ.get(_SAVE_SETTING, str(SAVE_SECONDS))
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"{_SAVE_SETTING} must be a number of seconds, got {text!r}") from None


def _stop(cell: CellTraining) -> bool:
    """End the runs that have had their last epoch; return whether there were any."""
    ended = [(p, reason) for p in cell.active if (reason := _stop_reason(p))]
    if ended:
        cell.unstack()
    for progress, reason in ended:
        if reason == "failed":
            epoch = progress.history[-1]
            finite = math.isfinite(epoch.train_loss)
            loss = f"{epoch.held_out_loss} on held-out examples" if finite else epoch.train_loss
            error = f"the loss is not finite in epoch {len(progress.history)}: {loss}"
            _fail(progress, "diverged", error, "", cell)
        else:
            _finish(progress, reason, cell)
    return bool(ended)


def _stop_reason(progress: Progress) -> StoppedBy | Literal["failed"] | None:
    """Why a run stops after its latest epoch, or None if it continues."""
    if not progress.history:
        return None
    epoch, protocol = progress.history[-1], progress.run.protocol
    if not (math.isfinite(epoch.train_loss) and math.isfinite(epoch.held_out_loss)):
        return "failed"
    if protocol.consistency:
        if Tightening.after(progress.history).finished:
            return "consistency"
    elif epoch.held_out_loss <= protocol.stop_loss:
        return "loss"
    if protocol.stop_when_solved and epoch.held_out_accuracy == 1.0:
        return "solved"
    return "epochs" if epoch.epoch >= protocol.max_epochs else None


def _finish(progress: Progress, reason: StoppedBy, cell: CellTraining) -> None:
    """Evaluate the final weights at the shifted lengths and on structured inputs, and write the
    result."""
    run, history, device = progress.run, progress.history, cell.context.device
    like = init(run.model, run.seed)
    params = unpacked(progress.adam.values.to(device.torch), like)
    with no_capture(device) if cell.stepper == "module" else nullcontext():
        logits = evaluator(cell.stepper)
        half, double = shifted_accuracy(params, run.model, run.protocol, [run.seed], logits=logits)
        structured = structured_answers(params, run.model, run.seed, logits)
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
        double_length_accuracy=double[0] if double else None,
        seconds_per_epoch=median(epoch.seconds for epoch in history),
        evaluation_seconds=progress.evaluation_seconds,
        started_at=progress.started_at,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=describe_environment(device, cell.stepper),
        **structured,
    )
    weights = {name: value[0].detach().cpu().contiguous() for name, value in params.items()}
    progress.folder.complete_history(history)
    state = progress.checkpoint(progress.adam) if reason == "epochs" else None
    progress.folder.finish(result, weights, state)
    cell.release(progress)
    cell.notify(Event(run, result))


def _run_with_recovery(cell: CellTraining) -> None:
    """Run the epoch loop to its end, continuing after every fault that can be recovered from."""
    while True:
        try:
            _epochs(cell)
            return
        except IthbitError:
            raise
        except Exception as error:
            if error is cell.raised or not cell.active or cell.context.device.is_lost():
                raise  # with no active run, no run is the cause
            message, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            too_large, uncaptured = _is_out_of_memory(error), isinstance(error, CaptureError)
        # Outside the except block: the error, and the tensors it refers to, are gone by now.
        _recover(cell, message, trace, too_large, uncaptured)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU ran out of memory: torch has a class for this, CUDA only a message."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def _recover(
    cell: CellTraining, message: str, trace: str, too_large: bool, uncaptured: bool
) -> None:
    """Continue after a fault: with a smaller stack, with other steps, or without these runs."""
    cell.unstack()
    run, n_runs = cell.active[0].run, len(cell.active)
    family, why = run.model.family, shorten(message, 200, placeholder="…")
    text = None
    if too_large:
        give_memory_back(cell.context.device)
        if n_runs > 1:
            cell.size = n_runs // 2
            text = f"out of memory with {n_runs} runs of {family} at once"
            text += f": trained {cell.size} at a time"
    elif cell.stepper == "kernels" and cell.context.kernels == "auto":
        cell.stepper, cell.fell_back = "stacked", True
        text = f"the kernels of {family} failed ({why}): trained with the stacked models"
    elif cell.stepper == "compiled" and cell.context.compile == "auto":
        cell.stepper, cell.fell_back = "stacked", True
        text = f"compiled code of {family} failed ({why}): trained with the stacked models"
    elif uncaptured and cell.captured:
        cell.captured = False
        text = f"steps of {family} cannot be captured in a CUDA graph ({why}): run one by one"
    elif cell.stepper == "module" and n_runs > 1:
        cell.size = 1
        text = f"{family} failed with {n_runs} runs at once ({why}): trained one at a time"
    if text is None:
        for progress in cell.active:
            _fail(progress, "error", message, trace, cell)
    else:
        cell.notify(Event(run, Notice(text)))
    cell.suspended.extendleft(reversed(cell.active))
    cell.active = []


def _fail(
    progress: Progress, kind: FailureKind, error: str, trace: str, cell: CellTraining
) -> None:
    """Record that a run cannot continue."""
    failure = Failure(progress.run, error, trace, len(progress.history), kind)
    progress.folder.fail(failure)
    cell.release(progress)
    cell.notify(Event(progress.run, failure))
