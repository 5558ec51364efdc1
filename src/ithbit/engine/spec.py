"""What a run is: the protocol (the paper's settings are the defaults), the model and a seed."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ithbit.errors import SpecError, check_numbers, raise_problems, whole
from ithbit.families import group
from ithbit.models.spec import ModelSpec


@dataclass(frozen=True)
class Protocol:
    """Training and evaluation settings; every default is a row of the paper's settings table.

    Where the paper is silent, PyTorch's defaults stand: `plateau_threshold` is that of
    `ReduceLROnPlateau`. `stop_when_solved` is ours: it ends a run at its first perfect epoch, which
    leaves the paper's success criterion as it is but not the epochs or the length-shifted accuracy.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 5.0
    batch_size: int = 256
    epoch_examples: int = 50_000
    held_out_examples: int = 2_000
    plateau_factor: float = 0.5
    plateau_patience: int = 30
    plateau_threshold: float = 1e-4
    min_learning_rate: float = 1e-5
    stop_loss: float = 1e-6
    max_epochs: int = 500
    stop_when_solved: bool = False

    def __post_init__(self) -> None:
        check_numbers("protocol", self)
        problems = [
            f"{name} must be at least 1, got {value}"
            for name, value in (
                ("batch_size", self.batch_size),
                ("epoch_examples", self.epoch_examples),
                ("held_out_examples", self.held_out_examples),
                ("max_epochs", self.max_epochs),
            )
            if value < 1
        ]
        problems += [
            f"{name} must be positive and finite, got {value}"
            for name, value in (
                ("learning_rate", self.learning_rate),
                ("eps", self.eps),
                ("clip_norm", self.clip_norm),
            )
            if not 0 < value < math.inf
        ]
        problems += [
            f"{name} must be 0 or more and finite, got {value}"
            for name, value in (
                ("weight_decay", self.weight_decay),
                ("plateau_patience", self.plateau_patience),
                ("min_learning_rate", self.min_learning_rate),
                ("stop_loss", self.stop_loss),
            )
            if not 0 <= value < math.inf
        ]
        problems += [
            f"{name} must be 0 or more and below 1, got {value}"
            for name, value in (
                ("beta1", self.beta1),
                ("beta2", self.beta2),
                ("plateau_factor", self.plateau_factor),
                ("plateau_threshold", self.plateau_threshold),
            )
            if not 0 <= value < 1
        ]
        raise_problems("protocol", problems)

    @property
    def epoch_steps(self) -> int:
        """Optimiser steps an epoch; the last one has what is left of the examples."""
        return -(-self.epoch_examples // self.batch_size)


@dataclass(frozen=True)
class RunSpec:
    """One training run. Its data, initial weights and result depend on this alone.

    >>> run = RunSpec(ModelSpec("lhi", "softmax-full", n_bits=64, n_layers=2), seed=0)
    >>> run.name
    'lhi_n64_softmax-full_L2d16h2_polynomial_s0'
    """

    model: ModelSpec
    seed: int
    protocol: Protocol = Protocol()

    def __post_init__(self) -> None:
        check_numbers("run", self)
        if not 0 <= self.seed < 1 << 63:
            raise_problems("run", [f"seeds must be 0 or more and below 2^63, got {self.seed}"])

    @property
    def name(self) -> str:
        """For people: what is trained, in the order of the paper's run names."""
        m = self.model
        size = f"L{m.n_layers}d{m.d_model}h{m.n_heads}"
        return f"{m.task}_n{m.n_bits}_{m.family}_{size}_{m.positions}_s{self.seed}"

    @cached_property  # asked for with every epoch
    def run_id(self) -> str:
        """For machines: a hash of every field, so that two specs never share a run folder."""
        return spec_id(self.to_json())

    @property
    def folder(self) -> str:
        """What its folder in a store is called. Runs of one name may differ in the protocol."""
        return f"{self.name}-{self.run_id}"

    @property
    def group(self) -> str:
        return group(self.model.task, self.model.family, self.model.n_layers)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `run_from_json` turns back into an equal spec."""
        return {"model": asdict(self.model), "seed": self.seed, "protocol": asdict(self.protocol)}


def spec_id(data: dict[str, Any]) -> str:
    """The id of the run whose `to_json` this is."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_from_json(data: dict[str, Any]) -> RunSpec:
    """The spec that `to_json` wrote; what is none raises KeyError, TypeError or ValueError."""
    try:
        return RunSpec(ModelSpec(**data["model"]), data["seed"], Protocol(**data["protocol"]))
    except SpecError as error:  # a record's mistake, none of the user's
        raise ValueError(str(error)) from error


def cell(model: ModelSpec, protocol: Protocol, seeds: Iterable[int]) -> list[RunSpec]:
    """The runs of one model: one for each seed.

    >>> [run.seed for run in cell(ModelSpec("rhi", "gru", n_bits=8), Protocol(), range(2))]
    [0, 1]
    """
    try:
        seeds = [whole("a seed", seed) for seed in seeds]
    except TypeError as error:
        raise SpecError(f"seeds must be numbers such as range(5) or [3], got {seeds!r}") from error
    if not seeds:
        raise SpecError("give at least one seed")
    if len(set(seeds)) != len(seeds):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        raise SpecError(f"every seed may be given once, got twice: {', '.join(map(str, twice))}")
    return [RunSpec(model, seed, protocol) for seed in seeds]
