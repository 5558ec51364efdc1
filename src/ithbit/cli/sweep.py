"""Commands of sweeps: sweep, status, merge."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ithbit.cli.train import AsJson, Kernels, Store
from ithbit.engine.reading import check_kind, run_folders
from ithbit.engine.spec import RunSpec
from ithbit.errors import SpecError
from ithbit.families import family_named, task_named
from ithbit.sweep.select import Filter, parse_seeds, sweep_runs

if TYPE_CHECKING:
    from ithbit.engine.record import Failure, Result

Tasks = Annotated[list[str] | None, typer.Option("--task", help="keep this task; repeatable")]
Families = Annotated[
    list[str] | None, typer.Option("--family", help="keep this family; repeatable")
]
Depths = Annotated[
    list[int] | None, typer.Option("--layers", "-L", help="keep this depth; repeatable")
]
Lengths = Annotated[
    list[int] | None, typer.Option("--n", "-n", help="keep this length; repeatable")
]
Seeds = Annotated[str | None, typer.Option(help="instead of the sweep's own, such as 0-19")]
MaxEpochs = Annotated[int | None, typer.Option(help="instead of the sweep's own")]
StopWhenSolved = Annotated[
    bool, typer.Option("--stop-when-solved", help="stop a run at its first perfect epoch")
]


def sweep(
    name: Annotated[
        str, typer.Argument(help="paper, positions, longer, smoke, demo, or a .toml file")
    ],
    task: Tasks = None,
    family: Families = None,
    layers: Depths = None,
    n: Lengths = None,
    seeds: Seeds = None,
    max_epochs: MaxEpochs = None,
    stop_when_solved: StopWhenSolved = False,
    store: Store = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 of several")] = "auto",
    kernels: Kernels = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            help="processes; a worker a CPU core or a GPU unless given. On Slurm: tasks of an "
            "array at once"
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="train runs again that are recorded as failed")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the runs, what is done and how long it may take")
    ] = False,
    on: Annotated[str, typer.Option(help="local (this machine) or slurm (a cluster)")] = "local",
    slurm: Annotated[
        list[str] | None,
        typer.Option(help="an option for sbatch, such as partition=gpu; repeatable"),
    ] = None,
    slurm_profile: Annotated[
        Path | None, typer.Option(help="a TOML file of options for sbatch")
    ] = None,
    runs_per_task: Annotated[
        int | None, typer.Option(help="runs of one shape in a Slurm task; a stack unless given")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="on Slurm: submit what is missing and leave")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="on Slurm: end the sweep's jobs; runs keep their state")
    ] = False,
) -> None:
    """Train every run of a sweep that has no result yet; stop and start it at will.

    Several processes may work on one store: each run is trained by one of them. A run that fails is
    recorded with its traceback and the rest goes on; the exit status is 1 then.
    On Slurm the same command again finds the jobs it left behind and submits what has neither
    a result nor a job.
    """
    for option, value in (("--workers", workers), ("--runs-per-task", runs_per_task)):
        if value is not None and value < 1:
            raise SpecError(f"{option} must be at least 1, got {value}")
    keep = _filter(task, family, layers, n, seeds, max_epochs, stop_when_solved)
    runs = sweep_runs(name, keep)
    check_kind(store)
    if on not in ("local", "slurm"):
        raise SpecError(f"--on must be local or slurm, got {on!r}")
    if on == "slurm":
        if kernels != "auto":
            raise SpecError(f"--kernels {kernels} needs --on local; on Slurm each task chooses")
        from ithbit.cli.slurm import Wish, sweep_on_slurm

        wish = Wish(store, device, workers, slurm or [], slurm_profile, runs_per_task, retry_failed)
        sweep_on_slurm(runs, wish, dry_run=dry_run, detach=detach, cancel=cancel)
        return
    if slurm or slurm_profile or runs_per_task or detach or cancel:
        raise SpecError(
            "--slurm, --slurm-profile, --runs-per-task, --detach and --cancel need --on slurm"
        )
    if dry_run:
        _list_runs(runs, store, device, workers)
        return

    from ithbit.cli.progress import Board
    from ithbit.engine.device import choose_device
    from ithbit.engine.paths import kernels_named
    from ithbit.sweep.runner import run_all

    chosen, choice = choose_device(device), kernels_named(kernels)
    with Board(runs) as board:
        board.console.print(f"{len(runs)} runs; {chosen.reason}", style="dim", markup=False)
        outcomes = run_all(runs, store, device, workers, board.watch, retry_failed, choice)
    print_outcomes(outcomes, store)


def print_outcomes(outcomes: "list[Result | Failure]", store: Path) -> None:
    """What came of a sweep; status 1 if a run failed."""
    from ithbit.engine.record import Failure

    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    solved = sum(not isinstance(outcome, Failure) and outcome.solved for outcome in outcomes)
    print(f"{len(outcomes)} runs: {solved} solved, {len(failures)} failed. Run folders: {store}/")
    for failure in failures[:5]:
        print(f"  failed: {failure.spec.name}: {failure.error}")
    if failures:
        raise typer.Exit(1)


def _filter(
    tasks: list[str] | None,
    families: list[str] | None,
    layers: list[int] | None,
    n_bits: list[int] | None,
    seeds: str | None,
    max_epochs: int | None,
    stop_when_solved: bool,
) -> Filter:
    return Filter(
        [task_named(name) for name in tasks or []],
        [family_named(name).name for name in families or []],
        layers or [],
        n_bits or [],
        parse_seeds(seeds) if seeds else [],
        max_epochs,
        stop_when_solved,
    )


def _list_runs(runs: list[RunSpec], store: Path, device: str, workers: int | None) -> None:
    """What a sweep would do, without doing it."""
    from ithbit.cli.duration import clock
    from ithbit.engine.device import choose_device
    from ithbit.sweep.estimate import longest_seconds
    from ithbit.sweep.local import worker_devices
    from ithbit.sweep.store import statuses

    status = statuses(store, runs)
    for run in runs:
        print(f"{status[run]:9} {run.group:12} {run.folder}")
    todo = [run for run in runs if status[run] != "done"]
    chosen = choose_device(device)
    n_workers = len(worker_devices(device, chosen, workers))
    seconds = longest_seconds(todo, store, n_workers, chosen.is_cuda)
    gpus = "a GPU" if n_workers == 1 else f"{n_workers} GPUs"
    where = gpus if chosen.is_cuda else f"{n_workers} CPU cores"
    print(
        f"{len(runs)} runs, {len(runs) - len(todo)} done already; the rest takes at most about "
        f"{clock(seconds)} on {where}, if every run needs all its epochs"
    )


def status(
    name: Annotated[
        str | None, typer.Argument(help="a sweep, to see what of it is missing")
    ] = None,
    task: Tasks = None,
    family: Families = None,
    layers: Depths = None,
    n: Lengths = None,
    seeds: Seeds = None,
    max_epochs: MaxEpochs = None,
    stop_when_solved: StopWhenSolved = False,
    store: Store = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Tell what is done, running, queued on a cluster, stopped, failed and missing in a store.

    A run whose record is not whole is set aside, as tables and merges do, and the reason is told.
    Jobs of the store that Slurm has are found again; nothing is submitted.
    """
    from collections import Counter

    from ithbit.cli.slurm import jobs_of_store
    from ithbit.sweep.store import STATUSES, folder_status, need_store, problem, statuses

    need_store(store)
    jobs = jobs_of_store(store)
    if name is None:
        found = {folder: folder_status(store / folder) for _, folder in run_folders(store)}
    else:
        keep = _filter(task, family, layers, n, seeds, max_epochs, stop_when_solved)
        runs = sweep_runs(name, keep)
        found = {run.folder: s for run, s in statuses(store, runs).items()}
        jobs = {run: job for run, job in jobs.items() if run in set(runs)}
    for spec, job in jobs.items():
        if found.get(spec.folder) != "done":
            found[spec.folder] = "running" if job.is_running else "queued"
    counts = Counter(found.values())
    if as_json:
        print(json.dumps({"counts": counts, "runs": found}, indent=1))
        return
    if not found:
        print(f"no runs in {store}/ yet")
        return
    print(", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s]) + f" ({len(found)} runs)")
    for shown in ("running", "queued", "stopped", "failed", "set aside"):
        folders = [folder for folder, s in found.items() if s == shown]
        for folder in folders[:10]:
            why = f": {problem(store / folder)}" if shown == "set aside" else ""
            print(f"  {shown:9} {folder}{why}")
        if len(folders) > 10:
            print(f"  {shown:9} … and {len(folders) - 10} more")
    waits = Counter(job.reason for job in jobs.values() if job.reason)
    for reason, count in waits.most_common(3):
        print(f"  Slurm on {count} runs: {reason}")


def merge(
    source: Annotated[Path, typer.Argument(help="the store to take runs from")],
    store: Store = Path("runs"),
) -> None:
    """Take the finished and failed runs of another store in; nothing finished is overwritten."""
    from ithbit.sweep.store import merge as merge_stores

    merged = merge_stores(source, store)
    print(
        f"{len(merged.taken)} runs taken in, {len(merged.already_there)} were there already, "
        f"{len(merged.unfinished)} unfinished ones left, {len(merged.set_aside)} set aside"
    )
    for folder, reason in merged.set_aside:
        print(f"  set aside: {folder}: {reason}")


def register(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    app.command()(sweep)
    app.command()(status)
    app.command()(merge)
