"""The schema is the dataclass: nothing of it is written down a second time."""

import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import polars as pl
import pytest

import ithbit.store
from ithbit.spec import ModelSpec, Protocol, RunSpec, plain, since_0_2
from ithbit.store.frame import COLUMNS, HISTORY_COLUMNS
from ithbit.store.records import Case, Epoch, LayerOrigin, Result, StoppedBy, VerificationRecord
from ithbit.store.schema import UnreadableError, read_as, schema


@dataclass(frozen=True)
class Toy:
    """A record with a field of every sort."""

    case: Case
    other: Case | None
    reason: StoppedBy
    share: float
    note: str | None
    later: int = since_0_2(3)


WHOLE = {
    "case": {"bits": "01", "index": 1, "margin": 0.5},
    "other": None,
    "reason": "loss",
    "share": 1,
    "note": None,
    "later": 4,
}


def test_fields_come_from_the_annotations() -> None:
    for record in (ModelSpec, Protocol, RunSpec, Result, Epoch, VerificationRecord, LayerOrigin):
        assert list(schema(record)) == [item.name for item in fields(record)]
    found = schema(Result)
    assert found["stopped_by"].choices == ("loss", "epochs", "solved", "consistency")
    assert [name for name, field in found.items() if field.may_be_null] == [
        "first_solved_epoch",
        "half_length_accuracy",
        "double_length_accuracy",
        "structured_tried",
        "structured_wrong",
        "structured_example",
    ]
    assert schema(ModelSpec)["code"].default == ""
    assert schema(ModelSpec)["d_model"].default is MISSING


def test_columns_come_from_them_too() -> None:
    for record in (ModelSpec, Protocol):
        assert {item.name for item in fields(record)} < COLUMNS.keys()
    assert {item.name for item in fields(Result)} - {"spec"} < COLUMNS.keys()
    assert list(HISTORY_COLUMNS)[2:] == [item.name for item in fields(Epoch)]
    kinds = {"n_bits": pl.Int64, "code": pl.String, "eps": pl.Float64, "solved": pl.Boolean}
    assert {name: COLUMNS[name] for name in kinds} == kinds


def test_a_record_is_read_as_it_was_kept() -> None:
    toy = read_as(Toy, WHOLE, "it")
    assert toy == Toy(Case("01", 1, 0.5), None, "loss", 1, None, 4)
    assert read_as(Toy, plain(toy), "it") == toy
    early = {name: value for name, value in WHOLE.items() if name != "later"}
    assert read_as(Toy, early, "it").later == 3
    assert plain(read_as(Toy, early, "it")) == early


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"case": None}, "it has no case"),
        ({"case": 5}, "it has case = 5"),
        ({"case": {"bits": "01", "index": "1"}}, "it: case has index = '1'"),
        (
            {"case": {"bits": "01", "index": 0}},
            "it: case has index = 0, which is not a number from 1",
        ),
        ({"other": []}, r"it has other = \[\]"),
        ({"reason": "tired"}, "it has reason = 'tired'"),
        ({"share": "1"}, "it has share = '1'"),
        ({"share": True}, "it has share = True"),
        ({"later": 1.5}, "it has later = 1.5"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], reason: str) -> None:
    with pytest.raises(UnreadableError, match=f"^{reason}"):
        read_as(Toy, WHOLE | change, "it")


def test_only_the_run_folder_needs_torch() -> None:
    """Status, tables and reading answer at once."""
    names = {path.stem for path in Path(ithbit.store.__file__).parent.glob("*.py")}
    named = ", ".join(f"ithbit.store.{name}" for name in names - {"__init__", "folder"})
    code = f"import sys, {named}; sys.exit('torch' in sys.modules or 'safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
