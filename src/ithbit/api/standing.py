"""Status of runs: what a store has, and what a sweep would do."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ithbit.shown import Shown, clock, counted
from ithbit.spec import RunSpec
from ithbit.store.reading import run_folders
from ithbit.store.status import STATUSES, RunStatus, folder_status, reason, statuses

_MOST = 10  # folders listed of each status
_EXPLAINED = ("failed", "set aside")
_LONGEST = 300  # characters of a reason; JSON has all of it


@dataclass(frozen=True, repr=False)
class Status(Shown):
    """The status of each run, by folder name; `waits` counts the reasons that Slurm gives for
    waiting."""

    store: Path
    runs: dict[str, RunStatus]
    waits: dict[str, int]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.runs.values()))

    def to_json(self) -> dict[str, Any]:
        ended = [folder for folder, each in self.runs.items() if each in _EXPLAINED]
        reasons = {folder: reason(self.store / folder) for folder in ended}
        return {"counts": self.counts, "runs": self.runs, "reasons": reasons}

    def parts(self) -> Iterator[str]:
        if not self.runs:
            yield f"no runs in {self.store}/ yet"
            return
        counts = self.counts
        listed = ", ".join(f"{counts[each]} {each}" for each in STATUSES if each in counts)
        yield f"{listed} ({counted(len(self.runs), 'run')})"
        for shown in ("running", "queued", "stopped", "failed", "set aside"):
            folders = [folder for folder, each in self.runs.items() if each == shown]
            for folder in folders[:_MOST]:
                why = reason(self.store / folder) if shown in _EXPLAINED else None
                in_a_line = f": {' '.join(why.split())[:_LONGEST]}" if why else ""
                yield f"  {shown:9} {folder}{in_a_line}"
            if len(folders) > _MOST:
                yield f"  {shown:9} … and {len(folders) - _MOST} more"
        for words, count in Counter(self.waits).most_common(3):
            yield f"  Slurm on {counted(count, 'run')}: {words}"


def standing(store: Path, runs: list[RunSpec] | None) -> Status:
    """The status of these runs, or of all runs in the store."""
    jobs = _jobs(store)
    if runs is None:
        found = {folder: folder_status(store / folder) for _, folder in run_folders(store)}
    else:
        found = {run.folder: each for run, each in statuses(store, runs).items()}
        jobs = {run: job for run, job in jobs.items() if run in set(runs)}
    for run, job in jobs.items():
        if found.get(run.folder) != "done":
            found[run.folder] = "running" if job.is_running else "queued"
    return Status(store, found, Counter(job.reason for job in jobs.values() if job.reason))


def _jobs(store: Path) -> dict[RunSpec, Any]:
    """The runs of a store that have a Slurm job, with the job; prints a message if Slurm does not
    answer."""
    from ithbit.errors import ClusterError
    from ithbit.sweep.executors.ledger import Ledger, live_runs
    from ithbit.sweep.executors.slurm import Slurm

    if not Ledger(store).batches():
        return {}
    try:
        return dict(live_runs(store, Slurm().alive()))
    except ClusterError as error:
        print(f"cannot look up the jobs of this store: {error}", file=sys.stderr)
        return {}


@dataclass(frozen=True, repr=False)
class Planned(Shown):
    """What a sweep would do: the status of each of its runs, and how long the rest may take."""

    runs: dict[RunSpec, RunStatus]
    outlook: str

    def parts(self) -> Iterator[str]:
        for run, each in self.runs.items():
            yield f"{each:9} {run.group:12} {run.folder}"
        done = sum(each == "done" for each in self.runs.values())
        yield f"{counted(len(self.runs), 'run')}, {done} done already; {self.outlook}"


def planned(runs: list[RunSpec], store: Path, outlook: Callable[[list[RunSpec]], str]) -> Planned:
    """A plan; `outlook` describes what is left to do."""
    found = statuses(store, runs)
    return Planned(found, outlook([run for run in runs if found[run] != "done"]))


def longest(runs: list[RunSpec], store: Path, device: str, workers: int | None) -> str:
    """How long runs may take on this machine, if every one needs all its epochs."""
    from ithbit.engine.device import choose_device
    from ithbit.sweep.estimate import longest_seconds
    from ithbit.sweep.processes import worker_devices

    chosen = choose_device(device)
    n_workers = len(worker_devices(device, chosen, workers))
    gpus = "a GPU" if n_workers == 1 else f"{n_workers} GPUs"
    where = gpus if chosen.is_cuda else f"{n_workers} CPU cores"
    seconds = longest_seconds(runs, store, n_workers, chosen.is_cuda)
    return f"at most about {clock(seconds)} on {where}"
