"""Verdicts: is it possible, is it impossible, or is it open, and why.

The paper's summary table as a function, for formal layers of a given width and hidden size:

* *possible*: explicit weights exist and their certificate covers all n · 2^n inputs;
* *impossible*: n is past the n* of a bound, so no weights at all do it, in real arithmetic;
* *open*: neither a construction nor a bound here speaks of this n; nothing is claimed.

`table` derives the least number of layers of every entry from constructions that certify and from
bounds that hold. Families are the formal ones; layers are those of the paper's Definitions 5 to 9
with one hidden layer of ReLUs in each MLP, SSMs with A(x) and B(x) affine in x.
"""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from ithbit.errors import SpecError, whole
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.theory.architecture import FORMAL_FAMILIES, Architecture, architecture
from ithbit.theory.bounds import NoBoundError, Route, bound, growth
from ithbit.theory.certificate import Certificate, certify
from ithbit.theory.certifiers.every_n import every_n
from ithbit.theory.constructions import CONSTRUCTIONS, Construction, construct
from ithbit.theory.gadgets import constant, two_step
from ithbit.theory.layers import (
    FloatArray,
    Layer,
    LinearAttention,
    ReluNet,
    Rnn,
    SoftmaxAttention,
    Ssm,
    matrix,
)
from ithbit.theory.solution import Solution

Answer = Literal["possible", "impossible", "open"]

# The SSMs the bounds speak of have A and B affine in x; this variant is one of them.
_VARIANT = {"ssm": "time-invariant"}

DEPTHS_SHOWN = (1, 2, 3, 4)


@dataclass(frozen=True)
class Verdict:
    """The answer at one n, and what it stands on."""

    task: Task
    arch: Architecture
    n_bits: int
    answer: Answer
    because: str
    theorem: str | None  # of the paper; None where nothing is claimed
    certificate: Certificate | None = None
    route: Route | None = None  # the bound, vacuous or not

    @property
    def n_star(self) -> int | None:
        return self.route.n_star if self.route else None


@dataclass(frozen=True)
class Entry:
    """One entry of the summary table, derived.

    `min_layers` is None where every number of layers has an n*: omega(1) in the paper. Otherwise
    `certificate` shows that so many layers suffice at n, and `fewer` is the bound for one less.
    """

    task: Task
    family: str
    min_layers: int | None
    theorem: str
    certificate: Certificate | None
    fewer: Route | None
    by_depth: tuple[Route, ...]  # n* for 1, 2, 3, 4 layers where no number of layers suffices
    growth: str | None


def verdict(
    task: str, family: str, n_layers: int, n_bits: int, *, width: int = 16, hidden: int = 64
) -> Verdict:
    """Whether `n_layers` formal layers of this width can solve the task at `n_bits`.

    *Certified* if possible, *proved* (or cited, as the bound says) if impossible.

    >>> verdict("lhi", "rnn", 1, 8).answer, verdict("lhi", "ssm", 1, 5000).answer
    ('possible', 'impossible')
    >>> verdict("rhi", "rnn", 2, 64).answer
    'open'
    """
    name = task_named(task)
    n_bits = whole("n_bits", n_bits)
    if n_bits < 1:
        raise SpecError(f"n must be at least 1, got {n_bits}")
    if family in FAMILIES and FAMILIES[family].formal != family:
        formal = FAMILIES[family].formal
        raise SpecError(
            f"verdicts speak of formal layers and {family!r} is trained only; "
            f"its formal counterpart is {formal!r}"
        )
    arch = architecture(family, n_layers=n_layers, width=width, hidden=hidden)
    entry = _construction(name, family)
    missing = "no construction is known at this depth"
    if entry is not None and entry.depth <= n_layers:
        solution = deepened(_solution(entry, n_bits), n_layers)
        needed = (solution.width, hidden_units(solution))
        if needed[0] > width or needed[1] > hidden:
            missing = (
                f"the construction of {entry.theorem} needs width {needed[0]} and "
                f"{needed[1]} hidden units"
            )
        elif (certificate := _certificate(entry, n_bits)) is None:
            missing = f"the construction of {entry.theorem} has no certificate at this n"
        else:
            because = _why_possible(entry, n_layers, needed, certificate)
            return Verdict(
                name, arch, n_bits, "possible", because, entry.theorem, certificate=certificate
            )
    try:
        route = bound(name, arch)
    except NoBoundError:
        because = f"{missing}; no bound is known either"
        return Verdict(name, arch, n_bits, "open", because, None)
    if n_bits > route.n_star:
        because = f"no weights do it past n* = {route.n_star:,}; {route.rests_on}"
        return Verdict(
            name, arch, n_bits, "impossible", because, _lower_theorem(name, arch), route=route
        )
    because = (
        f"{missing}; impossible past n* = {route.n_star:,} ({_lower_theorem(name, arch)}), "
        f"but at n = {n_bits:,} that bound is vacuous"
    )
    return Verdict(name, arch, n_bits, "open", because, None, route=route)


def table(n_bits: int = 64, *, width: int = 16, hidden: int = 64) -> tuple[Entry, ...]:
    """The paper's summary table, derived: constructions certified at `n_bits`, bounds at the sizes.

    >>> {entry.family: entry.min_layers for entry in table(4) if entry.task == "rhi"}["ssm"] is None
    True
    """
    return tuple(
        _entry(task, family, n_bits, width, hidden) for family in FORMAL_FAMILIES for task in TASKS
    )


def _entry(task: Task, family: str, n_bits: int, width: int, hidden: int) -> Entry:
    found = _construction(task, family)

    def at(depth: int) -> Architecture:
        return architecture(family, n_layers=depth, width=width, hidden=hidden)

    if found is None:
        # `bound` raises if there were a depth without a bound, and the entry could not be omega(1).
        routes = tuple(bound(task, at(depth)) for depth in DEPTHS_SHOWN)
        return Entry(
            task, family, None, _lower_theorem(task, at(1)), None, None, routes, growth(at(1))
        )
    certificate = _certificate(found, n_bits)
    if certificate is None:
        raise SpecError(
            f"the construction for {task} by {family} has no certificate at n = {n_bits}; "
            f"ask for the table at a smaller n"
        )
    fewer = bound(task, at(found.depth - 1)) if found.depth > 1 else None
    return Entry(task, family, found.depth, found.theorem, certificate, fewer, (), None)


def _construction(task: Task, family: str) -> Construction | None:
    for entry in CONSTRUCTIONS:
        if (entry.task, entry.family) == (task, family):
            return entry
    return None


def _solution(entry: Construction, n_bits: int) -> Solution:
    return construct(entry.task, entry.family, n_bits, _VARIANT.get(entry.family))


def _certificate(entry: Construction, n_bits: int) -> Certificate | None:
    """The certificate, or None where no argument certifies so long a string."""
    try:
        certificate = certify(_solution(entry, n_bits))
    except SpecError:
        return None
    return certificate if certificate.certified else None


def _lower_theorem(task: Task, arch: Architecture) -> str:
    """The statement of the paper that the bound makes finite."""
    if task == "lhi":
        return "Theorem 14b"
    return "Theorem 12a" if arch.causal else "Theorem 12a with Remark 7"


def _why_possible(
    entry: Construction, n_layers: int, needed: tuple[int, int], certificate: Certificate
) -> str:
    layers = f"{entry.depth} layer{'s' if entry.depth > 1 else ''}"
    extra = n_layers - entry.depth
    identity = f" and {extra} identity layer{'s' if extra > 1 else ''}" if extra else ""
    size = f"{layers} of width {needed[0]} with {needed[1]} hidden units{identity}"
    closed = every_n(certificate.solution.variant, entry.family)
    at_every_n = f"; the margin is at least {closed.margin} for every n" if closed else ""
    return f"{size}, certified{at_every_n}"


def hidden_units(solution: Solution) -> int:
    """The widest hidden layer among the solution's MLPs."""
    nets = [
        value
        for layer in solution.layers
        for value in (getattr(layer, field.name) for field in fields(layer))  # type: ignore[arg-type]
        if isinstance(value, ReluNet)
    ]
    return max(len(bias) for net in nets for bias in net.biases[:-1])


def deepened(solution: Solution, n_layers: int) -> Solution:
    """The same solution with identity layers on top, so that it has `n_layers` layers.

    *Exact*: an identity layer gives its input back in real arithmetic, so the margin on every input
    is unchanged. Attention takes V = 0, an SSM or RNN ignores its state; the MLP is x = x+ − (−x)+.

    >>> deepened(construct("lhi", "rnn", 4), 3).depth
    3
    """
    extra = n_layers - solution.depth
    assert extra >= 0
    if not extra:
        return solution
    top = _identity_layer(solution.layers[-1])
    return Solution(
        task=solution.task,
        family=solution.family,
        n_bits=solution.n_bits,
        layers=solution.layers + (top,) * extra,
        embedding=solution.embedding,
        output=solution.output,
        theorem=solution.theorem,
        variant=f"{solution.variant}, deepened",
    )


def _identity_layer(like: Layer) -> Layer:
    d = like.d_out
    eye, zero = np.eye(d), matrix(np.zeros((d, d)))
    own = _identity_net(eye)
    if isinstance(like, SoftmaxAttention):
        return SoftmaxAttention(like.causal, zero, zero, zero, own)
    if isinstance(like, LinearAttention):
        return LinearAttention(like.causal, zero, zero, zero, own, like.feature)
    read = _identity_net(np.hstack([eye, 0 * eye]))  # reads x and not h
    if isinstance(like, Ssm):
        return Ssm(constant([0.0] * d**2, d), constant([0.0] * d, d), read, matrix([0.0] * d, 1))
    assert isinstance(like, Rnn)
    return Rnn(constant([0.0] * d, 2 * d), read)


def _identity_net(pick: FloatArray) -> ReluNet:
    """x+ − (−x)+ of the coordinates that `pick` selects; two hidden units each."""
    d = len(pick)
    eye = np.eye(d)
    inner, outer = np.vstack([pick, -pick]), np.hstack([eye, -eye])
    return two_step(inner.tolist(), [0.0] * (2 * d), outer.tolist(), [0.0] * d)
