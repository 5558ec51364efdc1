"""The store as two tidy tables: one row a run, and one row a run and epoch."""

import os
from pathlib import Path
from typing import Any

import polars as pl

from ithbit.engine.reading import TABLE_FORMATS
from ithbit.errors import OutputError, SpecError
from ithbit.report.output import write_whole
from ithbit.report.rows import Records
from ithbit.report.tidy import HISTORY_COLUMNS

_NAMES = ("runs", "histories")


def histories(records: Records) -> pl.DataFrame:
    """Every epoch of every run, in the order of the rows and then of epochs."""
    columns: dict[str, list[Any]] = {name: [] for name in HISTORY_COLUMNS}
    for run_id, name, folder in records.rows.select("run_id", "name", "folder").iter_rows():
        epochs = records.history(run_id, folder)
        columns["run_id"] += [run_id] * len(epochs)
        columns["name"] += [name] * len(epochs)
        for key in columns.keys() - {"run_id", "name"}:
            columns[key] += [epoch.get(key) for epoch in epochs]
    return pl.DataFrame(columns, schema=HISTORY_COLUMNS, strict=False)


def export(records: Records, folder: Path, form: str) -> list[Path]:
    """Write `runs` and `histories` into a folder as Parquet or CSV; gives the two paths.

    A folder that has either in the other format is refused before anything is written.
    """
    if form not in TABLE_FORMATS:
        raise SpecError(f"unknown format {form!r}; choose one of {', '.join(TABLE_FORMATS)}")
    others = [f"{name}.{other}" for name in _NAMES for other in TABLE_FORMATS if other != form]
    for other in others:
        if os.path.isfile(folder / other):
            raise OutputError(
                f"{folder} has {other} already, and of a table in two formats neither is read; "
                "name another folder with --out, or move that file away"
            )
    paths = []
    for name, frame in zip(_NAMES, (records.rows, histories(records)), strict=True):
        write = frame.write_parquet if form == "parquet" else frame.write_csv
        paths.append(write_whole(folder / f"{name}.{form}", write))
    return paths
