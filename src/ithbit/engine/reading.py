"""What a store holds, and the record of one run folder: whole, or the reason why it is set aside.

Every command reads so. Whole: `spec.json` and, where there is one, `result.json` or else
`failure.json` are JSON objects of this schema that belong to the folder's run and have every field,
each of its type. Belong: the id that they and the folder have is that of the spec they hold.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ithbit.engine.record import SCHEMA
from ithbit.engine.spec import Protocol, spec_id
from ithbit.errors import StoreError
from ithbit.families import FAMILIES, TASKS

State = Literal["finished", "failed", "unfinished"]

TABLE_FORMATS = ("parquet", "csv")  # of an export
_RUN_FOLDER = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")

MODEL: dict[str, type] = {
    "task": str,
    "family": str,
    "n_bits": int,
    "n_layers": int,
    "d_model": int,
    "n_heads": int,
    "d_ff": int,
    "d_state": int,
    "positions": str,
}
PROTOCOL: dict[str, type] = {name: type(value) for name, value in asdict(Protocol()).items()}
RESULT: dict[str, type] = {
    "n_parameters": int,
    "epochs": int,
    "stopped_by": str,
    "solved": bool,
    "first_solved_epoch": int,
    "max_accuracy": float,
    "final_accuracy": float,
    "final_loss": float,
    "half_length_accuracy": float,
    "double_length_accuracy": float,
    "seconds_per_epoch": float,
    "evaluation_seconds": float,
    "started_at": str,
    "finished_at": str,
}
MAY_BE_NULL = ("first_solved_epoch", "half_length_accuracy", "double_length_accuracy")


class UnreadableError(Exception):
    """Why one record is set aside."""


def run_folders(store: Path) -> Iterator[tuple[str, str]]:
    """Name of the run and name of its folder, for every run folder of a store."""
    for entry in sorted(os.scandir(store), key=lambda entry: entry.name):
        match = _RUN_FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            yield match["name"], entry.name


def is_export(folder: Path) -> bool:
    """Whether a folder holds the table of runs of `ithbit export`, and no run folder beside it."""
    tables = (folder / f"runs.{form}" for form in TABLE_FORMATS)
    return any(map(os.path.isfile, tables)) and not any(run_folders(folder))


def check_kind(store: Path) -> None:
    """A sentence if a store is a file or an export; one that is yet to be made is neither."""
    if os.path.exists(store) and not os.path.isdir(store):
        raise StoreError(f"the store {store} is a file; give a folder with --store")
    if is_export(store):
        raise StoreError(
            f"{store} holds the tables of `ithbit export`, not run folders; name another folder "
            "(`ithbit table`, `compare`, `plot`, `report` and `export` read the tables)"
        )


def read_json(path: str) -> dict[str, Any] | None:
    """The record at `path`, None if there is none; raises `UnreadableError`."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except FileNotFoundError:
        if os.path.islink(path):  # what it meant may only be away for now
            raise UnreadableError(f"{name} is a link to nothing") from None
        return None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{name} is not valid JSON") from None
    except OSError as error:
        raise UnreadableError(f"{name} cannot be read ({error.strerror})") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{name} is not a JSON object")
    if data.get("schema") != SCHEMA:
        raise UnreadableError(
            f"{name} has schema {data.get('schema')!r}, this version reads {SCHEMA}"
        )
    return data


def check_fields(
    data: Mapping[str, Any],
    kinds: Mapping[str, type],
    where: str,
    may_be_null: Collection[str] = (),
) -> None:
    """Raise `UnreadableError` unless every field is there and of its type; an int is a float."""
    for name, kind in kinds.items():
        value = data.get(name)
        if type(value) is kind:
            continue
        if value is None:
            if name not in may_be_null:
                raise UnreadableError(f"{where} has no {name}")
        elif kind is not float or type(value) is not int:
            raise UnreadableError(f"{where} has {name} = {value!r:.40}")


def read_run(folder: str) -> tuple[State, dict[str, Any]]:
    """Where a run stands by its files, and the record that says so; raises `UnreadableError`."""
    spec = read_json(f"{folder}/spec.json")
    if spec is None:
        raise UnreadableError("it has no spec.json; half copied?")
    _check_head(folder, spec, "spec.json")
    result = read_json(f"{folder}/result.json")
    if result is not None:
        _check_head(folder, result, "result.json")
        check_fields(result, RESULT, "result.json", MAY_BE_NULL)
        check_fields(result, {"environment": dict}, "result.json")
        return "finished", result
    failure = read_json(f"{folder}/failure.json")
    if failure is not None:
        _check_head(folder, failure, "failure.json")
        check_fields(failure, {"error": str, "traceback": str, "epoch": int}, "failure.json")
        return "failed", failure
    return "unfinished", spec


def _check_head(folder: str, record: dict[str, Any], file: str) -> None:
    """What each of the three files has: whose it is, and the whole specification."""
    if not folder.endswith(f"-{record.get('run_id')}"):
        raise UnreadableError(f"{file} belongs to another run")
    spec = record.get("spec")
    if not isinstance(spec, dict) or not all(
        isinstance(spec.get(part), dict) for part in ("model", "protocol")
    ):
        raise UnreadableError(f"{file} has no complete spec")
    check_fields(spec["model"], MODEL, f"{file}: model")
    if spec["model"]["task"] not in TASKS or spec["model"]["family"] not in FAMILIES:
        raise UnreadableError(f"{file} names an unknown task or family")
    check_fields(spec["protocol"], PROTOCOL, f"{file}: protocol", PROTOCOL)
    check_fields(record, {"run_id": str, "name": str}, file)
    check_fields(spec, {"seed": int}, f"{file}: spec")
    if spec_id(spec) != record["run_id"]:
        raise UnreadableError(f"{file} has the spec of another run")
