"""The paper's tables from records, cell by cell beside the published numbers.

A table here is text in cells; `render.py` turns it into text, Markdown, CSV or LaTeX, and the page
into HTML. Marks: `*` on a cell with fewer finished runs than the paper has, `–` where there is
nothing. All numbers are *empirical*.
"""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from ithbit.errors import SpecError
from ithbit.families import FAMILIES, Group, group
from ithbit.report.cells import Cells, Summary, median, summary, together
from ithbit.report.published import LENGTHS, RUNS_PER_CELL, LengthRow, Mean, Variant, published

MARKS: dict[Group, str] = {"constructive": "✓", "stress test": "✗"}
NOTHING = "–"


@dataclass(frozen=True)
class Value:
    """One cell: ours and the published number as text, None where there is none.

    `share` is our success rate where the cell is a count, for shading.
    """

    ours: str | None
    published: str | None
    share: float | None = None
    published_share: float | None = None


@dataclass(frozen=True)
class Row:
    """Labels on the left, values on the right. `kind` is row, total or extra (not the paper's).

    `variant` is the one whose runs the row counts, None where it counts several.
    """

    labels: tuple[str, ...]
    values: tuple[Value, ...]
    kind: str = "row"
    variant: Variant | None = None


@dataclass(frozen=True)
class Table:
    """One table; `label` is the paper's."""

    name: str
    label: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def variant_labels(variant: Variant) -> tuple[str, str, str]:
    """Task, family and depth as a table prints them."""
    return (variant.task.upper(), FAMILIES[variant.family].label, str(variant.n_layers))


def _count(k: int, m: int, wanted: int = RUNS_PER_CELL) -> str | None:
    return f"{k}/{m}{'*' if m < wanted else ''}" if m else None


def _counted(
    ours: tuple[int, int], theirs: tuple[int, int] | None, wanted: int, bare: bool = False
) -> Value:
    """A count beside the published one; `bare` prints the latter without its runs, as the paper."""
    k, m = ours
    printed = None
    if theirs is not None:
        printed = str(theirs[0]) if bare else f"{theirs[0]}/{theirs[1]}"
    return Value(
        _count(k, m, wanted),
        printed,
        k / m if m else None,
        None if theirs is None else theirs[0] / theirs[1],
    )


def _spread(found: Summary | None, decimals: int, wanted: int) -> str | None:
    if found is None:
        return None
    sd = "" if found.sd is None else f"±{found.sd:.{decimals}f}"
    return f"{found.mean:.{decimals}f}{sd}{'*' if found.runs < wanted else ''}"


def _printed(mean: Mean) -> str:
    return f"{mean.mean:.{mean.decimals}f}±{mean.sd:.{mean.decimals}f}"


def _notes(cells: Cells | None, rows: list[Row]) -> list[str]:
    """What every table says of itself: incomplete cells and runs that are not counted."""
    if cells is None:
        return []
    values = [value for row in rows for value in row.values]
    notes = []
    if any(value.ours and value.ours.endswith("*") for value in values):
        notes.append("* fewer finished runs than the paper has for this cell")
    missing = sum(value.ours is None for value in values if value.published is not None)
    if missing:
        notes.append(f"{NOTHING} no finished run ({missing} missing)")
    if cells.n_unfinished or cells.n_failed:
        notes.append(
            f"not counted: {cells.n_unfinished} unfinished and {cells.n_failed} failed runs"
        )
    if cells.settings != "paper":
        notes.append("runs of any settings are counted: not the paper's protocol throughout")
    elif cells.n_left_out:
        notes.append(
            f"{cells.n_left_out} finished runs with other settings than the paper's, or with a "
            "seed that another run has, are left out"
        )
    return notes


def _lengths(cells: Cells | None) -> list[int]:
    return sorted({*LENGTHS, *(cells.lengths() if cells else ())})


def main_table(cells: Cells | None) -> Table:
    """Successful seeds by task, family, depth and n: 23 merged rows and totals by group."""
    paper = published()
    lengths = _lengths(cells)

    def values(variant: Variant, theirs: dict[int, int]) -> tuple[Value, ...]:
        return tuple(
            _counted(
                cells.count(variant, n_bits) if cells else (0, 0),
                (theirs[n_bits], RUNS_PER_CELL) if n_bits in theirs else None,
                RUNS_PER_CELL,
                bare=True,
            )
            for n_bits in lengths
        )

    rows = [
        Row(
            (row.task.upper(), row.label, str(row.n_layers), MARKS[row.group]),
            values(row.counted, row.successes),
            variant=row.counted,
        )
        for row in paper.successes
    ]
    known = {Variant(r.task, f, r.n_layers) for r in paper.successes for f in r.families}
    extra = [variant for variant in cells.variants() if variant not in known] if cells else []
    rows += [
        Row(
            (
                *variant_labels(variant),
                MARKS[group(variant.task, variant.family, variant.n_layers)],
            ),
            values(variant, {}),
            "extra",
            variant,
        )
        for variant in extra
    ]
    for name, mark in MARKS.items():
        totals = []
        for n_bits in lengths:
            counts = [
                cells.count(row.counted, n_bits) if cells else (0, 0)
                for row in paper.successes
                if row.group == name
            ]
            wanted = paper.runs_per_total[name]
            printed = paper.totals[name].get(n_bits)
            totals.append(
                _counted(
                    (sum(k for k, _ in counts), sum(m for _, m in counts)),
                    None if printed is None else (printed, wanted),
                    wanted,
                    bare=True,
                )
            )
        rows.append(Row(("", f"Total, {name}", "", mark), tuple(totals), "total"))
    notes = [
        "✓ constructive, ✗ stress test; a run is a success if its maximum held-out accuracy is 1; "
        "the published counts are out of five, their totals out of 40 and 75",
        "Softmax and Linear at L = 1 merge the full and the causal variant, which compute the same "
        "at the readout; counted are the full variant's runs" + _twins(cells),
    ]
    if extra:
        notes.append("rows that the paper does not have stand above the totals and are not in them")
    return Table(
        "main",
        "tab:expected-outcomes-and-results",
        "Successful seeds by task, model family, depth L and length n",
        ("Task", "Model family", "L", "Thm."),
        tuple(f"n={n_bits}" for n_bits in lengths),
        tuple(rows),
        (*notes, *_notes(cells, rows)),
    )


def _twins(cells: Cells | None) -> str:
    """Where the causal twin of a merged row has other counts than the full one, in words."""
    if cells is None:
        return ""
    found = []
    for row in published().successes:
        for family in row.families[1:]:
            for n_bits in LENGTHS:
                full = cells.count(row.counted, n_bits)
                causal = cells.count(Variant(row.task, family, row.n_layers), n_bits)
                if causal[1] and causal != full:
                    at = f"{row.task.upper()} {row.label} n={n_bits}"
                    found.append(f"{at} {causal[0]}/{causal[1]}")
    return f" (the causal variant differs: {', '.join(found)})" if found else ""


def accuracy_table(cells: Cells | None) -> Table:
    """Mean ± sample standard deviation of the maximum held-out accuracy, all 27 variants."""
    lengths = _lengths(cells)
    paper = {row.variant: row for row in published().accuracy}
    extra = [variant for variant in cells.variants() if variant not in paper] if cells else []
    rows = []
    for variant in [*paper, *extra]:
        theirs = paper[variant].accuracy if variant in paper else {}
        values = tuple(
            Value(
                _spread(
                    summary(cells.runs(variant, n_bits), "max_accuracy") if cells else None,
                    2,
                    RUNS_PER_CELL,
                ),
                _printed(theirs[n_bits]) if n_bits in theirs else None,
            )
            for n_bits in lengths
        )
        kind = group(variant.task, variant.family, variant.n_layers)
        labels = (*variant_labels(variant), kind.capitalize())
        rows.append(Row(labels, values, "row" if variant in paper else "extra", variant))
    return Table(
        "accuracy",
        "tab:supp-max-accuracy",
        "Maximum held-out accuracy: mean ± sample standard deviation over seeds",
        ("Task", "Model family", "L", "Theory"),
        tuple(f"n={n_bits}" for n_bits in lengths),
        tuple(rows),
        ("full and causal variants were trained apart and stand apart", *_notes(cells, rows)),
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
        (f"seeds {seeds}; rotary has the four softmax configurations only", *_notes(cells, rows)),
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
                    _counted((k, m), (row.successes, row.runs), row.runs),
                    Value(" or ".join(map(str, sizes)) or None, str(row.n_parameters)),
                    Value(None if epochs is None else f"{epochs:g}{short}", str(row.median_epochs)),
                    Value(
                        _number(median(runs, "seconds_per_epoch"), 2, short),
                        f"{row.seconds_per_epoch:.2f}",
                    ),
                    Value(
                        _number(median(runs, "evaluation_seconds"), 3, short),
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
            *_notes(cells, rows),
        ),
    )


_LENGTH_COLUMNS = ("Successes", "Accuracy at n/2", "Accuracy at 2n")
_LENGTH_NOTE = "accuracy at the last epoch, over the runs that succeeded at n; chance is 0.5"


def length_runs(cells: Cells, n_bits: int, variant: Variant | None) -> pl.DataFrame | None:
    """Runs under the whole protocol at n of one constructive variant, or of all nine."""
    variants = [row.variant for row in published().cost] if variant is None else [variant]
    return together(cells.runs(each, n_bits, whole=True) for each in variants)


def _shifted(cells: Cells | None, row: LengthRow) -> tuple[Value, ...]:
    runs = length_runs(cells, row.n_bits, row.variant) if cells else None
    solved = None if runs is None else runs.filter(pl.col("solved"))
    count = (0, 0) if solved is None or runs is None else (solved.height, runs.height)
    return (
        _counted(count, (row.successes, row.runs), row.runs),
        Value(
            _spread(summary(solved, "half_length_accuracy"), 3, row.successes), _printed(row.half)
        ),
        Value(
            _spread(summary(solved, "double_length_accuracy"), 3, row.successes),
            _printed(row.double),
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
        (_LENGTH_NOTE, *_notes(cells, rows)),
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
        (_LENGTH_NOTE, *_notes(cells, rows)),
    )


TABLES: dict[str, Callable[[Cells | None], Table]] = {
    "main": main_table,
    "accuracy": accuracy_table,
    "positions": positions_table,
    "cost": cost_table,
    "length-by-n": length_by_n_table,
    "length-by-family": length_by_family_table,
}


def check_table(name: str) -> None:
    """Raise `SpecError` unless there is a table of that name."""
    if name not in TABLES:
        raise SpecError(f"unknown table {name!r}; choose one of {', '.join(TABLES)}")


def table_named(name: str, cells: Cells | None) -> Table:
    """The table of that name; without cells it has the published numbers alone.

    >>> table = table_named("length-by-n", None)
    >>> [value.published for value in table.rows[0].values]
    ['45/45', '0.629±0.091', '0.535±0.026']
    """
    check_table(name)
    return TABLES[name](cells)
