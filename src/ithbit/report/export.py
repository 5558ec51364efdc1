"""The store as two tidy tables: one row a run, and one row a run and epoch."""

from pathlib import Path
from typing import Any

import polars as pl

from ithbit.errors import SpecError
from ithbit.report.output import write_whole
from ithbit.report.rows import Records, read_history

EXPORT_FORMATS = ("parquet", "csv")
_EPOCH: dict[str, Any] = {
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "held_out_loss": pl.Float64,
    "held_out_accuracy": pl.Float64,
    "learning_rate": pl.Float64,
    "seconds": pl.Float64,
}


def histories(records: Records) -> pl.DataFrame:
    """Every epoch of every run, in the order of the rows and then of epochs."""
    columns: dict[str, list[Any]] = {name: [] for name in ("run_id", "name", *_EPOCH)}
    for run_id, name, folder in records.rows.select("run_id", "name", "folder").iter_rows():
        epochs = read_history(records.store, folder)
        columns["run_id"] += [run_id] * len(epochs)
        columns["name"] += [name] * len(epochs)
        for key in _EPOCH:
            columns[key] += [epoch.get(key) for epoch in epochs]
    schema: dict[str, Any] = {"run_id": pl.String, "name": pl.String, **_EPOCH}
    return pl.DataFrame(columns, schema=schema, strict=False)


def export(records: Records, folder: Path, form: str) -> list[Path]:
    """Write `runs` and `histories` into a folder as Parquet or CSV; gives the two paths."""
    if form not in EXPORT_FORMATS:
        raise SpecError(f"unknown format {form!r}; choose one of {', '.join(EXPORT_FORMATS)}")
    paths = []
    for name, frame in (("runs", records.rows), ("histories", histories(records))):
        write = frame.write_parquet if form == "parquet" else frame.write_csv
        paths.append(write_whole(folder / f"{name}.{form}", write))
    return paths
