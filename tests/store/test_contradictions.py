"""A record that contradicts itself is set aside with the reason, in run folders and in exports."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.synthetic_store import Plan, write_run, write_verification

from ithbit.errors import StoreError
from ithbit.published import Variant
from ithbit.reporting.cells import gather
from ithbit.spec import ModelSpec, RunSpec, spec_id
from ithbit.store.folder import RunFolder
from ithbit.store.frame import COLUMNS, export, load_rows
from ithbit.store.reading import read_verification
from ithbit.store.records import Epoch
from ithbit.store.status import folder_status, recorded

GRU = Variant("lhi", "gru", 1)
RUNS = [RunSpec(ModelSpec("lhi", "gru", 64), seed) for seed in range(3)]
SOLVED, MISSED = Plan(RUNS[0], True, 1.0, 100), Plan(RUNS[1], False, 0.75, 500)

WRONG: list[tuple[Plan, dict[str, Any], str]] = [
    (MISSED, {"solved": True}, "has solved = True, but max_accuracy = 0.75"),
    (SOLVED, {"solved": False}, "has solved = False, but max_accuracy = 1.0"),
    (MISSED, {"max_accuracy": 7.0}, "has max_accuracy = 7.0, which is not a number from 0 to 1"),
    (MISSED, {"final_accuracy": -0.1}, "has final_accuracy = -0.1, which is not a number from 0"),
    (MISSED, {"double_length_accuracy": 1.5}, "has double_length_accuracy = 1.5"),
    (MISSED, {"half_length_accuracy": math.nan}, "has half_length_accuracy = nan"),
    (MISSED, {"final_accuracy": 0.8}, "has final_accuracy = 0.8, but max_accuracy = 0.75"),
    (MISSED, {"epochs": -3}, "has epochs = -3, which is not a number from 1"),
    (MISSED, {"epochs": 0}, "has epochs = 0, which is not a number from 1"),
    (MISSED, {"epochs": 501}, "has epochs = 501, but max_epochs = 500"),
    (SOLVED, {"first_solved_epoch": 101}, "has first_solved_epoch = 101, but epochs = 100"),
    (SOLVED, {"first_solved_epoch": -1}, "has first_solved_epoch = -1"),
    (SOLVED, {"first_solved_epoch": None}, "has first_solved_epoch = None, but max_accuracy = 1"),
    (MISSED, {"first_solved_epoch": 9}, "has first_solved_epoch = 9, but max_accuracy = 0.75"),
    (MISSED, {"stopped_by": "solved"}, "has stopped_by = 'solved', but max_accuracy = 0.75"),
    (MISSED, {"final_loss": math.inf}, "has final_loss = inf, which is not a number from 0"),
    (MISSED, {"final_loss": -1.0}, "has final_loss = -1.0, which is not a number from 0"),
    (MISSED, {"n_parameters": -1}, "has n_parameters = -1, which is not a number from 0"),
    (MISSED, {"structured_tried": 3, "structured_wrong": 4}, "has structured_wrong = 4, but"),
    (MISSED, {"seconds_per_epoch": math.nan}, "has seconds_per_epoch = nan"),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs of one cell, one of them solved, and a third that is sound throughout."""
    for plan in (SOLVED, MISSED, Plan(RUNS[2], True, 1.0, 50)):
        write_run(tmp_path / "store", plan)
    return tmp_path / "store"


@pytest.mark.parametrize(("plan", "change", "reason"), WRONG)
def test_a_run_folder(store: Path, plan: Plan, change: dict[str, Any], reason: str) -> None:
    folder = store / plan.run.folder
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if any(value in (math.inf, math.nan) for value in change.values()):
        reason = "is not valid JSON"  # we write neither NaN nor Infinity
    records = load_rows(store)
    assert [(item.folder, item.reason) for item in records.set_aside] == [
        (folder.name, records.set_aside[0].reason)
    ]
    assert records.set_aside[0].reason.startswith(f"result.json {reason}")
    assert folder_status(folder) == "set aside"
    assert recorded(folder)[1] == records.set_aside[0].reason
    assert gather(records).verdict_counts([GRU], 64).runs == 2
    with pytest.raises(StoreError, match="it is left as it is"):
        RunFolder(store, plan.run).result()


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize(("plan", "change", "reason"), WRONG)
def test_a_row_of_an_export(
    store: Path, tmp_path: Path, plan: Plan, change: dict[str, Any], reason: str, form: str
) -> None:
    records = load_rows(store)
    here = pl.col("run_id") == plan.run.run_id
    rows = records.rows.with_columns(
        pl.when(here).then(pl.lit(value, COLUMNS[name])).otherwise(name).alias(name)
        for name, value in change.items()
    )
    export(type(records)(store, rows, ()), tmp_path / "out", form)
    again = load_rows(tmp_path / "out")
    at = rows.with_row_index("at", 1).filter(here)["at"][0]
    assert [item.folder for item in again.set_aside] == [plan.run.folder]
    assert again.set_aside[0].reason.startswith(f"row {at} {reason}")
    assert again.note().startswith(f"set aside 1 row ({plan.run.folder}: row {at} has ")
    assert again.rows.equals(records.rows.filter(~here))
    # Its epochs are no stranger's, and not drawn.
    assert plan.run.run_id not in again.histories()["run_id"]
    assert again.histories().equals(records.histories().filter(~here))


def test_what_is_sound_is_not_denied(store: Path, tmp_path: Path) -> None:
    export(load_rows(store), tmp_path / "out", "csv")
    for place in (store, tmp_path / "out"):
        assert load_rows(place).note() is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_bits": 0}, "spec.json: model: n must be at least 1, got 0"),
        ({"positions": "odd"}, "spec.json: model: unknown positions 'odd'"),
        ({"n_bits": 10**30}, "spec.json has n_bits = 1000000"),
        ({"code": 5}, "spec.json: model has code = 5"),
    ],
)
def test_a_spec_that_cannot_be(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    folder = write_run(tmp_path, SOLVED)
    record = json.loads((folder / "result.json").read_text())
    record["spec"]["model"] |= change
    record["run_id"] = spec_id(record["spec"])
    there = tmp_path / f"odd-{record['run_id']}"
    folder.rename(there)
    for name in ("spec.json", "result.json"):
        (there / name).write_text(json.dumps(record))
    (item,) = load_rows(tmp_path).set_aside
    assert item.reason.startswith(reason)


def test_a_failure_before_its_first_epoch_has_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path, SOLVED, "failure")
    record = json.loads((folder / "failure.json").read_text())
    (folder / "failure.json").write_text(json.dumps(record | {"epoch": -2}))
    (item,) = load_rows(tmp_path).set_aside
    assert item.reason == "failure.json has epoch = -2, which is not a number from 0"


EPOCH = Epoch(2, 0.5, 0.5, 0.9, 1e-3, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"held_out_accuracy": 7},
        {"held_out_accuracy": math.nan},
        {"epoch": -1},
        {"epoch": 0},
        {"epoch": 2.0},
        {"epoch": 10**30},
        {"train_loss": math.inf},
        {"seconds": -1},
        {"learning_rate": None},
    ],
)
def test_a_line_that_is_no_epoch(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "store", SOLVED)
    lines = [asdict(EPOCH) | {"epoch": 1}, asdict(EPOCH) | change]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = load_rows(tmp_path / "store")
    assert [epoch.epoch for epoch in records.history(SOLVED.run.run_id, folder.name)] == [1]
    export(records, tmp_path / "out", "parquet")
    if all(type(value) is type(getattr(EPOCH, name)) for name, value in change.items()):
        path = tmp_path / "out" / "histories.parquet"
        kept = pl.read_parquet(path)
        if abs(change.get("epoch", 0)) < 1 << 63:
            columns = {name: pl.lit(v, kept.schema[name]) for name, v in change.items()}
            pl.concat([kept, kept.with_columns(**columns)]).write_parquet(path)
            assert load_rows(tmp_path / "out").histories().height == 1


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "verified on all inputs"},
        {"counterexample": None},
        {"n_wrong": -1},
        {"n_wrong": 10**6},
        {"verdict": "certain"},
        {"worst": {"bits": "1", "index": 0, "margin": 0.5}},
        {"worst": {"bits": "1", "index": 1, "margin": 0.5}},
        {"worst": {"bits": "1" * SOLVED.run.model.n_bits, "index": 99, "margin": 0.5}},
        {"counterexample": {"bits": "2" * SOLVED.run.model.n_bits, "index": 1, "margin": -0.5}},
        {"wrong_by_index": {"one": 1}},
        {"wrong_by_index": {"1": None}},
        {"stages": [{"tried": 3, "wrong": 1}]},
        {"stages": [{"name": "plain strings", "tried": None}]},
        {"stages": [3]},
        {"worst": {"bits": "1" * SOLVED.run.model.n_bits, "index": 1, "margin": -(10**400)}},
        {"run_id": "0" * 12},
        {"seconds": math.nan},
    ],
)
def test_a_verification_that_denies_itself_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_run(tmp_path, SOLVED)
    write_verification(folder, SOLVED.run, "refuted")
    assert list(load_rows(tmp_path).rows["verification"]) == ["refuted"]
    path = folder / "verification.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_verification(str(folder)) is None
    records = load_rows(tmp_path)
    assert (list(records.rows["verification"]), records.set_aside) == ([None], ())
