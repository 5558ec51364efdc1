"""Verdicts: is it possible, is it impossible, or is it open, and why.

The paper's summary table as a function, for formal layers of a given width and hidden size:

* *possible*: explicit weights exist: *certified* at this n for all n · 2^n inputs, or *proved* for
  every n by the closed form of their margin;
* *impossible*: n is past the n* of a bound, so no weights at all do it, in real arithmetic;
* *open*: neither a construction nor a bound here speaks of this n; nothing is claimed.

`table` derives the least number of layers of every entry from constructions that certify and from
bounds that hold. Families are the formal ones; layers are those of the paper's Definitions 5 to 9
with one hidden layer of ReLUs in each MLP, SSMs with A(x) and B(x) affine in x.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ithbit.errors import SpecError, whole
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.shown import Shown
from ithbit.theory.architecture import FORMAL_FAMILIES, Architecture, architecture, need_theory
from ithbit.theory.bounds import NoBoundError, Route, bound, growth
from ithbit.theory.bounds.stages import TooDeepError
from ithbit.theory.certificate import Certificate, certify
from ithbit.theory.certifiers.arguments.every_n import every_n
from ithbit.theory.constructions import CONSTRUCTIONS, Construction, construct, entry_of
from ithbit.theory.deepening import deepened, hidden_units
from ithbit.theory.solution import Solution

Answer = Literal["possible", "impossible", "open"]

# The SSMs the bounds speak of have A and B affine in x; this variant is one of them.
_VARIANT = {"ssm": "time-invariant"}

DEPTHS_SHOWN = (1, 2, 3, 4)
CERTIFIED_N = 1024  # up to here a verdict has a certificate at its own n; it takes half a second
_SMALL_N = 8  # weights of every n have the sizes of these; tests hold it


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The answer at one n, and what it stands on."""

    task: Task
    arch: Architecture
    n_bits: int
    answer: Answer
    because: str
    theorem: str | None  # of the paper; None where nothing is claimed
    certificate: Certificate | None = None  # of weights at this n; none past `CERTIFIED_N`
    every_n: str | None = None  # the margin of these weights at every n
    weights: str = ""  # which weights they are, as `ithbit certify` takes it
    longest: int = 0  # up to which n these are certified
    route: Route | None = None  # the bound, vacuous or not

    @property
    def n_star(self) -> int | None:
        return self.route.n_star if self.route else None

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            **self.arch.to_json(),
            "n": self.n_bits,
            "answer": self.answer,
            "because": self.because,
            "theorem": self.theorem,
            "n_star": self.n_star,
            "rests_on": self.route.rests_on if self.route else None,
            "certificate": _certificate_record(self.certificate),
            "every_n": self.every_n,
        }

    def parts(self) -> Iterator[str]:
        arch, n = self.arch, self.n_bits
        yield f"{self.task} · {arch.family} · {arch.depth} · {arch.sizes} · n = {n:,}"
        yield self.answer + (f" ({self.theorem})" if self.theorem else "")
        yield f"  {self.because}"
        if self.answer != "possible":
            return
        command = f"ithbit certify {self.task} {arch.family} {self.weights} --n"
        if self.certificate:
            margin = f"{self.certificate.margin:.6g} on all {n} · 2^{n} inputs"
            yield f"  margin at least {margin}, in real arithmetic; by `{command} {n}`"
        elif n <= self.longest:
            yield f"  `{command} {n}` certifies stored weights at this n"
        elif self.longest:
            yield (
                f"  a certificate of stored weights is computed for n up to {self.longest:,} only: "
                f"`{command} {CERTIFIED_N}`"
            )
        else:
            yield "  stored weights of this size are not certified here"


@dataclass(frozen=True)
class Entry:
    """One entry of the summary table, derived.

    `min_layers` is None where every number of layers has an n*: omega(1) in the paper. Otherwise
    `certificate` shows that so many layers suffice at n, past `CERTIFIED_N` `every_n` does; `fewer`
    is the bound for one less.
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
        """What the entry stands on, in words."""
        if self.min_layers is None:
            stars = ", ".join(f"{r.n_star:,}{'*' if r.cited else ''}" for r in self.by_depth)
            return f"n* = {stars} for L = 1, 2, 3, 4; {self.growth} ({self.theorem})"
        if self.certificate:
            margin = f"{self.certificate.margin:.5g}"
            text = f"certified at width {self.width}, margin ≥ {margin} ({self.theorem})"
        else:
            assert self.every_n is not None
            margin = f"{self.every_n} for every n"
            text = f"proved at width {self.width}, margin ≥ {margin} ({self.theorem})"
        if self.fewer:
            text += f"; {self.min_layers - 1} layer: impossible past n* = {self.fewer.n_star:,}"
        return text

    def to_json(self) -> dict[str, Any]:
        bounds = (*self.by_depth, *([self.fewer] if self.fewer else []))
        return {
            "task": self.task,
            "family": self.family,
            "min_layers": self.min_layers,
            "theorem": self.theorem,
            "certificate": _certificate_record(self.certificate),
            "every_n": self.every_n,
            "n_star_with_fewer": self.fewer.n_star if self.fewer else None,
            "n_star_by_depth": [route.n_star for route in self.by_depth] or None,
            "growth": self.growth,
            "rests_on": sorted({route.rests_on for route in bounds}),
        }


def _certificate_record(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    return {
        "certified": certificate.certified,
        "margin": certificate.margin,
        "inputs": certificate.inputs,
        "arithmetic": certificate.arithmetic,
        "depth": certificate.solution.depth,
        "width": certificate.solution.width,
        "variant": certificate.solution.variant,
    }


def verdict(
    task: str, family: str, n_layers: int, n_bits: int, *, width: int = 16, hidden: int = 64
) -> Verdict:
    """Whether `n_layers` formal layers of this width can solve the task at `n_bits`.

    *Certified* if possible, past `CERTIFIED_N` *proved* by closed form; *proved* (or cited, as the
    bound says) if impossible.
    """
    name = task_named(task)
    n_bits = whole("n_bits", n_bits)
    if n_bits < 1:
        raise SpecError(f"n must be at least 1, got {n_bits}")
    need_theory(family)
    if family in FAMILIES and (formal := FAMILIES[family].formal) != family:
        raise SpecError(
            f"verdicts speak of formal layers and {family!r} is trained only; "
            f"its formal counterpart is {formal!r}"
        )
    arch = architecture(family, n_layers=n_layers, width=width, hidden=hidden)
    entry = entry_of(CONSTRUCTIONS, name, family)
    missing = "no construction is known at this depth"
    if entry is not None and entry.depth <= n_layers:
        solution = deepened(_solution(entry, _SMALL_N), min(n_layers, entry.depth + 1))
        needed = (solution.width, hidden_units(solution))
        certificate, closed = _certificate(entry, n_bits), _closed(entry)
        if needed[0] > width or needed[1] > hidden:
            missing = (
                f"the construction of {entry.theorem} needs width {needed[0]} and "
                f"{needed[1]} hidden units"
            )
        elif certificate is None and closed is None:
            missing = f"the construction of {entry.theorem} has no certificate at this n"
        else:
            small = certify(_solution(entry, _SMALL_N))
            return Verdict(
                name,
                arch,
                n_bits,
                "possible",
                _why_possible(entry, n_layers, needed, certificate, closed),
                entry.theorem,
                certificate,
                closed,
                weights=f"--variant {small.solution.variant}",
                longest=small.longest,
            )
    return by_bounds(name, arch, n_bits, missing)


def by_bounds(task: Task, arch: Architecture, n_bits: int, missing: str) -> Verdict:
    """What the bounds say where no construction serves, for the reason `missing`."""
    theorem = lower_theorem(task, arch)
    try:
        route = bound(task, arch)
    except NoBoundError:
        return Verdict(task, arch, n_bits, "open", f"{missing}; no bound is known either", None)
    except TooDeepError as limit:
        because = f"{missing}, and the bound is not known here: {limit}"
        return Verdict(task, arch, n_bits, "open", because, None)
    if n_bits > route.n_star:
        because = f"no weights do it past n* = {route.n_star:,}; {route.rests_on}"
        return Verdict(task, arch, n_bits, "impossible", because, theorem, route=route)
    paper = f" ({theorem})" if arch.model == "formal" else ""
    because = (
        f"{missing}; impossible past n* = {route.n_star:,}{paper}, but at n = {n_bits:,} that "
        "bound is vacuous"
    )
    return Verdict(task, arch, n_bits, "open", because, None, route=route)


def table(n_bits: int = 64, *, width: int = 16, hidden: int = 64) -> tuple[Entry, ...]:
    """The paper's summary table, derived: constructions certified at `n_bits`, and bounds."""
    return tuple(
        _entry(task, family, n_bits, width, hidden) for family in FORMAL_FAMILIES for task in TASKS
    )


def never_enough(task: Task, at: Callable[[int], Architecture]) -> Entry:
    """The entry without a construction; `bound` raises if there were a depth without a bound, and
    the entry could not be omega(1)."""
    one = at(1)
    routes = tuple(bound(task, at(depth)) for depth in DEPTHS_SHOWN)
    theorem = lower_theorem(task, one)
    return Entry(task, one.family, None, theorem, by_depth=routes, growth=growth(one))


def _entry(task: Task, family: str, n_bits: int, width: int, hidden: int) -> Entry:
    found = entry_of(CONSTRUCTIONS, task, family)

    def at(depth: int) -> Architecture:
        return architecture(family, n_layers=depth, width=width, hidden=hidden)

    if found is None:
        return never_enough(task, at)
    certificate, closed = _certificate(found, n_bits), _closed(found)
    if certificate is None and closed is None:
        raise SpecError(
            f"the construction for {task} by {family} has no certificate at n = {n_bits}; "
            f"ask for the table at a smaller n"
        )
    fewer = bound(task, at(found.depth - 1)) if found.depth > 1 else None
    width = _solution(found, _SMALL_N).width
    return Entry(task, family, found.depth, found.theorem, width, certificate, closed, fewer)


def _solution(entry: Construction, n_bits: int) -> Solution:
    return construct(entry.task, entry.family, n_bits, _VARIANT.get(entry.family))


def _certificate(entry: Construction, n_bits: int) -> Certificate | None:
    """The certificate; None where no argument certifies so long a string, or it would take long."""
    if n_bits > CERTIFIED_N:
        return None
    try:
        certificate = certify(_solution(entry, n_bits))
    except SpecError:
        return None
    return certificate if certificate.certified else None


def _closed(entry: Construction) -> str | None:
    """The margin of the construction at every n, where it has a closed form."""
    found = every_n(_VARIANT.get(entry.family, entry.default), entry.family)
    return None if found is None else found.margin


def lower_theorem(task: Task, arch: Architecture) -> str:
    """The statement of the paper that the bound makes finite, or that it stands beside."""
    beside = "beside " if arch.model == "trained" else ""
    if task == "lhi":
        return f"{beside}Theorem 14b"
    return f"{beside}Theorem 12a" if arch.causal else f"{beside}Theorem 12a with Remark 7"


def _why_possible(
    entry: Construction,
    n_layers: int,
    needed: tuple[int, int],
    certificate: Certificate | None,
    closed: str | None,
) -> str:
    layers = f"{entry.depth} layer{'s' if entry.depth > 1 else ''}"
    extra = n_layers - entry.depth
    identity = f" and {extra:,} identity layer{'s' if extra > 1 else ''}" if extra else ""
    size = f"{layers} of width {needed[0]} with {needed[1]} hidden units{identity}"
    at_every_n = f"the margin is at least {closed} for every n" if closed else ""
    if certificate:
        return f"{size}, certified{'; ' if closed else ''}{at_every_n}"
    return f"{size}, proved by closed form: {at_every_n}"
