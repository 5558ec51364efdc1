"""The paper's tables from records, cell by cell beside the published numbers.

`render.py` turns a table into text, Markdown, CSV or LaTeX, and the page into HTML. All numbers are
*empirical*.
"""

from collections.abc import Callable, Iterable

from ithbit.errors import SpecError
from ithbit.families import group
from ithbit.report.appendix import (
    cost_table,
    length_by_family_table,
    length_by_n_table,
    positions_table,
)
from ithbit.report.cells import Cells, shown_lengths, summary
from ithbit.report.published import LENGTHS, RUNS_PER_CELL, Variant, published
from ithbit.report.table import (
    MARKS,
    Row,
    Table,
    Value,
    common_notes,
    count_value,
    printed_mean,
    spread_text,
    variant_labels,
)

VERDICTS = "all inputs"
_VERDICTS_NOTE = (
    "all inputs: of the solved runs that `ithbit verify` has tried, how many were right on every "
    "input (float32, final weights), +k? where a search found nothing, k✗ with a counterexample"
)


def _verdict_values(
    cells: Cells | None, variants: list[Variant], lengths: list[int]
) -> tuple[Value, ...]:
    """The column of verdicts, of all lengths together; empty where nothing was verified."""
    if cells is None or cells.n_verified == 0:
        return ()
    found = cells.all_verdicts(variants, lengths)
    if not found.tried:
        return (Value(None, None),)
    text = f"{found.right}/{found.tried}"
    text += f" +{found.open}?" if found.open else ""
    text += f" {found.wrong}✗" if found.wrong else ""
    return (Value(text, None),)


def _verdict_head(cells: Cells | None) -> tuple[str, ...]:
    return (VERDICTS,) if cells is not None and cells.n_verified else ()


def _verdict_note(cells: Cells | None) -> tuple[str, ...]:
    return (_VERDICTS_NOTE,) if cells is not None and cells.n_verified else ()


def _run_notes(cells: Cells | None, variants: Iterable[Variant], lengths: list[int]) -> list[str]:
    """What is to be known of the runs behind successes and accuracies."""
    if cells is None:
        return []
    counts = {cells.count(variant, n_bits)[1] for variant in variants for n_bits in lengths} - {0}
    numbers = [f"cells have {min(counts)} to {max(counts)} runs"] if len(counts) > 1 else []
    return numbers + cells.early_notes()


def main_table(cells: Cells | None) -> Table:
    """Successful seeds by task, family, depth and n: 23 merged rows and totals by group."""
    paper = published()
    lengths = shown_lengths(cells)

    def values(variant: Variant, theirs: dict[int, int]) -> tuple[Value, ...]:
        return tuple(
            count_value(
                cells.count(variant, n_bits) if cells else (0, 0),
                (theirs[n_bits], RUNS_PER_CELL) if n_bits in theirs else None,
                bare=True,
            )
            for n_bits in lengths
        ) + _verdict_values(cells, [variant], lengths)

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
                count_value(
                    (sum(k for k, _ in counts), sum(m for _, m in counts)),
                    None if printed is None else (printed, wanted),
                    bare=True,
                )
            )
        variants = [row.counted for row in paper.successes if row.group == name]
        totals += _verdict_values(cells, variants, lengths)
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
        (*(f"n={n_bits}" for n_bits in lengths), *_verdict_head(cells)),
        tuple(rows),
        (
            *notes,
            *_verdict_note(cells),
            *_run_notes(cells, [row.variant for row in rows if row.variant], lengths),
            *common_notes(cells, rows),
        ),
    )


def _twins(cells: Cells | None) -> str:
    """Where the causal twin of a merged row succeeds with other seeds than the full one, in words.

    Seeds that only one of the two has say nothing of that.
    """
    if cells is None:
        return ""
    found = []
    for row in published().successes:
        for family in row.families[1:]:
            for n_bits in LENGTHS:
                full = cells.runs(row.counted, n_bits)
                causal = cells.runs(Variant(row.task, family, row.n_layers), n_bits)
                if full is None or causal is None:
                    continue
                both = full.join(causal, on="seed")
                if not both["solved"].equals(both["solved_right"]):
                    at = f"{row.task.upper()} {row.label} n={n_bits}"
                    found.append(f"{at} {both['solved_right'].sum()}/{both.height}")
    return f" (the causal variant differs: {', '.join(found)})" if found else ""


def accuracy_table(cells: Cells | None) -> Table:
    """Mean ± sample standard deviation of the maximum held-out accuracy, all 27 variants."""
    lengths = shown_lengths(cells)
    paper = {row.variant: row for row in published().accuracy}
    extra = [variant for variant in cells.variants() if variant not in paper] if cells else []
    rows = []
    for variant in [*paper, *extra]:
        theirs = paper[variant].accuracy if variant in paper else {}
        values = tuple(
            Value(
                spread_text(
                    summary(cells.runs(variant, n_bits), "max_accuracy") if cells else None,
                    2,
                    RUNS_PER_CELL if n_bits in theirs else 0,
                ),
                printed_mean(theirs[n_bits]) if n_bits in theirs else None,
            )
            for n_bits in lengths
        ) + _verdict_values(cells, [variant], lengths)
        mark = MARKS[group(variant.task, variant.family, variant.n_layers)]
        labels = (*variant_labels(variant), mark)
        rows.append(Row(labels, values, "row" if variant in paper else "extra", variant))
    return Table(
        "accuracy",
        "tab:supp-max-accuracy",
        "Maximum held-out accuracy: mean ± sample standard deviation over seeds",
        ("Task", "Model family", "L", "Thm."),
        (*(f"n={n_bits}" for n_bits in lengths), *_verdict_head(cells)),
        tuple(rows),
        (
            "✓ constructive, ✗ stress test; full and causal variants were trained apart and stand "
            "apart",
            *_verdict_note(cells),
            *_run_notes(cells, [*paper, *extra], lengths),
            *common_notes(cells, rows),
        ),
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
