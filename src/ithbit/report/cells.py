"""Which runs a table may count, gathered by cell.

Counted are runs that say something of learning: those that finished, and those that diverged, with
the accuracy that they had reached. One that is unfinished or could not be run says nothing.

A *cell* is one variant at one length with one encoding; its runs differ in the seed, and each seed
counts once. Runs of other settings than the paper's are variants of their own (`differences.py`),
and can be left out. A run that was ended at its first perfect epoch (`early stop`) counts for
successes and maximum accuracy, which that does not change, and not for epochs, seconds or
length-shifted accuracy, which it does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS, family_named
from ithbit.published import LENGTHS, Variant, published
from ithbit.report.differences import natural, told_apart, with_differences
from ithbit.report.standing import Standing, standing, words
from ithbit.store.frame import COLUMNS, Records

SETTINGS = ("any", "paper")
SHORT = 6  # digits of a code's digest that are shown
Layer = tuple[str, ...]  # a family, the digest of its code if it is a user's, and what differs
_KEY = ["task", "family", "n_layers", "code", "differs", "n_bits", "encoding"]


class Cell(NamedTuple):
    """One variant at one length with one encoding: polynomial, unless the runs are of the paper's
    ablation of encodings."""

    variant: Variant
    n_bits: int
    positions: str = "polynomial"


class RunsByCell(Mapping[Cell, pl.DataFrame]):
    """Runs by cell, cut out of one sorted frame when asked for: most cells never are."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows.sort(*_KEY, "seed")
        self._spans: dict[Cell, tuple[int, int]] = {}
        start = 0
        sizes = self._rows.group_by(_KEY, maintain_order=True).len()
        for *variant, n_bits, positions, size in sizes.iter_rows():
            self._spans[Cell(Variant(*variant), n_bits, positions)] = (start, size)
            start += size

    def __getitem__(self, cell: Cell) -> pl.DataFrame:
        return self._rows.slice(*self._spans[cell])

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def of(self, cells: Iterable[Cell]) -> pl.DataFrame:
        """The runs of these cells as one frame, empty if there are none."""
        found = [self[cell] for cell in cells if cell in self._spans]
        return pl.concat(found) if found else self._rows.clear()


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (None below two runs) over `runs` runs."""

    mean: float
    sd: float | None
    runs: int


def _no_runs() -> RunsByCell:
    added = dict.fromkeys(("differs", "encoding", "standing"), pl.String)
    return RunsByCell(pl.DataFrame(schema=COLUMNS | added))


@dataclass(frozen=True)
class Cells:
    """Runs that count, by cell: finished, or diverged.

    Without arguments it holds no run: a table or figure of it has the published numbers alone.
    """

    by_cell: RunsByCell = field(default_factory=_no_runs)
    n_left_out: int = 0
    n_unfinished: int = 0
    n_failed: int = 0
    settings: str = "any"
    n_early: int = 0  # counted runs that are not `whole`
    n_diverged: int = 0  # counted runs that did not finish

    def runs(self, variant: Variant, n_bits: int, positions: str = "polynomial") -> pl.DataFrame:
        """The cell's runs."""
        return self.by_cell.of([Cell(variant, n_bits, positions)])

    def standing(
        self, variants: Iterable[Variant], n_bits: int, positions: str = "polynomial"
    ) -> Standing:
        """How the runs of these variants at one length stand, together."""
        return standing(self.by_cell.of(Cell(variant, n_bits, positions) for variant in variants))

    def ended_notes(self) -> list[str]:
        """Which runs are not counted for want of an end, and which are without a good one."""
        notes = []
        if self.n_unfinished or self.n_failed:
            notes.append(
                f"not counted: {self.n_unfinished} unfinished and {self.n_failed} failed runs, "
                "which say nothing of learning"
            )
        if self.n_diverged:
            notes.append(
                f"{self.n_diverged} of the runs diverged: the loss was no longer finite; they "
                "count with the greatest accuracy that they had reached"
            )
        return notes

    def notes(self) -> list[str]:
        """What is not counted, and what is although it is not the paper's; a sentence each."""
        notes = self.ended_notes()
        if self.shared:
            notes.append(f"of all runs, unlike the paper's: {', '.join(self.shared)}")
        elif self.differing():
            notes.append(
                "settings that are not the paper's are named, and their runs stand apart; where "
                "none is named they are the paper's"
            )
        if self.n_left_out:
            whose = (
                "with other settings than the paper's, or to end when first perfect with a seed "
                "that a whole run has,"
                if self.settings == "paper"
                else "to end when first perfect, with a seed that a whole run has,"
            )
            notes.append(f"{self.n_left_out} finished runs {whose} are left out")
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
        return sorted({cell.n_bits for cell in self.by_cell})

    def variants(self) -> list[Variant]:
        """The variants that any cell has, the ablation of encodings aside, in the order of tasks
        and families."""
        found = {cell.variant for cell in self.by_cell if cell.positions == "polynomial"}
        return sorted(found, key=in_order)

    def own(self) -> list[Variant]:
        """The variants that the paper does not have: users' layers, other depths and settings."""
        paper = {row.variant for row in published().accuracy}
        return [variant for variant in self.variants() if variant not in paper]

    def differing(self) -> list[str]:
        """The settings of all variants that are not the paper's."""
        return sorted({c.variant.differs for c in self.by_cell if c.variant.differs}, key=natural)

    @property
    def none_of_the_paper(self) -> bool:
        """Whether there are runs, and none of them has the paper's settings."""
        return bool(self.by_cell) and all(cell.variant.differs for cell in self.by_cell)

    def settings_shown(self) -> list[str]:
        """What differs from the paper, in the order of rows: nothing first, if that is there."""
        return self.differing() if self.none_of_the_paper else ["", *self.differing()]

    def label(self, variant: Variant) -> str:
        """What people call its family, and what of its settings tells it apart."""
        family = self._labels.get(variant.layer[:2]) or family_named(variant.family).label
        return f"{family}{self.suffix(variant.differs)}"

    def suffix(self, differs: str) -> str:
        """What a label adds for these settings: all that tells them from others."""
        return f", {told}" if (told := self._told[1].get(differs, differs)) else ""

    @property
    def shared(self) -> list[str]:
        """The settings of all runs that are not the paper's."""
        return self._told[0]

    @cached_property
    def _told(self) -> tuple[list[str], dict[str, str]]:
        return told_apart(self.settings_shown())

    @cached_property
    def _labels(self) -> dict[Layer, str]:
        return labels(cell.variant.layer[:2] for cell in self.by_cell)


def in_order(variant: Variant) -> tuple[Any, ...]:
    """Tasks and families in the order of the paper, users' layers after them by name."""
    families = list(FAMILIES)
    known = variant.family in FAMILIES
    place = families.index(variant.family) if known else len(families)
    own = variant.family, variant.code
    return TASKS.index(variant.task), place, *own, variant.n_layers, natural(variant.differs)


def gather(records: Records, settings: str = "any") -> Cells:
    """The runs of a store that count, by cell; with settings `paper`, those of the paper's alone.

    Raises `StoreError` if no run has finished, or none with the paper's settings.
    """
    rows = records.rows
    finished = rows.filter(pl.col("solved").is_not_null())  # or diverged
    n_failed = rows.filter(pl.col("solved").is_null(), status="failed").height
    n_unfinished = rows.height - finished.height - n_failed
    if finished.is_empty():
        raise StoreError(
            f"no run of the store {records.store} has finished ({n_failed} failed, {n_unfinished} "
            f"unfinished, {len(records.set_aside)} set aside); look with `ithbit status`"
        )
    chosen = finished if settings == "any" else finished.filter(pl.col("settings") != "other")
    if chosen.is_empty():
        raise StoreError(
            f"none of the {finished.height} finished runs of the store {records.store} has "
            "the paper's settings; count runs of any settings with --settings any"
        )
    # Of two runs of one seed the whole one counts.
    counted = (
        with_differences(chosen)
        .sort("stop_when_solved", maintain_order=True)
        .unique([*_KEY, "seed"], keep="first", maintain_order=True)
    )
    counted = counted.with_columns(words(counted))
    return Cells(
        RunsByCell(counted),
        finished.height - counted.height,
        n_unfinished,
        n_failed,
        settings,
        counted.height - whole(counted).height,
        counted.filter(status="failed").height,
    )


def labels(layers: Iterable[Layer]) -> dict[Layer, str]:
    """What people call these families; users' layers of one name are told apart by their code.

    >>> shown = labels([("a.py:Mine", "0123456789ab"), ("b.py:Mine", "ba9876543210")])
    >>> shown["gru", ""], shown["b.py:Mine", "ba9876543210"]
    ('GRU', 'Mine ba9876')
    """
    own = sorted({layer for layer in layers if layer[0] not in FAMILIES})
    taken = Counter(
        [*(f.label for f in FAMILIES.values()), *(family_named(f).label for f, *_ in own)]
    )
    shown: dict[Layer, str] = {(name, ""): f.label for name, f in FAMILIES.items()}
    for family, code, *_ in own:
        label = family_named(family).label
        shown[family, code] = label if taken[label] == 1 else f"{label} {code[:SHORT]}".strip()
    return shown


def shown_lengths(cells: Cells) -> list[int]:
    """The lengths of a table or figure: the paper's, unless no run is, and those of the runs."""
    return sorted({*(() if cells.none_of_the_paper else LENGTHS), *cells.lengths()})


def whole(runs: pl.DataFrame) -> pl.DataFrame:
    """Those of the runs that went through the complete protocol."""
    return runs.filter(~pl.col("stop_when_solved").fill_null(False))


def solved(runs: pl.DataFrame) -> pl.DataFrame:
    """Those of the runs that succeeded."""
    return runs.filter(pl.col("solved"))


def summary(runs: pl.DataFrame, column: str) -> Summary | None:
    """Mean and sample standard deviation of a column, its nulls left out; None if none is left."""
    values = runs[column].drop_nulls()
    if values.is_empty():
        return None
    sd = values.std() if values.len() > 1 else None
    return Summary(float(values.mean()), None if sd is None else float(sd), values.len())  # type: ignore[arg-type]


def median(runs: pl.DataFrame, column: str) -> float | None:
    """Median of a column, or None without values."""
    found = runs[column].median()
    return None if found is None else float(found)  # type: ignore[arg-type]
