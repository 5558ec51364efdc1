"""`ithbit data` and `ithbit score`: for a model that was trained elsewhere."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ithbit.cli.train import AsJson


def data(
    task: Annotated[str, typer.Argument(help="rhi (index last) or lhi (index first)")],
    n: Annotated[int, typer.Option("--n", "-n", help="number of bits")] = 8,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write to")] = Path("data"),
    seeds: Annotated[str, typer.Option(help="seeds of the held-out sets, such as 0-4")] = "0-4",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="also all n 2^n inputs, for n up to 16")
    ] = False,
) -> None:
    """Write held-out and adversarial inputs as Parquet and NPZ, with a README.

    A model trained elsewhere answers them, and `ithbit score` gives the same success table as for
    our own runs. The held-out sets are the ones that runs of these seeds are judged by.
    """
    from ithbit.probe.sets import write_sets
    from ithbit.sweep.select import parse_seeds

    for path in write_sets(task, n, out, parse_seeds(seeds), exhaustive):
        print(path)


def score(
    predictions: Annotated[
        Path, typer.Argument(help=".npz with an array a set, or .csv/.parquet: see the README")
    ],
    folder: Annotated[Path, typer.Option("--data", help="folder that `ithbit data` wrote")] = Path(
        "data"
    ),
    name: Annotated[str, typer.Option(help="what to call the model")] = "yours",
    as_json: AsJson = False,
) -> None:
    """Score a model's answers to the inputs of `ithbit data`.

    A seed is solved if every one of its held-out examples is answered right: the paper's criterion,
    an observation on samples. Answers to all inputs, where given, say more.
    """
    from ithbit.probe.score import score as score_file
    from ithbit.probe.score import success_table
    from ithbit.report.render import render

    found = score_file(predictions, folder)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    print(render(success_table(found, name), "text", "ours"), end="")
    print()
    print("held out, by seed: " + _shares(found.held_out))
    if found.adversarial:
        print("adversarial, by kind: " + _shares(found.adversarial))
    if found.n_wrong is not None:
        total = found.n_bits << found.n_bits
        print(
            f"all inputs: {found.n_wrong:,} of {total:,} wrong"
            if found.n_wrong
            else f"all inputs: right on all {total:,}"
        )


def _shares(found: dict[str, float] | dict[int, float]) -> str:
    return ", ".join(f"{label}: {share:.4f}" for label, share in found.items())


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(data)
    app.command()(score)
