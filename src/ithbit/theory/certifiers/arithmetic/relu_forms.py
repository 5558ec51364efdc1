"""The range of a ReLU MLP on boxes: affine forms in the inputs, exact while no neuron is undecided.

Every neuron is held as  constant + sum_g coefficient_g · symbol_g,  the symbols being the input
coordinates (in their box) and one number in [0, 1] per undecided neuron. A neuron whose range does
not change sign is affine or zero, so no precision is lost there: the zeros of a hat stay exact
zeros. An undecided one, with range [l, u], l < 0 < u, is enclosed by

    relu(z) = lambda z + beta · symbol,   beta = max(−lambda l, (1 − lambda) u),  0 <= symbol <= 1

for lambda = u / (u − l); any lambda in [0, 1] is sound. (These are zonotopes, kept in the input's
own coordinates instead of centre and radius.)
"""

import numpy as np

from ithbit.theory.certifiers.arithmetic.intervals import Interval, concatenate
from ithbit.theory.layers import FloatArray, ReluNet

# Coefficients held at once for one affine map: bounds the memory of a wide batch.
_BATCH = 400_000


def output_range(net: ReluNet, box: Interval, then: tuple[FloatArray, ...] = ()) -> Interval:
    """An enclosure of {net(x) : x in box}, `batch dim`; `then` are linear maps applied after it.

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
    size = max(1, _BATCH // widest)
    if box.shape[0] > size:
        starts = range(0, box.shape[0], size)
        return concatenate([_propagate(steps, box[s : s + size]) for s in starts], axis=0)
    return _propagate(steps, box)


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
