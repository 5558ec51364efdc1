"""Which successes on samples stand: verify every solved run of some stores, cell by cell.

    python experiments/everywhere.py uniform-runs mixed-runs
    python experiments/everywhere.py uniform-runs mixed-runs --device cuda --json everywhere.json

Takes stores as written by `ithbit train` and `sweep`; runs of different kinds of examples may share
one. Runs that `ithbit verify` has already tried with this budget are not tried again. The first
table has one line per cell (task, family, depth, n, examples): finished runs, successes by the
paper's criterion, and how many of these are refuted, not refuted by the search, right on all
inputs, unsettled; the least margin that the search met in runs that stand; tries (median) and
seconds (sum). *Not refuted* is not *right*. Runs that cannot be read or tried are reported as set
aside and not counted.

The second part asks what wrong answers have in common, in runs whose final weights still answer all
held-out samples (a success may be lost again before training ends). Every such refuted run answers
the same inputs: structured ones, densities and uniform ones, every index equally often. Errors are
counted by the position of the index, by how many bits differ from the majority, by how often the
string changes, and by whether the requested bit is in the minority; then follows the mean margin of
uniform strings and densities by their share of ones. All of it is observed in float32 with the
weights at the end of training.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ithbit.engine.device import Device, choose_device, describe_environment, usable_cores
from ithbit.errors import StoreError, TooLargeError
from ithbit.spec import RunSpec
from ithbit.store.records import Verification
from ithbit.tasks.sampling import draw_densities, draw_examples, stream_keys
from ithbit.tasks.structured import every_index, plain_strings
from ithbit.verification.input_search import in_chunks, margins
from ithbit.verification.record_merging import is_enough
from ithbit.verification.run_verification import ALWAYS, model_of, verify_run
from ithbit.verification.stored_run import finished_folders, read_stored_run

DRAWN = 16_384  # densities, and as many uniform strings, for each refuted run
SEED = 77_000  # for drawing them: no run trains or is tested on it
COUNTS = ("runs", "solved", "refuted", "not_refuted", "right", "proved", "unsettled")
CHANGES = (0, 1, 2, 4, 8, 16)  # where bins begin
MINORITY = (0, 1, 2, 3, 5, 9, 17)


@dataclass
class Cell:
    """Results of the runs of one cell."""

    runs: int = 0
    solved: int = 0
    refuted: int = 0
    not_refuted: int = 0
    right: int = 0
    proved: int = 0
    unsettled: int = 0
    least: float | None = None  # least margin in runs that stand
    tries: list[int] = field(default_factory=list)
    seconds: float = 0.0
    methods: dict[str, int] = field(default_factory=dict)  # refuted by


def cell_name(run: RunSpec) -> str:
    model = run.model
    head = f"{model.task.upper()} {model.family} L={model.n_layers} n={model.n_bits}"
    return head + ("" if model.positions == "polynomial" else f" {model.positions}")


def order(key: tuple[str, str]) -> tuple[Any, ...]:
    name, examples = key
    head, n = name.split(" n=")
    return head, int(n.split()[0]), name, examples != "uniform"


def folders(stores: Iterable[Path]) -> Iterator[Path]:
    for store in stores:
        yield from finished_folders(store)


def verify_all(
    stores: list[Path], device: Device, budget: int, again: bool
) -> tuple[dict[tuple[str, str], Cell], list[Path]]:
    """The cells, and the folders of refuted successes that still answer all held-out samples."""
    cells: dict[tuple[str, str], Cell] = defaultdict(Cell)
    refuted, began, tried = [], time.perf_counter(), 0
    for folder in folders(stores):
        try:
            stored = read_stored_run(folder)
            run, _ = stored.spec, stored.weights  # a run without readable weights is set aside
            cell = cells[cell_name(run), run.protocol.examples]
            if not stored.solved:
                cell.runs += 1
                continue
            record = stored.read_verification()
            if record is None or again or not is_enough(record, budget, count=False):
                found = verify_run(folder, device, budget)
                tried += 1
            else:
                found = record.found
        except (StoreError, TooLargeError) as error:  # counts neither as a run nor as a success
            print(f"set aside: {error}", file=sys.stderr)
            continue
        cell.runs += 1
        _count(cell, found)
        if found.verdict == "refuted" and stored.solved_at_end:
            refuted.append(folder)
        spent = time.perf_counter() - began
        print(f"\r{tried} verified, {len(refuted)} refuted, {spent:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    return cells, refuted


def _count(cell: Cell, found: Verification) -> None:
    cell.solved += 1
    cell.tries.append(found.n_evaluated)
    cell.seconds += found.seconds
    match found.verdict:
        case "refuted":
            cell.refuted += 1
            method = found.method or "search of 0.1"
            cell.methods[method] = cell.methods.get(method, 0) + 1
            return
        case "not refuted" | "bounded (unchecked)":  # nothing that was checked says more
            cell.not_refuted += 1
        case "right on all inputs":
            cell.right += 1
        case "proved on all inputs":
            cell.proved += 1
        case "unsettled":
            cell.unsettled += 1
    margin = found.worst.margin
    if margin is not None:
        cell.least = margin if cell.least is None else min(cell.least, margin)


def table(cells: dict[tuple[str, str], Cell]) -> list[str]:
    """The first part as Markdown lines, with totals by kind of examples at the end."""
    heads = ("cell", "examples", "runs", "succeeded", "refuted", "not refuted")
    heads += ("right on all inputs", "proved", "unsettled", "least margin", "tries", "seconds")
    heads += ("refuted by",)
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for key in sorted(cells, key=order):
        lines.append(_line(*key, cells[key]))
    for examples in sorted({kind for _, kind in cells}, reverse=True):
        whole = [cell for (_, kind), cell in cells.items() if kind == examples]
        lines.append(_line("**all**", examples, _together(whole)))
    return lines


def _together(cells: list[Cell]) -> Cell:
    total = Cell()
    for cell in cells:
        for name in (*COUNTS, "seconds"):
            setattr(total, name, getattr(total, name) + getattr(cell, name))
        total.tries += cell.tries
        for method, count in cell.methods.items():
            total.methods[method] = total.methods.get(method, 0) + count
    least = [cell.least for cell in cells if cell.least is not None]
    total.least = min(least, default=None)
    return total


def _line(name: str, examples: str, cell: Cell) -> str:
    least = "–" if cell.least is None else f"{cell.least:.3g}"
    tries = f"{statistics.median(cell.tries):,.0f}" if cell.tries else "–"
    by = ", ".join(f"{method} {count}" for method, count in sorted(cell.methods.items()))
    counts = [str(getattr(cell, each)) for each in COUNTS]
    parts = [name, examples, *counts, least, tries, f"{cell.seconds:.1f}", by or "–"]
    return "| " + " | ".join(parts) + " |"


@dataclass
class Errors:
    """Wrong answers and inputs, by kind of input and by bin, and margins by share of ones."""

    counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    margins: dict[str, list[float]] = field(default_factory=dict)  # bin: sum, count, least
    most: list[tuple[int, str]] = field(default_factory=list)  # how often an input was wrong
    runs: int = 0

    def add(self, kind: str, name: str, hits: Tensor, wrong: Tensor) -> None:
        """Count inputs of a bin, and the wrong ones among them."""
        both = torch.stack([(hits & wrong).sum(), hits.sum()]).tolist()
        if both[1]:
            old = self.counts.setdefault(kind, {}).get(name, [0, 0])
            self.counts[kind][name] = [old[0] + both[0], old[1] + both[1]]


def bins(starts: tuple[int, ...]) -> list[tuple[str, int, int]]:
    """Name, first and end of each bin."""
    pairs = [*itertools.pairwise(starts)]
    named = [(str(a) if b == a + 1 else f"{a}–{b - 1}", a, b) for a, b in pairs]
    return [*named, (f"{starts[-1]}+", starts[-1], sys.maxsize)]


def inputs(n: int, device: torch.device) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Kind of input, bits and index."""
    for bits, index in every_index(plain_strings(n), 1 << 20, 1 << 15, device):
        yield "structured", bits, index
    keys, index = stream_keys([SEED], device), torch.arange(DRAWN, device=device) % n + 1
    yield "densities", draw_densities(keys, n, 0, DRAWN).bits[0], index
    yield "uniform", draw_examples(keys, n, 0, DRAWN).bits[0], index


@torch.no_grad()
def ask(folder: Path, device: Device, errors: Errors, tally: dict[str, int]) -> None:
    """Add the wrong answers of one run."""
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    n = run.model.n_bits
    model = model_of(run, weights, device.torch)
    errors.runs += 1
    with in_chunks(model, device.torch, usable_cores()) as chunked:
        for kind, bits, index in inputs(n, device.torch):
            margin = margins(chunked(bits, index), bits, index)
            wrong = ~(margin > 0)
            ones = bits.sum(1, dtype=torch.int64)
            minority, changes = torch.minimum(ones, n - ones), bits.int().diff(dim=1).abs().sum(1)
            answer = bits.gather(1, index[:, None] - 1)[:, 0].long()
            everything = torch.ones_like(wrong)
            errors.add(kind, "all", everything, wrong)
            for name, low, high in (
                ("first", 1, 1),
                ("up to a tenth", 2, n // 10),
                ("middle", n // 10 + 1, n - n // 10),
                ("last tenth", n - n // 10 + 1, n - 1),
                ("last", n, n),
            ):
                errors.add(kind, f"index {name}", (index >= low) & (index <= high), wrong)
            for name, low, high in bins(MINORITY):
                errors.add(
                    kind, f"minority of {name}", (minority >= low) & (minority < high), wrong
                )
            for name, low, high in bins(CHANGES):
                errors.add(kind, f"changes {name}", (changes >= low) & (changes < high), wrong)
            asked = torch.where(2 * ones > n, answer == 0, answer == 1) & (2 * ones != n)
            errors.add(kind, "the bit asked for is of the minority", asked, wrong)
            errors.add(kind, "… of the majority", ~asked & (2 * ones != n), wrong)
            if kind == "structured":
                _commonest(bits[wrong], n, tally)
            else:
                _margins(errors, margin, ones, n)


def _commonest(bits: Tensor, n: int, tally: dict[str, int]) -> None:
    """Count wrong strings of up to three blocks by pattern: each block is one bit or several."""
    for row in {tuple(row) for row in bits.tolist()}:
        changes = [at for at in range(1, n) if row[at] != row[at - 1]]
        if len(changes) > 2:
            continue
        parts = [row[0], *(row[at] for at in changes)]
        lengths = [b - a for a, b in zip([0, *changes], [*changes, n], strict=True)]
        text = " ".join(
            f"{bit}" if length == 1 else f"{bit}…{bit}"
            for bit, length in zip(parts, lengths, strict=True)
        )
        tally[text] = tally.get(text, 0) + 1


def _margins(errors: Errors, margin: Tensor, ones: Tensor, n: int) -> None:
    for tenth in range(10):
        low, high = tenth / 10, (tenth + 1) / 10 + (tenth == 9)
        hits = margin[(ones / n >= low) & (ones / n < high)]
        if len(hits):
            old = errors.margins.get(f"{low:.1f}", [0.0, 0.0, float("inf")])
            total, least = hits.clamp(min=-1e6).sum().item(), hits.min().item()
            errors.margins[f"{low:.1f}"] = [old[0] + total, old[1] + len(hits), min(old[2], least)]


def common(refuted: list[Path], device: Device) -> dict[str, Errors]:
    """Wrong answers of refuted runs, by the kind of examples they were trained on."""
    found: dict[str, Errors] = defaultdict(Errors)
    tallies: dict[str, dict[str, int]] = defaultdict(dict)
    for folder in refuted:
        kind = read_stored_run(folder).spec.protocol.examples
        ask(folder, device, found[kind], tallies[kind])
    for kind, tally in tallies.items():
        found[kind].most = sorted(((n, text) for text, n in tally.items()), reverse=True)[:12]
    return found


def common_text(found: dict[str, Errors]) -> list[str]:
    lines = []
    for examples, errors in found.items():
        lines.append(
            f"\nRefuted runs trained on {examples} examples that end perfect: {errors.runs}"
        )
        kinds = list(errors.counts)
        lines.append(f"{'errors, % of inputs':40}" + "".join(f"{kind:>14}" for kind in kinds))
        names = dict.fromkeys(name for kind in kinds for name in errors.counts[kind])
        for name in names:
            cells = [errors.counts[kind].get(name) for kind in kinds]
            shown = ["–" if c is None else f"{100 * c[0] / c[1]:.4g}" for c in cells]
            lines.append(f"{name:40}" + "".join(f"{text:>14}" for text in shown))
        lines.append("share of ones: mean margin, least")
        for low, (total, count, least) in sorted(errors.margins.items()):
            lines.append(f"  {low}–: {total / count:9.3g} {least:9.3g}  ({count:,.0f} inputs)")
        lines.append("strings of up to three blocks that were wrong, by strings and runs:")
        lines += [f"  {count:6d}  {text}" for count, text in errors.most]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", type=Path, nargs="+", help="folders of run folders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=int, default=ALWAYS, help="inputs per run, at most")
    parser.add_argument("--again", action="store_true", help="also verify runs that have a record")
    parser.add_argument("--no-common", action="store_true", help="only the first part")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device, began = choose_device(given.device), time.perf_counter()
    cells, refuted = verify_all(given.stores, device, given.budget, given.again)
    print(*table(cells), sep="\n")
    print(f"\n{time.perf_counter() - began:.0f} s including reading the records; {device.reason}")
    began = time.perf_counter()
    found = {} if given.no_common else common(refuted, device)
    print(*common_text(found), sep="\n")
    print(f"\n{time.perf_counter() - began:.0f} s for what wrong answers have in common")
    if given.json:
        data = {
            "budget": given.budget,
            "environment": describe_environment(device),
            "cells": [
                {"cell": name, "examples": kind} | asdict(cells[name, kind])
                for name, kind in sorted(cells, key=order)
            ],
            "common": {kind: asdict(errors) for kind, errors in found.items()},
        }
        given.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
