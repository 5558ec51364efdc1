"""Several stacks at once in one process: on a GPU a stack that waits leaves room for another.

Each thread trains on a stream of its own and writes its own checkpoints, so none waits for another.
The watcher has one caller at a time. When it raises, or the user interrupts, every thread ends with
its next epoch, and the runs keep what they have.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from ithbit.engine.device import Device
from ithbit.engine.loop import Event, Notice, Watcher, train
from ithbit.engine.paths import Kernels
from ithbit.engine.spec import RunSpec
from ithbit.errors import BusyError

STACKS_A_GPU = 8  # at once; one that waits for the host or for itself leaves room for the others
BUSY_SECONDS = 1.0  # between two looks at a run that another process is training


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


def train_side_by_side(
    stacks: Iterable[list[RunSpec]],
    store: Path,
    device: Device,
    n_stacks: int,
    audience: Audience,
    kernels: Kernels = "auto",
) -> None:
    """Train stacks in the order given, so many at once; runs that another holds are waited for."""
    waiting = deque(stacks)
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            while waiting and not audience.stopped:
                try:
                    stack = waiting.popleft()
                except IndexError:  # another thread was faster
                    break
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

    with device.one_thread():  # before the threads: they take over what they find
        if n_stacks == 1:
            work()
            found = [ends.get()]
        else:
            found = _run_threads(work, min(n_stacks, len(waiting)), audience, ends)
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
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        return [ends.get() for _ in threads]
    finally:
        audience.stopped = True  # for an interruption, which reaches this thread alone
        for thread in started:
            thread.join()
