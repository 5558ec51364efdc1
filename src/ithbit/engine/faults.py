"""What can go wrong in the epoch loop, and how training continues.

A stack too large for memory is halved, kernels and compiled code that fail are replaced by the
plain models, steps that cannot be captured in a graph run one by one, and runs of a user's layer
that fail in a stack are trained one at a time; every run resumes from its last whole epoch. Any
other fault is recorded as a failure of the runs it hit, and the sweep continues. A lost device, a
watcher that raises and user errors end the training without failing any run.
"""

import traceback
from collections.abc import Callable
from textwrap import shorten

import torch

from ithbit.engine.cell import Cell, Progress
from ithbit.engine.how import Event, Notice
from ithbit.engine.lanes import CaptureError, give_memory_back
from ithbit.errors import IthbitError
from ithbit.store.records import Failure


def survive(epochs: Callable[[], None], cell: Cell) -> None:
    """Run the epoch loop to its end, continuing after every fault that training can survive."""
    while True:
        try:
            epochs()
            return
        except IthbitError:
            raise
        except Exception as error:
            if error is cell.raised or not cell.seated or cell.how.device.is_lost():
                raise  # with nobody seated there is no run to blame
            said, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            too_large, uncaptured = _is_out_of_memory(error), isinstance(error, CaptureError)
        # Outside the except block: the error, and the tensors it refers to, are gone by now.
        _mend(cell, said, trace, too_large, uncaptured)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU ran out of memory: torch has a class for this, CUDA only a message."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def _mend(cell: Cell, said: str, trace: str, too_large: bool, uncaptured: bool) -> None:
    """Continue after a fault: with a smaller stack, with other steps, or without these runs."""
    cell.unstack()
    run, n_runs = cell.seated[0].run, len(cell.seated)
    family, why = run.model.family, shorten(said, 200, placeholder="…")
    text = None
    if too_large:
        give_memory_back(cell.how.device)
        if n_runs > 1:
            cell.size = n_runs // 2
            text = f"out of memory with {n_runs} runs of {family} at once"
            text += f": trained {cell.size} at a time"
    elif cell.stepper == "kernels" and cell.how.kernels == "auto":
        cell.stepper, cell.fallen = "stacked", True
        text = f"the kernels of {family} failed ({why}): trained with the plain models"
    elif cell.stepper == "compiled" and cell.how.compile == "auto":
        cell.stepper, cell.fallen = "stacked", True
        text = f"compiled code of {family} failed ({why}): trained with the plain models"
    elif uncaptured and cell.captured:
        cell.captured = False
        text = f"steps of {family} cannot be captured in a CUDA graph ({why}): run one by one"
    elif cell.stepper == "module" and n_runs > 1:
        cell.size = 1
        text = f"{family} failed with {n_runs} runs at once ({why}): trained one at a time"
    if text is None:
        for progress in cell.seated:
            fail(progress, said, trace, cell)
    else:
        cell.tell(Event(run, Notice(text)))
    cell.halted.extendleft(reversed(cell.seated))
    cell.seated = []


def fail(progress: Progress, error: str, trace: str, cell: Cell) -> None:
    """Record that a run cannot continue."""
    failure = Failure(progress.run, error, trace, len(progress.history))
    progress.folder.fail(failure)
    cell.part_with(progress)
    cell.tell(Event(progress.run, failure))
