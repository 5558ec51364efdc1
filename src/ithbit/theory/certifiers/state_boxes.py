"""Boxes through a recurrent layer: the states h_k of SSM, RNN and GRU, the other bits free.

The state after a token is enclosed for each value of the token's own bit; the hull over the allowed
bits is carried on. With index and answer fixed, as in a case, the constructions' states are single
points or narrow intervals, so the hull loses nothing there.
"""

import numpy as np

from ithbit.theory.certifiers.cases import Cases, Embedded, linear
from ithbit.theory.certifiers.intervals import Interval, concatenate, sigmoid, tanh
from ithbit.theory.certifiers.relu_forms import output_range
from ithbit.theory.gru_layer import Gru
from ithbit.theory.layers import Rnn, Ssm


def states(layer: Ssm | Rnn | Gru, cases: Cases | Embedded) -> Interval:
    """Enclosures of h_k after each token, `case token bit dim`, by the token's own bit."""
    count, length, _, d = cases.box.shape
    flat = cases.box.reshape(count * length * 2, d)
    state = Interval.point(np.zeros((count, layer.d_out)))
    if isinstance(layer, Ssm):
        state = state + layer.h0
        matrices = output_range(layer.A, flat).reshape(count, length, 2, d, d)
        inputs = output_range(layer.B, flat).reshape(count, length, 2, d)
    after = []
    for k in range(length):
        if isinstance(layer, Ssm):
            new = (matrices[:, k] * state[:, None, None]).total(axis=-1) + inputs[:, k]
        elif isinstance(layer, Rnn):
            new = _rnn_step(layer, cases.box[:, k], _twice(state))
        else:
            new = _gru_step(layer, cases.box[:, k], _twice(state))
        after.append(new[:, None])
        fits = cases.allowed[:, k, :, None]
        state = Interval(
            np.where(fits, new.lo, np.inf).min(axis=1), np.where(fits, new.hi, -np.inf).max(axis=1)
        ).simplified()
    return concatenate(after, axis=1)


def _twice(state: Interval) -> Interval:
    """The state once for each value of the next bit."""
    return concatenate([state[:, None], state[:, None]], axis=1)


def _rnn_step(layer: Rnn, x: Interval, h: Interval) -> Interval:
    count, _, d = x.shape
    joined = concatenate([x, h], axis=2).reshape(count * 2, 2 * d)
    return output_range(layer.N1, joined).reshape(count, 2, d)


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
