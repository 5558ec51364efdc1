"""Do kernels and stacked models solve equally often, where training is neither hopeless nor easy?

    python experiments/same_science.py --device cuda --store science --json same_science.json
    python experiments/same_science.py --device cuda --store science --reuse runs --minutes 9
    python experiments/same_science.py --device cuda --store science --side stacked --seeds 0-9
    python experiments/same_science.py --store science --reuse runs --no-train

Each cell is trained for the same seeds on both sides, and the successes (held-out accuracy 1.0 in
some epoch) are compared by Fisher's exact test, with Holm's correction over the cells. Two runs of
one seed start from the same weights and see the same examples; rounding makes them diverge in time.
The test treats them as independent; where they stay alike it is less likely to find a difference.
With 20 runs per side and seven cells it detects 20 successes against 12, but not against 13.

The store has a folder for each side, `kernels` and `stacked`. Any command may be stopped and run
again, and cells, sides and seeds may be trained in parts. `--reuse STORE` takes finished runs from
elsewhere, run folders or an export, for the side that their records name. Runs trained here stop
when solved, which changes neither the earlier epochs nor the success, so runs of the whole protocol
count as well. A cell is compared when both its sides have every seed: those that finish first are
the ones that succeed. A run that failed leaves its cell incomplete; its record says why. The exit
status is 1 if a cell differs, 3 if none does but one is incomplete, 2 if the command is wrong.

With `--compile`, on one GPU, the stacked models and their gradients go through `torch.compile`,
which takes less than half the time and rounds differently; the records say so. A model's first
gradients are checked against the eager ones.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ithbit.engine import loop
from ithbit.engine.device import choose_device, describe_environment
from ithbit.engine.evaluate import bce
from ithbit.engine.options import Switch, TrainingOptions
from ithbit.engine.steppers import StepperName
from ithbit.engine.steppers.stacked import StackedStepper
from ithbit.engine.training_context import Event
from ithbit.errors import IthbitError, StoreError
from ithbit.models.classifier import logits
from ithbit.models.stacked import Params
from ithbit.reporting.comparison.statistics import fisher_exact, holm
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result
from ithbit.store.status import need_runs
from ithbit.store.writing import check_writable, write_atomically
from ithbit.sweeps.runner import run_all
from ithbit.sweeps.select import parse_seeds
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable

ALPHA = 0.05
COMPILED_OFF = 1e-3  # allowed error of a gradient: above rounding, below a wrong derivative
MODELS = (
    ModelSpec("rhi", "gru", 16, n_layers=1),
    *(ModelSpec("rhi", "mamba2", 32, n_layers) for n_layers in (3, 4)),
    *(ModelSpec("rhi", "linear-causal", 32, n_layers) for n_layers in (2, 3, 4)),
    ModelSpec("lhi", "softmax-full", 64, n_layers=2),
)
SIDES: dict[StepperName, Switch] = {"kernels": "on", "stacked": "off"}
Known = dict[tuple[str, StepperName], bool]  # a run's identity and side: solved or not
Losses = Callable[[Params, TokenTable, Examples], Tensor]


class TimeIsUpError(Exception):
    """What the watcher raises to stop; the runs keep their checkpoints."""


@dataclass(frozen=True)
class Side:
    """One side's counts for a cell."""

    seeds: int
    done: int
    solved: int
    failed: int
    reused: int

    @property
    def complete(self) -> bool:
        return self.done == self.seeds

    def __str__(self) -> str:
        return f"{self.solved}/{self.done}" + ("" if self.complete else f" of {self.seeds}")


def label(model: ModelSpec) -> str:
    """A cell's name."""
    return f"{model.task}-{model.family}-n{model.n_bits}-L{model.n_layers}"


def either_way(run: RunSpec) -> list[RunSpec]:
    """The run stopped when solved, and the run of the whole protocol: one solves if the other
    does."""
    protocols = [replace(run.protocol, stop_when_solved=stop) for stop in (True, False)]
    return [replace(run, protocol=protocol) for protocol in protocols]


def recorded(stores: Sequence[Path], runs: Sequence[RunSpec]) -> Known:
    """These runs in other stores, by identity and side: solved or not."""
    known: Known = {}
    for store in reversed(stores):  # the first store named takes precedence
        try:
            known |= exported(store) if any(store.glob("runs.*")) else in_folders(store, runs)
        except StoreError as error:
            raise IthbitError(f"--reuse takes run folders or an export: {error}") from error
    return known


def exported(store: Path) -> Known:
    """All finished runs of an export."""
    from ithbit.store.frame import load_rows  # needs polars, which a bare GPU machine may lack

    rows = load_rows(store).rows.filter(status="finished").iter_rows(named=True)
    return {(row["run_id"], side_in(json.loads(row["environment"]))): row["solved"] for row in rows}


def in_folders(store: Path, runs: Sequence[RunSpec]) -> Known:
    """The given runs that are finished in a store."""
    need_runs(store)
    folders = [RunFolder(store, one) for run in runs for one in either_way(run)]
    results = [found for folder in folders if (found := folder.result()) is not None]
    return {(one.spec.run_id, side_in(one.environment)): one.solved for one in results}


def side_in(environment: dict[str, Any]) -> StepperName:
    """The side that a record names; records older than the kernels name none."""
    return environment.get("path", "stacked")


def reused(run: RunSpec, side: StepperName, known: Known) -> bool | None:
    """Whether a run solved on this side; None if no other store has it."""
    found = [known[one.run_id, side] for one in either_way(run) if (one.run_id, side) in known]
    return found[0] if found else None


def side_of(runs: Sequence[RunSpec], side: StepperName, store: Path, known: Known) -> Side:
    """The counts for one side of a cell."""
    own = [RunFolder(store / side, run).outcome() for run in runs]
    for found in own:
        if isinstance(found, Result):
            assert found.stepper == side, f"{found.spec.name} is not of {side}"
    elsewhere = [
        reused(run, side, known) for run, found in zip(runs, own, strict=True) if found is None
    ]
    others = [solved for solved in elsewhere if solved is not None]
    solved = [found.solved for found in own if isinstance(found, Result)] + others
    failed = sum(isinstance(found, Failure) for found in own)
    return Side(len(runs), len(solved), sum(solved), failed, len(others))


def compared(cells: dict[str, dict[StepperName, Side]]) -> list[dict[str, Any]]:
    """One row per cell: the counts and, for complete cells, p and its adjusted value."""
    whole = [name for name, sides in cells.items() if all(s.complete for s in sides.values())]
    p_values = [
        fisher_exact(*((side.solved, side.done) for side in cells[name].values())) for name in whole
    ]
    tests = dict(zip(whole, zip(p_values, holm(p_values), strict=True), strict=True))
    rows = []
    for name, sides in cells.items():
        p, adjusted = tests.get(name, (None, None))
        counts = {side: asdict(count) for side, count in sides.items()}
        differs = None if adjusted is None else adjusted <= ALPHA
        rows.append({"cell": name, **counts, "p": p, "p_holm": adjusted, "differs": differs})
    return rows


def compile_stacked(backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the stacked models' losses from now on, once per model, for any number of runs.

    An epoch's last batch is not compiled: it is one step, and would need another compilation.
    """
    eager, describe = StackedStepper.losses, loop.describe_environment
    compiled: dict[tuple[ModelSpec, bool], Losses] = {}  # a single run is compiled separately
    torch._dynamo.config.recompile_limit = 64  # all models go through one function

    def losses(self: StackedStepper, examples: Examples) -> Tensor:
        model, several = self.model, len(examples.index) > 1
        if examples.index.shape[1] != self.protocol.batch_size:
            return eager(self, examples)
        if several:
            for tensor in (*self.params.values(), examples.bits, examples.index):
                torch._dynamo.mark_dynamic(tensor, 0)
        if (model, several) not in compiled:

            def of_model(params: Params, table: TokenTable, examples: Examples) -> Tensor:
                return bce(logits(params, model, table, examples), examples.answer).mean(1)

            new = torch.compile(of_model, dynamic=False, backend=backend)
            found = new(self.params, self.table, examples)
            check_gradients(model, list(self.params.values()), found, eager(self, examples))
            compiled[model, several] = new
        return compiled[model, several](self.params, self.table, examples)

    StackedStepper.losses = losses  # type: ignore[method-assign]
    loop.describe_environment = lambda *of: describe(*of) | {"compiled": str(backend)}


def check_gradients(model: ModelSpec, params: list[Tensor], found: Tensor, eager: Tensor) -> None:
    """Raise IthbitError if compiled gradients differ from the eager ones: compilers have bugs."""
    both = [
        torch.autograd.grad(loss.sum(), params, materialize_grads=True) for loss in (found, eager)
    ]
    off = [  # relative to the largest number in each tensor
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item()
        for a, b in zip(*both, strict=True)
    ]
    if not all(one <= COMPILED_OFF for one in off):
        said = f"the compiled gradients of {label(model)} are {max(off):.0e} off"
        raise IthbitError(f"{said}; leave out --compile")


def train(
    runs: Sequence[RunSpec],
    side: StepperName,
    store: Path,
    known: Known,
    device: str,
    deadline: float,
) -> None:
    """Train the runs that no store has, until the deadline."""
    todo = [run for run in runs if reused(run, side, known) is None]

    def watch(event: Event) -> None:
        if isinstance(event.what, Result):
            result = "solved" if event.what.solved else f"accuracy {event.what.max_accuracy:.3f}"
            print(f"{side}: {event.run.name}: {result}, {event.what.epochs} epochs", flush=True)
        elif not isinstance(event.what, Epoch):
            print(f"{side}: {event.run.name}: {event.what}", flush=True)
        if time.monotonic() > deadline:
            raise TimeIsUpError

    if todo and time.monotonic() < deadline:
        run_all(todo, store / side, TrainingOptions(device, kernels=SIDES[side]), watch)


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [label(model) for model in MODELS]
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", default="0-19", help="such as 0-19 or 0,3,8-9")
    parser.add_argument("--store", type=Path, default=Path("science"))
    parser.add_argument("--reuse", type=Path, action="append", default=[], metavar="STORE")
    parser.add_argument("--cell", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--side", choices=list(SIDES), help="train only this side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop training then")
    parser.add_argument("--max-epochs", type=int, default=Protocol().max_epochs)
    parser.add_argument("--compile", action="store_true", help="train stacked models compiled")
    parser.add_argument("--no-train", action="store_true", help="compare what there is")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Train, compare, print, write."""
    asked = arguments(argv)
    if not asked.minutes > 0:
        raise IthbitError(f"--minutes must be above 0, got {asked.minutes}")
    if asked.json:
        check_writable(asked.json)
    deadline = time.monotonic() + 60 * asked.minutes
    protocol = Protocol(max_epochs=asked.max_epochs, stop_when_solved=True)
    if asked.compile and torch.cuda.device_count() != 1:
        raise IthbitError(
            "--compile is for one CUDA GPU: elsewhere workers train, not this process"
        )
    models = [model for model in MODELS if asked.cell is None or label(model) in asked.cell]
    seeds = parse_seeds(asked.seeds)
    cells = {label(m): [RunSpec(m, seed, protocol) for seed in seeds] for m in models}
    everything = [run for runs in cells.values() for run in runs]
    known = recorded(asked.reuse, everything)
    if not asked.no_train:
        try:
            for side in [asked.side] if asked.side else SIDES:
                if side == "stacked" and asked.compile:
                    compile_stacked()
                train(everything, side, asked.store, known, asked.device, deadline)
        except TimeIsUpError:
            print("time is up; run the same command again to continue")
    sides = {
        name: {side: side_of(runs, side, asked.store, known) for side in SIDES}
        for name, runs in cells.items()
    }
    if not any(side.done or side.failed for cell in sides.values() for side in cell.values()):
        raise IthbitError("no store has any of these runs: train some, or name them with --reuse")
    rows = compared(sides)
    print(f"{'cell':<24} {'kernels':>12} {'stacked':>12} {'p':>7} {'Holm':>7}")
    for row in rows:
        counts = [f"{side!s:>12}" for side in sides[row["cell"]].values()]
        p = ["      –" if row[key] is None else f"{row[key]:7.3f}" for key in ("p", "p_holm")]
        print(f"{row['cell']:<24} {' '.join(counts)} {' '.join(p)}")
    if asked.json:
        # The machine of the comparison; each run's record names the one it was trained on.
        machine = describe_environment(choose_device("auto"))
        settings = {"seeds": seeds, "alpha": ALPHA, "max_epochs": asked.max_epochs}
        whole = {"settings": settings, "environment": machine, "cells": rows}
        write_atomically(asked.json, (json.dumps(whole, indent=1) + "\n").encode())
    if any(row["differs"] for row in rows):
        return 1
    return 3 if any(row["differs"] is None for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except IthbitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
