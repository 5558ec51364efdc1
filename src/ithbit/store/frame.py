"""A store of run folders, or an export of one, as polars frames: one row per run, one per epoch.

A run whose record is not valid (see `reading.py`) is named and set aside; it never stops a report.
Histories are read on demand, those of run folders one run at a time.

An export is a folder with the tables of `ithbit export`: `runs` and, if present, `histories`, each
as Parquet or CSV. Columns and types are those of the records' dataclasses; what 0.1 did not have
may be missing. A table is one file, so a column or row of the wrong kind is an error; a row that
contradicts itself is set aside. Rows are counted from 1, without the header.

Words: *status* is finished, failed or unfinished. *settings* is `paper` (the paper's protocol and
sizes), `early stop` (the same, but ended at the first perfect epoch: successes and maximum accuracy
are comparable with the paper, epochs and length-shifted accuracy are not) or `other`. *solved* is
null for a run that says nothing about learning: one that is unfinished, or that could not be run. A
run that diverged counts with what it had reached: its `max_accuracy` is over its whole epochs.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from ithbit.display import pluralize
from ithbit.errors import OutputError, StoreError, one_of
from ithbit.families import group
from ithbit.store.exported_rows import (
    FAILURE,
    FAILURE_KIND,
    HEAD,
    KINDS,
    MODEL,
    PROTOCOL,
    check_exported,
    settings_of,
)
from ithbit.store.reading import (
    RESULT,
    TABLE_FORMATS,
    WHOSE,
    in_order,
    is_export,
    open_regular,
    read_history,
    read_run,
    read_verification,
)
from ithbit.store.records import (
    BOUNDED,
    PROVED,
    VERDICTS_0_1,
    Epoch,
    Proof,
    failure_kind,
)
from ithbit.store.schema import ContradictionError, Field, UnreadableError, schema
from ithbit.store.status import need_runs
from ithbit.store.writing import in_memory, write_output

_EPOCH = schema(Epoch)
_MOST_CELLS, _MOST_TEXT = 1 << 26, 1 << 29  # of an exported table; bytes of CSV
# Of the proof that a second implementation confirmed, if one did: without it none counts as such.
_CHECKED = {"certificate_sha256": schema(Proof)["certificate_sha256"]}


def _columns(*parts: Mapping[str, Field]) -> dict[str, Any]:
    """The polars type of each field; a value that is not plain is kept as JSON text."""
    return {name: KINDS.get(f.kind, pl.String) for part in parts for name, f in part.items()}


COLUMNS: dict[str, Any] = {
    **_columns(HEAD, MODEL, RESULT),
    "verification": pl.String,  # the verdict of `ithbit verify`, null if it was not run
    **_columns(_CHECKED),
    **_columns(FAILURE, PROTOCOL),
}
HISTORY_COLUMNS: dict[str, Any] = _columns(WHOSE, _EPOCH)
_UNCHECKED = (pl.col("verification") == PROVED) & (pl.col("certificate_sha256").fill_null("") == "")
_BEST = pl.col("max_accuracy")
_DIVERGED_FIRST = (pl.col("failure_kind") == "diverged") & (pl.col("failed_epoch") <= 1)
_SOLVED = pl.when(_BEST.is_null() & _DIVERGED_FIRST).then(False).otherwise(_BEST == 1)


@dataclass(frozen=True)
class UnreadableRun:
    """A run left out of every table, and why."""

    folder: str
    reason: str
    run_id: str = ""


@dataclass(frozen=True)
class Records:
    """What a store or an export holds: `rows` has the columns of `COLUMNS`."""

    store: Path
    rows: pl.DataFrame
    set_aside: tuple[UnreadableRun, ...]
    is_export: bool = False

    def note(self) -> str | None:
        """One line on what was set aside, naming the first three; None if nothing was."""
        if not self.set_aside:
            return None
        names = "; ".join(f"{item.folder}: {item.reason}" for item in self.set_aside[:3])
        more = len(self.set_aside) - 3
        rest = f"; and {more} more" if more > 0 else ""
        what = pluralize(len(self.set_aside), "row" if self.is_export else "run folder")
        return f"set aside {what} ({names}{rest})"

    @cached_property
    def _exported(self) -> dict[str, pl.DataFrame] | None:
        """The epochs of an export by run id, or None if it has no such table."""
        path = _table_path(self.store, "histories")
        if path is None:
            return None
        epochs = _read_table(path, HISTORY_COLUMNS, _EPOCH)
        run_ids = [*self.rows["run_id"], *(item.run_id for item in self.set_aside)]
        unknown = epochs.filter(~pl.col("run_id").is_in(run_ids))
        if not unknown.is_empty():
            raise StoreError(
                f"{path} has epochs of run_id = {unknown['run_id'][0]!r}, which is not a run of "
                "the table in its folder; export both together"
            )
        if epochs["run_id"].has_nulls() or epochs["epoch"].has_nulls():
            raise StoreError(f"{path} has a row without run_id or epoch; export it again")
        within = [
            pl.col(name).is_between(*field.range)  # NaN never is
            for name, field in _EPOCH.items()
            if field.range
        ]
        parts = epochs.filter(*within).partition_by("run_id", as_dict=True)
        return {str(key[0]): part.select(list(_EPOCH)) for key, part in parts.items()}

    def history(self, run_id: str, folder: str) -> list[Epoch]:
        """The epochs of one run, in order; empty if they were not recorded."""
        if not self.is_export:
            return read_history(f"{self.store}/{folder}")
        epochs = (self._exported or {}).get(run_id)
        return [] if epochs is None else in_order(Epoch(*row) for row in epochs.iter_rows())

    def histories(self) -> pl.DataFrame:
        """Every epoch of every run, in the order of rows, then of epochs."""
        runs = self.rows.select("run_id", "name", "folder").iter_rows()
        epochs = [
            (run_id, name, *vars(epoch).values())
            for run_id, name, folder in runs
            for epoch in self.history(run_id, folder)
        ]
        return pl.DataFrame(epochs, schema=HISTORY_COLUMNS, orient="row", strict=False)

    def history_note(self) -> str | None:
        """One line if an export has no histories, else None."""
        if not self.is_export or self._exported is not None:
            return None
        return f"{self.store} has no table of histories: there are no learning curves"


def no_rows(store: Path) -> Records:
    """The records of a store without runs."""
    return Records(store, pl.DataFrame(schema=COLUMNS), ())


def load_rows(store: Path) -> Records:
    """Every run folder of a store as one row, in the order of folder names; or an export's rows.

    Raises `StoreError` if there is no such folder, or it holds neither a run folder nor an export.
    """
    if is_export(store) and (path := _table_path(store, "runs")):
        return _exported_rows(store, path)
    records, set_aside = [], []
    for _, folder in need_runs(store):
        try:
            records.append(_row(folder, f"{store}/{folder}"))
        except UnreadableError as reason:
            set_aside.append(UnreadableRun(folder, str(reason)))
    rows = pl.DataFrame(records, schema=COLUMNS, strict=False)
    return Records(store, rows.with_columns(solved=_SOLVED), tuple(set_aside))


def _row(folder: str, path: str) -> dict[str, Any]:
    """The row of one run folder: its result, else its failure, else its spec."""
    state, record = read_run(path)
    spec = record["spec"]
    model = _values(spec["model"], MODEL)
    row = {
        "run_id": record["run_id"],
        "name": record["name"],
        "folder": folder,
        "status": state,
        "settings": settings_of(spec["model"], spec["protocol"]),
        "group": group(model["task"], model["family"], model["n_layers"]),
        "seed": spec["seed"],
        "certificate_sha256": "",
        **model,
        **_values(spec["protocol"], PROTOCOL),
    }
    if state == "finished":
        verified = read_verification(path)
        row |= _values(record, RESULT)
        row["verification"] = verified and verified.found.verdict
        if verified and verified.found.verdict == PROVED and verified.found.proof:
            row["certificate_sha256"] = verified.found.proof.certificate_sha256
    elif state == "failed":
        kind = failure_kind(record.get("kind"), record["error"])
        row |= {"error": record["error"], "failed_epoch": record["epoch"], "failure_kind": kind}
        if kind == "diverged" and (epochs := read_history(path)):
            row["max_accuracy"] = max(epoch.held_out_accuracy for epoch in epochs)
    return row


def _values(data: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of a record as values of a row: defaults if missing, JSON text if nested."""
    values = {}
    for name, field in fields.items():
        value = data.get(name)
        if value is None and field.default is not MISSING:
            value = field.default
        plain = value is None or field.kind in KINDS
        values[name] = value if plain else json.dumps(value, sort_keys=True)
    return values


def _exported_rows(store: Path, path: Path) -> Records:
    """The rows of an exported table, each checked like a run folder's records."""
    rows = _read_table(path, COLUMNS, MODEL | PROTOCOL | RESULT | _CHECKED | FAILURE_KIND)
    run_ids: set[str] = set()
    runs: dict[str, int] = {}  # the row of each, by the id that its fields give
    is_valid: list[bool] = []
    kinds: list[str | None] = []
    set_aside = []
    for at, row in enumerate(rows.iter_rows(named=True), 1):
        try:
            run = check_exported(row, f"row {at}")
            if row["settings"] != "other" and run.run_id in runs:
                raise ContradictionError(f"row {at} is the same run as row {runs[run.run_id]}")
            runs.setdefault(run.run_id, at)
            is_valid.append(True)
        except ContradictionError as reason:
            set_aside.append(UnreadableRun(row["folder"], str(reason), row["run_id"]))
            is_valid.append(False)
        except UnreadableError as wrong:
            raise StoreError(f"{path}: {wrong}; export it again") from None
        if row["run_id"] in run_ids:
            raise StoreError(f"{path}: row {at} has run_id = {row['run_id']!r} a second time")
        run_ids.add(row["run_id"])
        failed = row["status"] == "failed"
        kinds.append(failure_kind(row["failure_kind"], row["error"] or "") if failed else None)
    if rows.is_empty():
        raise StoreError(f"{path} has no rows: no runs were exported")
    rows = rows.with_columns(failure_kind=pl.Series(kinds, dtype=pl.String))
    rows = rows.filter(pl.Series(is_valid, dtype=pl.Boolean)).with_columns(
        solved=_SOLVED,
        verification=pl.when(_UNCHECKED)
        .then(pl.lit(BOUNDED))
        .otherwise(pl.col("verification").replace(VERDICTS_0_1)),
    )
    return Records(store, rows, tuple(set_aside), is_export=True)


def export(records: Records, folder: Path, form: str) -> list[Path]:
    """Write `runs` and `histories` into a folder as Parquet or CSV; return the two paths.

    A folder that has either table in the other format is refused before anything is written. The
    kinds of failures are a column only if a run failed.
    """
    one_of("unknown format", form, TABLE_FORMATS)
    names = ("runs", "histories")
    others = [f"{name}.{other}" for name in names for other in TABLE_FORMATS if other != form]
    for other in others:
        if os.path.isfile(folder / other):
            raise OutputError(
                f"{folder} already has {other}, and a table in two formats cannot be read; "
                "name another folder with --out, or move that file away"
            )
    paths = []
    runs = records.rows
    runs = runs.drop(name for name in FAILURE_KIND if runs[name].is_null().all())
    for name, frame in zip(names, (runs, records.histories()), strict=True):
        write = frame.write_parquet if form == "parquet" else frame.write_csv
        paths.append(write_output(folder / f"{name}.{form}", in_memory(write)))
    return paths


def _table_path(folder: Path, name: str) -> Path | None:
    """The file of one table in a folder, or None; raises `StoreError` if there are two."""
    paths = [path for form in TABLE_FORMATS if (path := folder / f"{name}.{form}").is_file()]
    if len(paths) > 1:
        raise StoreError(
            f"{folder} holds both {' and '.join(path.name for path in paths)}; keep one of them"
        )
    return paths[0] if paths else None


def _read_table(path: Path, columns: dict[str, Any], fields: Mapping[str, Field]) -> pl.DataFrame:
    """The table in a file: these columns, with defaults for missing ones that 0.1 did not have.

    Raises `StoreError` on anything else.
    """
    try:
        _need_moderate(path, _MOST_CELLS // len(columns))
        if path.suffix == ".csv":
            frame = pl.read_csv(path, infer_schema=False)
        else:
            frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = str(error).partition("\n")[0]
        raise StoreError(
            f"{path} cannot be read as {path.suffix[1:]} ({first}); copy it again"
        ) from error
    later = {name: field.default for name, field in fields.items() if field.default is not MISSING}
    must_have = [name for name in columns if name not in later]
    for names, has, but in ((must_have, frame.columns, "lacks"), (frame.columns, columns, "has")):
        odd = [name for name in names if name not in has]
        if odd:
            raise StoreError(
                f"{path} {but} the column {odd[0]!r}; `ithbit export` of this version did not "
                "write this table"
            )
    if path.suffix == ".csv":
        frame = frame.select(_parsed(path, frame[name], columns[name]) for name in frame.columns)
    for name in frame.columns:
        if frame[name].dtype != columns[name]:
            kinds = f"{frame[name].dtype}, not {columns[name]}()"
            raise StoreError(f"{path}: the column {name!r} has {kinds}")
    lacking = later.keys() - set(frame.columns)
    frame = frame.with_columns(pl.lit(later[name], columns[name]).alias(name) for name in lacking)
    given = {name: value for name, value in later.items() if value is not None}
    frame = frame.with_columns(pl.col(name).fill_null(given[name]) for name in given)
    return frame.select(list(columns))


def _need_moderate(path: Path, most_rows: int) -> None:
    """Raise `StoreError` for a table with more rows or text than fit in memory, before it is read:
    a small Parquet file may hold any number of equal rows."""
    if path.suffix == ".csv":
        rows, size, end = 0, 0, b""
        with open_regular(path) as file:
            while size <= _MOST_TEXT and (part := file.read(1 << 20)):
                rows, size, end = rows + part.count(b"\n"), size + len(part), part[-1:]
        if end != b"\n" and size <= _MOST_TEXT:
            raise StoreError(f"{path} ends in the middle of a line; copy it again")
    else:
        size, rows = 0, pl.scan_parquet(path).select(pl.len()).collect().item()  # of the footer
    if rows > most_rows or size > _MOST_TEXT:
        raise StoreError(
            f"{path} is too large to be read: such a table may have {most_rows:,} rows and, as "
            f"CSV, {_MOST_TEXT >> 20:,} MiB; export fewer runs"
        )


def _parsed(path: Path, texts: pl.Series, kind: Any) -> pl.Series:
    """A text column parsed as values of a type."""
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
