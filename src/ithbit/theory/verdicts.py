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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from ithbit.display import Printable, lower_text, pluralize
from ithbit.errors import SpecError
from ithbit.families import FAMILIES, Task
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture, architecture
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
from ithbit.theory.solution import Solution, TrainedSolution

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
class Verdict(Printable):
    """The answer at one n, and what it rests on."""

    task: Task
    arch: Architecture
    n_bits: int
    answer: Answer
    because: str
    theorem: str | None  # of the paper; None where nothing is claimed or the paper has none
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

    def render(self) -> Iterator[str]:
        arch, n = self.arch, self.n_bits
        yield f"{self.task} · {arch.family} · {arch.depth} · {arch.sizes} · n = {n:,}"
        beyond = "no theorem of the paper" if self.answer == "impossible" else ""
        source = self.theorem or beyond
        yield self.answer + (f" ({source})" if source else "")
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


@dataclass(frozen=True)
class ExplicitWeights:
    """Weights of given sizes that solve a task at every n, in real arithmetic."""

    theorem: str
    sizes: str  # what they are, in words
    margin: str  # at every n; may contain n
    because: str
    options: str  # of `ithbit certify`, to select these weights
    width: int
    longest: int  # the largest n at which they are certified; 0 if they are not
    build: Callable[[int], Solution | TrainedSolution]

    def certificate(self, n_bits: int) -> Certificate | None:
        """Their certificate at this n, where it is quickly computed."""
        short = n_bits <= min(CERTIFIED_N, self.longest)
        return certify(self.build(n_bits)) if short else None


@dataclass(frozen=True)
class KnownResult:
    """What is known of a task and an architecture, whatever n: `verdict` and `bound` follow it."""

    weights: ExplicitWeights | None
    route: Route | None  # never beside weights: they would contradict each other
    missing: str  # why there are no weights; empty if there are
    no_route: str  # why there is no bound; empty if there is one

    @property
    def answer(self) -> Answer:
        """The verdict where no bound applies."""
        return "possible" if self.weights else "open"


def known_result(task: Task, arch: Architecture) -> KnownResult:
    """Explicit weights for every n, or a bound, or neither."""
    found = explicit_weights(task, arch)
    weights, missing = (None, found) if isinstance(found, str) else (found, "")
    try:
        route, no_route = bound(task, arch), ""
    except NoBoundError:
        route, no_route = None, "no bound is known either"
    except TooDeepError as limit:
        route, no_route = None, f"the bound is not known here: {limit}"
    assert weights is None or route is None, "weights and a bound contradict each other"
    return KnownResult(weights, route, missing, no_route)


def why_no_bound(task: Task, arch: Architecture) -> str:
    """Where there is no bound: the verdict at every n, in one sentence, and its command."""
    known = known_result(task, arch)
    if known.weights:
        because = f"for every n by {known.weights.sizes} ({known.weights.theorem})"
    else:
        because = f"{known.missing}, and {known.no_route}"
    subject = f"no bound for {task} by {arch.depth} of {arch.family} ({arch.model})"
    return f"{subject}: {known.answer}; {because}{_see(task, arch)}"


def _see(task: Task, arch: Architecture) -> str:
    """The command of the verdict with all sizes, where it takes them all."""
    usual = architecture(arch.family, arch.model)
    same = replace(
        usual,
        n_layers=arch.n_layers,
        width=arch.width,
        heads=arch.heads,
        hidden=arch.hidden,
        state=arch.state,
    )
    if same != arch:
        return ""
    sizes = (
        ("--width", arch.width, usual.width),
        ("--heads", arch.heads, usual.heads),
        ("--ff", arch.hidden, usual.hidden),
        ("--state", arch.state, usual.state),
    )
    options = "".join(f" {name} {size}" for name, size, default in sizes if size != default)
    model = " --model trained" if arch.model == "trained" else ""
    command = f"ithbit verdict {task} {arch.family} --layers {arch.n_layers}{options}{model}"
    return f"; see `{command}`"


def verdict(task: Task, arch: Architecture, n_bits: int) -> Verdict:
    """Whether layers of these sizes can solve the task at `n_bits`.

    If possible: *certified*, or *proved* by closed form past `CERTIFIED_N` and for trained blocks
    too large or too deep to certify. If impossible: *proved*, or cited, as the bound states.

    >>> from ithbit.theory.architecture import architecture
    >>> verdict("lhi", architecture("mamba2", "trained", n_layers=2), 64).answer
    'possible'
    >>> verdict("rhi", architecture("gru", "trained", width=1), 7).answer
    'impossible'
    """
    known = known_result(task, arch)
    if known.weights:
        return possible(task, arch, n_bits, known.weights)
    return _by_bounds(task, arch, n_bits, known)


def possible(task: Task, arch: Architecture, n_bits: int, weights: ExplicitWeights) -> Verdict:
    """The verdict of explicit weights."""
    certificate = weights.certificate(n_bits)
    how = "certified; " if certificate else "proved by closed form: "
    because = f", since {weights.because}" if weights.because else ""
    return Verdict(
        task,
        arch,
        n_bits,
        "possible",
        f"{weights.sizes}, {how}the margin is at least {weights.margin} for every n{because}",
        weights.theorem,
        certificate,
        weights.margin,
        weights=weights.options,
        width=weights.width,
        longest=weights.longest,
    )


@cache
def explicit_weights(task: Task, arch: Architecture) -> ExplicitWeights | str:
    """The weights, or a sentence on why there are none for such layers."""
    formal = entry_of(CONSTRUCTIONS, task, arch.family) if arch.model == "formal" else None
    trained = entry_of(TRAINED, task, arch.family) if arch.model == "trained" else None
    if formal and formal.depth <= arch.n_layers:
        return _formal(formal, arch)
    if trained and trained.depth <= arch.n_layers:
        return _trained(trained, arch)
    return "no construction is known at this depth"


def _formal(entry: Construction, arch: Architecture) -> ExplicitWeights | str:
    """Layers above those needed are identities, x = x+ − (−x)+: two hidden units per coordinate.

    In wider layers the other coordinates and heads are 0; the first head of linear attention
    repeats its key in every coordinate, which multiplies all weights alike.
    """
    variant = _VARIANT.get(entry.family, entry.default)
    small = construct(entry.task, entry.family, _SMALL_N, variant)
    extra = arch.n_layers - entry.depth
    units = max(hidden_units(small), 2 * small.width if extra else 0)
    if small.width > arch.head_width or units > arch.hidden:
        where = " in one head" if arch.heads > 1 else ""
        return (
            f"the construction of {entry.theorem} needs width {small.width}{where} and "
            f"{pluralize(units, 'hidden unit')}"
        )
    if arch.kind == "linear" and arch.feature != "elu":
        return f"the construction of {entry.theorem} here is for the kernel function ELU+1"
    always = every_n(variant, entry.family)
    assert always is not None  # a test checks it
    identity = f" and {pluralize(extra, 'identity layer')}" if extra else ""
    return ExplicitWeights(
        entry.theorem,
        f"{pluralize(entry.depth, 'layer')} of width {small.width} with "
        f"{pluralize(units, 'hidden unit')}{identity}",
        str(always.margin),
        "",
        f"--variant {variant}",
        small.width,
        certify(small).longest,
        lambda n: construct(entry.task, entry.family, n, variant),
    )


def _trained(entry: TrainedConstruction, arch: Architecture) -> ExplicitWeights | str:
    """Layers above those needed pass their input on."""
    heads = arch.heads if FAMILIES[entry.family].has_heads else 2  # unused, at its default
    sizes = (arch.n_layers, arch.width, heads, arch.hidden, arch.state)
    try:
        spec = ModelSpec(entry.task, entry.family, _SMALL_N, *sizes)
    except SpecError as limit:
        return f"no weights of this size are known: {limit}"
    if lacking := too_small(entry, spec):
        return lacking
    if arch.kind == "linear" and arch.activation != "gelu":
        return f"the weights for {entry.task} by {entry.family} are for GELU units"
    if arch.width > _WIDEST:
        return f"the margin of the construction is computed up to width {_WIDEST:,}"
    always = trained_every_n(entry.task, entry.family, arch.width, arch.heads)
    if always is None:
        return f"the margin of the construction is not proved at width {arch.width:,}"
    built = too_large(spec) is None and arch.n_layers <= _DEEPEST
    margin = lower_text(float(always.margin) * _PASSED_ON, 4)
    extra = arch.n_layers - entry.depth
    passing = f" and {extra:,} that pass{'es' if extra == 1 else ''} it on" if extra else ""
    usual = (("heads", heads, 2), ("ff", spec.d_ff, 64), ("state", spec.d_state, 16))
    other = "".join(f" --{name} {size}" for name, size, most in usual if size != most)
    return ExplicitWeights(
        f"beside {entry.theorem}",
        f"{pluralize(entry.depth, 'layer')} of width {arch.width}{passing}, explicit weights of "
        "the trained blocks",
        margin,
        always.because,
        f"--model trained --layers {arch.n_layers} --width {arch.width}{other}",
        arch.width,
        LONGEST if built else 0,
        lambda n: entry.build(replace(spec, n_bits=n)),
    )


def hidden_units(solution: Solution) -> int:
    """The widest hidden layer among the solution's MLPs."""
    nets = [
        value
        for layer in solution.layers
        for value in (getattr(layer, field.name) for field in fields(layer))
        if isinstance(value, ReluNet)
    ]
    return max(len(bias) for net in nets for bias in net.biases[:-1])


def _by_bounds(task: Task, arch: Architecture, n_bits: int, known: KnownResult) -> Verdict:
    """The verdict of the bounds where no construction applies."""
    theorem, route = lower_theorem(task, arch), known.route
    if route is None:
        because = f"{known.missing}; {known.no_route}"
        return Verdict(task, arch, n_bits, "open", because, None)
    if n_bits > route.n_star:
        because = f"no weights do it past n* = {route.n_star:,}; {route.rests_on}"
        return Verdict(task, arch, n_bits, "impossible", because, theorem, route=route)
    paper = f" ({theorem})" if theorem and arch.model == "formal" else ""
    because = (
        f"{known.missing}; impossible past n* = {route.n_star:,}{paper}, not ruled out at n = "
        f"{n_bits:,}"
    )
    return Verdict(task, arch, n_bits, "open", because, None, route=route)


def lower_theorem(task: Task, arch: Architecture) -> str | None:
    """The paper's theorem that the bound makes finite; for trained blocks, its counterpart. None if
    the paper has none: 12a is about causal layers of small causal complexity, so about one layer of
    full linear attention too (Remark 7), and 14b about one layer of attention or SSM."""
    prefix = "beside " if arch.model == "trained" else ""
    one_layer, recurrent = arch.n_layers == 1, arch.kind in ("rnn", "gru")
    if task == "lhi":
        return f"{prefix}Theorem 14b" if one_layer and not recurrent else None
    if arch.kind == "softmax" or not (arch.causal or one_layer):
        return None
    return f"{prefix}Theorem 12a" if arch.causal else f"{prefix}Theorem 12a with Remark 7"
