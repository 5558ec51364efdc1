"""What is said to Slurm and read from it, without a Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ithbit.errors import ClusterError
from ithbit.spec import ModelSpec, RunSpec
from ithbit.sweeps.executors.ledger import Batch, Job, Share
from ithbit.sweeps.executors.slurm import (
    Slurm,
    SlurmOptions,
    array_limit,
    job_script,
    parse_queue,
    sbatch_command,
)

RUN = RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed=0)
BATCH = Batch("00002-ab12", Path("/data/my runs"), "cpu", (Share((RUN,)), Share((RUN,))))
GPU_BATCH = Batch("00002-ab12", Path("/data/my runs"), "cuda", (Share((RUN,)),))


def test_a_batch_is_an_array_named_after_it():
    words = sbatch_command(BATCH, SlurmOptions())
    assert words[0] == "sbatch"
    assert {"--array=0-1", "--job-name=ithbit-00002-ab12", "--requeue", "--parsable"} <= {*words}
    assert "--output=/data/my runs/.jobs/00002-ab12/%a.log" in words
    assert not any("gres" in word for word in words)


def test_a_percent_sign_in_the_store_is_no_pattern():
    batch = Batch("00001-cd", Path("/data/50%a"), "cpu", BATCH.shares)
    assert "--output=/data/50%%a/.jobs/00001-cd/%a.log" in sbatch_command(batch, SlurmOptions())


def test_options_are_passed_on_and_count_more_than_ours():
    options = SlurmOptions({"partition": "gpu", "exclusive": True, "cpus-per-task": "4"})
    words = sbatch_command(BATCH, options)
    assert words[-3:] == ["--partition=gpu", "--exclusive", "--cpus-per-task=4"]
    assert "--cpus-per-task=1" not in words


def test_jobs_at_once():
    assert "--array=0-1%7" in sbatch_command(BATCH, SlurmOptions(), at_once=7)


def test_a_gpu_for_each_job_unless_the_user_chooses_it():
    assert "--gres=gpu:1" in sbatch_command(GPU_BATCH, SlurmOptions())
    for options in ({"gres": "gpu:a100:1"}, {"gpus": "1"}, {"gpus-per-task": "1"}):
        words = sbatch_command(GPU_BATCH, SlurmOptions(options))
        assert sum("gpu" in word for word in words) == 1
    assert "--gres=gpu:1" not in sbatch_command(GPU_BATCH, SlurmOptions({"gres": "gpu:2"}))


def test_the_script_is_plain_shell(tmp_path):
    """Run with a stand-in for Python: the trace comes first, paths with blanks survive."""
    batch = Batch("00001-ef", tmp_path / "my runs", "cpu", BATCH.shares)
    batch.folder.mkdir(parents=True)
    script = job_script(batch).replace(sys.executable, "/bin/echo")
    environment = {"SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n7", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["sh"], input=script, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"-m ithbit.sweeps.executors.node {batch.path} 1\n"
    assert batch.shares[1].trace()[0].endswith("as n7")
    assert batch.shares[0].trace() == []


def test_setup_runs_before_python_and_python_may_be_a_container(tmp_path):
    batch = Batch("00001-ef", tmp_path, "cpu", BATCH.shares)
    batch.folder.mkdir(parents=True)
    options = SlurmOptions(setup=("export GREETING=hello", "cd /"), python="env echo $GREETING")
    environment = {"SLURM_ARRAY_TASK_ID": "0", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash"],
        input=job_script(batch, options),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"hello -m ithbit.sweeps.executors.node {batch.path} 0\n"
    assert len(batch.shares[0].trace()) == 1


def test_the_script_fails_where_the_store_is_not(tmp_path):
    batch = Batch("00001-ef", tmp_path / "none", "cpu", BATCH.shares)
    environment = {"SLURM_ARRAY_TASK_ID": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh"], input=job_script(batch), env=environment, text=True)
    assert done.returncode == 3


QUEUE = """\
CLUSTER: north
17_0|RUNNING|None|ithbit-00002-ab12
17_1|PENDING|launch failed requeued held|ithbit-00002-ab12
18_3|COMPLETING|None|ithbit-00003-ff00
19|RUNNING|None|ithbit
20_1|PENDING|Priority|somebody|else
21_[4-9]|PENDING|Priority|ithbit-00004-aa
"""


def test_the_queue_is_read():
    jobs = parse_queue(QUEUE)
    first, second, third = (
        ("00002-ab12", 0),
        ("00002-ab12", 1),
        ("00003-ff00", 3),
    )
    assert set(jobs) == {first, second, third}
    assert jobs[first] == Job("17_0", "RUNNING")
    assert jobs[first].is_running
    assert not jobs[first].failed_to_launch
    assert jobs[second].failed_to_launch
    assert not jobs[second].is_running


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "Resources", ""])
def test_only_a_failed_launch_is_released(reason):
    assert not Job("1_0", "PENDING", reason).failed_to_launch


def test_a_failed_launch_by_either_spelling():
    assert Job("1_0", "PENDING", "launch_failed_requeued_held").failed_to_launch


def test_array_limit_of_an_unknown_answer():
    assert array_limit("") == 1001


def test_no_slurm_on_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no Slurm on this machine \(sbatch is not on the PATH"):
        Slurm()


def shell(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder in front of the PATH whose programs bear the names of Slurm's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        shell(folder / name, "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_settings_that_hide_jobs_are_not_passed_on(programs, monkeypatch):
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    shell(programs / "squeue", 'echo "1_0|RUNNING|$SQUEUE_STATES|ithbit-00001-a"')
    assert [job.reason for job in Slurm().alive().values()] == [""]


def test_a_refusal_is_one_sentence(programs, tmp_path):
    shell(
        programs / "sbatch",
        'echo "sbatch: error: invalid partition specified: x" >&2\n'
        'echo "sbatch: error: Batch job submission failed: Invalid partition name" >&2\nexit 1',
    )
    with pytest.raises(ClusterError) as refused:
        Slurm().submit(BATCH, None)
    assert str(refused.value) == (
        "Slurm refused: invalid partition specified: x; "
        "Batch job submission failed: Invalid partition name"
    )
