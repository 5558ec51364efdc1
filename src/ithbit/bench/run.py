"""`bench`: time every configuration with every stepper, the kernels last.

The *reference* trains one run on all cores or the GPU. The *stacked models* train as `ithbit train`
does: on a GPU one stack; on a CPU one single-threaded worker per core, each with as many seeds as
fit its caches. *Compiled* code does the same on a CPU. The *kernels* train one stack on a GPU. A
kernel that crashes may take the GPU's context with it, so everything else is timed first.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import mean, median
from typing import Any, Literal

import torch

from ithbit.bench import work
from ithbit.bench.result import BenchResult, BenchRow, Ceilings
from ithbit.engine.cell import stack_size
from ithbit.engine.device import Device, choose_device, describe_environment, usable_cores
from ithbit.engine.optim import AdamState
from ithbit.engine.stack import Stack, fresh_state
from ithbit.engine.steppers import StepperName
from ithbit.engine.steppers.choice import refusal
from ithbit.errors import IthbitError, raise_problems
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.sweeps.presets import CONSTRUCTIVE, Variant

_WARM_UP = 3
_WORKER = "from ithbit.bench.run import worker; worker()"
# The constructive variants, and the deepest of families that are shallower among those.
TIMED: tuple[Variant, ...] = (
    *CONSTRUCTIVE,
    ("rhi", "linear-causal", 4),
    ("rhi", "gru", 4),
    ("rhi", "mamba2", 4),
)


def bench(
    lengths: Sequence[int] = (64,),
    seeds: Sequence[int] = (5,),
    device: str = "auto",
    steps: int | None = None,
    repeats: int | None = None,
    quick: bool = False,
    variants: Sequence[Variant] = TIMED,
    report: Callable[[str], None] = lambda text: None,
    keep: Callable[[BenchResult], None] = lambda result: None,
) -> BenchResult:
    """Time everything; `keep` gets the result so far after every configuration. By default `steps`
    and `repeats` are some seconds of the slowest reference on either device."""
    numbers = {"n": lengths, "seeds": seeds, "steps": (steps,), "repeats": (repeats,)}
    problems = [
        f"{name} must be at least 1, got {value}"
        for name, values in numbers.items()
        for value in values
        if value is not None and value < 1
    ]
    raise_problems("bench", problems)
    on = choose_device(device)
    usual = (3, 1) if quick else (50, 5) if on.is_cuda else (10, 3)
    counts = {"steps": steps or usual[0], "repeats": repeats or usual[1]}
    protocol, batch = Protocol(), Protocol().batch_size
    report(on.reason)
    ceilings = measure_ceilings(on, counts["repeats"], quick)
    report(
        f"ceilings: {ceilings.fp32_flops / 1e12:.3g} TFLOP/s fp32, "
        f"{ceilings.copy_bytes / 1e9:.3g} GB/s copied"
    )
    tiny = ModelSpec("rhi", "gru", 1)
    absent: str | None = "the kernels need a CUDA GPU, and this run is on a CPU"
    uncompiled, no_fla = building.refusal(tiny), None
    if on.is_cuda:
        absent, uncompiled = refusal(tiny, protocol, on), None
        if importlib.util.find_spec("fla") is None:
            no_fla = "the reference for mamba2 is Hugging Face's, because fla is not installed"
    remarks = (absent and f"no kernels: {absent}", uncompiled, no_fla)
    bench_result = BenchResult(
        environment(on),
        counts | {"epoch_steps": protocol.epoch_steps, "batch": batch},
        ceilings,
        tuple(remark for remark in remarks if remark),
        (),
    )
    rows: list[BenchRow] = []

    def timed(row: BenchRow, stepper: StepperName | Literal["reference"]) -> BenchRow:
        model = ModelSpec(row.task, row.family, row.n, row.layers)
        name = f"{row.name} n={row.n} {row.seeds} seeds"
        try:
            step = step_seconds(stepper, model, row.seeds, on, **counts)
            epoch = step * protocol.epoch_steps
        except Exception as error:  # a stepper that fails is an entry in the result, not its end
            text = (str(error).strip().splitlines() or [""])[0][:300]
            if not isinstance(error, IthbitError):
                text = f"{type(error).__name__}: {text}" if text else type(error).__name__
            report(f"{name}: {stepper} failed: {text}")
            return replace(row, errors=row.errors | {stepper: text})
        report(f"{name}: {stepper} {epoch:.4g} s per run and epoch")
        return replace(row, seconds=row.seconds | {stepper: epoch})

    for n in lengths:
        for task, family, layers in variants:
            model = ModelSpec(task, family, n, layers)
            constructive = (task, family, layers) in CONSTRUCTIVE
            needed = (work.step_flops(model, batch), work.step_bytes(model, batch))
            first = BenchRow(task, family, layers, n, seeds[0], constructive, *needed, {})
            first = timed(first, "reference")
            for n_seeds in seeds:
                row = timed(replace(first, seeds=n_seeds), "stacked")
                if not (on.is_cuda or uncompiled):
                    row = timed(row, "compiled")
                rows.append(row)
            keep(replace(bench_result, rows=tuple(rows)))
    for k, row in enumerate(rows if absent is None else []):
        rows[k] = timed(row, "kernels")
        keep(replace(bench_result, rows=tuple(rows)))
    return replace(bench_result, rows=tuple(rows))


def environment(device: Device) -> dict[str, Any]:
    """Machine and versions, including those of the libraries that the reference uses."""
    facts: dict[str, Any] = {"commit": None, "triton": None, **describe_environment(device)}
    for package in ("transformers", "flash-linear-attention"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    return facts


def seconds(action: Callable[[], object], device: Device, repeats: int) -> float:
    """Seconds per call, the median of `repeats`, each until the device has nothing left to do;
    warming up is left to the caller."""
    durations = []
    for _ in range(repeats):
        device.synchronize()
        began = time.perf_counter()
        action()
        device.synchronize()
        durations.append(time.perf_counter() - began)
    return median(durations)


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


def step_seconds(
    stepper: StepperName | Literal["reference"],
    model: ModelSpec,
    seeds: int,
    device: Device,
    steps: int,
    repeats: int,
) -> float:
    """Seconds per step and run with one stepper."""
    if stepper == "reference":
        return _reference_step(model, device, steps, repeats)
    if stepper == "kernels":
        from ithbit.kernels.step import refusal

        if why := refusal(model):
            raise IthbitError(why)
    if device.is_cuda:
        return _stack_step(stepper, model, seeds, device, steps, repeats)
    order = {"model": asdict(model), "seeds": seeds, "steps": steps, "repeats": repeats}
    order["stepper"] = stepper
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, json.dumps(order)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(usable_cores())
    ]
    outputs = [worker.communicate() for worker in workers]
    for process, (_, error) in zip(workers, outputs, strict=True):
        if process.returncode:
            raise IthbitError(f"a worker failed: {(error.strip().splitlines() or ['no word'])[-1]}")
    return mean(float(out) for out, _ in outputs) / len(workers)


def _reference_step(model: ModelSpec, device: Device, steps: int, repeats: int) -> float:
    """Seconds per step of the reference, which uses the libraries' own modules."""
    from ithbit.reference.train import stepper

    step = stepper(model, Protocol(), device.torch)
    for _ in range(_WARM_UP):
        step()

    def action() -> None:
        for _ in range(steps):
            step()

    return seconds(action, device, repeats) / steps


def worker() -> None:
    """One process of `step_seconds` on a CPU: prints the seconds per step and run."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    device, model = choose_device("cpu"), ModelSpec(**order["model"])
    seeds = min(order["seeds"], stack_size(RunSpec(model, 0), device))
    print(_stack_step(order["stepper"], model, seeds, device, order["steps"], order["repeats"]))


def _stack_step(
    stepper: StepperName, model: ModelSpec, seeds: int, device: Device, steps: int, repeats: int
) -> float:
    protocol = Protocol(epoch_examples=steps * Protocol().batch_size)
    runs = [RunSpec(model, seed, protocol) for seed in range(seeds)]
    stack = Stack(runs, AdamState.join([fresh_state(run) for run in runs]), device, stepper)
    try:
        stack.train_epoch([0] * seeds)  # captures the steps on a GPU
        duration = seconds(lambda: stack.train_epoch([1] * seeds), device, repeats)
        finite = bool(stack.state.values.isfinite().all())
    finally:
        stack.close()
    if not finite:
        raise IthbitError("the weights are not finite after the timed steps")
    return duration / steps / seeds
