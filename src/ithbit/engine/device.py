"""Where training runs, and why; what the record of a run says about the machine."""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ithbit import __version__
from ithbit.engine.options import device_problem
from ithbit.errors import DeviceError, IthbitError


@dataclass(frozen=True)
class Device:
    """A device and the reason for choosing it, reported once at the start."""

    torch: torch.device
    reason: str

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def synchronize(self) -> None:
        """Wait for the device, before reading a clock."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)

    def is_lost(self) -> bool:
        """Whether the device no longer responds; to be checked after something failed on it.

        A sticky CUDA error (a memory fault, a GPU that fell off its bus) is returned by every later
        call of the process.
        """
        if self.is_cuda:
            try:
                torch.cuda.current_stream(self.torch).synchronize()
            except RuntimeError:
                return True
        return False

    @contextmanager
    def raise_if_device_lost(self) -> Iterator[None]:
        """Turn any failure of a lost device into a `DeviceError`."""
        try:
            yield
        except Exception as error:
            if isinstance(error, IthbitError) or not self.is_lost():
                raise
            # CUDA's own message; advice for programmers follows in the next lines.
            message = (str(error).splitlines() or [type(error).__name__])[0]
            raise DeviceError(
                f"the GPU failed: {message}; finished runs and checkpoints are kept: "
                "the same command resumes"
            ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread within this context, then restore the user's number.

    Several threads sum in a different order, so a run would depend on their number; and the models
    are too small to gain from more: other processes or threads use the other cores. Python threads
    started within inherit the setting, and may enter this context themselves.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def choose_device(name: str = "auto") -> Device:
    """The device to train on: a GPU if there is one, unless the name says otherwise; cuda:1 is
    the second GPU.

    >>> choose_device("tpu")
    Traceback (most recent call last):
    ...
    ithbit.errors.DeviceError: unknown device 'tpu'; choose one of auto, cpu, cuda
    """
    if problem := device_problem(name):
        raise problem
    kind, _, index = name.partition(":")
    has_cuda = torch.cuda.is_available()
    if kind == "cuda" and not has_cuda:
        raise DeviceError(
            f"device {name!r} was asked for, but torch sees no CUDA GPU; use cpu or auto"
        )
    if index and int(index) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise DeviceError(f"device {name!r} was asked for, but the last GPU here is cuda:{last}")
    if has_cuda and kind != "cpu":
        # The protocol is fp32: no TF32 in products, whatever the user's defaults are. cuDNN, which
        # users' layers may use, has its own switch.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch_device = torch.device("cuda", int(index) if index else torch.cuda.current_device())
        return Device(torch_device, f"GPU: {torch.cuda.get_device_name(torch_device)}")
    keep_freed_memory()
    why = "as asked" if name == "cpu" else "no CUDA GPU found"
    return Device(torch.device("cpu"), f"CPU, one thread per process ({why})")


def usable_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def keep_freed_memory() -> None:
    """Make glibc reuse large freed blocks instead of returning each to the kernel.

    A step allocates and frees the same few dozen megabyte-sized tensors; by default each is mapped
    and zeroed again every time, which costs a large part of a step on a CPU. Other C libraries are
    left alone.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        # M_MMAP_THRESHOLD: blocks below 32 MiB come from the heap. Older versions refuse a higher
        # threshold, and larger blocks, which only large stacks have, would leave holes in the heap.
        mallopt(-3, 1 << 25)
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD: the heap is never trimmed


def describe_environment(device: Device, stepper: str | None = None) -> dict[str, str | int]:
    """Versions and machine, for the record of a run; also the commit, if run from a checkout, and
    what took its steps, under the name that records have for it since 0.1."""
    environment = _code_versions() | {
        "ithbit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "device": device.torch.type,
        "device_name": torch.cuda.get_device_name(device.torch) if device.is_cuda else _cpu_name(),
    }
    return environment if stepper is None else environment | {"path": stepper}


@cache
def _code_versions() -> dict[str, str | int]:
    """The commit at the first call, and the version of the kernels' compiler."""
    versions: dict[str, str | int] = {}
    if commit := _commit():
        versions["commit"] = commit
    with suppress(PackageNotFoundError):
        versions["triton"] = version("triton")
    return versions


def _commit() -> str | None:
    """The checkout's commit, with a + if the sources differ from it."""
    package = Path(__file__).resolve().parents[1]
    root = package.parent.parent
    if not (root / ".git").exists() or package.parent.name != "src":
        return None
    try:
        commit, changes = [
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "src"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")


@cache
def _cpu_name() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
