"""A second implementation of the bounds for GRUs on LHI, for checking certificates.

It imports nothing of the search. One leaf at a time is carried through the recurrence as a zonotope
c + G ε + δ, with symbols ε in [-1, 1] that all rows share and |δ| <= e row by row; what a step
leaves over becomes symbols. With x the input of a layer and h its state, at first 0,

    r = σ(W_r x + b_r + U_r h + d_r)
    z = σ(W_z x + b_z + U_z h + d_z)
    n = tanh(W_n x + b_n + r (U_n h + d_n))
    h' = n + z (h - n)

and the logit is the head's product with the last layer's state after the last token. Tokens are the
query, the bits and the end, at the positions t/(n+1), t = 0, …, n+1.

Tokens and tanh are balls (python-flint). All else is float64 with its errors in e: a sum of k
products, in any order, with or without fused operations, is off by at most k u / (1 - k u) times
the sum of their sizes, u = 2^-53, which is less than `_share`, and by what underflows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx, fmpq

from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray

PRECISION = 96
_U = 2.0**-53
_UP = 1 + 64 * _U  # more than the rounding of a few sums and products of numbers of one sign
_LEAST = 1e-290  # more than what underflow takes from a sum
_KEPT = 20_000_000  # numbers of states that are kept for the next leaf

Balls = Any  # a list of flint.arb, which has no type stubs
Token = tuple[str, int]  # what it is, and its place, or the index from 0 in a query


def _share(terms: int) -> float:
    """What rounding may take from a sum of that many products, relative to the sum of their sizes;
    with room for some more operations on each."""
    return (2 * terms + 16) * _U


@dataclass(frozen=True, eq=False)
class Zonotope:
    """Vectors c + G ε + δ, |δ| <= e, row by row."""

    c: FloatArray
    G: FloatArray
    e: FloatArray

    def __getitem__(self, rows: slice) -> "Zonotope":
        return Zonotope(self.c[rows], self.G[rows], self.e[rows])

    def reach(self) -> FloatArray:
        """At least how far the symbols move each row."""
        return np.abs(self.G).sum(1) * (1 + _share(self.G.shape[1])) + _LEAST

    def wider(self, columns: int) -> "Zonotope":
        """The same with more symbols, which move nothing."""
        more = np.zeros((len(self.c), columns - self.G.shape[1]))
        return Zonotope(self.c, np.concatenate([self.G, more], 1), self.e)


@dataclass(frozen=True, eq=False)
class _Step:
    """A token, the states of all layers after it, and how far each bit has moved them so far."""

    token: Token
    states: list[Zonotope]
    moved: FloatArray


class GruLeaves:
    """A trained GRU; `lower` bounds its margin over a set of inputs."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, FloatArray]) -> None:
        self.n, self.layers, self.p = spec.n_bits, spec.n_layers, params
        # Of G, each token has one for its bit, 0 if it has none, and one per row and layer.
        self.columns = 1 + spec.n_layers * spec.d_model
        with ctx.workprec(2 * PRECISION):
            names = ("embed", "positions.polynomial", "blocks.0.ih.weight", "blocks.0.ih.bias")
            self._token_weights = [arb_mat(np.atleast_2d(params[name]).tolist()) for name in names]
        self._inputs: dict[Token, tuple[FloatArray, ...]] = {}
        self._path: list[_Step] = []  # of the last leaf; the next may begin with the same tokens

    def lower(self, index: int, bits: list[int]) -> float:
        """A lower bound of the margin on all strings with these bits (-1 for a free bit; index
        from 0); -inf if there is none."""
        centre, radius = self._margin(index, bits)
        low = float(centre - radius)
        return low if np.isfinite(low) else -np.inf

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        """Whether the margin is certainly at most 0 on all strings with these bits."""
        centre, radius = self._margin(index, bits)
        high = float(centre + radius)
        return np.isfinite(high) and high <= 0

    def branch(self, index: int, bits: list[int]) -> int | None:
        """The free bit that moves the states most, all tokens together; None if none is free."""
        free = [j for j, bit in enumerate(bits) if bit < 0]
        with np.errstate(all="ignore"):
            moved = self._walk(index, bits)[-1].moved
        return max(free, key=lambda j: moved[j], default=None)

    def _margin(self, index: int, bits: list[int]) -> tuple[float, float]:
        """The centre of the margin and how far it may be off."""
        with np.errstate(all="ignore"):
            last = self._walk(index, bits)[-1].states[-1]
            logit = _linear(self.p["head.weight"], self.p["head.bias"], last)
            off = (logit.reach() + logit.e) * _UP + np.abs(logit.c) * (4 * _U) + _LEAST
            return float(logit.c[0] if bits[index] else -logit.c[0]), float(off[0])

    def _walk(self, index: int, bits: list[int]) -> list[_Step]:
        """The tokens of a leaf and the states after each; only the last if they are large."""
        names = ("zero", "one", "free")
        read = ((names[bit], t + 1) for t, bit in enumerate(bits))
        tokens = [("query", index), *read, ("end", self.n + 1)]
        known = 0
        while known < len(self._path) and self._path[known].token == tokens[known]:
            known += 1
        del self._path[known:]
        d = len(self.p["embed"])
        nothing = [Zonotope(np.zeros(d), np.zeros((d, 0)), np.zeros(d))] * self.layers
        for token in tokens[known:]:
            last = self._path[-1] if self._path else _Step(token, nothing, np.zeros(self.n))
            states, moved = self._after(token, last.states), last.moved.copy()
            for state in states:
                sizes = np.abs(state.G[:, :: self.columns]).sum(0)[1 : self.n + 1]
                moved[: len(sizes)] += np.nan_to_num(sizes)
            self._path.append(_Step(token, states, moved))
            if len(self._path) * len(states) * states[0].G.size > _KEPT:
                del self._path[:-1]  # its first token is not a query, so nothing is shared
        return self._path

    def _after(self, token: Token, states: list[Zonotope]) -> list[Zonotope]:
        """The states of all layers after a token."""
        d, new = len(self.p["embed"]), list[Zonotope]()
        x = self._input(token, states[0].G.shape[1])
        for layer, state in enumerate(states):
            name = f"blocks.{layer}."
            if layer:
                x = _linear(self.p[f"{name}ih.weight"], self.p[f"{name}ih.bias"], new[-1])
            hidden = self.p[f"{name}hh.weight"], self.p[f"{name}hh.bias"]
            h = _next(*hidden, x, state.wider(x.G.shape[1]), self.columns)
            new.append(Zonotope(h.c, np.concatenate([h.G, np.diag(h.e)], 1), np.zeros(d)))
        return [each.wider(new[-1].G.shape[1]) for each in new]

    def _input(self, token: Token, symbols: int) -> Zonotope:
        """W x + b of the first layer for a token; the last symbol is that of a free bit."""
        if token not in self._inputs:
            kind, place = token
            with ctx.workprec(2 * PRECISION):
                ends = ("zero", "one") if kind == "free" else (kind, kind)
                pairs = list(zip(*(self._gates((end, place)) for end in ends), strict=True))
                c, e = _floats([(a + b) / 2 for a, b in pairs])
                half, off = _floats([(b - a) / 2 for a, b in pairs])
            self._inputs[token] = c, half[:, None], (e + off) * _UP
        c, half, e = self._inputs[token]
        return Zonotope(c, np.concatenate([np.zeros((len(c), symbols)), half], 1), e)

    def _gates(self, token: Token) -> Balls:
        """The same as balls, for a token without a free bit."""
        kind, place = token
        part = fmpq(place, self.n)
        features = {
            "query": [0, 1, 0, 0, part, part * part],
            "zero": [1, 0, 0, 0, 0, 0],
            "one": [1, 0, 0, 1, 0, 0],
            "end": [0, 0, 1, 0, 0, 0],
        }[kind]
        t = fmpq(0 if kind == "query" else place, self.n + 1)
        embed, positions, weight, bias = self._token_weights
        x = embed * arb_mat([[arb(f)] for f in features])
        x += positions * arb_mat([[arb(t)], [arb(t * t)]])
        return [row[0] for row in (weight * x + bias.transpose()).tolist()]


def _floats(balls: Balls) -> tuple[FloatArray, FloatArray]:
    """Floats near balls, and how far they may be off."""
    c = [float(x.mid()) for x in balls]
    e = [_above(abs(x - y)) for x, y in zip(balls, c, strict=True)]
    return np.array(c), np.array(e)


def _above(x: Any) -> float:
    """A float at least as large as a ball that is not negative; infinite if the ball is unknown."""
    return float(x.upper()) * _UP + _LEAST if x.is_finite() else np.inf


def _next(U: FloatArray, bias: FloatArray, x: Zonotope, h: Zonotope, columns: int) -> Zonotope:
    """A layer's state after h, for the input x of its gates; of so many columns of G the first is
    a bit's. States are in [-1, 1], whatever the weights are: a row that is not known to be narrower
    becomes that interval."""
    d = len(h.c)
    own = _linear(U, bias, h)
    a = _sum(x[: 2 * d], own[: 2 * d])
    gates, least, most = _tanh(_scaled(a, 0.5), *_range(_scaled(a, 0.5)))
    gates = _scaled(gates, 0.5)  # σ(a) = 1/2 + tanh(a/2) / 2
    gates = Zonotope(gates.c + 0.5, gates.G, gates.e + _U * (np.abs(gates.c) + 0.5) * _UP)
    least, most = 0.5 + least / 2 - 2 * _U, 0.5 + most / 2 + 2 * _U
    r, z, u = gates[:d], gates[d:], own[2 * d :]
    inner = _sum(x[2 * d :], _product(r, u, columns))
    (low, high), (low_u, high_u), (low_x, high_x) = map(_range, (inner, u, x[2 * d :]))
    # r u is between products of ends, since r is positive; that may be narrower.
    below = np.minimum(least[:d] * low_u, most[:d] * low_u) + low_x
    above = np.maximum(least[:d] * high_u, most[:d] * high_u) + high_x
    room = 8 * _U * (np.abs(low_u) + np.abs(high_u) + np.abs(low_x) + np.abs(high_x)) + _LEAST
    n, _, _ = _tanh(inner, np.maximum(low, below - room), np.minimum(high, above + room))
    # n = line + δ with |δ| <= n.e, so that h' = line + z (h - line) + δ (1 - z)
    line = Zonotope(n.c, n.G, np.zeros(d))
    new = _sum(line, _product(z, _sum(h, _scaled(line, -1.0)), columns))
    new = Zonotope(new.c, new.G, (new.e + n.e * (1 - least[d:])) * _UP + _LEAST)
    known = new.reach() + new.e < 1  # false for NaN
    G = np.where(known[:, None], new.G, 0.0)
    return Zonotope(np.where(known, new.c, 0.0), G, np.where(known, new.e, 1.0))


def _linear(weight: FloatArray, bias: FloatArray, x: Zonotope) -> Zonotope:
    """weight x + bias."""
    size = np.abs(weight)
    sizes = size @ (np.abs(x.c) + x.reach()) + np.abs(bias)
    e = size @ x.e + _share(len(x.c) + 1) * sizes
    return Zonotope(weight @ x.c + bias, weight @ x.G, e * _UP * (1 + _share(len(x.c))) + _LEAST)


def _scaled(x: Zonotope, factor: float) -> Zonotope:
    """A power of two, or its negative, times x: exact but for underflow."""
    return Zonotope(factor * x.c, factor * x.G, abs(factor) * x.e + _LEAST)


def _sum(x: Zonotope, y: Zonotope) -> Zonotope:
    """x + y, with the same symbols."""
    c, G = x.c + y.c, x.G + y.G
    e = x.e + y.e + 2 * _U * (np.abs(c) + Zonotope(c, G, x.e).reach())
    return Zonotope(c, G, e * _UP + _LEAST)


def _product(x: Zonotope, y: Zonotope, columns: int) -> Zonotope:
    """x y, row by row. Of the product of the symbols' parts, ε_s ε_t is in [-1, 1], ε_s ε_s is in
    [0, 1], and of a bit, which is the first symbol of so many, it is 1."""
    m = x.G.shape[1]
    a, b = x.reach(), y.reach()
    both = x.G * y.G / 2
    both[:, ::columns] *= 2
    c = x.c * y.c + both.sum(1)
    G = x.c[:, None] * y.G + y.c[:, None] * x.G
    far_x, far_y = np.abs(x.c) + a, np.abs(y.c) + b
    rest = a * b * _UP - np.abs(both).sum(1) * (1 - _share(m))
    e = far_x * y.e + far_y * x.e + x.e * y.e + rest + _share(m + 4) * far_x * far_y
    return Zonotope(c, G, e * _UP + _LEAST)


def _range(x: Zonotope) -> tuple[FloatArray, FloatArray]:
    """An interval for each row."""
    radius = (x.reach() + x.e) * _UP + np.abs(x.c) * (4 * _U) + _LEAST
    return x.c - radius, x.c + radius


def _tanh(
    x: Zonotope, low: FloatArray, high: FloatArray
) -> tuple[Zonotope, FloatArray, FloatArray]:
    """tanh of each row, by a line close to it on the row's range; and the range of its values."""
    with ctx.workprec(PRECISION):
        lines = [_line(*ends) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    slope, middle, off, least, most = np.array(lines).T
    flat = slope == 0  # where the row may be unknown
    c = np.where(flat, 0.0, slope * x.c) + middle
    G = np.where(flat[:, None], 0.0, slope[:, None] * x.G)
    wrong = slope * x.e + 2 * _U * slope * (np.abs(x.c) + x.reach())
    e = np.where(flat, 0.0, wrong) + off + 2 * _U * (np.abs(c) + np.abs(middle))
    return Zonotope(c, G, e * _UP), least, most


def _line(low: float, high: float) -> tuple[float, float, float, float, float]:
    """(a, m, r, b, t) with tanh y within a y + m ± r and between b and t on [low, high]; the
    constant 0 ± 1 if the interval is unknown. tanh y - a y is extreme at the ends, or where
    tanh² y = 1 - a: greatest there above 0, least below."""
    if not -np.inf < low <= high < np.inf:
        return 0.0, 0.0, 1.0, -1.0, 1.0
    left, right = arb(low).tanh(), arb(high).tanh()
    slope = float((right - left) / (arb(high) - low)) if high - low > 1e-9 else 1 - float(left) ** 2
    a = arb(slope) if 0 < slope < 1 else arb(0)  # any slope is sound
    ends = left - a * low, right - a * high
    top, bottom = ends[0].max(ends[1]), ends[0].min(ends[1])
    if a > 0:
        t = (1 - a).sqrt()
        y = t.atanh()
        peak = t - a * y
        if not (y < low or y > high):
            top = top.max(peak)
        if not (-y < low or -y > high):
            bottom = bottom.min(-peak)
    middle = float(((top + bottom) / 2).mid())
    off = _above((top - middle).max(middle - bottom).max(arb(0)))
    return float(a), middle, off, 1 - _above(1 - left) - 4 * _U, _above(1 + right) - 1 + 4 * _U
