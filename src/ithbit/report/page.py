"""The report: one HTML file with everything in it, readable from disk and without a network.

Text from records reaches the page in two ways, both safe: through the template, which escapes it,
and as JSON in a data block, which the script puts into the page as text nodes. A content security
policy lets no other script than the page's own run, and no request leave.
"""

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from markupsafe import Markup, escape

from ithbit import __version__
from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS, Group
from ithbit.report.agreement import DIFFERS, Agreement, Comparison
from ithbit.report.cells import Cells, gather, shown_lengths
from ithbit.report.compare import cell_name, compare
from ithbit.report.curves import thin_curve, thin_epochs
from ithbit.report.figures import FIGURES, draw, to_svg
from ithbit.report.figures.style import FAINT, INK, LOOKS, PAPER
from ithbit.report.output import write_text
from ithbit.report.probed import probed_layers
from ithbit.report.published import Variant, published
from ithbit.report.rows import Records
from ithbit.report.statistics import Count
from ithbit.report.table import MARKS, NOTHING, Row, Table, Value
from ithbit.report.tables import TABLES, VERDICTS, table_named

# About 400 bytes a run with 48 points: 10,000 runs stay far below 15 MB.
CURVE_BUDGET = 4_000_000
RUN_COLUMNS = (
    "name",
    "run_id",
    "status",
    "task",
    "family",
    "n_layers",
    "n_bits",
    "positions",
    "seed",
    "group",
    "settings",
    "solved",
    "verification",
    "max_accuracy",
    "final_accuracy",
    "final_loss",
    "epochs",
    "first_solved_epoch",
    "stopped_by",
    "n_parameters",
    "seconds_per_epoch",
    "half_length_accuracy",
    "double_length_accuracy",
    "d_model",
    "n_heads",
    "error",
)
CAPTIONS = {
    "successes": "Successful runs of all configurations, ours beside the published counts. A ring "
    "marks a rate that is nearer to another count of five than to the published one.",
    "accuracy": "Maximum held-out accuracy against length, mean and one standard deviation over "
    "seeds; open marks are the published means.",
    "epochs": "Epochs to the first perfect epoch and to the end of training, seed by seed, for the "
    "constructive variants; the star is the published median.",
    "positions": "Encodings: share of successes and mean maximum accuracy; diamonds are published.",
    "length": "Accuracy at half and twice the trained length, of runs that succeeded at n.",
}


@dataclass(frozen=True)
class PageCell:
    """One table cell on the page: what it shows, how it is shaded, what a click looks up."""

    value: Value
    shade: int | None
    published_shade: int | None
    tip: str
    differs: bool
    look_up: str | None


@dataclass(frozen=True)
class LearntDepth:
    """Least depth at which most runs succeed at n = 64, in words, for one architecture and task."""

    ours: str
    published: str


def _shade(share: float | None) -> int | None:
    return None if share is None else round(5 * share)


def _row_length(table: Table, row: Row, column: int) -> int | None:
    """The n of a cell's runs, where it has one."""
    if row.variant is None:
        return None
    head = table.columns[column]
    if head == VERDICTS:
        return None
    return int(head.removeprefix("n=")) if head.startswith("n=") else 64


def _page_cells(table: Table, row: Row, found: dict[tuple[str, str], Comparison]) -> list[PageCell]:
    kind = {"main": "successes", "accuracy": "accuracy"}.get(table.name)
    cells = []
    for column, value in enumerate(row.values):
        n_bits = _row_length(table, row, column)
        comparison, look_up = None, None
        if row.variant is not None and n_bits is not None:
            v = row.variant
            look_up = json.dumps(
                {"task": v.task, "family": v.family, "n_layers": v.n_layers, "n_bits": n_bits}
            )
            comparison = found.get((kind or "", cell_name(v, n_bits)))
        tip = f"ours {value.ours or NOTHING}, published {value.published or NOTHING}"
        if comparison is not None and comparison.p_value is not None:
            tip += f", p = {comparison.p_value:.2g} ({comparison.verdict})"
        differs = comparison is not None and comparison.verdict == DIFFERS
        shades = _shade(value.share), _shade(value.published_share)
        cells.append(PageCell(value, *shades, tip, differs, look_up))
    return cells


def _learnt(cells: Cells | None, family: str, task: str) -> LearntDepth:
    """What training found in the place of the theory's least number of layers."""
    variants = [
        row.variant
        for row in published().accuracy
        if row.variant.family == family and row.variant.task == task
    ]
    printed = {
        Variant(row.task, name, row.n_layers): row.successes[64]
        for row in published().successes
        for name in row.families
    }
    ours = {v.n_layers: cells.count(v, 64) if cells else (0, 0) for v in variants}
    theirs = {v.n_layers: (printed[v], 5) for v in variants}
    return LearntDepth(*(_least_depth(counts) for counts in (ours, theirs)))


def _least_depth(counts: dict[int, tuple[int, int]]) -> str:
    trained = {depth: count for depth, count in counts.items() if count[1]}
    if not trained:
        return NOTHING
    for depth, (k, m) in sorted(trained.items()):
        if 2 * k > m:
            return f"{depth} ({k}/{m})"
    return f"none up to {max(trained)}"


def _totals(cells: Cells, group: Group) -> list[tuple[int, Count, Count]]:
    """For each n: our successes and runs, and the published; no runs where there are none."""
    paper = published()
    rows = [row for row in paper.successes if row.group == group]
    sums = []
    for n_bits in shown_lengths(cells):
        counts = [cells.count(row.counted, n_bits) for row in rows]
        ours = (sum(k for k, _ in counts), sum(m for _, m in counts))
        theirs = (0, 0)
        if n_bits in paper.totals[group]:
            theirs = (paper.totals[group][n_bits], paper.runs_per_total[group])
        sums.append((n_bits, ours, theirs))
    return sums


def _machines(rows: pl.DataFrame) -> list[tuple[int, dict[str, Any]]]:
    """The environments of finished runs with the number of runs of each, most frequent first."""
    counts = (
        rows.filter(pl.col("environment").is_not_null())
        .group_by("environment")
        .len()
        .sort("len", "environment", descending=[True, False])
    )
    return [(number, json.loads(text)) for text, number in counts.iter_rows()]


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _runs_json(records: Records) -> str:
    """Columns, rows and curves as JSON that is safe inside a script element."""
    order = {name: at for at, name in enumerate([*TASKS, *FAMILIES])}
    rows = records.rows.sort(
        pl.col("task").replace_strict(order),
        pl.col("family").replace_strict(order),
        "n_layers",
        "n_bits",
        "positions",
        "seed",
    )
    points = max(12, min(48, CURVE_BUDGET // (7 * max(1, rows.height))))
    table = [
        [*map(_finite, row), _curve(records, run_id, folder, points)]
        for row, run_id, folder in zip(
            rows.select(RUN_COLUMNS).iter_rows(), rows["run_id"], rows["folder"], strict=True
        )
    ]
    data = {
        "columns": [*RUN_COLUMNS, "curve"],
        "rows": table,
        "labels": {name: family.label for name, family in FAMILIES.items()},
        "colours": {name: look.colour for name, look in LOOKS.items()},
        "points": points,
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Inside a script element only these can end it or open a comment.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _curve(records: Records, run_id: str, folder: str, points: int) -> str:
    if records.is_export:
        return thin_epochs(records.history(run_id, folder), points)
    return thin_curve(records.store, folder, points)  # parses the lines it keeps alone


def _themed(svg: str) -> Markup:
    """The figure with the page's own ink, paper and faint lines."""
    for colour, name in ((INK, "ink"), (PAPER, "card"), (FAINT, "line")):
        svg = svg.replace(colour, f"var(--{name})")
    return Markup(svg)  # drawn here, from numbers and our own labels


def _coded(text: str) -> Markup:
    """The text, escaped, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _part(name: str) -> str:
    return files("ithbit.report").joinpath("template", name).read_text(encoding="utf-8")


def _gathered(records: Records, settings: str) -> tuple[Cells | None, Agreement | None, str | None]:
    """Cells and comparison, or why there are none: a page of failures is still worth reading."""
    try:
        cells = gather(records, settings)
    except StoreError as error:
        return None, None, str(error)
    return cells, compare(cells), None


def render_page(records: Records, settings: str = "paper") -> str:
    """The whole page as HTML."""
    cells, agreement, problem = _gathered(records, settings)
    found = {(c.kind, c.cell): c for c in agreement.comparisons} if agreement else {}
    tables = [table_named(name, cells) for name in TABLES]
    script = _part("page.js")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["coded"] = _coded
    rows = records.rows
    status = {
        name: rows.filter(status=name).height for name in ("finished", "failed", "unfinished")
    }
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_part("page.html")).render(
        version=__version__,
        store=str(records.store),
        status=status,
        settings=settings,
        problem=problem,
        agreement=agreement,
        largest=agreement.largest() if agreement else [],
        tables=[
            (table, [(row, _page_cells(table, row, found)) for row in table.rows])
            for table in tables
        ],
        verified=_verified(cells) if cells else None,
        probed=probed_layers(records.store),
        totals=[(name, _totals(cells, name)) for name in MARKS] if cells else [],
        theory=[
            (row, {task: _learnt(cells, row.family, task) for task in TASKS})
            for row in published().theory
        ],
        figures=[
            (name, CAPTIONS[name], _themed(to_svg(draw(name, cells), name))) for name in FIGURES
        ],
        machines=_machines(rows),
        paper_machine=published().environment,
        paper_settings=published().settings,
        set_aside=records.set_aside,
        nothing=NOTHING,
        style=Markup(_part("page.css")),  # our own file
        script=Markup(script),  # our own file
        script_hash=script_hash,
        runs_json=Markup(_runs_json(records)),  # escaped for a script element
    )


def _verified(cells: Cells) -> str | None:
    """Of the solved runs in the main table's totals, how many are right everywhere; None if none
    was tried."""
    counted = [row.counted for row in published().successes]
    found = cells.all_verdicts(counted, shown_lengths(cells))
    if not found.tried:
        return None
    return (
        f"Of the solved runs in the main table's totals ({found.solved}), `ithbit verify` has "
        f"tried {found.tried}: {found.right} right on all inputs, {found.wrong} with a "
        f"counterexample, {found.open} left open. Observed in float32 with the final weights."
    )


def write_page(records: Records, path: Path, settings: str = "paper") -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, render_page(records, settings))
