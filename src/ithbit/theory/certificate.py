"""Certificates: a proved lower bound on the margin over all n · 2^n inputs.

`certify` picks an argument that fits the weights and falls back on the generic one:

    marker        two layers of width 1, linear time      exact rationals and arb balls
    fixed states  one RNN layer, linear time              exact rationals
    boxes         any layers, for any construction        intervals rounded outward

and, for trained blocks, each for its own construction, in nearly linear time:

    angle, linear window, mamba2 window, latch            exact rationals and arb balls

A certificate is about *real arithmetic on the stored weights* (float64 numbers taken exactly).
What a float run does is a different question: see `precision`, whose answers are observed.
The file form and its check are in `certificate_file`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ithbit.display import Printable, lower_text, pluralize
from ithbit.errors import SpecError
from ithbit.spec import plain
from ithbit.theory.certifiers.angle import certify_angle
from ithbit.theory.certifiers.boxes import certify_boxes
from ithbit.theory.certifiers.every_n import EveryN, every_n, trained_every_n
from ithbit.theory.certifiers.exact import Bound, UnsuitableError, need
from ithbit.theory.certifiers.fixed_states import certify_states
from ithbit.theory.certifiers.latch import certify_latch
from ithbit.theory.certifiers.marker import certify_marker
from ithbit.theory.certifiers.windows import certify_linear, certify_mamba2
from ithbit.theory.constructions import construct, construct_trained
from ithbit.theory.precision import every_input, finite, float_runs, observed, safe_n
from ithbit.theory.solution import AnySolution, Solution, TrainedSolution

FORMAT = "ithbit certificate 1"  # of its file
SPEAKS_OF = "real arithmetic on the stored weights"

# Bounds found in floats are lowered by this fraction before they are stated: on another machine,
# whose sums may round differently, a check finds what a file states within half of it.
SLACK = 2.0**-40
DIGITS = 9  # of a margin, as printed
# The generic argument is refused past these lengths, where it would take minutes: n^3 steps for two
# attention layers, n^2 for recurrent layers, n^2 in one matrix product for one attention layer.
_LONGEST = {"deep": 160, "recurrent": 1100, "one attention layer": 10_000}
# n · 2^n has at most 4,300 digits, the longest integer that Python reads from text by default.
LONGEST = 14_267


@dataclass(frozen=True)
class Method:
    """One argument: `bound` gives the bound or raises `UnsuitableError`."""

    derivation: str
    bound: Callable[[Any], Bound]
    of: type = Solution  # the type of weights it applies to


@dataclass(frozen=True)
class Witness:
    """The worst input found, and its margin as *observed* in float64."""

    index: int
    bits: str
    margin: float


@dataclass(frozen=True, repr=False)
class Certificate(Printable):
    """A proved lower bound on the margin over all inputs; `certified` if it is positive.

    If not certified, `margin` is still a lower bound, but says nothing: the weights may be wrong,
    or right in a way this argument misses. `refused` lists the arguments that did not apply.
    """

    solution: AnySolution
    margin: float
    method: str
    arithmetic: str
    derivation: str
    worst: Witness
    refused: tuple[str, ...] = ()

    @property
    def certified(self) -> bool:
        return self.margin > 0

    @property
    def inputs(self) -> int:
        """How many inputs the bound covers: all n · 2^n."""
        return self.solution.n_bits << self.solution.n_bits

    @property
    def longest(self) -> int:
        """Up to which n such weights are certified: a limit of computation, not of the claim."""
        if self.method == "boxes" and isinstance(self.solution, Solution):
            return min(LONGEST, _longest_boxes(self.solution))
        return LONGEST

    @property
    def claim(self) -> str:
        """The margin, rounded down, and the inputs it covers; n · 2^n stays a formula."""
        n = self.solution.n_bits
        if not math.isfinite(self.margin):
            return f"no lower bound on the margin over all {n}·2^{n} inputs"
        return f"margin >= {lower_text(self.margin, DIGITS)} on all {n}·2^{n} inputs"

    def summary(self) -> dict[str, Any]:
        """The claim without the weights, as plain JSON values."""
        solution, worst = self.solution, self.worst
        require_writable(solution.n_bits)
        trained: dict[str, Any] = {}
        if isinstance(solution, TrainedSolution):
            trained = {"model": "trained", "spec": plain(solution.spec)}
        return {
            "format": FORMAT,
            **trained,
            "task": solution.task,
            "family": solution.family,
            "variant": solution.variant,
            "theorem": solution.theorem,
            "n": solution.n_bits,
            "depth": solution.depth,
            "width": solution.width,
            "sizes": list(solution.sizes),
            "certified": self.certified,
            "margin": finite(self.margin),
            "inputs": self.inputs,
            "arithmetic": self.arithmetic,
            "method": self.method,
            "derivation": self.derivation,
            "speaks_of": SPEAKS_OF,
            "worst": {
                "index": worst.index,
                "bits": worst.bits,
                "observed_margin": finite(worst.margin),
            },
        }

    def to_json(self) -> dict[str, Any]:
        """The claim without the weights, and what was observed of float runs."""
        seen = observed(self.solution, is_construction(self.solution))
        return self.summary() | {"float_execution": seen}

    def render(self) -> Iterator[Any]:
        """The claim, what it rests on, and what was observed in float runs: *certified* is proved
        for every input in real arithmetic; *observed* is what float runs did."""
        from rich.table import Table

        solution, worst = self.solution, self.worst
        layers = pluralize(solution.depth, "layer")
        sizes = " + ".join(map(str, solution.sizes))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        table.add_row("certified" if self.certified else "not certified", self.claim)
        table.add_row(
            "weights", f"{layers} of width {solution.width}, size {sizes}; {solution.variant}"
        )
        table.add_row("how", self.derivation)
        table.add_row("arithmetic", self.arithmetic)
        found = f"index {worst.index}, bits {shortened(worst.bits)}; margin {worst.margin:.9g}"
        table.add_row("worst found", f"{found} (observed)")
        every = every_input(solution)
        if every is not None:
            ran = f"all {self.inputs} inputs run one by one"
            table.add_row("enumerated", f"{ran}, smallest margin {every:.9g} (observed)")
        is_ours = is_construction(solution)
        for run in float_runs(solution):
            safe = safe_n(solution, run.dtype) if is_ours else None
            reach = "" if safe is None else f"; in separate runs {safe.sentence()}"
            table.add_row(run.dtype, f"{run.sentence()}{reach} (observed)")
        if always := for_every_n(solution):
            least = f"{always.margin} by closed form"
            if isinstance(always.margin, float):
                least = lower_text(always.margin, DIGITS)
            table.add_row("for every n", f"margin >= {least}: {always.because}")
        table.add_row("applies to", "real arithmetic on the stored weights, not float runs")
        source = solution.theorem if is_ours else "not the weights of a construction"
        yield f"{solution.task.upper()} by {solution.family}, n = {solution.n_bits} ({source})\n"
        yield table


def is_construction(solution: AnySolution) -> bool:
    """Whether these are exactly the weights that `construct` builds for such a task, family, n and
    sizes, with the same names: what is known of the construction for every n applies to them."""
    try:
        built: AnySolution
        if isinstance(solution, TrainedSolution):
            spec, sizes = solution.spec, ("d_model", "n_heads", "d_ff", "d_state", "positions")
            given = {name: getattr(spec, name) for name in sizes}
            built = construct_trained(spec.task, spec.family, spec.n_bits, spec.n_layers, **given)
        else:
            built = construct(solution.task, solution.family, solution.n_bits, solution.variant)
            if [getattr(layer, "feature", None) for layer in solution.layers] != [
                getattr(layer, "feature", None) for layer in built.layers
            ]:
                return False
    except SpecError:
        return False
    if (built.variant, built.theorem) != (solution.variant, solution.theorem):
        return False
    these, those = solution.arrays(), built.arrays()
    return len(these) == len(those) and all(map(np.array_equal, these, those))


def for_every_n(solution: AnySolution) -> EveryN | None:
    """The margin at every n of the construction that these weights are; None for other weights."""
    if not is_construction(solution):
        return None
    if isinstance(solution, TrainedSolution):
        spec = solution.spec
        return trained_every_n(spec.task, spec.family, spec.d_model, spec.n_heads)
    return every_n(solution.variant, solution.family)


def require_writable(n_bits: int) -> None:
    """Raise `SpecError` if the number of inputs has too many digits to be written."""
    if n_bits > LONGEST:
        raise SpecError(
            f"certificates are written for n up to {LONGEST}, got n = {n_bits}; take a shorter n, "
            "or use `ithbit verdict`, which reports what is proved for every n"
        )


def shortened(text: str, most: int = 32, end: int = 12) -> str:
    """A text; of a long one, as bits may be, only both ends.

    >>> shortened("101"), shortened("0" * 99)
    ('101', '000000000000…000000000000')
    """
    return text if len(text) <= most else f"{text[:end]}…{text[-end:]}"


def _longest_boxes(solution: Solution) -> int:
    attention = [layer.kind in ("softmax", "linear") for layer in solution.layers]
    one = "one attention layer" if attention[-1] else "recurrent"
    return _LONGEST["deep" if any(attention[:-1]) else one]


def _boxes_bound(solution: Solution) -> Bound:
    longest = _longest_boxes(solution)
    fits = solution.n_bits <= longest
    need(fits, f"the generic argument is offered up to n = {longest} for such layers")
    found = certify_boxes(solution)
    return replace(found, margin=found.margin - abs(found.margin) * SLACK)


METHODS: dict[str, Method] = {
    "marker": Method(
        "layer 1 marks one token and is exactly 0 at all others, layer 2 adds up and reads; "
        "every hypothesis checked on the weights, in O(n log n)",
        certify_marker,
    ),
    "fixed states": Method(
        "no token but the index, position i and the end moves the state; checked on the "
        "weights for all indices, in O(n log n)",
        certify_states,
    ),
    "boxes": Method(
        "for every index and answer, a box per token that holds for all other bits: attention "
        "by a fractional program, MLPs by affine forms, states step by step",
        _boxes_bound,
    ),
    "angle": Method(
        "what the blocks read and write taken exactly from the weights; scores peak at the "
        "index, and the worst bits are those opposed to the answer, index by index, in O(n)",
        certify_angle,
        TrainedSolution,
    ),
    "linear window": Method(
        "what the blocks read and write taken exactly from the weights; every place is moved "
        "by the index, and the units open at one place alone, index by index, in O(n)",
        certify_linear,
        TrainedSolution,
    ),
    "mamba2 window": Method(
        "what the blocks read and write taken exactly from the weights; every place is moved "
        "by the index, and the channels open at one place alone, index by index, in O(n)",
        certify_mamba2,
        TrainedSolution,
    ),
    "latch": Method(
        "every gate of the three units that are used, bounded at all tokens, index by index, "
        "in O(n)",
        certify_latch,
        TrainedSolution,
    ),
}


def certify(solution: AnySolution, method: str | None = None) -> Certificate:
    """The certificate of these weights: a rigorous lower bound on the margin over all inputs.

    Tries the arguments in the order of the module head and takes the first that applies; `method`
    selects one of them. Raises `SpecError` if none applies, for instance because n is too large.
    """
    if method is not None and method not in METHODS:
        raise SpecError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    refused = []
    for name in METHODS if method is None else (method,):
        if not isinstance(solution, METHODS[name].of):
            continue
        try:
            bound = METHODS[name].bound(solution)
        except UnsuitableError as reason:
            refused.append(f"{name}: {reason}")
            continue
        return Certificate(
            solution=solution,
            margin=bound.margin,
            method=name,
            arithmetic=bound.arithmetic,
            derivation=METHODS[name].derivation,
            worst=find_worst(solution, bound.index, bound.answer),
            refused=tuple(refused),
        )
    what = f"{solution.task} by {solution.family} at n = {solution.n_bits}"
    if isinstance(solution, TrainedSolution):
        known = [name for name, each in METHODS.items() if each.of is TrainedSolution]
        reasons = "; ".join(refused) or f"{method} is about formal layers, not {', '.join(known)}"
        raise SpecError(f"no argument applies to these weights of {what} ({reasons})")
    raise SpecError(f"no argument applies to {what} ({'; '.join(refused)}); take a shorter n")


def find_worst(solution: AnySolution, index: int, answer: int) -> Witness:
    """The input with the smallest *observed* margin among a few that share index and answer.

    The other bits are all 0, all 1, 1 only before, only after or only next to the index, and
    random; fewer are tried if a run is costly. The certificate covers all inputs; this one is only
    an illustration.
    """
    n = solution.n_bits
    k = np.arange(1, n + 1)
    strings = [np.zeros(n), np.ones(n), k < index, k > index, np.abs(k - index) <= 1]
    affordable = 4e7 / solution.run_cost
    count = int(min(len(strings), max(1, affordable)))
    bits = np.array(strings[:count]).astype(np.uint8)
    if affordable > 64:
        noise = np.random.default_rng(0).integers(0, 2, (32, n), dtype=np.uint8)
        bits = np.concatenate([bits, noise])
    bits[:, index - 1] = answer
    with np.errstate(all="ignore"):  # wrong weights may overflow; a NaN counts as the worst
        margins = solution.margins(bits, np.full(len(bits), index)).astype(np.float64)
    at = int(np.argmin(np.where(np.isfinite(margins), margins, -np.inf)))
    return Witness(index, "".join(map(str, bits[at])), float(margins[at]))
