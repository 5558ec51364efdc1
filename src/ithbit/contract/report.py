"""The report on a probed layer: what it is, what it keeps, what theory says, what training found;
as plain data, and as text for an eighty-column terminal.

In the project's terms: causality and rank are *observed* at random points, the bound is *proved*
for the state that it names, training is *observed*.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ithbit.contract.fingerprint import Fingerprint
from ithbit.contract.layer_facts import LayerFacts
from ithbit.contract.rank import CausalRank
from ithbit.display import COLUMNS, Printable, pluralize, share_text, wrapped
from ithbit.errors import SpecError
from ithbit.families import FAMILIES, TASKS, Task
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell, plain
from ithbit.store.probed import ProbedCell, ProbedRun
from ithbit.theory.bounds.state import StateBound

_PAPER = Protocol()
_CELL = 12  # columns of the text


@dataclass(frozen=True)
class ProbePlan:
    """What to probe, checked on construction."""

    width: int = 16
    lengths: tuple[int, ...] = (8,)
    layers: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rank_length: int = 32
    train: bool = True
    protocol: Protocol = _PAPER
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

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Lengths and depths to train, in order."""
        return [(n, depth) for n in self.lengths for depth in self.layers]

    def runs(self, *families: str, code: str = "") -> list[RunSpec]:
        """The runs of a layer, or of families beside it: both tasks, all cells and seeds."""
        heads = 2 if self.width % 2 == 0 else 1
        return [
            run
            for task in TASKS
            for n, depth in self.cells
            for family in families
            for run in cell(
                ModelSpec(task, family, n, depth, self.width, heads, code=code),
                self.protocol,
                self.seeds,
            )
        ]


@dataclass(frozen=True)
class Count:
    """Successes out of runs, from the store or as published."""

    solved: int
    runs: int  # that ended, or are solved already
    origin: str  # ours or published
    unfinished: int = 0  # others, that may go on

    def __str__(self) -> str:
        text = f"{self.solved}/{self.runs}" + ("p" if self.origin == "published" else "")
        return f"{text} +{self.unfinished}" if self.unfinished else text


def counted(runs: list[ProbedRun]) -> Count:
    """Solved runs out of those that are; the others are unfinished."""
    ended = [run for run in runs if run.solved or run.stopped_by != "time"]
    return Count(sum(run.solved for run in ended), len(ended), "ours", len(runs) - len(ended))


@dataclass(frozen=True)
class FamilyRow:
    """One family on one task at one depth: a count for each length, None where there is none."""

    task: Task
    family: str
    n_layers: int
    counts: dict[int, Count | None]


@dataclass(frozen=True, repr=False)
class ProbeReport(Printable):
    """Everything that was found. `runs` and `families` are empty if nothing was trained."""

    layer: str
    family: str
    code: str
    plan: ProbePlan
    behaviour: LayerFacts
    rank: CausalRank
    bounds: tuple[StateBound, ...]
    remarks: tuple[str, ...]
    runs: tuple[ProbedRun, ...]
    families: tuple[FamilyRow, ...]
    fingerprint: Fingerprint | None = None

    def of(self, task: Task, n_bits: int, n_layers: int) -> list[ProbedRun]:
        """The layer's runs of one cell."""
        wanted = ProbedCell(task, n_bits, n_layers, self.plan.width)
        return [run for run in self.runs if run.cell == wanted]

    def counts(self, task: Task) -> list[tuple[str, list[Count | None]]]:
        """Successes in every cell: of the layer, then of the six families."""
        runs = [self.of(task, *each) for each in self.plan.cells]
        found = {(r.family, r.n_layers): r.counts for r in self.families if r.task == task}
        own = [counted(r) if r else None for r in runs]
        return [
            (self.layer, own),
            *(
                (family.label, [found.get((name, k), {}).get(n) for n, k in self.plan.cells])
                for name, family in FAMILIES.items()
            ),
        ]

    def best(self, task: Task, n_bits: int, n_layers: int) -> float | None:
        """Best held-out accuracy, averaged over the runs of a cell; None if there are none."""
        runs = self.of(task, n_bits, n_layers)
        return statistics.mean(run.max_accuracy for run in runs) if runs else None

    def render(self) -> Iterator[str]:
        yield report_text(self)

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
            "behaviour": self.behaviour.to_json(self.layer),
            "contract": self.behaviour.contract.to_json(),
            "fingerprint": self.fingerprint
            and asdict(self.fingerprint)
            | {"numbers": self.fingerprint.numbers, "sentence": self.fingerprint.sentence()},
            "causal_rank": {
                "ranks": list(rank.ranks),
                "measured": list(rank.measured),
                "settled": rank.settled,
                "singular_values": list(rank.values),  # at the last k, in units of the noise
                "state": rank.state,
                "far": rank.far,
                "tokens": rank.n_tokens,
                "dtype": rank.dtype,
                "fault": rank.fault,
                "sentence": rank.sentence(),
            },
            "bounds": [asdict(bound) | {"n_star": bound.n_star} for bound in self.bounds],
            "remarks": list(self.remarks),
            "protocol": plain(self.plan.protocol),
            "runs": [run.to_json() for run in self.runs],
            "families": [asdict(row) for row in self.families],
        }


def report_text(report: ProbeReport) -> str:
    """The whole report: a few paragraphs with headings and a table."""
    plan = report.plan
    head = f"{report.layer}, width {plan.width}, {report.behaviour.n_parameters:,} parameters"
    lines = [head, "=" * len(head), "", "Is it causal? (observed)"]
    lines += _wrapped(report.behaviour.sentence(report.layer) + ".")
    lines += ["", "How much of the past does it keep? (observed)"]
    lines += _wrapped(
        f"Causal rank for k up to {report.rank.n}, {report.rank.dtype}: {report.rank.spelled()} "
        f"({report.rank.how()})."
    )
    lines += _wrapped(f"It is {report.rank.sentence()}.")
    if report.fingerprint is not None:
        lines += _wrapped(f"Fingerprint: {report.fingerprint.sentence()}.")
    lines += ["", _bound_heading(report), *_bound_lines(report)]
    if report.runs:
        lines += ["", "What does training find? (observed)"]
        lines += _table(report)
    for remark in report.remarks:
        lines += ["", *_wrapped(f"Note: {remark}.")]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return wrapped(text, "  ", "  ")


def _bound_heading(report: ProbeReport) -> str:
    if not report.bounds:
        return "What does theory say about that state?"
    if report.bounds[0].declared:
        return "What does theory say about the declared state? (proved for a state of that size)"
    return "What if the state is no larger than that? (conditional: its size is measured)"


def _bound_lines(report: ProbeReport) -> list[str]:
    if report.bounds:
        longest = max(report.plan.lengths)
        lines = []
        for bound in report.bounds:
            lines += _wrapped(bound.sentence(longest) + ".")
        lines += _wrapped("For recurrent evaluation only; nothing follows for LHI.")
        return lines + _fingerprint_lines(report)
    if report.behaviour.obstacle is not None:
        return _wrapped(f"Nothing: {report.behaviour.obstacle}.")
    if report.rank.fault is not None:
        return _wrapped("Nothing: the rank is no measure of this layer, so no state was seen.")
    return _wrapped("Nothing: no fixed state was seen.") + _fingerprint_lines(report)


def _fingerprint_lines(report: ProbeReport) -> list[str]:
    """What follows if one later output sees no more than was measured."""
    seen = report.fingerprint
    if seen is None or seen.numbers is None:
        return []
    most = max(report.plan.layers) * seen.numbers
    return _wrapped(
        f"If one later output sees no more than those {seen.numbers} numbers, and they are cheap "
        "to complete, no constant number of such layers solves RHI at every n (Theorem 12a), in "
        f"real arithmetic. No bound of that kind excludes n <= {most:,}, one bit for each number."
    )


def _table(report: ProbeReport) -> list[str]:
    """Successes of the layer and of the six families, and the result of trying all inputs."""
    plan = report.plan
    label = max(len(report.layer), 15, *(len(f.label) for f in FAMILIES.values())) + 2
    room = max(1, (COLUMNS - 2 - label) // _CELL)
    step = room - room % len(plan.layers) or room  # the depths of one length side by side
    lines = []
    for task in TASKS:
        for first in range(0, len(plan.cells), step):
            lines += [*_block(report, task, slice(first, first + step), label), ""]
    lines += _wrapped(
        "Successful seeds out of runs, by held-out accuracy 1.0 on "
        f"{plan.protocol.held_out_examples:,} examples; below, the best accuracy, mean over "
        "seeds; p: published, –: not in the store, +: unfinished."
    )
    lines += _wrapped(_verdicts(report))
    lines += _wrapped(_protocol(report))
    return lines


def _block(report: ProbeReport, task: Task, columns: slice, label: int) -> list[str]:
    """Columns of one task's table, as many as fit side by side."""
    cells = report.plan.cells[columns]
    best = [report.best(task, n, depth) for n, depth in cells]
    own, *families = [
        (name, [str(count or "–") for count in counts[columns]])
        for name, counts in report.counts(task)
    ]
    rows = [
        ("  ", task.upper(), [f"n={n} L={depth}" for n, depth in cells]),
        ("> ", *own),
        ("  ", "  best accuracy", ["–" if mean is None else share_text(mean) for mean in best]),
        *(("  ", *row) for row in families),
    ]
    return [
        mark + head.ljust(label) + "".join(text.rjust(_CELL) for text in texts)
        for mark, head, texts in rows
    ]


def _protocol(report: ProbeReport) -> str:
    """How the training differs from the paper's, since published counts may be shown beside it."""
    protocol, paper = report.plan.protocol, _PAPER
    epochs = "epoch" if protocol.max_epochs == 1 else "epochs"
    text = f"At most {protocol.max_epochs} {epochs}"
    if protocol.max_epochs != paper.max_epochs:
        text += f" (the paper has {paper.max_epochs})"
    if protocol.stop_when_solved:
        text += ", ended at the first perfect epoch"
    others = [
        f"{name} = {value}"
        for name, value in asdict(protocol).items()
        if name not in ("max_epochs", "stop_when_solved") and value != getattr(paper, name)
    ]
    return text + (f"; not the paper's: {', '.join(others)}." if others else ".")


def _verdicts(report: ProbeReport) -> str:
    """How many of the solved runs are right on every input."""
    solved = [run for run in report.runs if run.solved]
    tried = [run for run in solved if run.verdict is not None]
    right = sum(run.verdict == "right on all inputs" for run in tried)
    all_runs = counted(list(report.runs))
    counts = f"{all_runs.solved} of {pluralize(all_runs.runs, 'run')} solved"
    counts += f", {all_runs.unfinished} unfinished" if all_runs.unfinished else ""
    if not tried:
        return f"{counts}; none was tried on all inputs."
    return (
        f"{counts}; {len(tried)} of these were tried on all inputs, and {right} are right on "
        "every one (float32, final weights)."
    )
