"""A store of run folders, or an export of one, as one flat table of rows, one row a run.

A run folder is named `<run name>-<run id>` and holds `spec.json`, `history.jsonl` and, at the end,
`result.json` (finished) or `failure.json` (crashed); `verification.json` where `ithbit verify` has
been. A record that is not whole (see `engine/reading.py`) is named and set aside; it never stops a
report. Histories are read when they are asked for, those of run folders one run at a time.

An export is a folder with the tables of `ithbit export`, see `tidy.py`. It is one file, so what is
wrong in it is an error.

Words: *status* is finished, failed or unfinished. *settings* is `paper` (the paper's protocol and
sizes), `early stop` (the same, but ended at the first perfect epoch: successes and maximum accuracy
are comparable with the paper, epochs and length-shifted accuracy are not) or `other`.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import polars as pl

from ithbit.engine.reading import (
    MAY_BE_NULL,
    MODEL,
    PROTOCOL,
    RESULT,
    State,
    UnreadableError,
    check_fields,
    is_export,
    read_json,
    read_run,
)
from ithbit.engine.spec import Protocol
from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS, group
from ithbit.models.spec import ModelSpec
from ithbit.report.tidy import HISTORY_COLUMNS, read_table, table_path
from ithbit.sweep.store import need_runs

_SETTINGS = ("paper", "early stop", "other")

_KINDS: dict[type, Any] = {
    str: pl.String,
    int: pl.Int64,
    float: pl.Float64,
    bool: pl.Boolean,
}


def _columns(kinds: dict[str, type]) -> dict[str, Any]:
    return {name: _KINDS[kind] for name, kind in kinds.items()}


COLUMNS: dict[str, Any] = {
    "run_id": pl.String,
    "name": pl.String,
    "folder": pl.String,
    "status": pl.String,
    "settings": pl.String,
    "group": pl.String,
    "seed": pl.Int64,
    **_columns(MODEL),
    **_columns(RESULT),
    "verification": pl.String,  # the verdict of `ithbit verify`, null where it has not been
    "error": pl.String,
    "failed_epoch": pl.Int64,
    "environment": pl.String,  # JSON text: its keys differ from machine to machine
    **_columns(PROTOCOL),
}

_PAPER_PROTOCOL = asdict(Protocol())
_PAPER_SIZES = {
    name: value
    for name, value in asdict(ModelSpec("rhi", "gru", n_bits=8)).items()
    if name in ("d_model", "n_heads", "d_ff", "d_state")
}


@dataclass(frozen=True)
class SetAside:
    """A run folder left out of every table, and why."""

    folder: str
    reason: str


@dataclass(frozen=True)
class Records:
    """What a store or an export holds: `rows` has the columns of `COLUMNS`."""

    store: Path
    rows: pl.DataFrame
    set_aside: tuple[SetAside, ...]
    is_export: bool = False

    def note(self) -> str | None:
        """One line on what was set aside, or None; names the first three."""
        if not self.set_aside:
            return None
        named = "; ".join(f"{item.folder}: {item.reason}" for item in self.set_aside[:3])
        more = len(self.set_aside) - 3
        rest = f"; and {more} more" if more > 0 else ""
        folders = "folder" if len(self.set_aside) == 1 else "folders"
        return f"set aside {len(self.set_aside)} run {folders} ({named}{rest})"

    @cached_property
    def _exported(self) -> dict[str, pl.DataFrame] | None:
        """The epochs of an export by run id, None where it has no such table."""
        path = table_path(self.store, "histories")
        if path is None:
            return None
        epochs = read_table(path, HISTORY_COLUMNS)
        unknown = epochs.filter(~pl.col("run_id").is_in(self.rows["run_id"].to_list()))
        if not unknown.is_empty():
            raise StoreError(
                f"{path} has epochs of run_id = {unknown['run_id'][0]!r}, which is no run of the "
                "table beside it; export both together"
            )
        if epochs["run_id"].has_nulls() or epochs["epoch"].has_nulls():
            raise StoreError(f"{path} has a row without run_id or epoch; export it again")
        parts = epochs.partition_by("run_id", as_dict=True)
        return {str(key[0]): part.sort("epoch") for key, part in parts.items()}

    def history(self, run_id: str, folder: str) -> list[dict[str, Any]]:
        """The epochs of one run, in order; none where they are not on record."""
        if not self.is_export:
            return read_history(self.store, folder)
        epochs = (self._exported or {}).get(run_id)
        return [] if epochs is None else epochs.to_dicts()

    def history_note(self) -> str | None:
        """One line if an export came without its histories, else None."""
        if not self.is_export or self._exported is not None:
            return None
        return f"{self.store} has no table of histories: there are no learning curves"


def _settings(model: dict[str, Any], protocol: dict[str, Any]) -> str:
    if any(model[name] != size for name, size in _PAPER_SIZES.items()):
        return "other"
    # A field that the record does not have was not there to be changed: its default stands.
    differing = {
        name
        for name in protocol.keys() | _PAPER_PROTOCOL.keys()
        if protocol.get(name, _PAPER_PROTOCOL.get(name)) != _PAPER_PROTOCOL.get(name)
    }
    if not differing:
        return "paper"
    return "early stop" if differing == {"stop_when_solved"} else "other"


def _verdict(path: str, run_id: str) -> str | None:
    """What `ithbit verify` found, None where it left nothing that can be read here."""
    try:
        record = read_json(f"{path}/verification.json")
    except UnreadableError:  # a side record: verifying again mends it, the run itself is sound
        return None
    if record is None or record.get("run_id") != run_id:
        return None
    verdict = record.get("verdict")
    return verdict if isinstance(verdict, str) else None


def _row(folder: str, path: str) -> dict[str, Any]:
    """The row of one run folder: its result, else its failure, else its spec."""
    state, record = read_run(path)
    spec = record["spec"]
    model = {name: spec["model"][name] for name in MODEL}
    row: dict[str, Any] = {
        "run_id": record["run_id"],
        "name": record["name"],
        "folder": folder,
        "status": state,
        "settings": _settings(model, spec["protocol"]),
        "group": group(model["task"], model["family"], model["n_layers"]),
        "seed": spec["seed"],
        **model,
        **{name: spec["protocol"].get(name) for name in PROTOCOL},
    }
    if state == "finished":
        row |= {name: record.get(name) for name in RESULT}
        row["environment"] = json.dumps(record["environment"], sort_keys=True)
        row["verification"] = _verdict(path, row["run_id"])
    elif state == "failed":
        row["error"] = record["error"]
        row["failed_epoch"] = record["epoch"]
    return row


def load_rows(store: Path) -> Records:
    """Every run folder of a store as one row, in the order of folder names; or an export's rows.

    Raises `StoreError` if there is no such folder, or it holds neither a run folder nor an export.
    """
    if is_export(store) and (path := table_path(store, "runs")):
        return Records(store, _exported_rows(path), (), is_export=True)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    set_aside = []
    for _, folder in need_runs(store):
        try:
            row = _row(folder, f"{store}/{folder}")
        except UnreadableError as reason:
            set_aside.append(SetAside(folder, str(reason)))
            continue
        for name, values in columns.items():
            values.append(row.get(name))
    rows = pl.DataFrame(columns, schema=COLUMNS, strict=False)
    return Records(store, rows, tuple(set_aside))


def _exported_rows(path: Path) -> pl.DataFrame:
    """The rows of an exported table, each of them as whole as a run folder's."""
    rows = read_table(path, COLUMNS)
    known: set[str] = set()
    for at, row in enumerate(rows.iter_rows(named=True), 1):
        try:
            _check_exported(row, f"row {at}")
        except UnreadableError as reason:
            raise StoreError(f"{path}: {reason}; export it again") from None
        if row["run_id"] in known:
            raise StoreError(f"{path}: row {at} has run_id = {row['run_id']!r} a second time")
        known.add(row["run_id"])
    if rows.is_empty():
        raise StoreError(f"{path} has no rows: the export is of no runs")
    return rows


def _check_exported(row: dict[str, Any], where: str) -> None:
    whole: dict[str, type] = {"run_id": str, "name": str, "folder": str, "seed": int}
    check_fields(row, whole | MODEL, where)
    choices = {"status": get_args(State), "settings": _SETTINGS, "task": TASKS, "family": FAMILIES}
    for name, allowed in choices.items():
        if row[name] not in allowed:
            raise UnreadableError(f"{where} has {name} = {row[name]!r:.40}")
    if row["group"] != group(row["task"], row["family"], row["n_layers"]):
        raise UnreadableError(f"{where} has group = {row['group']!r:.40}")
    if row["status"] == "finished":
        check_fields(row, RESULT, where, MAY_BE_NULL)
        try:
            environment = json.loads(row["environment"] or "")
        except (ValueError, RecursionError):
            environment = None
        if not isinstance(environment, dict):
            raise UnreadableError(f"{where} has an environment that is no JSON object")
    elif row["status"] == "failed":
        check_fields(row, {"error": str}, where)


def read_history(store: Path, folder: str) -> list[dict[str, Any]]:
    """The epochs of one run, in order; lines that a kill tore apart are left out.

    A run that was killed and resumed may have an epoch twice: the later line stands.
    """
    epochs: dict[int, dict[str, Any]] = {}
    try:
        text = (store / folder / "history.jsonl").read_bytes()
    except OSError:
        return []
    for line in text.split(b"\n"):
        try:
            epoch = json.loads(line)
        except ValueError:
            continue
        if isinstance(epoch, dict) and isinstance(epoch.get("epoch"), int):
            epochs[epoch["epoch"]] = epoch
    return [epochs[number] for number in sorted(epochs)]
