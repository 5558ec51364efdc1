"""The batches of a store."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, RunSpec
from ithbit.sweeps.executors.ledger import Job, Ledger, Share, live_runs, read_batch

RUN = RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed=0)
OTHER = replace(RUN, seed=1)


def test_a_batch_comes_back_as_it_was_written(tmp_path):
    ledger = Ledger(tmp_path / "runs")
    with ledger.locked():
        first = ledger.write([Share((RUN, OTHER), attempt=2, epochs=7)], "cpu")
        second = ledger.write([Share((OTHER,))], "cuda")
    assert ledger.batches() == [first, second]
    assert (first.name[:6], second.name[:6]) == ("00001-", "00002-")
    assert [share.handle for share in ledger.shares()] == [(first.name, 0), (second.name, 0)]
    assert not first.shares[0].submitted
    job = Job("17_0", "RUNNING")
    assert live_runs(tmp_path / "runs", {(second.name, 0): job}) == {OTHER: job}
    ledger.remove(first)
    assert ledger.batches() == [second]
    assert read_batch(first.path) is None


def test_closed_jobs_and_traces(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.locked():
        batch = ledger.write([Share((RUN,)), Share((OTHER,))], "cpu")
    batch.shares[1].close()
    (batch.folder / "0.trace").write_text("started on a as b\nready\n")
    assert [share.is_closed for share in batch.shares] == [False, True]
    assert [share.trace() for share in batch.shares] == [["started on a as b", "ready"], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ('{"schema": 99}', "has schema 99, this version reads 1")],
)
def test_a_damaged_batch_is_not_passed_over(tmp_path, text, message):
    ledger = Ledger(tmp_path)
    with ledger.locked():
        batch = ledger.write([Share((RUN,))], "cpu")
    batch.path.write_text(text)
    with pytest.raises(StoreError, match=message):
        ledger.batches()


def test_the_lock_lives_as_long_as_a_child_that_inherited_it(tmp_path):
    """A submitter that is killed leaves an sbatch behind: nobody looks before that one is done."""
    ledger = Ledger(tmp_path)
    with ledger.locked() as lock:
        assert lock is not None
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        )
    waiting = subprocess.Popen(
        ["flock", "-n", str(ledger.folder / "lock"), "true"], stderr=subprocess.DEVNULL
    )
    assert waiting.wait() == 1
    child.communicate(b"\n")
    with ledger.locked() as lock:
        assert lock is not None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("evil-1", {}),
        ("-", {}),
        ("00001-ab", {"attempt": "x"}),
        ("00001-ab", {"attempt": [1]}),
        ("00001-ab", {"epochs": None}),
        ("00001-ab", {"epochs": -1}),
        ("00001-ab", {"epochs": True}),
    ],
)
def test_a_batch_that_nobody_wrote_is_refused(tmp_path, name, change):
    share = {"runs": [RUN.to_json()], "attempt": 1, "epochs": 0} | change
    (tmp_path / ".jobs").mkdir()
    file = tmp_path / ".jobs" / f"{name}.json"
    file.write_text(json.dumps({"schema": 1, "device": "cpu", "tasks": [share]}))
    with pytest.raises(StoreError, match="is no batch of this version; move it away"):
        Ledger(tmp_path).batches()


def test_a_trace_is_read_whatever_it_is(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.locked():
        batch = ledger.write([Share((RUN,))], "cpu")
    (share,), trace = batch.shares, batch.folder / "0.trace"
    trace.write_bytes(b"started on \xff\nready\n")
    assert share.trace() == ["started on \ufffd", "ready"]
    with open(trace, "ab") as file:
        file.truncate(1 << 40)  # no bytes on disk
        file.write(b"\nready\n")
    share.log.symlink_to(trace)
    assert share.trace()[-1] == share.log_lines()[-1] == "ready"
    trace.unlink()
    os.mkfifo(trace)
    assert share.trace() == []
    shutil.rmtree(batch.folder)
    with pytest.raises(StoreError, match="No such file"):
        share.trace()


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_lock_that_is_none_neither_blocks_nor_leads_elsewhere(tmp_path, kind):
    lock = tmp_path / "store" / ".jobs" / "lock"
    lock.parent.parent.mkdir()
    (tmp_path / "outside").mkdir()
    if kind == "folder":
        lock.parent.symlink_to(tmp_path / "outside")
    else:
        lock.parent.mkdir()
        os.mkfifo(lock) if kind == "fifo" else lock.symlink_to(tmp_path / "outside" / "lock")
    with suppress(StoreError), Ledger(tmp_path / "store").locked():
        assert kind == "fifo"
    assert list((tmp_path / "outside").iterdir()) == []
