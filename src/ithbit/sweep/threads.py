"""Several stacks at once in one process: on a GPU, others run while one stack waits.

Each thread trains on its own stream and writes its own checkpoints, so none waits for another. Only
one thread at a time calls the watcher. When it raises, or the user interrupts, every thread stops
between two steps, with its runs saved.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from ithbit.engine.device import one_thread
from ithbit.engine.how import Event, How, Notice, Pause, Watcher
from ithbit.engine.loop import train_cell
from ithbit.errors import BusyError
from ithbit.spec import RunSpec
from ithbit.sweep.turns import BUSY_SECONDS, Turns

STACKS_A_GPU = 8  # at once; while one waits for the host or for its own results, others run
_SIGNAL_SECONDS = 0.5  # between two checks for an interruption
_READY_SECONDS = 0.2  # between two checks of stacks that are not ready


def at_once(device_name: str) -> int:
    """How many stacks one process trains at once; on a CPU there are processes instead."""
    return STACKS_A_GPU if device_name.startswith("cuda") else 1


def shared(watch: Watcher, pause: Pause) -> Watcher:
    """A watcher that threads share: one call at a time, each notice once, no calls in a pause. If
    it raises, all threads are asked to pause."""
    lock, told = threading.Lock(), set[str]()

    def tell(event: Event) -> None:
        with lock:
            if pause.asked or (isinstance(event.what, Notice) and event.what in told):
                return
            if isinstance(event.what, Notice):
                told.add(event.what)
            try:
                watch(event)
            except BaseException:
                pause.ask()
                raise

    return tell


def train_in_threads(
    turns: Turns, how: How, n_threads: int, ready: Callable[[RunSpec], bool] = lambda run: True
) -> None:
    """Train stacks in order, `n_threads` at once; one that is not ready lets others go first, and
    runs held by another process are waited for."""
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        end = None
        try:
            while turns and not how.pause.asked:
                turn = turns.take(lambda stack: ready(stack[0]))
                if turn is None:
                    time.sleep(_READY_SECONDS)
                    continue
                try:
                    pause = how.pause.within(turn.seconds)
                    turns.put_back(train_cell(turn.stack, replace(how, pause=pause)))
                except BusyError:
                    turns.wait_again(turn.stack)
                    time.sleep(BUSY_SECONDS)
        except BaseException as error:
            how.pause.ask()
            end = error
        ends.put(end)

    # Before the threads start, since they inherit these settings. And around all of the work: an
    # interruption within it may keep torch from restoring the user's settings there.
    with one_thread(), torch.enable_grad():
        if n_threads == 1:
            work()
            found = [ends.get()]
        else:
            found = _run_threads(work, n_threads, how.pause, ends)
    for error in found:
        if error is not None:
            raise error


def _run_threads(
    work: Callable[[], None],
    n_threads: int,
    pause: Pause,
    ends: "queue.SimpleQueue[BaseException | None]",
) -> list[BaseException | None]:
    """Run the work in threads until all have ended; return how each ended, in that order."""
    # Daemons: a second interruption ends the process without waiting for them.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
    started: list[threading.Thread] = []
    found: list[BaseException | None] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        while len(found) < n_threads:
            # With a timeout: a signal that comes just before the wait is seen only after it. And
            # not with `join`, which is left in a broken state when a handler raises in it.
            with suppress(queue.Empty):
                found.append(ends.get(timeout=_SIGNAL_SECONDS))
        return found
    except BaseException:
        if pause.asked:
            started.clear()  # interrupted again: wait for no thread
        pause.ask()  # what a user's handler raises reaches only this thread
        raise
    finally:
        for thread in started:
            thread.join()
