"""The faults a cluster has, each during a sweep: every run ends with one result, none is lost."""

import os
import shutil
import signal
import time

import pytest
from tests.support.slurm_cluster import gone, kill, parent_of, until

pytestmark = pytest.mark.slurm


def test_equal_to_the_local_executor(sweep, expected):
    sweep.start()
    sweep.end()
    expected.check(sweep.store)
    assert len({*sweep.starts(0), *sweep.starts(1)}) == 2


def test_requeued_job_goes_on_from_its_checkpoint(cluster, sweep, expected):
    sweep.start_and_freeze()
    cluster.call("scontrol", "requeue", sweep.job(0)[0])
    sweep.end()
    expected.check(sweep.store)
    assert len(sweep.starts(0)) == 2
    assert sweep.epochs(0).count(1) == 1
    assert len(sweep.submitted()) == 1


def test_node_crash(cluster, sweep, expected):
    process = sweep.start_and_freeze()
    node = sweep.running_job(0)[2]
    kill(cluster.pid(f"slurmd.{node}"), parent_of(process), process)
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=crash")
    sweep.end()
    expected.check(sweep.store)
    first, second = sweep.starts(0)
    assert first == node != second
    assert sweep.epochs(0).count(1) == 1


def test_preemption(cluster, sweep, expected):
    sweep.start_and_freeze()
    node = sweep.running_job(0)[2]
    cluster.call("sbatch", "-p", "high", "-w", node, "-o", "/dev/null", "--wrap", "sleep 3")
    sweep.end()
    expected.check(sweep.store)
    assert len(sweep.starts(0)) == 2
    assert len(sweep.submitted()) == 1


def test_time_limit(cluster, sweep, expected):
    sweep.start_and_freeze("--slurm", "time=2")
    job_id = sweep.job(0)[0]
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 1))
    cluster.call("scontrol", "update", f"jobid={job_id}", f"endtime={soon}")
    said = sweep.end()
    expected.check(sweep.store)
    assert "a job ended early, its runs continue" in said
    assert len(sweep.submitted()) == 2


def test_killed_run(sweep, expected):
    kill(sweep.start_and_freeze())
    said = sweep.end()
    expected.check(sweep.store)
    assert "a job ended early, its runs continue" in said
    assert len(sweep.submitted()) == 2


def test_two_copies_at_once_when_slurmd_alone_dies(cluster, sweep, expected):
    sweep.start_and_freeze()
    node = sweep.running_job(0)[2]
    kill(cluster.pid(f"slurmd.{node}"))
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=crash")
    until(lambda: len(sweep.starts(0)) == 2 and sweep.ready(0) == 2)
    first, second = sweep.processes(0)
    for process in (first, second):
        os.kill(process, signal.SIGCONT)
    sweep.end()
    until(lambda: gone(first) and gone(second))
    expected.check(sweep.store)
    assert sweep.epochs(0).count(1) == 1, "the lock held the second copy off"


def test_controller_killed_and_restarted(cluster, sweep, expected):
    process = sweep.start_and_freeze()
    kill(cluster.pid("slurmctld"))
    time.sleep(3)
    cluster.start_controller()
    os.kill(process, signal.SIGCONT)
    sweep.end()
    expected.check(sweep.store)
    # A controller that had not saved its state yet forgets the job and gives its number again.
    assert len(set(sweep.submitted())) == 1


def test_submitter_killed_and_started_again(sweep, expected):
    process = sweep.start_and_freeze()
    kill(sweep.submitter.pid)
    sweep.start()
    os.kill(process, signal.SIGCONT)
    sweep.end()
    expected.check(sweep.store)
    # None if all runs had ended when the second submitter first looked: it clears up what is done.
    assert len(sweep.batches()) <= 1


def test_submitter_killed_while_it_submits(cluster, sweep, expected, tmp_path):
    """The next one waits for an sbatch that outlives its parent, and then finds the jobs."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sbatch").write_text(
        f'#!/bin/sh\ntouch {slow}/called\nsleep 4\nexec {shutil.which("sbatch")} "$@"\n'
    )
    (slow / "sbatch").chmod(0o755)
    usual = cluster.environment
    cluster.environment = usual | {"PATH": f"{slow}:{usual['PATH']}"}
    sweep.start()
    cluster.environment = usual
    until((slow / "called").exists)
    kill(sweep.submitter.pid)
    assert not cluster.queue()
    sweep.start()
    sweep.end()
    expected.check(sweep.store)
    assert len(sweep.starts(0)) == len(sweep.starts(1)) == 1


def test_held_after_a_failed_launch(cluster, sweep, expected):
    cluster.launch_fails.touch()
    sweep.start()
    said = sweep.end()
    expected.check(sweep.store)
    assert "was held after a failed launch; released" in said
    assert not cluster.launch_fails.exists()
    assert len(sweep.submitted()) == 1


def test_left_alone_looked_at_and_cancelled(cluster, sweep, expected):
    sweep.start("--detach")
    assert "4 of 4 runs are queued or running" in sweep.submitter.communicate(timeout=60)[0]
    sweep.freeze(0)
    sweep.freeze(1)
    watcher = sweep.ithbit("sweep", "--on", "slurm")
    status = sweep.ithbit("status")
    assert "4 running" in status.communicate(timeout=60)[0]
    assert "4 runs; Slurm" in watcher.stderr.readline()
    time.sleep(2)  # for its first look, by which it adopts the jobs
    cancel = sweep.ithbit("sweep", "--on", "slurm", "--cancel")
    assert "2 tasks cancelled" in cancel.communicate(timeout=60)[0]
    assert not cluster.queue()
    assert "was cancelled; run the command again" in watcher.communicate(timeout=60)[1]
    assert watcher.returncode == 2
    assert len(sweep.submitted()) == 1
    sweep.start()
    sweep.end()
    expected.check(sweep.store)


def test_more_jobs_than_an_array_holds(cluster, sweep, expected):
    process = sweep.ithbit(
        "sweep", "--on", "slurm", "--runs-per-task", "1", "--seeds", "0-5", "--max-epochs", "3"
    )
    output, errors = process.communicate(timeout=100)
    assert "0 of 6 seeds reached" in output, errors
    assert process.returncode == 0
    assert len(sweep.submitted()) == 2
