"""Whether compiled code pays: a few steps with it and with the plain models, on copies, timed.

Timings vary, so this is decided once: the answer for a model and batch size is kept beside the
compiled code, and every stack, worker and resumed run on this machine follows it.

The size of the stack is left out on purpose, although the gain depends on it: otherwise a run's
bits would depend on the runs beside it. Little is lost. Over the six families, 1 to 4 layers and
widths 16 to 128, stacks of 1, 3 and as many as fit disagreed only for one linear layer at width
128, where both take the same time within a tenth.
"""

import hashlib
import time
from contextlib import suppress
from pathlib import Path

from ithbit.engine.device import Device
from ithbit.engine.optim import AdamState
from ithbit.engine.stack import Stack
from ithbit.engine.steppers import StepperName
from ithbit.native import building
from ithbit.spec import RunSpec

_ROUNDS = 3  # of one step each, after one that is not counted
_NAMES: tuple[StepperName, ...] = ("compiled", "stacked")
# CPU time of this thread alone: other work on the machine does not count.
_clock = time.thread_time


def _note(run: RunSpec) -> Path | None:
    """Where the answer for such runs is kept."""
    what = repr((run.model, run.protocol.batch_size))
    there = building.folder()
    return there and there / f"trial-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def _kept(note: Path | None) -> StepperName | None:
    """What an earlier trial found, or None if there was none."""
    with suppress(OSError):
        words = note.read_text().split() if note else []
        return next((name for name in _NAMES if words[:1] == [name]), None)
    return None


def faster(runs: list[RunSpec], state: AdamState, device: Device) -> StepperName:
    """The faster of the two for a stack in this state, which is not changed."""
    note = _note(runs[0])
    if kept := _kept(note):
        return kept
    steppers = {name: Stack(runs, state.clone(), device, name).stepper for name in _NAMES}
    taken: dict[StepperName, list[float]] = {name: [] for name in _NAMES}
    for _ in range(1 + _ROUNDS):
        for name, stepper in steppers.items():
            began = _clock()
            stepper.step(runs[0].protocol.batch_size)
            taken[name].append(_clock() - began)
    least = {name: min(times[1:]) for name, times in taken.items()}
    best = min(_NAMES, key=least.__getitem__)
    with suppress(OSError):  # also if another worker was first: its answer counts
        if note is not None:
            with note.open("x") as file:
                times = ", ".join(f"{name} {least[name]:.3g}" for name in _NAMES)
                file.write(f"{best} is faster; seconds per step: {times}\n")
    return _kept(note) or best
