"""A table as text for a terminal, Markdown, CSV or LaTeX (booktabs).

`show` is ours, published or both. With both, text, Markdown and LaTeX put the published number in
brackets behind ours; CSV gives it a column of its own.
"""

import csv
import io
import textwrap
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from ithbit.errors import SpecError
from ithbit.report.table import NOTHING, Row, Table

SHOWS = ("ours", "published", "both")


def _text(table: Table, row: Row, at: int, show: str) -> str:
    """A cell of a column; of one that the paper does not have, our number alone."""
    value = row.values[at]
    ours, theirs = value.ours or NOTHING, value.published or NOTHING
    if show == "both" and not _is_published(table, at):
        return ours
    if show == "both":
        return f"{ours} ({theirs})"
    return ours if show == "ours" else theirs


def _is_published(table: Table, at: int) -> bool:
    return any(row.values[at].published for row in table.rows)


def _rows(table: Table, show: str) -> list[Row]:
    """Rows that have something to show: the paper has no extra rows."""
    return [row for row in table.rows if show != "published" or row.kind != "extra"]


def _columns(table: Table, show: str) -> list[int]:
    """Columns that have something to show: the paper has no extra lengths."""
    return [
        at for at in range(len(table.columns)) if show != "published" or _is_published(table, at)
    ]


def _breaks_before(rows: list[Row], at: int) -> bool:
    """Whether a rule stands above row `at`: a new task, the rows beyond the paper, the totals."""
    if at == 0:
        return False
    row, above = rows[at], rows[at - 1]
    new_task = row.labels[0] in ("RHI", "LHI") and row.labels[0] != above.labels[0]
    return row.kind != above.kind or new_task


def _caption(table: Table, show: str) -> str:
    shown = {"both": "ours (published)", "ours": "ours", "published": "published"}[show]
    return f"{table.title}; {shown}"


def _notes(table: Table, show: str) -> tuple[str, ...]:
    """The first note reads the columns; the others are about our runs."""
    return table.notes[:1] if show == "published" else table.notes


def to_text(table: Table, show: str) -> str:
    """The table for a terminal, without colours: it reads the same in a file."""
    rows, columns = _rows(table, show), _columns(table, show)
    # Two numbers with their spreads side by side are too wide for a terminal.
    tall = show == "both" and any("±" in (v.published or "") for v in rows[0].values)
    shape = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in table.heads:
        shape.add_column(head, justify="right" if head in ("L", "n", "Train n") else "left")
    for at in columns:
        shape.add_column(table.columns[at], justify="right")
    for number, row in enumerate(rows):
        if _breaks_before(rows, number):
            shape.add_section()
        texts = [_text(table, row, at, show) for at in columns]
        shape.add_row(*row.labels, *(t.replace(" (", "\n(") if tall else t for t in texts))
    stream = io.StringIO()
    console = Console(file=stream, width=240, color_system=None, legacy_windows=False)
    console.print(shape)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    notes = [
        textwrap.fill(note, 96, initial_indent="  ", subsequent_indent="    ")
        for note in _notes(table, show)
    ]
    return "\n".join([_caption(table, show), "", *lines, "", *notes, ""])


def to_markdown(table: Table, show: str) -> str:
    """A GitHub table with its caption above and its notes below."""
    rows, columns = _rows(table, show), _columns(table, show)
    heads = [*table.heads, *(table.columns[at] for at in columns)]
    lines = [f"**{_caption(table, show)}**", "", f"| {' | '.join(heads)} |"]
    lines.append("|" + " --- |" * len(table.heads) + " ---: |" * len(columns))
    for row in rows:
        cells = [*row.labels, *(_text(table, row, at, show) for at in columns)]
        lines.append(f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in cells)} |")
    notes = [f"- {note.replace('*', chr(92) + '*')}" for note in _notes(table, show)]
    return "\n".join([*lines, "", *notes, ""])


def to_csv(table: Table, show: str) -> str:
    """Comma-separated values with a header; empty where there is nothing."""
    rows, columns = _rows(table, show), _columns(table, show)
    heads = list(table.heads)
    for at in columns:
        head = table.columns[at]
        heads += [head, f"{head} published"] if show == "both" else [head]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        cells = list(row.labels)
        for at in columns:
            value = row.values[at]
            if show != "published":
                cells.append(value.ours or "")
            if show != "ours":
                cells.append(value.published or "")
        writer.writerow(cells)
    return stream.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "✓": r"\checkmark",
    "✗": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
    "*": r"\textsuperscript{*}",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def to_latex(table: Table, show: str) -> str:
    """A table environment; needs the packages booktabs and amssymb."""
    rows, columns = _rows(table, show), _columns(table, show)
    heads = [*table.heads, *(table.columns[at] for at in columns)]
    shape = "l" * len(table.heads) + "r" * len(columns)
    lines = [
        "% needs \\usepackage{booktabs,amssymb}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        " & ".join(_latex(head).replace("n=", "$n$=") for head in heads) + r" \\",
        r"\midrule",
    ]
    for number, row in enumerate(rows):
        if _breaks_before(rows, number):
            lines.append(r"\midrule")
        cells = [*row.labels, *(_text(table, row, at, show) for at in columns)]
        lines.append(" & ".join(map(_latex, cells)) + r" \\")
    notes = ". ".join(_latex(note) for note in _notes(table, show))
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_latex(_caption(table, show))}. {notes}.}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Table, str], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}


def check_format(form: str, show: str) -> None:
    """Raise `SpecError` unless both are known."""
    if form not in FORMATS:
        raise SpecError(f"unknown format {form!r}; choose one of {', '.join(FORMATS)}")
    if show not in SHOWS:
        raise SpecError(f"cannot show {show!r}; choose one of {', '.join(SHOWS)}")


def render(table: Table, form: str, show: str) -> str:
    """The table in one of the formats.

    >>> from ithbit.report.tables import table_named
    >>> print(render(table_named("length-by-n", None), "csv", "published").splitlines()[1])
    8,45/45,0.629±0.091,0.535±0.026
    """
    check_format(form, show)
    return FORMATS[form](table, show)
