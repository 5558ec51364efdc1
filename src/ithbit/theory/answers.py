"""The theory's answers as text: bounds and complexities."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ithbit.shown import Shown
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds import PAPER_LENGTHS, Route
from ithbit.theory.complexity import Complexity


@dataclass(frozen=True, repr=False)
class Bounds(Shown):
    """The tightest bound of a family in real arithmetic, and every route to one."""

    task: str
    arch: Architecture
    n: int | None
    best: Route
    routes: tuple[Route, ...]  # tightest first, including the state in finite precision
    all: bool = False  # whether the routes are shown

    @property
    def n_star(self) -> int:
        """Impossible for every n past this."""
        return self.best.n_star

    @property
    def rests_on(self) -> str:
        return self.best.rests_on

    def to_json(self) -> dict[str, Any]:
        record = {"task": self.task, **self.arch.to_json(), "n": self.n, **self._route(self.best)}
        if self.all:
            record["routes"] = [self._route(route) for route in self.routes]
        return record

    def _route(self, route: Route) -> dict[str, Any]:
        lengths = PAPER_LENGTHS if self.n is None else (self.n,)
        return {
            "route": route.name,
            "n_star": route.n_star,
            "status": route.status,
            "rests_on": route.rests_on,
            "conditions": list(route.conditions),
            "real_arithmetic": route.real_arithmetic,
            "vacuous_at": list(route.vacuous_at(lengths)),
        }

    def parts(self) -> Iterator[str]:
        arch, best = self.arch, self.best
        yield f"{self.task} · {arch.family} ({arch.model}) · {arch.depth} · {arch.sizes}"
        yield f"impossible for every n > {best.n_star:,}, whatever the weights, in real arithmetic"
        yield f"  {best.rests_on}"
        proved = [r.n_star for r in self.routes if r.real_arithmetic and not r.cited]
        if best.cited and proved:
            yield f"  without the cited constant: impossible for every n > {min(proved):,}"
        if self.n is not None:
            vacuous = "vacuous: the bound says nothing"
            yield f"  at n = {self.n:,}: {'impossible' if self.n > best.n_star else vacuous}"
        elif best.vacuous_at():
            lengths = ", ".join(map(str, best.vacuous_at()))
            yield f"  vacuous at the paper's lengths n = {lengths}"
        if self.all:
            yield "\nevery route, tightest first:"
            for route in self.routes:
                yield f"  {route.n_star:>22,}  {route.name}"
                yield f"  {'':>22}  {route.rests_on}"


@dataclass(frozen=True, repr=False)
class LayerComplexity(Shown):
    """Causal complexity of one layer."""

    arch: Architecture
    found: Complexity
    position: int

    @property
    def fingerprint(self) -> int:
        """How many numbers are kept of the past tokens."""
        return self.found.dimension

    @property
    def operations(self) -> int:
        """How many operations complete the output."""
        return self.found.operations

    def to_json(self) -> dict[str, Any]:
        numbers = {
            name: value for name, value in asdict(self.found).items() if name != "grows_with"
        }
        return {
            **self.arch.to_json(),
            **numbers,
            "total": self.found.total,
            "position": self.position if self.found.grows_with else None,
            "covered": self.found.covered,
        }

    def parts(self) -> Iterator[str]:
        arch, found = self.arch, self.found
        yield f"{arch.family} ({arch.model}) · one layer · {arch.sizes}"
        if found.grows_with:
            yield f"at token k = {self.position}"
        yield f"  fingerprint  {found.dimension:>9,} numbers     p = {found.dimension_formula}"
        yield f"               {found.fingerprint}"
        yield f"  completion   {found.operations:>9,} operations  t = {found.operations_formula}"
        special = [
            f"{count:,} {what}"
            for count, what in (
                (found.exponentials, "exp"),
                (found.square_roots, "sqrt"),
                (found.logarithms, "log"),
                (found.error_functions, "erf"),
            )
            if count
        ]
        if special:
            yield f"               at most {', '.join(special)} among them"
        upper = "an upper bound on the causal complexity"
        yield f"  p + t        {found.total:>9,}             {upper}"
        if found.grows_with:
            yield "The fingerprint grows with k: no bound for right-hand indexing follows."
        if not found.covered:
            yield (
                "sqrt, log and erf are not operations of the paper's Definition 1: Theorem 12a "
                "does not apply as stated, the counting theorem of `ithbit bound` does."
            )
