"""A share may be started again, and twice at once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ithbit.errors import DeviceError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Result
from ithbit.sweeps.executors.ledger import Batch, Ledger, Share
from ithbit.sweeps.executors.node import STALE_SECONDS, drop_stale_locks, train_share

PROTOCOL = Protocol(epoch_examples=512, held_out_examples=50, max_epochs=60, stop_loss=1e-30)
RUN = RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed=0, protocol=PROTOCOL)
QUICK = replace(RUN, protocol=replace(PROTOCOL, max_epochs=2))


def batch_of(store: Path, *runs: RunSpec, device: str = "cpu") -> Batch:
    ledger = Ledger(store)
    with ledger.locked():
        return ledger.write([Share(runs)], device)


def start(batch: Batch) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ithbit.sweeps.executors.node", str(batch.path), "0"]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_trains_its_runs_and_leaves_a_trace(tmp_path):
    batch = batch_of(tmp_path, QUICK, replace(QUICK, seed=1))
    train_share(batch.path, 0)
    for run in batch.shares[0].runs:
        assert isinstance(RunFolder(tmp_path, run).result(), Result)
    assert batch.shares[0].trace() == ["ready"]
    result = RunFolder(tmp_path, QUICK).path / "result.json"
    before = result.read_bytes()
    train_share(batch.path, 0)
    assert result.read_bytes() == before


def test_several_stacks_in_one_share_and_one_that_another_process_left_locked(tmp_path):
    """The second stack's run is locked by a dead node's lock, which is removed."""
    other = replace(QUICK, model=replace(QUICK.model, task="lhi"))
    alone, batch = batch_of(tmp_path / "alone", other), batch_of(tmp_path / "both", QUICK, other)
    train_share(alone.path, 0)
    folder = RunFolder(batch.store, other)
    folder.create()
    with folder.claimed():
        for file in folder.path.iterdir():
            os.utime(file, (0, 0))
        train_share(batch.path, 0)
    for run in (QUICK, other):
        assert isinstance(RunFolder(batch.store, run).result(), Result)
    one, two = (RunFolder(b.store, other).path / "weights.safetensors" for b in (alone, batch))
    assert one.read_bytes() == two.read_bytes()


def test_a_batch_that_is_gone_is_nothing_to_do(tmp_path, capsys):
    train_share(tmp_path / ".jobs" / "00001-ab.json", 0)
    assert "is gone" in capsys.readouterr().out


def test_an_error_is_left_in_the_trace(tmp_path):
    batch = batch_of(tmp_path, QUICK, device="tpu")
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        train_share(batch.path, 0)
    assert batch.shares[0].trace() == ["error unknown device 'tpu'; choose one of auto, cpu, cuda"]


def test_two_copies_without_a_lock_between_them(tmp_path):
    """As on a file system without locks: the second copy starts beside the first, and both end
    well, with the result that one alone has."""
    alone, together = batch_of(tmp_path / "alone", RUN), batch_of(tmp_path / "together", RUN)
    folder = RunFolder(together.store, RUN)
    copies = [start(together)]
    try:
        wait_for(lambda: len(folder.history()) > 5)
        os.kill(copies[0].pid, signal.SIGSTOP)  # until the second is under way
        (folder.path / "lock").unlink()
        n_epochs = len(folder.history())
        copies.append(start(together))
        wait_for(lambda: 0 < len(folder.history()) < n_epochs)  # it began where it had to, at 0
        os.kill(copies[0].pid, signal.SIGCONT)
        train_share(alone.path, 0)
        assert [copy.wait(60) for copy in copies] == [0, 0]
    finally:
        for copy in copies:
            copy.kill()
            copy.wait()
    assert bits(folder.path) == bits(RunFolder(alone.store, RUN).path)
    assert [epoch.epoch for epoch in folder.history()] == [*range(1, PROTOCOL.max_epochs + 1)]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def bits(folder: Path) -> tuple[bytes, dict[str, object]]:
    """What does not depend on when and where a run was trained."""
    record = json.loads((folder / "result.json").read_bytes())
    for name in ("seconds_per_epoch", "evaluation_seconds", "started_at", "finished_at"):
        del record[name]
    del record["environment"]
    return (folder / "weights.safetensors").read_bytes(), record


def test_the_first_result_stands(tmp_path):
    batch = batch_of(tmp_path, QUICK)
    train_share(batch.path, 0)
    folder = RunFolder(tmp_path, QUICK)
    first = folder.result()
    folder.finish(replace(first, epochs=99), {})
    assert folder.result() == first


def test_only_the_lock_of_a_run_that_stands_still_is_dropped(tmp_path):
    other = replace(RUN, seed=1)
    for run in (RUN, other):
        RunFolder(tmp_path, run).create()
        with RunFolder(tmp_path, run).claimed():
            pass
    still = RunFolder(tmp_path, RUN).path
    long_ago = time.time() - STALE_SECONDS - 60
    for file in still.iterdir():
        os.utime(file, (long_ago, long_ago))
    drop_stale_locks(tmp_path, (RUN, other))
    assert not (still / "lock").exists()
    assert (RunFolder(tmp_path, other).path / "lock").exists()
    assert not list(tmp_path.glob(".clock*"))
