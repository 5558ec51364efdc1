"""Each thread on a GPU has a stream of its own; here with stand-ins, since tests have no GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from ithbit.engine.device import Device
from ithbit.engine.gpu_streams import current_gpu_stream, gpu_stream


def test_a_thread_finds_its_stream_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is captured on the thread's own stream: without one, no run trains on a GPU."""

    def stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr("ithbit.engine.gpu_streams._free", [])
    device = Device(torch.device("cuda", 0), "a stand-in")
    assert current_gpu_stream() is None
    with gpu_stream(device):
        first = current_gpu_stream()
        assert first is not None
        with gpu_stream(device):
            assert current_gpu_stream() is first
    assert current_gpu_stream() is None
    with gpu_stream(device):
        assert current_gpu_stream() is first  # reused
