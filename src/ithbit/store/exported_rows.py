"""What a row of an exported table must be: complete, and not in contradiction with itself."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import polars as pl

from ithbit.errors import SpecError
from ithbit.families import family_named, group
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.contradictions import check_result
from ithbit.store.reading import RESULT, WHOSE, State, check_spec
from ithbit.store.records import VERDICTS_0_1, Failure, Verdict, failure_kind
from ithbit.store.schema import ContradictionError, Field, UnreadableError, check, must, schema

MODEL, PROTOCOL = schema(ModelSpec), schema(Protocol)
KINDS: dict[type, Any] = {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}
_SIZES = ("d_model", "n_heads", "d_ff", "d_state")
HEAD = WHOSE | {
    "folder": must(str),
    "status": must(str, get_args(State)),
    "settings": must(str, ("paper", "early stop", "other")),
    "group": must(str),
    "seed": must(int),
}
FAILURE_KIND = {"failure_kind": schema(Failure)["kind"]}
FAILURE = {
    "error": schema(Failure)["error"],
    "failed_epoch": replace(schema(Failure)["epoch"], may_be_null=True),
    **FAILURE_KIND,
}
_VERDICT = {
    "verification": replace(must(str, (*get_args(Verdict), *VERDICTS_0_1)), may_be_null=True)
}


def settings_of(model: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    """How the settings of a run differ from the paper's: see the words of `frame.py`."""
    # A field that the record lacks did not exist yet: its default applies.
    differing = {n for n in protocol if n not in PROTOCOL or protocol[n] != getattr(Protocol, n)}
    if model.keys() - MODEL.keys() or any(model[n] != getattr(ModelSpec, n) for n in _SIZES):
        return "other"
    if not differing:
        return "paper"
    return "early stop" if differing == {"stop_when_solved"} else "other"


def check_exported(row: dict[str, Any], where: str) -> RunSpec:
    """The run of a row, as far as this version knows its fields. Raises `UnreadableError` if the
    row is not valid, `ContradictionError` if it cannot be true."""
    check(row, HEAD | MODEL, where)
    try:
        family_named(row["family"])
    except SpecError:
        raise UnreadableError(f"{where} has family = {row['family']!r:.40}") from None
    if row["group"] != group(row["task"], row["family"], row["n_layers"]):
        raise UnreadableError(f"{where} has group = {row['group']!r:.40}")
    run = check_spec(row, row["seed"], row, where)
    if row["name"] != run.name:
        raise ContradictionError(f"{where} has the name of another run: {row['name']!r:.80}")
    parts = ({name: row[name] for name in columns} for columns in (MODEL, PROTOCOL))
    if row["settings"] not in ("other", settings_of(*parts)):
        raise ContradictionError(f"{where} has settings = {row['settings']!r}, but is of others")
    _check_outcome(row, where)
    if row["status"] == "finished":
        result = {name: _part(row[name], field) for name, field in RESULT.items()}
        check(result, RESULT, where)
        check_result(result, row, where)
    elif row["status"] == "failed":
        check(row, FAILURE, where)
    return run


def _check_outcome(row: dict[str, Any], where: str) -> None:
    """Check what a row says of its verification, and that only a run that has ended says it."""
    check(row, _VERDICT, where)
    sha, error = row["certificate_sha256"], row["error"] or ""
    diverged = failure_kind(row["failure_kind"], error) == "diverged"
    if sha and not re.fullmatch("[0-9a-f]{64}", sha):
        raise UnreadableError(f"{where} has certificate_sha256 = {sha!r:.40}")
    may_have = {
        "verification": row["status"] == "finished",
        "max_accuracy": row["status"] == "finished" or (row["status"] == "failed" and diverged),
    }
    for name, may in may_have.items():
        if row[name] is not None and not may:
            raise ContradictionError(
                f"{where} has {name} = {row[name]!r}, but status = {row['status']!r}"
            )


def _part(value: Any, field: Field) -> Any:
    """The value of JSON text in a row; the text itself if it is not JSON."""
    if value is None or field.kind in KINDS:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
