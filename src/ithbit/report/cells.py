"""Which runs a table may count, gathered by cell.

A *cell* is one variant at one length with one encoding; its runs differ in the seed. By default a
table counts runs with the paper's sizes and protocol alone. A run that was ended at its first
perfect epoch (`early stop`) counts for successes and maximum accuracy, which that does not change,
and not for epochs, seconds or length-shifted accuracy, which it does.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS
from ithbit.report.published import LENGTHS, Variant
from ithbit.report.rows import Records
from ithbit.report.statistics import Count

VERIFIED, COUNTEREXAMPLE = "verified on all inputs", "counterexample"
SETTINGS = ("paper", "any")
_KEY = ["task", "family", "n_layers", "n_bits", "positions"]
Cell = tuple[str, str, int, int, str]  # task, family, depth, n, encoding


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (None below two runs) over `runs` runs."""

    mean: float
    sd: float | None
    runs: int


@dataclass(frozen=True)
class Verdicts:
    """Solved runs, and those of them observed right on all inputs, wrong on one, or neither."""

    solved: int
    right: int
    wrong: int
    open: int  # searched without a counterexample, or unsettled

    @property
    def tried(self) -> int:
        return self.right + self.wrong + self.open

    def __add__(self, other: "Verdicts") -> "Verdicts":
        return Verdicts(
            self.solved + other.solved,
            self.right + other.right,
            self.wrong + other.wrong,
            self.open + other.open,
        )


@dataclass(frozen=True)
class Cells:
    """Finished runs by cell. `whole` has only those that ran under the complete protocol."""

    by_cell: Mapping[Cell, pl.DataFrame]
    whole: Mapping[Cell, pl.DataFrame]
    n_left_out: int
    n_unfinished: int
    n_failed: int
    settings: str
    n_verified: int = 0  # counted runs that `ithbit verify` has tried
    n_early: int = 0  # counted runs that are not of `whole`
    n_twice: int = 0  # counted runs whose seed another one of their cell has

    def runs(
        self, variant: Variant, n_bits: int, positions: str = "polynomial", whole: bool = False
    ) -> pl.DataFrame | None:
        """The cell's finished runs, or None if there are none."""
        key = (variant.task, variant.family, variant.n_layers, n_bits, positions)
        return (self.whole if whole else self.by_cell).get(key)

    def count(self, variant: Variant, n_bits: int, positions: str = "polynomial") -> Count:
        """Successes and finished runs of the cell."""
        runs = self.runs(variant, n_bits, positions)
        return (0, 0) if runs is None else (int(runs["solved"].sum()), runs.height)

    def verdicts(self, variant: Variant, n_bits: int, positions: str = "polynomial") -> Verdicts:
        """What `ithbit verify` says of the cell's solved runs."""
        runs = self.runs(variant, n_bits, positions)
        if runs is None:
            return Verdicts(0, 0, 0, 0)
        found = runs.filter(pl.col("solved"))["verification"].to_list()
        right, wrong = found.count(VERIFIED), found.count(COUNTEREXAMPLE)
        return Verdicts(len(found), right, wrong, len(found) - found.count(None) - right - wrong)

    def all_verdicts(self, variants: Iterable[Variant], lengths: Iterable[int]) -> Verdicts:
        """The verdicts of these variants at these lengths, together."""
        cells = itertools.product(variants, lengths)
        return sum((self.verdicts(*cell) for cell in cells), start=Verdicts(0, 0, 0, 0))

    def notes(self) -> list[str]:
        """What is not counted, and what is although it is not the paper's; a sentence each."""
        notes = []
        if self.n_unfinished or self.n_failed:
            notes.append(
                f"not counted: {self.n_unfinished} unfinished and {self.n_failed} failed runs"
            )
        if self.settings != "paper":
            notes.append("runs of any settings are counted: not the paper's protocol throughout")
            if self.n_twice:
                notes.append(f"runs whose seed another run of the cell has too: {self.n_twice}")
        elif self.n_left_out:
            notes.append(
                f"{self.n_left_out} finished runs with other settings than the paper's, or with a "
                "seed that another run has, are left out"
            )
        return notes

    def early_notes(self) -> list[str]:
        """What is to be known where runs that end when first perfect are counted."""
        if not self.n_early:
            return []
        return [
            f"{self.n_early} of the runs were to end when first perfect, which changes neither "
            "successes nor accuracy"
        ]

    def lengths(self) -> list[int]:
        """The lengths n that any cell has."""
        return sorted({key[3] for key in self.by_cell})

    def variants(self, positions: str = "polynomial") -> list[Variant]:
        """The variants that any cell with that encoding has, in the order of tasks and families."""
        found = {key[:3] for key in self.by_cell if key[4] == positions}
        return [
            Variant(task, family, n_layers)
            for task in TASKS
            for family in FAMILIES
            for n_layers in sorted(key[2] for key in found if key[:2] == (task, family))
        ]


class _Parts(Mapping[Cell, pl.DataFrame]):
    """Runs by cell, cut out of one sorted frame when asked for: most cells never are."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows.sort(*_KEY, "seed")
        self._spans: dict[Cell, tuple[int, int]] = {}
        start = 0
        sizes = self._rows.group_by(_KEY, maintain_order=True).len()
        for task, family, n_layers, n_bits, positions, size in sizes.iter_rows():
            self._spans[task, family, n_layers, n_bits, positions] = (start, size)
            start += size

    def __getitem__(self, cell: Cell) -> pl.DataFrame:
        return self._rows.slice(*self._spans[cell])

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


def gather(records: Records, settings: str = "paper") -> Cells:
    """The finished runs of a store by cell.

    With settings `any`, runs of any size and protocol count, and one seed may count more than once.
    Raises `StoreError` if no run has finished, or none with the paper's settings.
    """
    rows = records.rows
    finished = rows.filter(pl.col("status") == "finished")
    n_failed = rows.filter(pl.col("status") == "failed").height
    n_unfinished = rows.height - finished.height - n_failed
    if finished.is_empty():
        raise StoreError(
            f"no run of the store {records.store} has finished ({n_failed} failed, {n_unfinished} "
            f"unfinished, {len(records.set_aside)} set aside); look with `ithbit status`"
        )
    if settings == "paper":
        # "paper" sorts after "early stop": of two runs of one seed the whole one counts.
        counted = (
            finished.filter(pl.col("settings") != "other")
            .sort("settings", descending=True)
            .unique([*_KEY, "seed"], keep="first", maintain_order=True)
        )
        if counted.is_empty():
            raise StoreError(
                f"none of the {finished.height} finished runs of the store {records.store} has "
                "the paper's settings; count runs of any settings with --settings any"
            )
        whole = counted.filter(pl.col("settings") == "paper")
    else:
        counted = finished
        whole = counted.filter(~pl.col("stop_when_solved").fill_null(False))
    return Cells(
        _Parts(counted),
        _Parts(whole),
        finished.height - counted.height,
        n_unfinished,
        n_failed,
        settings,
        counted["verification"].count(),
        counted.height - whole.height,
        counted.height - counted.n_unique([*_KEY, "seed"]),
    )


def shown_lengths(cells: Cells | None) -> list[int]:
    """The lengths of a table or figure: the paper's, and any more that the runs have."""
    return sorted({*LENGTHS, *(cells.lengths() if cells else ())})


def together(frames: Iterable[pl.DataFrame | None]) -> pl.DataFrame | None:
    """The runs of several cells as one frame, or None if there are none."""
    present = [frame for frame in frames if frame is not None]
    return pl.concat(present) if present else None


def summary(runs: pl.DataFrame | None, column: str) -> Summary | None:
    """Mean and sample standard deviation of a column, its nulls left out; None if none is left."""
    values = pl.Series(dtype=pl.Float64) if runs is None else runs[column].drop_nulls()
    if values.is_empty():
        return None
    sd = values.std() if values.len() > 1 else None
    return Summary(float(values.mean()), None if sd is None else float(sd), values.len())  # type: ignore[arg-type]


def median(runs: pl.DataFrame | None, column: str) -> float | None:
    """Median of a column, or None without values."""
    if runs is None or runs[column].drop_nulls().is_empty():
        return None
    return float(runs[column].median())  # type: ignore[arg-type]
