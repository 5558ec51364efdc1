"""The stacks waiting to be trained, in turns if there is a time limit.

Which runs will need the time is not known beforehand, so each stack trains for some seconds and is
then saved and put back at the end of the queue. When time is up, all runs that have not ended have
had about the same time, and at least one epoch. No result depends on turns.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ithbit.engine.how import Unfinished
from ithbit.spec import RunSpec

TURN_SECONDS = 10.0
BUSY_SECONDS = 1.0  # between two checks of a run that another process is training

Stack = list[RunSpec]


@dataclass(frozen=True)
class Turn:
    """A stack, and how long it may be trained before it goes back."""

    stack: Stack
    seconds: float = math.inf


class Turns:
    """A queue of stacks that threads share."""

    def __init__(self, stacks: Iterable[Stack], minutes: float | None = None) -> None:
        self.left: dict[RunSpec, Unfinished] = {}  # by run: where it last stopped
        self._waiting, self._lock = deque(stacks), threading.Lock()
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._had_one: set[RunSpec] = set()

    def __bool__(self) -> bool:
        """Whether a stack is waiting."""
        return bool(self._waiting)

    def take(self, fits: Callable[[Stack], bool] = lambda stack: True) -> Turn | None:
        """The first stack that fits, with its time limit; None if none does now."""
        with self._lock:
            over = time.monotonic() >= self._until
            for stack in list(self._waiting):
                if over and self._had_one.issuperset(stack):
                    self._waiting.remove(stack)
                elif fits(stack):
                    self._waiting.remove(stack)
                    self._had_one.update(stack)
                    return Turn(stack, self._seconds())
        return None

    def _seconds(self) -> float:
        """How long a turn that starts now may take: until the end if no other stack waits."""
        left = max(0.0, self._until - time.monotonic())
        return min(TURN_SECONDS, left) if self._waiting and left < math.inf else left

    def wait_again(self, stack: Stack) -> None:
        """Put a stack at the end of the queue."""
        with self._lock:
            self._waiting.append(stack)

    def put_back(self, left: list[Unfinished]) -> None:
        """Put the runs that a turn left unfinished back in the queue."""
        self.left |= {unfinished.spec: unfinished for unfinished in left}
        if left:
            self.wait_again([unfinished.spec for unfinished in left])
