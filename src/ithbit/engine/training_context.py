"""How runs are trained: where, with which code, who watches, and when to stop early.

A *stop request* is the only way to stop before the end: the loop checks for one after every epoch
and between steps, and every run that stops is saved as of its last complete epoch. Ctrl-C, the end
of a worker's input, a watcher that raises in another thread and a time limit all make one.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

from ithbit.display import pluralize
from ithbit.engine.device import Device
from ithbit.engine.options import Switch, TrainingOptions
from ithbit.errors import first_of
from ithbit.spec import RunSpec
from ithbit.store.records import Epoch, Failure, Result

_NAMED = 3  # runs named in a message


class Notice(str):
    """A remark on how all such runs are trained: reported once, not once per run."""


@dataclass(frozen=True)
class Event:
    """What a watcher receives: a run's new epoch, its result, its failure, or a remark on it."""

    run: RunSpec
    what: Epoch | Result | Failure | str


Watcher = Callable[[Event], None]


# Runs that stopped before their end, with the epochs saved, from which they resume.
UnfinishedRuns = dict[RunSpec, int]


class StoppedError(KeyboardInterrupt):
    """Raised once a Ctrl-C has stopped the training; its text says where runs will resume."""


class StopRequest:
    """Whether to stop: at once on request, or at the end of the epoch once `until` has passed."""

    def __init__(self, until: float = math.inf, outer: "StopRequest | None" = None) -> None:
        self._until, self._outer, self._requested = until, outer, False

    def request(self) -> None:
        self._requested = True

    @property
    def requested(self) -> bool:
        return self._requested or (self._outer is not None and self._outer.requested)

    @property
    def expired(self) -> bool:
        """Whether to stop at the end of this epoch, by the clock of `time.monotonic`."""
        return self.requested or time.monotonic() >= self._until

    def within(self, seconds: float) -> "StopRequest":
        """A request that expires after this many seconds, or as soon as this one is made."""
        return StopRequest(time.monotonic() + seconds, self)


@dataclass(frozen=True)
class TrainingContext:
    """What every part of the engine needs to know besides the runs."""

    store: Path
    device: Device
    kernels: Switch = "auto"
    watch: Watcher = lambda event: None
    stop: StopRequest = field(default_factory=StopRequest)
    compile: Switch = "auto"

    @classmethod
    def of(
        cls, options: TrainingOptions, store: Path, watch: Watcher, stop: StopRequest
    ) -> "TrainingContext":
        """The context that the options, whose names were checked, stand for on this machine."""
        kernels, compile = cast(Switch, options.kernels), cast(Switch, options.compile)
        return cls(store, options.chosen_device, kernels, watch, stop, compile)


@contextmanager
def stop_on_ctrl_c(stop: StopRequest) -> Iterator[None]:
    """Within this context, make Ctrl-C request a stop, and a second Ctrl-C raise at once.

    The first raises nothing, so it is not lost where Python drops what a handler raises, and never
    strikes between two lines that belong together. A handler other than Python's own is the user's
    and stays in place, as does an ignored signal; signals reach only the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        again, pressed = pressed, True
        stop.request()
        if again:
            raise StoppedError("stopped at once; the same command continues from what was saved")

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interruption(unfinished: Mapping[RunSpec, int]) -> StoppedError:
    """The error that a Ctrl-C ends with, given the epochs saved of the runs that were training.

    >>> from ithbit.spec import ModelSpec
    >>> one, other = (RunSpec(ModelSpec("rhi", "gru", 8), seed) for seed in (0, 1))
    >>> print(interruption({one: 12, other: 11}))
    stopped; 2 runs saved (gru s0 after epoch 12, gru s1 after epoch 11); the same command continues from there
    >>> print(interruption({one: 0}))
    stopped before a run had a whole epoch to save; the same command begins again
    """  # noqa: E501
    if not unfinished:
        return StoppedError("stopped while no run was being trained; the same command continues")
    saved = {run: epochs for run, epochs in unfinished.items() if epochs}
    if not saved:
        return StoppedError(
            "stopped before a run had a whole epoch to save; the same command begins again"
        )
    alike = len({run.model for run in saved}) == 1
    names = [
        (f"{run.model.family} s{run.seed}" if alike else run.name) + f" after epoch {epochs}"
        for run, epochs in saved.items()
    ]
    runs = pluralize(len(saved), "run")
    return StoppedError(
        f"stopped; {runs} saved ({first_of(names, _NAMED)}); the same command continues from there"
    )
