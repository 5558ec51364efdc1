"""Training a layer's runs on every core, and in turns where the time is limited.

With a limit nobody knows beforehand which runs will need the time, so each has some seconds and
goes back to the end of the queue, with its state, for whichever worker is free next. When the time
is over, all that have not ended have had about the same. No result depends on turns or workers.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from multiprocessing import get_context

from ithbit.engine.spec import Protocol
from ithbit.probe.layer import Layer
from ithbit.probe.train import Place, ProbeRun, Work, train_for, train_source

_TURN_SECONDS = 10.0

Turn = tuple[list[ProbeRun], Work | None]


def train_in_turns(
    layer: Layer,
    work: list[Work],
    protocol: Protocol,
    place: Place | None,
    device_name: str,
    stacked: bool,
    n_workers: int,
    until: float,
) -> Iterator[ProbeRun]:
    """Every run as it ends, `until` at the latest on the clock of `time.monotonic`.

    More than one worker needs a layer that another process can load.
    """
    assert n_workers == 1 or layer.source is not None
    settings = (protocol, place, device_name, stacked)
    # Fresh processes: a fork would copy torch's threads in an unknown state.
    workers = (
        ProcessPoolExecutor(n_workers, mp_context=get_context("spawn"))
        if n_workers > 1
        else nullcontext()
    )
    waiting = deque(work)
    running: set[Future[Turn]] = set()
    with workers as pool:
        while waiting or running:
            if waiting and len(running) < n_workers:
                turn = waiting.popleft()
                seconds = _seconds(until)
                if seconds == 0 and turn.state is not None:
                    yield from turn.ended(layer)
                elif pool is not None:
                    assert layer.source is not None
                    running.add(pool.submit(train_source, seconds, layer.source, turn, *settings))
                else:
                    running.add(_now(train_for(seconds, layer, turn, *settings)))
                continue
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                runs, left = future.result()
                yield from runs
                waiting.extend([left] if left else [])


def _seconds(until: float) -> float:
    """How long a turn that starts now may take."""
    if math.isinf(until):
        return until
    return min(_TURN_SECONDS, max(until - time.monotonic(), 0.0))


def _now(turn: Turn) -> Future[Turn]:
    """A turn that was taken in this process."""
    future: Future[Turn] = Future()
    future.set_result(turn)
    return future
