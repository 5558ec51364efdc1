"""The steppers that are timed, each as an action that takes a number of optimiser steps.

The *reference* trains one run on all cores or the GPU. The *stacked models* train as `ithbit train`
does: on a GPU one stack; on a CPU one single-threaded worker per core, each with as many seeds as
fit its caches. *Compiled* code does the same on a CPU. The *kernels* train one stack on a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import mean, median
from typing import Literal

import torch

from ithbit.bench.result import Ceilings
from ithbit.engine.cell import stack_size
from ithbit.engine.device import Device, choose_device, usable_cores
from ithbit.engine.optim import AdamState
from ithbit.engine.stack import Stack, fresh_state
from ithbit.engine.steppers import StepperName
from ithbit.errors import IthbitError
from ithbit.spec import ModelSpec, Protocol, RunSpec

_WARM_UP = 3
_WORKER = "from ithbit.bench.steppers import worker; worker()"


def seconds(action: Callable[[], object], device: Device, repeats: int) -> float:
    """Seconds per call, the median of `repeats`, each until the device has nothing left to do;
    warming up is left to the caller."""
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
    said = [worker.communicate() for worker in workers]
    for process, (_, error) in zip(workers, said, strict=True):
        if process.returncode:
            raise IthbitError(f"a worker failed: {(error.strip().splitlines() or ['no word'])[-1]}")
    return mean(float(out) for out, _ in said) / len(workers)


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
        taken = seconds(lambda: stack.train_epoch([1] * seeds), device, repeats)
        finite = bool(stack.state.values.isfinite().all())
    finally:
        stack.close()
    if not finite:
        raise IthbitError("the weights are not finite after the timed steps")
    return taken / steps / seeds


def no_kernels(device: Device) -> str | None:
    """Why no kernel can be timed here; None if they can."""
    if not device.is_cuda:
        return "the kernels need a CUDA GPU, and this run is on a CPU"
    if importlib.util.find_spec("triton") is None:
        return "the kernels need triton, which is not installed"
    return None
