"""What training needs of memory, estimated before anything starts; what cannot fit is refused.

The estimate is *a lower bound*: the largest tensors that a run alone holds at one time. What it
lets pass may still be too much, and `faults.py` has the way on from there; what it refuses would
have taken the whole machine before it failed.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from ithbit.engine.device import Device
from ithbit.engine.outcomes import outcome
from ithbit.engine.steppers import Kernels
from ithbit.engine.steppers.choice import choose_stepper
from ithbit.errors import TooLargeError
from ithbit.models.classifier import n_parameters
from ithbit.models.registry import matrix_numbers
from ithbit.spec import RunSpec
from ithbit.store.records import Result
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import BYTES_A_BIT
from ithbit.tasks.structured import structured_bytes

_FLOAT = 4
_ROWS = 7  # weights and two moments, the three as they were after the last epoch, the gradient


def training_bytes(run: RunSpec, fused: bool = False) -> int:
    """The least that one run needs on its device.

    State; then either a step (two rows a token for each block, and a matrix of tokens by tokens for
    each block but the last, one more at a time, unless the step is fused), or the drawing of the
    longest evaluation set.

    >>> from ithbit.spec import ModelSpec
    >>> training_bytes(RunSpec(ModelSpec("rhi", "gru", n_bits=10**8), seed=0)) > 10**12
    True
    """
    model, protocol = run.model, run.protocol
    # A user's layer is not built to be weighed.
    state = 0 if model.code else _ROWS * _FLOAT * n_parameters(model)
    tokens = n_tokens(model.task, model.n_bits)
    matrices = 0 if fused else model.n_layers * matrix_numbers(model, model.n_bits)
    example = model.n_layers * tokens * 2 * model.d_model + matrices
    step = protocol.batch_size * _FLOAT * example
    evaluation = protocol.held_out_examples * 2 * model.n_bits * BYTES_A_BIT
    return state + max(step, evaluation)


def host_bytes() -> int:
    """The memory of this machine that is not in use, or that this process is allowed."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = 1024 * int(line.split()[1])
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def device_bytes(device: Device) -> int:
    """The memory that a run can have on a device: all of a GPU's, what is free of the machine's."""
    if device.is_cuda:
        return int(torch.cuda.get_device_properties(device.torch).total_memory)
    return host_bytes()


def size_text(n_bytes: int) -> str:
    """A number of bytes for people.

    >>> size_text(1_500), size_text(64 * 10**12)
    ('2 KB', '64 TB')
    """
    size, units = n_bytes / 1e3, ["KB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1e3, units[1:]
    return (
        f"{size:,.0f} {units[0]}" if size >= 9.95 or units[0] == "KB" else f"{size:.1f} {units[0]}"
    )


def need_memory(what: str, n_bytes: int, advice: str, where: Device | None = None) -> None:
    """Raise `TooLargeError` if so much memory is not to be had."""
    there = host_bytes() if where is None else device_bytes(where)
    if n_bytes > there:
        has = "the GPU has" if where and where.is_cuda else "what this machine has free is"
        raise TooLargeError(
            f"{what} needs at least {size_text(n_bytes)} of memory, {has} {size_text(there)}; "
            f"{advice}"
        )


def check_memory(
    runs: Iterable[RunSpec], store: Path, device: Device, kernels: Kernels, retry_failed: bool
) -> int:
    """The most that one of the runs needs; raises `TooLargeError` for one that cannot fit.

    Runs that the store has are read, whatever they took.
    """
    most = 0
    sizes: dict[tuple[object, object], int] = {}
    for run in runs:
        if (run.model, run.protocol) not in sizes:
            sizes[run.model, run.protocol] = _least(run, device, kernels)
        needed, host = sizes[run.model, run.protocol], structured_bytes(run.model.n_bits)
        if needed > device_bytes(device) or host > host_bytes():
            done = outcome(store, run)
            if isinstance(done, Result) or (done and not retry_failed):
                continue
            what, advice = f"training {run.name}", "take a smaller n, width or batch, fewer layers"
            need_memory(what, needed, advice, device)
            need_memory(what, host, advice)
        most = max(most, needed)
    return most


def _least(run: RunSpec, device: Device, kernels: Kernels) -> int:
    fused = device.is_cuda and matrix_numbers(run.model, run.model.n_bits) > 0
    return training_bytes(run, fused and choose_stepper(run, device, kernels)[0] == "kernels")
