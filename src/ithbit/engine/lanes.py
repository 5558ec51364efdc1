"""Streams and graphs for threads that share a GPU.

A thread trains on a lane: a stream of its own, and memory of its own for the graphs captured on it.
Lanes are kept and lent again, because torch deals its streams out in turns of 32: two that are in
use at once must not be the same. Nothing here synchronises the whole GPU, so no thread waits for
another's work.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from ithbit.engine.device import Device

# torch keeps what its graphs share without a lock: one thread at a time captures or drops one.
_GRAPHS = threading.Lock()
_LANES = threading.Lock()
_free: list["Lane"] = []
_here = threading.local()


class Lane:
    """A stream, and the memory of the graphs captured on it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What `work` launches, as a graph; other threads may use the GPU meanwhile."""
        with _GRAPHS:
            if self._first is None:
                # Kept for good: the memory stays with the lane, whichever graphs come and go.
                self._first = _captured(lambda: torch.zeros(1, device=self.device), None)
            return _captured(work, self._first)


def _captured(
    work: Callable[[], object], neighbour: torch.cuda.CUDAGraph | None
) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    pool = neighbour.pool() if neighbour else None
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        work()
    except BaseException:
        with suppress(RuntimeError):  # it fails with the work, and the work's error says more
            graph.capture_end()
        raise
    graph.capture_end()
    return graph


@contextmanager
def lane(device: Device) -> Iterator[None]:
    """Have this thread's work on the device go to a lane of its own meanwhile.

    Changes nothing on a CPU, or in a thread that is on a lane already.
    """
    if not device.is_cuda or current_lane() is not None:
        yield
        return
    with _LANES:
        fit = [lane for lane in _free if lane.device == device.torch]
        mine = fit[-1] if fit else Lane(device.torch)
        if fit:
            _free.remove(mine)
    outside = torch.cuda.current_stream(device.torch)
    try:
        with torch.cuda.device(device.torch), torch.cuda.stream(mine.stream):
            mine.stream.wait_stream(outside)
            _here.lane = mine
            try:
                yield
            finally:
                _here.lane = None
                with suppress(RuntimeError):  # of a GPU that is lost: what raised before says more
                    outside.wait_stream(mine.stream)
    finally:
        with _LANES:
            _free.append(mine)


def current_lane() -> Lane | None:
    """The lane that this thread is on."""
    return getattr(_here, "lane", None)


def drop(graphs: dict[object, torch.cuda.CUDAGraph]) -> None:
    """Let go of graphs that are not replayed again."""
    with _GRAPHS:
        graphs.clear()


def give_memory_back(device: Device) -> None:
    """Hand torch's unused memory back to the GPU, for whoever needs it next."""
    if device.is_cuda:
        gc.collect()
        with _GRAPHS, suppress(RuntimeError):  # refused after a capture that failed; no loss
            torch.cuda.empty_cache()
