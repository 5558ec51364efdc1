"""Sets of vectors for second implementations: affine in the free bits of a leaf, plus errors.

A `TokenSet` holds vectors x = c + G ε ± e, one for each token: symbols ε in [-1, 1], first those of
the free bits, and for each coordinate a number e that takes all that is not affine, and rounding.
The search has arithmetic of its own (`proofs/affine_forms.py`), of which nothing is used here.

Trusted: that float64 +, -, *, / and square roots of numpy are those of IEEE 754, so that a sum of k
products, in any order, is off by at most (k + 1) 2^-53 of the sum of sizes (`off_by` allows more
than twice that); and arb. exp and GELU are polynomials around tables made of balls. Overflow gives
infinities and NaN, of which only a norm makes finite numbers: no coordinate exceeds √(d - 1) there.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx

from ithbit.theory.layers import FloatArray

TINY = 1e-290  # more than what underflow hides in a sum
LEAST = 1e-200  # a denominator below it bounds nothing
UP = 1 + 2.0**-44
ENTRY = 1e-24  # absolute error of a rounded ball, besides 2^-52 of its size
NARROWER = 0.7  # of its affine form: what a coordinate's interval must be to replace it
_GELU, _END = 256, 9  # its table has 256 points between 0 and 1; beyond 9, x Φ(-x) < 2e-18
# The fifth derivative φ(x)(x⁵ - 11x³ + 18x) of GELU is below 12; this is the error of the table.
_VALUE = 12 / 120 / (2 * _GELU) ** 5
# The most of its second derivative φ(x)(2 - x²) in size where |x| >= 0, 1, …: it is 0.7979 at 0,
# falls to 0 at √2 and to -0.10799 at 2, and rises to 0 from there.
_DIP = 0.10799
_BEND = np.array([0.7979, 0.242, _DIP, 0.0312, 0.0019, 4e-5, 3e-7, 2e-9, 1e-9])
_PIECES = 8  # into which the range of a GELU is cut
_GRAM = 0.01  # of the variance, above which it is worth while to bound what is quadratic better
_FINE, _FAR = 64, 690  # the table of exp has 64 points between 0 and 1, from -690 to 690
_ROUNDS = 20  # of Newton's method; 5 to 8 are usual
_EXP = 2.0**-46  # relative error of `_exp`; below e^-690 it is off by less than e^-690 < `TINY`


@dataclass(frozen=True, eq=False)
class TokenSet:
    """c + G ε ± e: (token, dim), (token, dim, symbol), (token, dim)."""

    c: FloatArray
    G: FloatArray
    e: FloatArray

    @cached_property
    def radius(self) -> FloatArray:
        return (np.abs(self.G).sum(-1) + self.e) * UP

    @cached_property
    def size(self) -> FloatArray:
        return (np.abs(self.c) + self.radius) * UP

    def __getitem__(self, at: Any) -> "TokenSet":
        return TokenSet(self.c[at], self.G[at], self.e[at])

    def heads(self, count: int) -> "TokenSet":
        """(token head size ...) instead of (token dim ...)."""
        shape = (len(self.c), count, self.c.shape[1] // count)
        symbols = self.G.reshape(*shape, self.G.shape[-1])
        return TokenSet(self.c.reshape(shape), symbols, self.e.reshape(shape))

    def with_symbols(self) -> "TokenSet":
        """The errors as a symbol for each coordinate of a token."""
        own = self.e[..., None] * np.eye(self.e.shape[1])
        return TokenSet(self.c, np.concatenate([self.G, own], -1), 0 * self.e)

    def without(self, k: int) -> "TokenSet":
        """All symbols but the first k as errors, and zeros in their place."""
        G = self.G.copy()
        G[..., k:] = 0
        return TokenSet(self.c, G, (self.e + np.abs(self.G[..., k:]).sum(-1)) * UP)


def off_by(terms: int) -> float:
    return (terms + 16) * 2.0**-52


def linear(x: TokenSet, weight: FloatArray, bias: FloatArray | None = None) -> TokenSet:
    """weight x + bias, for exact weights (out, in)."""
    size, c = np.abs(weight).T, x.c @ weight.T
    sizes = x.size @ size
    if bias is not None:
        c, sizes = c + bias, sizes + np.abs(bias)
    e = (x.e @ size + off_by(weight.shape[1]) * sizes) * UP + TINY
    return TokenSet(c, np.matmul(weight, x.G), e)


def plus(x: TokenSet, y: TokenSet) -> TokenSet:
    """x + y, where the symbols of one are the first of the other."""
    (short, G) = (x, y.G.copy()) if x.G.shape[-1] < y.G.shape[-1] else (y, x.G.copy())
    G[..., : short.G.shape[-1]] += short.G
    return TokenSet(x.c + y.c, G, (x.e + y.e + off_by(2) * (x.size + y.size)) * UP + TINY)


def cut(x: TokenSet, parts: int) -> TokenSet:
    """Sets that cover that of one token, one for each part of the line p along which it is longest:
    with G = p τ + rest, the number τ ε lies in one of the parts, which gets a symbol of its own."""
    (c,), (G,), (e,) = x.c, x.G, x.e
    finite = np.nan_to_num(G, posinf=0.0, neginf=0.0)  # any direction is sound
    try:
        p = np.linalg.svd(finite, full_matrices=False)[0][:, 0]
    except np.linalg.LinAlgError:  # it did not converge
        p = np.eye(len(c))[x.radius[0].argmax()]
    tau = p @ G
    along, off = np.outer(p, tau), off_by(G.shape[1])
    reach = np.abs(tau).sum() * (1 + off)
    half = reach / parts * (1 + off)
    middle = reach * ((2 * np.arange(parts) + 1) / parts - 1)
    own = np.concatenate([G - along, (p * half)[:, None]], 1)
    wrong = e + off * (np.abs(G) + np.abs(along)).sum(1) + off * (np.abs(c) + np.abs(p) * reach)
    centres = c + middle[:, None] * p
    return TokenSet(centres, np.stack([own] * parts), np.stack([wrong * UP + TINY] * parts))


def normed(x: TokenSet, gain: FloatArray, bias: FloatArray, eps: float) -> TokenSet:
    """LayerNorm. The variance is v + u ε + …, and 1/√V of it lies between the chord and a tangent.
    Before gain and bias, no coordinate exceeds √(d - 1)."""
    d = x.c.shape[-1]
    off = off_by(d + x.G.shape[-1])
    c, G = x.c - x.c.mean(-1, keepdims=True), x.G - x.G.mean(-2, keepdims=True)
    wrong = x.e + off * x.size
    e = (wrong + wrong.mean(-1, keepdims=True)) * UP + TINY
    r = np.abs(G).sum(-1) * UP
    near, far = np.maximum(np.abs(c) - r - e, 0), (np.abs(c) + r + e) * UP
    v, u = (c * c).mean(-1), 2 / d * np.matmul(c[:, None], G)[:, 0]
    square = (r * r).mean(-1)  # the most of (G ε)², or Σ |GᵀG| if that is less and matters
    rows = np.flatnonzero(square > _GRAM * v)
    gram = np.abs(np.matmul(G[rows].swapaxes(-1, -2), G[rows])).sum((-1, -2)) / d
    square[rows] = np.minimum(square[rows], gram)
    square = square * (1 + 2 * off)
    cross = (2 * far * e + e * e).mean(-1) * UP
    cross = cross + 4 * off * (far * far).mean(-1) + off * eps + TINY
    wave = np.abs(u).sum(-1)
    low = np.maximum(v - wave - cross, (near * near).mean(-1) * (1 - off)) + eps
    low = np.maximum(low * (1 - off), eps * (1 - off))
    high = np.minimum(v + wave + square + cross, (far * far).mean(-1)) + eps
    high = np.maximum(high * (1 + off), low * (1 + 1e-9))
    top, bottom = 1 / np.sqrt(low), 1 / np.sqrt(high)
    slope = (bottom - top) / (high - low)
    at = np.clip(1 / np.cbrt(4 * slope * slope), low, high)  # where a tangent is about as steep
    tangent = -1 / (2 * at * np.sqrt(at))
    most = np.maximum(top - slope * low, bottom - slope * high)  # of 1/√V - slope V
    least = np.minimum((tangent - slope) * (low - at), (tangent - slope) * (high - at))
    least = 1 / np.sqrt(at) - slope * at + least
    s = (most + least) / 2 + slope * (v + eps + square / 2)
    rest = (most - least) / 2 + np.abs(slope) * (square / 2 + cross)
    rest = (rest + off_by(16) * (top + np.abs(slope) * high)) * UP
    su = slope[:, None] * u
    moves = (np.abs(su).sum(-1) + rest)[:, None] * UP
    out, out_G = c * s[:, None], G * s[:, None, None] + c[..., None] * su[:, None]
    out_e = np.abs(c) * rest[:, None] + r * moves + e * top[:, None]
    out_e = (out_e + off * (np.abs(c) + r) * (np.abs(s)[:, None] + moves)) * UP + TINY
    # Each coordinate by itself is between its ends times the least or greatest 1/√V, and √(d - 1).
    cap, ends = np.sqrt(d - 1.0) * UP, []
    for sign in (1, -1):
        end = (sign * c + r + e) * UP
        end = np.where(end > 0, end * top[:, None] * UP, end * bottom[:, None] / UP)
        ends.append(np.where(end < cap, end, cap))
    wide = ~(np.abs(out_G).sum(-1) + out_e <= (ends[0] + ends[1]))
    out = np.where(wide, (ends[0] - ends[1]) / 2, out)
    out_e = np.where(wide, (ends[0] + ends[1]) / 2 * UP + off_by(2) * cap, out_e)
    out_G[wide] = 0.0
    sizes = (np.abs(out) + np.abs(out_G).sum(-1) + out_e) * np.abs(gain) + np.abs(bias)
    e = (out_e * np.abs(gain) + off_by(2) * sizes) * UP + TINY
    return TokenSet(out * gain + bias, out_G * gain[:, None], e)


def gelu(x: TokenSet) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(a, b, r) with GELU(x) within a x + b ± r: the chord's slope, and the least and greatest
    distance from it, between points by the second derivative."""
    c, far = x.c, x.radius
    at = c[..., None] + far[..., None] * np.linspace(-1, 1, _PIECES + 1)
    value = _gelu_value(at)
    slope = (value[..., -1] - value[..., 0]) / np.maximum(2 * far, 1e-9)
    rest = value - slope[..., None] * at
    bend = _BEND[np.clip(np.nan_to_num(np.abs(c) - far), 0, 8).astype(np.int64)]
    step = far * (2 / _PIECES)
    most = rest.max(-1) + np.minimum(bend, _DIP) * step * step / 8
    least = rest.min(-1) - bend * step * step / 8
    sizes = (np.abs(c) + np.abs(value).max(-1) + far) * (1 + np.abs(slope))
    off = _VALUE + 2e-18 + off_by(32) * sizes
    return slope, (most + least) / 2, ((most - least) / 2 + off) * UP


def _gelu_value(x: FloatArray) -> FloatArray:
    """GELU, within `_VALUE` and rounding."""
    inside = ~(np.abs(x) > _END)
    k = np.rint(np.clip(np.nan_to_num(x), -_END, _END) * _GELU)
    t = np.where(inside, x * _GELU - k, 0.0)
    terms = _gelu_table()[:, (k + _END * _GELU).astype(np.int64)]
    value = terms[0] + t * (terms[1] + t * (terms[2] + t * (terms[3] + t * terms[4])))
    return np.where(inside, value, np.maximum(x, 0.0))


@cache
def _gelu_table() -> FloatArray:
    """GELU and its first four Taylor terms in steps of the table (term, point)."""
    with ctx.workprec(128):
        rows = []
        for k in range(-_END * _GELU, _END * _GELU + 1):
            x = arb_series([arb(k) / _GELU, arb(1) / _GELU], prec=5)
            series = x * (1 + (x * arb(2).rsqrt()).erf()) / 2
            rows.append([float(series[j].mid()) for j in range(5)])
    return np.ascontiguousarray(np.transpose(rows))


def _exp(x: FloatArray) -> FloatArray:
    """e^x within a relative `_EXP`; below -690 what it is at -690, above 690 infinity."""
    at = np.clip(x, -_FAR, None)
    k = np.rint(np.clip(np.nan_to_num(at), -_FAR, _FAR) * _FINE)
    t = at - k / _FINE  # at most 1/128 in size
    value = 1 + t * (1 + t / 2 * (1 + t / 3 * (1 + t / 4 * (1 + t / 5 * (1 + t / 6)))))
    return np.where(at > _FAR, np.inf, value * _exp_table()[(k + _FAR * _FINE).astype(np.int64)])


@cache
def _exp_table() -> FloatArray:
    with ctx.workprec(128):
        steps = range(-_FAR * _FINE, _FAR * _FINE + 1)
        return np.array([float((arb(k) / _FINE).exp().mid()) for k in steps])


def exps(x: TokenSet) -> tuple[TokenSet, FloatArray, FloatArray]:
    """e^x, and its least and greatest value: e^c times e^y, which is convex in y."""
    c, r = x.c, x.radius
    tau = np.minimum(r * r / 6, r / 2)
    a, up, down, unit = _exp(tau), _exp(r), _exp(-r), _exp(c)
    least = a * (1 - tau)  # the least of e^y - a y, at y = τ
    most = np.maximum(up - a * r, down + a * r)
    rest = (most - least) / 2 + 4 * _EXP * (up + a * (1 + r))
    e = unit * (a * x.e + rest + 4 * _EXP * (up + a * (1 + r))) * UP + TINY
    # Beyond the table e^x is between 0 and its greatest value, and no more is known.
    high, small = unit * up * (1 + 4 * _EXP) + TINY, ~((c - r > -_FAR) & (c + r < _FAR))
    centre = np.where(small, high / 2, unit * (most + least) / 2)
    e = np.where(small, high / 2 * UP, e)
    G = np.where(small, 0.0, unit * a)[..., None] * x.G
    return TokenSet(centre, G, e), np.where(small, 0.0, unit * down * (1 - 4 * _EXP)), high


def features(x: TokenSet) -> TokenSet:
    """ELU + 1: its derivative is e^min(x, 0), its second one 0 above 0 and at most e^x below."""
    c, r = x.c, x.radius
    slope = _exp(np.minimum(c, 0))
    bend = np.where(c - r < 0, _exp(np.minimum(c + r, 0)), 0.0)
    most = np.minimum(bend * r * r / 2, np.maximum(slope, 1 - slope) * r)
    value = np.where(c > 0, c + 1, slope)
    e = slope * x.e + most / 2 + 4 * _EXP * (value + r + most)
    return TokenSet(value + most / 2, slope[..., None] * x.G, e * UP + TINY)


def dot(q: TokenSet, k: TokenSet) -> TokenSet:
    """Σ q k over the last axis of c; symbols are the same."""
    c = (q.c * k.c).sum(-1)
    G = np.matmul(q.c[..., None, :], k.G)[..., 0, :] + np.matmul(k.c[..., None, :], q.G)[..., 0, :]
    e = np.abs(q.c) * k.e + np.abs(k.c) * q.e + q.radius * k.radius
    e = (e + off_by(2 * q.c.shape[-1]) * q.size * k.size).sum(-1)
    return TokenSet(c, G, e * UP + TINY)


def chosen(x: TokenSet, free: int, off: float) -> tuple[TokenSet, FloatArray]:
    """The sum over tokens of a set (token head dim), of two of which each free bit chooses one; and
    how much of its width is due to each bit."""
    zero, one = x[:free], x[free : 2 * free]
    rest = x[2 * free :]
    c = (zero.c + one.c).sum(0) / 2 + rest.c.sum(0)
    G = (zero.G + one.G).sum(0) / 2 + rest.G.sum(0)
    half = np.moveaxis((one.c - zero.c) / 2, 0, -1)
    G[..., :free] += half
    # (x0 + x1)/2 + ε (x1 - x0)/2: ε times what moves x1 - x0 is not linear.
    bend = np.abs(one.G - zero.G).sum(-1) / 2 + np.maximum(zero.e, one.e)
    sizes = x.size.sum(0)
    e = bend.sum(0) + rest.e.sum(0) + 2 * off * sizes
    return TokenSet(c, G, e * (1 + off) + TINY), np.moveaxis(bend, 0, -1) + np.abs(half)


@dataclass(frozen=True, eq=False)
class RatioSums:
    """A ratio N/D of sums in which each free bit chooses one of two terms, at some slots.

    N = Σ w v and D = Σ w > 0, over the tokens that are there: those of the fixed part, and for each
    free bit one of two. Whatever the bits, N - t D = Σ w (v - t) is at most

        F(t) = (N - t D of the fixed part) + Σ over bits of the greater w (v - t) of its two tokens,

    and some string reaches that, so N/D <= t on all strings exactly where F(t) <= 0. Newton's
    method finds the least such t: F is convex and falls with the slope -D of what is chosen at t,
    so t rises from any number that is at most the greatest ratio. None of this is trusted: t is
    then moved outward, and taken if F(t) <= 0 for all numbers that these may stand for.

    Errors, with u = 2^-53: a true weight is w (1 + α), |α| <= 2 u, and a true value is off by at
    most `far`. With s the rounded v - t, a true term is above w s by at most

        w (|s| (u + |α|) (1 + 2 u) + (1 + |α|) far) <= w (3.1 u |s| + 1.1 far),

    and |s| <= |s + 2 far| + 2 far, so it is at most w (s + 2 far) and 3.1 u of its size. That is
    computed for both terms *before* the greater is taken: one far below the other adds nothing
    then, however large its weight. It is rounded twice, and a sum of k of them is off by k u of
    their sizes. The fixed part is off by `wrong` and, with t D, by (k + 8) u of its sizes, and each
    of the last four additions by u of all sizes. `off` is 2 (k + 16) u, and what underflow hides is
    below `TINY`, as weights are below 1e40 and values below 1e20.
    """

    basis: FloatArray  # the coordinates are P v, with a matrix P for each slot: (slot, dim, dim)
    w: FloatArray  # weights of a bit's tokens: (2, slot, bit)
    v: FloatArray  # their values: (2, slot, dim, bit)
    far: FloatArray
    N: FloatArray  # the fixed part: (slot, dim)
    sizes: FloatArray  # Σ w |v| of it, or more: (slot, dim)
    wrong: FloatArray  # (slot, dim)
    D: FloatArray  # Σ w of it: (slot, 1)
    off: float

    def terms(self, t: FloatArray, sure: bool = False) -> FloatArray:
        """w (v - t); if `sure`, no less than the true ones: (2, slot, dim, bit)."""
        each = self.v - t[..., None]
        if sure:
            each = each + 2 * self.far
        return self.w[:, :, None] * each

    def holds(self, t: FloatArray) -> FloatArray:
        """Whether t is certainly at least N/D on all strings, if D > 0: (slot, dim)."""
        chosen = self.terms(t, sure=True).max(0)
        sizes = np.abs(chosen).sum(-1) + 2 * (self.sizes + np.abs(t) * self.D)
        total = chosen.sum(-1) + (self.N - t * self.D)
        return total + self.off * sizes + 2 * self.wrong + TINY <= 0


def turned(
    P: FloatArray, w: FloatArray, v: FloatArray, fixed: tuple[FloatArray, ...], k: int
) -> RatioSums:
    """The sums for coordinates P v of rounded balls v: (2, bit, dim). The fixed part is N, Σ w |v|
    and D, of at most k products."""
    N, sizes, D = fixed
    size, v, d = np.abs(P), v.swapaxes(1, 2)[:, None], len(P[0])
    # Rounded balls are off by 2 u |v| + ENTRY, and a sum of d products by (d + 1) u.
    far = np.matmul(size, off_by(d) * np.abs(v) + ENTRY)
    N, sizes = (np.matmul(x, y[..., None])[..., 0] for x, y in ((P, N), (size, sizes)))
    D, wrong = D[:, None], ENTRY * size.sum(-1) * D[:, None]
    return RatioSums(P, w, np.matmul(P, v), far, N, sizes, wrong, D, off_by(k + d))


def highest(sums: RatioSums, start: FloatArray) -> FloatArray:
    """Upper bounds of N/D on all strings, from numbers below; infinity where none was found. D must
    be positive on all strings."""
    t, before = start, None
    for _ in range(_ROUNDS):
        terms = sums.terms(t)
        choice = terms[1] > terms[0]
        slope = np.where(choice, sums.w[1][:, None], sums.w[0][:, None]).sum(-1) + sums.D
        value = terms.max(0).sum(-1) + (sums.N - t * sums.D)
        t = np.maximum(t, t + value / slope)
        if before is not None and (choice == before).all():
            break
        before = choice
    size, far = (np.abs(each).max((0, -1), initial=0.0) for each in (sums.v, sums.far))
    D = np.maximum(sums.D, TINY)
    size = np.abs(t) + np.maximum(size, sums.sizes / D)
    t = t + (8 * sums.off * size + 4 * (far + sums.wrong / D))
    return np.where(sums.holds(t), t, np.inf)


def ratio_ends(sums: RatioSums, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of N/D on all strings: (slot, dim)."""
    return -highest(replace(sums, v=-sums.v, N=-sums.N), -start), highest(sums, start)


def interval(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Its middle, and a half width that reaches both ends."""
    middle = low + (high - low) / 2
    return middle, np.maximum(high - middle, middle - low) * UP


def hull(x: TokenSet) -> tuple[FloatArray, FloatArray]:
    """Bounds of each coordinate over all tokens."""
    room = x.radius + 2.0**-50 * x.size
    return (x.c - room).min(0), (x.c + room).max(0)


def narrowed(x: TokenSet, at: Any, sums: RatioSums, most: FloatArray, k: int) -> TokenSet:
    """x, where the ratios of some of its tokens are known too, and that their coordinates are at
    most `most` in size. Where the ends of P x are much closer, they take the place of a form: x is
    P' (P x) and (1 - P' P) x with the transpose P', and 1 - P' P is small where P is a rotation.
    The symbols after the first k are a token's own."""
    P, d = sums.basis, x.c.shape[1]
    middle, half = interval(*ratio_ends(sums, np.matmul(P, x.c[at][..., None])[..., 0]))
    forms = np.abs(np.matmul(P, x.G[at])).sum((1, 2))  # NaN where D may not be positive
    better = half.sum(-1) < NARROWER * forms
    back, off, one = P.swapaxes(1, 2), off_by(2 * d), np.eye(d)
    rest = np.abs(one - back @ P) + off * (one + np.abs(back) @ np.abs(P))
    wrong = rest @ most + off * (np.abs(back) @ (np.abs(middle) + half)[..., None])[..., 0]
    at, c, G, e = at[better], x.c.copy(), x.G.copy(), x.e.copy()
    c[at], e[at] = (back @ middle[..., None])[better, :, 0], wrong[better] * UP + TINY
    G[at, :, :k], G[at, :, k:] = 0.0, (back * half[:, None])[better]
    return TokenSet(c, G, e)
