"""A construction at work on one input, token by token: what each layer attends to or remembers.

Values are those of a float64 run (*observed*). As text: one table per layer, the index's path in
colour.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ithbit.display import Printable
from ithbit.errors import SpecError
from ithbit.families import FAMILIES
from ithbit.tasks.indexing import Instance
from ithbit.theory.constructions import bert_angle, linear_window, mamba2_window
from ithbit.theory.constructions.content import columns
from ithbit.theory.layers import Array, Attention
from ithbit.theory.solution import AnySolution, Solution, TrainedSolution

INDEX, TARGET, QUIET = "cyan", "bold green", "dim"
_BAR = 24
LONGEST = 32  # bits; one attention row per token must fit a terminal

# What to look for in each layer of each variant (and task, if it matters); {i} is the index.
STORIES: dict[str, tuple[str, ...]] = {
    "parabola": (
        "The index token scores position k by its place on a parabola: k = {i} wins by far. The "
        "residual −i² cancels the position, and ±1/4, the bit, is left.",
    ),
    "cosine": (
        "The index token scores position k by cos(k − {i}): k = {i} wins, but the index token's "
        "own key ties with it and takes half of the weight.",
    ),
    "marker": (
        "Every token that sees the index token attends to it and learns a ≈ −{i}. Then x + a is 0 "
        "at position {i} if it holds a 1, and the hat marks that token alone.",
        "The last token takes the plain mean: it holds the mark, or nothing.",
    ),
    "heavy": (
        "The index token weighs 100 n² times as much as any other, so every token finds i ≈ {i}; "
        "position {i} writes a heavy key and its bit, all others nothing.",
        "The marked token now weighs 100 n² times as much as any other: its bit comes back.",
    ),
    "selective": (
        "The state takes in negative numbers only: −{i} from the index token, kept to the end. "
        "x + h is 0 at position {i} if it holds a 1, and the hat marks that token alone.",
        "The state adds up the marks.",
    ),
    "time-invariant": (
        "The state is −{i} from the index token on; the 1-bits add a little, never more than 1/8. "
        "x/eps + h is near 0 at position {i} if it holds a 1, and the hat marks that token alone.",
        "The state adds up the marks.",
    ),
    "scalar": (
        "The state is {i}; a token with x = {i}, which is position {i} holding a 1, lifts it by "
        "2(n + 2), out of reach of all others.",
    ),
    "pair": (
        "The state is (index, answer): a token with x = {i}, position {i} holding a 1, adds 1 to "
        "the answer.",
    ),
    "angle rhi": (
        "The index token asks for the angle of place {i} and the bits lie on a curve by their "
        "place: bit {i} wins, and its ±1 is what the index token takes up.",
    ),
    "angle lhi": (
        "The end token attends to the index token and takes up (1, i/N); bits look away from it.",
        "The end token asks for the angle of place {i} and the bits lie on a curve by their place: "
        "bit {i} wins, and its ±1 is what the end token takes up.",
    ),
    "window": (
        "Every token subtracts the index from its place. At bit {i} alone the two agree and a "
        "window opens: six units mark the token with the sign of its bit.",
        "The last token adds up the marks of all tokens.",
    ),
    "latch": (
        "h₁ keeps the index, h₂ turns from −1 to +1 at position {i}, and h₃ is open for one token: "
        "where the position has been reached but h₂ has not turned yet.",
    ),
}


@dataclass(frozen=True)
class LayerStep:
    """One layer: per token its input, what it attended to or the state after it, and its output."""

    kind: str
    story: str
    inputs: Array  # token dim
    attention: Array | None  # query key
    sums: Array | None  # token dim: x + a, what the MLP of an attention layer reads
    states: Array | None  # token dim; of a trained block, its outputs
    outputs: Array  # token dim


@dataclass(frozen=True, repr=False)
class Explanation(Printable):
    """The whole run on one input."""

    solution: AnySolution
    instance: Instance
    steps: tuple[LayerStep, ...]
    logits: tuple[float, float]

    @property
    def answer(self) -> int:
        return int(self.logits[1] > self.logits[0])

    @property
    def asked(self) -> int:
        """The token that holds the asked bit, counted from 0."""
        return self.instance.index - (self.instance.task == "rhi")

    @property
    def labels(self) -> tuple[str, ...]:
        """The tokens as text, with positions."""
        bits = [f"bit {k} = {bit}" for k, bit in enumerate(self.instance.bits, 1)]
        query = f"index {self.instance.index}"
        rhi = self.instance.task == "rhi"
        return (*bits, query) if rhi else (query, *bits, "end")

    def render(self) -> Iterator[Any]:
        """The run, layer by layer, and the answer."""
        instance, solution = self.instance, self.solution
        bits = "".join(map(str, instance.bits))
        yield Text.assemble(
            (f"{instance.task.upper()} by {solution.family}", "bold"),
            f" ({solution.variant}, {solution.theorem}): bits {bits}, index {instance.index}\n",
        )
        for depth, step in enumerate(self.steps, 1):
            story = f". {step.story}" if step.story else ""
            yield Text.assemble((f"Layer {depth}, {step.kind}", "bold"), story)
            yield Padding(_table(self, step), (1, 0, 1, 2))
        zero, one = self.logits
        sign = ">" if one > zero else "<="
        mark = "✓" if self.answer == instance.answer else "✗ wrong"
        yield Text.assemble(
            f"logits α₁ {sign} α₀: {number(one)} {sign} {number(zero)}, so the answer is ",
            (str(self.answer), "bold"),
            f" {mark}   (a float64 run, observed)",
        )


def explain(solution: AnySolution, bits: Sequence[int], index: int) -> Explanation:
    """The run of a solution on one input, layer by layer."""
    instance = Instance(solution.task, tuple(bits), index)
    n = len(instance.bits)
    if n > LONGEST:
        raise SpecError(f"a run is shown for at most {LONGEST} bits, got {n}; take fewer")
    if n != solution.n_bits:
        raise SpecError(f"these weights are for n = {solution.n_bits}, got {n} bits")
    embedded, traces = solution.trace(instance.bits, index)
    stories = STORIES.get(solution.variant) or STORIES.get(f"{solution.variant} {solution.task}")
    steps, x = [], content_of(solution, embedded[0])
    for depth, trace in enumerate(traces):
        outputs = content_of(solution, trace.output[0])
        attention = None if trace.attention is None else trace.attention[0]
        states, sums = None if trace.states is None else trace.states[0], None
        if isinstance(solution, TrainedSolution):
            kind, states = FAMILIES[solution.family].label, outputs
        else:
            layer = solution.layers[depth]
            kind = _KINDS.get(layer.kind, layer.kind.upper())
            if isinstance(layer, Attention) and attention is not None:
                sums = x + attention @ x @ layer.V.T
        story = stories[depth].format(i=index) if stories and depth < len(stories) else ""
        steps.append(LayerStep(kind, story, x, attention, sums, states, outputs))
        x = outputs
    found = solution.logits(np.array([instance.bits]), np.array([index]))[0]
    zero, one = found if isinstance(solution, Solution) else (0.0, found)
    return Explanation(solution, instance, tuple(steps), (float(zero), float(one)))


_KINDS = {"softmax": "softmax attention", "linear": "linear attention", "gru": "GRU"}


def content_of(solution: AnySolution, x: Array) -> Array:
    """What one input's stream holds, `token content`; in trained blocks, what the proof names.

    >>> from ithbit.theory.constructions import construct_trained
    >>> solution = construct_trained("rhi", "softmax-full", 2)
    >>> content_of(solution, solution.tokens(np.array([[1, 0]]), np.array([2]))[0]).tolist()
    [[1.0, 0.0, 1.0], [1.0, 0.5, -1.0], [-1.0, -0.5, 0.0]]
    """
    if isinstance(solution, Solution):
        return x
    if FAMILIES[solution.family].attention:
        window = solution.variant == "window"
        order = linear_window.ORDER if window else bert_angle.ORDERS[solution.task]
        U = columns(solution.width, order)
        return x @ U / (U * U).sum(0)
    return x[..., : mamba2_window.LEAST_WIDTH if solution.variant == "window" else 3]


Column = tuple[str, Literal["left", "right"], list[Text]]  # heading, alignment, a cell per token


def _table(run: Explanation, step: LayerStep) -> Table:
    """One layer, a row per token."""
    labels, readout = run.labels, step is run.steps[-1] and step.attention is not None
    styles = [INDEX if label.startswith("index") else "" for label in labels]
    styles[run.asked] = TARGET
    tokens = _styled(labels, styles)
    tokens[run.asked].append(" ◂")
    inputs = [Text(vector(x)) for x in step.inputs]
    if readout:
        tokens.append(Text("output y", style="bold"))
        inputs.append(Text(vector(step.outputs[-1]), style="bold"))
    look = _states if step.attention is None else _bars if readout else _strips
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET)
    columns: list[Column] = [("token", "left", tokens), ("x", "right", inputs)]
    columns += look(step, labels, styles)
    for heading, justify, _ in columns:
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in zip_longest(*(cells for _, _, cells in columns)):
        table.add_row(*row)
    return table


def _styled(texts: Iterable[str], styles: Sequence[str]) -> list[Text]:
    return [Text(text, style) for text, style in zip(texts, styles, strict=True)]


def _strips(step: LayerStep, labels: Sequence[str], styles: Sequence[str]) -> Iterator[Column]:
    """A layer in the middle: every token's attention as a strip of shades, one per key token."""
    assert step.attention is not None
    strips = [_styled((shade(float(weight)) for weight in row), styles) for row in step.attention]
    yield "attends to", "left", [Text().join(strip) for strip in strips]
    # What fits beside input, strip and output in eighty columns.
    narrow = step.sums is not None and step.inputs.shape[1] <= 2
    if narrow and len(labels) <= 20:
        tops, weights = step.attention.argmax(axis=1), step.attention.max(axis=1)
        mostly = [
            f"{labels[top]}: {number(float(w))}" for top, w in zip(tops, weights, strict=True)
        ]
        yield "mostly", "left", _styled(mostly, [styles[top] for top in tops])
    if narrow:
        assert step.sums is not None
        yield "x + a", "right", _styled(map(vector, step.sums), styles)
    lit = ["bold" if output.any() else QUIET for output in step.outputs]
    yield "output", "right", _styled(map(vector, step.outputs), lit)


def _bars(step: LayerStep, labels: Sequence[str], styles: Sequence[str]) -> Iterator[Column]:
    """The last attention layer: what the last token attends to, as bars."""
    assert step.attention is not None
    weights = [float(weight) for weight in step.attention[-1]]
    yield "weight", "right", [Text(number(weight)) for weight in weights]
    bars = ["█" * round(weight * _BAR) or "·" for weight in weights]
    yield f"seen from {labels[-1]!r}", "left", _styled(bars, styles)


def _states(step: LayerStep, labels: Sequence[str], styles: Sequence[str]) -> Iterator[Column]:
    """A recurrent layer: the state after every token, with an arrow where it changes."""
    assert step.states is not None
    changes = np.abs(np.diff(step.states, axis=0, prepend=0))
    moved = [change.max() > 1e-3 for change in changes]
    lit = [style if move else QUIET for style, move in zip(styles, moved, strict=True)]
    yield "", "left", _styled(["→" if move else "" for move in moved], lit)
    yield "state h", "left", _styled(map(vector, step.states), lit)
    if step.kind != "GRU":  # its output is its state
        own = [*styles[:-1], styles[-1] or "bold"]
        written = zip(own, step.outputs, strict=True)
        lit = [style if output.any() else QUIET for style, output in written]
        yield "output y", "left", _styled(map(vector, step.outputs), lit)


def shade(weight: float) -> str:
    """An attention weight as one character, from nothing to a full block.

    >>> "".join(shade(weight) for weight in (0.0, 0.01, 0.2, 0.5, 1.0))
    '·░▒▓█'
    """
    steps = ((0.75, "█"), (0.35, "▓"), (0.1, "▒"), (0.005, "░"))
    return next((character for least, character in steps if weight >= least), "·")


def number(value: float) -> str:
    """A number in short form, with at most four digits after the point.

    >>> number(-3.0), number(0.25), number(-2.99731), number(1e-9), number(123456.0)
    ('−3', '0.25', '−2.9973', '0', '123456')
    """
    text = f"{value:.4f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:.3g}"
    return "0" if text in ("-0", "0", "") else text.replace("-", "−")


def vector(values: Array) -> str:
    """A row of numbers; brackets if there are several.

    >>> import numpy as np
    >>> vector(np.array([1.0])), vector(np.array([0.5, -1.0]))
    ('1', '(0.5, −1)')
    """
    parts = [number(float(value)) for value in values]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
