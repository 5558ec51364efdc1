"""Slurm: a batch is a job array, a share is one of its jobs; queried with `squeue`, never `sacct`.

Plain `sbatch` with a JSON file of shares, without a library. The usual library for this pickles the
function to call and loads that pickle on the node, while nothing here is ever unpickled; it learns
from accounting that a job has ended, which many clusters lack; and without these two, little more
than a command line would be left of it.

The array is named after its batch, so a job is recognised in the queue even if the process that
submitted it was killed before it got the job number. `squeue` keeps listing a job while it is
requeued, preempted or moved off a dead node: a job that is not listed has ended.

The user's options for `sbatch`, from the command line or a profile, are all checked before any is
used. They are passed on unchanged, by their long names; the cluster decides which of them it
accepts. A profile is a TOML file with the same names:

    partition = "gpu"
    time = "4:00:00"
    cpus-per-task = 4
    exclusive = true

Two names are ours: `setup` is a shell line, or a list of them, that each task runs before Python
starts (modules, conda), and `python` is the command that starts Python there (a container).
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ithbit.errors import ClusterError, raise_problems
from ithbit.sweeps.executors.ledger import Batch, Handle, Job
from ithbit.sweeps.select import read_toml

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
QUEUE_FORMAT = "%i|%T|%r|%j"
_PREFIX = "ithbit-"
_TIMEOUT = 120.0  # seconds for one command; an unreachable controller is reported sooner

Options = dict[str, str | bool]  # True: an option without a value

_NAME = re.compile(r"[a-z][a-z0-9-]+")
_OURS = {  # what identifies our jobs and finds their shares
    "array": "jobs are numbered by ithbit; limit those that run at once with --workers",
    "job-name": "ithbit finds its jobs again by their names",
    "parsable": "ithbit reads the number of the job",
    "output": "what a job prints goes to .jobs/ in the store",
    "error": "what a job prints goes to .jobs/ in the store",
    "wrap": "ithbit supplies the script",
    "test-only": "use --dry-run",
    "wait": "leave --detach out",
    "clusters": "set SLURM_CLUSTERS, which every Slurm command reads",
    "ntasks": "a job of the array is one process",
    "quiet": "ithbit reads the number of the job",
}


@dataclass(frozen=True)
class SlurmOptions:
    """What a user asks of the cluster: options of `sbatch`, shell lines to run first in each task,
    and the command that starts Python there, in the words of a shell."""

    sbatch: Options = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    python: str = shlex.quote(sys.executable)

    @property
    def asks_for_gpu(self) -> bool:
        """Whether they already ask for a GPU, in any of the ways that Slurm offers."""
        names_gpus = any(name.startswith("gpus") for name in self.sbatch)
        return names_gpus or "gpu" in str(self.sbatch.get("gres", ""))


class Slurm:
    """The cluster that this machine submits to."""

    def __init__(self, options: SlurmOptions | None = None, at_once: int | None = None) -> None:
        for program in PROGRAMS:
            if shutil.which(program) is None:
                raise ClusterError(
                    f"there is no Slurm on this machine ({program} is not on the PATH); use a "
                    "login node of the cluster, or leave --on slurm out"
                )
        self.options, self.at_once = options or SlurmOptions(), at_once

    def largest_batch(self) -> int:
        """MaxArraySize: indices start at 0 and must stay below it."""
        return array_limit(_run(["scontrol", "show", "config"]))

    def submit(self, batch: Batch, lock: int | None) -> None:
        """Submit a batch that is in the ledger as a job array.

        `lock` is the descriptor of the ledger's lock. `sbatch` inherits it, so that no other
        process looks before it is done, even if this process is killed.
        """
        command = sbatch_command(batch, self.options, self.at_once)
        answer = _run(command, job_script(batch, self.options), lock)
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


def sbatch_command(batch: Batch, options: SlurmOptions, at_once: int | None = None) -> list[str]:
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
    if batch.device == "cuda" and not options.asks_for_gpu:
        ours["gres"] = "gpu:1"
    user_options = options.sbatch
    both = {
        **{name: value for name, value in ours.items() if name not in user_options},
        **user_options,
    }
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in both.items()]
    return ["sbatch", *words]


def job_script(batch: Batch, options: SlurmOptions | None = None) -> str:
    """The script of a share: it leaves a trace in the store before anything else can go wrong.
    With lines of the user's own it is a login shell's, where `module` and `conda` are known."""
    options = options or SlurmOptions()
    trace = f'{shlex.quote(str(batch.folder))}/"$SLURM_ARRAY_TASK_ID".trace'
    program = f"{options.python} -m ithbit.sweeps.executors.node"
    lines = [
        "#!/bin/bash -l" if options.setup else "#!/bin/sh",
        f'echo "started on $(hostname) as ${{SLURMD_NODENAME:-a node}}" >> {trace} || exit 3',
        *options.setup,
        'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
        f'exec {program} {shlex.quote(str(batch.path))} "$SLURM_ARRAY_TASK_ID"',
    ]
    return "".join(f"{line}\n" for line in lines)


def parse_queue(text: str) -> dict[Handle, Job]:
    """Our shares in the output of `squeue`; other jobs are skipped.

    >>> list(parse_queue("71_2|PENDING|Resources|ithbit-00003-1f0c\\n80|RUNNING|None|bash\\n"))
    [('00003-1f0c', 2)]
    """
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) < 4 or not fields[3].startswith(_PREFIX):
            continue
        job_id, state, reason, name = fields
        index = job_id.partition("_")[2]
        if index.isdecimal():
            handle = name.strip().removeprefix(_PREFIX), int(index)
            jobs[handle] = Job(job_id, state, "" if reason == "None" else reason)
    return jobs


def array_limit(config: str) -> int:
    """MaxArraySize in the output of `scontrol show config`; Slurm's default if it is missing.

    >>> array_limit("MailProg = /bin/mail\\nMaxArraySize            = 5001\\n")
    5001
    """
    match = re.search(r"^\s*MaxArraySize\s*=\s*(\d+)\s*$", config, re.MULTILINE)
    return max(1, int(match[1])) if match else 1001


def _run(
    command: Sequence[str], script: str = "", lock: int | None = None, may_fail: bool = False
) -> str:
    """The output of a Slurm command; raises `ClusterError` if it fails."""
    name = command[0]
    # Without the user's settings that would hide jobs from us, or make sbatch wait until they end.
    # Others, such as SBATCH_PARTITION, are the user's choice.
    misleading = [
        each for each in os.environ if each.startswith("SQUEUE_") or each == "SBATCH_WAIT"
    ]
    try:
        process = subprocess.run(
            command,
            input=script,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            pass_fds=() if lock is None else (lock,),
            env={each: os.environ[each] for each in os.environ if each not in misleading},
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{name} did not answer within {_TIMEOUT:.0f} seconds") from error
    if process.returncode and not may_fail:
        raise ClusterError(f"Slurm refused: {_complaint(process.stderr) or f'{name} failed'}")
    return process.stdout


def _complaint(errors: str) -> str:
    """The part of an error output that says what is wrong, in one line."""
    lines = [line.removeprefix("sbatch: ").strip() for line in errors.splitlines() if line.strip()]
    messages = [line.removeprefix("error: ") for line in lines if not line.startswith("Try ")]
    return "; ".join(dict.fromkeys(messages))


def read_options(texts: Iterable[str], profile: Path | None = None) -> SlurmOptions:
    """Options of a profile and of the command line, which takes precedence. Lines of `setup` add
    up, the profile's first.

    >>> read_options(["partition=gpu", "time=4:00:00", "exclusive"]).sbatch
    {'partition': 'gpu', 'time': '4:00:00', 'exclusive': True}
    >>> read_options(["setup=module load cuda", "setup=conda activate me"]).setup
    ('module load cuda', 'conda activate me')
    >>> read_options(["array=1-5"])
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: Slurm options: array is not to be given: jobs are numbered by ithbit; limit those that run at once with --workers
    """  # noqa: E501
    words: list[tuple[str, Any]] = [] if profile is None else list(read_toml(profile).items())
    for text in texts:
        word, equals, rest = text.partition("=")
        words.append((word, rest.strip() if equals else True))
    pairs = [(word.strip().removeprefix("--").replace("_", "-"), value) for word, value in words]
    problems = []
    setup: list[str] = []
    for name, value in pairs:
        lines = value if isinstance(value, list) else [value]
        if name == "setup" and all(isinstance(x, str) and x and "\n" not in x for x in lines):
            setup += lines
        elif name == "setup":
            problems.append("setup must be a shell line, or in a profile a list of them")
    options = {name: value for name, value in pairs if name != "setup"}
    python = options.pop("python", shlex.quote(sys.executable))
    if not isinstance(python, str) or not python.strip() or "\n" in python:
        problems.append("python must be the command that starts Python, in one line")
    for name, value in options.items():
        if not _NAME.fullmatch(name):
            problems.append(
                f"{name!r} is not the long name of an sbatch option, as in partition=gpu"
            )
        elif name in _OURS:
            problems.append(f"{name} is not to be given: {_OURS[name]}")
        elif not isinstance(value, str | int | float):
            problems.append(f"{name} must be a string, a number, true or false")
        elif value == "" or "\n" in str(value):
            problems.append(f"{name} needs a value of one line")
    raise_problems("Slurm options", problems)
    for_sbatch: Options = {
        name: value is True or str(value) for name, value in options.items() if value is not False
    }
    return SlurmOptions(for_sbatch, tuple(setup), str(python))
