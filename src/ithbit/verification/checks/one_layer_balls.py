"""The margin of one block of softmax attention over a leaf: a second implementation for the check.

It shares no code with the bounds of the search: it works on one leaf at a time, in arb balls
(python-flint), which carry all rounding, instead of float64 arrays with error terms. A form is a
matrix whose first column is the centre and whose other columns belong to symbols in [-1, 1]: first
those of the free bits, then those of the remainders.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx, fmpq

from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray

PRECISION = 96
_EPS = fmpq(1, 10**12)
_PIECES = 12
_BEND = (arb("-0.10799"), arb("0.79789"))  # GELU'' = φ(x)(2 - x²), least at ±2, greatest at 0

Ball = Any  # flint.arb, which has no type stubs
Balls = Any  # flint.arb_mat


class OneLayer:
    """The trained model in balls; `lower` bounds its margin over a set of inputs."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, FloatArray]) -> None:
        self.n, d = spec.n_bits, spec.d_model
        self.p = {name: _exact(value) for name, value in params.items()}
        n, heads, size = self.n, spec.n_heads, d // spec.n_heads
        with ctx.workprec(2 * PRECISION):
            tokens = [self._token(bit, j) for bit in (0, 1) for j in range(n)]
            tokens += [self._token(None, i) for i in range(n)]
            normed = [_normed(x, *self._norm("enter.norm")).tolist() for x in tokens]
            rows = arb_mat([[row[0] for row in column] for column in normed])
            qkv = rows * self.p["blocks.0.qkv.weight"].transpose()
            bias, out = self.p["blocks.0.qkv.bias"], self.p["blocks.0.out.weight"]
            part = [[qkv[t, c] + bias[0, c] for c in range(3 * d)] for t in range(3 * n)]
            self.own = [[rows[2 * n + i, c] for c in range(d)] for i in range(n)]
            # values, head token: what it adds; reads, head: queries and keys that give its weight
            self.values, self._reads = [], []
            self._weighed: tuple[int, Any] = (-1, None)
            for h in range(heads):
                at = range(h * size, (h + 1) * size)
                values = arb_mat([[row[2 * d + c] for c in at] for row in part])
                mine = arb_mat([[out[r, c] for c in at] for r in range(d)])
                self.values.append((values * mine.transpose()).tolist())
                keys = arb_mat([[row[d + c] for c in at] for row in part])
                asked = [[part[2 * n + i][c] for c in at] for i in range(n)]
                self._reads.append((asked, keys.transpose() * arb(size).rsqrt()))

    def weights(self, index: int) -> list[list[Ball]]:
        """How much each token weighs, head token. For one index at a time: those of all would grow
        with n², whatever the size of the file."""
        if self._weighed[0] != index:
            with ctx.workprec(2 * PRECISION):
                scores = [
                    (arb_mat([asked[index]]) * keys).tolist()[0] for asked, keys in self._reads
                ]
                self._weighed = index, [_exps(row) for row in scores]
        return self._weighed[1]

    def _token(self, bit: int | None, j: int) -> Balls:
        """The embedded token of a bit at place j, or of query j + 1, as a column."""
        n = self.n
        part = fmpq(j, n)
        if bit is None:
            features, place = [0, 1, 0, 0, part, part * part], fmpq(1)
        else:
            features, place = [1, 0, 0, bit, 0, 0], part  # t / (L - 1) with L = n + 1
        x = self.p["embed"] * arb_mat([[arb(f)] for f in features])
        x += self.p["positions.polynomial"] * arb_mat([[arb(place)], [arb(place * place)]])
        return x + self.p["enter.type"].transpose()

    def _norm(self, name: str) -> tuple[list[Ball], list[Ball]]:
        return tuple(self.p[f"{name}.{which}"].tolist()[0] for which in ("weight", "bias"))

    def branch(self, index: int, bits: list[int]) -> int | None:
        """The free bit that heads attend to most."""
        free = [j for j, bit in enumerate(bits) if bit < 0]
        return max(free, key=lambda j: self._share(index, j)) if free else None

    def _share(self, index: int, j: int) -> float:
        """The most attention that any head may pay to bit j, roughly."""
        rows = [[float(w) for w in each] for each in self.weights(index)]
        return max((row[j] + row[j + self.n]) / sum(row) for row in rows)

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        """Whether the margin is certainly at most 0 on all strings with these bits."""
        with ctx.workprec(PRECISION):
            margin, off = self._margin(index, bits)
            high = margin + off
            return bool(high.is_finite() and high <= 0)

    def lower(self, index: int, bits: list[int]) -> Ball:
        """A lower bound on the margin on all strings with these bits, or a non-finite ball."""
        with ctx.workprec(PRECISION):
            margin, off = self._margin(index, bits)
            return margin - off

    def _margin(self, index: int, bits: list[int]) -> tuple[Ball, Ball]:
        """The centre of the margin's form, and how far it moves."""
        logit = self._tail(self._attention(index, bits))
        centre = logit[0, 0] if bits[index] else -logit[0, 0]
        return centre, sum((abs(logit[0, s]) for s in range(1, logit.ncols())), arb(0))

    def _attention(self, i: int, bits: list[int]) -> Balls:
        """The last token after attention as a form: N/D = m + (N - m D) / D with 1/D between its
        ends or, where D varies a lot and that is narrower, each coordinate's own range."""
        n, d = self.n, len(self.own[0])
        free = [j for j in range(n) if bits[j] < 0]
        bias = self.p["blocks.0.out.bias"].tolist()[0]
        centre = [x + b for x, b in zip(self.own[i], bias, strict=True)]
        G = [[arb(0)] * len(free) for _ in range(d)]
        left = [arb(0)] * d
        for w, v in zip(self.weights(i), self.values, strict=True):
            sure = [j + n * bits[j] for j in range(n) if bits[j] >= 0] + [2 * n + i]
            D, low, high = (sum((w[t] for t in sure), arb(0)) for _ in range(3))
            N = [sum((w[t] * v[t][c] for t in sure), arb(0)) for c in range(d)]
            half = []
            for j in free:
                a, b = w[j], w[j + n]
                D, low, high = D + (a + b) / 2, low + a.min(b), high + a.max(b)
                for c in range(d):
                    N[c] += (a * v[j][c] + b * v[j + n][c]) / 2
                pairs = zip(v[j], v[j + n], strict=True)
                half.append(((b - a) / 2, [(b * y - a * x) / 2 for x, y in pairs]))
            m = [_middle(x / D) for x in N]
            top, bottom = 1 / low, 1 / high
            middle, radius = (top + bottom) / 2, (top - bottom) / 2
            ranged = bool(high > arb(1.5) * low)
            for c in range(d):
                g = [x[c] - m[c] * weight for weight, x in half]
                rest = N[c] - m[c] * D
                large = abs(rest) + sum(map(abs, g), arb(0))
                at, reach = m[c] + middle * rest, radius * large
                if ranged:
                    ends = [self._end(w, v, free, sure, c, sign, low) for sign in (1, -1)]
                    if (ends[0] + ends[1]) / 2 < middle * large + reach:
                        at, reach, g = (ends[0] - ends[1]) / 2, (ends[0] + ends[1]) / 2, []
                centre[c] += at
                left[c] += reach
                for k, each in enumerate(g):
                    G[c][k] += middle * each
        return _with_own([[centre[c], *G[c]] for c in range(d)], left)

    def _end(
        self, w: Any, v: Any, free: list[int], sure: list[int], c: int, sign: int, low: Ball
    ) -> Ball:
        """An upper bound on sign · Σ w v / Σ w in one coordinate. For any λ the ratio is at most
        λ + max(F, 0) / D with F = max Σ w (v - λ); a few Dinkelbach steps choose λ."""
        n = self.n
        pairs = [[(w[t], sign * v[t][c]) for t in (j, j + n)] for j in free]
        rest = [(w[t], sign * v[t][c]) for t in sure]
        near = arb(_guess(pairs, rest))
        F = sum((a * (x - near) for a, x in rest), arb(0))
        F += sum((arb.max(*(a * (x - near) for a, x in pair)) for pair in pairs), arb(0))
        return near + F.max(arb(0)) / low

    def _tail(self, x: Balls) -> Balls:
        """The block after attention, and the head."""
        x = _normed(x, *self._norm("blocks.0.norm1"))
        hidden = _gelu(_linear(x, self.p["blocks.0.up.weight"], self.p["blocks.0.up.bias"]))
        down = _linear(hidden, self.p["blocks.0.down.weight"], self.p["blocks.0.down.bias"])
        x = arb_mat(
            [
                [down[r, s] + (x[r, s] if s < x.ncols() else 0) for s in range(down.ncols())]
                for r in range(x.nrows())
            ]
        )
        x = _normed(x, *self._norm("blocks.0.norm2"))
        return _linear(x, self.p["head.weight"], self.p["head.bias"])


def _guess(pairs: list[list[tuple[Ball, Ball]]], rest: list[tuple[Ball, Ball]]) -> float:
    """About the largest Σ a x / Σ a with one (a, x) of each pair and all of the rest, in floats."""
    a, x = np.array([[(float(a), float(x)) for a, x in pair] for pair in pairs]).reshape(-1, 2, 2).T
    b, y = np.array([(float(a), float(x)) for a, x in rest]).T
    at = float(min(x.min(initial=np.inf), y.min()))
    with np.errstate(all="ignore"):
        for _ in range(8):
            first = a[0] * (x[0] - at) >= a[1] * (x[1] - at)
            best, value = np.where(first, a[0], a[1]), np.where(first, x[0], x[1])
            weight = float(best.sum() + b.sum())
            if not weight > 0:  # they underflow
                break
            at = float(best @ value + b @ y) / weight
    return at


def _exact(value: FloatArray) -> Balls:
    return arb_mat(np.atleast_2d(value).tolist())


def _exps(scores: list[Ball]) -> list[Ball]:
    """e^s up to a common factor."""
    top = arb(max(float(s.mid()) for s in scores))
    return [(s - top).exp() for s in scores]


def _middle(x: Ball) -> Ball:
    """A point of the ball, exact."""
    return arb(float(x.mid()))


def _linear(x: Balls, weight: Balls, bias: Balls) -> Balls:
    out = weight * x
    for r in range(out.nrows()):
        out[r, 0] += bias[0, r]
    return out


def _with_own(rows: list[list[Ball]], left: list[Ball]) -> Balls:
    """Rows of a form, each with an additional symbol of its own."""
    d = len(rows)
    return arb_mat(
        [[*rows[r], *(left[r] if r == s else arb(0) for s in range(d))] for r in range(d)]
    )


def _normed(x: Balls, gain: list[Ball], bias: list[Ball]) -> Balls:
    """LayerNorm. The variance is V(ε) = v + u ε + |G ε|²/d, whose last term is between 0 and a
    bound, and 1/√V is within a radius of an affine function of V with the chord's slope; a
    coordinate whose own interval is narrower gets that interval."""
    d, columns = x.nrows(), x.ncols()
    centring = [[arb(int(r == s)) - arb(fmpq(1, d)) for s in range(d)] for r in range(d)]
    rows = (arb_mat(centring) * x).tolist()
    c, G = [row[0] for row in rows], [row[1:] for row in rows]
    r = [sum(map(abs, g), arb(0)) for g in G]
    v = sum((a * a for a in c), arb(0)) / d + _EPS
    if columns == 1:
        scale = v.rsqrt()
        return arb_mat([[a * scale * g + b] for a, g, b in zip(c, gain, bias, strict=True)])
    u = [2 * sum((c[k] * G[k][s] for k in range(d)), arb(0)) / d for s in range(columns - 1)]
    gram = (arb_mat(G).transpose() * arb_mat(G)).tolist()  # symmetric
    off_diagonal = sum((sum(map(abs, row[k + 1 :]), arb(0)) for k, row in enumerate(gram)), arb(0))
    square = (2 * off_diagonal + sum((abs(row[k]) for k, row in enumerate(gram)), arb(0))) / d
    square = square.min(sum((y * y for y in r), arb(0)) / d)
    reach = sum(map(abs, u), arb(0))
    near = [(abs(a) - b).max(arb(0)) for a, b in zip(c, r, strict=True)]
    far = [abs(a) + b for a, b in zip(c, r, strict=True)]
    low = (v - reach).max(sum((y * y for y in near), arb(0)) / d + _EPS).lower()
    low = low.max(arb(_EPS)).lower()
    high = (v + reach + square).min(sum((y * y for y in far), arb(0)) / d + _EPS).upper()
    high = high.max(low * (1 + arb(2) ** -40)).upper()
    slope = _middle(-1 / (low.sqrt() * high.sqrt() * (low.sqrt() + high.sqrt())))
    above = (low.rsqrt() - slope * low).max(high.rsqrt() - slope * high)
    below = arb(1.5) * (-2 * slope).root(3)  # least of V^-½ - slope V, at any V > 0
    s = slope * (v + square / 2) + (above + below) / 2
    off = (above - below) / 2 + abs(slope) * square / 2
    moved = [slope * each for each in u]
    wave = sum(map(abs, moved), arb(0)) + off
    top, bottom, cap = low.rsqrt(), high.rsqrt(), arb(d - 1).sqrt()
    out, left = [], []
    for k in range(d):
        row = [c[k] * s, *(g * s + c[k] * m for g, m in zip(G[k], moved, strict=True)), c[k] * off]
        rest = r[k] * wave
        ends = [sign * c[k] + r[k] for sign in (1, -1)]  # of x and of -x
        ends = [(e * top).max(e * bottom).min(cap) for e in ends]
        if not sum(map(abs, row[1:]), arb(0)) + rest <= (ends[0] + ends[1]) / 2:
            row = [(ends[0] - ends[1]) / 2, *[arb(0)] * columns]
            rest = (ends[0] + ends[1]) / 2
        out.append([gain[k] * y for y in row])
        out[-1][0] += bias[k]
        left.append(gain[k] * rest)
    return _with_own(out, left)


def _gelu(x: Balls) -> Balls:
    """GELU: an affine part with the chord's slope, and a remainder bounded piece by piece, from the
    values at the pieces' ends and the extremes of the second derivative."""
    out, left = [], []
    root = arb(2).rsqrt()
    for row in x.tolist():
        r = sum(map(abs, row[1:]), arb(0))
        low, high = (row[0] - r).lower(), (row[0] + r).upper()
        step = (high - low) / _PIECES
        points = [low + k * step for k in range(_PIECES)] + [high]
        values = [t * (1 + (t * root).erf()) / 2 for t in points]
        slope = _middle((values[-1] - values[0]) / (high - low).max(arb(2) ** -40))
        rest = [value - slope * t for value, t in zip(values, points, strict=True)]
        top, bottom = rest[0], rest[0]
        for each in rest[1:]:
            top, bottom = top.max(each), bottom.min(each)
        bend = step * step / 8
        top, bottom = top - bend * _BEND[0], bottom - bend * _BEND[1]
        out.append([slope * y for y in row])
        out[-1][0] += (top + bottom) / 2
        left.append((top - bottom) / 2)
    return _with_own(out, left)
