"""The runs that tables count, grouped by cell.

A run counts if it says something about learning: if it finished, or if it diverged, with the
accuracy it had reached. A run that is unfinished or could not be run says nothing.

A *cell* is one variant at one length with one encoding; its runs differ in the seed, and each seed
counts once. Runs with other settings than the paper's are separate variants (`differences.py`) and
can be left out. A run that stops at its first perfect epoch (`early stop`) counts for successes and
maximum accuracy, which stopping does not change, but not for epochs, seconds or length-shifted
accuracy, which it does.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from ithbit.display import pluralize
from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS, family_named
from ithbit.published import LENGTHS, Mean, Settings, Variant, published
from ithbit.reporting.differences import (
    settings_by_text,
    settings_order,
    settings_text,
    split_shared_and_distinct,
    with_differences,
)
from ithbit.reporting.verdict_counts import VERDICT_OF_RUN, VerdictCounts, count_verdicts
from ithbit.store.frame import COLUMNS, Records

SETTINGS = ("any", "paper")
SHORT = 6  # digits of a code's digest that are shown
Layer = tuple[Any, ...]  # a family, the digest of its code if it is a user's, and its `Settings`
_KEY = ["task", "family", "n_layers", "code", "differs", "n_bits", "encoding"]


class Cell(NamedTuple):
    """One variant at one length with one encoding: polynomial, unless the runs belong to the
    paper's ablation of encodings."""

    variant: Variant
    n_bits: int
    positions: str = "polynomial"


_NO_RUNS = pl.DataFrame(
    schema=COLUMNS | dict.fromkeys(("differs", "encoding", "standing"), pl.String)
)


@dataclass(frozen=True)
class Cells:
    """The runs that count, finished or diverged, by cell.

    Without arguments it holds no runs: its tables and figures have only the published numbers.
    """

    by_cell: dict[Cell, pl.DataFrame] = field(default_factory=dict)
    n_left_out: int = 0
    n_unfinished: int = 0
    n_failed: int = 0
    settings: str = "any"
    n_early: int = 0  # counted runs that are not `full_protocol_runs`
    n_diverged: int = 0  # counted runs that did not finish
    layers: tuple[Layer, ...] = ()  # of all the store's runs: each has one colour everywhere

    def of(self, cells: Iterable[Cell]) -> pl.DataFrame:
        """The runs of these cells as one frame, empty if there are none."""
        frames = [self.by_cell[cell] for cell in cells if cell in self.by_cell]
        return pl.concat(frames) if frames else _NO_RUNS

    def runs(self, variant: Variant, n_bits: int, positions: str = "polynomial") -> pl.DataFrame:
        """The cell's runs."""
        return self.by_cell.get(Cell(variant, n_bits, positions), _NO_RUNS)

    def verdict_counts(self, variants: Iterable[Variant], n_bits: int) -> VerdictCounts:
        """The verdicts on the runs of these variants at one length, counted together."""
        return count_verdicts(self.of(Cell(variant, n_bits) for variant in variants))

    def ended_notes(self) -> list[str]:
        """Notes on unfinished and failed runs, not counted, and on diverged ones, counted."""
        notes = []
        if self.n_unfinished or self.n_failed:
            notes.append(
                f"not counted: {self.n_unfinished} unfinished and {self.n_failed} failed runs, "
                "which say nothing about learning"
            )
        if self.n_diverged:
            notes.append(
                f"{self.n_diverged} of the runs diverged: the loss was no longer finite; they "
                "count with the best accuracy they had reached"
            )
        return notes

    def notes(self) -> list[str]:
        """Notes on what is not counted, and on what is counted although it is not the paper's."""
        notes = self.ended_notes()
        if self.shared:
            shared = settings_text(self.shared)
            notes.append(f"all runs differ from the paper's settings in: {shared}")
        elif any(self.settings_shown()):
            notes.append(
                "settings that are not the paper's are named, and their runs listed separately; "
                "where none are named, they are the paper's"
            )
        if self.n_left_out:
            whose = (
                "with other settings than the paper's, or set to stop when first perfect with a "
                "seed that a whole run has"
                if self.settings == "paper"
                else "set to stop when first perfect, with a seed that a whole run has"
            )
            notes.append(f"left out: {pluralize(self.n_left_out, 'finished run')} {whose}")
        return notes

    def early_notes(self) -> list[str]:
        """A note where counted runs were set to stop when first perfect."""
        if not self.n_early:
            return []
        return [
            f"{self.n_early:,} of the runs were set to stop when first perfect, which changes "
            "neither successes nor accuracy"
        ]

    def lengths(self) -> list[int]:
        """The lengths n that any cell has."""
        return sorted({cell.n_bits for cell in self.by_cell})

    def shown_lengths(self) -> list[int]:
        """The lengths to show: the runs', and the paper's unless all runs have other settings."""
        return sorted({*(() if self.all_nonstandard else LENGTHS), *self.lengths()})

    def length_shown(self) -> int:
        """The length of tables that show only one: the paper's, else the store's longest."""
        lengths = self.lengths()
        return max(lengths) if lengths and 64 not in lengths else 64

    def length_runs(
        self, n_bits: int, variant: Variant | None, differs: Settings = ()
    ) -> pl.DataFrame:
        """Runs under the full protocol at n of one variant, or of the nine constructive ones."""
        pooled = [replace(each, differs=differs) for each in published().cost]
        return full_protocol_runs(
            self.of(Cell(v, n_bits) for v in ([variant] if variant else pooled))
        )

    def positions_seeds(self) -> list[int]:
        """The seeds of the ablation of encodings: those of its non-polynomial runs, else the
        paper's 0, 1, 2.

        The polynomial runs belong to the main sweep too, with more seeds; counting those would
        judge one encoding by other seeds than the rest.
        """
        ablation = self.of(cell for cell in self.by_cell if cell.positions != "polynomial")
        return sorted(set(ablation["seed"]) or published().positions_seeds)

    def positions_runs(self, positions: str, n_bits: int) -> pl.DataFrame:
        """The ablation's runs with one encoding at one length, over its configurations and
        seeds."""
        variants = published().positions_variants
        runs = self.of(Cell(variant, n_bits, positions) for variant in variants)
        return runs.filter(pl.col("seed").is_in(self.positions_seeds()))

    def variants(self) -> list[Variant]:
        """The variants that any cell has, without the ablation of encodings, in the order of tasks
        and families."""
        variants = {cell.variant for cell in self.by_cell if cell.positions == "polynomial"}
        return sorted(variants, key=in_order)

    def own(self) -> list[Variant]:
        """The variants that the paper does not have: users' layers, other depths and settings."""
        return [variant for variant in self.variants() if variant not in published().accuracy]

    def variants_at(self, n_bits: int) -> list[Variant]:
        """The paper's constructive variants, and those with runs that the paper does not have."""
        paper = [] if self.all_nonstandard else published().cost
        return [*paper, *(v for v in self.own() if not self.runs(v, n_bits).is_empty())]

    def settings_shown(self) -> list[Settings]:
        """What differs from the paper, in row order: () first, unless all runs differ from it."""
        return sorted({cell.variant.differs for cell in self.by_cell} or {()}, key=settings_order)

    @property
    def all_nonstandard(self) -> bool:
        """Whether there are runs, and none of them has the paper's settings."""
        return () not in self.settings_shown()

    def family(self, variant: Variant) -> str:
        """The name of its family."""
        return self._labels.get(variant.layer[:2]) or family_named(variant.family).label

    def label(self, variant: Variant) -> str:
        """The name of its family, and the settings that distinguish it."""
        return f"{self.family(variant)}{self.suffix(variant.differs)}"

    def suffix(self, differs: Settings) -> str:
        """What a label adds for these settings: all that distinguishes them from others."""
        text = settings_text(self._shared_and_distinct[1].get(differs, differs))
        return f", {text}" if text else ""

    @property
    def shared(self) -> Settings:
        """The settings that all runs share and that are not the paper's."""
        return self._shared_and_distinct[0]

    @cached_property
    def _shared_and_distinct(self) -> tuple[Settings, dict[Settings, Settings]]:
        return split_shared_and_distinct(self.settings_shown())

    @cached_property
    def _labels(self) -> dict[Layer, str]:
        return labels(cell.variant.layer[:2] for cell in self.by_cell)


def in_order(variant: Variant) -> tuple[Any, ...]:
    """Sort key: tasks and families in the order of the paper, then users' layers by name."""
    place = [*FAMILIES, variant.family].index(variant.family)
    own = variant.family, variant.code
    return TASKS.index(variant.task), place, *own, variant.n_layers, settings_order(variant.differs)


def gather(records: Records, settings: str = "any") -> Cells:
    """The runs of a store that count, by cell; with settings `paper`, only those with the paper's.

    Raises `StoreError` if no run has finished, or none with the paper's settings.
    """
    rows = records.rows
    finished = rows.filter(pl.col("solved").is_not_null())  # or diverged
    n_failed = rows.filter(pl.col("solved").is_null(), status="failed").height
    n_unfinished = rows.height - finished.height - n_failed
    if finished.is_empty():
        raise StoreError(
            f"no run of the store {records.store} has finished ({n_failed} failed, {n_unfinished} "
            f"unfinished, {len(records.set_aside)} set aside); see `ithbit status`"
        )
    chosen = finished if settings == "any" else finished.filter(pl.col("settings") != "other")
    if chosen.is_empty():
        raise StoreError(
            f"none of the {finished.height} finished runs of the store {records.store} has "
            "the paper's settings; count runs of any settings with --settings any"
        )
    # Of two runs with one seed, the one under the full protocol counts.
    counted = (
        with_differences(chosen)
        .with_columns(VERDICT_OF_RUN)
        .sort("stop_when_solved", maintain_order=True)
        .unique([*_KEY, "seed"], keep="first", maintain_order=True)
        .sort(*_KEY, "seed")
    )
    by_key = counted.partition_by(_KEY, as_dict=True, maintain_order=True)
    behind = settings_by_text(counted)
    by_cell = {
        Cell(Variant(task, family, n_layers, code, behind[differs]), n_bits, encoding): runs
        for (task, family, n_layers, code, differs, n_bits, encoding), runs in by_key.items()
    }
    return Cells(
        by_cell,
        finished.height - counted.height,
        n_unfinished,
        n_failed,
        settings,
        counted.height - full_protocol_runs(counted).height,
        counted.filter(status="failed").height,
        tuple(layers_of(rows)),
    )


def layers_of(rows: pl.DataFrame) -> list[Layer]:
    """The families of these runs, each with the digest of its code if it is a user's."""
    return sorted(rows.select("family", "code").unique().iter_rows())


def labels(layers: Iterable[Layer]) -> dict[Layer, str]:
    """The names of these families; users' layers with one name are distinguished by their code.

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


def full_protocol_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs under the complete protocol, not set to stop when first perfect."""
    return runs.filter(~pl.col("stop_when_solved").fill_null(False))


def solved(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs that succeeded."""
    return runs.filter(pl.col("solved"))


def summary(runs: pl.DataFrame, column: str) -> Mean | None:
    """Mean and sample standard deviation of a column without its nulls; None if none is left."""
    values = runs[column].drop_nulls()
    if values.is_empty():
        return None
    sd = values.std() if values.len() > 1 else None
    return Mean(float(values.mean()), None if sd is None else float(sd), values.len())  # type: ignore[arg-type]


def median(runs: pl.DataFrame, column: str) -> float | None:
    """Median of a column, or None without values."""
    value = runs[column].median()
    return None if value is None else float(value)  # type: ignore[arg-type]
