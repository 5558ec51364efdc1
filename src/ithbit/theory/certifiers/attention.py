"""Boxes through an attention layer, softmax or linear, full or causal: the sums x_k + a_k.

For one query (a token and its own bit) the average a_k runs over all tokens it sees, each with its
possible bits: a fractional program, solved exactly.

Fact. Let token l contribute a weight w_l > 0 and a value v_l from a set of options (its two bits)
that does not depend on the other tokens. Then the smallest value of  sum w v / sum w  over all
choices is at least lam  if and only if  sum_l min over options of w_l (v_l − lam) >= 0.

Newton's iteration (Dinkelbach) finds the best lam in floats, which proves nothing; then one
evaluation in intervals turns it into a bound. If the sum comes out as −g < 0 at lam, it is >= 0 at
lam − g / W, where W is the sum of the smallest weights: this value is *certified*.

For softmax, scores are first computed in floats with a bound on their error; tokens whose score is
far below one that is certain to occur are lumped into a remainder, and only the others get
intervals and exponentials.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.cases import Cases, Mask, Numbers, linear
from ithbit.theory.certifiers.intervals import Interval, choose, concatenate
from ithbit.theory.layers import FeatureMap, FloatArray, LinearAttention, SoftmaxAttention

_NEWTON_STEPS = 40
_NEWTON_TOLERANCE = 2.0**-50  # smaller steps are rounding noise
_FAR = 60  # a score this far below one that is certain weighs at most e^-60 of it
_LIFT = 600.0  # a score this far above one that is certain may overflow: use the hull
_TINY = 1e-290  # absolute slack for underflow in the coarse bounds


@dataclass(frozen=True, eq=False)
class Terms:
    """Rows of attention averages: `row token option` weights, and which options are possible.

    `rest` bounds the total weight of tokens left out of the table, per row.
    """

    weight: Interval
    possible: NDArray[np.bool_]
    rest: FloatArray

    def least(self, value: Interval, floor: FloatArray) -> FloatArray:
        """A lower bound, per row, of the average; `floor` bounds every value from below.

        >>> weight = Interval.point([[[1.0, 1.0], [1.0, 3.0]]])
        >>> terms = Terms(weight, np.array([[[True, False], [True, True]]]), np.zeros(1))
        >>> terms.least(Interval.point([[[1.0, 1.0], [0.0, -1.0]]]), np.array([-9.0])).tolist()
        [-0.5]
        """
        with np.errstate(all="ignore"):
            lam = self._newton(value.lo, floor)
        gap = Interval.point(value.lo) - lam[:, None, None]
        worth = np.where(self.possible, (self.weight * gap).lo, np.inf).min(axis=2)
        present = self.possible.any(axis=2)
        worth = np.where(present, worth, 0.0)
        spare = (Interval.point(floor) - lam) * self.rest
        total = Interval.point(worth).total(axis=1) + np.minimum(spare.lo, 0.0)
        smallest = np.where(self.possible, self.weight.lo, np.inf).min(axis=2)
        smallest = np.where(present, smallest, 0.0)
        mass = Interval.point(smallest).total(axis=1).lo
        usable = (mass > 0) & np.isfinite(total.lo) & np.isfinite(lam)
        shift = Interval.point(np.where(usable, np.minimum(total.lo, 0.0), 0.0)) / Interval.point(
            np.where(usable, mass, 1.0)
        )
        lam = np.where(total.lo >= 0, lam, (Interval.point(lam) + shift).lo)
        return np.where(usable, np.maximum(lam, floor), floor)

    def range(self, value: Interval, hull: Interval) -> Interval:
        """An enclosure, per row, of the average; `hull` encloses every value."""
        low = self.least(value, hull.lo)
        return Interval(low, -self.least(-value, -hull.hi))

    def _newton(self, value: FloatArray, floor: FloatArray) -> FloatArray:
        """The smallest average, in floats: swap to the cheaper options until nothing changes."""
        absent = ~self.possible.any(axis=2)
        lam: FloatArray = np.where(self.possible, value, -np.inf).max(axis=(1, 2))
        for _ in range(_NEWTON_STEPS):
            gap = value - lam[:, None, None]
            weight = np.where(gap >= 0, self.weight.lo, self.weight.hi)
            worth = np.where(self.possible, weight * gap, np.inf)
            pick = worth.argmin(axis=2)[..., None]
            chosen = np.where(absent, 0.0, np.take_along_axis(weight, pick, 2)[..., 0])
            gained = np.where(absent, 0.0, np.take_along_axis(worth, pick, 2)[..., 0])
            rest = np.where(floor < lam, self.rest, 0.0)
            step = (gained.sum(axis=1) + rest * (floor - lam)) / (chosen.sum(axis=1) + rest)
            if not (step < -_NEWTON_TOLERANCE * np.abs(lam)).any():
                break
            lam = lam + np.minimum(step, 0.0)
        return lam


def attend(layer: SoftmaxAttention | LinearAttention, cases: Cases, last: bool) -> Interval:
    """Enclosures of x_k + a_k, `case query dim`: each token with each bit, or only the last."""
    count, length, _ = cases.allowed.shape
    token = np.array([length - 1]) if last else np.repeat(np.arange(length), 2)
    bit = np.array([0]) if last else np.tile([0, 1], length)
    own = cases.gather(np.arange(count)[:, None], token)
    own = own[:, np.arange(len(token)), bit]
    seen = _seen(cases.allowed, token, bit, layer.causal)
    queries = linear(layer.Q, own)
    case = np.repeat(np.arange(count), len(token))  # of each row, a case and a query
    hull = linear(layer.V, cases.hull)[case]
    if isinstance(layer, SoftmaxAttention):
        terms, near, lifted = _softmax_terms(cases, case, linear(layer.K.T, queries), seen)
    else:
        every = cases.gather(np.arange(count)[:, None], np.arange(length))
        terms = _linear_terms(layer.feature, linear(layer.K, every), queries, seen)
        near, lifted = np.tile(np.arange(length), (len(case), 1)), np.zeros(len(case), bool)
    values = linear(layer.V, cases.gather(case[:, None], near))
    bounds = [terms.range(values[..., c], hull[..., c]) for c in range(layer.d_in)]
    average = concatenate([bound[..., None] for bound in bounds], axis=-1)
    average = choose(lifted[:, None], hull, average)
    return own + average.reshape(*own.shape)


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


def _linear_terms(feature: FeatureMap, keys: Interval, queries: Interval, seen: Mask) -> Terms:
    rows = seen.shape[0] * seen.shape[1]
    products = phi(feature, queries)[:, :, None, None] * phi(feature, keys)[:, None]
    weight = products.total(axis=-1).reshape(rows, *seen.shape[2:])
    return Terms(weight, seen.reshape(weight.shape), np.zeros(rows))


def phi(feature: FeatureMap, x: Interval) -> Interval:
    """The feature map on intervals; it is increasing and positive.

    >>> phi("elu+1", Interval.point([0.0, 3.0])).lo.tolist()
    [1.0, 4.0]
    """
    right = x.relu() + 1.0
    if feature == "relu+1":
        return right
    left = Interval(np.minimum(x.lo, 0.0), np.minimum(x.hi, 0.0)).exp()
    return Interval(np.where(x.lo > 0, right.lo, left.lo), np.where(x.hi > 0, right.hi, left.hi))


def _softmax_terms(
    cases: Cases, case: Numbers, u: Interval, seen: Mask
) -> tuple[Terms, Numbers, Mask]:
    """Terms of softmax: the score of token l is (K x_l)·(Q x_k) = x_l·u with u = K^T Q x_k; where
    their tokens are, `row term`; and rows whose scores spread too far, of which only the hull of
    the values is known."""
    rows, length, d = len(case), seen.shape[2], u.shape[-1]
    options = [cases.scores(u.middle, bit) for bit in (0, 1)]
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

    scores = (cases.gather(case[:, None], token) * u.reshape(rows, 1, 1, d)).total(axis=-1)
    scores = scores - measure.reshape(rows, 1, 1)
    possible = seen.reshape(rows, length, 2)[np.arange(rows)[:, None], token] & filled[..., None]
    lifted = (possible & ~(scores.hi <= _LIFT)).any(axis=(1, 2))
    scores = Interval(np.minimum(scores.lo, _LIFT), np.minimum(scores.hi, _LIFT))
    tail = Interval.point(float(-_FAR)).exp() * float(length)
    return Terms(scores.exp(), possible, np.full(rows, tail.hi)), token, lifted


def _score_radius(cases: Cases, u: Interval) -> FloatArray:
    """By how much a score may exceed its float value at the midpoints, `case query`.

    With a for the box of u and b for that of x, coordinate by coordinate: rad(a) |b| + |a| rad(b)
    for the spread and (d + 4) 2^-52 |a| |b| for the rounding of the product, for any order of
    summation; |b| is the largest over the tokens of the case. Doubled, to cover its own rounding.
    """
    size = np.maximum(np.abs(cases.hull.lo), np.abs(cases.hull.hi))[:, None]
    a = np.maximum(np.abs(u.lo), np.abs(u.hi))
    spread = (u.hi - u.lo) * size + a * cases.radius[:, None]
    rounding = (u.shape[-1] + 4) * 2.0**-52 * a * size
    return 2 * (spread + rounding).sum(axis=2) + _TINY
