"""Several stacks at once in one process: on a GPU a stack that waits leaves room for another.

Each thread trains on a stream of its own and writes its own checkpoints, so none waits for another.
The watcher has one caller at a time. When it raises, or the user interrupts, every thread ends with
its next epoch, and the runs keep what they have.
"""

import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch

from ithbit.engine.device import Device
from ithbit.engine.loop import Event, Notice, Watcher, train
from ithbit.engine.paths import Kernels
from ithbit.engine.spec import RunSpec
from ithbit.errors import BusyError

STACKS_A_GPU = 8  # at once; one that waits for the host or for itself leaves room for the others
_SIGNAL_SECONDS = 0.5  # between two looks for an interruption
_READY_SECONDS = 0.2  # between two looks at stacks that are not ready
BUSY_SECONDS = 1.0  # between two looks at a run that another process is training

Given = TypeVar("Given")


def at_once(device_name: str) -> int:
    """How many stacks one process trains at once; on a CPU there are processes instead."""
    return STACKS_A_GPU if device_name.startswith("cuda") else 1


class StoppedError(Exception):
    """What a thread is told once there is nobody left to tell."""


class Audience:
    """A watcher that threads share: one call at a time, each notice once, none after the end."""

    def __init__(self, watch: Watcher) -> None:
        self.stopped = False
        self._watch = watch
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, event: Event) -> None:
        """Pass an event on; raises once the audience has left."""
        with self._lock:
            if self.stopped:
                raise StoppedError
            if isinstance(event.what, Notice):
                if event.what in self._told:
                    return
                self._told.add(event.what)
            try:
                self._watch(event)
            except BaseException:
                self.stopped = True
                raise


def heed_ctrl_c(work: Callable[[], Given], audience: Audience, mid_epoch: bool) -> Given:
    """What `work` gives; a Ctrl-C meanwhile stops the audience and is raised, after it or sooner.

    Raised sooner if that may be `mid_epoch`, or if it is the second one. To raise is not enough:
    Python drops what a handler raises while a finaliser runs, and then work ends with its epoch.
    A handler that is not Python's own is the user's and stays, and so does a signal that is
    ignored; outside the main thread, which no signal reaches, nothing changes.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return work()
    pressed = over = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        again, pressed, audience.stopped = pressed, True, True
        if (mid_epoch or again) and not over:
            signal.default_int_handler(signum, frame)

    try:
        signal.signal(signal.SIGINT, note)
        return work()
    finally:
        over = True  # first: what `note` raised here would leave it in place
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if pressed:
            raise KeyboardInterrupt


def train_side_by_side(
    stacks: Iterable[list[RunSpec]],
    store: Path,
    device: Device,
    n_stacks: int,
    audience: Audience,
    kernels: Kernels = "auto",
    ready: Callable[[RunSpec], bool] = lambda run: True,
) -> None:
    """Train stacks in the order given, so many at once; one that is not ready lets others pass, and
    runs that another process holds are waited for."""
    waiting, lock = deque(stacks), threading.Lock()
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def take() -> list[RunSpec] | None:
        with lock:
            first = next((stack for stack in waiting if ready(stack[0])), None)
            if first is not None:
                waiting.remove(first)
            return first

    def work() -> None:
        try:
            while waiting and not audience.stopped:
                stack = take()
                if stack is None:
                    time.sleep(_READY_SECONDS)
                    continue
                try:
                    train(stack, store, device, audience.tell, kernels=kernels)
                except BusyError:
                    waiting.append(stack)
                    time.sleep(BUSY_SECONDS)
        except BaseException as error:
            audience.stopped = True
            ends.put(error)
        else:
            ends.put(None)

    # Before the threads, which take over what they find, and around what an interruption leaves:
    # one that strikes where torch puts the user's settings back keeps it from doing so.
    with device.one_thread(), torch.enable_grad():
        if n_stacks == 1:
            heed_ctrl_c(work, audience, mid_epoch=True)
            found = [ends.get()]
        else:
            n_threads = min(n_stacks, len(waiting))
            found = heed_ctrl_c(
                lambda: _run_threads(work, n_threads, audience, ends), audience, mid_epoch=False
            )
    for error in found:
        if error is not None and not isinstance(error, StoppedError):  # which follows another
            raise error


def _run_threads(
    work: Callable[[], None],
    n_threads: int,
    audience: Audience,
    ends: "queue.SimpleQueue[BaseException | None]",
) -> list[BaseException | None]:
    """Work in threads until all have ended; how each did, in that order."""
    # Daemons: a second interruption ends the process without waiting for the epoch.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
    started: list[threading.Thread] = []
    found: list[BaseException | None] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        while len(found) < n_threads:
            # Not for ever: a signal that comes just before the wait is seen after it.
            with suppress(queue.Empty):
                found.append(ends.get(timeout=_SIGNAL_SECONDS))
        return found
    except BaseException:
        if audience.stopped:
            started.clear()  # interrupted again: nobody is waited for
        raise
    finally:
        audience.stopped = True  # for what a user's handler raises: it reaches this thread alone
        for thread in started:
            thread.join()
