"""Verdicts: is solving the task possible, impossible or open, and why.

The paper's summary table as a function, for formal layers or for the trained blocks, at given
sizes:

* *possible*: explicit weights exist: *certified* at this n for all n · 2^n inputs, or *proved* for
  every n by the closed form of their margin;
* *impossible*: n is past the n* of a bound, so no weights at all solve it, in real arithmetic;
* *open*: neither a construction nor a bound here covers this n; nothing is claimed.

*Formal* layers are those of the paper's Definitions 5 to 9, with one hidden layer of ReLUs in each
MLP; SSMs have A(x) and B(x) affine in x.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from ithbit.families import Task
from ithbit.shown import Shown, counted, lower_text
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds import NoBoundError, Route, bound
from ithbit.theory.bounds.stages import TooDeepError
from ithbit.theory.certificate import LONGEST, Certificate, certify
from ithbit.theory.certifiers.every_n import every_n, trained_every_n
from ithbit.theory.constructions import (
    CONSTRUCTIONS,
    TRAINED,
    Construction,
    TrainedConstruction,
    construct,
    entry_of,
    too_large,
    too_small,
)
from ithbit.theory.layers import ReluNet
from ithbit.theory.solution import Solution

Answer = Literal["possible", "impossible", "open"]

# The bounds are for SSMs with A and B affine in x; this variant is one of them.
_VARIANT = {"ssm": "time-invariant"}

CERTIFIED_N = 1024  # up to here a verdict has a certificate at its own n, which takes half a second
_SMALL_N = 8  # weights for every n have the same sizes as at this n; a test checks it
_WIDEST = 1_000_000  # computing a trained margin needs arrays as long as the width
_DEEPEST = 64  # up to here a certificate's arb balls stay small
# Blocks that pass the answer on only rescale it: LayerNorm's epsilon takes 1e-12 off a variance of
# 1, however many blocks there are.
_PASSED_ON = 1 - 1e-9


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The answer at one n, and what it rests on."""

    task: Task
    arch: Architecture
    n_bits: int
    answer: Answer
    because: str
    theorem: str | None  # of the paper; None where nothing is claimed
    certificate: Certificate | None = None  # of weights at this n; none past `CERTIFIED_N`
    every_n: str | None = None  # the margin of these weights at every n
    weights: str = ""  # the options of `ithbit certify` that select these weights
    width: int = 0  # of these weights
    longest: int = 0  # the largest n at which these weights are certified
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
            "certificate": certificate_record(self.certificate),
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
            margin = f"{lower_text(self.certificate.margin)} on all {n} · 2^{n} inputs"
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


_RECORDED = ("certified", "margin", "inputs", "arithmetic", "depth", "width", "variant")


def certificate_record(certificate: Certificate | None) -> dict[str, Any] | None:
    """What a verdict's record has of a certificate."""
    if certificate is None:
        return None
    claims = certificate.summary()
    return {name: claims[name] for name in _RECORDED}


def verdict(task: Task, arch: Architecture, n_bits: int, heads: int = 2) -> Verdict:
    """Whether layers of these sizes can solve the task at `n_bits`.

    If possible: *certified*, or *proved* by closed form past `CERTIFIED_N` and for trained blocks
    too large or too deep to certify. If impossible: *proved*, or cited, as the bound states.
    `heads` are those of the explicit weights of trained blocks.

    >>> from ithbit.theory.architecture import architecture
    >>> verdict("lhi", architecture("mamba2", "trained", n_layers=2), 64).answer
    'possible'
    >>> verdict("rhi", architecture("gru", "trained", width=1), 7).answer
    'impossible'
    """
    found = possible(task, arch, n_bits, heads)
    return found if isinstance(found, Verdict) else _by_bounds(task, arch, n_bits, found)


def possible(task: Task, arch: Architecture, n_bits: int, heads: int = 2) -> Verdict | str:
    """The verdict of explicit weights, or a sentence on why there are none for such layers."""
    formal = entry_of(CONSTRUCTIONS, task, arch.family) if arch.model == "formal" else None
    trained = entry_of(TRAINED, task, arch.family) if arch.model == "trained" else None
    if formal and formal.depth <= arch.n_layers:
        return _formal(formal, arch, n_bits)
    if trained and trained.depth <= arch.n_layers:
        return _trained(trained, arch, n_bits, heads)
    return "no construction is known at this depth"


def _formal(entry: Construction, arch: Architecture, n_bits: int) -> Verdict | str:
    """Layers above those needed are identities, x = x+ − (−x)+: two hidden units per coordinate."""
    variant = _VARIANT.get(entry.family, entry.default)
    small = construct(entry.task, entry.family, _SMALL_N, variant)
    extra = arch.n_layers - entry.depth
    units = max(hidden_units(small), 2 * small.width if extra else 0)
    if small.width > arch.width or units > arch.hidden:
        return (
            f"the construction of {entry.theorem} needs width {small.width} and "
            f"{units} hidden units"
        )
    certificate = None
    if n_bits <= CERTIFIED_N:
        certificate = certify(construct(entry.task, entry.family, n_bits, variant))
    always = every_n(variant, entry.family)
    assert always is not None  # a test checks it
    margin = str(always.margin)
    identity = f" and {counted(extra, 'identity layer')}" if extra else ""
    return Verdict(
        entry.task,
        arch,
        n_bits,
        "possible",
        f"{counted(entry.depth, 'layer')} of width {small.width} with {units} hidden units"
        f"{identity}, {_margin(certificate, margin)}",
        entry.theorem,
        certificate,
        margin,
        weights=f"--variant {variant}",
        width=small.width,
        longest=certify(small).longest,
    )


def _trained(
    entry: TrainedConstruction, arch: Architecture, n_bits: int, heads: int
) -> Verdict | str:
    """Layers above those needed pass their input on."""
    sizes = (arch.n_layers, arch.width, heads, arch.hidden, arch.state)
    spec = ModelSpec(entry.task, entry.family, n_bits, *sizes)
    if lacking := too_small(entry, spec):
        return lacking
    if arch.width > _WIDEST:
        return f"the margin of the construction is computed up to width {_WIDEST:,}"
    built = too_large(spec) is None and arch.n_layers <= _DEEPEST
    certificate = certify(entry.build(spec)) if built and n_bits <= CERTIFIED_N else None
    always = trained_every_n(entry.task, entry.family, arch.width, arch.heads)
    margin = lower_text(float(always.margin) * _PASSED_ON, 4)
    extra = arch.n_layers - entry.depth
    passing = f" and {extra:,} that pass{'es' if extra == 1 else ''} it on" if extra else ""
    usual = (("heads", heads, 2), ("ff", spec.d_ff, 64), ("state", spec.d_state, 16))
    other = "".join(f" --{name} {size}" for name, size, most in usual if size != most)
    return Verdict(
        entry.task,
        arch,
        n_bits,
        "possible",
        f"{counted(entry.depth, 'layer')} of width {arch.width}{passing}, explicit weights of the "
        "trained blocks, "
        f"{_margin(certificate, margin)}, since {always.because}",
        f"beside {entry.theorem}",
        certificate,
        margin,
        weights=f"--model trained --layers {arch.n_layers} --width {arch.width}{other}",
        width=arch.width,
        longest=LONGEST if built else 0,
    )


def _margin(certificate: Certificate | None, always: str) -> str:
    how = "certified; " if certificate else "proved by closed form: "
    return f"{how}the margin is at least {always} for every n"


def hidden_units(solution: Solution) -> int:
    """The widest hidden layer among the solution's MLPs."""
    nets = [
        value
        for layer in solution.layers
        for value in (getattr(layer, field.name) for field in fields(layer))
        if isinstance(value, ReluNet)
    ]
    return max(len(bias) for net in nets for bias in net.biases[:-1])


def _by_bounds(task: Task, arch: Architecture, n_bits: int, missing: str) -> Verdict:
    """The verdict of the bounds where no construction applies; `missing` says why none does."""
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


def lower_theorem(task: Task, arch: Architecture) -> str:
    """The paper's theorem that the bound makes finite; for trained blocks, its counterpart."""
    beside = "beside " if arch.model == "trained" else ""
    if task == "lhi":
        return f"{beside}Theorem 14b"
    return f"{beside}Theorem 12a" if arch.causal else f"{beside}Theorem 12a with Remark 7"
