"""How the index reaches the tokens in a first layer of width 1: step (C1) of the marker argument.

The first MLP's input at position k holding bit b is  s = base(k, b) + offset(i) + e  with e in a
`spread` that does not depend on the other bits. Letters: e_i the embedding of the index token, x
that of any other token, r_l the weight of token l relative to the index token's.

Attention: a_k is an average of V x_l and V e_i, so  a_k − V e_i = sum r_l V (x_l − e_i) / (1 + sum
r_l), which lies between 0 and E_i = V sum_l max over bits of r_l (x_l − e_i) if V > 0 and
e_i < 0 < x_l. Masks only remove terms. For softmax with g = K Q < 0 and m = min x_l, every query
x_k >= m gives r_l <= e^{g m (x_l − e_i)}; for linear attention r_l = phi(K x_l) / phi(K e_i), since
in width 1 the query's factor cancels. Both bounds split into a sum over l and a factor of i.

SSM with A = 1: h_k = h_0 + B(e_i) + sum of B(x_l), l <= k, and the sum lies between the sum of
its negative parts and that of its positive parts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from ithbit.theory.certifiers.arithmetic.exact import Rational, dyadic, exact, exact_row
from ithbit.theory.certifiers.arithmetic.intervals import Interval
from ithbit.theory.certifiers.arithmetic.lines import Line, line_direction, line_of
from ithbit.theory.certifiers.bound import UnsuitableError, need
from ithbit.theory.layers import FloatArray, LinearAttention, ReluNet, SoftmaxAttention, Ssm
from ithbit.theory.solution import Solution

Spread = tuple[Rational, Rational]
_PRECISION = 100  # bits of the balls: far more than the margins need


@dataclass(frozen=True, eq=False)
class Approach:
    """What the first MLP sees: `marker` as a function of s, and the parts of s."""

    marker: Line
    base: Interval  # (n, 2): of position k, bit b
    base_end: Rational | None
    offset: list[Rational]  # per index
    spread: list[Spread]  # per index
    at_index: list[Spread]  # the range of s at the index token itself
    ones: list[Rational]  # base(i, 1), exactly


def approach_of(solution: Solution) -> Approach:
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


def _attention(solution: Solution, layer: SoftmaxAttention | LinearAttention) -> Approach:
    table = solution.embedding
    bits, index = table.bit[..., 0], table.index[:, 0]
    others = [*bits, *([] if table.end is None else [table.end])]  # options of each token
    v, g = exact(layer.V[0, 0]), exact(layer.K[0, 0]) * exact(layer.Q[0, 0])
    smallest = min(float(options.min()) for options in others)
    signs = v > 0 and index.max() < 0 < smallest
    need(signs, "V and the bits must be positive, the embedding of the index negative")

    rate = exact(layer.K[0, 0])
    if isinstance(layer, SoftmaxAttention):
        need(g < 0, "K Q must be negative in the first layer")
        rate = g * exact(smallest)

    def weight(x: float) -> Any:
        if isinstance(layer, SoftmaxAttention):
            return arb(rate * exact(x)).exp()
        inner = rate * exact(x)
        if inner > 0 or layer.feature == "relu+1":
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
        softmax = isinstance(layer, SoftmaxAttention)
        share = weight(-float(e)) if softmax else 1 / weight(float(e))
        bound = dyadic((arb(v) * share * (moment - arb(e_exact) * mass)).upper())
        offset.append(v * e_exact)
        spread.append((fmpq(0), bound))
        at_index.append((e_exact + v * e_exact, e_exact + v * e_exact + bound))
    if isinstance(layer, SoftmaxAttention):
        at_index = _softmax_index(layer, others, index, v, g)
    return Approach(
        marker=line_of(layer.net, np.zeros(1), np.ones(1), np.ones(1)),
        base=Interval.point(bits),
        base_end=None if table.end is None else exact(table.end[0]),
        offset=offset,
        spread=spread,
        at_index=at_index,
        ones=exact_row(bits[:, 1]),
    )


def _largest(balls: list[Any]) -> Any:
    """A ball whose upper end is at least every ball's."""
    best = balls[0]
    for ball in balls[1:]:
        best = best.max(ball)
    return best


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
        spreads.append((s - v * dyadic((pull + own).upper()), s))
    return spreads


def _ssm(solution: Solution, layer: Ssm) -> Approach:
    table = solution.embedding
    assert table.end is not None
    require_unit_memory(layer)
    p, q = exact_row(line_direction(layer.phi))
    need(q != 0, "the first readout does not look at the state")
    put = line_of(layer.B, np.zeros(1), np.ones(1), np.ones(1))
    drift_low = drift_high = fmpq(0)
    for options in (*table.bit[..., 0], table.end):
        steps = [put(exact(x)) for x in options]
        drift_low += min(fmpq(0), *steps)
        drift_high += max(fmpq(0), *steps)
    low, high = sorted((q * drift_low, q * drift_high))
    states = [exact(layer.h0[0]) + put(exact(e)) for e in table.index[:, 0]]
    at_index = [p * exact(e) + q * h for e, h in zip(table.index[:, 0], states, strict=True)]
    along = [fmpq(0), 1 / q]  # p x + q h grows by one along it
    return Approach(
        marker=line_of(layer.phi, np.zeros(2), along, np.ones(1)),
        base=Interval.point(table.bit[..., 0]) * float(line_direction(layer.phi)[0]),
        base_end=p * exact(table.end[0]),
        offset=[q * h for h in states],
        spread=[(low, high)] * solution.n_bits,
        at_index=[(s, s) for s in at_index],
        ones=[p * exact(x) for x in table.bit[:, 1, 0]],
    )


def require_unit_memory(layer: Ssm) -> None:
    """Raise `UnsuitableError` unless A(x) = 1 for every x."""
    A: ReluNet = layer.A
    one = len(A.weights) == 1 and not A.weights[0].any() and A.biases[0].tolist() == [1.0]
    need(one, "A of an SSM layer is not the constant 1")
