"""The paper's tables from records, cell by cell with the published numbers.

`render.py` turns a table into text, Markdown, CSV or LaTeX, and the page into HTML. All numbers are
*empirical*. Where the paper uses one length and the store lacks it, the longest of the store takes
its place.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import polars as pl

from ithbit.display import share_text
from ithbit.published import LENGTHS, RUNS_PER_CELL, LengthRow, Variant, published
from ithbit.reporting.cells import Cells, full_protocol_runs, median, solved, summary
from ithbit.reporting.tables.table import (
    MARKS,
    MARKS_NOTE,
    NOTHING,
    ReportTable,
    TableRow,
    Value,
    count_value,
    marked_labels,
    spread_text,
    variant_labels,
)
from ithbit.reporting.verdict_counts import count_verdicts


def _notes(cells: Cells, rows: list[TableRow]) -> list[str]:
    """The notes of every table: incomplete cells and runs that are not counted."""
    if not cells.by_cell:
        return []
    values = [value for row in rows for value in row.values]
    notes = []
    if any(value.ours and value.ours.endswith("*") for value in values):
        notes.append("* fewer finished runs than the paper has for this cell")
    missing = sum(value.ours is None for value in values if value.published is not None)
    if missing:
        notes.append(f"{NOTHING} no finished run: {missing} of the paper's cells")
    return notes + cells.notes()


def _by_length(
    name: str, title: str, rows: list[TableRow], notes: list[str], cells: Cells
) -> ReportTable:
    """A table with a column for each length."""
    counts = {v.standing.runs for row in rows if row.variant for v in row.values if v.standing}
    counts -= {0}
    differing = [f"cells have {min(counts)} to {max(counts)} runs"] if len(counts) > 1 else []
    return ReportTable(
        name,
        title,
        ("Task", "Model family", "L", "Thm."),
        tuple(f"n={n_bits}" for n_bits in cells.shown_lengths()),
        tuple(rows),
        (*notes, *differing, *cells.early_notes(), *_notes(cells, rows)),
    )


def main_table(cells: Cells) -> ReportTable:
    """Solved runs by task, family, depth and n: 23 merged rows and totals by group."""
    paper = published()

    def values(variants: list[Variant], theirs: dict[int, int], runs: int) -> tuple[Value, ...]:
        return tuple(
            count_value(
                cells.verdict_counts(variants, n_bits),
                (theirs[n_bits], runs) if n_bits in theirs else None,
                bare=True,
            )
            for n_bits in cells.shown_lengths()
        )

    printed = () if cells.all_nonstandard else paper.successes
    rows = [
        TableRow(
            (row.task.upper(), row.label, str(row.n_layers), MARKS[row.group]),
            values([row.counted], row.successes, RUNS_PER_CELL),
            variant=row.counted,
        )
        for row in printed
    ]
    published_variants = {variant for row in paper.successes for variant in row.variants}
    extra = [variant for variant in cells.variants() if variant not in published_variants]
    rows += [TableRow(marked_labels(v, cells), values([v], {}, 0), "extra", v) for v in extra]
    for name, mark in MARKS.items() if printed else ():
        of = [row for row in printed if row.group == name]
        theirs = {n_bits: sum(row.successes[n_bits] for row in of) for n_bits in LENGTHS}
        totals = values([row.counted for row in of], theirs, RUNS_PER_CELL * len(of))
        rows.append(TableRow(("", f"Total, {name}", "", mark), totals, "total"))
    notes = [MARKS_NOTE]
    if printed:
        notes = [
            f"{MARKS_NOTE}; the published counts are out of five, their totals out of 40 and 75",
            "Softmax and Linear at L = 1 merge the full and the causal variant, which compute the "
            "same at the readout; the full variant's runs are counted" + _twins(cells),
        ]
    if extra and printed:
        notes.append("rows that the paper does not have are above the totals and not in them")
    title = "Solved runs of all finished ones, by task, model family, depth L and length n"
    return _by_length("main", title, rows, notes, cells)


def _twins(cells: Cells) -> str:
    """Where the causal twin of a merged row succeeds with other seeds than the full one, in words.

    Seeds that only one of the two has are ignored.
    """
    counts = []
    for row in published().successes:
        for causal in row.variants[1:]:
            for n_bits in LENGTHS:
                both = cells.runs(row.counted, n_bits).join(cells.runs(causal, n_bits), on="seed")
                if not both["solved"].equals(both["solved_right"]):
                    at = f"{row.task.upper()} {row.label} n={n_bits}"
                    counts.append(f"{at} {both['solved_right'].sum()}/{both.height}")
    return f" (the causal variant differs: {', '.join(counts)})" if counts else ""


def accuracy_table(cells: Cells) -> ReportTable:
    """Mean ± sample standard deviation of the maximum held-out accuracy, all 27 variants."""
    paper = published().accuracy
    rows = []
    for variant in [*([] if cells.all_nonstandard else paper), *cells.own()]:
        theirs = paper.get(variant, {})
        values = tuple(
            Value(
                spread_text(
                    summary(cells.runs(variant, n_bits), "max_accuracy"),
                    2,
                    RUNS_PER_CELL if n_bits in theirs else 0,
                ),
                spread_text(theirs.get(n_bits), 2),
                standing=cells.verdict_counts([variant], n_bits),
            )
            for n_bits in cells.shown_lengths()
        )
        kind = "row" if variant in paper else "extra"
        rows.append(TableRow(marked_labels(variant, cells), values, kind, variant))
    notes = [MARKS_NOTE, "full and causal variants were trained and are listed separately"]
    title = "Maximum held-out accuracy: mean ± sample standard deviation over seeds"
    return _by_length("accuracy", title, rows, notes, cells)


def positions_table(cells: Cells) -> ReportTable:
    """Solved runs and mean maximum accuracy by encoding and n, over nine configurations.

    Runs with other settings or models than the paper's ablation are rows of the main table.
    """
    rows = []
    for row in published().positions:
        runs = cells.positions_runs(row.positions, row.n_bits)
        accuracy, counts = summary(runs, "max_accuracy"), count_verdicts(runs)
        count = count_value(counts, (row.successes, row.runs), bare=True)
        short = "*" if counts.runs < row.runs else ""
        values = (
            Value(f"{counts.runs}{short}" if counts.runs else None, str(row.runs)),
            replace(count, ours=str(counts.solved) if counts.runs else None),
            Value(share_text(accuracy.mean) if accuracy else None, f"{row.accuracy:.4f}"),
        )
        rows.append(TableRow((row.positions.capitalize(), str(row.n_bits)), values))
    seeds = ", ".join(map(str, cells.positions_seeds()))
    return ReportTable(
        "positions",
        "Encodings of positions: nine configurations at two lengths",
        ("Encoding", "n"),
        ("Runs", "Solved", "Mean max. accuracy"),
        tuple(rows),
        (f"seeds {seeds}; rotary has the four softmax configurations only", *_notes(cells, rows)),
    )


def _number(value: float | None, form: str, mark: str) -> str | None:
    return None if value is None else f"{value:{form}}{mark}"


def cost_table(cells: Cells) -> ReportTable:
    """Solved runs, parameters, median epochs and seconds at one length."""
    n_bits, rows = cells.length_shown(), []
    paper = published().cost if n_bits == 64 else {}
    for variant in cells.variants_at(n_bits):
        every, row = cells.runs(variant, n_bits), paper.get(variant)
        runs, sizes = full_protocol_runs(every), sorted(set(every["n_parameters"].drop_nulls()))
        short = "*" if row and runs["epochs"].count() < row.runs else ""
        theirs: tuple[str | None, ...] = (None,) * 4
        if row:
            seconds = f"{row.seconds_per_epoch:.2f}", f"{row.evaluation_seconds:.3f}"
            theirs = str(row.n_parameters), str(row.median_epochs), *seconds
        ours = (
            " or ".join(map(str, sizes)) or None,
            _number(median(runs, "epochs"), "g", short),
            _number(median(runs, "seconds_per_epoch"), ".3f", short),
            _number(median(runs, "evaluation_seconds"), ".4f", short),
        )
        values = (
            count_value(count_verdicts(every), (row.successes, row.runs) if row else None),
            *itertools.starmap(Value, zip(ours, theirs, strict=True)),
        )
        kind = "row" if row else "extra"
        rows.append(TableRow(variant_labels(variant, cells), values, kind, variant))
    return ReportTable(
        "cost",
        f"Size, training length and time at n = {n_bits}; medians over seeds",
        ("Task", "Model family", "L"),
        ("Solved", "Parameters", "Epochs", "Train s/epoch", "Eval s/pass"),
        tuple(rows),
        (
            "seconds were measured on each side's own machine; runs trained in one stack share an "
            "epoch's time",
            *_whole_notes(cells, "epochs and seconds, not solved runs, leave out"),
            *_notes(cells, rows),
        ),
        n_bits,
    )


def _whole_notes(cells: Cells, what: str) -> list[str]:
    """A note on runs set to stop when first perfect, where they do not count."""
    return [f"{what} runs that were set to stop when first perfect"] if cells.n_early else []


Shifted = tuple[tuple[str, ...], pl.DataFrame, LengthRow | None, Variant | None]


def length_by_n_table(cells: Cells) -> ReportTable:
    """Length-shifted accuracy by training length, all constructive variants together."""
    paper, lines = published().length_by_n, list[Shifted]()
    for differs, n_bits in itertools.product(cells.settings_shown(), cells.shown_lengths()):
        runs = cells.length_runs(n_bits, None, differs)
        row = None if differs else paper.get(n_bits)
        if row or not runs.is_empty():
            lines.append(((f"{n_bits}{cells.suffix(differs)}",), runs, row, None))
    of = "the paper's nine constructive variants by training length"
    return _length_table("length-by-n", of, ("Train n",), lines, cells)


def length_by_family_table(cells: Cells) -> ReportTable:
    """Length-shifted accuracy of each variant trained at one length."""
    n_bits = cells.length_shown()
    paper = published().length_by_family if n_bits == 64 else {}
    lines: list[Shifted] = [
        (variant_labels(v, cells), cells.length_runs(n_bits, v), paper.get(v), v)
        for v in cells.variants_at(n_bits)
    ]
    of, heads = f"each variant trained at n = {n_bits}", ("Task", "Model family", "L")
    return _length_table("length-by-family", of, heads, lines, cells, n_bits)


def _length_table(
    name: str,
    of: str,
    heads: tuple[str, ...],
    lines: list[Shifted],
    cells: Cells,
    n_bits: int | None = None,
) -> ReportTable:
    rows = []
    for labels, runs, row, variant in lines:
        wanted = row.successes if row and runs.height < row.runs else 0
        shifted = [
            Value(
                spread_text(summary(solved(runs), f"{side}_length_accuracy"), 3, wanted),
                spread_text(getattr(row, side), 3) if row else None,
            )
            for side in ("half", "double")
        ]
        count = count_value(count_verdicts(runs), (row.successes, row.runs) if row else None)
        rows.append(TableRow(labels, (count, *shifted), "row" if row else "extra", variant))
    return ReportTable(
        name,
        f"Length-shifted accuracy of {of}",
        heads,
        ("Solved", "Accuracy at n/2", "Accuracy at 2n"),
        tuple(rows),
        (
            "accuracy at the last epoch, over the runs that were solved at n; chance is 0.5",
            *_whole_notes(cells, "left out:"),
            *_notes(cells, rows),
        ),
        n_bits,
    )


TABLES: dict[str, Callable[[Cells], ReportTable]] = {
    "main": main_table,
    "accuracy": accuracy_table,
    "positions": positions_table,
    "cost": cost_table,
    "length-by-n": length_by_n_table,
    "length-by-family": length_by_family_table,
}
