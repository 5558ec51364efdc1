"""Boxes through a recurrent layer: the states h_k of SSM, RNN and GRU, with the other bits free.

The state after a token is enclosed for each value of the token's own bit; the hull over the allowed
bits is carried to the next token. With index and answer fixed, as in a case, the constructions'
states are single points or narrow intervals, so the hull loses nothing there.
"""

from collections.abc import Callable

import numpy as np

from ithbit.theory.certifiers.arithmetic.intervals import Interval, concatenate, sigmoid, tanh
from ithbit.theory.certifiers.arithmetic.relu_forms import output_range
from ithbit.theory.certifiers.boxes.cases import Cases, Embedded, linear
from ithbit.theory.gru_layer import Gru
from ithbit.theory.layers import Rnn, Ssm


def states(layer: Ssm | Rnn | Gru, cases: Cases | Embedded, last: bool) -> Interval:
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
