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
from typing import Any

import torch

from ithbit.engine.device import Device
from ithbit.models.layer_source import BUILDING

# torch keeps what its graphs share without a lock: one thread at a time captures or drops one, and
# none seeds the generators, which a capture holds, meanwhile.
_GRAPHS = threading.RLock()
_LANES = threading.Lock()
_free: list["Lane"] = []
_here = threading.local()


class CaptureError(Exception):
    """Work that cannot be captured in a graph; why, in the library's words."""


class Lane:
    """A stream, and the memory of the graphs captured on it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.broken = False  # by a capture that failed: torch keeps its memory in that capture
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What `work` launches, as a graph; other threads may use the GPU meanwhile."""
        with _GRAPHS, BUILDING:
            if self._first is None:
                # Kept for good: the memory stays with the lane, whichever graphs come and go.
                first = torch.cuda.CUDAGraph()
                first.capture_begin(capture_error_mode="thread_local")
                torch.zeros(1, device=self.device)
                first.capture_end()
                self._first = first
            return self._captured(work, self._first.pool())

    def _captured(self, work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
        generator = torch.cuda.default_generators[self.device.index]
        random_state = generator.get_state()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
            graph.capture_end()
        except BaseException as error:
            # Where CUDA has given a capture up, torch leaves its allocator and the generator of
            # random numbers in it. Each of these is refused where there is nothing to end. The
            # lane's memory cannot be captured into again, so nobody is lent this lane any more.
            self.broken = True
            with suppress(RuntimeError):
                graph.capture_end()
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device.index, pool)
            fresh = torch.Generator(self.device)
            fresh.set_state(random_state)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
            if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, Exception):
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise CaptureError(lines[0]) from error
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
        if not mine.broken:
            with _LANES:
                _free.append(mine)


def current_lane() -> Lane | None:
    """The lane that this thread is on."""
    return getattr(_here, "lane", None)


@contextmanager
def no_capture(device: Device) -> Iterator[None]:
    """Hold captures of other threads off. cuDNN fails in one thread while another captures it:
    backward passes of all threads go through one thread of torch's, and one handle of cuDNN's."""
    if not device.is_cuda:
        yield
        return
    with _GRAPHS:
        yield


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
