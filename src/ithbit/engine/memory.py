"""The memory that training needs, estimated before it starts; runs that cannot fit are refused.

The estimate is *a lower bound*: the largest tensors that a single run holds at one time. A run that
passes may still run out of memory, which `loop.py` handles; one that is refused would have filled
the whole machine before it failed.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from ithbit.engine.device import Device
from ithbit.engine.steppers.choice import choose_stepper
from ithbit.engine.training_context import TrainingContext
from ithbit.errors import TooLargeError
from ithbit.models.classifier import matrix_numbers, n_parameters
from ithbit.spec import RunSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import BYTES_A_BIT
from ithbit.tasks.structured import structured_bytes

_FLOAT = 4
_ROWS = 7  # weights and two moments, a copy of the three after the last epoch, the gradient


def training_bytes(run: RunSpec, fused: bool = False) -> int:
    """The fewest bytes that one run needs on its device.

    The state, plus the larger of two: a step (two rows per token for each block, and unless it is
    fused a matrix of tokens by tokens per head for each block but the last, and for one more at a
    time), or drawing the longest evaluation set.

    >>> from ithbit.spec import ModelSpec
    >>> training_bytes(RunSpec(ModelSpec("rhi", "gru", n_bits=10**8), seed=0)) > 10**12
    True
    """
    model, protocol = run.model, run.protocol
    # A user's layer is not built just to be sized.
    state = 0 if model.code else _ROWS * _FLOAT * n_parameters(model)
    tokens = n_tokens(model.task, model.n_bits)
    matrices = 0 if fused else model.n_layers * matrix_numbers(model, model.n_bits)
    example = model.n_layers * tokens * 2 * model.d_model + matrices
    step = protocol.batch_size * _FLOAT * example
    evaluation = protocol.held_out_examples * 2 * model.n_bits * BYTES_A_BIT
    return state + max(step, evaluation)


def host_bytes(root: Path = Path("/")) -> int:
    """The free memory of this machine, or this process's limit if that is lower.

    A limit may be set on the process's control group or on any group around it, as for the job of a
    cluster.
    """
    n_available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                n_available = 1024 * int(line.split()[1])
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):  # version 2 of control groups, version 1
                top = root / "sys/fs/cgroup" / kinds
                group, name = top / path[1:], "limit_in_bytes" if kinds else "max"
                for each in (group, *group.parents):
                    if each.is_relative_to(top):
                        with suppress(OSError, ValueError):  # "max" where there is no limit
                            n_available = min(
                                n_available, int((each / f"memory.{name}").read_text())
                            )
    return n_available


def size_text(n_bytes: int) -> str:
    """A number of bytes in readable units.

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
    """Raise `TooLargeError` if this much memory is not available: of all that a GPU has, or of what
    is free on this machine."""
    if where is not None and where.is_cuda:
        has = "but the GPU has"
        available = int(torch.cuda.get_device_properties(where.torch).total_memory)
    else:
        has, available = "but this machine's free memory is", host_bytes()
    if n_bytes > available:
        raise TooLargeError(
            f"{what} needs at least {size_text(n_bytes)} of memory, {has} {size_text(available)}; "
            f"{advice}"
        )


def check_memory(runs: Iterable[RunSpec], context: TrainingContext) -> int:
    """The most memory that any of the runs needs; raises `TooLargeError` if one cannot fit."""
    most, advice = 0, "take a smaller n, width or batch, fewer layers"
    first: dict[tuple[object, object], RunSpec] = {}
    for run in runs:
        first.setdefault((run.model, run.protocol), run)
    for run in first.values():
        fused = context.device.is_cuda and matrix_numbers(run.model, run.model.n_bits) > 0
        fused = fused and choose_stepper(run, context.device, context.kernels)[0] == "kernels"
        needed, what = training_bytes(run, fused), f"training {run.name}"
        need_memory(what, needed, advice, context.device)
        need_memory(what, structured_bytes(run.model.n_bits), advice)
        most = max(most, needed)
    return most
