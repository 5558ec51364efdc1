"""`bench(settings)`: time every configuration with every stepper, the kernels last.

A kernel that crashes may take the GPU's context with it, so everything else is timed first.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ithbit.bench import steppers, work
from ithbit.bench.result import Result, Row
from ithbit.engine.device import Device, choose_device, describe_environment
from ithbit.engine.steppers import StepperName
from ithbit.errors import IthbitError, raise_problems
from ithbit.native.building import refusal
from ithbit.spec import ModelSpec, Protocol
from ithbit.sweep.presets import CONSTRUCTIVE, Variant

# The deepest variants of families that are shallower among the constructive ones.
DEEPEST: tuple[Variant, ...] = (
    ("rhi", "linear-causal", 4),
    ("rhi", "gru", 4),
    ("rhi", "mamba2", 4),
)


@dataclass(frozen=True)
class Settings:
    """What to time, and how long. `steps` and `repeats` default to what suits the device."""

    lengths: tuple[int, ...] = (64,)
    seeds: tuple[int, ...] = (5,)
    device: str = "auto"
    steps: int | None = None
    repeats: int | None = None
    quick: bool = False
    variants: tuple[Variant, ...] = (*CONSTRUCTIVE, *DEEPEST)

    def __post_init__(self) -> None:
        raise_problems(
            "bench",
            [
                f"{name} must be at least 1, got {value}"
                for name, values in (
                    ("n", self.lengths),
                    ("seeds", self.seeds),
                    ("steps", (self.steps,)),
                    ("repeats", (self.repeats,)),
                )
                for value in values
                if value is not None and value < 1
            ],
        )

    def counts(self, device: Device) -> tuple[int, int]:
        """Steps and repeats; by default some seconds of the slowest reference on either device."""
        steps, repeats = (50, 5) if device.is_cuda else (10, 3)
        if self.quick:
            steps, repeats = 3, 1
        return self.steps or steps, self.repeats or repeats


def bench(
    settings: Settings,
    said: Callable[[str], None] = lambda text: None,
    keep: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Time everything; `keep` gets the result so far after every configuration."""
    device = choose_device(settings.device)
    steps, repeats = settings.counts(device)
    protocol = Protocol()
    said(device.reason)
    ceilings = steppers.measure_ceilings(device, repeats, settings.quick)
    said(
        f"ceilings: {ceilings.fp32_flops / 1e12:.3g} TFLOP/s fp32, "
        f"{ceilings.copy_bytes / 1e9:.3g} GB/s copied"
    )
    absent = steppers.no_kernels(device)
    uncompiled = None if device.is_cuda else refusal(ModelSpec("rhi", "gru", 1))
    found = Result(
        environment(device),
        {
            "steps": steps,
            "repeats": repeats,
            "epoch_steps": protocol.epoch_steps,
            "batch": protocol.batch_size,
        },
        ceilings,
        tuple(
            filter(
                None, [absent and f"no kernels: {absent}", uncompiled, _mamba2_reference(device)]
            )
        ),
        (),
    )
    rows: list[Row] = []

    def time(row: Row, stepper: StepperName | Literal["reference"]) -> Row:
        model = ModelSpec(row.task, row.family, row.n, row.layers)
        name = f"{row.name} n={row.n} {row.seeds} seeds"
        try:
            step = steppers.step_seconds(stepper, model, row.seeds, device, steps, repeats)
            epoch = step * protocol.epoch_steps
        except Exception as error:  # a stepper that fails is an entry in the result, not its end
            text = (str(error).strip().splitlines() or [""])[0][:300]
            if not isinstance(error, IthbitError):
                text = f"{type(error).__name__}: {text}" if text else type(error).__name__
            said(f"{name}: {stepper} failed: {text}")
            return replace(row, errors=row.errors | {stepper: text})
        said(f"{name}: {stepper} {epoch:.4g} s per run and epoch")
        return replace(row, seconds=row.seconds | {stepper: epoch})

    for n in settings.lengths:
        for task, family, layers in settings.variants:
            model = ModelSpec(task, family, n, layers)
            blank = Row(
                task,
                family,
                layers,
                n,
                settings.seeds[0],
                (task, family, layers) in CONSTRUCTIVE,
                work.step_flops(model, protocol.batch_size),
                work.step_bytes(model, protocol.batch_size),
                {},
            )
            timed = time(blank, "reference")
            for seeds in settings.seeds:
                row = time(replace(timed, seeds=seeds), "stacked")
                if not (device.is_cuda or uncompiled):
                    row = time(row, "compiled")
                rows.append(row)
            keep(replace(found, rows=tuple(rows)))
    for k, row in enumerate(rows if absent is None else []):
        rows[k] = time(row, "kernels")
        keep(replace(found, rows=tuple(rows)))
    return replace(found, rows=tuple(rows))


def _mamba2_reference(device: Device) -> str | None:
    if device.is_cuda and importlib.util.find_spec("fla") is None:
        return "the reference for mamba2 is Hugging Face's, because fla is not installed"
    return None


def environment(device: Device) -> dict[str, Any]:
    """Machine and versions, including those of the libraries that the reference uses."""
    found: dict[str, Any] = {"commit": None, "triton": None, **describe_environment(device)}
    for package in ("transformers", "flash-linear-attention"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
