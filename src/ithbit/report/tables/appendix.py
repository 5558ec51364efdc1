"""The tables of the paper's appendix: accuracy, encodings, cost and length shift."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from ithbit.published import RUNS_PER_CELL, LengthRow, Variant, published
from ithbit.report.cells import Cell, Cells, count, median, shown_lengths, solved, summary
from ithbit.report.tables.table import (
    Row,
    Table,
    Value,
    by_length,
    common_notes,
    count_value,
    marked_labels,
    printed_mean,
    spread_text,
    variant_labels,
    verdict_values,
)


def accuracy_table(cells: Cells) -> Table:
    """Mean ± sample standard deviation of the maximum held-out accuracy, all 27 variants."""
    lengths = shown_lengths(cells)
    paper = {row.variant: row for row in published().accuracy}
    rows = []
    shown = [] if cells.none_of_the_paper else list(paper)
    for variant in [*shown, *(extra for extra in cells.variants() if extra not in paper)]:
        theirs = paper[variant].accuracy if variant in paper else {}
        values = tuple(
            Value(
                spread_text(
                    summary(cells.runs(variant, n_bits), "max_accuracy"),
                    2,
                    RUNS_PER_CELL if n_bits in theirs else 0,
                ),
                printed_mean(theirs[n_bits]) if n_bits in theirs else None,
            )
            for n_bits in lengths
        ) + verdict_values(cells, [variant], lengths)
        kind = "row" if variant in paper else "extra"
        rows.append(Row(marked_labels(variant, cells), values, kind, variant))
    return by_length(
        "accuracy",
        "tab:supp-max-accuracy",
        "Maximum held-out accuracy: mean ± sample standard deviation over seeds",
        rows,
        [
            "✓ constructive, ✗ stress test; full and causal variants were trained apart and stand "
            "apart"
        ],
        cells,
        lengths,
    )


def _with(variants: Iterable[Variant], differs: str) -> list[Variant]:
    return [replace(variant, differs=differs) for variant in variants]


def positions_runs(cells: Cells, positions: str, n_bits: int, differs: str = "") -> pl.DataFrame:
    """The ablation's runs with one encoding at one length, over its configurations and seeds."""
    variants = _with(published().positions_variants, differs)
    runs = cells.by_cell.of(Cell(variant, n_bits, positions) for variant in variants)
    return runs.filter(pl.col("seed").is_in(positions_seeds(cells, differs)))


def positions_seeds(cells: Cells, differs: str = "") -> list[int]:
    """The ablation's seeds: those of its non-polynomial runs, else the paper's 0, 1, 2.

    The polynomial runs belong to the main sweep too, with more seeds; counting those would weigh
    one encoding by other seeds than the rest.
    """
    seeds: set[int] = set()
    for cell, runs in cells.by_cell.items():
        if cell.positions != "polynomial" and cell.variant.differs == differs:
            seeds |= set(runs["seed"])
    return sorted(seeds or published().positions_seeds)


def positions_table(cells: Cells) -> Table:
    """Successes and mean maximum accuracy by encoding and n, over nine configurations."""
    rows = []
    for differs, row in itertools.product(cells.settings_shown(), published().positions):
        runs = positions_runs(cells, row.positions, row.n_bits, differs)
        if differs and runs.is_empty():
            continue
        found = summary(runs, "max_accuracy")
        k, m = count(runs)
        short = "*" if m < row.runs else ""
        values = (
            Value(f"{m}{short}" if m else None, str(row.runs)),
            Value(
                str(k) if m else None,
                str(row.successes),
                k / m if m else None,
                row.successes / row.runs,
            ),
            Value(f"{found.mean:.4f}" if found else None, f"{row.accuracy:.4f}"),
        )
        label = f"{row.positions.capitalize()}{cells.suffix(differs)}"
        rows.append(_row((label, str(row.n_bits)), values, differs))
    seeds = ", ".join(map(str, positions_seeds(cells)))
    return Table(
        "positions",
        "tab:supp-pe",
        "Encodings: nine configurations at two lengths",
        ("Encoding", "n"),
        ("Runs", "Successes", "Mean max. accuracy"),
        tuple(rows),
        (
            f"seeds {seeds}; rotary has the four softmax configurations only",
            *common_notes(cells, rows),
        ),
    )


def _row(
    labels: tuple[str, ...], values: Iterable[Value], differs: str, variant: Variant | None = None
) -> Row:
    """A row; the paper has nothing to put beside runs of other settings."""
    if not differs:
        return Row(labels, tuple(values), variant=variant)
    ours = (Value(v.ours and v.ours.removesuffix("*"), None, v.share) for v in values)
    return Row(labels, tuple(ours), "extra", variant)


def _number(value: float | None, decimals: int, mark: str = "") -> str | None:
    return None if value is None else f"{value:.{decimals}f}{mark}"


def cost_table(cells: Cells) -> Table:
    """Successes, parameters, median epochs and seconds at n = 64, constructive variants."""
    rows = []
    for differs, row in itertools.product(cells.settings_shown(), published().cost):
        variant = replace(row.variant, differs=differs)
        runs = cells.runs(variant, 64, whole=True)
        sizes = sorted(set(cells.runs(variant, 64)["n_parameters"]))
        if differs and not sizes:
            continue
        short = "*" if runs.height < row.runs else ""
        epochs = median(runs, "epochs")
        rows.append(
            _row(
                variant_labels(variant, cells),
                (
                    count_value(cells.count(variant, 64), (row.successes, row.runs)),
                    Value(" or ".join(map(str, sizes)) or None, str(row.n_parameters)),
                    Value(None if epochs is None else f"{epochs:g}{short}", str(row.median_epochs)),
                    Value(
                        _number(median(runs, "seconds_per_epoch"), 3, short),
                        f"{row.seconds_per_epoch:.2f}",
                    ),
                    Value(
                        _number(median(runs, "evaluation_seconds"), 4, short),
                        f"{row.evaluation_seconds:.3f}",
                    ),
                ),
                differs,
                variant,
            )
        )
    return Table(
        "cost",
        "tab:supp-cost-n64",
        "Size, training length and time at n = 64, constructive variants; medians over seeds",
        ("Task", "Model family", "L"),
        ("Successes", "Parameters", "Epochs", "Train s/epoch", "Eval s/pass"),
        tuple(rows),
        (
            "seconds are those of each side's own machine; runs trained in one stack share an "
            "epoch's time",
            *_whole_notes(cells, "epochs and seconds, not successes, leave out"),
            *common_notes(cells, rows),
        ),
    )


def _whole_notes(cells: Cells, what: str) -> list[str]:
    """What is said of runs that end when first perfect, where they do not count."""
    return [f"{what} runs that were to end when first perfect"] if cells.n_early else []


def length_runs(
    cells: Cells, n_bits: int, variant: Variant | None, differs: str = ""
) -> pl.DataFrame:
    """Runs under the whole protocol at n of one constructive variant, or of all nine."""
    variants = [row.variant for row in published().cost] if variant is None else [variant]
    return cells.whole.of(Cell(each, n_bits) for each in _with(variants, differs))


def _shifted(row: LengthRow, runs: pl.DataFrame) -> tuple[Value, ...]:
    wanted = row.successes if runs.height < row.runs else 0
    shifted = [
        Value(
            spread_text(summary(solved(runs), f"{side}_length_accuracy"), 3, wanted),
            printed_mean(theirs),
        )
        for side, theirs in (("half", row.half), ("double", row.double))
    ]
    return (count_value(count(runs), (row.successes, row.runs)), *shifted)


def _length_rows(cells: Cells, printed: Iterable[LengthRow]) -> list[Row]:
    rows = []
    for differs, row in itertools.product(cells.settings_shown(), printed):
        runs = length_runs(cells, row.n_bits, row.variant, differs)
        if differs and runs.is_empty():
            continue
        variant = row.variant and replace(row.variant, differs=differs)
        named = (f"{row.n_bits}{cells.suffix(differs)}",)
        labels = variant_labels(variant, cells) if variant else named
        rows.append(_row(labels, _shifted(row, runs), differs, variant))
    return rows


def length_by_n_table(cells: Cells) -> Table:
    """Length-shifted accuracy by training length, all constructive variants together."""
    rows = _length_rows(cells, published().length_by_n)
    return _length_table(
        "length-by-n", "tab:supp-ood-by-n", "the constructive variants by training length",
        ("Train n",), rows, cells,
    )  # fmt: skip


def length_by_family_table(cells: Cells) -> Table:
    """Length-shifted accuracy of each constructive variant trained at n = 64."""
    rows = _length_rows(cells, published().length_by_family)
    return _length_table(
        "length-by-family", "tab:supp-ood-n64-family",
        "each constructive variant trained at n = 64", ("Task", "Model family", "L"), rows, cells,
    )  # fmt: skip


def _length_table(
    name: str, label: str, of: str, heads: tuple[str, ...], rows: list[Row], cells: Cells
) -> Table:
    return Table(
        name,
        label,
        f"Length-shifted accuracy of {of}",
        heads,
        ("Successes", "Accuracy at n/2", "Accuracy at 2n"),
        tuple(rows),
        (
            "accuracy at the last epoch, over the runs that succeeded at n; chance is 0.5",
            *_whole_notes(cells, "left out:"),
            *common_notes(cells, rows),
        ),
    )
