"""The report: one HTML file with everything in it, readable from disk and without a network.

Text from records reaches the page in two ways, both safe: through the template, which escapes it,
and as JSON in a data block, which the script puts into the page as text nodes. A content security
policy lets no other script than the page's own run, and no request leave.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup, escape

from ithbit import __version__
from ithbit.errors import StoreError
from ithbit.families import TASKS, Group, Task, family_named
from ithbit.published import RUNS_PER_CELL, Variant, published
from ithbit.report.cells import SHORT, Cells, gather, labels, shown_lengths
from ithbit.report.comparison.agreement import DIFFERS, Agreement, Comparison
from ithbit.report.comparison.compare import cell_name, compare
from ithbit.report.comparison.statistics import Count
from ithbit.report.differences import with_differences
from ithbit.report.figures import FIGURES, draw, to_svg
from ithbit.report.figures.style import FAINT, INK, PAPER, looks
from ithbit.report.page.curves import thin_curve, thin_epochs
from ithbit.report.tables.main import TABLES, table_named
from ithbit.report.tables.table import MARKS, NOTHING, VERDICTS, Row, Table, Value
from ithbit.selfcontained import environment, safe_json, script_hash, template_part
from ithbit.store.frame import Records
from ithbit.store.probed import probed_layers
from ithbit.store.writing import write_text
from ithbit.theory.verdicts import table as derived_table

HOME = "ithbit.report.page"
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
class TheoryLine:
    """What theory and training say of one architecture, by task."""

    label: str
    proved: dict[Task, str]  # the least number of layers
    learnt: "dict[Task, LearntDepth]"


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
            chosen = {"task": v.task, "family": _layer_key(v.family, v.code)}
            if v.differs:
                chosen["settings"] = v.differs
            look_up = json.dumps(chosen | {"n_layers": v.n_layers, "n_bits": n_bits})
            comparison = found.get((kind or "", cell_name(v, n_bits)))
        tip = f"ours {value.ours or NOTHING}, published {value.published or NOTHING}"
        if comparison is not None and comparison.p_value is not None:
            tip += f", p = {comparison.p_value:.2g} ({comparison.verdict})"
        differs = comparison is not None and comparison.verdict == DIFFERS
        shades = _shade(value.share), _shade(value.published_share)
        cells.append(PageCell(value, *shades, tip, differs, look_up))
    return cells


def _theory(cells: Cells) -> list[TheoryLine]:
    """A line for each architecture of the paper's summary table, and for each layer beyond it."""
    derived = {(entry.family, entry.task): entry.min_layers for entry in derived_table()}

    def proved(family: str, task: Task) -> str:
        formal = family_named(family).formal
        return str(derived[formal, task] or "ω(1)") if formal else NOTHING

    paper = [row.variant for row in published().accuracy]
    own = cells.own()
    lines: list[tuple[str, tuple[str, ...]]] = [
        (row.label, (row.family, "")) for row in published().theory
    ]
    lines += dict.fromkeys((cells.label(v), v.layer) for v in own)
    return [
        TheoryLine(
            label,
            {task: proved(layer[0], task) for task in TASKS},
            {
                task: _learnt(
                    cells,
                    [v for v in (*paper, *own) if (v.layer, v.task) == (layer, task)],
                )
                for task in TASKS
            },
        )
        for label, layer in lines
    ]


def _learnt(cells: Cells, variants: list[Variant]) -> LearntDepth:
    """What training found in the place of the theory's least number of layers."""
    printed = {
        Variant(row.task, name, row.n_layers): (row.successes[64], RUNS_PER_CELL)
        for row in published().successes
        for name in row.families
    }
    ours = {v.n_layers: cells.count(v, 64) for v in variants}
    theirs = {v.n_layers: printed.get(v, (0, 0)) for v in variants}
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
    variants = [row.counted for row in paper.successes if row.group == group]
    printed, runs = paper.totals[group], paper.runs_per_total[group]
    return [
        (n, cells.total(variants, n), (printed[n], runs) if n in printed else (0, 0))
        for n in shown_lengths(cells)
    ]


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


def _layer_key(family: str, code: str) -> str:
    """What the page's script knows a family by; two codes of one name are two."""
    return f"{family} {code[:SHORT]}".strip()


def _runs_json(records: Records) -> Markup:
    """Columns, rows and curves as JSON that is safe inside a script element."""
    # Where settings are other than the paper's, the page says in what.
    said = pl.when(pl.col("settings") == "other").then("differs").otherwise("settings")
    rows = with_differences(records.rows).with_columns(settings=said)
    styles = looks(sorted(rows.select("family", "code").unique().iter_rows()))
    names = {_layer_key(*layer): label for layer, label in labels(styles).items()}
    order = {name: at for at, name in enumerate([*TASKS, *names])}
    keys = [_layer_key(*layer) for layer in rows.select("family", "code").iter_rows()]
    rows = rows.with_columns(pl.Series("family", keys, pl.String)).sort(
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
        "labels": names,
        "colours": {_layer_key(*layer): look.colour for layer, look in styles.items()},
        "points": points,
    }
    return safe_json(data)


def _curve(records: Records, run_id: str, folder: str, points: int) -> str:
    if records.is_export:
        return thin_epochs(records.history(run_id, folder), points)
    return thin_curve(f"{records.store}/{folder}", points)  # parses the lines it keeps alone


def _themed(svg: str) -> Markup:
    """The figure with the page's own ink, paper and faint lines."""
    for colour, name in ((INK, "ink"), (PAPER, "card"), (FAINT, "line")):
        svg = svg.replace(colour, f"var(--{name})")
    return Markup(svg)  # drawn here, from numbers and our own labels


def _coded(text: str) -> Markup:
    """The text, escaped, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _gathered(records: Records, settings: str) -> tuple[Cells, Agreement | None, str | None]:
    """Cells and comparison, or why there are none: a page of failures is still worth reading."""
    try:
        cells = gather(records, settings)
    except StoreError as error:
        return Cells(), None, str(error)
    return cells, compare(cells), None


def render_page(records: Records, settings: str = "paper") -> str:
    """The whole page as HTML."""
    cells, agreement, problem = _gathered(records, settings)
    found = {(c.kind, c.cell): c for c in agreement.comparisons} if agreement else {}
    tables = [table_named(name, cells) for name in TABLES]
    html, css, script = (template_part(HOME, f"page.{kind}") for kind in ("html", "css", "js"))
    templates = environment()
    templates.filters["coded"] = _coded
    rows = records.rows
    status = {
        name: rows.filter(status=name).height for name in ("finished", "failed", "unfinished")
    }
    return templates.from_string(html).render(
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
        verified=_verified(cells),
        probed=probed_layers(records.store),
        totals=[(name, _totals(cells, name)) for name in MARKS] if cells.by_cell else [],
        theory=_theory(cells),
        figures=[
            (name, CAPTIONS[name], _themed(to_svg(draw(name, cells), name))) for name in FIGURES
        ],
        machines=_machines(rows),
        paper_machine=published().environment,
        paper_settings=published().settings,
        set_aside=records.set_aside,
        nothing=NOTHING,
        style=Markup(css),  # our own file
        script=Markup(script),  # our own file
        script_hash=script_hash(script),
        runs_json=_runs_json(records),
    )


def _verified(cells: Cells) -> str | None:
    """Of the solved runs in the main table's totals, how many are right everywhere; None if none
    was tried."""
    counted = [row.counted for row in published().successes]
    found = cells.verdicts(counted, shown_lengths(cells))
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
