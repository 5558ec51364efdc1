"""Sweeps on Slurm from the command line, where there is no Slurm."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ithbit.api.sweeps import node_device
from ithbit.cli import app
from ithbit.errors import ClusterError, DeviceError, SpecError
from ithbit.sweeps.executors.ledger import Ledger, Share
from ithbit.sweeps.select import sweep_runs

SHEET = """
task = "rhi"
family = "gru"
layers = 1
n = [3, 4]
seeds = "0-2"
"""


@pytest.fixture
def sheet(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SHEET)
    return str(tmp_path / "small.toml")


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_no_slurm_is_a_sentence_and_status_2(sheet, tmp_path, ithbit, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = ithbit("sweep", sheet, "--on", "slurm", "--store", tmp_path / "runs")
    assert status == 2
    assert err.startswith("ithbit: there is no Slurm on this machine")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "pbs"], "--on must be local or slurm, got 'pbs'"),
        (["--detach"], "need --on slurm"),
        (["--slurm", "partition=x"], "need --on slurm"),
        (["--on", "slurm", "--runs-per-task", "0"], "runs_per_task must be at least 1, got 0"),
        (["--on", "slurm", "--slurm", "array=1"], "array is not to be given"),
    ],
)
def test_mistakes(sheet, words, message):
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(app, ["sweep", sheet, *words], catch_exceptions=False)


def test_dry_run_needs_no_cluster(sheet, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--on", "slurm", "--dry-run", "--runs-per-task", "2", "--device", "cuda"]
    output = invoke("sweep", sheet, "--store", str(tmp_path / "runs"), *words)
    assert output.count("missing") == 6
    assert "6 runs, 0 done already; tasks: 2 of 1 run, 2 of 2 runs; at most about" in output
    assert "of GPU time" in output


def test_dry_run_shows_a_submission_that_a_shell_accepts(sheet, tmp_path):
    """What it prints is run by a shell, with a program called sbatch that prints what it gets."""
    words = ["--on", "slurm", "--dry-run", "--device", "cuda", "--slurm", "account=me"]
    words += ["--slurm", "setup=module load cuda", "--store", str(tmp_path / "my runs")]
    output = invoke("sweep", sheet, *words)
    (tmp_path / "sbatch").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\ncat\n')
    (tmp_path / "sbatch").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pasted = output[output.index("\nsbatch ") :]
    done = subprocess.run(
        ["bash"], input=pasted, env=environment, capture_output=True, text=True, check=True
    )
    given = done.stdout.splitlines()
    assert {"--account=me", "--gres=gpu:1", "--array=0-0"} <= set(given)  # one GPU trains it all
    assert "module load cuda" in given
    assert given[-1].startswith("exec ")
    assert not (tmp_path / "my runs").exists()


def test_a_task_gets_a_gpu_when_one_is_asked_for():
    assert not node_device("auto", gpu_requested=False).is_cuda
    assert node_device("auto", gpu_requested=True).is_cuda
    assert node_device("cuda", gpu_requested=False).is_cuda
    assert not node_device("cpu", gpu_requested=True).is_cuda
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        node_device("tpu", gpu_requested=False)


@pytest.fixture
def handed_over(sheet, tmp_path, monkeypatch):
    """A store with two tasks in the queue, as a program called squeue tells."""
    runs = sweep_runs(sheet)
    ledger = Ledger(tmp_path / "runs")
    with ledger.locked():
        batch = ledger.write([Share(tuple(runs[:3])), Share(tuple(runs[3:5]))], "cpu")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (folder / name).write_text(
            f'#!/bin/sh\necho "5_0|RUNNING|None|ithbit-{batch.name}"\n'
            f'echo "5_1|PENDING|Resources|ithbit-{batch.name}"\n'
        )
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "runs"


def test_status_finds_jobs(sheet, handed_over):
    output = invoke("status", sheet, "--store", str(handed_over))
    assert output.splitlines()[0] == "3 running, 2 queued, 1 missing (6 runs)"
    assert "Slurm on 2 runs: Resources" in output
    found = json.loads(invoke("status", "--store", str(handed_over), "--json"))
    assert found["counts"] == {"running": 3, "queued": 2}
    assert list(found["runs"]) == [run.folder for run in sweep_runs(sheet)[:5]]


def test_status_says_when_the_queue_cannot_be_asked(sheet, handed_over, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, ["status", sheet, "--store", str(handed_over)])
    assert result.exit_code == 0
    assert "6 missing" in result.stdout
    assert "cannot look up the jobs of this store: there is no Slurm" in result.stderr


def test_cancel_needs_slurm(sheet, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no Slurm on this machine"):
        CliRunner().invoke(
            app, ["sweep", sheet, "--on", "slurm", "--cancel"], catch_exceptions=False
        )
