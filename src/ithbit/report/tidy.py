"""The tidy tables of an export, read back: `runs` and, where it is there, `histories`.

Either may be Parquet or CSV. Columns and types are known beforehand; a file that has others is
refused with the column or the row that is wrong. Rows are counted from 1, without the head.
"""

from pathlib import Path
from typing import Any

import polars as pl

from ithbit.engine.reading import TABLE_FORMATS
from ithbit.errors import StoreError

HISTORY_COLUMNS: dict[str, Any] = {
    "run_id": pl.String,
    "name": pl.String,
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "held_out_loss": pl.Float64,
    "held_out_accuracy": pl.Float64,
    "learning_rate": pl.Float64,
    "seconds": pl.Float64,
}


def table_path(folder: Path, name: str) -> Path | None:
    """The file of one table in a folder, None if there is none; an error if there are two."""
    found = [path for form in TABLE_FORMATS if (path := folder / f"{name}.{form}").is_file()]
    if len(found) > 1:
        raise StoreError(
            f"{folder} holds both {' and '.join(path.name for path in found)}; keep one of them"
        )
    return found[0] if found else None


def read_table(path: Path, columns: dict[str, Any]) -> pl.DataFrame:
    """The table of a file with exactly these columns; raises `StoreError` on anything else."""
    try:
        if path.suffix == ".csv":
            if not path.read_bytes().endswith(b"\n"):
                raise StoreError(f"{path} ends within a line: it is torn; copy it again")
            frame = pl.read_csv(path, infer_schema=False)
        else:
            frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        first = str(error).partition("\n")[0]
        raise StoreError(
            f"{path} cannot be read as {path.suffix[1:]} ({first}); copy it again"
        ) from error
    for names, has, but in ((columns, frame.columns, "lacks"), (frame.columns, columns, "has")):
        odd = [name for name in names if name not in has]
        if odd:
            raise StoreError(
                f"{path} {but} the column {odd[0]!r}; it is no table that `ithbit export` of this "
                "version wrote"
            )
    if path.suffix == ".csv":
        return pl.DataFrame({name: _parsed(path, frame[name], columns[name]) for name in columns})
    for name, kind in columns.items():
        if frame[name].dtype != kind:
            raise StoreError(f"{path}: the column {name!r} has {frame[name].dtype}, not {kind}()")
    return frame.select(list(columns))


def _parsed(path: Path, texts: pl.Series, kind: Any) -> pl.Series:
    """A column of text as values of a type."""
    if kind is pl.Boolean:
        truths = {"true": True, "false": False}
        values = texts.replace_strict(truths, default=None, return_dtype=pl.Boolean)
    else:
        values = texts.cast(kind, strict=False)
    wrong = (values.is_null() & texts.is_not_null()).arg_true()
    if len(wrong):
        at = int(wrong[0])
        raise StoreError(f"{path}: row {at + 1} has {texts.name} = {texts[at]!r:.40}")
    return values
