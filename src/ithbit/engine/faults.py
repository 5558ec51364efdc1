"""What may go wrong around the epoch loop, and how it goes on.

A stack that is too large for the memory is halved, kernels and compiled code that fail give way to
the plain models, and steps that cannot be captured in a graph are run one by one; every run goes on
from its last whole epoch. Anything else is a record of each run it hit, not the end of a sweep. A
device that is lost, a watcher that raises and mistakes of the user's end the training and fail no
run.
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
    """Run the epoch loop to its end, through every fault that can be mended."""
    while True:
        try:
            epochs()
            return
        except IthbitError:
            raise
        except Exception as error:
            if error is cell.raised or cell.how.device.is_lost():
                raise
            said, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            too_large, uncaptured = _is_out_of_memory(error), isinstance(error, CaptureError)
        _mend(cell, said, trace, too_large, uncaptured)  # out of reach of the error's tensors


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU's memory was too small: torch has a class for it, CUDA itself a word."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def _mend(cell: Cell, said: str, trace: str, too_large: bool, uncaptured: bool) -> None:
    """Go on after a fault: in a smaller stack, by other steps, or without these runs."""
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
        text = f"the kernels of {family} failed ({why}): trained by the plain models"
    elif cell.stepper == "compiled" and cell.how.compile == "auto":
        cell.stepper, cell.fallen = "stacked", True
        text = f"compiled code of {family} failed ({why}): trained by the plain models"
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
    """Record that a run cannot go on."""
    failure = Failure(progress.run, error, trace, len(progress.history))
    progress.folder.fail(failure)
    cell.part_with(progress)
    cell.tell(Event(progress.run, failure))
