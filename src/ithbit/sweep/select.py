"""The runs of a sweep: a preset or a user's TOML file, filtered and with other seeds.

A sweep file uses the vocabulary of the command line; every list is crossed with every other:

    task = ["rhi", "lhi"]
    family = ["gru", "mamba2"]   # or your own layer, "layers.py:Mine", beside this file
    layers = [1, 2]
    n = [8, 16]
    seeds = "0-4"
    positions = ["polynomial"]   # optional, as are width, heads and ff
    width = [16]

    [protocol]                   # optional; any field of the protocol, one value or a list
    max_epochs = 100
    learning_rate = [0.001, 0.003]
"""

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ithbit.errors import LayerError, SpecError, raise_problems
from ithbit.families import POSITIONS, family_named
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.sweep.presets import PRESETS, preset

_MAX_SEEDS = 10_000  # in one range: seed 10,000 trains on the stream that seed 0 is tested on
_NEEDED = ("task", "family", "layers", "n", "seeds")
_KEPT = (  # options that select runs, with the fields of `Filter` and of the model's spec
    ("--task", "tasks", "task"),
    ("--family", "families", "family"),
    ("--layers", "layers", "n_layers"),
    ("--n", "n_bits", "n_bits"),
)
_OPTIONAL = {"positions": ["polynomial"], "width": [16], "heads": [2], "ff": [64]}


def parse_seeds(text: str) -> list[int]:
    """The seeds in a text of single numbers and ranges, both ends included.

    >>> parse_seeds("0-4"), parse_seeds("7"), parse_seeds("0,3,8-9")
    ([0, 1, 2, 3, 4], [7], [0, 3, 8, 9])
    """
    seeds: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SpecError(
                f"seeds are numbers from 0 and ranges such as 0-4 or 0,3,8-9, got {text!r}"
            )
        low, high = int(first), int(last or first)
        if not low <= high < low + _MAX_SEEDS:
            raise SpecError(
                f"a range of seeds goes from low to high and holds at most {_MAX_SEEDS}, "
                f"got {piece.strip()!r}"
            )
        seeds += range(low, high + 1)
    return seeds


@dataclass(frozen=True)
class Filter:
    """What to keep of a sweep, and what to replace in it. An empty field keeps all."""

    tasks: Sequence[str] = ()
    families: Sequence[str] = ()
    layers: Sequence[int] = ()
    n_bits: Sequence[int] = ()
    seeds: Sequence[int] = ()  # instead of the sweep's own
    max_epochs: int | None = None
    stop_when_solved: bool = False
    examples: str | None = None

    def apply(self, runs: Sequence[RunSpec], name: str = "the sweep") -> list[RunSpec]:
        """The runs that pass, each once; raises `SpecError` naming the option that leaves none."""
        kept, passed = list(runs), ""
        for option, field, of_model in _KEPT:
            if not (wanted := getattr(self, field)):
                continue
            there = dict.fromkeys(getattr(run.model, of_model) for run in kept)
            if of_model == "family":  # a layer's folder is not part of its name
                wanted = [name.rpartition("/")[2] for name in wanted]
            kept = [run for run in kept if getattr(run.model, of_model) in wanted]
            if not kept:
                given = f" with{passed}" if passed else ""
                raise SpecError(
                    f"no run of {name} passes the filters:{given} it has only {option} "
                    f"{', '.join(map(str, there))}"
                )
            passed += f" {option} {', '.join(map(str, wanted))}"
        if self.seeds:
            kept = [replace(run, seed=seed) for run in kept for seed in self.seeds]
        changes = {
            "max_epochs": self.max_epochs,
            "stop_when_solved": self.stop_when_solved or None,
            "examples": self.examples,
        }
        changed = (replace(run, protocol=run.protocol.changed(**changes)) for run in kept)
        return list(dict.fromkeys(changed))


def sweep_runs(name: str, keep: Filter = Filter()) -> list[RunSpec]:
    """The runs of a preset, or of a TOML file if the name ends in .toml; raises if none is left.

    >>> len(sweep_runs("paper", Filter(families=["gru"], n_bits=[8])))
    25
    """
    if name.endswith(".toml"):
        runs = read_sweep(Path(name))
    elif name in PRESETS:
        runs = preset(name)
    else:
        raise SpecError(
            f"unknown sweep {name!r}; choose one of {', '.join(PRESETS)}, or give a .toml file"
        )
    if not runs:
        raise SpecError(
            f"{name} has no runs: every list needs a value, and rotary positions a softmax family"
        )
    return keep.apply(runs, name)


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a user's TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


def read_sweep(path: Path) -> list[RunSpec]:
    """The runs of a sweep file; one error reports all its problems."""
    data = read_toml(path)
    problems = _key_problems(data)
    lists = {key: _as_list(data.get(key, default)) for key, default in _OPTIONAL.items()}
    lists |= {key: _as_list(data[key]) for key in _NEEDED[:-1] if key in data}
    seeds = [0]
    try:
        given = _as_list(data.get("seeds", "0"))
        seeds = [seed for item in given for seed in parse_seeds(str(item))]
    except SpecError as error:
        problems.append(str(error))
    protocols = [] if any("[protocol]" in p for p in problems) else _protocols(data, problems)
    raise_problems(str(path), problems)
    models = _models(lists, path.parent, problems)
    raise_problems(str(path), problems)
    crossed = itertools.product(models, protocols, seeds)
    return [RunSpec(model, seed, protocol) for model, protocol, seed in crossed]


def _protocols(data: dict[str, Any], problems: list[str]) -> list[Protocol]:
    """Every combination of the values in [protocol]; problems as in `_models`."""
    given = {name: _as_list(value) for name, value in data.get("protocol", {}).items()}
    protocols = []
    for values in itertools.product(*given.values()):
        try:
            protocols.append(Protocol(**dict(zip(given, values, strict=True))))
        except (SpecError, TypeError) as error:
            if str(error) not in problems:
                problems.append(str(error))
    return protocols


def _models(lists: dict[str, list[Any]], beside: Path, problems: list[str]) -> list[ModelSpec]:
    """Every valid combination; what is wrong with the others is added to `problems`, once each."""
    families = []
    for given in lists["family"]:
        try:
            families.append(family_of(str(given), beside))
        except LayerError as error:
            problems.append(str(error))
    lists = lists | {"family": families}
    order = ("task", "family", "n", "layers", "width", "heads", "ff", "positions")
    combinations = itertools.product(*(lists[key] for key in order))
    models = []
    for task, (family, code), n, layers, width, heads, ff, positions in combinations:
        try:
            if positions in POSITIONS and not family_named(family).takes(positions):
                continue  # as in the paper's ablation: rotary only where the family has it
            sizes = (n, layers, width, heads, ff)
            models.append(ModelSpec(task, family, *sizes, positions=positions, code=code))
        except (SpecError, TypeError) as error:
            if str(error) not in problems:
                problems.append(str(error))
    return models


def _key_problems(data: dict[str, Any]) -> list[str]:
    allowed = (*_NEEDED, *_OPTIONAL, "protocol")
    problems = [
        f"unknown key {key!r}; the keys are {', '.join(allowed)}"
        for key in data
        if key not in allowed
    ]
    problems += [f"the key {key!r} is missing" for key in _NEEDED if key not in data]
    protocol = data.get("protocol", {})
    if not isinstance(protocol, dict):
        return [*problems, "protocol must be a table [protocol]"]
    names = [field.name for field in fields(Protocol)]
    problems += [
        f"unknown key {key!r} in [protocol]; the keys are {', '.join(names)}"
        for key in protocol
        if key not in names
    ]
    return problems


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
