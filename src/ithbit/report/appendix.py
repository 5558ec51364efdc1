"""The tables of the paper's appendix beside accuracy: encodings, cost and length shift."""

import polars as pl

from ithbit.report.cells import Cells, median, summary, together
from ithbit.report.published import LengthRow, Variant, published
from ithbit.report.table import (
    Row,
    Table,
    Value,
    common_notes,
    count_value,
    printed_mean,
    spread_text,
    variant_labels,
)


def positions_runs(cells: Cells, positions: str, n_bits: int) -> pl.DataFrame | None:
    """The ablation's runs with one encoding at one length, over its configurations and seeds."""
    paper = published()
    runs = together(cells.runs(variant, n_bits, positions) for variant in paper.positions_variants)
    return None if runs is None else runs.filter(pl.col("seed").is_in(positions_seeds(cells)))


def positions_seeds(cells: Cells) -> list[int]:
    """The ablation's seeds: those of its non-polynomial runs, else the paper's 0, 1, 2.

    The polynomial runs belong to the main sweep too, with more seeds; counting those would weigh
    one encoding by other seeds than the rest.
    """
    seeds: set[int] = set()
    for (*_, positions), runs in cells.by_cell.items():
        if positions != "polynomial":
            seeds |= set(runs["seed"])
    return sorted(seeds or published().positions_seeds)


def positions_table(cells: Cells | None) -> Table:
    """Successes and mean maximum accuracy by encoding and n, over nine configurations."""
    rows = []
    for row in published().positions:
        runs = positions_runs(cells, row.positions, row.n_bits) if cells else None
        found = summary(runs, "max_accuracy")
        k, m = (0, 0) if runs is None else (int(runs["solved"].sum()), runs.height)
        short = "*" if m < row.runs else ""
        rows.append(
            Row(
                (row.positions.capitalize(), str(row.n_bits)),
                (
                    Value(f"{m}{short}" if m else None, str(row.runs)),
                    Value(
                        str(k) if m else None,
                        str(row.successes),
                        k / m if m else None,
                        row.successes / row.runs,
                    ),
                    Value(f"{found.mean:.4f}" if found else None, f"{row.accuracy:.4f}"),
                ),
            )
        )
    seeds = ", ".join(map(str, positions_seeds(cells) if cells else published().positions_seeds))
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


def _number(value: float | None, decimals: int, mark: str = "") -> str | None:
    return None if value is None else f"{value:.{decimals}f}{mark}"


def cost_table(cells: Cells | None) -> Table:
    """Successes, parameters, median epochs and seconds at n = 64, constructive variants."""
    rows = []
    for row in published().cost:
        k, m = cells.count(row.variant, 64) if cells else (0, 0)
        runs = cells.runs(row.variant, 64, whole=True) if cells else None
        counts = cells.runs(row.variant, 64) if cells else None
        sizes = sorted(set(counts["n_parameters"])) if counts is not None else []
        short = "*" if runs is not None and runs.height < row.runs else ""
        epochs = median(runs, "epochs")
        rows.append(
            Row(
                variant_labels(row.variant),
                (
                    count_value((k, m), (row.successes, row.runs)),
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
                variant=row.variant,
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


_LENGTH_COLUMNS = ("Successes", "Accuracy at n/2", "Accuracy at 2n")
_LENGTH_NOTE = "accuracy at the last epoch, over the runs that succeeded at n; chance is 0.5"


def _whole_notes(cells: Cells | None, what: str) -> list[str]:
    """What is said of runs that end when first perfect, where they do not count."""
    early = cells is not None and cells.n_early > 0
    return [f"{what} runs that were to end when first perfect"] if early else []


def length_runs(cells: Cells, n_bits: int, variant: Variant | None) -> pl.DataFrame | None:
    """Runs under the whole protocol at n of one constructive variant, or of all nine."""
    variants = [row.variant for row in published().cost] if variant is None else [variant]
    return together(cells.runs(each, n_bits, whole=True) for each in variants)


def _shifted(cells: Cells | None, row: LengthRow) -> tuple[Value, ...]:
    runs = length_runs(cells, row.n_bits, row.variant) if cells else None
    solved = None if runs is None else runs.filter(pl.col("solved"))
    count = (0, 0) if solved is None or runs is None else (solved.height, runs.height)
    wanted = row.successes if count[1] < row.runs else 0
    return (
        count_value(count, (row.successes, row.runs)),
        Value(
            spread_text(summary(solved, "half_length_accuracy"), 3, wanted),
            printed_mean(row.half),
        ),
        Value(
            spread_text(summary(solved, "double_length_accuracy"), 3, wanted),
            printed_mean(row.double),
        ),
    )


def length_by_n_table(cells: Cells | None) -> Table:
    """Length-shifted accuracy by training length, all constructive variants together."""
    rows = [Row((str(row.n_bits),), _shifted(cells, row)) for row in published().length_by_n]
    return Table(
        "length-by-n",
        "tab:supp-ood-by-n",
        "Length-shifted accuracy of the constructive variants by training length",
        ("Train n",),
        _LENGTH_COLUMNS,
        tuple(rows),
        (_LENGTH_NOTE, *_whole_notes(cells, "left out:"), *common_notes(cells, rows)),
    )


def length_by_family_table(cells: Cells | None) -> Table:
    """Length-shifted accuracy of each constructive variant trained at n = 64."""
    rows = [
        Row(variant_labels(row.variant), _shifted(cells, row), variant=row.variant)
        for row in published().length_by_family
        if row.variant is not None
    ]
    return Table(
        "length-by-family",
        "tab:supp-ood-n64-family",
        "Length-shifted accuracy of each constructive variant trained at n = 64",
        ("Task", "Model family", "L"),
        _LENGTH_COLUMNS,
        tuple(rows),
        (_LENGTH_NOTE, *_whole_notes(cells, "left out:"), *common_notes(cells, rows)),
    )
