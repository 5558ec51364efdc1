"""Certificates: a proved lower bound of the margin over all n · 2^n inputs.

`certify` picks an argument that fits the weights and falls back on the generic one:

    marker        two layers of width 1, linear time      exact rationals and arb balls
    fixed states  one RNN layer, linear time              exact rationals
    boxes         any layers, knows no construction       intervals rounded outward

A certificate speaks of *real arithmetic on the stored weights* (float64 numbers taken exactly).
What a float run does is a different question: see `precision`, whose answers are observed.
The file form and its check are in `certificate_file`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ithbit.errors import SpecError
from ithbit.theory.certifiers import boxes, fixed_states, marker
from ithbit.theory.certifiers.lines import UnsuitableError
from ithbit.theory.solution import Solution

SPEAKS_OF = "real arithmetic on the stored weights"

# Bounds found in floats are lowered by this share before they are certified and written down, so
# that another machine, whose exp may round differently, re-derives at least what the file states.
_SLACK = 2.0**-40
# The generic argument is refused past these lengths, where it would take minutes: n^3 steps for two
# attention layers, n^2 for recurrent layers, n^2 in one matrix product for one attention layer.
_LONGEST = {"deep": 160, "recurrent": 1100, "one attention layer": 10_000}


@dataclass(frozen=True)
class Bound:
    """A certified lower bound of the margin and the case (index, answer) where it is least."""

    margin: float
    index: int
    answer: int
    arithmetic: str


@dataclass(frozen=True)
class Method:
    """One argument: `bound` gives the bound or raises `UnsuitableError`."""

    name: str
    derivation: str
    bound: Callable[[Solution], Bound]


@dataclass(frozen=True)
class Witness:
    """The worst input found, and its margin as *observed* in float64."""

    index: int
    bits: tuple[int, ...]
    margin: float


@dataclass(frozen=True)
class Certificate:
    """A proved lower bound of the margin over all inputs; `certified` if it is positive.

    If not certified, `margin` is still a lower bound, but says nothing: the weights may be wrong,
    or right without this argument seeing it. `refused` tells which arguments did not apply.
    """

    solution: Solution
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


def _rounded_down(value: Any) -> float:
    """A float not above the rational."""
    exact = Fraction(int(value.p), int(value.q))
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)


def _marker_bound(solution: Solution) -> Bound:
    found = marker.certify_marker(solution)
    return Bound(_rounded_down(found.margin), found.index, found.answer, found.arithmetic)


def _states_bound(solution: Solution) -> Bound:
    found = fixed_states.certify_states(solution)
    margin = _rounded_down(found.margin)
    return Bound(margin, found.index, found.answer, fixed_states.ARITHMETIC)


def _boxes_bound(solution: Solution) -> Bound:
    attention = [layer.kind in ("softmax", "linear") for layer in solution.layers]
    one = "one attention layer" if attention[-1] else "recurrent"
    longest = _LONGEST["deep" if any(attention[:-1]) else one]
    if solution.n_bits > longest:
        raise UnsuitableError(
            f"the generic argument is offered up to n = {longest} for such layers"
        )
    found = boxes.certify_boxes(solution)
    margin = found.margin - abs(found.margin) * _SLACK
    return Bound(margin, found.index, found.answer, boxes.ARITHMETIC)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "marker",
            "layer 1 marks one token and is exactly 0 at all others, layer 2 adds up and reads; "
            "every hypothesis checked on the weights, in O(n log n)",
            _marker_bound,
        ),
        Method(
            "fixed states",
            "no token but the index, position i and the end moves the state; checked on the "
            "weights for all indices, in O(n log n)",
            _states_bound,
        ),
        Method(
            "boxes",
            "for every index and answer, a box per token that holds for all other bits: attention "
            "by a fractional program, MLPs by affine forms, states step by step",
            _boxes_bound,
        ),
    )
}


def certify(solution: Solution, method: str | None = None) -> Certificate:
    """The certificate of these weights: a rigorous lower bound of the margin over all inputs.

    Tries the arguments in the order of the module head and takes the first that applies; `method`
    asks for one of them. Raises `SpecError` if none can say anything about so long a string.

    >>> from ithbit.theory.constructions import construct
    >>> certificate = certify(construct("lhi", "softmax-causal", 64))
    >>> certificate.certified, certificate.margin, certificate.inputs == 64 * 2**64
    (True, 1.0, True)
    """
    if method is not None and method not in METHODS:
        raise SpecError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    refused = []
    for name in METHODS if method is None else (method,):
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
    raise SpecError(
        f"no argument applies to {solution.task} by {solution.family} at n = {solution.n_bits} "
        f"({'; '.join(refused)}); take a shorter n"
    )


def find_worst(solution: Solution, index: int, answer: int) -> Witness:
    """The input with the smallest *observed* margin among a few that share index and answer.

    The other bits are all 0, all 1, 1 only before or only behind the index, and, where a run is
    cheap, random. The certificate covers all inputs; this one is only for the eye.
    """
    n = solution.n_bits
    k = np.arange(1, n + 1)
    strings = [np.zeros(n), np.ones(n), k < index, k > index, np.abs(k - index) <= 1]
    deep_softmax = any(layer.kind == "softmax" for layer in solution.layers[:-1])
    affordable = 4e7 / (solution.n_tokens**2 if deep_softmax else 30 * solution.n_tokens)
    count = int(min(len(strings), max(1, affordable)))
    bits = np.array(strings[:count]).astype(np.uint8)
    if affordable > 64:
        noise = np.random.default_rng(0).integers(0, 2, (32, n), dtype=np.uint8)
        bits = np.concatenate([bits, noise])
    bits[:, index - 1] = answer
    with np.errstate(all="ignore"):  # wrong weights may overflow; a NaN is the worst of margins
        margins = solution.margins(bits, np.full(len(bits), index)).astype(np.float64)
    at = int(np.argmin(np.where(np.isnan(margins), -np.inf, margins)))
    return Witness(index, tuple(bits[at].tolist()), float(margins[at]))
