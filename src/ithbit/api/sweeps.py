"""Sweeps: their runs trained here or on Slurm, and where the runs of a store stand."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import (
    Observers,
    Seeds,
    Watch,
    as_list,
    at_least_one,
    checked,
    on_slurm,
    renamed,
    seeds_of,
)
from ithbit.api.training import Results, run_here
from ithbit.display import Printable, clock, in_one_line, pluralize, say
from ithbit.engine.options import DEVICES, TrainingOptions
from ithbit.errors import ClusterError, DeviceError, SpecError, as_int, one_of
from ithbit.families import family_named, task_named
from ithbit.models.layer_source import layer_for
from ithbit.spec import RunSpec
from ithbit.store.packed import opened
from ithbit.store.reading import check_kind, run_folders
from ithbit.store.status import STATUSES, RunStatus, folder_status, need_store, recorded, statuses
from ithbit.sweeps.select import selected, sweep_runs

if TYPE_CHECKING:
    from ithbit.engine.device import Device
    from ithbit.store.merging import Merged
    from ithbit.sweeps.executors.ledger import Job
    from ithbit.sweeps.executors.slurm import SlurmOptions

_MOST = 10  # folders listed of each status
_EXPLAINED = ("failed", "set aside")
_LONGEST = 300  # characters of a reason; JSON has all of it


@dataclass(frozen=True, repr=False)
class Status(Printable):
    """The status of each run, by folder name; `waits` counts the reasons that Slurm gives for
    waiting."""

    store: Path
    runs: dict[str, RunStatus]
    waits: dict[str, int]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.runs.values()))

    def to_json(self) -> dict[str, Any]:
        folders = [folder for folder, each in self.runs.items() if each in _EXPLAINED]
        reasons = {folder: recorded(self.store / folder)[1] for folder in folders}
        return {"counts": self.counts, "runs": self.runs, "reasons": reasons}

    def render(self) -> Iterator[str]:
        if not self.runs:
            yield f"no runs in {self.store}/ yet"
            return
        counts = self.counts
        summary = ", ".join(f"{counts[each]} {each}" for each in STATUSES if each in counts)
        yield f"{summary} ({pluralize(len(self.runs), 'run')})"
        for status in ("running", "queued", "stopped", "failed", "set aside"):
            folders = [folder for folder, each in self.runs.items() if each == status]
            for folder in folders[:_MOST]:
                why = recorded(self.store / folder)[1] if status in _EXPLAINED else None
                in_a_line = f": {in_one_line(' '.join(why.split())[:_LONGEST])}" if why else ""
                yield f"  {status:9} {in_one_line(folder)}{in_a_line}"
            if len(folders) > _MOST:
                yield f"  {status:9} … and {len(folders) - _MOST} more"
        for words, count in Counter(self.waits).most_common(3):
            yield f"  Slurm on {pluralize(count, 'run')}: {words}"


@dataclass(frozen=True, repr=False)
class Planned(Printable):
    """What a sweep would do: the status of each of its runs, how long the rest may take and, for
    Slurm, what would be submitted."""

    runs: dict[RunSpec, RunStatus]
    outlook: str
    submission: str = ""  # the sbatch line and the script

    def render(self) -> Iterator[str]:
        for run, each in self.runs.items():
            yield f"{each:9} {run.group:12} {run.folder}"
        n_done = sum(each == "done" for each in self.runs.values())
        yield f"{pluralize(len(self.runs), 'run')}, {n_done} done already; {self.outlook}"
        if self.submission:
            yield ""
            yield from self.submission.splitlines()


@dataclass(frozen=True, repr=False)
class Submitted(Printable):
    """A sweep submitted to the cluster: how many of its runs are queued or running, and how many
    are done."""

    store: Path
    runs: int
    live: int
    done: int

    def render(self) -> Iterator[str]:
        missing = self.runs - self.live - self.done
        yield (
            f"{self.live} of {self.runs} runs are queued or running, {self.done} done"
            + (f", {missing} not submitted yet: run the command again later" if missing else "")
            + f". Watch them with: ithbit status --store {self.store}"
        )


@dataclass(frozen=True, repr=False)
class Cancelled(Printable):
    """Tasks that were removed from the queue."""

    tasks: int

    def render(self) -> Iterator[str]:
        yield f"{self.tasks} tasks cancelled; submit their runs again to continue them"


@renamed(compile="compiled")
@checked
def sweep(
    name: str | Path | Iterable[RunSpec],
    *,
    task: str | Iterable[str] | None = None,
    family: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    n: int | Iterable[int] | None = None,
    seeds: Seeds | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    consistency: float | None = None,
    store: str | Path = "runs",
    device: str = "auto",
    kernels: str = "auto",
    compiled: str = "auto",
    workers: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    on: str = "local",
    slurm: str | Iterable[str] | None = None,
    slurm_profile: str | Path | None = None,
    runs_per_task: int | None = None,
    detach: bool = False,
    cancel: bool = False,
    tensorboard: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> Results | Planned | Submitted | Cancelled:
    """Train every run of a sweep that has no result yet; stop and rerun it at any time.

    Several processes may work on one store: each run is trained by one of them. A run that fails is
    recorded with its traceback, and the others continue. On Slurm, rerun it to watch the jobs it
    left running and to submit runs that have neither a result nor a job.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store:
    ...     print(sweep("smoke", task="rhi", family="softmax-full", store=store, dry_run=True))
    missing   constructive rhi_n4_softmax-full_L1d16h2_polynomial_s0-...
    missing   constructive rhi_n4_softmax-full_L1d16h2_polynomial_s1-...
    2 runs, 0 done already; the rest takes at most about ...
    """
    options = TrainingOptions(device, workers, kernels, compiled, retry_failed)
    observers = Observers(watch, tensorboard, progress)
    at_least_one(runs_per_task=runs_per_task)
    changes: dict[str, Any] = {"max_epochs": max_epochs, "examples": examples}
    changes |= {"stop_when_solved": stop_when_solved or None, "consistency": consistency}
    runs = _selected(name, task, family, layers, n, seeds, changes)
    store = Path(store)
    check_kind(store)
    on_cluster = on_slurm(
        on, {"kernels": kernels, "compile": compiled},
        {"slurm": slurm, "slurm-profile": slurm_profile, "runs-per-task": runs_per_task,
         "detach": detach, "cancel": cancel},
    )  # fmt: skip
    if on_cluster:
        from ithbit.sweeps.executors.slurm import Slurm, read_options

        profile = None if slurm_profile is None else Path(slurm_profile)
        slurm_options = read_options(as_list(slurm), profile)
        node = node_device(device, slurm_options.asks_for_gpu)
    if dry_run:
        run_statuses = statuses(store, runs)
        todo = [run for run in runs if run_statuses[run] != "done"]
        if on_cluster:
            return _submission_plan(
                run_statuses, todo, store, node, runs_per_task, slurm_options, options.workers
            )
        for model in dict.fromkeys(run.model for run in todo if run.model.code):
            layer_for(model).factory  # noqa: B018 (a factory that training would refuse)
        time = longest(todo, store, options)
        return Planned(run_statuses, f"the rest takes {time}, if every run needs all its epochs")
    if not on_cluster:
        return run_here(runs, store, options, observers)

    from ithbit.api.progress import watching
    from ithbit.engine.training_context import Event
    from ithbit.sweeps import cluster

    queue = Slurm(slurm_options, options.workers)
    if cancel:
        need_store(store)
        return Cancelled(cluster.cancel(runs, store, queue))
    with watching(runs, node.reason, observers) as notify:
        jobs = cluster.ClusterSweep(
            runs, store, queue, node, runs_per_task, notify, options.retry_failed
        )
        if detach:
            return Submitted(store, len(runs), *jobs.submit())
        try:
            return Results(jobs.finish(), store)
        except KeyboardInterrupt:
            note = "the jobs continue: run the command again to watch them, or --cancel to end them"
            notify(Event(runs[0], note))
            raise


@checked
def status(
    name: str | Path | Iterable[RunSpec] | None = None,
    *,
    task: str | Iterable[str] | None = None,
    family: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    n: int | Iterable[int] | None = None,
    seeds: Seeds | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    consistency: float | None = None,
    store: str | Path = "runs",
) -> Status:
    """Report what is done, running, queued on a cluster, stopped, failed or missing in a store.

    With a sweep, report only on its runs. A run whose record is damaged is set aside, as in tables
    and merges, with the reason. The store's Slurm jobs are looked up; nothing is submitted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store:
    ...     status("paper", store=store)
    540 missing (540 runs)
    """
    folder = opened(store)
    need_store(folder)
    jobs = _jobs(folder)
    if name is None:
        run_statuses = {run: folder_status(folder / run) for _, run in run_folders(folder)}
    else:
        changes: dict[str, Any] = {"max_epochs": max_epochs, "examples": examples}
        changes |= {"stop_when_solved": stop_when_solved or None, "consistency": consistency}
        runs = _selected(name, task, family, layers, n, seeds, changes)
        run_statuses = {run.folder: each for run, each in statuses(folder, runs).items()}
        jobs = {run: job for run, job in jobs.items() if run in set(runs)}
    for run, job in jobs.items():
        if run_statuses.get(run.folder) != "done":
            run_statuses[run.folder] = "running" if job.is_running else "queued"
    return Status(folder, run_statuses, Counter(job.reason for job in jobs.values() if job.reason))


def _selected(
    name: str | Path | Iterable[RunSpec],
    task: str | Iterable[str] | None,
    family: str | Iterable[str] | None,
    layers: int | Iterable[int] | None,
    n: int | Iterable[int] | None,
    seeds: Seeds | None,
    changes: Mapping[str, Any],
) -> list[RunSpec]:
    """The runs of a sweep that pass the filters."""
    keep: dict[str, list[Any]] = {
        "task": [task_named(each) for each in as_list(task)],
        "family": [family_named(each).name for each in as_list(family)],
        "layers": [as_int("layers", each) for each in as_list(layers)],
        "n": [as_int("n", each) for each in as_list(n)],
    }
    others = [] if seeds is None else seeds_of(seeds)
    if isinstance(name, str | Path):
        return selected(sweep_runs(str(name)), str(name), keep, others, **changes)
    runs: list[Any] = list(name) if isinstance(name, Iterable) else [name]
    for each in runs:
        if not isinstance(each, RunSpec):
            where = f" in a {type(name).__name__}" if isinstance(name, Iterable) else ""
            raise SpecError(
                f"a sweep is the name of a preset, a .toml file or a list of RunSpec, got "
                f"{each!r:.60}{where}"
            )
    return selected(runs, "the sweep", keep, others, **changes)


def node_device(name: str, gpu_requested: bool) -> "Device":
    """What a task trains on: a GPU if --device or a Slurm option asks for one."""
    import torch

    from ithbit.engine.device import Device

    one_of("unknown device", name, DEVICES, DeviceError)
    if name == "cuda" or (name == "auto" and gpu_requested):
        return Device(torch.device("cuda"), "Slurm, a GPU for each task")
    return Device(torch.device("cpu"), "Slurm, CPU cores for each task")


def _submission_plan(
    run_statuses: dict[RunSpec, RunStatus],
    todo: list[RunSpec],
    store: Path,
    node: "Device",
    runs_per_task: int | None,
    options: "SlurmOptions",
    at_once: int | None,
) -> Planned:
    """What would be submitted, worked out without contacting the cluster."""
    from ithbit.sweeps.cluster import tasks
    from ithbit.sweeps.estimate import longest_seconds
    from ithbit.sweeps.executors.ledger import Batch, Share
    from ithbit.sweeps.executors.slurm import job_script, sbatch_command
    from ithbit.sweeps.runner import group
    from ithbit.sweeps.threads import stacks_per_process

    parts = tasks(todo, node, runs_per_task)
    if not parts:
        return Planned(run_statuses, "tasks: none")
    sizes = Counter(map(len, parts))
    shape = ", ".join(
        f"{count} of {pluralize(size, 'run')}" for size, count in sorted(sizes.items())
    )
    at_a_time = stacks_per_process(node.torch.type)
    stacks = [min(at_a_time, len(group(runs, node, n_workers=1))) for runs in parts]
    each = [
        longest_seconds(runs, store, n_stacks, node.is_cuda)
        for runs, n_stacks in zip(parts, stacks, strict=True)
    ]
    what = "GPU" if node.is_cuda else "core"
    time = (
        f"at most about {clock(sum(each))} of {what} time, {clock(max(each))} for the longest "
        "task, if every run needs all its epochs"
    )
    batch = Batch(
        "00001-…", store.resolve(), node.torch.type, tuple(Share(tuple(r)) for r in parts)
    )
    line = shlex.join(sbatch_command(batch, options, at_once))
    script = f"{line} <<'END'\n{job_script(batch, options)}END"
    return Planned(run_statuses, f"tasks: {shape}; {time}", script)


def longest(runs: list[RunSpec], store: Path, options: TrainingOptions) -> str:
    """How long runs may take on this machine, if every one needs all its epochs."""
    from ithbit.sweeps.estimate import longest_seconds
    from ithbit.sweeps.processes import worker_devices

    device = options.chosen_device
    n_workers = len(worker_devices(options.device, device, options.workers))
    gpus = "a GPU" if n_workers == 1 else f"{n_workers} GPUs"
    where = gpus if device.is_cuda else f"{n_workers} CPU cores"
    seconds = longest_seconds(runs, store, n_workers, device.is_cuda)
    return f"at most about {clock(seconds)} on {where}"


def _jobs(store: Path) -> "dict[RunSpec, Job]":
    """The runs of a store that have a Slurm job, with the job; prints a message if Slurm does not
    answer."""
    from ithbit.sweeps.executors.ledger import Ledger, live_runs
    from ithbit.sweeps.executors.slurm import Slurm

    if not Ledger(store).batches():
        return {}
    try:
        return dict(live_runs(store, Slurm().alive()))
    except ClusterError as error:
        say(f"cannot look up the jobs of this store: {error}", file=sys.stderr)
        return {}


@checked
def merge(source: str | Path, *, store: str | Path = "runs") -> "Merged":
    """Copy the finished and failed runs of another store into this one.

    Runs that are finished in this store are not overwritten.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    ...     merge(one, store=other)
    0 runs merged, 0 were there already, 0 unfinished ones left out, 0 set aside
    """
    from ithbit.store.merging import merge as merge_stores

    return merge_stores(opened(source), Path(store))
