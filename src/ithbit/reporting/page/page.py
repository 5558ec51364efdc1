"""The report: one HTML file with everything in it, readable from disk and without a network;
`html.py` says how text from records gets into it.
"""

import json
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, get_args

import polars as pl
from markupsafe import Markup, escape

from ithbit.display import printable
from ithbit.errors import StoreError
from ithbit.families import TASKS, Group
from ithbit.html import scripted_page
from ithbit.published import published
from ithbit.reporting.cells import SHORT, Cells, gather, labels, layers_of
from ithbit.reporting.comparison.agreement import DIFFERS, TESTED, Agreement, Comparison
from ithbit.reporting.comparison.compare import cell_name, compare
from ithbit.reporting.differences import (
    settings_by_text,
    settings_of,
    settings_order,
    settings_text,
    split_shared_and_distinct,
    with_differences,
)
from ithbit.reporting.figures import FIGURES, drawn, for_page
from ithbit.reporting.figures.style import looks
from ithbit.reporting.page.curves import thin_curve, thin_epochs
from ithbit.reporting.page.probe import rank_figure
from ithbit.reporting.page.proved import entries
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.table import NOTHING, ReportTable, TableRow
from ithbit.reporting.verdict_counts import SOLVED, STANDS, WORDS, VerdictCounts, standing
from ithbit.store.frame import Records
from ithbit.store.probed import probed_layers
from ithbit.store.writing import write_text

# About 400 bytes per run with 48 points: 10,000 runs stay far below 15 MB.
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
    "standing",
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
GROUPS = get_args(Group)


def _page_cell(
    found: dict[tuple[str, str], Comparison], table: ReportTable, row: TableRow, column: int
) -> dict[str, Any]:
    """What a table cell on the page has beside its value: its tooltip, what a click looks up."""
    value, v, head = row.values[column], row.variant, table.columns[column]
    n_bits = int(head.removeprefix("n=")) if head.startswith("n=") else table.n_bits
    comparison, look_up = None, None
    if v is not None and n_bits is not None:
        chosen = {"task": v.task, "family": _layer_key(v.family, v.code), "n_layers": v.n_layers}
        settings = settings_text(v.differs)
        chosen |= {"settings": settings} if settings else {"positions": "polynomial"}
        look_up = json.dumps(chosen | {"n_bits": n_bits})
        kind = {"main": "successes", "accuracy": "accuracy"}.get(table.name, "")
        if not v.differs:  # the paper has no other settings
            comparison = found.get((kind, cell_name(v, n_bits)))
    tip = [f"published {value.published}"] if value.published else []
    if value.standing and value.standing.runs:
        tip = [value.standing.sentence(), *tip]
    if comparison is not None and comparison.p_value is not None:
        tip.append(f"p = {comparison.p_value:.2g} ({comparison.verdict})")
    differs = comparison is not None and comparison.verdict == DIFFERS
    return {"tip": "; ".join(tip), "differs": differs, "look_up": look_up}


def _stands(cells: Cells) -> list[tuple[str, VerdictCounts]]:
    """How runs stand, by group and settings: all families, depths and lengths of one kind."""

    def place(kind: tuple[str, ...]) -> tuple[Any, ...]:
        differs, of, encoding = kind
        settings = settings_order(behind[differs])
        return encoding != "polynomial", settings, GROUPS.index(of), encoding

    runs = cells.of(cells.by_cell)
    behind = settings_by_text(runs)
    kinds = runs.partition_by("differs", "group", "encoding", as_dict=True)
    stands = []
    for differs, of, encoding in sorted(kinds, key=place):
        said = "" if encoding == "polynomial" else f", {encoding} positions"
        name = f"{of}{cells.suffix(behind[differs])}{said}"
        stands.append((name, standing(kinds[differs, of, encoding])))
    return stands


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _layer_key(family: str, code: str) -> str:
    """The key of a family in the page's script; two codes with one name have two keys."""
    return f"{family} {code[:SHORT]}".strip()


def _runs_data(records: Records) -> dict[str, Any]:
    """Columns, rows and curves for the page's script."""
    # Where settings differ from the paper's, the page says in what.
    said = pl.when(pl.col("differs") != "").then("differs").otherwise("settings")
    rows = with_differences(records.rows).with_columns(STANDS, settings=said)
    styles = looks(layers_of(rows))
    shown = labels(styles)
    names = {_layer_key(*layer): shown[layer] for layer in styles}
    order = {name: at for at, name in enumerate([*TASKS, *names])}
    behind = settings_by_text(rows)
    keys = [_layer_key(*layer) for layer in rows.select("family", "code").iter_rows()]
    rows = rows.with_columns(pl.Series("family", keys, pl.String)).sort(
        pl.col("task").replace_strict(order),
        pl.col("family").replace_strict(order),
        "n_layers",
        "n_bits",
        "positions",
        pl.col("differs").replace_strict({text: at for at, text in enumerate(behind)}),
        "seed",
    )
    distinct = split_shared_and_distinct(behind.values())[1]
    words = {text: settings_text(distinct[settings]) for text, settings in behind.items()}
    points = max(12, min(48, CURVE_BUDGET // (7 * max(1, rows.height))))
    table = [
        [*map(_finite, row), _curve(records, run_id, folder, points)]
        for row, run_id, folder in zip(
            rows.select(RUN_COLUMNS).iter_rows(), rows["run_id"], rows["folder"], strict=True
        )
    ]
    return {
        "columns": [*RUN_COLUMNS, "curve"],
        "rows": table,
        "labels": names,
        "colours": {_layer_key(*layer): look.colour for layer, look in styles.items()},
        "told": {text: f", {each}" if each else "" for text, each in words.items()}
        | {"paper": "", "early stop": ""},
        "points": points,
    }


def _curve(records: Records, run_id: str, folder: str, points: int) -> str:
    if records.is_export:
        return thin_epochs(records.history(run_id, folder), points)
    return thin_curve(f"{records.store}/{folder}", points)  # parses only the lines it keeps


def _coded(text: str) -> Markup:
    """The text, escaped, with what is between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _gathered(records: Records, settings: str) -> tuple[Cells, Agreement | None, str | None]:
    """Cells and comparison, or why there are none: a page of failures is still worth reading."""
    if records.rows.is_empty():
        return Cells(), None, "The store holds no runs; `ithbit train` starts some."
    try:
        cells = gather(records, settings)
    except StoreError as error:
        return Cells(), None, str(error)
    return cells, compare(cells), None


def render_page(records: Records, settings: str = "any") -> str:
    """The whole page as HTML."""
    cells, agreement, problem = _gathered(records, settings)
    found = {(c.kind, c.cell): c for c in agreement.comparisons} if agreement else {}
    tables = [TABLES[name](cells) for name in TABLES]
    return scripted_page(
        "ithbit.reporting.page",
        ["page.js"],
        _runs_data(records),
        coded=_coded,
        records=records,
        cells=cells,
        shared=settings_text(cells.shared),
        paper=published(),
        status=Counter(records.rows["status"]),
        settings=settings,
        problem=problem,
        stands=_stands(cells),
        solved=SOLVED,
        words=WORDS,
        agreement=agreement,
        tested=TESTED,
        tables=[table for table in tables if table.has_ours],
        page_cell=partial(_page_cell, found),
        probed=[
            (layer, settings_text(settings_of({**layer.protocol, "settings": ""})))
            for layer in probed_layers(records.store)
        ],
        rank_figure=rank_figure,
        entries=list(entries(cells)),
        figures=[
            (name, for_page(figure, name)) for name in FIGURES if (figure := drawn(name, cells))
        ],
        # Environments of finished runs, the most frequent first.
        machines=Counter(sorted(records.rows["environment"].drop_nulls())).most_common(),
        read_json=json.loads,
        nothing=NOTHING,
    )


def write_page(records: Records, path: Path, settings: str = "any") -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, render_page(records, settings))
