"""Ends of ratios of sums against all strings, in fractions.

The weights and values that the check knows are rounded ones. What they stand for is drawn here as
far from them as the bounds must allow, so that missing error terms show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from ithbit.verification.checks import affine_sets
from ithbit.verification.checks.affine_sets import ENTRY, RatioSums, TokenSet, narrowed, off_by

FIXED, DIMS = 3, 2
Rng = np.random.Generator
Exact = list[tuple[Fraction, Fraction]]  # weights and values of tokens


def weights_like(rng: Rng, kind: str, *shape: int) -> np.ndarray:
    """Positive weights, or 0."""
    if kind == "equal":
        return np.full(shape, float(np.exp(rng.normal())))
    w = 10.0 ** (rng.uniform(-1, 1, shape) * rng.choice([0.3, 6, 12]))
    if kind == "zeros":
        w *= rng.random(shape) < 0.5
    elif kind == "one huge":
        w.flat[rng.integers(w.size)] *= 1e30
    return w


KINDS = ("spread", "equal", "zeros", "one huge")


def values_like(rng: Rng, *shape: int) -> np.ndarray:
    kind = rng.choice(["any", "close", "equal", "small"])
    v = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 2)
    if kind == "close":
        return 1.7 + v * 10.0 ** rng.uniform(-16, -8)
    return {"any": v, "equal": 0 * v + rng.normal(), "small": v * 1e-24}[kind]


@dataclass
class Case:
    """The terms of ratios at one slot, with those of the fixed tokens kept apart."""

    w: np.ndarray  # (2, bit)
    v: np.ndarray  # (2, bit, dim)
    fixed_w: np.ndarray
    fixed_v: np.ndarray

    def sums(self) -> RatioSums:
        w, v, of = (each[:, None] for each in self.w), self.v, self.fixed_w[None]
        N, sizes = of @ self.fixed_v, of @ np.abs(self.fixed_v)
        off = off_by(3 * (self.w.shape[1] + FIXED))
        first, second = w
        return RatioSums((first.T, second.T), (v[0], v[1]), N, sizes, of.sum(1), off)

    def middle(self) -> np.ndarray:
        """The ratio where each bit is half of both tokens: (1, dim)."""
        N = np.einsum("bj,bjd->d", self.w, self.v) / 2 + self.fixed_w @ self.fixed_v
        return np.asarray(N / (self.w.sum() / 2 + self.fixed_w.sum()))[None]

    def exact(self, dim: int, side: int, middle: float) -> tuple[list[Exact], Exact]:
        """What the numbers may stand for: values at the end of their balls on that side, and
        weights that are larger where the value is on that side of the middle."""

        def off(w: float, v: float) -> tuple[Fraction, Fraction]:
            u, heavier = Fraction(2) ** -52, 1 if side * (v - middle) > 0 else -1
            far = abs(Fraction(v)) * u + Fraction(ENTRY)
            return Fraction(w) * (1 + heavier * u), Fraction(v) + side * far

        tokens = [
            [off(float(self.w[b, j]), float(self.v[b, j, dim])) for b in (0, 1)]
            for j in range(self.w.shape[1])
        ]
        fixed = zip(self.fixed_w.tolist(), self.fixed_v[:, dim].tolist(), strict=True)
        return tokens, [off(w, v) for w, v in fixed]


def draw(rng: Rng, bits: int) -> Case:
    kind = str(rng.choice(KINDS))
    v = values_like(rng, 2 * bits + FIXED, DIMS)
    w, fixed_w = weights_like(rng, kind, 2, bits), weights_like(rng, kind, FIXED)
    fixed_w *= rng.choice([1e-12, 1e-3, 1.0])
    fixed_w[0] += 1e-30
    return Case(w, v[: 2 * bits].reshape(2, bits, DIMS), fixed_w, v[2 * bits :])


def ratios(bits: list[Exact], fixed: Exact) -> list[Fraction]:
    """Those of all strings."""
    found = []
    for string in product((0, 1), repeat=len(bits)):
        tokens = [pair[b] for pair, b in zip(bits, string, strict=True)] + fixed
        found.append(sum(w * v for w, v in tokens) / sum(w for w, _ in tokens))
    return found


def _below(value: Fraction) -> float:
    """The largest float below."""
    t = float(value)
    while Fraction(t) >= value:
        t = float(np.nextafter(t, -np.inf))
    return t


def compare(rng: Rng, violated: Callable[[str], None]) -> None:
    """Ends, and numbers just below the greatest ratio, which must not pass for bounds."""
    case = draw(rng, int(rng.integers(1, 5)))
    sums = case.sums()
    start = case.middle()
    usual = affine_sets._ROUNDS
    try:  # what is found after few rounds must be refused
        affine_sets._ROUNDS = int(rng.choice([1, 2, usual]))
        low, high = affine_sets.ratio_ends(sums, start)
    finally:
        affine_sets._ROUNDS = usual
    form = TokenSet(start, np.full((1, DIMS, 1), 1e300), np.zeros((1, DIMS)))
    with np.errstate(all="ignore"):
        taken = narrowed(form, np.array([0]), low, high)
    for dim in range(DIMS):
        for side in (1, -1):
            bits, fixed = case.exact(dim, side, float(start[0, dim]))
            every = ratios(bits, fixed)
            most, least = max(every), min(every)
            if low[0, dim] > least or high[0, dim] < most:
                violated("ends of a ratio")
            c, e, g = (float(each[0, dim]) for each in (taken.c, taken.e, taken.G[..., 0]))
            if abs(max(most - Fraction(c), Fraction(c) - least)) > Fraction(e) and not g:
                violated("an interval in place of a form")
            if sums.holds(np.full((1, DIMS), _below(most)))[0, dim]:
                violated("a number below the greatest ratio")
    _lost(violated)


def _lost(violated: Callable[[str], None]) -> None:
    """A sum that is 0.4e-14 and comes out negative: numpy adds every eighth number, and each of the
    small ones is lost to a large one."""
    u = 2.0**-53
    v = np.array([1.0] * 4 + [-1 - 18 * u] * 4 + [0.99 * u] * 120)[:, None]
    one, off = np.ones((1, 1)), off_by(3 * len(v))
    w = np.ones((1, len(v)))
    sums = RatioSums((w, w), (v, v - 1), 0 * one, 0 * one, one[0], off)
    if sums.holds(0 * one)[0, 0]:
        violated("a sum of numbers that are lost")
