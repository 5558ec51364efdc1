"""Lower bounds at finite n: the family provably fails at every n past n*, and what that rests on.

A *route* is one way to a bound. `all_routes` gives every route for a task and an architecture,
`bound` the tightest that is valid in real arithmetic, whatever the weights. Routes and where they
live: the counting theorem (`counting`, with the stage lists of `stages` and its border decided in
`borders`), sign changes at width 1 and 2 (`narrow`), Anthony and Bartlett's theorems (`cited`), and
the size of the state in finite precision (`state`), which is valid for recurrent evaluation only,
so `bound` never returns it.

A bound says nothing at n <= n*: there it is *vacuous*.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from ithbit.display import Printable, upper_text
from ithbit.errors import IthbitError, SpecError
from ithbit.families import Task, task_named
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds.cited import program, vc_with_exponentials, vc_without_exponentials
from ithbit.theory.bounds.counting import Polynomial, Stage, n_star
from ithbit.theory.bounds.narrow import narrow
from ithbit.theory.bounds.stages import ONE_TOKEN, Query, fixed_bits, stages
from ithbit.theory.bounds.state import state_bits, values_held

Status = Literal["proved", "cited", "conditional"]

PAPER_LENGTHS = (8, 16, 32, 64)


class NoBoundError(IthbitError):
    """No bound exists or is known."""


@dataclass(frozen=True)
class Route:
    """One bound: impossible for every n > n_star, and what that rests on."""

    name: str
    n_star: int
    theorem: str  # what the number follows from
    cited: bool  # whether a constant is taken from a book
    conditions: tuple[str, ...] = ()  # what must hold for the block or its evaluation
    real_arithmetic: bool = True

    @property
    def status(self) -> Status:
        if self.conditions:
            return "conditional"
        return "cited" if self.cited else "proved"

    @property
    def rests_on(self) -> str:
        """One sentence: proved here, cited, or conditional and on what."""
        source = f"cited: {self.theorem}" if self.cited else f"proved here: {self.theorem}"
        if self.conditions:
            return f"conditional on {'; '.join(self.conditions)} ({source})"
        return source


@dataclass(frozen=True, repr=False)
class LengthBounds(Printable):
    """The tightest bound of a family in real arithmetic, and every route to one."""

    task: str
    arch: Architecture
    n: int | None
    best: Route
    routes: tuple[Route, ...]  # tightest first, including the state in finite precision
    all: bool = False  # whether the routes are shown
    values: int | None = 2  # of an answer; None if there are n
    query: Query = ONE_TOKEN
    counts: str = "bits"  # what n counts; of the paper's tasks alone these are bits
    accuracy: float | None = None  # at n, from above; None if the bound says nothing

    @property
    def n_star(self) -> int:
        """Impossible for every n past this."""
        return self.best.n_star

    @property
    def rests_on(self) -> str:
        return self.best.rests_on

    def to_json(self) -> dict[str, Any]:
        record = {"task": self.task, **self.arch.to_json(), "n": self.n, **self._route(self.best)}
        record |= {"values": self.values, "accuracy_at_most": self.accuracy}
        record |= {"query": asdict(self.query)}
        if self.all:
            record["routes"] = [self._route(route) for route in self.routes]
        return record

    def _vacuous_at(self, route: Route) -> list[int]:
        """The length that was given, or else the paper's, at which a bound says nothing."""
        usual = PAPER_LENGTHS if self.counts == "bits" else ()
        lengths = usual if self.n is None else (self.n,)
        return [n for n in lengths if n <= route.n_star]

    def _route(self, route: Route) -> dict[str, Any]:
        return {
            "route": route.name,
            "n_star": route.n_star,
            "status": route.status,
            "rests_on": route.rests_on,
            "conditions": list(route.conditions),
            "real_arithmetic": route.real_arithmetic,
            "vacuous_at": self._vacuous_at(route),
        }

    def render(self) -> Iterator[str]:
        arch, best, binary = self.arch, self.best, self.counts == "bits"
        values = "n" if self.values is None else f"{self.values:,}"
        task = self.task if binary else f"{self.task} · values {values}"
        task += f" · query of {self.query.text}" if self.query != ONE_TOKEN else ""
        yield f"{task} · {arch.family} ({arch.model}) · {arch.depth} · {arch.sizes}"
        counts = "" if binary else f" {self.counts}"
        yield (
            f"impossible for every n > {best.n_star:,}{counts}, whatever the weights, in real "
            "arithmetic"
        )
        yield f"  {best.rests_on}"
        proved = [r.n_star for r in self.routes if r.real_arithmetic and not r.cited]
        if best.cited and proved:
            yield f"  without the cited constant: impossible for every n > {min(proved):,}"
        vacuous = self._vacuous_at(best)
        if self.n is not None:
            answer = "vacuous: the bound says nothing" if vacuous else "impossible"
            yield f"  at n = {self.n:,}: {answer}"
            if self.accuracy is not None:
                yield accuracy_sentence(self.accuracy)
        elif vacuous:
            yield f"  vacuous at the paper's lengths n = {', '.join(map(str, vacuous))}"
        if self.all:
            yield "\nevery route, tightest first:"
            for route in self.routes:
                yield f"  {route.n_star:>22,}  {route.name}"
                yield f"  {'':>22}  {route.rests_on}"


def accuracy_sentence(most: float) -> str:
    """What an upper bound on the accuracy says; it is about the inputs of the free table."""
    inputs = "a uniform query and independent, uniform answers"
    return f"  expected accuracy at most {upper_text(most, 3)}, for {inputs}"


def bound(task: str, arch: Architecture) -> Route:
    """The tightest bound that holds in real arithmetic.

    If two are equal, a proved one takes precedence over a cited one.

    Raises:
        NoBoundError: none exists or none is known; `verdicts.why_no_bound` says which.
    """
    for route in all_routes(task, arch):
        if route.real_arithmetic:
            return route
    raise NoBoundError(f"no bound for {task} by {arch.depth} of {arch.family} ({arch.model})")


@cache
def all_routes(
    task: str, arch: Architecture, bits: int = 32, values: int = 2, query: Query = ONE_TOKEN
) -> tuple[Route, ...]:
    """Every route to a bound, tightest first; the module head lists them.

    >>> from ithbit.theory.architecture import architecture
    >>> for route in all_routes("rhi", architecture("ssm", n_layers=2)):
    ...     print(route.name, route.n_star)
    counting (P') 923
    counting (P) 935
    state of 32-bit numbers 1024
    Anthony–Bartlett 8.4 3953024
    """
    if bits < 1:
        raise SpecError(f"a number has at least 1 bit, got {bits}")
    routes = _routes(task_named(task), arch, bits, values, query)
    return tuple(sorted(routes, key=lambda route: (route.n_star, route.cited)))


def conditions(arch: Architecture) -> tuple[str, ...]:
    """What a bound for this architecture assumes about the trained block."""
    if arch.model == "formal" or arch.kind == "gru":
        return ()
    if arch.kind == "mamba2":
        return (
            "one RMSNorm over the inner width, gated before or after it",
            "one group",
            "no clamp of dt",
            "softplus read as log(1 + e^x)",
            "a final RMSNorm",
        )
    activation = "exact erf GELU" if arch.activation == "gelu" else "ReLU"
    feed_forward = f"{activation} in the feed-forward part"
    if arch.kind == "softmax":
        return (feed_forward, "LayerNorm after the attention and after the feed-forward part")
    return (
        feed_forward,
        "LayerNorm before the attention and before the feed-forward part, none at the end",
        "epsilon added to the denominator, not a clamp",
    )


def growth(arch: Architecture) -> str:
    """How n* of right-hand indexing grows with the number L of layers, all sizes fixed.

    From the stage lists, by the counting theorem: the sum of p over the stages is of order L^2;
    affine tests and degrees of order L add a logarithm, degrees of order 3^L a factor L. A chain of
    order L per index costs the square of p q = L^2: once if one stage decides, L times if every
    layer has its own stage.
    """
    if arch.kind in ("rnn", "ssm"):
        return "n* = O(L² log L), so L = Ω(√(n / log n))"
    if arch.model == "formal" and arch.feature == "relu":
        return "n* = O(L³), so L = Ω(n^(1/3))"
    if arch.kind in ("gru", "mamba2"):
        return "n* = O(L⁴), so L = Ω(n^(1/4))"
    return "n* = O(L⁵), so L = Ω(n^(1/5))"


def letter(counted: Iterable[Stage], polynomial: Polynomial = "bezout") -> str:
    """The case of the counting theorem, as its routes are named."""
    kinds = {stage.kind for stage in counted}
    if polynomial == "warren":
        return "(P, K)" if "K" in kinds else "(P)"
    return "(K)" if "K" in kinds else "(P')" if "P" in kinds else "(A)"


def _routes(
    task: Task, arch: Architecture, bits: int, values: int, query: Query
) -> Iterator[Route]:
    held, fixed = conditions(arch), fixed_bits(task, arch)
    if counted := stages(task, arch, values, query):
        how = ", Lemma 1" if counted[-1].winners else ", every two values compared"
        how = how if values > 2 else ""
        rigorous = letter(counted)
        theorem = f"the counting theorem {rigorous}{how}"
        theorem += ", from Khovanskii's theorem" if rigorous == "(K)" else ""
        star = n_star(counted, "bezout") + fixed
        yield Route(f"counting {rigorous}", star, theorem, False, held)
        if any(stage.kind == "P" for stage in counted):
            theorem = (
                f"the counting theorem (P){how}, with the constant of Anthony–Bartlett, Theorem 8.3"
            )
            name = f"counting {letter(counted, 'warren')}"
            yield Route(name, n_star(counted, "warren") + fixed, theorem, True, held)
    # Of V values two make the task binary.
    named, two = ("", "") if values == 2 else (", two values", "; for two of the values")
    one_token = query.tokens == 1
    if one_token and (few := narrow(task, arch)):
        yield Route(f"sign changes{named}", few.n_star + fixed, few.theorem + two, False, held)
    if one_token and (algorithm := program(task, arch)):
        p, t, q = algorithm
        name = "8.14" if q else "8.4"
        star = vc_with_exponentials(p, t, q) if q else vc_without_exponentials(p, t)
        theorem = f"Anthony–Bartlett, Theorem {name}, p = {p}, t = {t}, q = {q}{two}"
        yield Route(f"Anthony–Bartlett {name}{named}", star, theorem, cited=True)
    if (kept := state_bits(task, arch, bits)) is not None:
        yield state_route(values_held(kept, values) + fixed, bits)


def state_route(star: int, bits: int) -> Route:
    """The bound by the size of the state."""
    condition = f"recurrent, deterministic evaluation with a state of {bits}-bit numbers"
    name, theorem = f"state of {bits}-bit numbers", "equal states give equal answers"
    return Route(name, star, theorem, False, (condition,), real_arithmetic=False)
