"""Runs verified in several processes get the verdicts that they get in one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.verification.proofs.test_checked import ONE, TWO

import ithbit
from ithbit.api import verify_workers

WORK = "import sys, ithbit; ithbit.verify(all_runs=True, prove=True, store=sys.argv[1], workers=2)"


def made(store: Path, kind: tuple[str, str], n: int = 4, wrong: bool = False) -> Path:
    """One more run in a store, with the weights of a construction; wrong ones answer 1 always."""
    before = set(store.iterdir()) if store.exists() else set()
    ithbit.construct(*kind, n, model="trained", out=store)
    (folder,) = (path for path in set(store.iterdir()) - before if path.is_dir())
    if wrong:
        file = folder / "weights.safetensors"
        params = {name: value.copy() for name, value in load(file.read_bytes()).items()}
        params["head.bias"] += np.float32(100)
        file.write_bytes(save(params))
    return folder


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    """Also what cannot be read; and from a script without a guard of its main module."""
    stores = [tmp_path / "one", tmp_path / "two"]
    found = []
    for store, workers in zip(stores, (1, 2), strict=True):
        made(store, TWO)
        made(store, ONE, wrong=True)
        damaged = made(store, ONE, 3)
        (damaged / "weights.safetensors").write_bytes(b"no weights")
        found.append(ithbit.verify(all_runs=True, prove=True, store=store, workers=workers))
    one, two = found
    assert [each.name for each in one] == [each.name for each in two]
    assert [each.verdict for each in one] == [each.verdict for each in two]
    assert {each.verdict for each in two} == {"proved on all inputs", "refuted"}
    assert len(one.set_aside) == len(two.set_aside) == 1
    assert one.set_aside[0].replace("/one/", "/two/") == two.set_aside[0]
    proofs = [sorted(path.name for path in store.glob("*/proof.json")) for store in stores]
    assert proofs[0] == proofs[1] == ["proof.json"]


def test_a_process_that_dies_is_reported_and_the_others_go_on(tmp_path, monkeypatch) -> None:
    made(tmp_path, TWO)
    made(tmp_path, ONE, wrong=True)
    start = "import sys; line = sys.stdin.readline()\nif 'lhi' in line: sys.exit(3)\n" + (
        "import io; sys.stdin = io.StringIO(line)\n" + verify_workers._START
    )
    monkeypatch.setattr(verify_workers, "_START", start)
    found = ithbit.verify(all_runs=True, prove=True, store=tmp_path, workers=2)
    assert [each.verdict for each in found] == ["refuted"]
    (reason,) = found.set_aside
    assert "the process that verified it died" in reason


def test_no_worker_is_no_number_of_workers(tmp_path: Path) -> None:
    made(tmp_path, ONE)
    with pytest.raises(ithbit.IthbitError, match="workers must be at least 1"):
        ithbit.verify(all_runs=True, prove=True, store=tmp_path, workers=0)


@pytest.mark.slow
def test_an_interruption_ends_the_processes(tmp_path: Path) -> None:
    for n in range(3, 9):
        made(tmp_path, TWO, n)
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(tmp_path)], start_new_session=True, stderr=subprocess.PIPE
    )
    time.sleep(8)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    left = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, check=False)
    assert left.stdout == b""
