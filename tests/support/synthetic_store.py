"""Stores of made-up records for the tests: no model was trained, and every record says so.

Numbers follow the published tables loosely, so that tables and figures look as they will; nothing
here is a result. `environment.synthetic` is true in each record.
"""

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ithbit.families import family_named
from ithbit.published import LENGTHS, Published, published
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import keep_verification
from ithbit.store.records import Case, Verdict, Verification, VerificationRecord

# A text that would take the page over if it were put in as it is.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'"

ENVIRONMENT = {
    "synthetic": True,
    "python": "3.11.2",
    "torch": "2.13.0",
    "ithbit": "0.1.0",
    "platform": "made up",
    "device": "cpu",
    "device_name": "no machine",
    "threads": 1,
}


@dataclass(frozen=True)
class Plan:
    """What a synthetic run is to look like."""

    run: RunSpec
    solved: bool
    accuracy: float
    epochs: int
    n_parameters: int = 1777


def _epochs(rng: random.Random, solved: bool, n_bits: int, median: float) -> int:
    if not solved:
        return 500
    return max(5, min(499, round(median * (n_bits / 64) ** 0.5 * rng.lognormvariate(0, 0.2))))


def paper_plans(seeds: Iterable[int] = range(5), protocol: Protocol = Protocol()) -> list[Plan]:
    """The 27 variants at four lengths, as many successes as published (in proportion)."""
    paper: Published = published()
    counts = {
        (row.task, family, row.n_layers, n_bits): k
        for row in paper.successes
        for family in row.families
        for n_bits, k in row.successes.items()
    }
    sizes = {v: (row.n_parameters, row.median_epochs) for v, row in paper.cost.items()}
    plans = []
    seeds = list(seeds)
    for v, means in paper.accuracy.items():
        size, median = sizes.get(v, (1000 * v.n_layers + 777, 150))
        for n_bits in LENGTHS:
            share = counts[v.task, v.family, v.n_layers, n_bits] / 5
            cell = means[n_bits]
            # The failures' mean is what is left of the cell's mean.
            missed = 0.9995 if share == 1 else min(0.9995, (cell.mean - share) / (1 - share))
            for seed in seeds:
                rng = random.Random(f"{v}{n_bits}{seed}")
                solved = seed % 5 < round(5 * share)
                noise = rng.gauss(0, min(cell.sd, 0.02))
                accuracy = 1.0 if solved else max(0.505, min(0.9995, missed + noise))
                model = ModelSpec(v.task, v.family, n_bits, v.n_layers)
                epochs = min(protocol.max_epochs, _epochs(rng, solved, n_bits, median))
                plans.append(Plan(RunSpec(model, seed, protocol), solved, accuracy, epochs, size))
    return plans


def positions_plans() -> list[Plan]:
    """The encoding ablation without its polynomial runs, which `paper_plans` has."""
    paper = published()
    plans = []
    for row in paper.positions:
        if row.positions == "polynomial":
            continue
        variants = [
            v for v in paper.positions_variants if family_named(v.family).takes(row.positions)
        ]
        runs = [(v, seed) for v in variants for seed in paper.positions_seeds]
        failures = row.runs - row.successes
        missed = (row.accuracy * row.runs - row.successes) / max(1, failures)
        for at, (v, seed) in enumerate(runs):
            model = ModelSpec(v.task, v.family, row.n_bits, v.n_layers, positions=row.positions)
            solved = at < row.successes
            accuracy = 1.0 if solved else min(0.9995, missed)
            plans.append(Plan(RunSpec(model, seed), solved, accuracy, 120 if solved else 500))
    return plans


def history(plan: Plan, epochs: int | None = None) -> list[dict[str, Any]]:
    """A plausible curve that first reaches the plan's accuracy at its last tenth."""
    rng = random.Random(plan.run.run_id)
    lines = []
    for epoch in range(1, (epochs or plan.epochs) + 1):
        rise = 1 / (1 + math.exp(-12 * (epoch / plan.epochs - 0.45)))
        accuracy = 0.5 + (plan.accuracy - 0.5) * rise - abs(rng.gauss(0, 0.01))
        if epoch >= 0.9 * plan.epochs:
            accuracy = plan.accuracy
        loss = 0.69 * (1 - rise) + (1e-6 if plan.solved else 0.69 * (1 - plan.accuracy))
        lines.append(
            {
                "epoch": epoch,
                "train_loss": round(loss * 1.05, 9),
                "held_out_loss": round(loss, 9),
                "held_out_accuracy": round(max(0.48, accuracy) * 2000) / 2000,
                "learning_rate": 0.001,
                "seconds": 0.25,
            }
        )
    return lines


def write_run(store: Path, plan: Plan, kind: str = "result", with_history: bool = True) -> Path:
    """One run folder: `kind` is result, failure or spec (unfinished)."""
    run = plan.run
    head = {"schema": 1, "run_id": run.run_id, "name": run.name, "spec": run.to_json()}
    folder = store / f"{run.name}-{run.run_id}"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(head))
    if with_history:
        lines = history(plan, None if kind == "result" else 3)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "history.jsonl").write_text(text)
    if kind == "result":
        rng = random.Random(run.run_id)
        shift = 0.09 * (8 / run.model.n_bits)
        epochs = min(plan.epochs, run.protocol.max_epochs)
        result = {
            **head,
            "n_parameters": plan.n_parameters,
            "epochs": epochs,
            "stopped_by": "loss" if plan.solved else "epochs",
            "solved": plan.solved,
            "first_solved_epoch": math.ceil(0.9 * epochs) if plan.solved else None,
            "max_accuracy": plan.accuracy,
            "final_accuracy": plan.accuracy,
            "final_loss": 9e-7 if plan.solved else 0.69 * (1 - plan.accuracy) + 1e-6,
            "half_length_accuracy": round(min(0.505 + shift + rng.gauss(0, shift / 2), 1), 4),
            "double_length_accuracy": round(0.5 + shift / 3 + rng.gauss(0, 0.01), 4),
            "seconds_per_epoch": 0.25,
            "evaluation_seconds": 0.012,
            "started_at": "2026-01-01T00:00:00+00:00",
            "finished_at": "2026-01-01T00:10:00+00:00",
            "environment": ENVIRONMENT,
        }
        (folder / "result.json").write_text(json.dumps(result, indent=1))
    elif kind == "failure":
        failure = {**head, "error": "out of memory", "traceback": "Traceback …", "epoch": 3}
        (folder / "failure.json").write_text(json.dumps(failure))
    return folder


def write_verification(folder: Path, run: RunSpec, verdict: Verdict) -> None:
    """What `ithbit verify` would leave of a run with that verdict."""
    n, found_wrong = run.model.n_bits, verdict == "refuted"
    worst = Case("1" * n, 1, -1.0 if found_wrong else 1.0)
    exhaustive = verdict == "right on all inputs"
    n_evaluated = n << n if exhaustive else 100
    tried = (n << n, n_evaluated, int(found_wrong), 0, {1: 1} if found_wrong else {}, worst)
    found = Verification(verdict, exhaustive, n, *tried, worst if found_wrong else None, 0.1)
    whose = (run.run_id, run.name, "0" * 64, "float32", 100, 0)
    keep_verification(folder, VerificationRecord(*whose, found, ENVIRONMENT))


def write_store(store: Path, plans: Iterable[Plan], with_history: bool = True) -> Path:
    """A store of finished runs."""
    store.mkdir(parents=True, exist_ok=True)
    for plan in plans:
        write_run(store, plan, with_history=with_history)
    return store
