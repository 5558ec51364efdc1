"""Compiling the kernels of many models at once, in processes of their own, before a sweep.

Triton compiles a kernel when it is first launched, a few seconds each and one after the other; a
whole sweep wants hundreds. What a process compiles goes to Triton's cache on disk, where the
training finds it; a mark beside it says that a model's kernels are there. A kernel that does not
compile leaves no mark, and fails again where it is trained, which says so.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten

import torch
import triton

from ithbit.kernels import optimiser
from ithbit.kernels.step import Step
from ithbit.models.spec import ModelSpec

_MEMORY = 1 << 30  # bytes of the GPU that a process takes while it compiles
_FEW = 2  # models up to which a process more is not worth its start


def compile_ahead(
    models: list[ModelSpec], batch_size: int, device: torch.device, say: Callable[[str], None]
) -> None:
    """Fill Triton's cache for training these models on this GPU, where it is not filled yet."""
    units = [unit for unit in _units(models) if not _mark(unit, batch_size, device).exists()]
    if len(units) <= _FEW:
        return
    free = torch.cuda.mem_get_info(device)[0] // _MEMORY
    n_processes = max(1, min(len(units), len(os.sched_getaffinity(0)), free))
    say(f"compiling kernels in {n_processes} processes, once on this machine")
    # The kernels on rows serve every length: one length first, or all would compile them at once.
    longest: dict[object, int] = {}
    for unit in units:
        longest[_kin(unit[0])] = max(longest.get(_kin(unit[0]), 0), unit[0].n_bits)
    first = [unit for unit in units if unit[0].n_bits == longest[_kin(unit[0])]]
    for some in (first, [unit for unit in units if unit not in first]):
        for why in _compile(some, n_processes, batch_size, device):
            say(f"compiling ahead failed ({why}): the rest is compiled when first trained")


def _compile(
    units: list[list[ModelSpec]], n_processes: int, batch_size: int, device: torch.device
) -> list[str]:
    """Compile the kernels of units in processes; what those that failed said last, each once."""
    command = [sys.executable, "-c", "from ithbit.kernels.ahead import main; main()"]
    failed: dict[str, None] = {}
    with ExitStack() as files:
        processes = []
        for k in range(min(n_processes, len(units))):
            order = {
                "units": [[asdict(model) for model in unit] for unit in units[k::n_processes]],
                "batch_size": batch_size,
                "device": str(device),
            }
            # Not a pipe: a process that says much must not wait for a reader.
            said = files.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, text=True)
            assert process.stdin is not None
            process.stdin.write(json.dumps(order))
            process.stdin.close()
            processes.append((process, said))
        for process, said in processes:
            if process.wait():
                said.seek(0)
                lines = said.read().strip().splitlines() or [f"status {process.returncode}"]
                failed[shorten(lines[-1], 200, placeholder="…")] = None
    return list(failed)


def main() -> None:
    """Compile what the standard input names."""
    order = json.load(sys.stdin)
    device = torch.device(order["device"])
    for unit in order["units"]:
        models = [ModelSpec(**fields) for fields in unit]
        for model in models:
            _launch_all(model, order["batch_size"], device)
        mark = _mark(models, order["batch_size"], device)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _launch_all(model: ModelSpec, batch_size: int, device: torch.device) -> None:
    """Launch every kernel that training the model launches, once."""
    step = Step(model, 1, batch_size, device)
    rows = torch.zeros(3, 1, step.plan.n_parameters, device=device)
    keys = torch.zeros(1, dtype=torch.int64, device=device)
    counters = torch.zeros(2, 1, 1, dtype=torch.int64, device=device)
    numbers = torch.zeros(2, 1, 1, dtype=torch.float64, device=device)
    values, mean, square = (row.clone() for row in rows)
    first, steps = (row.clone() for row in counters)
    loss_sum, rate = (row.clone() for row in numbers)
    step.gradients(values, keys, first, batch_size, loss_sum[0], steps)
    optimiser.adamw(
        values, mean, square, step.grads, step.squares, steps, rate,
        beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, clip_norm=5.0,
    )  # fmt: skip
    step.logits(values, keys, batch_size)
    torch.cuda.synchronize(device)


def _units(models: list[ModelSpec]) -> list[list[ModelSpec]]:
    """Models that share most of their kernels, together; of the deep ones the third layer is the
    last that brings a new kernel."""
    units: dict[object, dict[ModelSpec, None]] = defaultdict(dict)
    for model in models:
        fields = asdict(model)
        fields["n_layers"] = min(model.n_layers, 3)
        units[_kin(model), model.n_bits][ModelSpec(**fields)] = None
    order = sorted(units.values(), key=lambda unit: -sum(model.n_layers for model in unit))
    return [sorted(unit, key=lambda model: -model.n_layers) for unit in order]


def _kin(model: ModelSpec) -> object:
    """Models of any length that share their kernels on rows."""
    return model.task, model.family.split("-")[0], model.positions


def _mark(unit: list[ModelSpec], batch_size: int, device: torch.device) -> Path:
    """The file that says that a unit's kernels are in the cache."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    what = [asdict(model) for model in unit]
    machine = [triton.__version__, *torch.cuda.get_device_capability(device)]
    digest.update(json.dumps([what, batch_size, machine], sort_keys=True).encode())
    return Path(triton.knobs.cache.dir) / f"ithbit-{digest.hexdigest()[:16]}"
