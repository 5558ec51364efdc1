"""The six families at the same width, task, length and depth, to compare with a user's layer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS, Task
from ithbit.published import RUNS_PER_CELL, published
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell
from ithbit.store.frame import load_rows

_PAPER_WIDTH = 16


@dataclass(frozen=True)
class Count:
    """Successes out of runs, from the store or as published."""

    solved: int
    runs: int
    origin: str  # ours or published

    def __str__(self) -> str:
        return f"{self.solved}/{self.runs}" + ("p" if self.origin == "published" else "")


@dataclass(frozen=True)
class FamilyRow:
    """One family on one task at one depth: a count for each length, None where there is none."""

    task: Task
    family: str
    n_layers: int
    counts: dict[int, Count | None]


def family_rows(
    store: Path, width: int, lengths: Sequence[int], layers: Sequence[int], protocol: Protocol
) -> list[FamilyRow]:
    """The store's counts of the six families under this protocol; published counts for the rest.

    A run that stopped at its first perfect epoch counts like any other: the criterion is the same.
    Published counts appear only at the paper's width, 16.
    """
    counts = {
        (row.task, family, row.n_layers, n): Count(k, RUNS_PER_CELL, "published")
        for row in published().successes
        for family in row.families
        for n, k in row.successes.items()
        if width == _PAPER_WIDTH
    } | _counts(store, width, protocol)
    return [
        FamilyRow(task, family, depth, {n: counts.get((task, family, depth, n)) for n in lengths})
        for task in TASKS
        for depth in layers
        for family in FAMILIES
    ]


def _counts(store: Path, width: int, protocol: Protocol) -> dict[tuple[str, str, int, int], Count]:
    try:
        rows = load_rows(store).rows
    except StoreError:  # nothing to compare with, which is not an error
        return {}
    settings = {k: v for k, v in asdict(protocol).items() if k != "stop_when_solved"}
    kept = rows.filter(
        pl.col("solved").is_not_null(),  # finished, or diverged
        pl.col("d_model") == width,
        pl.col("positions") == "polynomial",
        *(pl.col(name) == value for name, value in settings.items()),
    ).unique(["task", "family", "n_layers", "n_bits", "seed"])
    counted = kept.group_by("task", "family", "n_layers", "n_bits").agg(
        pl.col("solved").sum(), pl.len().alias("runs")
    )
    return {
        (task, family, depth, n): Count(int(solved), int(runs), "ours")
        for task, family, depth, n, solved, runs in counted.iter_rows()
    }


def family_runs(
    width: int,
    lengths: Sequence[int],
    layers: Sequence[int],
    seeds: Sequence[int],
    protocol: Protocol,
) -> list[RunSpec]:
    """The runs that fill every row."""
    heads = 2 if width % 2 == 0 else 1
    return [
        run
        for task in TASKS
        for n in lengths
        for depth in layers
        for family in FAMILIES
        for run in cell(ModelSpec(task, family, n, depth, width, heads), protocol, seeds)
    ]
