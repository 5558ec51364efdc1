"""The report on a user's layer: what it is, what it keeps, what theory says, what training finds.

In the words of the whole project: causality and rank are *observed* at random points, the bound is
*proved* of the state that it names, training is *observed*.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ithbit.engine.device import choose_device
from ithbit.engine.folder import check_store
from ithbit.engine.spec import Protocol
from ithbit.errors import IthbitError, LayerError, SpecError
from ithbit.families import TASKS
from ithbit.probe.behaviour import Behaviour, behaviour, usable
from ithbit.probe.bound import StateBound, state_bounds
from ithbit.probe.families import FamilyRow, family_rows
from ithbit.probe.layer import FAILURES, Layer
from ithbit.probe.model import Cell, why_not_stacked
from ithbit.probe.rank import CausalRank, causal_rank
from ithbit.probe.train import Place, ProbeRun, Work
from ithbit.probe.turns import train_in_turns
from ithbit.sweep.local import usable_cores

RANK_LENGTH = 32
_PROTOCOL = Protocol()


@dataclass(frozen=True)
class Plan:
    """What to probe, checked on construction."""

    width: int = 16
    lengths: tuple[int, ...] = (8,)
    layers: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rank_length: int = RANK_LENGTH
    train: bool = True
    protocol: Protocol = _PROTOCOL
    minutes: float = math.inf  # for everything; runs not done by then end where they are

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise SpecError(f"minutes must be more than 0, got {self.minutes:g}")
        for name, values in (("n", self.lengths), ("layers", self.layers)):
            if not values or min(values) < 1:
                raise SpecError(f"{name} must be numbers from 1, got {list(values)}")
        if self.width < 1 or self.rank_length < 2:
            raise SpecError(
                f"the width must be at least 1 and the rank length at least 2, got {self.width} "
                f"and {self.rank_length}"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise SpecError(f"give every seed once, and at least one, got {list(self.seeds)}")


@dataclass(frozen=True)
class ProbeReport:
    """All that was found. `runs` and `families` are empty where nothing was trained."""

    layer: str
    plan: Plan
    behaviour: Behaviour
    rank: CausalRank
    bounds: tuple[StateBound, ...]
    remarks: tuple[str, ...]
    runs: tuple[ProbeRun, ...]
    families: tuple[FamilyRow, ...]

    def count(self, cell: Cell) -> tuple[int, int]:
        """Successes and runs of the layer in a cell."""
        runs = [run for run in self.runs if run.cell == cell]
        return sum(run.solved for run in runs), len(runs)

    def best(self, cell: Cell) -> float:
        """Greatest held-out accuracy, mean over the runs of a cell."""
        return statistics.mean(run.max_accuracy for run in self.runs if run.cell == cell)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rank = self.rank
        return {
            "schema": 1,
            "layer": self.layer,
            "width": self.plan.width,
            "behaviour": asdict(self.behaviour) | {"causal": self.behaviour.leak is None},
            "causal_rank": {
                "ranks": list(rank.ranks),
                "state": rank.state,
                "tokens": rank.n_tokens,
                "dtype": rank.dtype,
                "fault": rank.fault,
                "sentence": rank.sentence(),
            },
            "bounds": [asdict(bound) | {"n_star": bound.n_star} for bound in self.bounds],
            "remarks": list(self.remarks),
            "protocol": asdict(self.plan.protocol),
            "runs": [run.to_json() for run in self.runs],
            "families": [asdict(row) for row in self.families],
        }


def probe_layer(
    layer: Layer,
    plan: Plan,
    store: Path,
    device_name: str = "auto",
    workers: int | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> ProbeReport:
    """Probe a layer; a `LayerError` says why where it cannot be."""
    with choose_device(device_name).one_thread():
        return _probe_layer(layer, plan, store, device_name, workers, said)


def _probe_layer(
    layer: Layer,
    plan: Plan,
    store: Path,
    device_name: str,
    workers: int | None,
    said: Callable[[str], None],
) -> ProbeReport:
    until = time.monotonic() + 60 * plan.minutes
    device = choose_device(device_name).torch
    # Before any training: what takes seconds and may end the matter.
    module = usable(layer, plan.width, max(plan.lengths) + 2, device)
    seen = behaviour(module, plan.width, max(plan.lengths) + 2)
    remarks: list[str] = []
    rank = _rank(module, plan, remarks)
    if plan.train:  # else the report follows at once
        said(seen.sentence(layer.name))
        said(f"causal rank: {rank.sentence()}")
    declared, causal = seen.declared_state, seen.leak is None
    remarks += _declared(layer.name, declared, rank)
    bounds = state_bounds(rank.state, declared, causal, list(plan.layers))
    runs: list[ProbeRun] = []
    families: list[FamilyRow] = []
    if plan.train and seen.ignores_input:
        remarks.append("not trained: a layer that ignores its input can only guess")
    elif plan.train:
        check_store(store)
        runs = _train(layer, plan, store, device_name, workers, remarks, said, until)
        remarks += _cut_short(runs, plan)
        families = family_rows(
            store, plan.width, list(plan.lengths), list(plan.layers), plan.protocol
        )
    report = ProbeReport(
        layer.name,
        plan,
        seen,
        rank,
        tuple(bounds),
        tuple(remarks),
        tuple(runs),
        tuple(families),
    )
    place = Place.of(store, layer, plan.protocol)
    if runs and place is not None:
        place.keep_report(report.to_json())
    return report


def _rank(module: torch.nn.Module, plan: Plan, remarks: list[str]) -> CausalRank:
    n, width = plan.rank_length, plan.width
    try:
        return causal_rank(module, width, n)
    except FAILURES:
        # A layer made for one length: fewer outputs are left to show what is kept near the end.
        short = max(plan.lengths) + 1
        remarks.append(
            f"the layer refuses {3 * n} tokens, so its rank is measured on {short} alone and is "
            "limited by the outputs that are left"
        )
    try:
        return causal_rank(module, width, max(plan.lengths), n_tokens=short)
    except FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LayerError(f"the layer cannot be differentiated: {lines[0]}") from error


def _declared(name: str, declared: int | None, rank: CausalRank) -> list[str]:
    if declared is None:
        return []
    if rank.fault is not None:
        return [f"{name} declares a state of {declared} numbers, which was not measured"]
    most = max(rank.ranks)
    if most > declared:
        return [
            f"{name} declares a state of {declared} numbers, but {most} directions of the past get "
            "through: the state is larger than declared"
        ]
    said = "as measured" if rank.state == declared else f"{most} seen"
    return [f"{name} declares a state of {declared} numbers, {said}"]


def _train(
    layer: Layer,
    plan: Plan,
    store: Path,
    device_name: str,
    workers: int | None,
    remarks: list[str],
    said: Callable[[str], None],
    until: float,
) -> list[ProbeRun]:
    device = choose_device(device_name).torch
    cells = [
        Cell(task, n, depth, plan.width)
        for task in TASKS
        for n in plan.lengths
        for depth in plan.layers
    ]
    why = why_not_stacked(layer, cells[0], device)
    if why is not None:
        remarks.append(f"seeds are trained one by one, not in a stack: {why}")
        said(remarks[-1])
    place = Place.of(store, layer, plan.protocol)
    if place is None:
        remarks.append("the layer's code cannot be read, so its runs are not kept")
    n_workers = workers or (1 if device.type == "cuda" else usable_cores())
    n_workers = n_workers if layer.source is not None else 1
    seeds = list(plan.seeds)
    # A stack a worker: the cores share every cell, whichever of them turns out to be hard.
    n_shares = min(n_workers, len(seeds)) if why is None else len(seeds)
    shares = [seeds[k::n_shares] for k in range(n_shares)]
    # The longest first: nothing long is left for the end.
    work = [
        Work(cell, tuple(share))
        for cell in sorted(cells, key=lambda cell: -cell.n_layers * cell.n_bits)
        for share in shares
    ]

    def tell(run: ProbeRun) -> None:
        how = f"solved in epoch {run.first_solved_epoch}" if run.solved else "not solved"
        said(f"{run.cell.name} seed {run.seed}: {how}, best {run.max_accuracy:.4f}")

    found: list[ProbeRun] = []
    try:
        for run in train_in_turns(
            layer, work, plan.protocol, place, device_name, why is None, n_workers, until
        ):
            tell(run)
            found.append(run)
    except (IthbitError, OSError):
        raise
    except FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LayerError(
            f"{layer.name} cannot be trained: {type(error).__name__}: {lines[0]}"
        ) from error
    order = {cell: k for k, cell in enumerate(cells)}
    return sorted(found, key=lambda run: (order[run.cell], run.seed))


def _cut_short(runs: list[ProbeRun], plan: Plan) -> list[str]:
    epochs = [run.epochs for run in runs if run.stopped_by == "time"]
    if not epochs:
        return []
    which = (
        f"epoch {min(epochs)}"
        if len(set(epochs)) == 1
        else f"epochs {min(epochs)} to {max(epochs)}"
    )
    return [
        f"{len(epochs)} runs were ended in {which} of {plan.protocol.max_epochs}, when the "
        f"{plan.minutes:g} minutes were over, and are not kept; that they did not succeed says "
        "little, and --minutes gives them more"
    ]
