"""The report on a user's layer: what it is, what it keeps, what theory says, what training finds.

In the project's terms: causality and rank are *observed* at random points, the bound is *proved*
for the state that it names, training is *observed*.
"""

import hashlib
import json
import math
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ithbit.engine.device import Device, choose_device, one_thread
from ithbit.engine.how import Event
from ithbit.engine.memory import need_memory
from ithbit.errors import LayerError, SpecError
from ithbit.families import FAMILIES, TASKS, Task, family_named
from ithbit.models.classifier import n_parameters
from ithbit.models.layer_source import FAILURES, Layer, note, said
from ithbit.models.own_layer import apply, off_in_evaluation, why_not_stacked
from ithbit.probe.behaviour import Behaviour, behaviour, usable
from ithbit.probe.families import Count, FamilyRow, family_rows
from ithbit.probe.rank import CausalRank, causal_rank
from ithbit.shown import Shown, counted
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell, plain
from ithbit.store.folder import RunFolder
from ithbit.store.probed import ProbedCell, ProbedRun, ProbeEnd
from ithbit.store.reading import read_verification
from ithbit.store.records import Failure, Result
from ithbit.store.status import check_store
from ithbit.store.writing import write_text
from ithbit.sweep.runner import run_all
from ithbit.theory.bounds.state import StateBound, state_bounds
from ithbit.verify.verify import verify_run

_FEWEST_ROWS = 32  # of the Jacobian, each as long as what it is measured on
_EXHAUSTIVE = 1 << 14  # up to this many inputs, all are tried after training: n up to 10
_PROTOCOL = Protocol()


@dataclass(frozen=True)
class Plan:
    """What to probe, checked on construction."""

    width: int = 16
    lengths: tuple[int, ...] = (8,)
    layers: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rank_length: int = 32
    train: bool = True
    protocol: Protocol = _PROTOCOL
    minutes: float = math.inf  # for everything; runs not done by then keep their state

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


@dataclass(frozen=True, repr=False)
class ProbeReport(Shown):
    """Everything that was found. `runs` and `families` are empty if nothing was trained."""

    layer: str
    family: str
    code: str
    plan: Plan
    behaviour: Behaviour
    rank: CausalRank
    bounds: tuple[StateBound, ...]
    remarks: tuple[str, ...]
    runs: tuple[ProbedRun, ...]
    families: tuple[FamilyRow, ...]

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Lengths and depths that were trained, in order."""
        return [(n, depth) for n in self.plan.lengths for depth in self.plan.layers]

    def of(self, task: Task, n_bits: int, n_layers: int) -> list[ProbedRun]:
        """The layer's runs of one cell."""
        cell = (task, n_bits, n_layers)
        cells = ((run, run.cell) for run in self.runs)
        return [run for run, c in cells if (c.task, c.n_bits, c.n_layers) == cell]

    def counts(self, task: Task) -> list[tuple[str, list[Count | None]]]:
        """Successes in every cell: of the layer, then of the six families."""
        runs = [self.of(task, *cell) for cell in self.cells]
        found = {(r.family, r.n_layers): r.counts for r in self.families if r.task == task}
        own = [Count(sum(run.solved for run in r), len(r), "ours") if r else None for r in runs]
        return [
            (self.layer, own),
            *(
                (family.label, [found[name, depth][n] for n, depth in self.cells])
                for name, family in FAMILIES.items()
            ),
        ]

    def best(self, task: Task, n_bits: int, n_layers: int) -> float | None:
        """Best held-out accuracy, averaged over the runs of a cell; None if there are none."""
        runs = self.of(task, n_bits, n_layers)
        return statistics.mean(run.max_accuracy for run in runs) if runs else None

    def parts(self) -> Iterator[str]:
        from ithbit.probe.text import report_text

        yield report_text(self).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rank = self.rank
        return {
            "schema": 1,
            "layer": self.layer,
            "family": self.family,
            "code": self.code,
            "width": self.plan.width,
            "lengths": list(self.plan.lengths),
            "layers": list(self.plan.layers),
            "behaviour": asdict(self.behaviour)
            | {
                "causal": self.behaviour.leak is None,
                "sentence": self.behaviour.sentence(self.layer),
            },
            "causal_rank": {
                "ranks": list(rank.ranks),
                "measured": list(rank.measured),
                "settled": rank.settled,
                "singular_values": list(rank.values),  # at the last k, in units of the noise
                "state": rank.state,
                "tokens": rank.n_tokens,
                "dtype": rank.dtype,
                "fault": rank.fault,
                "sentence": rank.sentence(),
            },
            "bounds": [asdict(bound) | {"n_star": bound.n_star} for bound in self.bounds],
            "remarks": list(self.remarks),
            "protocol": plain(self.plan.protocol),
            "runs": [
                {"run_id": run.run_id, **asdict(run), "solved": run.solved} for run in self.runs
            ],
            "families": [asdict(row) for row in self.families],
        }


def probe_layer(
    layer: Layer,
    plan: Plan,
    store: Path,
    device_name: str = "auto",
    workers: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> ProbeReport:
    """Probe a layer; raise `LayerError` with the reason if that is impossible."""
    until = time.monotonic() + 60 * plan.minutes
    tokens = max(_FEWEST_ROWS * plan.rank_length, *plan.lengths)
    what, advice = f"probing {layer.name}", "take a smaller n, rank length or width"
    need_memory(what, 4 * plan.width * tokens, advice)
    device = choose_device(device_name)
    with one_thread():
        # Before any training: checks that take seconds and may rule the layer out.
        module = usable(layer, plan.width, max(plan.lengths) + 2, device.torch)
        seen = behaviour(module, plan.width, max(plan.lengths) + 2)
        off = off_in_evaluation(layer, plan.width)
        remarks = [] if off is None else [off]
        rank = _rank(module, layer.name, plan, remarks)
    if plan.train:  # else the report follows at once
        tell(seen.sentence(layer.name))
        tell(f"causal rank: {rank.sentence()}")
    declared, causal = seen.declared_state, seen.leak is None
    remarks += _declared(layer.name, declared, rank)
    bounds = state_bounds(rank.state, declared, causal, list(plan.layers))
    runs: list[ProbedRun] = []
    families: list[FamilyRow] = []
    if plan.train and seen.ignores_input:
        remarks.append("not trained: a layer that ignores its input can only guess")
    elif plan.train:
        check_store(store)
        with tempfile.TemporaryDirectory() as for_now:
            trained, where = layer, store
            if not layer.code:
                remarks.append("the layer's code cannot be read, so its runs are not kept")
                trained, where = note(replace(layer, digest=secrets.token_hex(32))), Path(for_now)
            runs = _train(trained, plan, where, device_name, workers, remarks, tell, until)
        families = family_rows(store, plan.width, plan.lengths, plan.layers, plan.protocol)
    report = ProbeReport(
        layer.name,
        layer.family,
        layer.code,
        plan,
        seen,
        rank,
        tuple(bounds),
        tuple(remarks),
        tuple(runs),
        tuple(families),
    )
    if runs and layer.code:
        # The latest report on the layer, for the store's report page.
        settings = json.dumps(plain(plan.protocol), sort_keys=True)
        digest = hashlib.sha256((layer.digest + settings).encode()).hexdigest()[:12]
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in layer.name)
        path = store / "probe" / f"{name}-{digest}" / "report.json"
        write_text(path, json.dumps(report.to_json(), indent=1) + "\n")
    return report


def _rank(module: torch.nn.Module, name: str, plan: Plan, remarks: list[str]) -> CausalRank:
    n, width = plan.rank_length, plan.width
    try:
        return causal_rank(module, width, n)
    except FAILURES:
        # A layer made for one length: near the end, few outputs are left to show what is kept.
        short = max(plan.lengths) + 1
        remarks.append(
            f"the layer refuses {2 * n - 1} tokens, so its rank is measured on only {short} and "
            "is limited by the outputs that are left"
        )
    try:
        return causal_rank(module, width, max(plan.lengths), n_tokens=short)
    except FAILURES as error:
        shorter = torch.zeros(1, short, width).to(next(module.parameters(), torch.zeros(1)))
        apply(module, shorter, name)  # if it takes the length, the fault is in the derivative
        raise LayerError(f"{name} cannot be differentiated: {said(error)}") from error


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
    tell: Callable[[str], None],
    until: float,
) -> list[ProbedRun]:
    """Train the layer's runs like any others; return each as the store has it afterwards."""
    device = choose_device(device_name)
    models = [
        ModelSpec(task, layer.family, n, depth, plan.width, code=layer.code)
        for task in TASKS
        for n in plan.lengths
        for depth in plan.layers
    ]
    runs = [run for model in models for run in cell(model, plan.protocol, plan.seeds)]
    why = why_not_stacked(models[0], device.torch)
    if why is not None:
        remarks.append(f"seeds are trained one by one, not in a stack: {why}")
        tell(remarks[-1])

    def watch(event: Event) -> None:
        if isinstance(event.what, Result):
            first = event.what.first_solved_epoch
            how = f"solved in epoch {first}" if event.what.solved else "not solved"
            tell(f"{event.run.name}: {how}, best {event.what.max_accuracy:.4f}")
        elif isinstance(event.what, Failure):
            tell(f"{event.run.name} failed: {event.what.error}")

    left = None if math.isinf(until) else max(until - time.monotonic(), 0.0) / 60
    run_all(runs, store, device_name, workers, watch, minutes=left)
    outcomes = [RunFolder(store, run).outcome() for run in runs]
    found = [_as_stored(store, *each, device) for each in zip(runs, outcomes, strict=True)]
    failures = [done for done in outcomes if isinstance(done, Failure)]
    if diverged := sum(done.diverged for done in failures):
        remarks.append(f"{counted(diverged, 'run')} diverged: the loss was no longer finite")
    errors = Counter(done.error for done in failures if not done.diverged)
    remarks += [
        f"{counted(count, 'run')} failed, not counted: {error}" for error, count in errors.items()
    ]
    remarks += _cut_short(found, plan)
    return [run for run in found if run.epochs and run.stopped_by != "failed"]


def _as_stored(
    store: Path, spec: RunSpec, done: Result | Failure | None, device: Device
) -> ProbedRun:
    """A run as the store has it; if it is solved and has few inputs, all of them are tried."""
    folder = RunFolder(store, spec)
    history, verdict, n = folder.history(), None, spec.model.n_bits
    solved = [epoch.epoch for epoch in history if epoch.held_out_accuracy == 1.0]
    if isinstance(done, Result) and solved and n << n <= _EXHAUSTIVE:
        record = read_verification(str(folder.path))
        verdict = (record.found if record else verify_run(folder.path, device)).verdict
    model, epochs = spec.model, len(history)
    ended: ProbeEnd = "time"
    if isinstance(done, Result):
        ended = done.stopped_by
    elif done is not None:
        epochs, ended = done.epoch, "not finite" if done.diverged else "failed"
    return ProbedRun(
        family_named(model.family).label,
        ProbedCell(model.task, n, model.n_layers, model.d_model),
        spec.seed,
        epochs,
        ended,
        max((epoch.held_out_accuracy for epoch in history), default=0.0),
        solved[0] if solved else None,
        n_parameters(model),
        sum(epoch.seconds for epoch in history),
        verdict,
        spec.run_id,
    )


def _cut_short(runs: list[ProbedRun], plan: Plan) -> list[str]:
    epochs = [run.epochs for run in runs if run.stopped_by == "time"]
    if not epochs:
        return []
    least, most = min(epochs), max(epochs)
    which = f"epoch {least}" if least == most else f"epochs {least} to {most}"
    return [
        f"{counted(len(epochs), 'run')} stopped in {which} of {plan.protocol.max_epochs}, when the "
        f"{plan.minutes:g} minutes were over; no success so far says little. Their state is kept: "
        "the same command continues them"
    ]
