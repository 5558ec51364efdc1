"""Boxes through an attention layer, softmax or linear, full or causal: the sums x_k + a_k.

For one query (a token and its own bit) the average a_k runs over all tokens it sees, each with its
possible bits: that is the fractional program of `fractional`. For softmax, scores are first bounded
coarsely (midpoint and radius, with the rounding error of the matrix product added); tokens whose
score is far below one that is certainly present are lumped into a remainder, and only the others
get exponentials.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.cases import Cases, Mask, Numbers, linear
from ithbit.theory.certifiers.fractional import Terms
from ithbit.theory.certifiers.intervals import Interval, choose
from ithbit.theory.layers import FeatureMap, FloatArray, LinearAttention, SoftmaxAttention

_FAR = 60  # a score this far below a certain one weighs at most e^-60
_LIFT = 600.0  # a score this far above a certain one would overflow: the hull is taken instead
_TINY = 1e-290  # absolute slack for underflow in the coarse bounds


def attend(layer: SoftmaxAttention | LinearAttention, cases: Cases, last: bool) -> Interval:
    """Enclosures of x_k + a_k, `case query dim`: each token with each bit, or the last alone."""
    count, length, _, d = cases.box.shape
    token = np.array([length - 1]) if last else np.repeat(np.arange(length), 2)
    bit = np.array([0]) if last else np.tile([0, 1], length)
    own = cases.box[:, token, bit]
    seen = _seen(cases.allowed, token, bit, layer.causal)
    queries = linear(layer.Q, own)
    hull = linear(layer.V, cases.hull(cases.box))[np.repeat(np.arange(count), len(token))]
    if isinstance(layer, SoftmaxAttention):
        # (K x_l)·(Q x_k) = x_l·(K^T Q x_k): so no key is formed for tokens that do not matter.
        picked = _softmax_terms(cases.box, linear(layer.K.T, queries), seen)
    else:
        picked = _linear_terms(layer.feature, linear(layer.K, cases.box), queries, seen)
    near = linear(layer.V, cases.box[picked.case, picked.token])
    bounds = [picked.terms.range(near[..., c], hull[..., c]) for c in range(d)]
    average = Interval(
        np.stack([bound.lo for bound in bounds], -1), np.stack([bound.hi for bound in bounds], -1)
    )
    average = choose(picked.lifted[:, None], hull, average)
    return own + average.simplified().reshape(count, len(token), d)


def _seen(allowed: Mask, token: Numbers, bit: Numbers, causal: bool) -> Mask:
    """`case query token bit`: what each query may meet; at its own place, its own bit alone."""
    length, rows = allowed.shape[1], np.arange(len(token))
    view = np.ones((len(token), length, 2), bool)
    view[rows, token] = False
    view[rows, token, bit] = True
    if causal:
        view &= (np.arange(length) <= token[:, None])[..., None]
    seen: Mask = allowed[:, None] & view
    seen[:, rows, token, bit] = True
    return seen


@dataclass(frozen=True, eq=False)
class Picked:
    """The terms of each row (case by query), and where their tokens are in the block."""

    terms: Terms
    case: NDArray[np.int64]  # row 1
    token: NDArray[np.int64]  # row term
    lifted: Mask  # rows whose scores spread too far: only the hull of the values is known


def _linear_terms(feature: FeatureMap, keys: Interval, queries: Interval, seen: Mask) -> Picked:
    count, n_queries, length, _ = seen.shape
    rows = count * n_queries
    products = phi(feature, queries)[:, :, None, None] * phi(feature, keys)[:, None]
    weight = products.total(axis=-1).reshape(rows, length, 2)
    case = np.repeat(np.arange(count), n_queries)[:, None]
    token = np.broadcast_to(np.arange(length), (rows, length))
    terms = Terms(weight, seen.reshape(rows, length, 2), np.zeros(rows))
    return Picked(terms, case, token, np.zeros(rows, bool))


def phi(feature: FeatureMap, x: Interval) -> Interval:
    """The feature map on intervals; it is increasing and positive.

    >>> phi("elu+1", Interval.point([0.0, 3.0])).lo.tolist()
    [1.0, 4.0]
    """
    right = x.relu() + 1.0
    if feature == "relu+1":
        return right
    left = Interval(np.minimum(x.lo, 0.0), np.minimum(x.hi, 0.0)).exp()
    return Interval(
        np.where(x.lo > 0, right.lo, left.lo), np.where(x.hi > 0, right.hi, left.hi)
    ).simplified()


def _softmax_terms(keys: Interval, queries: Interval, seen: Mask) -> Picked:
    count, n_queries, length, _ = seen.shape
    rows, d = count * n_queries, keys.shape[-1]
    middle, radius = _coarse_scores(queries, keys.reshape(count, 2 * length, d))
    low = (middle - radius).reshape(seen.shape)
    high = np.where(seen, (middle + radius).reshape(seen.shape), -np.inf)
    present = seen.any(axis=-1)
    # A token is certain to weigh at least its cheaper option; the best such token is the measure.
    certain = np.where(present, np.where(seen, low, np.inf).min(axis=-1), -np.inf)
    measure = certain.max(axis=-1).reshape(rows)
    top = high.max(axis=-1).reshape(rows, length)
    near = top >= measure[:, None] - _FAR
    lifted = top.max(axis=1) > measure + _LIFT

    row, column = np.nonzero(near)
    per_row = np.bincount(row, minlength=rows)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    token = np.zeros((rows, int(per_row.max())), np.int64)
    filled = np.zeros(token.shape, bool)
    token[row, slot], filled[row, slot] = column, True

    case = np.repeat(np.arange(count), n_queries)[:, None]
    scores = (keys[case, token] * queries.reshape(rows, 1, 1, d)).total(axis=-1)
    scores = scores - measure[:, None, None]
    scores = Interval(np.minimum(scores.lo, _LIFT), np.minimum(scores.hi, _LIFT))
    possible = seen.reshape(rows, length, 2)[np.arange(rows)[:, None], token] & filled[..., None]
    left_out = present.reshape(rows, length).sum(axis=1) - per_row
    tail = Interval.point(left_out.astype(np.float64)) * Interval.point(float(-_FAR)).exp()
    return Picked(Terms(scores.exp(), possible, tail.hi), case, token, lifted)


def _coarse_scores(a: Interval, b: Interval) -> tuple[FloatArray, FloatArray]:
    """Midpoints and radii of the products a · b over the last axis, `case query key`.

    The radius |a| rad(b) + rad(a) (|b| + rad(b)) + (d + 4) 2^-52 (|a| + rad(a)) (|b| + rad(b))
    covers the spread of both and the rounding of the product, in whatever order it is summed.
    """
    (a_mid, a_rad), (b_mid, b_rad) = _centred(a), _centred(b)
    b_mid, b_rad = b_mid.swapaxes(1, 2), b_rad.swapaxes(1, 2)
    middle = a_mid @ b_mid
    a_top, b_top = np.abs(a_mid) + a_rad, np.abs(b_mid) + b_rad
    radius = (a.shape[-1] + 4) * 2.0**-52 * (a_top @ b_top) + _TINY
    if not (a.is_point and b.is_point):
        radius = (radius + np.abs(a_mid) @ b_rad + a_rad @ b_top) * (1 + 2.0**-40)
    return middle, radius


def _centred(x: Interval) -> tuple[FloatArray, FloatArray]:
    if x.is_point:
        return x.lo, np.zeros_like(x.lo)
    middle = (x.lo + x.hi) / 2
    return middle, np.maximum(x.hi - middle, middle - x.lo) * (1 + 2.0**-50) + _TINY
