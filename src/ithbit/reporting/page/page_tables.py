"""The tables of a report as the page's template prints them: texts, flags and style classes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup, escape

from ithbit.display import printable
from ithbit.reporting.cells import SHORT
from ithbit.reporting.comparison.agreement import DIFFERS, Comparison
from ithbit.reporting.comparison.compare import cell_name
from ithbit.reporting.differences import settings_text
from ithbit.reporting.tables.table import NOTHING, ReportTable, TableRow

_LONG = 36  # characters of a row's label from which it may be broken into lines


@dataclass(frozen=True)
class RowLabel:
    """The label of a row; in a long one, a name is not separated from its value by a line break."""

    text: str
    long: bool


@dataclass(frozen=True)
class PageCell:
    """One cell: our number and the published one, its tooltip, and what a click lists."""

    ours: str
    published: str
    marks: str
    has_published: bool
    has_runs: bool  # whether its column has any of ours
    shade: int | None  # the share of solved runs in fifths; None if it is no count
    published_shade: int | None
    differs: bool
    tip: str
    look_up: str | None  # JSON for the script


@dataclass(frozen=True)
class PageRow:
    """One row; `style` has its classes. The labels of a total span several columns."""

    style: str
    is_total: bool
    labels: tuple[RowLabel, ...]
    cells: tuple[PageCell, ...]


@dataclass(frozen=True)
class PageTable:
    """One table; `columns` has each head and whether the column has any number of ours."""

    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[PageRow, ...]
    notes: tuple[Markup, ...]


def row_label(text: str) -> RowLabel:
    """The label of a row."""
    long = len(text) > _LONG
    return RowLabel(text.replace(" = ", "\u00a0=\u00a0") if long else text, long)


def code_markup(text: str) -> Markup:
    """The text, escaped, with what is between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def layer_key(family: str, code: str) -> str:
    """The key of a family in the page's script; two codes with one name have two keys."""
    return f"{family} {code[:SHORT]}".strip()


def page_table(table: ReportTable, compared: Mapping[tuple[str, str], Comparison]) -> PageTable:
    """A table for the page; `compared` has the comparisons by kind and cell."""
    has_ours = [table.has(column, "ours") for column in range(len(table.columns))]
    return PageTable(
        table.name,
        table.title,
        table.heads,
        tuple(zip(table.columns, has_ours, strict=True)),
        tuple(
            _row(table, row, above, has_ours, compared)
            for above, row in zip((None, *table.rows), table.rows, strict=False)
        ),
        tuple(map(code_markup, table.notes)),
    )


def _row(
    table: ReportTable,
    row: TableRow,
    above: TableRow | None,
    has_ours: list[bool],
    compared: Mapping[tuple[str, str], Comparison],
) -> PageRow:
    unrun = "" if row.has_ours else " unrun"
    rule = " break" if above is not None and row.breaks(above) else ""
    is_total = row.kind == "total"
    labels = (row.labels[1], row.labels[3]) if is_total else row.labels
    return PageRow(
        f"{row.kind}{unrun}{rule}",
        is_total,
        tuple(RowLabel(text, long=False) if is_total else row_label(text) for text in labels),
        tuple(
            _cell(table, row, column, has_runs, compared)
            for column, has_runs in enumerate(has_ours)
        ),
    )


def _cell(
    table: ReportTable,
    row: TableRow,
    column: int,
    has_runs: bool,
    compared: Mapping[tuple[str, str], Comparison],
) -> PageCell:
    value, v, head = row.values[column], row.variant, table.columns[column]
    n_bits = int(head.removeprefix("n=")) if head.startswith("n=") else table.n_bits
    comparison, look_up = None, None
    if v is not None and n_bits is not None:
        chosen = {"task": v.task, "family": layer_key(v.family, v.code), "n_layers": v.n_layers}
        settings = settings_text(v.differs)
        chosen |= {"settings": settings} if settings else {"positions": "polynomial"}
        look_up = json.dumps(chosen | {"n_bits": n_bits})
        kind = {"main": "successes", "accuracy": "accuracy"}.get(table.name, "")
        if not v.differs:  # the paper has no other settings
            comparison = compared.get((kind, cell_name(v, n_bits)))
    tip = [f"published {value.published}"] if value.published else []
    if value.standing and value.standing.runs:
        tip = [value.standing.sentence(), *tip]
    if comparison is not None and comparison.p_value is not None:
        tip.append(f"p = {comparison.p_value:.2g} ({comparison.verdict})")
    return PageCell(
        value.ours or NOTHING,
        value.published or NOTHING,
        value.marks,
        bool(value.published),
        has_runs,
        _fifths(value.share),
        _fifths(value.published_share),
        comparison is not None and comparison.verdict == DIFFERS,
        "; ".join(tip),
        look_up,
    )


def _fifths(share: float | None) -> int | None:
    return None if share is None else round(5 * share)
