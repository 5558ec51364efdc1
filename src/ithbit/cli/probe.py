"""`ithbit probe`: the whole verdict for a user's own layer."""

import json
import math
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ithbit.cli.train import AsJson, Store
from ithbit.errors import IthbitError, SpecError

if TYPE_CHECKING:
    from ithbit.probe.report import Plan

_QUICK_MINUTES = 4.5  # who stops at the first perfect epoch is after a quick answer


def probe(
    layer: Annotated[
        str,
        typer.Argument(
            help="PATH.py:Factory, package.module:Factory, or a ready layer: lstm, rnn, gru, "
            "transformer-encoder-layer, transformer-encoder-layer-causal, or on a GPU fla:Class "
            "(GLA, DeltaNet, GatedDeltaNet, RWKV7, RetNet, HGRN2, …)"
        ),
    ],
    n: Annotated[list[int] | None, typer.Option("--n", "-n", help="length; repeatable (8)")] = None,
    layers: Annotated[
        list[int] | None, typer.Option("--layers", "-L", help="depth; repeatable (1 and 2)")
    ] = None,
    seeds: Annotated[str, typer.Option(help="such as 0-4 or 0,3,8-9")] = "0-4",
    width: Annotated[int, typer.Option(help="width of the layer and of the families")] = 16,
    rank_n: Annotated[int, typer.Option(help="causal rank for k up to this")] = 32,
    max_epochs: Annotated[int, typer.Option(help="epochs after which a run stops")] = 500,
    stop_when_solved: Annotated[
        bool, typer.Option("--stop-when-solved", help="stop a run at its first perfect epoch")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="end what is not done after so long, and say so; 4.5 with --stop-when-solved "
            "unless given, else no limit (inf is none)"
        ),
    ] = None,
    no_train: Annotated[
        bool, typer.Option("--no-train", help="causality, rank and bound alone: some seconds")
    ] = False,
    train_families: Annotated[
        bool,
        typer.Option(
            "--train-families",
            help="train the six families where the store lacks them; may be long",
        ),
    ] = False,
    store: Store = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="processes on a CPU; a worker a core unless given")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="also write the report as an HTML page")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--traceback", help="show the traceback of a layer that fails")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Probe any PyTorch layer that maps (batch, token, width) to the same shape.

    Is it causal? How much of the past does it keep? What does theory say of that state? What does
    training find, beside the six families? The factory is called with the width if it takes one.
    Finished runs are kept under STORE/probe and not trained again while the code stays the same.
    """
    from ithbit.engine.spec import Protocol
    from ithbit.probe.layer import load_layer
    from ithbit.probe.report import Plan, probe_layer
    from ithbit.sweep.select import parse_seeds

    if workers is not None and workers < 1:
        raise SpecError(f"--workers must be at least 1, got {workers}")
    if minutes is None:
        minutes = _QUICK_MINUTES if stop_when_solved else math.inf
    plan = Plan(
        width,
        tuple(n or (8,)),
        tuple(layers or (1, 2)),
        tuple(parse_seeds(seeds)),
        rank_n,
        not no_train,
        Protocol(max_epochs=max_epochs, stop_when_solved=stop_when_solved),
        minutes,
    )

    def said(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        loaded = load_layer(layer)
        if train_families and plan.train:
            _train_families(plan, store, device, workers)
        report = probe_layer(loaded, plan, store, device, workers, said)
    except IthbitError as error:
        if trace and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        from ithbit.probe.text import report_text

        print(report_text(report), end="")
    if out is not None:
        from ithbit.probe.page import write_probe

        print(write_probe(report, out), file=sys.stderr)


def _train_families(plan: "Plan", store: Path, device: str, workers: int | None) -> None:
    from ithbit.cli.progress import Board
    from ithbit.probe.families import family_runs
    from ithbit.sweep.runner import run_all

    runs = family_runs(
        plan.width, list(plan.lengths), list(plan.layers), list(plan.seeds), plan.protocol
    )
    with Board(runs) as board:
        run_all(runs, store, device, workers, board.watch)


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(probe)
