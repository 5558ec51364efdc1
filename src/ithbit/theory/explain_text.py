"""How the run of a construction is laid out: one table per layer, the index's path in colour."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ithbit.theory.explain import Explanation, LayerStep, number, shade, vector

INDEX, ASKED, QUIET = "cyan", "bold green", "dim"
_BAR = 24


def explanation_parts(run: Explanation) -> Iterator[Any]:
    """The run, layer by layer, and the answer."""
    instance, solution = run.instance, run.solution
    bits = "".join(map(str, instance.bits))
    yield Text.assemble(
        (f"{instance.task.upper()} by {solution.family}", "bold"),
        f" ({solution.variant}, {solution.theorem}): bits {bits}, index {instance.index}\n",
    )
    for depth, step in enumerate(run.steps, 1):
        story = f". {step.story}" if step.story else ""
        yield Text.assemble((f"Layer {depth}, {step.kind}", "bold"), story)
        if step.attention is None:
            table = _states(run, step)
        elif depth == len(run.steps):
            table = _readout(run, step)
        else:
            table = _attention(run, step)
        yield Padding(table, (1, 0, 1, 2))
    zero, one = run.logits
    sign = ">" if one > zero else "<="
    mark = "✓" if run.answer == instance.answer else "✗ wrong"
    yield Text.assemble(
        f"logits α₁ {sign} α₀: {number(one)} {sign} {number(zero)}, so the answer is ",
        (str(run.answer), "bold"),
        f" {mark}   (a float64 run, observed)",
    )


def _grid(*headings: str, right: Iterable[int] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in right else "left", no_wrap=True)
    return table


def _label(run: Explanation, token: int) -> Text:
    mark = " ◂" if token == run.asked else ""
    return Text(f"{run.labels[token]}{mark}", style=_style(run, token))


def _style(run: Explanation, token: int) -> str:
    if token == run.asked:
        return ASKED
    return INDEX if run.labels[token].startswith("index") else ""


def _attention(run: Explanation, step: LayerStep) -> Table:
    """A layer in the middle: every token's attention as a strip of shades, one per key token."""
    assert step.attention is not None
    # What fits beside input, strip and output in eighty columns.
    narrow = step.sums is not None and step.inputs.shape[1] <= 2
    short = narrow and len(step.inputs) <= 20
    middle = ["attends to", *(["mostly"] if short else []), *(["x + a"] if narrow else [])]
    table = _grid("token", "x", *middle, "output", right=(1, *range(2 + short + 1, 6)))
    for token, row in enumerate(step.attention):
        strip = Text()
        for key, weight in enumerate(row):
            strip.append(shade(float(weight)), style=_style(run, key))
        cells = [_label(run, token), Text(vector(step.inputs[token])), strip]
        if short:
            top = int(row.argmax())
            weight = f"{run.labels[top]}: {number(float(row[top]))}"
            cells.append(Text(weight, style=_style(run, top)))
        if narrow:
            assert step.sums is not None
            cells.append(Text(vector(step.sums[token]), style=_style(run, token)))
        lit = "bold" if step.outputs[token].any() else QUIET
        table.add_row(*cells, Text(vector(step.outputs[token]), style=lit))
    return table


def _readout(run: Explanation, step: LayerStep) -> Table:
    """The last attention layer: what the last token attends to, as bars, and its output."""
    assert step.attention is not None
    weights = step.attention[-1]
    table = _grid("token", "x", "weight", f"seen from {run.labels[-1]!r}", right=(1, 2))
    for token, weight in enumerate(weights):
        length = round(float(weight) * _BAR)
        bar = Text("█" * length or "·", style=_style(run, token))
        table.add_row(_label(run, token), vector(step.inputs[token]), number(float(weight)), bar)
    table.add_row(Text("output y", style="bold"), Text(vector(step.outputs[-1]), style="bold"))
    return table


def _states(run: Explanation, step: LayerStep) -> Table:
    """A recurrent layer: the state after every token, with an arrow where it changes."""
    assert step.states is not None
    shows_output = step.kind != "GRU"
    table = _grid("token", "x", "", "state h", *(["output y"] if shows_output else []), right=(1,))
    before = step.states[0] * 0
    for token, state in enumerate(step.states):
        moved = bool((abs(state - before) > 1e-3).any())
        style = _style(run, token) if moved else QUIET
        cells = [
            _label(run, token),
            Text(vector(step.inputs[token])),
            Text("→" if moved else "", style=style),
            Text(vector(state), style=style),
        ]
        if shows_output:
            output = step.outputs[token]
            final = token == len(step.states) - 1
            lit = _style(run, token) or ("bold" if final else "")
            cells.append(Text(vector(output), style=lit if output.any() else QUIET))
        table.add_row(*cells)
        before = state
    return table
