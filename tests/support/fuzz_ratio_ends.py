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
from ithbit.verification.checks.affine_sets import ENTRY, RatioSums, TokenSet, off_by

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

    P: np.ndarray  # (dim, dim)
    w: np.ndarray  # (2, bit)
    v: np.ndarray  # (2, bit, dim)
    fixed_w: np.ndarray
    fixed_v: np.ndarray

    def sums(self) -> RatioSums:
        of = self.fixed_w[None]
        fixed = of @ self.fixed_v, of @ np.abs(self.fixed_v), of.sum(1)
        count = 3 * (self.w.shape[1] + FIXED)
        return affine_sets.turned(self.P[None], self.w[:, None], self.v, fixed, count)

    def middle(self) -> np.ndarray:
        """The ratio where each bit is half of both tokens: (dim)."""
        N = np.einsum("bj,bjd->d", self.w, self.v) / 2 + self.fixed_w @ self.fixed_v
        return np.asarray(N / (self.w.sum() / 2 + self.fixed_w.sum()))

    def start(self) -> np.ndarray:
        return (self.P @ self.middle())[None]

    def exact(self, dim: int, side: int) -> tuple[list[Exact], Exact]:
        """What the numbers may stand for in one coordinate of P v: values at the end of their balls
        on that side, and weights that are larger where the value is on that side of the start."""
        u, row = Fraction(2) ** -52, list(map(Fraction, self.P[dim].tolist()))
        start = Fraction(float(self.start()[0, dim]))

        def off(w: float, v: np.ndarray) -> tuple[Fraction, Fraction]:
            value = Fraction(0)
            for p, each in zip(row, map(Fraction, v.tolist()), strict=True):
                value += p * each + side * abs(p) * (abs(each) * u + Fraction(ENTRY))
            return Fraction(w) * (1 + (u if side * (value - start) > 0 else -u)), value

        tokens = [
            [off(float(self.w[b, j]), self.v[b, j]) for b in (0, 1)] for j in range(self.w.shape[1])
        ]
        fixed = zip(self.fixed_w.tolist(), self.fixed_v, strict=True)
        return tokens, [off(w, v) for w, v in fixed]


def draw(rng: Rng, bits: int) -> Case:
    kind = str(rng.choice(KINDS))
    v = values_like(rng, 2 * bits + FIXED, DIMS)
    w, fixed_w = weights_like(rng, kind, 2, bits), weights_like(rng, kind, FIXED)
    fixed_w *= rng.choice([1e-12, 1e-3, 1.0])
    fixed_w[0] += 1e-30
    P = np.eye(DIMS) if rng.random() < 0.4 else np.linalg.qr(rng.normal(size=(DIMS, DIMS)))[0]
    return Case(P, w, v[: 2 * bits].reshape(2, bits, DIMS), fixed_w, v[2 * bits :])


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
    sums, start = case.sums(), case.start()
    usual = affine_sets._ROUNDS
    try:  # what is found after few rounds must be refused
        affine_sets._ROUNDS = int(rng.choice([1, 2, usual]))
        low, high = affine_sets.ratio_ends(sums, start)
        _show_narrowed(case, sums, violated)
    finally:
        affine_sets._ROUNDS = usual
    for dim in range(DIMS):
        for side in (1, -1):
            every = ratios(*case.exact(dim, side))
            most, least = max(every), min(every)
            if low[0, dim] > least or high[0, dim] < most:
                violated("ends of a ratio")
            if sums.holds(np.full((1, DIMS), _below(most)))[0, dim]:
                violated("a number below the greatest ratio")
    _lost(violated)


def _show_narrowed(case: Case, sums: RatioSums, violated: Callable[[str], None]) -> None:
    """A set that is made of the ends holds the vectors of all strings."""
    middle = case.middle()[None]
    form = TokenSet(middle, np.full((1, DIMS, 1 + DIMS), 1e300), np.zeros((1, DIMS)))
    most = np.abs(np.concatenate([*case.v, case.fixed_v])).max(0)
    with np.errstate(all="ignore"):
        x = affine_sets.narrowed(form, np.array([0]), sums, most, 1)
    if x.G[0, 0, 0] == 1e300:
        return
    own, c, e = x.G[0, :, 1:], list(map(Fraction, x.c[0].tolist())), x.e[0].tolist()
    at = [np.abs(own[:, j]).argmax() for j in range(DIMS)]  # a row where column j is not 0
    tokens = [
        [
            (Fraction(float(case.w[b, j])), list(map(Fraction, case.v[b, j].tolist())))
            for b in (0, 1)
        ]
        for j in range(case.w.shape[1])
    ]
    fixed = [
        (Fraction(w), list(map(Fraction, v.tolist())))
        for w, v in zip(case.fixed_w.tolist(), case.fixed_v, strict=True)
    ]
    for string in product((0, 1), repeat=len(tokens)):
        seen = [pair[b] for pair, b in zip(tokens, string, strict=True)] + fixed
        D = sum((w for w, _ in seen), Fraction(0))
        y = [sum((w * v[i] for w, v in seen), Fraction(0)) / D - c[i] for i in range(DIMS)]
        rest = list(y)
        for j in range(DIMS):
            if own[at[j], j] == 0:
                continue
            half = Fraction(float(own[at[j], j])) / Fraction(float(case.P[j, at[j]]))
            along = sum((Fraction(float(case.P[j, i])) * y[i] for i in range(DIMS)), Fraction(0))
            share = min(max(along / half, Fraction(-1)), Fraction(1))
            rest = [r - share * Fraction(float(own[i, j])) for i, r in enumerate(rest)]
        if x.G[0, :, 0].any() or any(abs(r) > Fraction(s) for r, s in zip(rest, e, strict=True)):
            violated("a set made of the ends of ratios")
            return


def _lost(violated: Callable[[str], None]) -> None:
    """A sum that is 1e-14 and comes out negative: numpy adds every eighth number, and each of the
    small ones is lost to a large one."""
    u = 2.0**-53
    v = np.array([1.0] * 4 + [-1 - 2 * u] * 4 + [0.99 * u] * 120)
    one, v = np.ones((1, 1)), np.stack([v, v - 1])[:, None, None]
    w = np.ones((2, 1, v.shape[-1]))
    zero = 0 * one
    off = off_by(3 * v.shape[-1])
    if RatioSums(one[None], w, v, 0 * v, zero, zero, zero, one, off).holds(zero)[0, 0]:
        violated("a sum of numbers that are lost")
