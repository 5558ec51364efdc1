"""Probe a user's layer: what it does before any training, then its runs, and the six families of
the same sizes beside them."""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import torch

from ithbit.contract.fingerprint import Fingerprint, fingerprint
from ithbit.contract.layer_facts import LayerFacts, layer_facts, usable
from ithbit.contract.rank import CausalRank, causal_rank
from ithbit.contract.report import Count, FamilyRow, ProbePlan, ProbeReport
from ithbit.display import pluralize, share_text
from ithbit.engine.device import Device, one_thread
from ithbit.engine.memory import need_memory
from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import Event
from ithbit.errors import LayerError, StoreError
from ithbit.families import FAMILIES, TASKS, family_named
from ithbit.models.classifier import n_parameters
from ithbit.models.layer_source import LayerSource
from ithbit.models.own_layer import apply, off_in_evaluation, stacking_obstacle
from ithbit.models.user_code import FAILURES, error_text
from ithbit.published import RUNS_PER_CELL, published
from ithbit.spec import RunSpec, plain
from ithbit.store.folder import RunFolder
from ithbit.store.frame import load_rows
from ithbit.store.probed import Ended, ProbedCell, ProbedRun
from ithbit.store.reading import read_verification
from ithbit.store.records import Epoch, Failure, Result
from ithbit.store.status import check_store
from ithbit.store.writing import write_text
from ithbit.sweeps.runner import run_all
from ithbit.theory.bounds.state import state_bounds
from ithbit.verification.run_verification import verify_run

_FEWEST_ROWS = 32  # of the Jacobian, each as long as what it is measured on
_EXHAUSTIVE = 1 << 14  # up to this many inputs, all are tried after training: n up to 10
_PAPER_WIDTH = 16
_EVERY = 10  # seconds between two lines of progress


def probe_layer(
    layer: LayerSource,
    plan: ProbePlan,
    store: Path,
    options: TrainingOptions,
    tell: Callable[[str], None] = lambda text: None,
) -> ProbeReport:
    """Probe a layer; raise `LayerError` with the reason if that is impossible."""
    until = time.monotonic() + 60 * plan.minutes
    tokens = max(_FEWEST_ROWS * plan.rank_length, *plan.lengths)
    what, advice = f"probing {layer.name}", "take a smaller n, rank length or width"
    need_memory(what, 4 * plan.width * tokens, advice)
    device = options.chosen_device
    with one_thread():
        # Before any training: checks that take seconds and may rule the layer out.
        n_tokens = max(plan.lengths) + 2
        module = usable(layer, plan.width, n_tokens, device.torch)
        seen = layer_facts(layer, module, plan.width, n_tokens)
        off = off_in_evaluation(layer, plan.width)
        remarks = [] if off is None else [off]
        rank = _measured_rank(layer, module, seen, plan, remarks)
        one_output = _fingerprint(module, rank, plan)
    if plan.train:  # else the report follows at once
        tell(seen.sentence(layer.name))
        tell(f"causal rank: {rank.sentence()}")
    declared = seen.declared_state
    remarks += _declared(layer.name, declared, rank)
    bounds = state_bounds(rank.state, declared, seen.obstacle is None, list(plan.layers))
    runs: list[ProbedRun] = []
    families: list[FamilyRow] = []
    if plan.train and seen.ignores_input:
        remarks.append("not trained: a layer that ignores its input can only guess")
    elif plan.train:
        check_store(store)
        if layer.source is None:
            remarks.append(
                "a layer without a file cannot be resumed: the next probe trains it again"
            )
        runs = _train(layer, plan, store, options, remarks, tell, until)
        families = family_rows(store, plan)
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
        one_output,
    )
    if runs:
        # The latest report on the layer, for the store's report page.
        settings = json.dumps(plain(plan.protocol), sort_keys=True)
        digest = hashlib.sha256((layer.digest + settings).encode()).hexdigest()[:12]
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in layer.name)
        path = store / "probe" / f"{name}-{digest}" / "report.json"
        write_text(path, json.dumps(report.to_json(), indent=1) + "\n")
    return report


def _measured_rank(
    layer: LayerSource,
    module: torch.nn.Module,
    seen: LayerFacts,
    plan: ProbePlan,
    remarks: list[str],
) -> CausalRank:
    """The rank, in float32 if casts inside spoil the derivative in float64; of a layer that does
    not keep causal and carries it is no measure."""
    rank = _rank(module, layer.name, plan, remarks)
    parts = any("less precision" in remark for remark in seen.contract.remarks)
    if rank.fault is not None and rank.dtype == "float64" and parts:
        device = next(module.parameters(), torch.zeros(1)).device
        single = _rank(layer.build(plan.width).to(device), layer.name, plan, remarks)
        if single.fault is None:
            rank = single
            remarks.append("it computes in float32 inside, so its rank is measured in float32")
    return rank if seen.obstacle is None else replace(rank, fault=seen.obstacle)


def _fingerprint(module: torch.nn.Module, rank: CausalRank, plan: ProbePlan) -> Fingerprint | None:
    if rank.fault is not None:
        return None
    if rank.dtype == "float32":
        module = module.float()
    with suppress(*FAILURES):
        return fingerprint(module, plan.width, min(rank.n, plan.rank_length))
    return None


def _rank(module: torch.nn.Module, name: str, plan: ProbePlan, remarks: list[str]) -> CausalRank:
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
        raise LayerError(f"{name} cannot be differentiated: {error_text(error)}") from error


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
    error_text = "as measured" if rank.state == declared else f"{most} seen"
    return [f"{name} declares a state of {declared} numbers, {error_text}"]


def _train(
    layer: LayerSource,
    plan: ProbePlan,
    store: Path,
    options: TrainingOptions,
    remarks: list[str],
    tell: Callable[[str], None],
    until: float,
) -> list[ProbedRun]:
    """Train the layer's runs like any others; return each as the store has it afterwards."""
    device = options.chosen_device
    runs = plan.runs(layer.family, code=layer.code)
    why = stacking_obstacle(runs[0].model, device.torch)
    if why is not None:
        remarks.append(f"seeds are trained one by one, not in a stack: {why}")
        tell(remarks[-1])

    ended, shown = 0, time.monotonic()

    def watch(event: Event) -> None:
        nonlocal ended, shown
        ended += isinstance(event.what, Result | Failure)
        if isinstance(event.what, Epoch) and time.monotonic() - shown > _EVERY:
            shown = time.monotonic()
            tell(f"{ended} of {len(runs)} runs ended; {event.run.name}: epoch {event.what.epoch}")
        if isinstance(event.what, Result):
            first = event.what.first_solved_epoch
            how = f"solved in epoch {first}" if event.what.solved else "not solved"
            tell(f"{event.run.name}: {how}, best {share_text(event.what.max_accuracy)}")
        elif isinstance(event.what, Failure):
            tell(f"{event.run.name} failed: {event.what.error}")

    minutes = None if math.isinf(until) else max(until - time.monotonic(), 0.0) / 60
    run_all(runs, store, replace(options, minutes=minutes), watch)
    outcomes = [RunFolder(store, run).outcome() for run in runs]
    found = [_as_stored(store, *each, device) for each in zip(runs, outcomes, strict=True)]
    failures = [done for done in outcomes if isinstance(done, Failure)]
    if diverged := sum(done.diverged for done in failures):
        remarks.append(f"{pluralize(diverged, 'run')} diverged: the loss was no longer finite")
    errors = Counter(done.error for done in failures if not done.diverged)
    remarks += [
        f"{pluralize(count, 'run')} failed, not counted: {error}" for error, count in errors.items()
    ]
    remarks += _cut_short(found, plan)
    return [run for run in found if run.epochs and run.stopped_by != "failed"]


def _as_stored(
    store: Path, spec: RunSpec, done: Result | Failure | None, device: Device
) -> ProbedRun:
    """A run as the store has it; if it is solved and has few inputs, all of them are tried."""
    folder, model, n = RunFolder(store, spec), spec.model, spec.model.n_bits
    history, verdict = folder.history(), None
    solved = [epoch.epoch for epoch in history if epoch.held_out_accuracy == 1.0]
    if isinstance(done, Result) and solved and n << n <= _EXHAUSTIVE:
        record = read_verification(str(folder.path))
        verdict = (record.found if record else verify_run(folder.path, device)).verdict
    epochs = len(history)
    ended: Ended = "time"
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


def _cut_short(runs: list[ProbedRun], plan: ProbePlan) -> list[str]:
    epochs = [run.epochs for run in runs if run.stopped_by == "time"]
    if not epochs:
        return []
    least, most = min(epochs), max(epochs)
    which = f"epoch {least}" if least == most else f"epochs {least} to {most}"
    return [
        f"{pluralize(len(epochs), 'run')} stopped in {which} of {plan.protocol.max_epochs}, when "
        f"the {plan.minutes:g} minutes were over; no success so far says little. Their state is "
        "kept: the same command continues them"
    ]


def family_rows(store: Path, plan: ProbePlan) -> list[FamilyRow]:
    """The store's counts of the six families under the plan's protocol; published counts for the
    rest.

    A run that stopped at its first perfect epoch counts like any other: the criterion is the same.
    Published counts appear only at the paper's width, 16.
    """
    counts = {
        (row.task, family, row.n_layers, n): Count(k, RUNS_PER_CELL, "published")
        for row in published().successes
        for family in row.families
        for n, k in row.successes.items()
        if plan.width == _PAPER_WIDTH
    } | _counts(store, plan)
    return [
        FamilyRow(
            task, family, depth, {n: counts.get((task, family, depth, n)) for n in plan.lengths}
        )
        for task in TASKS
        for depth in plan.layers
        for family in FAMILIES
    ]


def _counts(store: Path, plan: ProbePlan) -> dict[tuple[str, str, int, int], Count]:
    try:
        rows = load_rows(store).rows
    except StoreError:  # nothing to compare with, which is not an error
        return {}
    settings = {k: v for k, v in asdict(plan.protocol).items() if k != "stop_when_solved"}
    kept = rows.filter(
        pl.col("solved").is_not_null(),  # finished, or diverged
        pl.col("d_model") == plan.width,
        pl.col("positions") == "polynomial",
        *(pl.col(name) == value for name, value in settings.items()),
    ).unique(["task", "family", "n_layers", "n_bits", "seed"])
    found = kept.group_by("task", "family", "n_layers", "n_bits").agg(
        pl.col("solved").sum(), pl.len().alias("runs")
    )
    return {
        (task, family, depth, n): Count(int(solved), int(runs), "ours")
        for task, family, depth, n, solved, runs in found.iter_rows()
    }
