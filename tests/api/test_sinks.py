"""Training reported to others: what TensorBoard reads back is what the store has."""

import errno
import json
import os

import pytest

import ithbit
from ithbit.errors import OutputError, SpecError

TINY = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=2)
SETTINGS = {"n": 2, "protocol": TINY, "workers": 1, "device": "cpu", "seeds": [0, 1]}


def test_tensorboard_has_the_history(tmp_path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    store, board, seen = tmp_path / "runs", tmp_path / "board", []
    ithbit.train("lhi", "gru", store=store, tensorboard=board, watch=seen.append, **SETTINGS)
    assert len(seen) == 6  # two epochs and a result each: the user's own function is called too
    folders = [path.name for path in board.iterdir()]
    assert sorted(folders) == sorted(path.name for path in store.iterdir())
    for folder in folders:
        (file,) = (board / folder).iterdir()
        found = {
            (value.tag, event.step): value.tensor.float_val[0]
            for event in reading.EventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
        lines = (store / folder / "history.jsonl").read_text().splitlines()
        epochs = [json.loads(line) for line in lines]
        expected = {
            (name, epoch["epoch"]): pytest.approx(value, rel=1e-6)
            for epoch in epochs
            for name, value in epoch.items()
            if name != "epoch"
        }
        assert len(epochs) == 2
        assert found == expected


def test_nothing_is_written_unless_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ithbit.train("lhi", "gru", **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_mistakes_are_told_before_training(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    pytest.importorskip("tensorboard")
    with pytest.raises(OutputError, match="is a file; TensorBoard needs a folder"):
        ithbit.train("lhi", "gru", tensorboard=tmp_path / "file", store=tmp_path / "a", **SETTINGS)
    monkeypatch.setattr("ithbit.api.progress.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'ithbit\[tensorboard\]'"):
        ithbit.train("lhi", "gru", tensorboard=tmp_path / "b", store=tmp_path / "a", **SETTINGS)
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made_is_told_before_training(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file/board: Not a directory"):
        ithbit.train("lhi", "gru", tensorboard=tmp_path / "file/board", store="a", **SETTINGS)


def test_a_full_disk_ends_the_curves_and_not_the_runs(tmp_path, monkeypatch, capfd) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer")

    def full(self, data) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.RecordWriter, "write", full)
    runs = ithbit.train("lhi", "gru", store=tmp_path / "a", tensorboard=tmp_path / "b", **SETTINGS)
    assert [run.epochs for run in runs] == [2, 2]
    (said,) = capfd.readouterr().err.splitlines()
    assert said == (
        f"ithbit: cannot write {tmp_path / 'b'}: No space left on device; training continues "
        "without TensorBoard"
    )
