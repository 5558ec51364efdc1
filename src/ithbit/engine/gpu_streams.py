"""Streams and graphs for threads that share a GPU.

Each thread trains on a `GpuStream`: its own CUDA stream, and its own memory for the graphs captured
on it. These are kept and reused, because torch hands out streams in rotation from a pool of 32, and
two in use at once must not share one. Nothing here synchronises the whole GPU, so no thread waits
for another's work.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

from ithbit.engine.device import Device
from ithbit.models.layer_source import BUILDING

# torch does not lock the state that its graphs share: one thread at a time captures or drops a
# graph, and no thread seeds the generators, which a capture holds, in the meantime.
_GRAPHS = threading.RLock()
_STREAMS = threading.Lock()
_free: list["GpuStream"] = []
_thread = threading.local()


class CaptureError(Exception):
    """Work that cannot be captured in a graph, with the library's reason."""


class GpuStream:
    """A stream, and the memory of the graphs captured on it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.broken = False  # by a failed capture: torch leaves the stream's memory in it
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What `work` launches, as a graph; other threads may use the GPU meanwhile."""
        with _GRAPHS, BUILDING:
            if self._first is None:
                # Never dropped, so that the memory stays with the stream as graphs come and go.
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
            # When CUDA aborts a capture, torch leaves its allocator and the random number
            # generator in it. Each call below raises if there is nothing to end. The stream's
            # memory cannot be captured into again, so this stream is not reused.
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
def gpu_stream(device: Device) -> Iterator[None]:
    """Within this context, send this thread's work on the device to its own stream.

    Does nothing on a CPU, or in a thread that already has a stream of its own.
    """
    if not device.is_cuda or current_gpu_stream() is not None:
        yield
        return
    with _STREAMS:
        fit = [each for each in _free if each.device == device.torch]
        stream = fit[-1] if fit else GpuStream(device.torch)
        if fit:
            _free.remove(stream)
    outside = torch.cuda.current_stream(device.torch)
    try:
        with torch.cuda.device(device.torch), torch.cuda.stream(stream.stream):
            stream.stream.wait_stream(outside)
            _thread.gpu_stream = stream
            try:
                yield
            finally:
                _thread.gpu_stream = None
                with suppress(RuntimeError):  # the GPU is lost: the earlier error says more
                    outside.wait_stream(stream.stream)
    finally:
        if not stream.broken:
            with _STREAMS:
                _free.append(stream)


def current_gpu_stream() -> GpuStream | None:
    """The stream of its own that this thread is on, or None."""
    return getattr(_thread, "gpu_stream", None)


def no_capture(device: Device) -> AbstractContextManager[object]:
    """Keep other threads from capturing. cuDNN fails in one thread while another captures it:
    the backward passes of all threads share one thread of torch and one cuDNN handle."""
    return _GRAPHS if device.is_cuda else nullcontext()


def drop(graphs: dict[object, torch.cuda.CUDAGraph]) -> None:
    """Release graphs that will not be replayed again."""
    with _GRAPHS:
        graphs.clear()


def give_memory_back(device: Device) -> None:
    """Return torch's unused memory to the GPU, where any stream or process can allocate it."""
    if device.is_cuda:
        gc.collect()
        with _GRAPHS, suppress(RuntimeError):  # raises after a failed capture; no harm
            torch.cuda.empty_cache()
