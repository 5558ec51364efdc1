"""Whether layers of given sizes can solve a recall task, and why; the table of tasks by families.

*Possible* rests on explicit weights, with a margin proved for every size; *impossible* on a bound;
*open* is the rest.

*Induction over a fixed alphabet in one recurrent layer* needs no module of its own: docs/recall.md
has the weights for K symbols, of width K^2 + K with the last successors in the state, and their
proof. Tests build both and run them on every input.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ithbit.display import Printable, lower_text, pluralize
from ithbit.errors import SpecError
from ithbit.families import TASKS
from ithbit.theory.architecture import FORMAL_FAMILIES, MOST, Architecture, architecture
from ithbit.theory.bounds import Route, accuracy_sentence
from ithbit.theory.bounds.stages import ONE_TOKEN, TooDeepError
from ithbit.theory.certifiers.exact import rounded_down
from ithbit.theory.recall import copying, induction_head
from ithbit.theory.recall.tasks import RECALL_ONLY, Recall, recall, recall_accuracy, recall_routes
from ithbit.theory.verdicts import Answer

_DEPTHS = (1, 2, 3, 4)
_HERE = "ithbit.theory.recall"


@dataclass(frozen=True)
class RecallWeights:
    """Explicit weights for a recall task at every size."""

    depth: int
    width: int  # in one head
    units: int  # hidden units
    affine: bool  # whether affine maps do as well
    margin: str  # at every size
    source: str


@dataclass(frozen=True, repr=False)
class RecallVerdict(Printable):
    """The answer at one n, and what it rests on."""

    task: Recall
    arch: Architecture
    n: int
    answer: Answer
    because: str
    rests_on: str | None = None
    n_star: int | None = None
    accuracy: float | None = None  # at most, where it is impossible
    certified: float | None = None  # the margin of the weights at this n, where it is computed
    in_floats: int | None = None  # n* of a state of 32-bit numbers, evaluated step by step

    def to_json(self) -> dict[str, Any]:
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        task = {"task": self.task.name, "values": self.task.values or self.n}
        return record | task | {"arch": self.arch.to_json()}

    def render(self) -> Iterator[str]:
        arch, size = self.arch, f"n = {self.n:,} {self.task.counts}"
        yield f"{self.task.text} · {arch.family} · {arch.depth} · {arch.sizes} · {size}"
        yield self.answer
        yield f"  {self.because}"
        if self.rests_on:
            yield f"  {self.rests_on}"
        if self.accuracy is not None:
            yield accuracy_sentence(self.accuracy)
        if self.in_floats is not None:
            yield f"  in a state of 32-bit numbers, step by step: at most n = {self.in_floats:,}"


def least_weights(task: Recall, family: str) -> RecallWeights | None:
    """The explicit weights with the fewest layers for a formal family, or None."""
    if task.name in TASKS:
        return None
    if task.name == "copy":
        width = copying.width_of(family)
        margin = copying.EVERY_SIZE + ("" if width == 2 else ", divided by 2n")
        return RecallWeights(1, width, 2, True, margin, f"{_HERE}.copying")
    if family.startswith("softmax"):
        width, source = induction_head.WIDTH, f"{_HERE}.induction_head"
        return RecallWeights(2, width, width, True, induction_head.EVERY_SIZE, source)
    if task.name == "induction" and family in ("rnn", "ssm"):
        table, rnn = task.values**2, family == "rnn"
        units, margin = (2 * table + task.values, "1") if rnn else (table, "2")
        source = f"{_HERE}.verdicts"
        return RecallWeights(1, table + task.values, units, False, margin, source)
    return None


def recall_weights(task: Recall, arch: Architecture) -> RecallWeights | str:
    """The explicit weights for layers of these sizes, or a sentence on why there are none."""
    if task.query != ONE_TOKEN:
        return "no weights are built for queries of several tokens"
    if task.name in TASKS:
        return (
            "there may be weights, the binary ones side by side for each binary digit of a value, "
            "but none are built for more than two values"
        )
    if arch.model == "trained":
        return "no explicit weights of trained blocks are known for this task"
    found = least_weights(task, arch.family)
    if found is None or found.depth > arch.n_layers:
        return "no construction is known at this depth"
    units = found.units if arch.hidden or not found.affine else 0
    if found.width > arch.head_width or units > arch.hidden:
        where = " in one head" if arch.heads > 1 else ""
        needs = f"width {found.width:,}{where} and {pluralize(found.units, 'hidden unit')}"
        return f"the construction of {found.source} needs {needs}"
    if task.name == "induction" and arch.kind == "ssm" and arch.transition == "constant":
        return f"the construction of {found.source} needs A(x)"
    return found


def recall_verdict(task: Recall, arch: Architecture, n: int) -> RecallVerdict:
    """Whether layers of these sizes can solve the task at n.

    >>> from ithbit.theory.architecture import architecture
    >>> [recall_verdict(recall("mqar"), architecture("softmax-causal", n_layers=L), 64).answer
    ...  for L in (1, 2)]
    ['impossible', 'possible']
    """
    if not task.values and n < 2:
        raise SpecError(f"{task.name} needs at least 2 symbols, got n = {n}")
    routes, no_route = _routes(task, arch)
    in_floats = next((route.n_star for route in routes if not route.real_arithmetic), None)
    decided = partial(RecallVerdict, task, arch, n, in_floats=in_floats)
    found = recall_weights(task, arch)
    if isinstance(found, RecallWeights):
        extra = arch.n_layers - found.depth
        more = f" and {pluralize(extra, 'identity layer')}" if extra else ""
        layers, margin = f"{pluralize(found.depth, 'layer')} of width {found.width}{more}", None
        because = f"{layers}: margin at least {found.margin} at every size"
        if found.source.endswith("induction_head") and n <= MOST:
            m, symbols = induction_head.sizes(task, n)
            bound = induction_head.margin(m, symbols, induction_head.scales(m, symbols))
            margin = rounded_down(bound)
            because += f", here at least {lower_text(margin)}"
        return decided("possible", because, f"proved here: {found.source}", certified=margin)
    route = next((route for route in routes if route.real_arithmetic), None)
    if route is None:
        return decided("open", f"{found}; {no_route}")
    star, rests = route.n_star, route.rests_on
    if n > star:
        because = f"no weights do it past n* = {star:,}, in real arithmetic"
        accuracy = recall_accuracy(task, arch, n)
        return decided("impossible", because, rests, star, accuracy)
    vacuous = f"impossible past n* = {star:,}, but at n = {n:,} that bound is vacuous"
    return decided("open", f"{found}; {vacuous}", rests, star)


def _routes(task: Recall, arch: Architecture) -> tuple[tuple[Route, ...], str]:
    try:
        return recall_routes(task, arch), "no bound is known either"
    except TooDeepError as reason:
        return (), f"the bound is not known here: {reason}"


def one_layer_holds(task: Recall, arch: Architecture, fingerprint: int) -> tuple[str, ...]:
    """How many answers one layer can give, in sentences."""
    routes, word = recall_routes(task, replace(arch, n_layers=1)), task.counts
    found = [f"{task.text}: no bound is known for one layer"]
    if real := [route.n_star for route in routes if route.real_arithmetic]:
        found = [f"{task.text}: one layer is excluded past n* = {real[0]:,} {word}"]
    if real and real[0] >= fingerprint:
        found.append(f"no bound of this kind excludes n <= {fingerprint:,}, one per number")
    if kept := [route.n_star for route in routes if not route.real_arithmetic]:
        found.append(f"a state of 32-bit numbers holds at most n = {kept[0]:,} {word}")
    return tuple(found)


class RecallTable(Printable, list[list[RecallVerdict]]):
    """The recall tasks by families. An entry has a verdict for each depth from one layer on, at a
    size that no bound allows, until weights are known, or until nothing is."""

    def __init__(self, **sizes: Any) -> None:
        huge, made = 10**60, (architecture(family, **sizes) for family in FORMAL_FAMILIES)
        for one in made:
            for task in map(recall, RECALL_ONLY):
                weights = least_weights(task, one.family)
                entry: list[RecallVerdict] = []
                for depth in _DEPTHS:
                    layers = replace(one, n_layers=depth)
                    if weights and weights.depth == depth:  # of their own sizes
                        width, units = weights.width, weights.units
                        layers = replace(layers, width=width, heads=1, hidden=units)
                    entry.append(recall_verdict(task, layers, huge))
                    if entry[-1].answer != "impossible":
                        break
                self.append(entry)
        self.sizes = f"width {one.width}, hidden {one.hidden}"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            entry[-1].to_json()
            | {"family": entry[-1].arch.family, "values": entry[-1].task.values or None}
            | {"min_layers": len(entry) if entry[-1].answer == "possible" else None}
            | {"n_star_by_depth": [each.n_star for each in entry if each.n_star is not None]}
            for entry in self
        ]

    def render(self) -> Iterator[Any]:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        heads = [name.replace("-", "\n") for name in RECALL_ONLY]
        shown = Table("family", *heads, box=SIMPLE_HEAD, pad_edge=False)
        for start in range(0, len(self), len(heads)):
            row = self[start : start + len(heads)]
            shown.add_row(row[0][0].arch.family, *map(_cell, row))
        values = ", ".join(f"{recall(name).values:,} for {name}" for name in ("mqar", "induction"))
        yield (
            "Other recall tasks: layers that suffice at every size, by explicit weights of their "
            f"own sizes; in brackets n* of one layer fewer, for {self.sizes} and V = {values}. "
            "ω(1): every number of layers has an n*, here of one and two. ?: open."
        )
        yield shown
        yield "`ithbit verdict mqar rnn` gives the reasons."


def _cell(entry: list[RecallVerdict]) -> str:
    stars = [f"{each.n_star:,}" for each in entry if each.n_star is not None]
    shown = f" ({', '.join(stars[:2])})" if stars else ""
    last = entry[-1].answer
    least = {"possible": f"{len(entry)}", "impossible": "ω(1)", "open": f"≥ {len(entry)}?"}[last]
    return least + shown
