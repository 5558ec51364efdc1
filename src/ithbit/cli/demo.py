"""The command `demo`: the main job on the embedded default, in about two minutes on a CPU."""

import time
from pathlib import Path
from typing import Annotated

import typer

from ithbit.cli.train import Store


def demo(
    store: Store = Path("runs/demo"),
    page: Annotated[Path, typer.Option("--report", help="where the report page is written")] = Path(
        "runs/demo.html"
    ),
) -> None:
    """Train six families at n = 8 on both tasks, print successes beside the published ones.

    Shortened for time: three seeds, and runs stop when solved. Stop it and start it at will.
    """
    from ithbit.cli.duration import clock
    from ithbit.cli.progress import Board
    from ithbit.report.cells import gather
    from ithbit.report.page import write_page
    from ithbit.report.render import render
    from ithbit.report.rows import load_rows
    from ithbit.report.tables import table_named
    from ithbit.sweep.presets import preset
    from ithbit.sweep.runner import run_all

    started = time.monotonic()
    runs = preset("demo")
    with Board(runs) as board:
        board.console.print(
            f"Training {len(runs)} small models on the CPU to read the i-th of 8 bits: index last "
            "(RHI), index first (LHI).",
            style="dim",
        )
        run_all(runs, store, "cpu", watch=board.watch)
    records = load_rows(store)
    print(render(table_named("main", gather(records, "any")), "text", "both"), end="")
    write_page(records, page, "any")
    print(f"\nObserved on samples of 2,000, in {clock(time.monotonic() - started)}: ", end="")
    print("three seeds, stopped when solved, against the paper's five.")
    print(f"Run folders: {store}/\nReport:      {page}")


def register(app: typer.Typer) -> None:
    """Add this module's command to the application."""
    app.command()(demo)
