"""The report: one HTML file with everything in it, readable from disk and without a network;
`html.py` says how text from records gets into it.
"""

import math
from pathlib import Path
from typing import Any

import polars as pl

from ithbit.families import TASKS
from ithbit.html import scripted_page
from ithbit.reporting.cells import labels, layers_of
from ithbit.reporting.differences import (
    settings_by_text,
    settings_text,
    split_shared_and_distinct,
    with_differences,
)
from ithbit.reporting.figures.style import looks
from ithbit.reporting.page.curves import thin_curve, thin_epochs
from ithbit.reporting.page.page_tables import layer_key
from ithbit.reporting.page.sections import report_page
from ithbit.reporting.verdict_counts import VERDICT_OF_RUN
from ithbit.store.frame import Records
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


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _runs_data(records: Records) -> dict[str, Any]:
    """Columns, rows and curves for the page's script."""
    # Where settings differ from the paper's, the page says in what.
    settings = pl.when(pl.col("differs") != "").then("differs").otherwise("settings")
    rows = with_differences(records.rows).with_columns(VERDICT_OF_RUN, settings=settings)
    styles = looks(layers_of(rows))
    shown = labels(styles)
    names = {layer_key(*layer): shown[layer] for layer in styles}
    order = {name: at for at, name in enumerate([*TASKS, *names])}
    behind = settings_by_text(rows)
    keys = [layer_key(*layer) for layer in rows.select("family", "code").iter_rows()]
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
        "colours": {layer_key(*layer): look.colour for layer, look in styles.items()},
        "settingsText": {text: f", {each}" if each else "" for text, each in words.items()}
        | {"paper": "", "early stop": ""},
        "points": points,
    }


def _curve(records: Records, run_id: str, folder: str, points: int) -> str:
    if records.is_export:
        return thin_epochs(records.history(run_id, folder), points)
    return thin_curve(f"{records.store}/{folder}", points)  # parses only the lines it keeps


def render_page(records: Records, settings: str = "any") -> str:
    """The whole page as HTML."""
    page = report_page(records, settings)
    return scripted_page("ithbit.reporting.page", ["page.js"], _runs_data(records), page=page)


def write_page(records: Records, path: Path, settings: str = "any") -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, render_page(records, settings))
