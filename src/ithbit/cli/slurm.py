"""What `sweep` and `status` do where a sweep runs on Slurm."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.engine.spec import RunSpec
from ithbit.errors import ClusterError, DeviceError
from ithbit.sweep.executors import Job
from ithbit.sweep.executors.slurm import Slurm
from ithbit.sweep.executors.slurm_options import asks_for_gpu, read_options
from ithbit.sweep.store import need_store

if TYPE_CHECKING:
    from ithbit.engine.device import Device


@dataclass(frozen=True)
class Wish:
    """How a sweep is to run on Slurm, as the command line has it."""

    store: Path
    device: str
    at_once: int | None
    options: list[str]
    profile: Path | None
    runs_per_task: int | None
    retry_failed: bool


def sweep_on_slurm(
    runs: list[RunSpec], wish: Wish, dry_run: bool, detach: bool, cancel: bool
) -> None:
    """Train a sweep's runs on the cluster, or list, submit or cancel them."""
    from ithbit.cli.progress import Board
    from ithbit.cli.sweep import print_outcomes
    from ithbit.sweep import cluster

    options = read_options(wish.options, wish.profile)
    device = node_device(wish.device, asks_for_gpu(options))
    if dry_run:
        _list_tasks(runs, wish, device)
        return
    slurm = Slurm(options, wish.at_once)
    if cancel:
        need_store(wish.store)
        n_tasks = cluster.cancel(runs, wish.store, slurm)
        print(f"{n_tasks} tasks cancelled; their runs go on where they were if submitted again")
        return
    with Board(runs) as board:
        board.console.print(f"{len(runs)} runs; {device.reason}", style="dim", markup=False)
        sweep = cluster.ClusterSweep(
            runs, wish.store, slurm, device, wish.runs_per_task, board.watch, wish.retry_failed
        )
        try:
            if detach:
                n_live, n_done = sweep.submit()
            else:
                outcomes = sweep.finish()
        except KeyboardInterrupt:
            told = "the jobs go on; the same command watches them again, --cancel ends them"
            board.console.print(told, markup=False)
            raise
    if not detach:
        print_outcomes(outcomes, wish.store)
        return
    left = len(runs) - n_live - n_done
    print(
        f"{n_live} of {len(runs)} runs are queued or running, {n_done} done"
        + (f", {left} not taken yet: give the command again later" if left else "")
        + f". Watch them with: ithbit status --store {wish.store}"
    )


def node_device(name: str, gpu_asked: bool) -> "Device":
    """What a task trains on: a GPU if one is asked for, by --device or by an option of Slurm's."""
    import torch

    from ithbit.engine.device import DEVICES, Device

    if name not in DEVICES:
        raise DeviceError(f"unknown device {name!r}; choose one of {', '.join(DEVICES)}")
    if name == "cuda" or (name == "auto" and gpu_asked):
        return Device(torch.device("cuda"), "Slurm, a GPU for each task")
    return Device(torch.device("cpu"), "Slurm, CPU cores for each task")


def _list_tasks(runs: list[RunSpec], wish: Wish, device: "Device") -> None:
    """What would be submitted, without asking the cluster."""
    from ithbit.sweep.runner import group
    from ithbit.sweep.store import statuses

    status = statuses(wish.store, runs)
    for run in runs:
        print(f"{status[run]:9} {run.group:12} {run.folder}")
    todo = [run for run in runs if status[run] != "done"]
    stacks = group(todo, device, n_workers=1, size=wish.runs_per_task)
    sizes = Counter(len(stack) for stack in stacks)
    shape = ", ".join(f"{count} of {size} runs" for size, count in sorted(sizes.items()))
    print(f"{len(runs)} runs, {len(runs) - len(todo)} done already; tasks: {shape or 'none'}")


def jobs_of_store(store: Path) -> dict[RunSpec, Job]:
    """The runs of a store that Slurm has, each with its job; a word if Slurm cannot be asked."""
    from ithbit.sweep.executors.ledger import Ledger, live_runs

    if not Ledger(store).batches():
        return {}
    try:
        return live_runs(store, Slurm())
    except ClusterError as error:
        print(f"the jobs of this store cannot be looked up: {error}", file=sys.stderr)
        return {}
