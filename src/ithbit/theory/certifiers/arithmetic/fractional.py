"""The range of an attention average when the bits are free: a fractional program, solved exactly.

Fact. Let token l contribute a weight w_l > 0 and a value v_l from a set of options (its two bits)
that does not depend on the other tokens. Then the smallest value of  sum w v / sum w  over all
choices is at least lam  if and only if  sum_l min over options of w_l (v_l − lam) >= 0.

Newton's iteration (Dinkelbach) finds the best lam in floats, which proves nothing; then one
evaluation in intervals turns it into a bound. If the sum comes out as −g < 0 at lam, it is >= 0 at
lam − g / W, where W is the sum of the smallest weights: this value is *certified*.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certifiers.arithmetic.intervals import Interval
from ithbit.theory.layers import FloatArray

_NEWTON_STEPS = 40
_NEWTON_TOLERANCE = 2.0**-50  # smaller steps are rounding noise


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
        low, high = self.weight.lo, self.weight.hi
        options = np.stack([low, high], axis=-1)  # row token option end
        shut = ~np.repeat(self.possible[..., None], 2, axis=-1)
        rows, tokens = value.shape[:2]
        flat = options.reshape(rows, tokens, 4)
        values = np.repeat(value[..., None], 2, axis=-1).reshape(rows, tokens, 4)
        closed = shut.reshape(rows, tokens, 4)
        absent = closed.all(axis=2)
        lam: FloatArray = np.where(closed, -np.inf, values).max(axis=(1, 2))
        for _ in range(_NEWTON_STEPS):
            worth = np.where(closed, np.inf, flat * (values - lam[:, None, None]))
            pick = worth.argmin(axis=2)[..., None]
            chosen = np.where(absent, 0.0, np.take_along_axis(flat, pick, 2)[..., 0])
            gained = np.where(absent, 0.0, np.take_along_axis(worth, pick, 2)[..., 0])
            rest = np.where(floor < lam, self.rest, 0.0)
            step = (gained.sum(axis=1) + rest * (floor - lam)) / (chosen.sum(axis=1) + rest)
            if not (step < -_NEWTON_TOLERANCE * np.abs(lam)).any():
                break
            lam = lam + np.minimum(step, 0.0)
        return lam
