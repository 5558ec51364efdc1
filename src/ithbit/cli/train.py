"""Commands of training: train, params, sample."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ithbit.errors import SpecError

Task = Annotated[str, typer.Argument(help="rhi (index last) or lhi (index first)")]
Family = Annotated[
    str,
    typer.Argument(help="softmax-full, softmax-causal, linear-full, linear-causal, gru or mamba2"),
]
Layers = Annotated[int, typer.Option("--layers", "-L", help="number of blocks")]
Bits = Annotated[int, typer.Option("--n", "-n", help="number of bits")]
Positions = Annotated[
    str, typer.Option(help="none, learned, sinusoidal, rotary (softmax only) or polynomial")
]
Width = Annotated[int, typer.Option(help="model width")]
Heads = Annotated[int, typer.Option(help="attention or state-space heads; ignored by gru")]
Kernels = Annotated[
    str,
    typer.Option(
        help="auto (fused kernels where there is a GPU and they serve), on (or an error) or off"
    ),
]
Store = Annotated[
    Path, typer.Option("--store", envvar="ITHBIT_STORE", help="folder of the run folders")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


def train(
    task: Task,
    family: Family,
    layers: Layers = 1,
    n: Bits = 8,
    seeds: Annotated[str, typer.Option(help="such as 0-4 or 0,3,8-9")] = "0-4",
    positions: Positions = "polynomial",
    width: Width = 16,
    heads: Heads = 2,
    max_epochs: Annotated[int, typer.Option(help="epochs after which a run stops")] = 500,
    stop_when_solved: Annotated[
        bool, typer.Option("--stop-when-solved", help="stop at the first perfect epoch")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 of several")] = "auto",
    kernels: Kernels = "auto",
    workers: Annotated[
        int | None, typer.Option(help="processes; a worker a CPU core or a GPU unless given")
    ] = None,
    store: Store = Path("runs"),
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="train runs again that are recorded as failed")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one configuration under the paper's protocol, several seeds at once.

    Finished runs are read from the store, unfinished ones go on from their checkpoints: stop it
    with Ctrl-C and give the same command again. Exit status 1 if a run failed.
    """
    from ithbit.engine.reading import check_kind
    from ithbit.engine.spec import Protocol, cell
    from ithbit.families import task_named
    from ithbit.models.spec import ModelSpec
    from ithbit.sweep.select import parse_seeds

    if workers is not None and workers < 1:
        raise SpecError(f"--workers must be at least 1, got {workers}")
    protocol = Protocol(max_epochs=max_epochs, stop_when_solved=stop_when_solved)
    model = ModelSpec(
        task_named(task),
        family,
        n_bits=n,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        positions=positions,
    )
    runs = cell(model, protocol, parse_seeds(seeds))
    check_kind(store)

    # These import torch, which takes seconds: mistakes are told before.
    from ithbit.cli.progress import Board
    from ithbit.engine.device import choose_device
    from ithbit.engine.paths import kernels_named
    from ithbit.engine.record import Failure
    from ithbit.sweep.runner import run_all

    chosen, choice = choose_device(device), kernels_named(kernels)
    with Board(runs) as board:
        board.console.print(chosen.reason, style="dim", markup=False)
        results = run_all(runs, store, device, workers, board.watch, retry_failed, choice)
    if as_json:
        print(json.dumps([result.to_json() for result in results], indent=1))
    else:
        _print_results(results, store)
    if any(isinstance(result, Failure) for result in results):
        raise typer.Exit(1)


def _print_results(results: list[Any], store: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from ithbit.engine.record import Failure

    run = results[0].spec
    m = run.model
    title = f"{m.task.upper()} {m.family} L={m.n_layers} n={m.n_bits}, {m.positions} positions"
    table = Table(title=f"{title} ({run.group})")
    # What has room in eighty columns.
    for name in ("seed", "solved", "best acc.", "epochs", "ended by", "at n/2", "at 2n", "s/epoch"):
        table.add_column(name, justify="right")
    solved = 0
    failed: dict[str, list[str]] = defaultdict(list)  # seeds, by what went wrong
    for result in results:
        if isinstance(result, Failure):
            table.add_row(str(result.spec.seed), "failed")
            failed[result.error].append(str(result.spec.seed))
            continue
        solved += result.solved
        half = result.half_length_accuracy
        table.add_row(
            str(result.spec.seed),
            f"epoch {result.first_solved_epoch}" if result.solved else "no",
            f"{result.max_accuracy:.4f}",
            str(result.epochs),
            result.stopped_by,
            "–" if half is None else f"{half:.3f}",
            f"{result.double_length_accuracy:.3f}",
            f"{result.seconds_per_epoch:.3f}",
        )
    console = Console()
    console.print(table)
    for error, seeds in failed.items():
        which = "seed" if len(seeds) == 1 else "seeds"
        console.print(f"{which} {', '.join(seeds)} failed: {error}", markup=False)
    console.print(
        f"{solved} of {len(results)} seeds reached held-out accuracy 1.0 (observed on samples, "
        f"not proved). Run folders: {store}/",
        markup=False,
    )


def params(
    task: Task,
    family: Family,
    layers: Layers = 1,
    n: Bits = 8,
    positions: Positions = "polynomial",
    width: Width = 16,
    heads: Heads = 2,
) -> None:
    """Print the number of trained parameters, and nothing else."""
    from ithbit.families import task_named
    from ithbit.models.spec import ModelSpec

    spec = ModelSpec(
        task_named(task),
        family,
        n_bits=n,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        positions=positions,
    )
    from ithbit.models.classifier import n_parameters  # imports torch: mistakes are told before

    print(n_parameters(spec))


def sample(
    task: Task,
    n: Bits = 8,
    seed: Annotated[int, typer.Option(help="seed of the stream")] = 0,
    count: Annotated[int, typer.Option(help="how many instances")] = 1,
) -> None:
    """Show instances as a person would read them: the first training examples of a seed."""
    from ithbit.families import task_named
    from ithbit.tasks.stream import draw

    if n < 1 or seed < 0 or count < 1:
        raise SpecError(
            f"n and count must be at least 1 and the seed at least 0, got n={n}, count={count}, "
            f"seed={seed}"
        )
    for k in range(count):
        instance = draw(task_named(task), n, seed, k)
        print(" | ".join(instance.tokens))
        print(f"index {instance.index} asks for bit number {instance.index}: {instance.answer}\n")


def register(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
    app.command()(train)
    app.command()(params)
    app.command()(sample)
