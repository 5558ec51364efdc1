"""A sweep on Slurm: train its runs there, or list, submit or cancel them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.results import Results
from ithbit.api.sinks import Watch, watching
from ithbit.api.standing import Planned, planned
from ithbit.errors import DeviceError
from ithbit.shown import Shown, counted
from ithbit.spec import RunSpec
from ithbit.store.status import need_store
from ithbit.sweep.executors.slurm import Slurm, asks_for_gpu, read_options

if TYPE_CHECKING:
    from ithbit.engine.device import Device


@dataclass(frozen=True)
class Wish:
    """How to run a sweep on Slurm."""

    store: Path
    device: str
    at_once: int | None
    options: list[str]
    profile: Path | None
    runs_per_task: int | None
    retry_failed: bool


@dataclass(frozen=True, repr=False)
class Submitted(Shown):
    """A sweep submitted to the cluster: how many of its runs are queued or running, and how many
    are done."""

    store: Path
    runs: int
    live: int
    done: int

    def parts(self) -> Iterator[str]:
        left = self.runs - self.live - self.done
        yield (
            f"{self.live} of {self.runs} runs are queued or running, {self.done} done"
            + (f", {left} not submitted yet: run the command again later" if left else "")
            + f". Watch them with: ithbit status --store {self.store}"
        )


@dataclass(frozen=True, repr=False)
class Cancelled(Shown):
    """Tasks that were removed from the queue."""

    tasks: int

    def parts(self) -> Iterator[str]:
        yield f"{self.tasks} tasks cancelled; submit their runs again to continue them"


def sweep_on_slurm(
    runs: list[RunSpec],
    wish: Wish,
    dry_run: bool,
    detach: bool,
    cancel: bool,
    watch: Watch | None,
    tensorboard: str | Path | None,
    progress: bool,
) -> Results | Planned | Submitted | Cancelled:
    """Train a sweep's runs on the cluster, or list, submit or cancel them."""
    from ithbit.engine.how import Event
    from ithbit.sweep import cluster

    options = read_options(wish.options, wish.profile)
    device = node_device(wish.device, asks_for_gpu(options))
    if dry_run:
        return planned(runs, wish.store, lambda todo: _tasks(todo, wish, device))
    slurm = Slurm(options, wish.at_once)
    if cancel:
        need_store(wish.store)
        return Cancelled(cluster.cancel(runs, wish.store, slurm))
    with watching(runs, device.reason, watch, tensorboard, progress) as watcher:
        sweep = cluster.ClusterSweep(
            runs, wish.store, slurm, device, wish.runs_per_task, watcher, wish.retry_failed
        )
        if detach:
            return Submitted(wish.store, len(runs), *sweep.submit())
        try:
            return Results(sweep.finish(), wish.store)
        except KeyboardInterrupt:
            note = "the jobs continue: run the command again to watch them, or --cancel to end them"
            watcher(Event(runs[0], note))
            raise


def node_device(name: str, gpu_asked: bool) -> "Device":
    """What a task trains on: a GPU if --device or a Slurm option asks for one."""
    import torch

    from ithbit.engine.device import DEVICES, Device

    if name not in DEVICES:
        raise DeviceError(f"unknown device {name!r}; choose one of {', '.join(DEVICES)}")
    if name == "cuda" or (name == "auto" and gpu_asked):
        return Device(torch.device("cuda"), "Slurm, a GPU for each task")
    return Device(torch.device("cpu"), "Slurm, CPU cores for each task")


def _tasks(todo: list[RunSpec], wish: Wish, device: "Device") -> str:
    """The tasks that would be submitted, worked out without contacting the cluster."""
    from ithbit.sweep.runner import group

    stacks = group(todo, device, n_workers=1, size=wish.runs_per_task)
    sizes = Counter(len(stack) for stack in stacks)
    shape = ", ".join(f"{count} of {counted(size, 'run')}" for size, count in sorted(sizes.items()))
    return f"tasks: {shape or 'none'}"
