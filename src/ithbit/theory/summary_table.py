"""The paper's summary table, derived: for every entry a number of layers that suffices at every n,
and of which one fewer fails past some n*; from constructions and from lower bounds.

The paper's entry is the least number of layers as n grows. At one n the table says less: fewer
layers may well suffice at n <= n*, and the weights and the bound may have different widths.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ithbit.display import Printable, lower_text, pluralize
from ithbit.errors import SpecError
from ithbit.families import TASKS, Task
from ithbit.theory.architecture import (
    FORMAL_FAMILIES,
    TRAINED_FAMILIES,
    Architecture,
    Model,
    architecture,
)
from ithbit.theory.bounds import Route, bound, growth
from ithbit.theory.certificate import Certificate
from ithbit.theory.constructions import CONSTRUCTIONS, TRAINED, entry_of
from ithbit.theory.recall.verdicts import RecallTable
from ithbit.theory.verdicts import certificate_record, explicit_weights, lower_theorem

DEPTHS_SHOWN = (1, 2, 3, 4)


FORMAL = "formal layers"
# Smaller sizes may be given: then the table holds, and the verdict at those sizes is open.
_OWN_SIZES = " The weights have sizes of their own, which `ithbit verdict TASK FAMILY` names."


@dataclass(frozen=True)
class SummaryEntry:
    """One entry of the derived summary table.

    `min_layers` is None if every number of layers has an n*: omega(1) in the paper. Otherwise
    `certificate` shows that this many layers suffice at n (past `CERTIFIED_N`, `every_n` does), and
    `fewer` is the bound for one layer less, past whose n* this is the least number.
    """

    task: Task
    family: str
    min_layers: int | None
    theorem: str
    width: int | None = None  # of the construction
    certificate: Certificate | None = None
    every_n: str | None = None
    fewer: Route | None = None
    by_depth: tuple[Route, ...] = ()  # n* for 1, 2, 3, 4 layers where no number of layers suffices
    growth: str | None = None

    @property
    def layers_text(self) -> str:
        return "ω(1)" if self.min_layers is None else str(self.min_layers)

    @property
    def why(self) -> str:
        """What the entry rests on, in words."""
        if self.min_layers is None:
            stars = ", ".join(map(_marked, self.by_depth))
            return f"n* = {stars} for L = 1, 2, 3, 4; {self.growth} ({self.theorem})"
        if self.certificate:
            margin = lower_text(self.certificate.margin, 5)
            text = f"certified at width {self.width}, margin ≥ {margin} ({self.theorem})"
        else:
            assert self.every_n is not None
            margin = f"{self.every_n} for every n"
            text = f"proved at width {self.width}, margin ≥ {margin} ({self.theorem})"
        if self.fewer:
            text += f"; {self.min_layers - 1} layer: impossible past n* = {_marked(self.fewer)}"
        return text

    @property
    def bounds(self) -> tuple[Route, ...]:
        return (*self.by_depth, *([self.fewer] if self.fewer else []))

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "family": self.family,
            "min_layers": self.min_layers,
            "theorem": self.theorem,
            "certificate": certificate_record(self.certificate),
            "every_n": self.every_n,
            "n_star_with_fewer": self.fewer.n_star if self.fewer else None,
            "n_star_by_depth": [route.n_star for route in self.by_depth] or None,
            "growth": self.growth,
            "rests_on": sorted({route.rests_on for route in self.bounds}),
        }


def _marked(route: Route) -> str:
    """n*, with a star if a constant is cited."""
    return f"{route.n_star:,}{'*' if route.cited else ''}"


class VerdictTable(Printable, list[SummaryEntry]):
    """The paper's summary table, derived: one entry per task and family. For formal layers,
    `recall` has the other recall tasks."""

    def __init__(
        self,
        entries: Iterable[SummaryEntry],
        n: int,
        layers: str,
        sizes: str,
        recall: RecallTable | None = None,
    ) -> None:
        super().__init__(entries)
        self.n, self.layers, self.sizes, self.recall = n, layers, sizes, recall

    def to_json(self) -> list[dict[str, Any]]:
        more = [] if self.recall is None else self.recall.to_json()
        return [entry.to_json() for entry in self] + more

    def render(self) -> Iterator[Any]:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        shown = Table("family", "task", "layers", "why", box=SIMPLE_HEAD, pad_edge=False)
        previous = ""
        for entry in self:
            name = entry.family if entry.family != previous else ""
            shown.add_row(name, entry.task, entry.layers_text, entry.why)
            previous = entry.family
        n = self.n
        certified = f"Certificates cover all {n} · 2^{n} inputs at n = {n}"
        if not any(entry.certificate for entry in self):
            certified = f"What is proved holds for every n, so for n = {n:,}"
        yield Text(
            f"Number of {self.layers} that suffices at every n, derived; one fewer fails past n*, "
            f"and ω(1) is any number, past an n* of its own. {certified}; n* is for {self.sizes}."
            f"{_OWN_SIZES if self.layers == FORMAL else ''}"
        )
        yield shown
        bounds = [route for entry in self for route in entry.bounds]
        if any(route.cited for route in bounds):
            yield "* with a cited constant; `ithbit bound … --all` shows the proved number too."
        if any(route.conditions for route in bounds):
            yield (
                "n* of trained attention and Mamba2 is conditional on how the block is built; "
                "`ithbit bound`\nlists the conditions."
            )
        if self.recall is not None:
            yield ""
            yield from self.recall.render()


def table(
    n_bits: int = 64,
    *,
    model: Model = "formal",
    width: int = 16,
    hidden: int = 64,
    heads: int | None = None,
    state: int = 16,
) -> VerdictTable:
    """The summary table: constructions certified at `n_bits`, and bounds at these sizes.

    >>> {(e.task, e.family): e.min_layers for e in table(4, model="trained")}["lhi", "mamba2"]
    2
    """
    families = FORMAL_FAMILIES if model == "formal" else TRAINED_FAMILIES
    sizes: dict[str, Any] = {"width": width, "heads": heads, "hidden": hidden, "state": state}
    layers = [architecture(family, model, **sizes) for family in families]
    entries = [_entry(task, one, n_bits) for one in layers for task in TASKS]
    shown = [f"width {width}", f"hidden {hidden}"]
    shown += [pluralize(heads, "head")] if heads is not None else []
    shown += [f"state {state}"] if model == "trained" else []
    named = FORMAL if model == "formal" else "layers as trained"
    recall = RecallTable(width=width, hidden=hidden, heads=heads) if model == "formal" else None
    return VerdictTable(entries, n_bits, named, ", ".join(shown), recall)


def _entry(task: Task, one: Architecture, n_bits: int) -> SummaryEntry:
    formal, family = one.model == "formal", one.family
    found = entry_of(CONSTRUCTIONS if formal else TRAINED, task, family)
    if found is None:
        # `bound` raises at a depth without a bound, where the entry would not be omega(1).
        routes = tuple(bound(task, replace(one, n_layers=depth)) for depth in DEPTHS_SHOWN)
        theorem = lower_theorem(task, one)
        assert theorem is not None
        return SummaryEntry(task, family, None, theorem, by_depth=routes, growth=growth(one))
    depth = found.depth
    # Formal weights have their own sizes, independent of those of the bounds.
    layers = architecture(family, n_layers=depth) if formal else replace(one, n_layers=depth)
    weights = explicit_weights(task, layers)
    if isinstance(weights, str):
        raise SpecError(f"{weights}; ask for the table at other sizes")
    fewer = bound(task, replace(one, n_layers=depth - 1)) if depth > 1 else None
    own = (weights.width, weights.certificate(n_bits), weights.margin)
    return SummaryEntry(task, family, depth, weights.theorem, *own, fewer)
