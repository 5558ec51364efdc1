"""Trains the paper's eight constructive configurations with consistency, and proves what it can.

    python experiments/trained_and_proved.py STORE --n 16 --seeds 0-1 --seconds 60
    python experiments/trained_and_proved.py STORE --n 16 32 64 --seeds 0-4 --seconds 120
    python experiments/trained_and_proved.py STORE --n 16 --stress
    python experiments/trained_and_proved.py STORE --n 16 32 64 128 --seeds 0-5 --no-train
    python experiments/trained_and_proved.py --read
    python experiments/trained_and_proved.py --figure docs/images/trained_and_proved.png

Every configuration (one-layer causal softmax attention is the full one at the read-out, and left
out) at every n and seed is trained with `consistency=1`, on a GPU if there is one, and then tried
and proved as `ithbit verify --prove` does. STORE keeps the runs: trained runs are not trained
again, and runs that have a row are skipped, so that it may be stopped at any time. On a GPU, 120
runs at n = 16, 32 and 64 are one sweep; on a CPU take few seeds of n = 16 first.

runs.csv gets a row per run as soon as it is known: epochs until first perfect and in all, seconds
per epoch, accuracy at n/2 and 2n, wrong structured inputs, the verdict; of the proof its outcome,
the share of all inputs closed, the bound and the least margin found, nodes, leaves and seconds.
Beside it are the same seed's epochs without consistency, from the runs in --without (by default
those that ship, trained on blocks too, by the kernels of a GPU).

With --no-train, only runs that STORE has are proved, and certificates that are there are checked
again; with --recorded besides, their records are taken as they are. --figure draws each proved
margin as a share of the least that was found.

With --stress, the stress tests of `STRESS` are trained with consistency and without it, as many
epochs each: it must not make the impossible possible. stress.csv gets a row per run.
"""

import argparse
import csv
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import ithbit
from ithbit.display import lower_percent, lower_text
from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.packed import opened
from ithbit.store.reading import run_folders
from ithbit.store.records import Result
from ithbit.sweeps.presets import CONSTRUCTIVE, Variant, cross
from ithbit.sweeps.select import parse_seeds

Row = dict[str, Any]

RECIPE = Protocol(examples="blocks", consistency=1.0)
EIGHT: tuple[Variant, ...] = tuple(
    variant for variant in CONSTRUCTIVE if variant != ("rhi", "softmax-causal", 1)
)
# Configurations without a small solution: the index comes last, and a state has to hold all bits;
# or one layer, whose read-out token cannot know the index.
STRESS: tuple[Variant, ...] = (
    ("rhi", "gru", 1),
    ("rhi", "mamba2", 1),
    ("rhi", "linear-causal", 2),
    ("lhi", "softmax-full", 1),
    ("lhi", "linear-full", 1),
)


def row_of(run: RunSpec, result: Result, without: Result | None) -> Row:
    """What is known of a trained run, before any proof."""
    model = run.model
    return {
        "run_id": run.run_id,
        "task": model.task,
        "family": model.family,
        "layers": model.n_layers,
        "n": model.n_bits,
        "seed": run.seed,
        "consistency": run.protocol.consistency,
        "solved": result.solved,
        "first_solved_epoch": result.first_solved_epoch,
        "epochs": result.epochs,
        "ended_by": result.stopped_by,
        "max_accuracy": result.max_accuracy,
        "final_loss": result.final_loss,
        "seconds_per_epoch": round(result.seconds_per_epoch, 3),
        "at_half": result.half_length_accuracy,
        "at_double": result.double_length_accuracy,
        "structured_wrong": result.structured_wrong,
        "solved_without": without.solved if without else None,
        "first_solved_epoch_without": without.first_solved_epoch if without else None,
        "epochs_without": without.epochs if without else None,
        "device": result.environment.get("device_name") or result.environment.get("cpu"),
        "torch": result.environment.get("torch"),
    }


def proved(folder: Path, args: argparse.Namespace) -> Row:
    """The verdict on a run, and its proof: what `ithbit verify --prove` finds, or found."""
    cpu, began = time.process_time(), time.perf_counter()
    prove = not args.recorded
    (found,) = ithbit.verify([folder], prove=prove, seconds=args.seconds, budget=args.budget)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    record = found.record
    proof = record.get("proof") or {}
    return {
        "verdict": found.verdict,
        "least_observed": record["worst"]["margin"],
        "proof": proof.get("outcome"),
        "share_closed": proof.get("share_closed"),
        "least_proved": proof.get("least_margin"),
        "least_found": proof.get("least_found"),
        "nodes": proof.get("nodes"),
        "leaves": proof.get("leaves"),
        "checked": proof.get("checked"),
        "proof_seconds": proof.get("seconds"),
        "verify_cpu_seconds": round(cpu, 2) if prove else None,
        "verify_seconds": round(wall, 2) if prove else None,
    }


def results_without(store: Path, runs: Iterable[RunSpec]) -> dict[RunSpec, Result]:
    """Of each run, the same without consistency, where the store has it."""
    found: dict[RunSpec, Result] = {}
    there = opened(store)
    have = {folder for _, folder in run_folders(there)} if there.is_dir() else set()
    for run in runs:
        other = replace(run, protocol=replace(run.protocol, consistency=0.0))
        if other.folder in have and (result := RunFolder(there, other).result()):
            found[run] = result
    return found


def read_rows(file: Path) -> list[Row]:
    if not file.exists():
        return []
    with file.open(newline="") as opened_file:
        return list(csv.DictReader(opened_file))


def append(file: Path, row: Row) -> None:
    """Add a row; the file gets its header with the first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    with file.open("a", newline="") as opened_file:
        writer = csv.DictWriter(opened_file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def in_order(
    runs: list[RunSpec], store: Path, workers: int | None, train: bool
) -> Iterator[RunSpec]:
    """Train the runs, cell by cell, unless not wanted, and yield each that has a result."""
    cells: dict[ModelSpec, list[RunSpec]] = defaultdict(list)
    for run in runs:
        cells[run.model].append(run)
    for cell in cells.values():
        if train:
            ithbit.sweep(cell, store=store, workers=workers)
        yield from (run for run in cell if RunFolder(store, run).result())


def experiment(args: argparse.Namespace) -> None:
    runs = cross(chosen(EIGHT, args), args.n, parse_seeds(args.seeds), protocol=RECIPE)
    file, without = args.out / "runs.csv", results_without(args.without, runs)
    done = {row["run_id"] for row in read_rows(file)}
    todo = [run for run in runs if run.run_id not in done]
    for run in in_order(todo, args.store, args.workers, not args.no_train):
        folder = RunFolder(args.store, run)
        result = folder.result()
        assert result is not None
        row = row_of(run, result, without.get(run)) | proved(folder.path, args)
        append(file, row)
        print(sentence(row), flush=True)


def stress(args: argparse.Namespace) -> None:
    """Stress tests with consistency and without."""
    protocols = [replace(RECIPE, max_epochs=args.epochs, consistency=c) for c in (1.0, 0.0)]
    seeds = parse_seeds(args.seeds)
    runs = [
        run
        for each in protocols
        for run in cross(chosen(STRESS, args), args.n, seeds, protocol=each)
    ]
    file = args.out / "stress.csv"
    done = {row["run_id"] for row in read_rows(file)}
    todo = [run for run in runs if run.run_id not in done]
    for run in in_order(todo, args.store, args.workers, not args.no_train):
        result = RunFolder(args.store, run).result()
        assert result is not None
        row = row_of(run, result, None)
        append(file, {name: value for name, value in row.items() if "without" not in name})
        print(run.name, f"consistency {run.protocol.consistency:g}:", row["max_accuracy"])


def chosen(variants: Iterable[Variant], args: argparse.Namespace) -> list[Variant]:
    """The variants of the families that are asked for."""
    return [variant for variant in variants if variant[1] in (args.family or [variant[1]])]


def sentence(row: Row) -> str:
    name = f"{row['task']} {row['family']} L={row['layers']} n={row['n']} seed {row['seed']}"
    solved = f"solved in epoch {row['first_solved_epoch']} of {row['epochs']}"
    text = f"{name}: {solved if row['first_solved_epoch'] else 'not solved'}, {row['verdict']}"
    if row["least_proved"]:
        least, found = float(row["least_proved"]), float(row["least_found"] or "nan")
        text += f", margin at least {lower_text(least)}, {least / found:.0%} of the least found"
    elif row["share_closed"]:
        text += f", {lower_percent(float(row['share_closed']))} closed"
    return f"{text}, {float(row['proof_seconds'] or 0):.1f} s"


def summary(rows: list[Row]) -> Iterator[str]:
    """A line per configuration and n."""
    cells: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[row["task"], row["family"], row["layers"], row["n"]].append(row)
    for (task, family, layers, n), cell in cells.items():
        bounded = [row for row in cell if row["least_proved"]]
        solved = sum(row["solved"] == "True" for row in cell)
        known = [row for row in cell if row["solved_without"]]
        before = sum(row["solved_without"] == "True" for row in known)
        text = f"{task} {family} L={layers} n={n}: {solved} of {len(cell)} solved"
        text += f" ({before} of {len(known)} without), {len(bounded)} proved or bounded"
        if bounded:
            ratio = min(float(row["least_proved"]) / float(row["least_found"]) for row in bounded)
            seconds = statistics.median(float(row["proof_seconds"]) for row in bounded)
            text += (
                f", bound at least {ratio:.0%} of the least found, {seconds:.1f} s in the median"
            )
        yield text


def figure(rows: list[Row], path: Path) -> None:
    """A row of dots for each configuration at n = 64: margins that are proved, as a share of the
    least margin found; runs without a proof stand at 0."""
    at = [row for row in rows if row["n"] == "64"]
    cells = list(dict.fromkeys((row["task"], row["family"]) for row in at))
    plot, axes = plt.subplots(figsize=(7, 0.45 * len(cells) + 1.1), layout="constrained")
    for y, (task, family) in enumerate(reversed(cells)):
        own = [row for row in at if (row["task"], row["family"]) == (task, family)]
        proved = [row for row in own if row["verdict"] == "proved on all inputs"]
        shares = [float(row["least_proved"]) / float(row["least_found"]) for row in proved]
        axes.plot(shares, [y] * len(shares), "o", color="#1f77b4", alpha=0.7)
        left = len(own) - len(proved)
        axes.plot([0] * left, [y] * left, "x", color="#d62728")
        axes.text(1.04, y, f"{len(proved)} of {len(own)}", va="center")
    labels = [f"{task.upper()} {family}" for task, family in reversed(cells)]
    axes.set_yticks(range(len(cells)), labels)
    axes.set(xlim=(-0.03, 1.03), xlabel="proved margin, as a share of the least margin found")
    axes.set_title(
        "Trained with consistency, n = 64: proved right on all 64 · 2⁶⁴ inputs", fontsize=10
    )
    axes.grid(axis="x", alpha=0.3)
    plot.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, nargs="?", default=Path("runs"))
    parser.add_argument("--n", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--family", nargs="+", help="only these")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--seconds", type=float, default=60.0, help="for one proof")
    parser.add_argument("--budget", type=int, default=1 << 20, help="inputs to try of each run")
    parser.add_argument("--recorded", action="store_true", help="take the verdicts on record")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--without", type=Path, default=Path("results/weights/blocks.zip"))
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--epochs", type=int, default=60, help="of a stress test")
    parser.add_argument("--no-train", action="store_true", help="only what the store has")
    parser.add_argument("--figure", type=Path, help="draw runs.csv into this file")
    parser.add_argument("--read", action="store_true", help="only print what runs.csv has")
    parser.add_argument("-o", "--out", type=Path, default=Path("results/trained_and_proved"))
    args = parser.parse_args()
    if args.read:
        print("\n".join(summary(read_rows(args.out / "runs.csv"))))
        return
    if args.figure:
        figure(read_rows(args.out / "runs.csv"), args.figure)
        return
    try:
        stress(args) if args.stress else experiment(args)
    except StoreError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
