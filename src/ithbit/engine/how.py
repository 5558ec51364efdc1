"""How runs are trained: where, by what, whom to tell, and when to leave.

To *pause* is the one way to leave before the end: the loop asks for it at the end of every epoch
and between two steps, and every run that leaves is saved after its last whole epoch. A Ctrl-C, the
end of a worker's input, a watcher that raises in another thread and a clock all ask for it so.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ithbit.engine.device import Device
from ithbit.engine.steppers import Compile, Kernels
from ithbit.errors import first_of
from ithbit.spec import RunSpec
from ithbit.store.records import Epoch, Failure, Result

_NAMED = 3  # runs, in a sentence


class Notice(str):
    """A remark on how all such runs are trained: one of a kind is enough."""


@dataclass(frozen=True)
class Event:
    """What a watcher is told: a run's new epoch, its result, its failure, or a remark on it."""

    run: RunSpec
    what: Epoch | Result | Failure | str


Watcher = Callable[[Event], None]


@dataclass(frozen=True)
class Unfinished:
    """A run that was left before its end: saved after so many epochs, and goes on from there."""

    spec: RunSpec
    epochs: int


Outcome = Result | Failure | Unfinished


class StoppedError(KeyboardInterrupt):
    """A Ctrl-C that was heeded; its text says what goes on from where."""


class Pause:
    """Whether to leave: at once when it is asked for, or with the epoch once `until` is over."""

    def __init__(self, until: float = math.inf, outer: "Pause | None" = None) -> None:
        self._until, self._outer, self._asked = until, outer, False

    def ask(self) -> None:
        self._asked = True

    @property
    def asked(self) -> bool:
        return self._asked or (self._outer is not None and self._outer.asked)

    @property
    def due(self) -> bool:
        """Whether to leave at the end of an epoch, by the clock of `time.monotonic`."""
        return self.asked or time.monotonic() >= self._until

    def within(self, seconds: float) -> "Pause":
        """One that is due after so many seconds, or with this one."""
        return Pause(time.monotonic() + seconds, self)


@dataclass(frozen=True)
class How:
    """What every part of the engine needs to know beside the runs."""

    store: Path
    device: Device
    kernels: Kernels = "auto"
    watch: Watcher = lambda event: None
    pause: Pause = field(default_factory=Pause)
    compile: Compile = "auto"


@contextmanager
def ctrl_c_pauses(pause: Pause) -> Iterator[None]:
    """Have a Ctrl-C ask for a pause meanwhile, and a second one raise at once.

    The first raises nothing, so it is not lost where Python drops what a handler raises, and never
    strikes between two lines that belong together. A handler that is not Python's own is the user's
    and stays, and so does a signal that is ignored; no signal reaches other threads than the main.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        again, pressed = pressed, True
        pause.ask()
        if again:
            raise StoppedError("stopped at once; the same command goes on from what was saved")

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stopped(left: Sequence[Unfinished]) -> StoppedError:
    """What a Ctrl-C ends with, given the runs that were at work.

    >>> from ithbit.spec import ModelSpec
    >>> left = [Unfinished(RunSpec(ModelSpec("rhi", "gru", 8), seed), 12 - seed) for seed in (0, 1)]
    >>> print(stopped(left))
    stopped; 2 runs saved (gru s0 after epoch 12, gru s1 after epoch 11); the same command goes on from there
    >>> print(stopped([Unfinished(left[0].spec, 0)]))
    stopped before a run had a whole epoch to save; the same command begins again
    """  # noqa: E501
    if not left:
        return StoppedError("stopped while no run was under way; the same command goes on")
    saved = [run for run in left if run.epochs]
    if not saved:
        return StoppedError(
            "stopped before a run had a whole epoch to save; the same command begins again"
        )
    alike = len({run.spec.model for run in saved}) == 1
    names = [
        (f"{run.spec.model.family} s{run.spec.seed}" if alike else run.spec.name)
        + f" after epoch {run.epochs}"
        for run in saved
    ]
    runs = "1 run" if len(saved) == 1 else f"{len(saved)} runs"
    return StoppedError(
        f"stopped; {runs} saved ({first_of(names, _NAMED)}); the same command goes on from there"
    )
