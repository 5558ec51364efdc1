"""Boxes through an attention layer, softmax or linear, full or causal: the sums x_k + a_k.

For one query (a token and its own bit) the average a_k runs over all tokens it sees, each with its
possible bits: that is the program of `fractional`. For softmax, scores are first computed in floats
with a bound on their error; tokens whose score is far below one that is certain to occur are lumped
into a remainder, and only the others get intervals and exponentials.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.arithmetic.fractional import Terms
from ithbit.theory.certifiers.arithmetic.intervals import Interval, choose
from ithbit.theory.certifiers.boxes.cases import Cases, Embedded, Mask, Numbers, linear
from ithbit.theory.layers import FeatureMap, FloatArray, LinearAttention, SoftmaxAttention

_FAR = 60  # a score this far below one that is certain weighs at most e^-60 of it
_LIFT = 600.0  # a score this far above one that is certain may overflow: use the hull
_TINY = 1e-290  # absolute slack for underflow in the coarse bounds


def attend(
    layer: SoftmaxAttention | LinearAttention, cases: Cases | Embedded, last: bool
) -> Interval:
    """Enclosures of x_k + a_k, `case query dim`: each token with each bit, or only the last."""
    count, length, _ = cases.allowed.shape
    token = np.array([length - 1]) if last else np.repeat(np.arange(length), 2)
    bit = np.array([0]) if last else np.tile([0, 1], length)
    own = cases.gather(np.arange(count)[:, None], token[None].repeat(count, 0))
    own = own[:, np.arange(len(token)), bit]
    seen = _seen(cases.allowed, token, bit, layer.causal)
    queries = linear(layer.Q, own)
    hull = linear(layer.V, cases.hull)[np.repeat(np.arange(count), len(token))]
    if isinstance(layer, SoftmaxAttention):
        picked = _softmax_terms(cases, linear(layer.K.T, queries), seen)
    else:
        picked = _linear_terms(layer.feature, linear(layer.K, cases.box), queries, seen)
    near = linear(layer.V, cases.gather(picked.case, picked.token))
    bounds = [picked.terms.range(near[..., c], hull[..., c]) for c in range(layer.d_in)]
    average = Interval(
        np.stack([bound.lo for bound in bounds], -1), np.stack([bound.hi for bound in bounds], -1)
    )
    average = choose(picked.lifted[:, None], hull, average)
    return own + average.simplified().reshape(*own.shape)


def _seen(allowed: Mask, token: Numbers, bit: Numbers, causal: bool) -> Mask:
    """`case query token bit`: what each query may see; at its own place, only its own bit."""
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


def _softmax_terms(cases: Cases | Embedded, u: Interval, seen: Mask) -> Picked:
    """Terms of softmax: the score of token l is (K x_l)·(Q x_k) = x_l·u with u = K^T Q x_k."""
    count, n_queries, length, _ = seen.shape
    rows, d = count * n_queries, u.shape[-1]
    middle = (u.lo + u.hi) / 2
    options = [cases.scores(middle, bit) for bit in (0, 1)]
    # A token's score is at least that of its cheaper option; the largest such score is the measure.
    # It need not be exact: scores are taken relative to it, so it cancels in the average.
    cheap = np.minimum(*(np.where(seen[..., bit], options[bit], np.inf) for bit in (0, 1)))
    measure = np.where(cheap < np.inf, cheap, -np.inf).max(axis=2)
    top = np.maximum(*(np.where(seen[..., bit], options[bit], -np.inf) for bit in (0, 1)))
    reach = _score_radius(cases, u)
    near = ~(top < (measure - _FAR - reach)[..., None]).reshape(rows, length)

    row, column = np.nonzero(near)
    per_row = np.bincount(row, minlength=rows)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    token = np.zeros((rows, int(per_row.max())), np.int64)
    filled = np.zeros(token.shape, bool)
    token[row, slot], filled[row, slot] = column, True

    case = np.repeat(np.arange(count), n_queries)[:, None]
    scores = (cases.gather(case, token) * u.reshape(rows, 1, 1, d)).total(axis=-1)
    scores = scores - measure.reshape(rows, 1, 1)
    possible = seen.reshape(rows, length, 2)[np.arange(rows)[:, None], token] & filled[..., None]
    lifted = (possible & ~(scores.hi <= _LIFT)).any(axis=(1, 2))
    scores = Interval(np.minimum(scores.lo, _LIFT), np.minimum(scores.hi, _LIFT))
    tail = Interval.point(float(-_FAR)).exp() * float(length)
    return Picked(Terms(scores.exp(), possible, np.full(rows, tail.hi)), case, token, lifted)


def _score_radius(cases: Cases | Embedded, u: Interval) -> FloatArray:
    """By how much a score may exceed its float value at the midpoints, `case query`.

    With a for the box of u and b for that of x, coordinate by coordinate: rad(a) |b| + |a| rad(b)
    for the spread and (d + 4) 2^-52 |a| |b| for the rounding of the product, for any order of
    summation; |b| is the largest over the tokens of the case. Doubled, to cover its own rounding.
    """
    size = np.maximum(np.abs(cases.hull.lo), np.abs(cases.hull.hi))[:, None]
    a = np.maximum(np.abs(u.lo), np.abs(u.hi))
    spread = (u.hi - u.lo) * size + a * cases.radius[:, None]
    rounding = (u.shape[-1] + 4) * 2.0**-52 * a * size
    radius: FloatArray = 2 * (spread + rounding).sum(axis=2) + _TINY
    return radius
