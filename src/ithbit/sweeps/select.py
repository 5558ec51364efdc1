"""The runs of a sweep: a preset or a user's TOML file, filtered and with other seeds.

A sweep file uses the vocabulary of the command line; every list is crossed with every other:

    task = ["rhi", "lhi"]
    family = ["gru", "mamba2"]   # or your own layer, "layers.py:Mine", in this folder
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
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ithbit.errors import IthbitError, SpecError, raise_problems
from ithbit.families import POSITIONS, family_named
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.sweeps.presets import preset

Made = TypeVar("Made")

_MAX_SEEDS = 10_000  # in one range: seed 10,000 trains on the stream that seed 0 is tested on
_MOST_RUNS = 1_000_000  # of a sweep; more are a mistake, and fill memory
_DIGITS = 19  # of a seed, which is below 2^63
_NEEDED = ("task", "family", "layers", "n", "seeds")
_OPTIONAL = ("positions", "width", "heads", "ff")
_FIELDS = {  # keys of a sweep file that are fields of the model's spec, in the order of the runs
    "task": "task",
    "family": "family",
    "n": "n_bits",
    "layers": "n_layers",
    "width": "d_model",
    "heads": "n_heads",
    "ff": "d_ff",
    "positions": "positions",
}


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
        if max(len(first), len(last)) > _DIGITS:
            raise SpecError(f"a seed has at most {_DIGITS} digits, got {piece.strip()!r:.60}")
        low, high = int(first), int(last or first)
        if not low <= high < low + _MAX_SEEDS:
            raise SpecError(
                f"a range of seeds goes from low to high and holds at most {_MAX_SEEDS}, "
                f"got {piece.strip()!r}"
            )
        seeds += range(low, high + 1)
        if len(seeds) > _MOST_RUNS:
            raise SpecError(f"at most {_MOST_RUNS:,} seeds can be given at once")
    return seeds


def sweep_runs(name: str) -> list[RunSpec]:
    """The runs of a preset, or of a TOML file if the name ends in .toml; raises if there are none.

    >>> len(sweep_runs("paper"))
    540
    """
    runs = read_sweep(Path(name)) if name.endswith(".toml") else preset(name)
    if not runs:
        raise SpecError(
            f"{name} has no runs: every list needs a value, and rotary positions a softmax family"
        )
    return runs


def selected(
    runs: Sequence[RunSpec],
    name: str,
    keep: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] = (),
    **changes: Any,
) -> list[RunSpec]:
    """The runs of a sweep with one of the values to keep, by key of a sweep file; no values keep
    all. Each once, with these seeds instead of its own and these changes of its protocol.

    Raises `SpecError` naming the option that leaves none.

    >>> len(selected(sweep_runs("paper"), "paper", {"family": ["gru"], "n": [8]}))
    25
    """
    chosen, passed = list(runs), ""
    for key, allowed in keep.items():
        if not allowed:
            continue
        field = _FIELDS[key]
        values = dict.fromkeys(getattr(run.model, field) for run in chosen)
        if key == "family":  # a layer's folder is not part of its name
            allowed = [each.rpartition("/")[2] for each in allowed]
        chosen = [run for run in chosen if getattr(run.model, field) in allowed]
        if not chosen:
            filters = f" with{passed}" if passed else ""
            raise SpecError(
                f"no run of {name} passes the filters:{filters} it has only --{key} "
                f"{', '.join(map(str, values))}"
            )
        passed += f" --{key} {', '.join(map(str, allowed))}"
    if seeds:
        chosen = [replace(run, seed=seed) for run in chosen for seed in seeds]
    changed = (replace(run, protocol=run.protocol.changed(**changes)) for run in chosen)
    return list(dict.fromkeys(changed))


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a user's TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


def read_sweep(path: Path) -> list[RunSpec]:
    """The runs of a sweep file; one error reports all its problems."""
    data = read_toml(path)
    problems = _key_problems(data)
    lists = {key: _as_list(value) for key, value in data.items() if key != "protocol"}
    settings = {} if any("[protocol]" in p for p in problems) else data.get("protocol", {})
    crossed_lists = (*lists.values(), *map(_as_list, settings.values()))
    if math.prod(map(len, crossed_lists)) > _MOST_RUNS:
        problems.append(f"its lists give more than {_MOST_RUNS:,} combinations")
        raise_problems(str(path), problems)
    seeds = _seeds(map(str, lists.get("seeds", [])), problems)
    protocols = _every(Protocol, {key: _as_list(settings[key]) for key in settings}, problems)
    raise_problems(str(path), problems)
    families = {"layer_or_name": map(str, lists["family"]), "folder": [path.parent]}
    lists["family"] = _every(family_of, families, problems)
    by_field = {field: lists[key] for key, field in _FIELDS.items() if key in lists}
    models = _every(_model, by_field, problems)
    raise_problems(str(path), problems)
    if len(models) * len(protocols) * len(seeds) > _MOST_RUNS:
        raise SpecError(f"{path} has more than {_MOST_RUNS:,} runs; give shorter lists")
    crossed = itertools.product(filter(None, models), protocols, seeds)
    return [RunSpec(model, seed, protocol) for model, protocol, seed in crossed]


def _seeds(texts: Iterable[str], problems: list[str]) -> list[int]:
    """The seeds of all texts; what is wrong with some of them is added to `problems`."""
    seeds: list[int] = []
    for text in texts:
        try:
            seeds += parse_seeds(text)
            if len(seeds) > _MOST_RUNS:
                raise SpecError(f"at most {_MOST_RUNS:,} seeds can be given at once")
        except SpecError as error:
            problems.append(str(error))
            break
    return seeds


def _every(
    make: Callable[..., Made], lists: Mapping[str, Iterable[Any]], problems: list[str]
) -> list[Made]:
    """What is made of every combination of the values, which are passed by name; what is wrong with
    some of them is added to `problems`, once each."""
    combinations = []
    for values in itertools.product(*lists.values()):
        try:
            combinations.append(make(**dict(zip(lists, values, strict=True))))
        except (IthbitError, TypeError) as error:
            if str(error) not in problems:
                problems.append(str(error))
    return combinations


def _model(
    family: tuple[str, str], positions: str = "polynomial", **others: Any
) -> ModelSpec | None:
    """One model of a sweep, or None where its family does not take the positions: as in the paper's
    ablation, rotary ones are tried only where they can be."""
    name, code = family
    if positions in POSITIONS and not family_named(name).takes(positions):
        return None
    return ModelSpec(family=name, positions=positions, code=code, **others)


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
