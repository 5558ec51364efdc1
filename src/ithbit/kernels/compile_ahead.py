"""Compiles the kernels of many models at once, in separate processes, while a sweep starts.

Triton compiles a kernel when it is first launched, a few seconds each and one after the other; a
whole sweep needs hundreds. The processes compile into Triton's cache on disk, where training finds
the kernels; a marker file with them shows that a model's kernels are complete. A kernel that does
not compile leaves no marker; it fails again in training, which reports it.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from textwrap import shorten

import torch
import triton

from ithbit.kernels.step import Step
from ithbit.spec import ModelSpec, Protocol

_MEMORY = 2 << 30  # free bytes of GPU memory per compiling process: half of it is left for training
_FEW = 2  # with at most this many units, starting processes is not worth it
_COMMAND = (sys.executable, "-c", "from ithbit.kernels.compile_ahead import main; main()")


class KernelPrecompiler:
    """Kernels on their way into Triton's cache; a context manager, whose exit stops the compiling.

    If few are missing, nothing is compiled ahead.
    """

    def __init__(
        self,
        models: list[ModelSpec],
        batch_size: int,
        device: torch.device,
        say: Callable[[str], None],
        examples: str = "uniform",
    ) -> None:
        self._batch_size, self._device, self._say = batch_size, device, say
        self._examples = examples
        self._marks = {
            model: _mark(model, batch_size, device, examples) for model in _distinct(models)
        }
        units = _units(list(self._marks))
        self._units = [unit for unit in units if not all(self._marks[m].exists() for m in unit)]
        self._over = len(self._units) <= _FEW
        self._lock, self._stopped = threading.Lock(), False  # once stopped, no process starts
        self._raised: Exception | None = None
        self._processes: list[subprocess.Popen[str]] = []
        self._thread = threading.Thread(target=self._compile_all, daemon=True)

    def __enter__(self) -> "KernelPrecompiler":
        if not self._over:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()
        if self._thread.ident is not None:
            self._thread.join()
        if self._raised and kind is None:
            raise self._raised

    def ready(self, model: ModelSpec) -> bool:
        """Whether a model's kernels are compiled, or will not be compiled here.

        Raises what the `say` callback raised: it wants to stop.
        """
        if self._raised:
            raise self._raised
        return self._over or self._marks[_distinct([model])[0]].exists()

    def _compile_all(self) -> None:
        try:
            free = torch.cuda.mem_get_info(self._device)[0] // _MEMORY
            n_processes = max(1, min(len(self._units), len(os.sched_getaffinity(0)), free))
            self._tell(f"compiling kernels, {n_processes} at a time, once per machine")
            # Kernels on rows serve every length: one length first, or each would compile them.
            longest: dict[object, int] = {}
            for unit in self._units:
                longest[_kin(unit[0])] = max(longest.get(_kin(unit[0]), 0), unit[0].n_bits)
            first = [unit for unit in self._units if unit[0].n_bits == longest[_kin(unit[0])]]
            for some in (first, [unit for unit in self._units if unit not in first]):
                for why in self._compile(some, n_processes):
                    rest = "the rest will be compiled on first use"
                    self._tell(f"compiling ahead failed ({why}): {rest}")
        finally:
            self._over = True

    def _tell(self, text: str) -> None:
        try:
            self._say(text)
        except Exception as error:  # raised later, in the main thread
            self._raised = error

    def _compile(self, units: list[list[ModelSpec]], n_processes: int) -> list[str]:
        """Compile units in processes; returns the last error lines of those that failed, each
        once."""
        parts = [units[k::n_processes] for k in range(min(n_processes, len(units)))]
        with ThreadPoolExecutor(len(parts) or 1) as threads:
            return list(dict.fromkeys(filter(None, threads.map(self._compile_part, parts))))

    def _compile_part(self, units: list[list[ModelSpec]]) -> str | None:
        """Compile units in a process; returns its last error line if it failed."""
        order = {
            "units": [[asdict(model) for model in unit] for unit in units],
            "batch_size": self._batch_size,
            "device": str(self._device),
            "examples": self._examples,
        }
        # Not a pipe, which the process's own children would hold open after it was stopped.
        with tempfile.TemporaryFile("w+") as log:
            with self._lock:
                if self._stopped:
                    return None
                process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stderr=log, text=True)
                self._processes.append(process)
            process.communicate(json.dumps(order))
            if not process.returncode or self._stopped:
                return None
            log.seek(0)
            lines = log.read().strip().splitlines() or [f"status {process.returncode}"]
            return shorten(lines[-1], 200, placeholder="…")


def main() -> None:
    """Compile the models listed on standard input."""
    order = json.load(sys.stdin)
    device, examples = torch.device(order["device"]), order["examples"]
    for unit in order["units"]:
        for model in [ModelSpec(**fields) for fields in unit]:
            _launch_all(model, order["batch_size"], device, examples)
            mark = _mark(model, order["batch_size"], device, examples)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _launch_all(model: ModelSpec, batch_size: int, device: torch.device, examples: str) -> None:
    """Launch once every kernel that training the model needs."""
    step = Step(model, 1, batch_size, device, examples)
    n_parameters = step.plan.n_parameters
    values, mean, square = (torch.zeros(1, n_parameters, device=device) for _ in range(3))
    keys, first, steps = (torch.zeros(1, 1, dtype=torch.int64, device=device) for _ in range(3))
    loss_sum, rate = (torch.zeros(1, 1, dtype=torch.float64, device=device) for _ in range(2))
    step.gradients(values, keys, first, batch_size, loss_sum, steps)
    step.adamw(values, mean, square, steps, rate, Protocol())
    step.logits(values, keys, batch_size)
    torch.cuda.synchronize(device)


def _distinct(models: list[ModelSpec]) -> list[ModelSpec]:
    """The models that differ in their kernels: layers after the third add none."""
    return list(dict.fromkeys(replace(model, n_layers=min(model.n_layers, 3)) for model in models))


def _units(models: list[ModelSpec]) -> list[list[ModelSpec]]:
    """Groups of models that share most of their kernels; those with most to compile first."""
    units: dict[object, list[ModelSpec]] = defaultdict(list)
    for model in models:
        units[_kin(model), model.n_bits].append(model)
    order = sorted(units.values(), key=lambda unit: -sum(model.n_layers for model in unit))
    return [sorted(unit, key=lambda model: -model.n_layers) for unit in order]


def _kin(model: ModelSpec) -> object:
    """A key that models of any length have in common if they share their kernels on rows."""
    sizes = model.d_model, model.n_heads, model.d_ff, model.d_state
    return model.task, model.family.split("-")[0], model.positions, sizes


def _mark(model: ModelSpec, batch_size: int, device: torch.device, examples: str) -> Path:
    """The marker file that shows that a model's kernels are in the cache."""
    machine = [triton.__version__, *torch.cuda.get_device_capability(device)]
    what = json.dumps([_sources(), asdict(model), batch_size, machine, examples], sort_keys=True)
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    return Path(triton.knobs.cache.dir) / f"ithbit-{name}"


@cache
def _sources() -> str:
    """A digest of the kernels' source files."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
