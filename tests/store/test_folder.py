"""The run folder: nothing half-written, nothing damaged taken for sound, nothing finished lost."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.support.one_stack import train

from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.stack import fresh_state
from ithbit.engine.training_context import Event
from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.reading import read_history
from ithbit.store.records import Epoch, Failure, LayerOrigin, Result
from ithbit.store.status import check_store
from ithbit.store.writing import write_atomically

CPU = choose_device("cpu")
TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=4)
RUN = RunSpec(ModelSpec("rhi", "gru", n_bits=3), 0, TINY)
LIKE = vars(fresh_state(RUN))


class StopNowError(Exception):
    """What a watcher raises to stop."""


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run that was stopped in its third epoch, with a checkpoint of its second."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 3:
            raise StopNowError

    with pytest.raises(StopNowError):
        train([RUN], tmp_path / "store", CPU, watch=watch)
    folder = RunFolder(tmp_path / "store", RUN)
    checkpoint, remark = folder.load(LIKE)
    assert checkpoint is not None
    assert (checkpoint.epochs_done, remark) == (2, None)
    return folder


def test_a_checkpoint_comes_back_as_it_was(stopped) -> None:
    checkpoint, _ = stopped.load(LIKE)
    checkpoint.plateau_best = 0.1 + 0.2  # no short decimal
    checkpoint.plateau_bad_epochs = 7
    stopped.save(checkpoint)
    again, _ = stopped.load(LIKE)
    for name in ("epochs_done", "plateau_best", "plateau_bad_epochs", "started_at"):
        assert getattr(again, name) == getattr(checkpoint, name)
    for name, value in checkpoint.tensors.items():
        assert torch.equal(again.tensors[name], value)
    checkpoint.plateau_best = float("inf")
    stopped.save(checkpoint)
    assert stopped.load(LIKE)[0].plateau_best == float("inf")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _of_another_run(path: Path) -> None:
    other = RunFolder(path.parent.parent, replace(RUN, seed=1))
    other.create()
    other.save(RunFolder(path.parent.parent, RUN).load(LIKE)[0])
    shutil.copy(other.path / "state.safetensors", path)


def _not_finite(path: Path) -> None:
    folder = RunFolder(path.parent.parent, RUN)
    checkpoint, _ = folder.load(LIKE)
    checkpoint.tensors["values"][0, 5] = float("nan")
    folder.save(checkpoint)


def _of_another_shape(path: Path) -> None:
    folder = RunFolder(path.parent.parent, RUN)
    checkpoint, _ = folder.load(LIKE)
    for name in ("values", "mean", "square"):
        checkpoint.tensors[name] = torch.zeros(1, 7)
    folder.save(checkpoint)


def _ahead_of_the_history(path: Path) -> None:
    folder = RunFolder(path.parent.parent, RUN)
    checkpoint, _ = folder.load(LIKE)
    checkpoint.epochs_done = 4
    folder.save(checkpoint)


def _without_metadata(path: Path) -> None:
    folder = RunFolder(path.parent.parent, RUN)
    path.write_bytes(save(folder.load(LIKE)[0].tensors))


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _cut_in_the_header,
        _empty,
        _garbage,
        _zeros,
        _of_another_run,
        _not_finite,
        _of_another_shape,
        _ahead_of_the_history,
        _without_metadata,
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_said(damage, stopped, tmp_path, kept) -> None:
    train([RUN], tmp_path / "unbroken", CPU)
    state = stopped.path / "state.safetensors"
    damage(state)
    damaged = state.read_bytes()
    events: list[Event] = []
    (result,) = train([RUN], tmp_path / "store", CPU, watch=events.append)
    assert isinstance(result, Result)
    remark = events[0].what
    assert isinstance(remark, str)
    assert f"the checkpoint of {RUN.name} is damaged (" in remark
    assert remark.endswith("); kept as state.damaged.safetensors; starting again")
    assert "\n" not in remark
    assert (stopped.path / "state.damaged.safetensors").read_bytes() == damaged
    assert kept(tmp_path / "store", RUN) == kept(tmp_path / "unbroken", RUN)


def test_a_checkpoint_that_cannot_be_read_is_left_and_said(stopped) -> None:
    """A folder in its place: root may read any file."""
    state = stopped.path / "state.safetensors"
    state.unlink()
    state.mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*state\.safetensors: .*; make it readable"):
        train([RUN], stopped.path.parent, CPU)
    assert state.is_dir()
    assert not isinstance(stopped.outcome(), Failure)


def test_a_damaged_checkpoint_beside_a_result_changes_nothing(tmp_path) -> None:
    (result,) = train([RUN], tmp_path, CPU)
    state = RunFolder(tmp_path, RUN).path / "state.safetensors"
    state.write_bytes(b"left behind")
    assert train([RUN], tmp_path, CPU) == [result]
    assert state.read_bytes() == b"left behind"


@pytest.mark.parametrize("name", ["result.json", "failure.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text, run: text[:100],
        lambda text, run: "",
        lambda text, run: "[]",
        lambda text, run: '"text"',
        lambda text, run: text.replace('"schema": 1', '"schema": 99'),
        lambda text, run: text.replace(run.run_id, "0123456789ab"),
        lambda text, run: json.dumps({"schema": 1, "run_id": run.run_id}),
        lambda text, run: text.replace('"n_bits": 3', '"n_bits": 0'),
        lambda text, run: text.replace('"n_bits": 3', '"bits": 3'),
        lambda text, run: text.replace('"seed": 0', '"seed": 1'),
        lambda text, run: text.replace('"epoch', '"era'),
        lambda text, run: text.replace('"name"', '"nom"'),
        lambda text, run: "[" * 100_000,
    ],
)
def test_a_damaged_record_is_an_error_and_is_left(name, damage, tmp_path) -> None:
    protocol = TINY if name == "result.json" else replace(TINY, learning_rate=1e30)
    run = replace(RUN, protocol=protocol)
    train([run], tmp_path, CPU)
    path = RunFolder(tmp_path, run).path / name
    text = path.read_text()
    damaged = damage(text, run)
    assert damaged != text
    path.write_text(damaged)
    for retry_failed in (False, True):
        with pytest.raises(StoreError, match=rf"no readable run \({name}.*\); it is left as it is"):
            train([run], tmp_path, CPU, retry_failed=retry_failed)
        assert path.read_text() == damaged


def test_a_result_without_its_spec_is_an_error_and_is_left(tmp_path) -> None:
    train([RUN], tmp_path, CPU)
    folder = RunFolder(tmp_path, RUN)
    (folder.path / "spec.json").unlink()
    with pytest.raises(StoreError, match=r"no readable run \(it has no spec.json; half copied\?\)"):
        train([RUN], tmp_path, CPU)
    assert not (folder.path / "spec.json").exists()


def test_a_result_that_is_a_link_to_nothing_is_left(tmp_path) -> None:
    folder = RunFolder(tmp_path, RUN)
    folder.create()
    (folder.path / "result.json").symlink_to(tmp_path / "away")
    with pytest.raises(StoreError, match=r"\(result.json is a link to nothing\)"):
        train([RUN], tmp_path, CPU)
    assert (folder.path / "result.json").is_symlink()


def test_one_that_comes_while_the_run_is_trained_is_left_too(tmp_path) -> None:
    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 1:
            (RunFolder(tmp_path, RUN).path / "result.json").symlink_to(tmp_path / "away")

    with pytest.raises(StoreError, match="is a link to nothing"):
        train([RUN], tmp_path, CPU, watch=watch)
    assert (RunFolder(tmp_path, RUN).path / "result.json").is_symlink()


@pytest.mark.parametrize("damage", ["another", "torn"])
def test_a_folder_of_another_run_is_refused(damage, tmp_path) -> None:
    folder, other = RunFolder(tmp_path, RUN), RunFolder(tmp_path, replace(RUN, seed=1))
    other.create()
    if damage == "another":
        other.path.rename(folder.path)
    else:
        folder.create()
        (folder.path / "spec.json").write_text('{"schema"')
    before = (folder.path / "spec.json").read_bytes()
    with pytest.raises(StoreError, match="does not hold the run it is named after; move it away"):
        train([RUN], tmp_path, CPU)
    assert (folder.path / "spec.json").read_bytes() == before


def line(number: int, loss: float) -> bytes:
    return json.dumps(asdict(Epoch(number, loss, loss, 0.5, 1e-3, 0.1))).encode() + b"\n"


def test_torn_and_repeated_lines_of_history(tmp_path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(str(tmp_path)) == []
    path.write_bytes(
        line(1, 0.9)
        + line(2, 0.8)[:20]  # torn in the middle, and the next one on its own line
        + b"\n"
        + line(2, 0.7)
        + line(3, 0.6)
        + line(3, 0.5)  # again after a restart: the last word counts
        + b"\xff\xfe\n"
        + b'{"epoch": 9}\n[]\nnull\n'
        + line(5, float("nan"))  # no epoch can be so
        + line(6, 0.3).replace(b"0.5", b"7")
        + line(-1, 0.3)
        + line(0, 0.3)
        + line(4, 0.4)[:-5]
    )
    assert [(epoch.epoch, epoch.train_loss) for epoch in read_history(str(tmp_path))] == [
        (1, 0.9),
        (2, 0.7),
        (3, 0.5),
    ]


def test_a_torn_last_line_does_not_swallow_the_next(tmp_path) -> None:
    folder = RunFolder(tmp_path, RUN)
    folder.create()
    path = folder.path / "history.jsonl"
    path.write_bytes(line(1, 0.9) + line(2, 0.8)[:-7])
    folder.append_epoch(Epoch(2, 0.7, 0.7, 0.5, 1e-3, 0.1))
    assert [epoch.train_loss for epoch in folder.history()] == [0.9, 0.7]
    folder.append_epoch(Epoch(3, 0.6, 0.6, 0.5, 1e-3, 0.1))
    assert [epoch.train_loss for epoch in folder.history()] == [0.9, 0.7, 0.6]


def test_epochs_after_the_checkpoint_are_dropped(stopped, tmp_path) -> None:
    """They may be of another machine, and more than the second way of training will have."""
    for number in range(3, 30):
        stopped.append_epoch(Epoch(number, 9.0, 9.0, 0.5, 1e-3, 0.1))
    (result,) = train([RUN], tmp_path / "store", CPU)
    history = stopped.history()
    assert len(history) == result.epochs == 4
    assert all(epoch.train_loss < 9 for epoch in history)
    assert (stopped.path / "history.jsonl").read_bytes().count(b"\n") == 4


def test_what_a_killed_writer_left_is_cleared(stopped, tmp_path, leftovers) -> None:
    (stopped.path / ".state.safetensors.0123").write_bytes(b"half")  # 0.1 named it so
    (stopped.path / ".ithbit-0123.safetensors").write_bytes(b"half")
    train([RUN], tmp_path / "store", CPU)
    assert leftovers(tmp_path / "store") == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "no bytes")
    assert path.read_bytes() == b"old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "record.json"]


def test_files_are_made_as_the_user_wants_them(tmp_path) -> None:
    """A store may be shared: records are readable by whom the user's mask lets read."""
    before = os.umask(0o027)
    try:
        train([RUN], tmp_path / "store", CPU)
    finally:
        os.umask(before)
    for path in RunFolder(tmp_path / "store", RUN).path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640, path.name


def test_a_store_that_cannot_be_one(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StoreError, match=r"the store .*file is a file; give a folder with --store"):
        check_store(file)
    with pytest.raises(StoreError, match=r"cannot write to .*: Not a directory"):
        check_store(file / "inside")
    with pytest.raises(StoreError, match=r"cannot write to .*: File name too long"):
        check_store(tmp_path / ("x" * 300))
    assert file.read_text() == "mine"
    if sys.platform == "linux":  # root may write anywhere but here
        with pytest.raises(StoreError, match=r"cannot write to /proc/ithbit: No such file"):
            check_store(Path("/proc/ithbit"))
    check_store(tmp_path / "new" / "store")
    assert list((tmp_path / "new" / "store").iterdir()) == []


def test_one_process_at_a_time(tmp_path) -> None:
    """A lock is against other processes, and ends with its process, however that ends."""
    folder = RunFolder(tmp_path, RUN)
    folder.create()
    program = (
        "import fcntl, os, sys, time\n"
        "handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path / "lock")], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"held\n"
        with folder.claimed() as free:
            assert not free
    finally:
        other.kill()
        other.communicate()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with folder.claimed() as free:
            if free:
                break
        time.sleep(0.01)
    assert free
    with folder.claimed() as free:  # and is given back at the end of the context
        assert free


def test_where_a_layer_came_from(tmp_path) -> None:
    folder = RunFolder(tmp_path, RUN)
    folder.create()
    assert folder.layer() is None
    folder.keep_layer("/home/me/layers.py:Mine", b"class Mine: ...\n")
    folder.keep_layer("/home/me/moved/layers.py:Mine", b"class Mine: ...\n")
    assert folder.layer() == LayerOrigin(RUN.model.family, "", "/home/me/moved/layers.py:Mine")
    assert (folder.path / "layer.py").read_bytes() == b"class Mine: ...\n"
    path = folder.path / "layer.json"
    whole = json.loads(path.read_text())
    for change, reason in (
        ({"code": "0123456789ab"}, "layer.json belongs to another layer"),
        ({"source": 7}, "layer.json has source = 7"),
        ({"schema": 9}, "layer.json has schema 9"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(StoreError, match=reason):
            folder.layer()
