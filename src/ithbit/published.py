"""The paper's own numbers as typed data: every cell of every table, read from `published.json`.

The file has each table under the paper's label (`tab:…`). The numbers are *empirical* and rounded
as printed: a mean given to `decimals` places is known to half a unit in its last place.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar

from ithbit.families import Group, Task

LENGTHS = (8, 16, 32, 64)
RUNS_PER_CELL = 5

Settings = tuple[tuple[str, Any], ...]  # fields that differ from the paper's, with their values

R = TypeVar("R")


@dataclass(frozen=True)
class Mean:
    """Mean and sample standard deviation (None below two runs) over `runs` runs; a published one is
    rounded to `decimals`."""

    mean: float
    sd: float | None
    runs: int
    decimals: int = 0

    @property
    def half_unit(self) -> float:
        """How far rounding may have moved the printed number."""
        return 0.5 * 10.0**-self.decimals


@dataclass(frozen=True)
class Variant:
    """One trained architecture at one depth: a row of the 27-row tables.

    `differs` has the settings that differ from the paper's, see `reporting/differences.py`.
    """

    task: Task
    family: str
    n_layers: int
    code: str = ""  # digest of a user's layer
    differs: Settings = ()

    @property
    def layer(self) -> tuple[Any, ...]:
        """What determines how it is drawn and named: family, code and, if any, what differs."""
        return (self.family, self.code, *filter(None, [self.differs]))


@dataclass(frozen=True)
class SuccessRow:
    """Successes out of five at each n. `families` has two entries where a row covers full and
    causal attention together."""

    task: Task
    label: str
    families: tuple[str, ...]
    n_layers: int
    group: Group
    successes: dict[int, int]

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(Variant(self.task, family, self.n_layers) for family in self.families)

    @property
    def counted(self) -> Variant:
        """The variant whose runs this project counts in the row: the first, i.e. the full one."""
        return self.variants[0]


@dataclass(frozen=True)
class PositionsRow:
    """One encoding at one length, over all configurations of the ablation."""

    positions: str
    n_bits: int
    runs: int
    successes: int
    accuracy: float


@dataclass(frozen=True)
class CostRow:
    """Size and training length of one constructive variant at n = 64."""

    successes: int
    runs: int
    n_parameters: int
    median_epochs: int
    seconds_per_epoch: float
    evaluation_seconds: float


@dataclass(frozen=True)
class LengthRow:
    """Accuracy at n/2 and 2n of the runs that succeeded at n."""

    successes: int
    runs: int
    half: Mean
    double: Mean


@dataclass(frozen=True)
class Published:
    """All tables."""

    successes: tuple[SuccessRow, ...]
    accuracy: dict[Variant, dict[int, Mean]]  # maximum held-out accuracy at each n
    positions: tuple[PositionsRow, ...]
    positions_variants: tuple[Variant, ...]
    positions_seeds: tuple[int, ...]
    cost: dict[Variant, CostRow]
    length_by_n: dict[int, LengthRow]  # of all constructive variants together
    length_by_family: dict[Variant, LengthRow]  # at n = 64
    settings: dict[str, str | int | float]
    environment: dict[str, str]


def _variant(row: dict[str, Any]) -> Variant:
    """The variant that a row is about, taken out of it."""
    return Variant(row.pop("task"), row.pop("family"), row.pop("n_layers"))


def _by_n(values: Iterable[R]) -> dict[int, R]:
    return dict(zip(LENGTHS, values, strict=True))


def _length_row(row: dict[str, Any], runs: int) -> LengthRow:
    half, double = (
        Mean(row[f"{side}_mean"], row[f"{side}_sd"], row["successes"], 3)
        for side in ("half", "double")
    )
    return LengthRow(row["successes"], runs, half, double)


@cache
def published() -> Published:
    """The paper's tables.

    >>> row = published().cost[Variant("rhi", "softmax-full", 1)]
    >>> row.n_parameters, row.median_epochs
    (3473, 185)
    """
    text = files("ithbit").joinpath("published.json").read_text(encoding="utf-8")
    data = json.loads(text)
    tables = data["tables"]
    accuracy = tables["tab:supp-max-accuracy"]
    positions = tables["tab:supp-pe"]
    by_n = tables["tab:supp-ood-by-n"]
    accuracy_mean = partial(Mean, runs=accuracy["runs_per_cell"], decimals=accuracy["decimals"])
    return Published(
        successes=tuple(
            SuccessRow(
                families=tuple(row.pop("families")),
                successes=_by_n(row.pop("successes")),
                **row,
            )
            for row in tables["tab:expected-outcomes-and-results"]["rows"]
        ),
        accuracy={
            _variant(row): _by_n(map(accuracy_mean, row["mean"], row["sd"]))
            for row in accuracy["rows"]
        },
        positions=tuple(PositionsRow(**row) for row in positions["rows"]),
        positions_variants=tuple(map(_variant, positions["configurations"])),
        positions_seeds=tuple(positions["seeds"]),
        cost={_variant(row): CostRow(**row) for row in tables["tab:supp-cost-n64"]["rows"]},
        length_by_n={row["n_bits"]: _length_row(row, by_n["runs"]) for row in by_n["rows"]},
        length_by_family={
            _variant(row): _length_row(row, row["runs"])
            for row in tables["tab:supp-ood-n64-family"]["rows"]
        },
        settings={
            row["setting"]: row["value"] for row in tables["tab:supp-experimental-setup"]["rows"]
        },
        environment=data["environment"],
    )
