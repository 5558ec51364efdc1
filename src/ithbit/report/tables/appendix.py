"""The tables of the paper's appendix: accuracy, encodings, cost and length shift.

Where the paper uses one length and the store lacks it, the longest of the store takes its place.
"""

import itertools
from dataclasses import replace

import polars as pl

from ithbit.published import RUNS_PER_CELL, CostRow, LengthRow, Variant, published
from ithbit.report.cells import Cell, Cells, median, shown_lengths, solved, summary, whole
from ithbit.report.comparison.statistics import Count
from ithbit.report.standing import standing
from ithbit.report.tables.table import (
    MARKS_NOTE,
    Row,
    Table,
    Value,
    by_length,
    common_notes,
    count_value,
    marked_labels,
    spread_text,
    variant_labels,
)


def accuracy_table(cells: Cells) -> Table:
    """Mean ± sample standard deviation of the maximum held-out accuracy, all 27 variants."""
    lengths = shown_lengths(cells)
    paper = published().accuracy
    rows = []
    for variant in [*([] if cells.none_of_the_paper else paper), *cells.own()]:
        theirs = paper.get(variant, {})
        values = tuple(
            Value(
                spread_text(
                    summary(cells.runs(variant, n_bits), "max_accuracy"),
                    2,
                    RUNS_PER_CELL if n_bits in theirs else 0,
                ),
                spread_text(theirs.get(n_bits), 2),
                standing=cells.standing([variant], n_bits),
            )
            for n_bits in lengths
        )
        kind = "row" if variant in paper else "extra"
        rows.append(Row(marked_labels(variant, cells), values, kind, variant))
    notes = [MARKS_NOTE, "full and causal variants were trained and are listed separately"]
    title = "Maximum held-out accuracy: mean ± sample standard deviation over seeds"
    return by_length("accuracy", title, rows, notes, cells, lengths)


def positions_runs(cells: Cells, positions: str, n_bits: int) -> pl.DataFrame:
    """The ablation's runs with one encoding at one length, over its configurations and seeds."""
    variants = published().positions_variants
    runs = cells.by_cell.of(Cell(variant, n_bits, positions) for variant in variants)
    return runs.filter(pl.col("seed").is_in(positions_seeds(cells)))


def positions_seeds(cells: Cells) -> list[int]:
    """The ablation's seeds: those of its non-polynomial runs, else the paper's 0, 1, 2.

    The polynomial runs belong to the main sweep too, with more seeds; counting those would judge
    one encoding by other seeds than the rest.
    """
    ablation = cells.by_cell.of(c for c in cells.by_cell if c.positions != "polynomial")
    return sorted(set(ablation["seed"]) or published().positions_seeds)


def positions_table(cells: Cells) -> Table:
    """Solved runs and mean maximum accuracy by encoding and n, over nine configurations.

    Runs with other settings or models than the paper's ablation are rows of the main table.
    """
    rows = []
    for row in published().positions:
        runs = positions_runs(cells, row.positions, row.n_bits)
        found, stand = summary(runs, "max_accuracy"), standing(runs)
        k, m = stand.solved, stand.runs
        short = "*" if m < row.runs else ""
        values = (
            Value(f"{m}{short}" if m else None, str(row.runs)),
            Value(
                str(k) if m else None,
                str(row.successes),
                k / m if m else None,
                row.successes / row.runs,
                stand,
            ),
            Value(f"{found.mean:.4f}" if found else None, f"{row.accuracy:.4f}"),
        )
        rows.append(Row((row.positions.capitalize(), str(row.n_bits)), values))
    seeds = ", ".join(map(str, positions_seeds(cells)))
    return Table(
        "positions",
        "Encodings of positions: nine configurations at two lengths",
        ("Encoding", "n"),
        ("Runs", "Solved", "Mean max. accuracy"),
        tuple(rows),
        (
            f"seeds {seeds}; rotary has the four softmax configurations only",
            *common_notes(cells, rows),
        ),
    )


def length_shown(cells: Cells) -> int:
    """The length of tables that show only one: the paper's, else the store's longest."""
    lengths = cells.lengths()
    return max(lengths) if lengths and 64 not in lengths else 64


def variants_at(cells: Cells, n_bits: int) -> list[Variant]:
    """The paper's constructive variants, and those with runs that the paper does not have."""
    paper = [] if cells.none_of_the_paper else [row.variant for row in published().cost]
    return paper + [v for v in cells.own() if not cells.runs(v, n_bits).is_empty()]


def _counted(row: CostRow | LengthRow | None) -> Count | None:
    """The published count of a row, where there is one."""
    return (row.successes, row.runs) if row else None


def _number(value: float | None, decimals: int, mark: str = "") -> str | None:
    return None if value is None else f"{value:.{decimals}f}{mark}"


def cost_table(cells: Cells) -> Table:
    """Solved runs, parameters, median epochs and seconds at one length."""
    n_bits, rows = length_shown(cells), []
    paper = {row.variant: row for row in published().cost} if n_bits == 64 else {}
    for variant in variants_at(cells, n_bits):
        every, row = cells.runs(variant, n_bits), paper.get(variant)
        runs, sizes = whole(every), sorted(set(every["n_parameters"].drop_nulls()))
        short = "*" if row and runs["epochs"].count() < row.runs else ""
        epochs = median(runs, "epochs")
        theirs: tuple[str | None, ...] = (None,) * 4
        if row:
            seconds = f"{row.seconds_per_epoch:.2f}", f"{row.evaluation_seconds:.3f}"
            theirs = str(row.n_parameters), str(row.median_epochs), *seconds
        ours = (
            " or ".join(map(str, sizes)) or None,
            None if epochs is None else f"{epochs:g}{short}",
            _number(median(runs, "seconds_per_epoch"), 3, short),
            _number(median(runs, "evaluation_seconds"), 4, short),
        )
        values = (
            count_value(cells.standing([variant], n_bits), _counted(row)),
            *itertools.starmap(Value, zip(ours, theirs, strict=True)),
        )
        kind = "row" if row else "extra"
        rows.append(Row(variant_labels(variant, cells), values, kind, variant))
    return Table(
        "cost",
        f"Size, training length and time at n = {n_bits}; medians over seeds",
        ("Task", "Model family", "L"),
        ("Solved", "Parameters", "Epochs", "Train s/epoch", "Eval s/pass"),
        tuple(rows),
        (
            "seconds were measured on each side's own machine; runs trained in one stack share an "
            "epoch's time",
            *_whole_notes(cells, "epochs and seconds, not solved runs, leave out"),
            *common_notes(cells, rows),
        ),
        n_bits,
    )


def _whole_notes(cells: Cells, what: str) -> list[str]:
    """A note on runs set to stop when first perfect, where they do not count."""
    return [f"{what} runs that were set to stop when first perfect"] if cells.n_early else []


def length_runs(
    cells: Cells, n_bits: int, variant: Variant | None, differs: str = ""
) -> pl.DataFrame:
    """Runs under the whole protocol at n of one variant, or of the nine constructive ones."""
    pooled = [replace(row.variant, differs=differs) for row in published().cost]
    return whole(cells.by_cell.of(Cell(v, n_bits) for v in ([variant] if variant else pooled)))


def _shifted(runs: pl.DataFrame, row: LengthRow | None) -> tuple[Value, ...]:
    wanted = row.successes if row and runs.height < row.runs else 0
    shifted = [
        Value(
            spread_text(summary(solved(runs), f"{side}_length_accuracy"), 3, wanted),
            spread_text(getattr(row, side), 3) if row else None,
        )
        for side in ("half", "double")
    ]
    return (count_value(standing(runs), _counted(row)), *shifted)


def length_by_n_table(cells: Cells) -> Table:
    """Length-shifted accuracy by training length, all constructive variants together."""
    paper = {row.n_bits: row for row in published().length_by_n}
    rows = []
    for differs, n_bits in itertools.product(cells.settings_shown(), shown_lengths(cells)):
        runs = length_runs(cells, n_bits, None, differs)
        row = None if differs else paper.get(n_bits)
        if row or not runs.is_empty():
            labels = (f"{n_bits}{cells.suffix(differs)}",)
            rows.append(Row(labels, _shifted(runs, row), "row" if row else "extra"))
    of = "the paper's nine constructive variants by training length"
    return _length_table("length-by-n", of, ("Train n",), rows, cells)


def length_by_family_table(cells: Cells) -> Table:
    """Length-shifted accuracy of each variant trained at one length."""
    n_bits = length_shown(cells)
    paper = {row.variant: row for row in published().length_by_family} if n_bits == 64 else {}
    rows = []
    for variant in variants_at(cells, n_bits):
        row = paper.get(variant)
        values = _shifted(length_runs(cells, n_bits, variant), row)
        labels = variant_labels(variant, cells)
        rows.append(Row(labels, values, "row" if row else "extra", variant))
    of = f"each variant trained at n = {n_bits}"
    heads = ("Task", "Model family", "L")
    return replace(_length_table("length-by-family", of, heads, rows, cells), n_bits=n_bits)


def _length_table(
    name: str, of: str, heads: tuple[str, ...], rows: list[Row], cells: Cells
) -> Table:
    return Table(
        name,
        f"Length-shifted accuracy of {of}",
        heads,
        ("Solved", "Accuracy at n/2", "Accuracy at 2n"),
        tuple(rows),
        (
            "accuracy at the last epoch, over the runs that were solved at n; chance is 0.5",
            *_whole_notes(cells, "left out:"),
            *common_notes(cells, rows),
        ),
    )
