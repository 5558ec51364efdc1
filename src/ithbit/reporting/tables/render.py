"""A table as text for a terminal, Markdown, CSV or LaTeX (booktabs).

`show` is ours, published or both. With both, text, Markdown and LaTeX put the published number in
parentheses after ours; CSV gives it a column of its own.
"""

import csv
import io
from collections.abc import Callable, Iterator

from ithbit.display import COLUMNS, aligned, wrapped
from ithbit.reporting.tables.table import NOTHING, ReportTable, TableRow
from ithbit.reporting.verdict_counts import WORDS

_WHOSE = ("ours", "published")
SHOWS = (*_WHOSE, "both")


def _text(table: ReportTable, row: TableRow, at: int, show: str) -> str:
    """The text of a cell; in a column that the paper does not have, only our number."""
    value = row.values[at]
    theirs = value.published or NOTHING
    if show == "published":
        return theirs
    in_brackets = f"({theirs})" if show == "both" and table.has(at, "published") else ""
    return " ".join(filter(None, (value.ours or NOTHING, in_brackets, value.marks)))


def _rows(table: ReportTable, show: str) -> list[TableRow]:
    """Rows that have something to show: the paper has no extra rows, and we may not have all."""
    if show == "both":
        return list(table.rows)
    return [row for row in table.rows if any(getattr(value, show) for value in row.values)]


def _columns(table: ReportTable, show: str) -> list[int]:
    """Columns that have something to show."""
    columns = range(len(table.columns))
    return [at for at in columns if show == "both" or table.has(at, show)]


def _grid(table: ReportTable, show: str) -> tuple[list[str], list[TableRow], list[list[str]]]:
    """What there is to show: heads, rows, and the texts of every row."""
    rows, columns = _rows(table, show), _columns(table, show)
    heads = [*table.heads, *(table.columns[at] for at in columns)]
    texts = [[*row.labels, *(_text(table, row, at, show) for at in columns)] for row in rows]
    return heads, rows, texts


def _caption(table: ReportTable, show: str) -> str:
    shown = {"both": "ours (published)", "ours": "ours", "published": "published"}[show]
    return f"{table.title}; {shown}"


def _notes(table: ReportTable, show: str) -> list[str]:
    """The first note explains the columns; the others are about our runs."""
    first, *rest = table.notes
    return [first] if show == "published" else [first, *table.legend, *rest]


def _layouts(
    heads: list[str], cells: list[list[str]], rows: list[TableRow], n_labels: int
) -> Iterator[tuple[list[int], int, bool]]:
    """Widths of the columns, the gap between them, and whether ours go above the published.

    The roomiest comes first. Then heads and totals wrap to the width of the other rows, then values
    wrap, and finally labels.
    """
    natural, unbroken, broken = [], [], []
    for head, *column in zip(heads, *cells, strict=True):
        word = max(len(word) for text in (head, *column) for word in text.split())
        others = [len(text) for text, row in zip(column, rows, strict=True) if row.kind != "total"]
        natural.append(max(len(text) for text in (head, *column)))
        unbroken.append(max([word, *others]))
        broken.append(word)
    yield natural, 3, False
    yield natural, 2, False
    for widths in (unbroken, unbroken[:n_labels] + broken[n_labels:], broken):
        for gap in (3, 2, 1):
            yield widths, gap, widths is not unbroken


def _width(widths: list[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def to_text(table: ReportTable, show: str) -> str:
    """The table for a terminal of eighty columns, without colours: it reads the same in a file.

    It can be wider only with lengths or names beyond the paper's.
    """
    heads, rows, cells = _grid(table, show)
    if not rows:
        none = "No finished run of the store belongs in this table."
        none = "The paper has no numbers for this table." if show == "published" else none
        return f"{_caption(table, show)}\n\n{none}\n"
    layouts = list(_layouts(heads, cells, rows, len(table.heads)))
    widths, gap, stacked = next(
        (layout for layout in layouts if _width(layout[0], layout[1]) <= COLUMNS), layouts[-1]
    )
    if stacked:
        cells = [[text.replace(" (", "\n(") for text in row] for row in cells]
    to_left = [head in table.heads and head not in ("L", "n", "Train n") for head in heads]
    lines = [*aligned(heads, widths, gap, to_left), "─" * _width(widths, gap)]
    for number, row in enumerate(cells):
        lines += [""] if number and rows[number].breaks(rows[number - 1]) else []
        lines += aligned(row, widths, gap, to_left)
    notes = [line for note in _notes(table, show) for line in wrapped(note, "  ", "    ")]
    caption = wrapped(_caption(table, show), then="  ")
    return "\n".join([*caption, "", *lines, "", *notes, ""])


def to_markdown(table: ReportTable, show: str) -> str:
    """A GitHub table with its caption above and its notes below."""
    heads, _, cells = _grid(table, show)
    n_labels = len(table.heads)
    lines = [f"**{_caption(table, show)}**", "", f"| {' | '.join(heads)} |"]
    lines.append("|" + " --- |" * n_labels + " ---: |" * (len(heads) - n_labels))
    lines += [f"| {' | '.join(row).replace('*', chr(92) + '*')} |" for row in cells]
    notes = [f"- {note.replace('*', chr(92) + '*')}" for note in _notes(table, show)]
    return "\n".join([*lines, "", *notes, ""])


def to_csv(table: ReportTable, show: str) -> str:
    """Comma-separated values with a header; empty where there is nothing.

    After a column of solved runs come columns for how they stand, one per word that applies to any.
    """
    rows = _rows(table, show)
    heads, lines = list(table.heads), [list(row.labels) for row in rows]
    for at in _columns(table, show):
        head, values = table.columns[at], [row.values[at] for row in rows]
        counts = [v.standing for v in values if v.standing and show != "published"]
        words = [word for word in WORDS if any(each.counts[word] for each in counts)]
        heads += [head, f"{head} published"] if show == "both" else [head]
        heads += [f"{head} {word}" for word in words]
        for line, value in zip(lines, values, strict=True):
            line += [getattr(value, whose) or "" for whose in _WHOSE if show in (whose, "both")]
            standing = value.standing if value.standing and value.standing.tried else None
            line += [str(standing.counts[word]) if standing else "" for word in words]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([heads, *lines])
    return stream.getvalue()


_LATEX = str.maketrans(
    {
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
)


def to_latex(table: ReportTable, show: str) -> str:
    """A table environment; needs the packages booktabs and amssymb."""
    heads, rows, cells = _grid(table, show)
    shape = "l" * len(table.heads) + "r" * (len(heads) - len(table.heads))
    lines = [
        "% needs \\usepackage{booktabs,amssymb}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        " & ".join(head.translate(_LATEX).replace("n=", "$n$=") for head in heads) + r" \\",
        r"\midrule",
    ]
    for number, row in enumerate(cells):
        if number and rows[number].breaks(rows[number - 1]):
            lines.append(r"\midrule")
        lines.append(" & ".join(text.translate(_LATEX) for text in row) + r" \\")
    notes = ". ".join(_notes(table, show)).translate(_LATEX)
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_caption(table, show).translate(_LATEX)}. {notes}.}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[ReportTable, str], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}
