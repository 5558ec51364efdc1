"""`ithbit bench`: how fast training is on this machine, in every way there is."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ithbit.bench.result import Result


def bench(
    n: Annotated[
        list[int] | None,
        typer.Option("--n", "-n", help="Number of bits; repeatable. 64 unless given."),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option(help="Seeds in a stack; repeatable. 5 unless given.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    steps: Annotated[int | None, typer.Option(help="Optimiser steps timed at a time.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repetitions; the median counts.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three steps, once: rough, for a CPU.")
    ] = False,
    read: Annotated[
        Path | None, typer.Option(help="Print the table of an earlier result; time nothing.")
    ] = None,
    as_json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write JSON to a file in an existing folder; - for stdout.",
        ),
    ] = None,
) -> None:
    """Time the reference, the stacked models and compiled code or kernels, side by side.

    The nine constructive configurations and the deepest of each family: seconds per run and epoch,
    ratios to the reference, and shares of the best that was measured on the device. A failure is
    reported in its row, and the others continue. Progress goes to standard error; the JSON file is
    rewritten after every configuration.
    """
    from ithbit.bench.result import read_result
    from ithbit.bench.run import Settings
    from ithbit.bench.run import bench as run_bench
    from ithbit.bench.text import result_text
    from ithbit.store.writing import check_writable, write_text

    file = None if as_json in (None, "-") else Path(str(as_json))
    if file is not None:
        check_writable(file)

    def said(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def keep(result: "Result") -> None:
        if file is not None:
            write_text(file, _json(result))

    if read is not None:
        found = read_result(read)
    else:
        settings = Settings(tuple(n or (64,)), tuple(seeds or (5,)), device, steps, repeats, quick)
        found = run_bench(settings, said, keep)
    keep(found)
    if as_json == "-":
        print(_json(found), end="")
    else:
        print(result_text(found), end="")


def _json(result: "Result") -> str:
    return json.dumps(result.to_json(), indent=1) + "\n"


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(bench)
