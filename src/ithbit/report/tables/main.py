"""The paper's tables from records, cell by cell beside the published numbers.

`render.py` turns a table into text, Markdown, CSV or LaTeX, and the page into HTML. All numbers are
*empirical*.
"""

from collections.abc import Callable

from ithbit.errors import one_of
from ithbit.published import LENGTHS, RUNS_PER_CELL, Variant, published
from ithbit.report.cells import Cells, shown_lengths
from ithbit.report.tables.appendix import (
    accuracy_table,
    cost_table,
    length_by_family_table,
    length_by_n_table,
    positions_table,
)
from ithbit.report.tables.table import (
    MARKS,
    MARKS_NOTE,
    Row,
    Table,
    Value,
    by_length,
    count_value,
    marked_labels,
)


def main_table(cells: Cells) -> Table:
    """Solved runs by task, family, depth and n: 23 merged rows and totals by group."""
    paper = published()
    lengths = shown_lengths(cells)

    def values(variants: list[Variant], theirs: dict[int, int], runs: int) -> tuple[Value, ...]:
        return tuple(
            count_value(
                cells.standing(variants, n_bits),
                (theirs[n_bits], runs) if n_bits in theirs else None,
                bare=True,
            )
            for n_bits in lengths
        )

    printed = () if cells.none_of_the_paper else paper.successes
    rows = [
        Row(
            (row.task.upper(), row.label, str(row.n_layers), MARKS[row.group]),
            values([row.counted], row.successes, RUNS_PER_CELL),
            variant=row.counted,
        )
        for row in printed
    ]
    known = {Variant(r.task, f, r.n_layers) for r in paper.successes for f in r.families}
    extra = [variant for variant in cells.variants() if variant not in known]
    rows += [Row(marked_labels(v, cells), values([v], {}, 0), "extra", v) for v in extra]
    for name, mark in MARKS.items() if printed else ():
        variants = [row.counted for row in printed if row.group == name]
        totals = values(variants, paper.totals[name], paper.runs_per_total[name])
        rows.append(Row(("", f"Total, {name}", "", mark), totals, "total"))
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
    return by_length("main", title, rows, notes, cells, lengths)


def _twins(cells: Cells) -> str:
    """Where the causal twin of a merged row succeeds with other seeds than the full one, in words.

    Seeds that only one of the two has are ignored.
    """
    found = []
    for row in published().successes:
        for family in row.families[1:]:
            for n_bits in LENGTHS:
                causal = cells.runs(Variant(row.task, family, row.n_layers), n_bits)
                both = cells.runs(row.counted, n_bits).join(causal, on="seed")
                if not both["solved"].equals(both["solved_right"]):
                    at = f"{row.task.upper()} {row.label} n={n_bits}"
                    found.append(f"{at} {both['solved_right'].sum()}/{both.height}")
    return f" (the causal variant differs: {', '.join(found)})" if found else ""


TABLES: dict[str, Callable[[Cells], Table]] = {
    "main": main_table,
    "accuracy": accuracy_table,
    "positions": positions_table,
    "cost": cost_table,
    "length-by-n": length_by_n_table,
    "length-by-family": length_by_family_table,
}


def table_named(name: str, cells: Cells | None) -> Table:
    """The table of that name; without cells it has only the published numbers.

    >>> table = table_named("length-by-n", None)
    >>> [value.published for value in table.rows[0].values]
    ['45/45', '0.629±0.091', '0.535±0.026']
    """
    return TABLES[one_of("unknown table", name, TABLES)](cells or Cells())
