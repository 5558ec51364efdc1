"""Accuracy at half and twice the training length, with the query scaled in two ways.

    python experiments/length_transfer.py --store runs --csv length_transfer.csv

The paper gives query i of an instance of m bits the features (i-1)/m and its square, even where m
differs from the training length n, while the polynomial positions of the bits keep n: a bit and the
query that asks for it then no longer match. This script compares that choice with (i-1)/n. It takes
the final weights of the finished runs of the constructive configurations, each on 2,000 fixed
examples per length; a cell's line is the mean over its runs.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from safetensors.torch import load_file

from ithbit.engine.evaluate import shifted_accuracy
from ithbit.models.classifier import logits
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.sweeps.presets import CONSTRUCTIVE, cross
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable

LENGTHS = (8, 16, 32, 64)
FIELDS = ("task", "family", "layers", "n", "seed", "query_by", "half", "double")


def stacked(store: Path, runs: list[RunSpec]) -> dict[str, torch.Tensor]:
    """The final weights of a cell's runs, one row each."""
    members = [load_file(RunFolder(store, run).path / "weights.safetensors") for run in runs]
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def by_training_length(
    params: dict[str, torch.Tensor], spec: ModelSpec, table: TokenTable, examples: Examples
) -> torch.Tensor:
    """As `logits`, but query i has (i-1)/n and its square for the training length n; exact, since
    the two lengths differ by a factor of two."""
    scale = table.n_bits / spec.n_bits
    units = torch.tensor([1, 1, 1, 1, scale, scale**2], dtype=table.features.dtype)
    features = table.features * units.to(table.features.device)
    return logits(params, spec, replace(table, features=features), examples)


def rows(store: Path, runs: list[RunSpec]) -> Iterator[dict[str, object]]:
    """Each run of a cell, scaled both ways."""
    model, protocol = runs[0].model, runs[0].protocol
    params, seeds = stacked(store, runs), [run.seed for run in runs]
    for query_by, ask in (("instance", logits), ("training", by_training_length)):
        half, double = shifted_accuracy(params, model, protocol, seeds, logits=ask)
        assert half is not None  # no training length here is one bit
        for k, seed in enumerate(seeds):
            cell = (model.task, model.family, model.n_layers, model.n_bits)
            yield dict(zip(FIELDS, (*cell, seed, query_by, half[k], double[k]), strict=True))


def main(argv: list[str]) -> int:
    """Evaluate, print the means, write every run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs"))
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args(argv)
    cells = defaultdict(list)
    for run in cross(CONSTRUCTIVE, LENGTHS, range(100)):
        if RunFolder(asked.store, run).result() is not None:
            cells[run.model].append(run)
    if not cells:
        print(f"{asked.store} has no finished run of a constructive configuration", file=sys.stderr)
        return 2
    found = []
    print(f"{'cell':<26} {'runs':>4}   n/2, 2n by the instance   n/2, 2n by the training length")
    for model, runs in cells.items():
        cell = list(rows(asked.store, runs))
        found += cell
        name = f"{model.task} {model.family} L={model.n_layers} n={model.n_bits}"
        means = [
            f"{mean(row[size] for row in cell if row['query_by'] == way):.3f}"
            for way in ("instance", "training")
            for size in ("half", "double")
        ]
        print(f"{name:<26} {len(runs):>4}   {'  '.join(means)}", flush=True)
    if asked.csv:
        with asked.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
