"""What a run is: the model, the protocol (the paper's settings are the defaults) and a seed.

Frozen specifications, checked on construction, that every builder, run and record refers to.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ithbit.errors import SpecError, as_int, check_numbers, normalize, raise_problems
from ithbit.families import FAMILIES, POSITIONS, Family, Task, family_named, group, task_named

_SINCE_0_2 = {"since": "0.2"}
_MOST = 10**8  # limit of every size but n: the weights of a block can still be counted
CODE_DIGITS = 12  # hexadecimal digits of the digest that identifies a user's layer


def since_0_2(default: Any) -> Any:
    """A field that 0.1 did not have: at its default it is left out of records and run ids."""
    return field(default=default, metadata=_SINCE_0_2)


def plain(spec: Any) -> dict[str, Any]:
    """A frozen spec as plain data, without fields added since 0.1 that are at their defaults."""
    data = asdict(spec)
    for item in fields(spec):
        if item.metadata == _SINCE_0_2 and data[item.name] == item.default:
            del data[item.name]
    return data


_SIZES = {  # of a model, as messages call them
    "n_bits": "n",
    "n_layers": "layers",
    "d_model": "width",
    "n_heads": "heads",
    "d_ff": "feed-forward width",
    "d_state": "state",
}
EXAMPLES = ("uniform", "mixed", "blocks")  # what training draws, see `tasks/sampling.py`


@dataclass(frozen=True)
class ModelSpec:
    """One trained architecture; the defaults are the paper's. Checked on construction.

    A GRU ignores `n_heads` and `d_ff`: it has neither heads nor a feed-forward part. Mamba2 has no
    feed-forward part; its heads have size d_model / n_heads, and it keeps `d_state` numbers per
    channel. `n_bits` is the training length, by which polynomial positions are scaled. A user's
    layer is a family whose name has a colon; its `code` is the digest of its file. It chooses its
    own heads, feed-forward width and state, so those fields stay at their defaults.

    >>> ModelSpec("rhi", "gru", n_bits=0, positions="rotary")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: model: n must be at least 1, got 0; rotary positions need a softmax \
family, got family 'gru'; use positions 'polynomial'
    """

    task: Task
    family: str
    n_bits: int
    n_layers: int = 1
    d_model: int = 16
    n_heads: int = 2
    d_ff: int = 64
    d_state: int = 16
    positions: str = "polynomial"
    code: str = since_0_2("")  # digest of a user's layer; the six families have none

    def __post_init__(self) -> None:
        texts = {name: getattr(self, name) for name in ("task", "family", "positions")}
        raise_problems(
            "model",
            [f"{k} must be text, got {v!r}" for k, v in texts.items() if not isinstance(v, str)],
        )
        if ":" in self.family:
            names = ("n_heads", "d_ff", "d_state")  # fields of the other families
            normalize(self, **{name: getattr(ModelSpec, name) for name in names})
        check_numbers("model", self, _SIZES)
        problems: list[str] = []
        family = Family(str(self.family), has_heads=True, positions=POSITIONS)  # if it is unknown
        try:
            task_named(self.task)
        except SpecError as error:
            problems.append(str(error))
        try:
            family = family_named(self.family)
        except SpecError as error:
            problems.append(str(error))
        sizes = {label: getattr(self, name) for name, label in _SIZES.items()}
        problems += [
            f"{name} must be at least 1, got {size}" for name, size in sizes.items() if size < 1
        ]
        problems += [
            f"{name} must be at most {_MOST:,}, got {size}"
            for name, size in sizes.items()
            if size > _MOST and name != "n"
        ]
        heads_count = family.has_heads and self.n_heads >= 1
        if heads_count and self.d_model % self.n_heads:
            problems.append(
                f"heads must divide the width, got {self.n_heads} heads at width {self.d_model}"
            )
        if self.positions not in POSITIONS:
            problems.append(
                f"unknown positions {self.positions!r}; choose one of {', '.join(POSITIONS)}"
            )
        elif not family.takes(self.positions):
            kinds = dict.fromkeys(f.kind for f in FAMILIES.values() if f.takes(self.positions))
            problems.append(
                f"{self.positions} positions need a {' or '.join(kinds)} family, got family "
                f"{self.family!r}; use positions 'polynomial'"
            )
        elif self.positions == "rotary" and heads_count and self.d_head % 2:
            problems.append(
                "rotary positions turn pairs of numbers and need an even head size, got "
                f"{self.d_head}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            problems.append(f"sinusoidal positions need an even width, got {self.d_model}")
        if family.own and not re.fullmatch(rf"[0-9a-f]{{{CODE_DIGITS}}}", str(self.code)):
            problems.append(
                f"a user's layer needs its code, {CODE_DIGITS} hexadecimal digits, got "
                f"{self.code!r}; `ithbit.train` and the command line find it"
            )
        elif self.code and not family.own:
            problems.append(f"only a user's layer has a code, got {self.code!r}")
        raise_problems("model", problems)

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


# Allowed values of a protocol's numbers: in words, for which fields, and the check itself.
_RANGES: tuple[tuple[str, tuple[str, ...], Callable[[float], bool]], ...] = (
    (
        "at least 1",
        ("batch_size", "epoch_examples", "held_out_examples", "max_epochs"),
        lambda value: value >= 1,
    ),
    (
        "positive and finite",
        ("learning_rate", "eps", "clip_norm"),
        lambda value: 0 < value < math.inf,
    ),
    (
        "0 or more and finite",
        ("weight_decay", "plateau_patience", "min_learning_rate", "stop_loss", "consistency"),
        lambda value: 0 <= value < math.inf,
    ),
    (
        "0 or more and below 1",
        ("beta1", "beta2", "plateau_factor", "plateau_threshold"),
        lambda value: 0 <= value < 1,
    ),
)


@dataclass(frozen=True)
class Protocol:
    """Training and evaluation settings; every default is a row of the paper's settings table.

    Where the paper does not say, PyTorch's defaults apply: `plateau_threshold` is that of
    `ReduceLROnPlateau`. `stop_when_solved` is our addition: it ends a run at its first perfect
    epoch, which does not change whether the run succeeds by the paper's criterion, but does change
    the epochs and the length-shifted accuracy. `examples`, what training draws, is our addition
    too; the held-out sets are always uniform. So is `consistency`, the weight of a term by which
    layers learn to ignore bits that do not matter (`engine/consistency.py`): 0 is none.

    >>> Protocol(max_epochs=10).epoch_steps
    196
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
    examples: str = since_0_2("uniform")
    consistency: float = since_0_2(0.0)

    def __post_init__(self) -> None:
        check_numbers("protocol", self)
        problems = [
            f"{name} must be {what}, got {value}"
            for what, names, holds in _RANGES
            for name in names
            if not holds(value := getattr(self, name))
        ]
        normalize(self, consistency=float(self.consistency))  # one id for 1 and 1.0
        if self.examples not in EXAMPLES:
            problems.append(
                f"unknown examples {self.examples!r}; choose one of {', '.join(EXAMPLES)}"
            )
        if self.consistency > 0 and self.batch_size < 2:
            problems.append(
                f"consistency needs batches of at least 2 examples, to pair them, got "
                f"{self.batch_size}"
            )
        if self.consistency > 0 and self.stop_when_solved:
            problems.append(
                "consistency is tightened after a run is solved, and stop_when_solved would end it "
                "there; leave one of them out"
            )
        raise_problems("protocol", problems)

    def changed(self, **settings: Any) -> "Protocol":
        """A copy with the given settings; None leaves a setting unchanged. With consistency,
        examples are blocks unless something else is given.

        >>> Protocol().changed(consistency=1.0).examples
        'blocks'
        """
        settings = {name: value for name, value in settings.items() if value is not None}
        if settings.get("consistency") and self.examples == "uniform":
            settings = {"examples": "blocks"} | settings
        return replace(self, **settings)

    @property
    def epoch_steps(self) -> int:
        """Optimiser steps per epoch; the last one takes the remaining examples."""
        return -(-self.epoch_examples // self.batch_size)


@dataclass(frozen=True)
class RunSpec:
    """One training run. Its data, initial weights and result depend on this alone.

    >>> run = RunSpec(ModelSpec("lhi", "softmax-full", n_bits=64, n_layers=2), seed=0)
    >>> run.name
    'lhi_n64_softmax-full_L2d16h2_polynomial_s0'
    >>> RunSpec(ModelSpec("rhi", "layers.py:Mine", 16, code="0123456789ab"), seed=0).name
    'rhi_n16_layers.py-Mine_L1d16_polynomial_s0'
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
        """For people: the configuration and seed, in the order of the paper's run names."""
        m = self.model
        size = f"L{m.n_layers}d{m.d_model}" + ("" if m.code else f"h{m.n_heads}")
        # A user's file may have any name, and folder names are limited in length.
        family = re.sub(r"[^A-Za-z0-9._-]", "-", m.family)[-60:] if m.code else m.family
        return f"{m.task}_n{m.n_bits}_{family}_{size}_{m.positions}_s{self.seed}"

    @cached_property  # asked for with every epoch
    def run_id(self) -> str:
        """For machines: a hash of every field, so that two specs never share a run folder."""
        return spec_id(self.to_json())

    @property
    def folder(self) -> str:
        """The name of its folder in a store. Runs of one name may differ in the protocol."""
        return f"{self.name}-{self.run_id}"

    @property
    def group(self) -> str:
        return group(self.model.task, self.model.family, self.model.n_layers)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `run_from_json` turns back into an equal spec."""
        return {"model": plain(self.model), "seed": self.seed, "protocol": plain(self.protocol)}


def spec_id(data: dict[str, Any]) -> str:
    """The id of the run whose `to_json` gave this data."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_from_json(data: dict[str, Any]) -> RunSpec:
    """The spec that `to_json` wrote; raise KeyError, TypeError or ValueError for other data."""
    try:
        return RunSpec(ModelSpec(**data["model"]), data["seed"], Protocol(**data["protocol"]))
    except SpecError as error:  # an invalid record, not a user's mistake
        raise ValueError(str(error)) from error


def cell(model: ModelSpec, protocol: Protocol, seeds: Iterable[int]) -> list[RunSpec]:
    """The runs of one model: one for each seed.

    >>> [run.seed for run in cell(ModelSpec("rhi", "gru", n_bits=8), Protocol(), range(2))]
    [0, 1]
    """
    seeds = [as_int("a seed", seed) for seed in seeds]
    if not seeds:
        raise SpecError("give at least one seed")
    if len(set(seeds)) != len(seeds):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        raise SpecError(f"give every seed only once; repeated: {', '.join(map(str, twice))}")
    return [RunSpec(model, seed, protocol) for seed in seeds]
