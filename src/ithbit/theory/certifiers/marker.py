"""A near-linear argument for two layers of width 1: the first marks one token, the second reads it.

It covers attention (softmax or linear) and SSM layers alike and works on the weights as they are:
every hypothesis is checked on them, and `UnsuitableError` names the one that fails. The steps:

(C1) At position k holding bit b the first MLP reads s = base(k, b) + offset(i) + e, with e in a
     `spread` that does not depend on the other bits.
(C2) That MLP is exactly zero outside its support; for each i only position i holding a 1 may reach
     the support. So every other token, including the index and the last, outputs exactly 0.
(C3) The output at position i holding a 1 is enclosed by the MLP's range on its values of s.
(C4) The second layer takes the mean (attention with zero keys) or the sum (SSM with A = 1), and its
     MLP with the output matrix is a function of one variable, whose range gives the margin.

Letters of (C1): e_i the embedding of the index token, x that of any other token, r_l the weight of
token l relative to the index token's.

Attention: a_k is an average of V x_l and V e_i, so  a_k − V e_i = sum r_l V (x_l − e_i) / (1 + sum
r_l), which lies between 0 and E_i = V sum_l max over bits of r_l (x_l − e_i) if V > 0 and
e_i < 0 < x_l. Masks only remove terms. For softmax with g = K Q < 0 and m = min x_l, every query
x_k >= m gives r_l <= e^{g m (x_l − e_i)}; for linear attention r_l = phi(K x_l) / phi(K e_i), since
in width 1 the query's factor cancels. Both bounds split into a sum over l and a factor of i.

SSM with A = 1: h_k = h_0 + B(e_i) + sum of B(x_l), l <= k, and the sum lies between the sum of
its negative parts and that of its positive parts.

Exact rationals throughout; the exponential sums of (C1) are arb balls. O(n log n).
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from flint import arb, ctx, fmpq

from ithbit.theory.certifiers.exact import (
    BALLS,
    EXACT,
    Ball,
    Bound,
    Line,
    Rational,
    UnsuitableError,
    exact,
    exact_row,
    line_direction,
    line_of,
    linear_line,
    need,
    rational_above,
    rounded_down,
)
from ithbit.theory.layers import FloatArray, LinearAttention, ReluNet, SoftmaxAttention, Ssm
from ithbit.theory.solution import Solution

Spread = tuple[Rational, Rational]
_PRECISION = 100  # bits of the balls: far more than the margins need
_ONE = [fmpq(1)]  # the direction in which a net of one number is followed


@dataclass(frozen=True, eq=False)
class MarkerInput:
    """What the first MLP sees: `marker` as a function of s, and the parts of s."""

    marker: Line
    base: list[Rational]  # of position k holding bit b, at 2 (k − 1) + b; then of the end
    offset: list[Rational]  # per index
    spread: list[Spread]  # per index
    at_index: list[Spread]  # the range of s at the index token itself


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
    read, collected = _second_layer(solution)
    _, unmarked = read.range(*collected.range(fmpq(0), fmpq(0)))
    margins: list[tuple[Rational, int, int]] = [(-unmarked, 1, 0)]
    for i, (low, high) in enumerate(approach.spread, 1):
        s = approach.base[2 * i - 1] + approach.offset[i - 1]
        marked = approach.marker.range(s + low, s + high)
        margin, _ = read.range(*collected.range(*marked))
        margins.append((margin, i, 1))
    least, index, answer = min(margins)
    recurrent = isinstance(solution.layers[0], Ssm)
    return Bound(rounded_down(least), index, answer, EXACT if recurrent else BALLS)


def _check_marks(approach: MarkerInput) -> None:
    """(C2): for each i, nothing but position i holding a 1 can meet the marker's support."""
    left, right = approach.marker.support()
    order = sorted(range(len(approach.base)), key=approach.base.__getitem__)
    bases = [approach.base[entry] for entry in order]
    parts = zip(approach.offset, approach.spread, approach.at_index, strict=True)
    for i, (offset, spread, at_index) in enumerate(parts, 1):
        first = bisect_right(bases, left - offset - spread[1])
        stop = bisect_left(bases, right - offset - spread[0])
        for entry in order[first:stop]:
            k, bit = divmod(entry, 2)
            is_end = k == len(approach.offset)
            stray = "the end token" if is_end else f"position {k + 1} holding {bit}"
            need(entry == 2 * i - 1, f"with index {i}, {stray} may be marked too")
        out = at_index[1] <= left or at_index[0] >= right
        need(out, f"with index {i}, the index token may be marked")


def _second_layer(solution: Solution) -> tuple[Line, Line]:
    """alpha_1 − alpha_0 as a function of what layer 2 collects, and that as one of the mark."""
    layer = solution.layers[1]
    if isinstance(layer, SoftmaxAttention | LinearAttention):
        K, Q, V = (exact(w[0, 0]) for w in (layer.K, layer.Q, layer.V))
        score = K * Q if isinstance(layer, SoftmaxAttention) else K
        need(score == 0, "the second layer does not take the plain mean")
        net, along, collected = layer.net, _ONE, linear_line(V / solution.n_tokens)
    elif isinstance(layer, Ssm):
        require_unit_memory(layer)
        put = line_of(layer.B, _ONE)
        silent = put(fmpq(0)) == 0
        need(silent, "the second layer adds something for tokens without a mark")
        net, along = layer.phi, [fmpq(0), *_ONE]
        collected = replace(put, constant=put.constant + exact(layer.h0[0]))
    else:
        raise UnsuitableError("the argument covers attention and SSM layers only")
    ((zero,), (one,)) = solution.output
    return line_of(net, along).times(exact(one) - exact(zero)), collected


def approach_of(solution: Solution) -> MarkerInput:
    """The approach of the first layer; raises `UnsuitableError` if the argument does not apply."""
    layer = solution.layers[0]
    seen = solution.task == "lhi" or not getattr(layer, "causal", True)
    need(seen, "a causal layer shows the index of RHI to no other token")
    with ctx.workprec(_PRECISION):
        if isinstance(layer, SoftmaxAttention | LinearAttention):
            return _attention(solution, layer)
        if isinstance(layer, Ssm):
            return _ssm(solution, layer)
    raise UnsuitableError("the argument covers attention and SSM layers only")


def _attention(solution: Solution, layer: SoftmaxAttention | LinearAttention) -> MarkerInput:
    table = solution.embedding
    bits, index = table.bit[..., 0], table.index[:, 0]
    others = [*bits, *([] if table.end is None else [table.end])]  # options of each token
    v, g = exact(layer.V[0, 0]), exact(layer.K[0, 0]) * exact(layer.Q[0, 0])
    smallest = min(float(options.min()) for options in others)
    signs = v > 0 and index.max() < 0 < smallest
    need(signs, "V and the bits must be positive, the embedding of the index negative")

    softmax = isinstance(layer, SoftmaxAttention)
    need(not softmax or g < 0, "K Q must be negative in the first layer")
    rate = g * exact(smallest) if softmax else exact(layer.K[0, 0])

    def weight(x: float) -> Ball:
        inner = rate * exact(x)
        if isinstance(layer, LinearAttention) and (inner > 0 or layer.feature == "relu+1"):
            return arb(max(inner, fmpq(0)) + 1)
        return arb(inner).exp()

    # max over the bits of each factor apart bounds the max of their product and sum.
    mass, moment = arb(0), arb(0)
    for options in others:
        weights = [weight(float(x)) for x in options]
        mass += _largest(weights)
        moment += _largest([w * float(x) for w, x in zip(weights, options, strict=True)])

    offset, spread, at_index = [], [], []
    for e in index:
        e_exact = exact(e)
        share = weight(-float(e)) if softmax else 1 / weight(float(e))
        bound = rational_above(arb(v) * share * (moment - arb(e_exact) * mass))
        offset.append(v * e_exact)
        spread.append((fmpq(0), bound))
        at_index.append((e_exact + v * e_exact, e_exact + v * e_exact + bound))
    if isinstance(layer, SoftmaxAttention):
        at_index = _softmax_index(layer, others, index, v, g)
    return MarkerInput(
        marker=line_of(layer.net, _ONE),
        base=exact_row(np.concatenate(others, axis=None)),
        offset=offset,
        spread=spread,
        at_index=at_index,
    )


def _largest(balls: list[Ball]) -> Ball:
    """A ball whose upper end is at least every ball's."""
    return reduce(arb.max, balls)


def _softmax_index(
    layer: SoftmaxAttention, others: list[FloatArray], index: FloatArray, v: Rational, g: Rational
) -> list[Spread]:
    """The range of s at the index token, per i.

    Causal (LHI): the token sees only itself, a = V e_i. Full: its scores g e_i x_l increase with
    x_l, so it attends to the largest x, which must be present for certain: relative to that token,
    x_l weighs e^{−g e_i (x_max − x_l)}, and g e_i is least for the e_i nearest to 0.
    """
    if layer.causal:
        return [(exact(e) * (1 + v), exact(e) * (1 + v)) for e in index]
    largest = max(float(options.max()) for options in others)
    certain = any((options == largest).all() for options in others)
    need(certain, "no token is certain to hold the largest embedding")
    x_max, slowest = exact(largest), g * exact(float(index.max()))
    pull = arb(0)
    for options in others:
        gaps = [x_max - exact(x) for x in options]
        pull += _largest([arb(gap) * arb(-slowest * gap).exp() for gap in gaps])
    spreads = []
    for e in index:
        gap = x_max - exact(e)
        own = arb(gap) * arb(-g * exact(e) * gap).exp()
        s = exact(e) + v * x_max
        spreads.append((s - v * rational_above(pull + own), s))
    return spreads


def _ssm(solution: Solution, layer: Ssm) -> MarkerInput:
    table = solution.embedding
    assert table.end is not None
    require_unit_memory(layer)
    p, q = exact_row(line_direction(layer.phi))
    need(q != 0, "the first readout does not look at the state")
    put = line_of(layer.B, _ONE)
    drift_low = drift_high = fmpq(0)
    for options in (*table.bit[..., 0], table.end):
        steps = [put(exact(x)) for x in options]
        drift_low += min(fmpq(0), *steps)
        drift_high += max(fmpq(0), *steps)
    low, high = sorted((q * drift_low, q * drift_high))
    states = [exact(layer.h0[0]) + put(exact(e)) for e in table.index[:, 0]]
    at_index = [p * exact(e) + q * h for e, h in zip(table.index[:, 0], states, strict=True)]
    along = [fmpq(0), 1 / q]  # p x + q h grows by one along it
    return MarkerInput(
        marker=line_of(layer.phi, along),
        base=[p * x for x in exact_row([*table.bit.ravel(), *table.end])],
        offset=[q * h for h in states],
        spread=[(low, high)] * solution.n_bits,
        at_index=[(s, s) for s in at_index],
    )


def require_unit_memory(layer: Ssm) -> None:
    """Raise `UnsuitableError` unless A(x) = 1 for every x."""
    A: ReluNet = layer.A
    one = len(A.weights) == 1 and not A.weights[0].any() and A.biases[0].tolist() == [1.0]
    need(one, "A of an SSM layer is not the constant 1")
