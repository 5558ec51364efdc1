"""`ithbit verify`: every input of a trained model, or a search for a wrong one."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ithbit.cli.train import AsJson, Store

if TYPE_CHECKING:
    from ithbit.engine.device import Device


def verify(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="run folders, or names or ids of runs in the store", metavar="RUN"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="all finished runs of the store, but for those with a record of this budget",
        ),
    ] = False,
    solved_only: Annotated[
        bool, typer.Option("--solved-only", help="with --all: leave out runs that failed to solve")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="with --all: try those again too")] = False,
    budget: Annotated[
        int,
        typer.Option(
            help="inputs to evaluate for each run; all of them if they are no more, and always up "
            "to n = 16 (1,048,576)"
        ),
    ] = 1 << 20,
    seed: Annotated[int, typer.Option(help="seed of the search")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    store: Store = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Try every input of trained models where feasible; search for a wrong answer elsewhere.

    The record goes to verification.json in the run folder, and from there into tables, the success
    grid and the report. It is an observation in float32 of the weights at the end of training, not
    a certificate. Exit status: 1 if a run that counts as solved has a counterexample, or if runs
    were set aside because they cannot be read, else 0.
    """
    from ithbit.engine.device import choose_device
    from ithbit.errors import SpecError, StoreError
    from ithbit.probe.verify import finished_folders, recorded

    if bool(runs) == every:
        raise SpecError("name runs to verify, or give --all for all finished runs of the store")
    if budget < 1:
        raise SpecError(f"the budget is a number of inputs from 1, got {budget}")
    if not 0 <= seed < 1 << 63:
        raise SpecError(f"the seed is a number from 0 and below 2^63, got {seed}")
    chosen, set_aside = choose_device(device), 0
    if every:
        records = []
        for folder in finished_folders(store):
            try:
                said = _result(folder)
                if solved_only and not said["solved"]:
                    continue
                record = recorded(folder)
                enough = record and (record["exhaustive"] or record["budget"] >= budget)
                if record is None or again or not enough:
                    record = _verify(folder, chosen, budget, seed, quiet=as_json)
                records.append(record | said)
            except StoreError as error:  # one bad folder is not the end of the others
                print(f"ithbit: set aside: {error}", file=sys.stderr)
                set_aside += 1
    else:
        records = [
            _verify(folder, chosen, budget, seed, quiet=as_json) | _result(folder)
            for folder in (_find(name, store) for name in runs or [])
        ]
    if as_json:
        print(json.dumps({"summary": _summary(records), "runs": records}, indent=1))
    else:
        _print_summary(records)
    if set_aside or any(r["solved"] and r["verdict"] == "counterexample" for r in records):
        raise typer.Exit(1)


def _result(folder: Path) -> dict[str, bool]:
    """What the paper's criterion says of a run, and whether its last epoch was perfect too."""
    from ithbit.probe.verify import read_result

    record = read_result(folder)
    return {"solved": record["max_accuracy"] == 1.0, "final": record["final_accuracy"] == 1.0}


def _verify(folder: Path, device: "Device", budget: int, seed: int, quiet: bool) -> dict[str, Any]:
    from ithbit.probe.verify import recorded, verify_run

    found = verify_run(folder, device, budget, seed)
    record = recorded(folder)
    assert record is not None
    if not quiet:
        print(f"{record['name']}: {found.verdict}: {found.sentence()} ({found.seconds:.1f} s)")
        if found.exhaustive and found.wrong_by_index:  # of a search the counts say little
            wrong = sorted(found.wrong_by_index.items())
            print("  wrong by index: " + ", ".join(f"{i}: {count:,}" for i, count in wrong))
    return record


def _find(name: str, store: Path) -> Path:
    """The run folder that a path, a folder name, a run name or a run id means."""
    from ithbit.engine.reading import run_folders
    from ithbit.errors import StoreError
    from ithbit.sweep.store import need_store

    if Path(name).is_dir():
        return Path(name).resolve()
    need_store(store)
    found = [
        folder
        for run, folder in run_folders(store)
        if name in (run, folder) or folder.endswith(f"-{name}")
    ]
    if len(found) != 1:
        many = f"several runs are called {name!r}: {', '.join(found)}; give the folder"
        none = f"there is no run {name!r} in {store}; `ithbit status --json` lists the runs"
        raise StoreError(many if found else none)
    return store / found[0]


def _summary(records: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Verdicts by what the paper's criterion and the final epoch said."""
    from collections import Counter

    def count(keep: list[dict[str, Any]]) -> dict[str, int]:
        return {"runs": len(keep), **Counter(record["verdict"] for record in keep)}

    solved = [record for record in records if record["solved"]]
    return {
        "all": count(records),
        "solved": count(solved),
        "solved, final accuracy 1": count([record for record in solved if record["final"]]),
    }


def _print_summary(records: list[dict[str, Any]]) -> None:
    if len(records) == 1:
        print(
            f"observed in float32 on {records[0]['environment']['device_name']}, not proved; "
            "the weights at the end of training"
        )
        return
    for what, counts in _summary(records).items():
        rest = ", ".join(
            f"{count} {verdict}" for verdict, count in counts.items() if verdict != "runs"
        )
        print(f"{what}: {counts['runs']} runs" + (f": {rest}" if rest else ""))
    print("observed in float32 with the weights at the end of training, not proved")


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(verify)
