"""A probe's report as text for an eighty-column terminal."""

from dataclasses import asdict

from ithbit.families import FAMILIES, TASKS, Task
from ithbit.probe.report import ProbeReport
from ithbit.shown import COLUMNS, counted, wrapped
from ithbit.spec import Protocol

_CELL = 12


def report_text(report: ProbeReport) -> str:
    """The whole report: a few paragraphs with headings and a table."""
    plan = report.plan
    head = f"{report.layer}, width {plan.width}, {report.behaviour.n_parameters:,} parameters"
    lines = [head, "=" * len(head), "", "Is it causal? (observed)"]
    lines += _wrapped(report.behaviour.sentence(report.layer) + ".")
    lines += ["", "How much of the past does it keep? (observed)"]
    lines += _wrapped(
        f"Causal rank for k up to {report.rank.n}, {report.rank.dtype}: {report.rank.spelled()}."
    )
    lines += _wrapped(f"It is {report.rank.sentence()}.")
    lines += ["", _bound_heading(report), *_bound_lines(report)]
    if report.runs:
        lines += ["", "What does training find? (observed)"]
        lines += _table(report)
    for remark in report.remarks:
        lines += ["", *_wrapped(f"Note: {remark}.")]
    return "\n".join(lines) + "\n"


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
        return lines + _wrapped("For recurrent evaluation only; nothing follows for LHI.")
    if report.behaviour.leak is not None:
        return _wrapped("Nothing: the layer is not causal, so no state carries the past.")
    if report.rank.fault is not None:
        return _wrapped("Nothing: the rank is no measure of this layer, so no state was seen.")
    return _wrapped("Nothing: no fixed state was seen.")


def _table(report: ProbeReport) -> list[str]:
    """Successes of the layer and of the six families, and the result of trying all inputs."""
    plan = report.plan
    label = max(len(report.layer), 15, *(len(f.label) for f in FAMILIES.values())) + 2
    room = max(1, (COLUMNS - 2 - label) // _CELL)
    step = room - room % len(plan.layers) or room  # the depths of one length side by side
    lines = []
    for task in TASKS:
        for first in range(0, len(report.cells), step):
            lines += [*_block(report, task, slice(first, first + step), label), ""]
    lines += _wrapped(
        "Successful seeds out of runs, by held-out accuracy 1.0 on "
        f"{plan.protocol.held_out_examples:,} examples; below, the best accuracy, mean over "
        "seeds; p: published, –: not in the store."
    )
    lines += _wrapped(_verdicts(report))
    lines += _wrapped(_protocol(report))
    return lines


def _block(report: ProbeReport, task: Task, columns: slice, label: int) -> list[str]:
    """Columns of one task's table, as many as fit side by side."""
    cells = report.cells[columns]
    best = [report.best(task, n, depth) for n, depth in cells]
    own, *families = [
        (name, [str(count or "–") for count in counts[columns]])
        for name, counts in report.counts(task)
    ]
    rows = [
        ("  ", task.upper(), [f"n={n} L={depth}" for n, depth in cells]),
        ("> ", *own),
        ("  ", "  best accuracy", ["–" if mean is None else f"{mean:.4f}" for mean in best]),
        *(("  ", *row) for row in families),
    ]
    return [
        mark + head.ljust(label) + "".join(text.rjust(_CELL) for text in texts)
        for mark, head, texts in rows
    ]


def _protocol(report: ProbeReport) -> str:
    """How the training differs from the paper's, since published counts may be shown beside it."""
    protocol, paper = report.plan.protocol, Protocol()
    text = f"At most {protocol.max_epochs} epochs"
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
    counts = f"{len(solved)} of {counted(len(report.runs), 'run')} solved"
    if not tried:
        return f"{counts}; none was tried on all inputs."
    return (
        f"{counts}; {len(tried)} of these were tried on all inputs, and {right} are right on "
        "every one (float32, final weights)."
    )
