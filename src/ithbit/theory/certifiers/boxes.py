"""The generic certifier: a lower bound on the margin for any layers, whatever the construction.

For fixed index i and answer sigma_i (a *case*), every token and every value of its own bit gets a
box that holds for all values of the other bits. Boxes go through the layers one by one: attention
by a fractional program (`attention.py`), MLPs by affine forms, states step by step: the state after
a token is enclosed for each value of the token's own bit, and the hull over the allowed bits is
carried to the next token. With index and answer fixed, as in a case, the constructions' states are
single points or narrow intervals, so the hull loses nothing there.

In an MLP every neuron is held as  constant + sum_g coefficient_g · symbol_g,  the symbols being the
input coordinates (in their box) and one number in [0, 1] per undecided neuron. A neuron whose range
does not change sign is affine or zero, so no precision is lost there: the zeros of a hat stay exact
zeros. An undecided one, with range [l, u], l < 0 < u, is enclosed by

    relu(z) = lambda z + beta · symbol,   beta = max(−lambda l, (1 − lambda) u),  0 <= symbol <= 1

for lambda = u / (u − l); any lambda in [0, 1] is sound. (These are zonotopes, kept in the input's
own coordinates instead of centre and radius.)

The bound is *certified*: it never exceeds the true minimum, whatever the weights. It is tight where
boxes lose nothing, as in all constructions here; for other weights it may be far below. Time grows
as n^3 for two attention layers and as n^2 for one, or for recurrent layers.
"""

from collections.abc import Callable

import numpy as np

from ithbit.theory.certifiers.attention import attend
from ithbit.theory.certifiers.cases import Cases, blocks, embed, linear
from ithbit.theory.certifiers.exact import Bound
from ithbit.theory.certifiers.intervals import Interval, concatenate, sigmoid, tanh
from ithbit.theory.layers import Attention, FloatArray, Gru, ReluNet, Rnn, Ssm
from ithbit.theory.solution import Layer, Solution

ARITHMETIC = "float64 intervals rounded outward, exponentials from arb balls"
_BLOCK = 2_000_000  # numbers in the largest array of a block of cases
# Coefficients held at once for one affine map: bounds the memory of a wide batch.
_BATCH = 400_000


@np.errstate(all="ignore")  # what overflows is a bound that is none, by its comparisons
def certify_boxes(solution: Solution) -> Bound:
    """A certified lower bound on the margin over all n · 2^n inputs; −inf if nothing is known.

    >>> from ithbit.theory.constructions import construct
    >>> certify_boxes(construct("lhi", "linear-causal", 4)).margin
    1.0
    """
    margins: list[tuple[float, int, int]] = []
    for index, answer in blocks(solution.n_bits, _block_size(solution)):
        cases = embed(solution, index, answer)
        for layer in solution.layers[:-1]:
            boxes = _through(layer, cases).reshape(*cases.allowed.shape, layer.d_out)
            cases = Cases(boxes, cases.allowed)
        then = (solution.output, np.array([[-1.0, 1.0]]))  # alpha_1 − alpha_0
        difference = _through(solution.layers[-1], cases, then)[:, 0, 0]
        margin = np.where(answer == 1, difference.lo, -difference.hi)
        margin = np.where(np.isnan(margin), -np.inf, margin)
        at = int(np.argmin(margin))
        margins.append((float(margin[at]), int(index[at]), int(answer[at])))
    return Bound(*min(margins), ARITHMETIC)


def _block_size(solution: Solution) -> int:
    attention = [layer.kind in ("softmax", "linear") for layer in solution.layers]
    if solution.depth == 1 and not attention[0]:
        return max(1, _BLOCK // (20 * solution.embedding.d))  # only one token is held at a time
    queries = 2 * solution.n_tokens if any(attention[:-1]) else 1
    return max(1, _BLOCK // (2 * solution.n_tokens * queries * solution.embedding.d))


def _through(layer: Layer, cases: Cases, then: tuple[FloatArray, ...] = ()) -> Interval:
    """The boxes of a layer's outputs, `case query dim`: each token with each bit; if there are maps
    to apply `then`, of the last token alone, after these."""
    if isinstance(layer, Attention):
        return output_range(layer.net, attend(layer, cases, last=bool(then)), then)
    after = _states(layer, cases, last=bool(then))
    if layer.readout is not None:
        return output_range(layer.readout, after, then)
    for weight in then:
        after = linear(weight, after)
    return after


def _states(layer: Ssm | Rnn | Gru, cases: Cases, last: bool) -> Interval:
    """Enclosures of h_k, after x_k if there is a readout, `case query dim`: each token with each
    bit; only the last with bit 0 if `last`."""
    count, length, _ = cases.allowed.shape
    state = Interval.point(np.zeros((count, layer.d_out)))
    if isinstance(layer, Ssm):
        state = state + layer.h0
    after: list[Interval] = []
    for k in range(length):
        x = cases.token(k)
        step = _STEPS[layer.kind](layer, x, state[:, None])
        fits = cases.allowed[:, k, :, None]
        state = Interval(
            np.where(fits, step.lo, np.inf).min(axis=1),
            np.where(fits, step.hi, -np.inf).max(axis=1),
        )
        if k == length - 1 or not last:
            given = [x.spread(count, 2, layer.d_in)] if layer.readout else []
            after.append(concatenate([*given, step], axis=2))
    return after[-1][:, :1] if last else concatenate(after, axis=1)


def _ssm_step(layer: Ssm, x: Interval, h: Interval) -> Interval:
    shared, _, d = x.shape
    matrices = output_range(layer.A, x).reshape(shared, 2, d, d)
    return (matrices * h[:, :, None]).total(axis=-1) + output_range(layer.B, x)


def _rnn_step(layer: Rnn, x: Interval, h: Interval) -> Interval:
    count, _, d = h.shape
    joined = concatenate([x.spread(count, 2, d), h.spread(count, 2, d)], axis=2)
    return output_range(layer.N1, joined)


def _gru_step(layer: Gru, x: Interval, h: Interval) -> Interval:
    d = layer.d_out
    given = linear(layer.weight_ih, x) + layer.bias_ih
    recalled = linear(layer.weight_hh, h) + layer.bias_hh
    gates = sigmoid(given[..., : 2 * d] + recalled[..., : 2 * d])
    r, z = gates[..., :d], gates[..., d:]
    candidate = tanh(given[..., 2 * d :] + r * recalled[..., 2 * d :])
    # (1 − z) candidate + z h is linear in z: its ends are at the ends of z.
    mixed = [(Interval.point(1.0) - z_end) * candidate + h * z_end for z_end in (z.lo, z.hi)]
    return Interval(np.minimum(mixed[0].lo, mixed[1].lo), np.maximum(mixed[0].hi, mixed[1].hi))


_STEPS: dict[str, Callable[..., Interval]] = {"ssm": _ssm_step, "rnn": _rnn_step, "gru": _gru_step}


def output_range(net: ReluNet, box: Interval, then: tuple[FloatArray, ...] = ()) -> Interval:
    """An enclosure of {net(x) : x in box}, `… dim`; `then` are linear maps applied after it.

    The maps in `then` keep the correlations between the outputs, which the difference of two logits
    needs. *Certified*: the enclosure holds for every real x in the box.

    >>> from ithbit.theory.gadgets import hat
    >>> far = output_range(hat(0.5), Interval(np.array([[0.75]]), np.array([[9.0]])))
    >>> far.lo.item(), far.hi.item()
    (0.0, 0.0)
    """
    steps = [(w, b, j > 0) for j, (w, b) in enumerate(zip(net.weights, net.biases, strict=True))]
    steps += [(w, np.zeros(len(w)), False) for w in then]
    widest = max(weight.size for weight, _, _ in steps) * (net.d_in + 2)
    flat, size = box.reshape(-1, net.d_in), max(1, _BATCH // widest)
    starts = range(0, flat.shape[0], size)
    out = concatenate([_propagate(steps, flat[s : s + size]) for s in starts], axis=0)
    return out.reshape(*box.shape[:-1], out.shape[1])


def _propagate(steps: list[tuple[FloatArray, FloatArray, bool]], box: Interval) -> Interval:
    """Push the box through the steps (weight, bias, relu first?)."""
    batch, d = box.shape
    symbols, reach = box, box
    coefficients = Interval.point(np.broadcast_to(np.eye(d), (batch, d, d)))
    constants = Interval.point(np.zeros((batch, d)))
    for weight, bias, relu_first in steps:
        if relu_first:
            coefficients, constants, symbols = _relu(coefficients, constants, symbols, reach)
            reach = reach.relu()
        # The range from neuron ranges alone is kept with that of the affine forms: it is better
        # where several neurons are undecided, and it carries a NaN (an overflow) to the end.
        coefficients = (coefficients[:, None] * weight[None, :, :, None]).total(axis=2)
        constants = (constants[:, None] * weight).total(axis=2) + bias
        plain = (reach[:, None] * weight).total(axis=2) + bias
        formed = (coefficients * symbols[:, None]).total(axis=2) + constants
        reach = formed.meet(plain)
    return reach


def _relu(
    coefficients: Interval, constants: Interval, symbols: Interval, reach: Interval
) -> tuple[Interval, Interval, Interval]:
    """Affine forms of relu(z) from those and the range of z; one symbol per undecided neuron."""
    low, high = reach.lo, reach.hi
    active, undecided = low >= 0, (low < 0) & (high > 0)
    with np.errstate(all="ignore"):
        share = np.clip(np.nan_to_num(high / (high - low)), 0.0, 1.0)
    slope = np.where(active, 1.0, np.where(undecided, share, 0.0))
    coefficients = coefficients * slope[..., None]
    constants = constants * slope
    columns = np.flatnonzero(undecided.any(axis=0))
    if not len(columns):
        return coefficients, constants, symbols
    # beta, rounded up; zero where the neuron is decided for this batch entry.
    left, right = Interval.point(slope) * (-low), (Interval.point(1.0) - slope) * high
    beta = np.where(undecided, np.maximum(left.hi, right.hi), 0.0)
    fresh = np.zeros((*beta.shape, len(columns)))
    fresh[:, columns, np.arange(len(columns))] = beta[:, columns]
    unit = Interval(np.zeros((len(beta), len(columns))), np.ones((len(beta), len(columns))))
    return (
        concatenate([coefficients, Interval.point(fresh)], axis=2),
        constants,
        concatenate([symbols, unit], axis=1),
    )
