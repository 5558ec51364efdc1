"""A sweep killed again and again ends as if nothing had happened, and so do two at once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ithbit.sweeps.select import sweep_runs

SWEEP = """
task = ["rhi", "lhi"]
family = ["gru", "linear-full", "softmax-causal", "mamba2"]
layers = [1]
n = [4]
seeds = "0-3"
[protocol]
epoch_examples = 4096
held_out_examples = 256
max_epochs = 16
"""
KILLS = 20


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "kill.toml"
    path.write_text(SWEEP)
    return path


def start(sweep_file: Path, store: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ithbit", "sweep", str(sweep_file), "--store", str(store)]
    return subprocess.Popen(
        [*command, "--device", "cpu", "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # Checkpoints close together, so that most lives go on from one and some die writing one.
        env=os.environ | {"ITHBIT_SAVE_SECONDS": "0.2"},
    )


def finish(sweep_file: Path, store: Path) -> None:
    assert start(sweep_file, store).wait(timeout=600) == 0


def outcome(store: Path) -> dict[str, tuple[object, ...]]:
    """All that a store says of its runs, but for clocks and the machine."""
    found = {}
    for folder in sorted(store.iterdir()):
        result = json.loads((folder / "result.json").read_text())
        for key in ("seconds_per_epoch", "evaluation_seconds", "started_at", "finished_at"):
            del result[key]
        del result["environment"]
        history: dict[int, dict[str, float]] = {}
        for line in (folder / "history.jsonl").read_bytes().splitlines():
            try:
                epoch = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            del epoch["seconds"]
            history[epoch["epoch"]] = epoch
        found[folder.name] = (result, history, (folder / "weights.safetensors").read_bytes())
    return found


def results(store: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in store.glob("*/result.json")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_change_nothing(sweep_file: Path, tmp_path: Path) -> None:
    finish(sweep_file, tmp_path / "quiet")
    expected = outcome(tmp_path / "quiet")
    assert len(expected) == len(sweep_runs(str(sweep_file))) >= 30
    rng = random.Random(0)
    kills = sweeps = 0
    done: dict[str, float] = {}
    while kills < KILLS:
        killed = tmp_path / f"killed{sweeps}"
        process = start(sweep_file, killed)
        time.sleep(rng.uniform(1.0, 4.5))  # training begins after some three seconds
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            now = results(killed)
            assert done.items() <= now.items(), "a finished run was written again"
            done = now
        else:  # quick machines finish in between: then begin anew, until it is twenty
            assert outcome(killed) == expected
            sweeps, done = sweeps + 1, {}
    finish(sweep_file, killed)
    assert outcome(killed) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_on_one_store(sweep_file: Path, tmp_path: Path) -> None:
    quiet, shared = tmp_path / "quiet", tmp_path / "shared"
    finish(sweep_file, quiet)
    processes = [start(sweep_file, shared) for _ in range(2)]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert outcome(shared) == outcome(quiet)
