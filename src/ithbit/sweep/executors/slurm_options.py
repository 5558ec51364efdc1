"""Options for `sbatch`: from the command line or a profile, all checked before any is used.

They are passed on unchanged, by their long names; the cluster decides which of them it accepts. A
profile is a TOML file with the same names:

    partition = "gpu"
    time = "4:00:00"
    cpus-per-task = 4
    exclusive = true
"""

import re
from collections.abc import Iterable
from pathlib import Path

from ithbit.errors import SpecError, raise_problems
from ithbit.sweep.select import read_toml

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


def read_options(given: Iterable[str], profile: Path | None = None) -> Options:
    """Options of a profile and of the command line, which takes precedence.

    >>> read_options(["partition=gpu", "time=4:00:00", "exclusive"])
    {'partition': 'gpu', 'time': '4:00:00', 'exclusive': True}
    >>> read_options(["array=1-5"])
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: Slurm options: array is not to be given: jobs are numbered by ithbit; limit those that run at once with --workers
    """  # noqa: E501
    options: Options = {} if profile is None else _read_profile(profile)
    for text in given:
        word, equals, rest = text.partition("=")
        options[_canonical(word)] = rest.strip() if equals else True
    problems = []
    for name, value in options.items():
        if not _NAME.fullmatch(name):
            problems.append(
                f"{name!r} is not the long name of an sbatch option, as in partition=gpu"
            )
        elif name in _OURS:
            problems.append(f"{name} is not to be given: {_OURS[name]}")
        elif value == "" or "\n" in str(value):
            problems.append(f"{name} needs a value of one line")
    raise_problems("Slurm options", problems)
    return options


def asks_for_gpu(options: Options) -> bool:
    """Whether the options already ask for a GPU, in any of the ways that Slurm offers."""
    return any(name.startswith("gpus") for name in options) or "gpu" in str(options.get("gres", ""))


def _canonical(name: str) -> str:
    return name.strip().removeprefix("--").replace("_", "-")


def _read_profile(path: Path) -> Options:
    options: Options = {}
    for name, value in read_toml(path).items():
        if not isinstance(value, str | int | float):
            raise SpecError(f"{path}: {name} must be a string, a number, true or false")
        if value is not False:
            options[_canonical(name)] = True if value is True else str(value)
    return options
