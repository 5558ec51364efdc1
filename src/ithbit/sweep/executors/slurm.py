"""Slurm: a batch is a job array, a share is one of its jobs; queried with `squeue`, never `sacct`.

Plain `sbatch` with a JSON file of shares, without a library. The usual library for this pickles the
function to call and loads that pickle on the node, while nothing here is ever unpickled; it learns
from accounting that a job has ended, which many clusters lack; and without these two, little more
than a command line would be left of it.

The array is named after its batch, so a job is recognised in the queue even if the process that
submitted it was killed before it got the job number. `squeue` keeps listing a job while it is
requeued, preempted or moved off a dead node: a job that is not listed has ended.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence

from ithbit.errors import ClusterError
from ithbit.sweep.executors import Handle, Job
from ithbit.sweep.executors.ledger import Batch
from ithbit.sweep.executors.slurm_options import Options, asks_for_gpu

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
QUEUE_FORMAT = "%i|%T|%r|%j"
_PREFIX = "ithbit-"
_TIMEOUT = 120.0  # seconds for one command; an unreachable controller is reported sooner


class Slurm:
    """The cluster that this machine submits to."""

    def __init__(self, options: Options | None = None, at_once: int | None = None) -> None:
        for program in PROGRAMS:
            if shutil.which(program) is None:
                raise ClusterError(
                    f"there is no Slurm on this machine ({program} is not on the PATH); use a "
                    "login node of the cluster, or leave --on slurm out"
                )
        self.options = options or {}
        self.at_once = at_once
        self._largest: int | None = None

    def largest_batch(self) -> int:
        """MaxArraySize: indices start at 0 and must stay below it."""
        if self._largest is None:
            self._largest = array_limit(_run(["scontrol", "show", "config"]))
        return self._largest

    def submit(self, batch: Batch, lock: int | None) -> None:
        """Submit a batch that is in the ledger as a job array.

        `lock` is the descriptor of the ledger's lock. `sbatch` inherits it, so that no other
        process looks before it is done, even if this process is killed.
        """
        command = sbatch_command(batch, self.options, self.at_once)
        answer = _run(command, job_script(batch), lock)
        (batch.folder / "submitted").write_text(answer.strip().split(";")[0] + "\n")

    def alive(self) -> dict[Handle, Job]:
        """Our shares that are queued or running."""
        user = str(os.getuid())
        return parse_queue(_run(["squeue", "-h", "-a", "-r", "-u", user, "-o", QUEUE_FORMAT]))

    def release(self, job: Job) -> None:
        _run(["scontrol", "release", job.job_id], may_fail=True)  # it may no longer be held

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Cancel shares; one that has already ended is no error."""
        names = [job.job_id for job in jobs]
        for start in range(0, len(names), 500):
            _run(["scancel", *names[start : start + 500]], may_fail=True)


def sbatch_command(batch: Batch, options: Options, at_once: int | None = None) -> list[str]:
    """The command that submits a batch; the job script goes to its standard input.

    The user's options come last and take precedence over ours.
    """
    throttle = f"%{at_once}" if at_once else ""
    ours: Options = {
        "parsable": True,
        "job-name": f"{_PREFIX}{batch.name}",
        "array": f"0-{len(batch.shares) - 1}{throttle}",
        "output": str(batch.folder).replace("%", "%%") + "/%a.log",
        "open-mode": "append",
        "requeue": True,
        "ntasks": "1",
        "cpus-per-task": "1",
    }
    if batch.device == "cuda" and not asks_for_gpu(options):
        ours["gres"] = "gpu:1"
    both = {**{name: value for name, value in ours.items() if name not in options}, **options}
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in both.items()]
    return ["sbatch", *words]


def job_script(batch: Batch) -> str:
    """The script of a share: it leaves a trace in the store before anything else can go wrong."""
    trace = f'{shlex.quote(str(batch.folder))}/"$SLURM_ARRAY_TASK_ID".trace'
    program = f"{shlex.quote(sys.executable)} -m ithbit.sweep.executors.node"
    return f"""#!/bin/sh
echo "started on $(hostname) as ${{SLURMD_NODENAME:-a node}}" >> {trace} || exit 3
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
exec {program} {shlex.quote(str(batch.path))} "$SLURM_ARRAY_TASK_ID"
"""


def parse_queue(text: str) -> dict[Handle, Job]:
    """Our shares in the output of `squeue`; other jobs are skipped.

    >>> list(parse_queue("71_2|PENDING|Resources|ithbit-00003-1f0c\\n80|RUNNING|None|bash\\n"))
    [Handle(batch='00003-1f0c', index=2)]
    """
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) < 4 or not fields[3].startswith(_PREFIX):
            continue
        job_id, state, reason, name = fields
        index = job_id.partition("_")[2]
        if index.isdecimal():
            handle = Handle(name.strip().removeprefix(_PREFIX), int(index))
            jobs[handle] = Job(handle, job_id, state, "" if reason == "None" else reason)
    return jobs


def array_limit(config: str) -> int:
    """MaxArraySize in the output of `scontrol show config`; Slurm's default if it is missing.

    >>> array_limit("MailProg = /bin/mail\\nMaxArraySize            = 5001\\n")
    5001
    """
    found = re.search(r"^\s*MaxArraySize\s*=\s*(\d+)\s*$", config, re.MULTILINE)
    return max(1, int(found[1])) if found else 1001


def _run(
    command: Sequence[str], script: str = "", lock: int | None = None, may_fail: bool = False
) -> str:
    """The output of a Slurm command; raises `ClusterError` if it fails."""
    name = command[0]
    try:
        done = subprocess.run(
            command,
            input=script,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            pass_fds=() if lock is None else (lock,),
            env={name: value for name, value in os.environ.items() if not _misleads(name)},
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{name} did not answer within {_TIMEOUT:.0f} seconds") from error
    if done.returncode and not may_fail:
        raise ClusterError(f"Slurm refused: {_complaint(done.stderr) or f'{name} failed'}")
    return done.stdout


def _misleads(name: str) -> bool:
    """Whether a user's setting would hide jobs from us, or make sbatch wait until they end.

    Other settings for sbatch, such as SBATCH_PARTITION, are the user's choice.
    """
    return name.startswith("SQUEUE_") or name == "SBATCH_WAIT"


def _complaint(errors: str) -> str:
    """The part of an error output that says what is wrong, in one line."""
    lines = [line.removeprefix("sbatch: ").strip() for line in errors.splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if not line.startswith("Try ")]
    return "; ".join(dict.fromkeys(said))
