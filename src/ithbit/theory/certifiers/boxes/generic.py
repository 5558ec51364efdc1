"""The generic certifier: a lower bound on the margin for any layers, whatever the construction.

For fixed index i and answer sigma_i (a *case*), every token and every value of its own bit gets a
box that holds for all values of the other bits. Boxes go through the layers one by one: attention
by a fractional program (`attention.py`), MLPs by affine forms (`relu_forms.py`), states step by
step: the state after a token is enclosed for each value of the token's own bit, and the hull over
the allowed bits is carried to the next token. With index and answer fixed, as in a case, the
constructions' states are single points or narrow intervals, so the hull loses nothing there.

The bound is *certified*: it never exceeds the true minimum, whatever the weights. It is tight where
boxes lose nothing, as in all constructions here; for other weights it may be far below. Time grows
as n^3 for two attention layers and as n^2 for one, or for recurrent layers.
"""

from collections.abc import Callable

import numpy as np

from ithbit.theory.certifiers.arithmetic.intervals import Interval, concatenate, sigmoid, tanh
from ithbit.theory.certifiers.arithmetic.relu_forms import output_range
from ithbit.theory.certifiers.bound import Bound
from ithbit.theory.certifiers.boxes.attention import attend
from ithbit.theory.certifiers.boxes.cases import Cases, Embedded, blocks, embed, linear
from ithbit.theory.gru_layer import Gru
from ithbit.theory.layers import Attention, Rnn, Ssm
from ithbit.theory.solution import Layer, Solution

ARITHMETIC = "float64 intervals rounded outward, exponentials from arb balls"
_BLOCK = 2_000_000  # numbers in the largest array of a block of cases


def certify_boxes(solution: Solution) -> Bound:
    """A certified lower bound on the margin over all n · 2^n inputs; −inf if nothing is known.

    >>> from ithbit.theory.constructions import construct
    >>> certify_boxes(construct("lhi", "linear-causal", 4)).margin
    1.0
    """
    worst = Bound(np.inf, 0, 0, ARITHMETIC)
    for index, answer in blocks(solution.n_bits, _block_size(solution)):
        cases: Cases | Embedded = embed(solution, index, answer)
        for layer in solution.layers[:-1]:
            cases = Cases(_through(layer, cases), cases.allowed)
        difference = _read(solution, cases)
        margin = np.where(answer == 1, difference.lo, -difference.hi)
        margin = np.where(np.isnan(margin), -np.inf, margin)
        at = int(np.argmin(margin))
        if margin[at] < worst.margin:
            worst = Bound(float(margin[at]), int(index[at]), int(answer[at]), ARITHMETIC)
    return worst


def _block_size(solution: Solution) -> int:
    attention = [layer.kind in ("softmax", "linear") for layer in solution.layers]
    if solution.depth == 1 and not attention[0]:
        return max(1, _BLOCK // (20 * solution.embedding.d))  # only one token is held at a time
    queries = 2 * solution.n_tokens if any(attention[:-1]) else 1
    return max(1, _BLOCK // (2 * solution.n_tokens * queries * solution.embedding.d))


def _through(layer: Layer, cases: Cases | Embedded) -> Interval:
    """The boxes of a layer's outputs, `case token bit dim`."""
    count, length, _ = cases.allowed.shape
    if isinstance(layer, Attention):
        sums = attend(layer, cases, last=False)
        out = output_range(layer.net, sums.reshape(count * length * 2, layer.d_in))
    else:
        after = _states(layer, cases, last=False)
        if isinstance(layer, Gru):
            return after
        joined = concatenate([cases.box, after], axis=3)
        net = layer.phi if isinstance(layer, Ssm) else layer.N2
        out = output_range(net, joined.reshape(count * length * 2, 2 * layer.d_in))
    return out.simplified().reshape(count, length, 2, layer.d_out)


def _read(solution: Solution, cases: Cases | Embedded) -> Interval:
    """Enclosures of alpha_1 − alpha_0 at the last token, per case."""
    layer = solution.layers[-1]
    then = (solution.output, np.array([[-1.0, 1.0]]))
    if isinstance(layer, Attention):
        return output_range(layer.net, attend(layer, cases, last=True)[:, 0], then)[:, 0]
    after = _states(layer, cases, last=True)[:, -1, 0]
    if isinstance(layer, Gru):
        return linear(then[1], linear(then[0], after))[:, 0]
    net = layer.phi if isinstance(layer, Ssm) else layer.N2
    x = cases.token(solution.n_tokens - 1)[:, 0].spread(len(cases.allowed), layer.d_in)
    return output_range(net, concatenate([x, after], axis=1), then)[:, 0]


def _states(layer: Ssm | Rnn | Gru, cases: Cases | Embedded, last: bool) -> Interval:
    """Enclosures of h_k by the token's own bit, `case token bit dim`; only the last if `last`."""
    count, length, _ = cases.allowed.shape
    state = Interval.point(np.zeros((count, layer.d_out)))
    if isinstance(layer, Ssm):
        state = state + layer.h0
    after: list[Interval] = []
    for k in range(length):
        step = _STEPS[layer.kind](layer, cases.token(k), state[:, None])
        if last:
            after.clear()
        after.append(step[:, None])
        fits = cases.allowed[:, k, :, None]
        state = Interval(
            np.where(fits, step.lo, np.inf).min(axis=1),
            np.where(fits, step.hi, -np.inf).max(axis=1),
        ).simplified()
    return concatenate(after, axis=1)


def _ssm_step(layer: Ssm, x: Interval, h: Interval) -> Interval:
    shared, _, d = x.shape
    flat = x.reshape(shared * 2, d)
    matrices = output_range(layer.A, flat).reshape(shared, 2, d, d)
    inputs = output_range(layer.B, flat).reshape(shared, 2, d)
    return (matrices * h[:, :, None]).total(axis=-1) + inputs


def _rnn_step(layer: Rnn, x: Interval, h: Interval) -> Interval:
    count, _, d = h.shape
    joined = concatenate([x.spread(count, 2, d), h.spread(count, 2, d)], axis=2)
    return output_range(layer.N1, joined.reshape(count * 2, 2 * d)).reshape(count, 2, d)


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
