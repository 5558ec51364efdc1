"""The stacks waiting to be trained, and threads that train several at once in one process.

If there is a time limit, stacks train in *turns*. Which runs will need the time is not known
beforehand, so each stack trains for some seconds and is then saved and put back at the end of the
queue. When time is up, all runs that have not ended have had about the same time, and at least one
epoch. No result depends on turns.

On a GPU, other stacks run while one waits. Each thread trains on its own stream and writes its own
checkpoints, so none waits for another. Only one thread at a time calls the watcher. When it raises,
or the user interrupts, every thread stops between two steps, with its runs saved.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from ithbit.engine.device import one_thread
from ithbit.engine.loop import train_cell
from ithbit.engine.training_context import (
    Event,
    Notice,
    StopRequest,
    TrainingContext,
    UnfinishedRuns,
    Watcher,
)
from ithbit.errors import BusyError
from ithbit.spec import RunSpec

STACKS_A_GPU = 8  # at once; while one waits for the host or for its own results, others run
_ENDED_SECONDS = 0.05  # between two checks whether all threads have ended
_READY_SECONDS = 0.2  # between two checks of stacks that are not ready
TURN_SECONDS = 10.0
BUSY_SECONDS = 1.0  # between two checks of a run that another process is training

Stack = list[RunSpec]


class StackQueue:
    """A queue of stacks that threads share."""

    def __init__(self, stacks: Iterable[Stack], minutes: float | None = None) -> None:
        self.unfinished: UnfinishedRuns = {}  # where each run last stopped
        self._waiting, self._lock = deque(stacks), threading.Lock()
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._had_one: set[RunSpec] = set()

    def __bool__(self) -> bool:
        """Whether a stack is waiting."""
        return bool(self._waiting)

    def take(
        self, fits: Callable[[Stack], bool] = lambda stack: True
    ) -> tuple[Stack, float] | None:
        """The first stack that fits, and for how many seconds it may be trained before it goes
        back; None if none fits now."""
        with self._lock:
            over = time.monotonic() >= self._until
            for stack in list(self._waiting):
                if over and self._had_one.issuperset(stack):
                    self._waiting.remove(stack)
                elif fits(stack):
                    self._waiting.remove(stack)
                    self._had_one.update(stack)
                    return stack, self._seconds()
        return None

    def _seconds(self) -> float:
        """How long a turn that starts now may take: until the end if no other stack waits."""
        remaining = max(0.0, self._until - time.monotonic())
        return min(TURN_SECONDS, remaining) if self._waiting and remaining < math.inf else remaining

    def requeue(self, stack: Stack) -> None:
        """Put a stack at the end of the queue."""
        with self._lock:
            self._waiting.append(stack)

    def requeue_unfinished(self, unfinished: UnfinishedRuns) -> None:
        """Put the unfinished runs of a turn back in the queue."""
        self.unfinished |= unfinished
        if unfinished:
            self.requeue(list(unfinished))


def stacks_per_process(device_name: str) -> int:
    """How many stacks one process trains at once; on a CPU there are processes instead."""
    return STACKS_A_GPU if device_name.startswith("cuda") else 1


def thread_safe_watcher(watch: Watcher, stop: StopRequest) -> Watcher:
    """A watcher that threads share: one call at a time, each notice once, no calls after a
    stop request. If it raises, all threads stop."""
    lock, reported = threading.Lock(), set[str]()

    def notify(event: Event) -> None:
        with lock:
            if stop.requested or (isinstance(event.what, Notice) and event.what in reported):
                return
            if isinstance(event.what, Notice):
                reported.add(event.what)
            try:
                watch(event)
            except BaseException:
                stop.request()
                raise

    return notify


def train_in_threads(
    turns: StackQueue,
    context: TrainingContext,
    n_threads: int,
    ready: Callable[[RunSpec], bool] = lambda run: True,
    when_busy: Callable[[Stack], None] = lambda stack: None,
) -> None:
    """Train stacks in order, `n_threads` at once; one that is not ready lets others go first, and
    runs held by another process are waited for: `when_busy` is called at each such wait."""
    ends: list[BaseException | None] = []  # how each thread ended

    def work() -> None:
        end = None
        try:
            while turns and not context.stop.requested:
                turn = turns.take(lambda stack: ready(stack[0]))
                if turn is None:
                    time.sleep(_READY_SECONDS)
                    continue
                stack, seconds = turn
                try:
                    stop = context.stop.within(seconds)
                    turns.requeue_unfinished(train_cell(stack, replace(context, stop=stop)))
                except BusyError:
                    when_busy(stack)
                    turns.requeue(stack)
                    time.sleep(BUSY_SECONDS)
        except BaseException as error:
            context.stop.request()
            end = error
        ends.append(end)

    # Before the threads start, since they inherit these settings. And around all of the work: an
    # interruption within it may keep torch from restoring the user's settings there.
    with one_thread(), torch.enable_grad():
        if n_threads == 1:
            work()
        else:
            # Daemons: a second interruption ends the process without waiting for them.
            threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
            _run_threads(threads, context.stop, lambda: len(ends) == n_threads)
    for error in ends:
        if error is not None:
            raise error


def _run_threads(
    threads: list[threading.Thread], stop: StopRequest, all_ended: Callable[[], bool]
) -> None:
    """Run threads until all have ended."""
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        while not all_ended():
            time.sleep(_ENDED_SECONDS)  # not `join`, which breaks when a handler raises in it
    except BaseException:
        if stop.requested:
            started.clear()  # interrupted again: wait for no thread
        stop.request()  # what a user's handler raises reaches only this thread
        raise
    finally:
        for thread in started:
            thread.join()
