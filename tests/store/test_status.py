"""A store as a whole: what is where, and taking in another store without losing anything."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ithbit
from ithbit.engine.options import TrainingOptions
from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.frame import load_rows
from ithbit.store.merging import merge
from ithbit.store.reading import run_folders
from ithbit.store.records import Failure
from ithbit.store.status import check_store, folder_status, need_runs, need_store, statuses
from ithbit.sweeps.runner import run_all

TINY = Protocol(epoch_examples=64, batch_size=32, held_out_examples=32, max_epochs=2)
RUNS = [RunSpec(ModelSpec("rhi", "gru", n_bits=2), seed, TINY) for seed in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs finished, one only begun, one missing."""
    path = tmp_path / "store"
    run_all(RUNS[:2], path, TrainingOptions("cpu", workers=1))
    RunFolder(path, RUNS[2]).create()
    return path


def files(folder: Path) -> dict[str, bytes]:
    kept = (path for path in folder.iterdir() if path.exists() and path.name != "lock")
    return {path.name: path.read_bytes() for path in kept}


def test_statuses(store: Path) -> None:
    found = list(statuses(store, RUNS).values())
    assert found == ["done", "done", "stopped", "missing"]
    with RunFolder(store, RUNS[2]).claimed() as free:
        assert free
        assert folder_status(RunFolder(store, RUNS[2]).path) == "running"
    assert folder_status(RunFolder(store, RUNS[2]).path) == "stopped"
    assert {name for name, _ in run_folders(store)} == {run.name for run in RUNS[:3]}


def test_merge_takes_what_is_finished_and_nothing_else(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    merged = merge(store, target)
    assert merged.taken == [run.name for run in RUNS[:2]]
    assert merged.unfinished == [RUNS[2].name]
    for run in RUNS[:2]:
        assert files(RunFolder(target, run).path) == files(RunFolder(store, run).path)
    again = merge(store, target)
    assert again.taken == []
    assert again.already_there == [run.name for run in RUNS[:2]]
    assert not [name for name in os.listdir(target) if name.startswith(".")]


def test_merge_never_touches_a_finished_run(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run_all(RUNS[:1], target, TrainingOptions("cpu", workers=1))
    before = files(RunFolder(target, RUNS[0]).path)
    assert merge(store, target).already_there == [RUNS[0].name]
    assert files(RunFolder(target, RUNS[0]).path) == before


def test_merge_brings_the_weights_and_verdicts_that_a_copy_lacks(store: Path, tmp_path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    merge(store, target)
    ithbit.verify(RunFolder(store, RUNS[0]).path, store=store, device="cpu")
    for run in RUNS[:2]:
        (RunFolder(target, run).path / "weights.safetensors").unlink()
    merged = merge(store, target)
    assert merged.completed == [run.name for run in RUNS[:2]]
    assert "2 runs got missing weights or verdicts" in str(merged)
    for run in RUNS[:2]:
        assert files(RunFolder(target, run).path) == files(RunFolder(store, run).path)
    assert not merge(store, target).completed
    # Another training of the same run, with other seconds: its files are of other weights.
    run_all(RUNS[:1], other, TrainingOptions("cpu", workers=1))
    before = files(RunFolder(other, RUNS[0]).path)
    assert not merge(store, other).completed
    assert files(RunFolder(other, RUNS[0]).path) == before


def test_a_folder_without_runs_is_not_merged(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    with pytest.raises(StoreError, match="notes holds no runs; name the store to take runs from"):
        merge(tmp_path / "notes", store)


def test_a_finished_run_replaces_an_unfinished_one(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    RunFolder(target, RUNS[0]).create()
    assert merge(store, target).taken == [run.name for run in RUNS[:2]]
    assert RunFolder(target, RUNS[0]).result() is not None


@pytest.mark.parametrize("recorded", [True, False])  # records of before have no kind
def test_one_that_could_not_be_run_takes_nobody_s_place(
    store: Path, tmp_path: Path, recorded: bool
) -> None:
    target = tmp_path / "target"
    nan = "loss = nan" if recorded else "the loss is not finite in epoch 1: nan"
    for where, run, error in (
        (store, RUNS[2], "out of memory"),
        (target, RUNS[2], nan),
        (store, RUNS[3], nan),
        (target, RUNS[3], "out of memory"),
    ):
        RunFolder(where, run).create()
        kind = "diverged" if error == nan else "error"
        RunFolder(where, run).fail(Failure(run, error, "", 1, kind if recorded else None))
    assert merge(store, target).already_there == [RUNS[2].name]
    assert [RunFolder(target, run).outcome().error for run in RUNS[2:]] == [nan, nan]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "result.json").write_text("{"), "result.json is not valid JSON"),
        (lambda f: (f / "spec.json").unlink(), "it has no spec.json; half copied?"),
        (lambda f: change(f / "result.json", schema=99), "result.json has schema 99, this"),
        (lambda f: change(f / "result.json", run_id="0" * 12), "belongs to another run"),
        (lambda f: change(f / "result.json", max_accuracy="high"), "has max_accuracy = 'high'"),
        (lambda f: change(f / "result.json", epochs="2"), "result.json has epochs = '2'"),
        (lambda f: change(f / "result.json", solved=None), "result.json has no solved"),
        (lambda f: change(f / "result.json", environment=None), "result.json has no environment"),
        (
            lambda f: change(f / "result.json", spec=RUNS[1].to_json()),
            "result.json has the spec of another run",
        ),
        (lambda f: (f / "spec.json").write_text("{}"), "spec.json has schema None, this version"),
        (
            lambda f: change(f / "spec.json", spec=RUNS[1].to_json()),
            "spec.json has the spec of another run",
        ),
        (lambda f: link_to_nothing(f / "result.json"), "result.json is a link to nothing"),
    ],
)
def test_what_is_damaged_is_named_and_left(
    damage, reason: str, store: Path, tmp_path: Path
) -> None:
    folder = RunFolder(store, RUNS[0]).path
    damage(folder)
    merged = merge(store, tmp_path / "target")
    assert merged.taken == [RUNS[1].name]
    assert [why for _, why in merged.set_aside if reason in why]
    # What merging leaves out is neither done for `status` nor in a table.
    assert list(statuses(store, RUNS[:2]).values()) == ["set aside", "done"]
    records = load_rows(store)
    assert [item.reason for item in records.set_aside] == [why for _, why in merged.set_aside]
    assert records.rows.filter(status="finished").height == 1
    # A sweep neither counts it as finished nor trains over it.
    before = files(folder)
    with pytest.raises(StoreError, match=re.escape(reason)):
        run_all(RUNS[:2], store, TrainingOptions("cpu", workers=1))
    assert files(folder) == before


def test_a_damaged_result_here_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run_all(RUNS[:1], target, TrainingOptions("cpu", workers=1))
    damaged = RunFolder(target, RUNS[0]).path / "result.json"
    damaged.write_text("{")
    merged = merge(store, target)
    assert merged.taken == [RUNS[1].name]
    assert merged.set_aside[0][1] == f"{target} has a damaged one: result.json is not valid JSON"
    assert damaged.read_text() == "{"


def test_a_file_in_the_place_of_a_folder_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / RUNS[0].folder).write_text("mine")
    assert list(statuses(target, RUNS[:2]).values()) == ["set aside", "missing"]
    merged = merge(store, target)
    assert merged.taken == [RUNS[1].name]
    assert [folder for folder, _ in merged.set_aside] == [RUNS[0].folder]
    assert (target / RUNS[0].folder).read_text() == "mine"


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "away")


def test_stores_that_are_none(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="are the same store"):
        merge(store, store)
    with pytest.raises(
        StoreError, match="nowhere does not exist; name the store to take runs from"
    ):
        merge(tmp_path / "nowhere", store)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="file is a file, not a folder; name the store to take"):
        merge(file, store)
    with pytest.raises(StoreError, match=r"the store .*file is a file; give a folder with --store"):
        merge(store, file)
    with pytest.raises(StoreError, match="there is no store"):
        need_store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is a file"):
        need_store(file)


@pytest.mark.parametrize("table", ["runs.csv", "runs.parquet"])
def test_an_export_is_no_store_of_run_folders(table: str, store: Path, tmp_path: Path) -> None:
    export = tmp_path / "tidy"
    export.mkdir()
    (export / table).write_text("")
    uses: list[Callable[[], object]] = [
        lambda: need_store(export),
        lambda: need_runs(export),
        lambda: merge(export, store),
        lambda: merge(store, export),
        lambda: check_store(export),
        lambda: run_all(RUNS[:1], export, TrainingOptions("cpu", workers=1)),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"tidy holds the tables of `ithbit export`, not run"):
            use()
    assert os.listdir(export) == [table]


def test_tables_beside_run_folders_change_nothing(store: Path, tmp_path: Path) -> None:
    (store / "runs.csv").write_text("")
    need_store(store)
    assert len(need_runs(store)) == 3
    assert len(merge(store, tmp_path / "target").taken) == 2
    assert all(run_all(RUNS[:2], store, TrainingOptions("cpu", workers=1)))
