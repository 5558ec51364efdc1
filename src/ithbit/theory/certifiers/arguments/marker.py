"""A near-linear argument for two layers of width 1: the first marks one token, the second reads it.

It covers attention (softmax or linear) and SSM layers alike and works on the weights as they are:
every hypothesis is checked on them, and `UnsuitableError` names the one that fails. The steps:

(C1) At position k holding bit b the first MLP reads s = base(k, b) + offset(i) + e, with e in an
     interval that holds for all other bits (`approach`).
(C2) That MLP is exactly zero outside its support; for each i only position i holding a 1 may reach
     the support. So every other token, including the index and the last, outputs exactly 0.
(C3) The output at position i holding a 1 is enclosed by the MLP's range on its values of s.
(C4) The second layer takes the mean (attention with zero keys) or the sum (SSM with A = 1), and its
     MLP with the output matrix is a function of one variable, whose range gives the margin.

Exact rationals throughout; the exponential sums of (C1) are arb balls. O(n log n).
"""

from collections.abc import Callable

import numpy as np
from flint import fmpq

from ithbit.theory.certifiers.arguments.approach import (
    Approach,
    Spread,
    approach_of,
    require_unit_memory,
)
from ithbit.theory.certifiers.arithmetic.exact import Rational, exact, rounded_down
from ithbit.theory.certifiers.arithmetic.lines import Line, line_of
from ithbit.theory.certifiers.bound import BALLS, EXACT, Bound, UnsuitableError, need
from ithbit.theory.layers import LinearAttention, SoftmaxAttention, Ssm
from ithbit.theory.solution import Solution


def certify_marker(solution: Solution) -> Bound:
    """A certified lower bound on the margin; `UnsuitableError` if the argument does not apply.

    >>> from ithbit.theory.constructions import construct
    >>> certify_marker(construct("lhi", "ssm", 4096)).margin
    1.0
    """
    narrow = (solution.depth, solution.width, solution.embedding.d) == (2, 1, 1)
    need(narrow, "the argument needs two layers of width 1")
    approach = approach_of(solution)
    _check_marks(approach)
    read, collect = _second_layer(solution)
    _, unmarked = read.range(*collect((fmpq(0), fmpq(0))))
    worst: tuple[Rational, int, int] = (-unmarked, 1, 0)
    for i, (low, high) in enumerate(approach.spread, 1):
        s = approach.ones[i - 1] + approach.offset[i - 1]
        marked = approach.marker.range(s + low, s + high)
        margin, _ = read.range(*collect(marked))
        if margin < worst[0]:
            worst = (margin, i, 1)
    recurrent = isinstance(solution.layers[0], Ssm)
    return Bound(rounded_down(worst[0]), *worst[1:], EXACT if recurrent else BALLS)


def _check_marks(approach: Approach) -> None:
    """(C2): for each i, nothing but position i holding a 1 can meet the marker's support."""
    left, right = approach.marker.support()
    # Position (k, b) may meet the support iff low < base < high, rounded to floats outward.
    parts = list(zip(approach.offset, approach.spread, strict=True))
    low = np.array([rounded_down(left - offset - spread[1]) for offset, spread in parts])
    high = np.array([-rounded_down(-(right - offset - spread[0])) for offset, spread in parts])
    base_low, base_high = approach.base.lo.ravel(), approach.base.hi.ravel()
    order = np.argsort(base_low)
    width = float((base_high - base_low).max())
    if width:
        low = np.nextafter(low - width, -np.inf)
    first = np.searchsorted(base_low[order], low, side="right")
    stop = np.searchsorted(base_low[order], high, side="left")
    for i, (a, b) in enumerate(zip(first, stop, strict=True), 1):
        strays = [entry for entry in order[a:b] if entry != 2 * i - 1]
        if strays:
            k, bit = divmod(int(strays[0]), 2)
            raise UnsuitableError(
                f"with index {i}, position {k + 1} holding {bit} may be marked too"
            )
        offset, spread = parts[i - 1]
        ranges: dict[str, Spread] = {"index": approach.at_index[i - 1]}
        if approach.base_end is not None:
            s = approach.base_end + offset
            ranges["end"] = (s + spread[0], s + spread[1])
        for token, (bottom, top) in ranges.items():
            out = top <= left or bottom >= right
            need(out, f"with index {i}, the {token} token may be marked")


def _second_layer(solution: Solution) -> tuple[Line, Callable[[Spread], Spread]]:
    """alpha_1 − alpha_0 as a function of what layer 2 collects, and that as one of the mark."""
    layer = solution.layers[1]
    if isinstance(layer, SoftmaxAttention | LinearAttention):
        K, Q, V = (exact(w[0, 0]) for w in (layer.K, layer.Q, layer.V))
        score = K * Q if isinstance(layer, SoftmaxAttention) else K
        need(score == 0, "the second layer does not take the plain mean")
        net, at, along = layer.net, np.zeros(1), np.ones(1)
        share = V / solution.n_tokens

        def collect(marked: Spread) -> Spread:
            low, high = sorted((share * marked[0], share * marked[1]))
            return low, high

    elif isinstance(layer, Ssm):
        require_unit_memory(layer)
        put, start = line_of(layer.B, np.zeros(1), np.ones(1), np.ones(1)), exact(layer.h0[0])
        silent = put(fmpq(0)) == 0
        need(silent, "the second layer adds something for tokens without a mark")
        net, at, along = layer.phi, np.zeros(2), np.array([0.0, 1.0])

        def collect(marked: Spread) -> Spread:
            low, high = put.range(*marked)
            return start + low, start + high

    else:
        raise UnsuitableError("the argument covers attention and SSM layers only")
    one, zero = (line_of(net, at, along, solution.output[answer]) for answer in (1, 0))
    minus = tuple((-out, slope, shift) for out, slope, shift in zero.units)
    return Line(one.units + minus, one.constant - zero.constant), collect
