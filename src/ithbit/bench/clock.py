"""Timing: the device is synchronised before the clock is read, and the median of several
measurements counts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from ithbit.engine.device import Device


@dataclass(frozen=True)
class Ceilings:
    """The best throughput of the machine, *observed* in the run that is compared with it."""

    fp32_flops: float  # operations per second of a large square product in fp32, TF32 off
    copy_bytes: float  # bytes read and written per second by a large copy


def seconds(action: Callable[[], object], device: Device, repeats: int) -> float:
    """Seconds per call, the median of `repeats`; warming up is left to the caller."""
    taken = []
    for _ in range(repeats):
        device.synchronize()
        began = time.perf_counter()
        action()
        device.synchronize()
        taken.append(time.perf_counter() - began)
    return median(taken)


def measure_ceilings(device: Device, repeats: int, quick: bool = False) -> Ceilings:
    """The ceilings of this device; on a CPU with torch's current number of threads."""
    size, n_bytes = (8192, 1 << 30) if device.is_cuda else (2048, 1 << 28)
    if quick:
        size, n_bytes = size // 8, n_bytes >> 6
    a, b = (torch.randn(size, size, device=device.torch) for _ in range(2))
    source = torch.zeros(n_bytes // 4, device=device.torch)
    target = torch.empty_like(source)
    torch.mm(a, b, out=a.clone())
    product = seconds(lambda: torch.mm(a, b), device, repeats)  # TF32 is off: see `choose_device`
    target.copy_(source)
    copy = seconds(lambda: target.copy_(source), device, repeats)
    return Ceilings(2 * size**3 / product, 2 * n_bytes / copy)
