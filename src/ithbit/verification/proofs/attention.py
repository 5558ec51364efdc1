"""Attention over sets of inputs: ratios of sums over tokens, where a free bit chooses between two.

In a first layer weights and values are known numbers, so N = N₀ + Σ n_j ε_j and D = D₀ + Σ d_j ε_j,
with ε_j = ±1 for a free bit. For any m,

    N/D = m + (N₀ - m D₀ + Σ g_j ε_j) / D,   g_j = n_j - m d_j,

so with 1/D in κ ± ρ and m = N₀/D₀ it is an affine form with generators κ g_j and a remainder
ρ Σ|g_j|. This needs 0 < D_min; where that is not known, nothing is known of the ratio: its parts
are NaN. In a second layer weights and values are forms: their products, convex functions and sums
over what the bits choose follow. There leading axes are up to the caller; dim is last in c and e,
and followed by the symbols in G.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ithbit.theory.certifiers.intervals import Interval
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, Form, slack
from ithbit.verification.proofs.bands import Bands
from ithbit.verification.proofs.interface import Ints
from ithbit.verification.proofs.ratio_ends import across, principal_axes, ratio_ends
from ithbit.verification.proofs.token_balls import ENTRY

_UP = 1 + slack(8)
# Exact ranges are sought where a remainder is this share of what the symbols move, and of the
# largest coordinate, at least; they are taken if they are that share of the width.
_LOOSE, _VISIBLE, _NARROW = 0.2, 1e-5, 0.8


@dataclass(frozen=True, eq=False)
class Ratio:
    """N/D = m + G ε + A δ ± e, dim last; G has the symbols, first the free bits, before dim. A is
    `axes` times |δ| <= rest, or each coordinate has a remainder of its own."""

    m: FloatArray
    G: FloatArray
    rest: FloatArray
    e: FloatArray  # rounding
    least: FloatArray  # of D
    most: FloatArray
    moves: FloatArray  # ... bit: how much a free bit moves the ratio
    axes: FloatArray | None = None  # ... dim axis

    def own(self) -> FloatArray:
        """The generators of the remainder: ... dim symbol."""
        axes = np.eye(self.rest.shape[-1]) if self.axes is None else self.axes
        return axes * self.rest[..., None, :]


def separable_ratio(
    weight: tuple[FloatArray, FloatArray],
    weighted: tuple[FloatArray, FloatArray],
    fixed: FloatArray,
    fixed_weighted: FloatArray,
    fixed_sizes: FloatArray,
    free: Ints,
    bands: Bands | None = None,
) -> Ratio:
    """The ratio from weights (..., bit) and weighted values (..., bit, dim) of bits 0 and 1, and
    the sums over the other tokens (...) and (..., dim), with the sums of their sizes (..., dim),
    which are larger where terms cancel. A fixed bit has the same entry twice.

    Weights are off by at most a relative 2^-52, or `TINY` by underflow, values by that plus
    `ENTRY`.
    """
    (w0, w1), (x0, x1) = weight, weighted
    n = w0.shape[-1]
    count = slack(3 * n)
    D0 = (w0 + w1).sum(-1) / 2 + fixed
    N0 = (x0 + x1).sum(-2) / 2 + fixed_weighted
    least = np.minimum(w0, w1).sum(-1) + fixed
    most = np.maximum(w0, w1).sum(-1) + fixed
    least, most = least * (1 - count) - n * TINY, most * (1 + count) + n * TINY
    d, x = (w1 - w0)[..., free] / 2, (x1 - x0)[..., free, :] / 2
    if bands is not None:
        x = x.swapaxes(-1, -2)
        dp, xp = bands.share(d), bands.share(x)
        D0, N0 = D0 + bands.centre(dp), N0 + bands.centre(xp)
        reach = np.abs(bands.generators(d, dp)).sum(-1) * (1 + count)
        reach = reach + bands.off(d, dp) + count * most + n * TINY
        least, most = np.maximum(least, D0 - reach), np.minimum(most, D0 + reach)
    least = np.where((least > 0) & (least <= most), least, np.nan)
    m = N0 / D0[..., None]
    off: FloatArray | float = 0.0
    if bands is None:
        g = x - m[..., None, :] * d[..., None]
    else:
        by_bit, p = x - m[..., None] * d[..., None, :], xp - m[..., None] * dp[..., None, :]
        g = bands.generators(by_bit, p).swapaxes(-1, -2)
        off = 2 * bands.off(
            np.abs(x) + np.abs(m)[..., None] * np.abs(d)[..., None, :],
            np.abs(xp) + np.abs(m)[..., None] * np.abs(dp)[..., None, :],
        )
    size = np.abs(g)
    large = size.sum(-2) * (1 + count)
    moves = size.sum(-1)
    if bands is None:  # a bit that dominates D moves the ratio only by what rounding hides
        moves = moves + count * (np.abs(x).sum(-1) + np.abs(m).sum(-1)[..., None] * np.abs(d))
    sizes_of_terms = (np.abs(x0) + np.abs(x1)).sum(-2) + 2 * fixed_sizes
    sizes = sizes_of_terms + np.abs(m) * (most * 3)[..., None]
    wrong = count * sizes + (4 * ENTRY * most)[..., None] + n * TINY + off
    top, low = 1 / least, 1 / most
    radius = (top - low) / 2 + top * slack(0)
    G = g * ((top + low) / 2)[..., None, None]
    e = (wrong + count * large) * top[..., None] * (1 + slack(0))
    if bands is None:
        rest = large * radius[..., None] * (1 + slack(0)) + TINY
        return Ratio(m, G, rest, e, least, most, moves / least[..., None])
    axes, missed = principal_axes(g)
    back = axes.swapaxes(-1, -2)
    along = np.abs(np.matmul(g, axes)).sum(-2) * (1 + count)
    along += slack(m.shape[-1] + 2) * across(back, size.sum(-2))
    rest = along * radius[..., None] * (1 + slack(0)) + TINY
    e = e + across(missed, large * radius[..., None]) * _UP
    if not bands.count:
        wrong = count * sizes_of_terms + (4 * ENTRY * most)[..., None] + n * TINY
        wrong = across(back, wrong + slack(m.shape[-1] + 2) * sizes_of_terms) * _UP
        sums, parts = (N0, D0), (x.swapaxes(-1, -2), d)
        _narrow((m, G, rest, e), sums, parts, axes, missed, least, (wrong, 3 * count * most))
    return Ratio(m, G, rest, e, least, most, moves / least[..., None], axes)


def _narrow(
    form: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    sums: tuple[FloatArray, FloatArray],
    moves: tuple[FloatArray, FloatArray],
    axes: FloatArray,
    missed: FloatArray,
    least: FloatArray,
    wrong: tuple[FloatArray, FloatArray],
) -> None:
    """Replace m, G, rest and e of ratios, in place, by their exact range along each axis where that
    is much narrower; it is computed only where the remainder is large."""
    m, G, rest, e = form
    size, spread = np.abs(m).max(-1), np.abs(np.matmul(G, axes)).sum(-2)
    loose = (rest > _LOOSE * spread) & (rest > _VISIBLE * size[..., None])
    rows = np.nonzero(loose.any(-1))
    if not len(rows[0]):
        return
    turn = axes[rows]
    N, x = np.matmul(sums[0][rows][:, None], turn)[:, 0], np.matmul(moves[0][rows], turn)
    offs = wrong[0][rows], np.broadcast_to(wrong[1][rows][:, None], N.shape)
    low, high = ratio_ends((N, sums[1][rows]), (x, moves[1][rows]), least[rows], offs)
    middle, half = (high + low) / 2, (high - low) / 2 * _UP
    narrow = half.sum(-1) < _NARROW * (spread + rest)[rows].sum(-1)
    at = tuple(each[narrow] for each in rows)
    turn, middle, half = turn[narrow], middle[narrow], half[narrow]
    reach = np.abs(m[at]) + np.abs(G[at]).sum(-2) + across(turn, rest[at]) + e[at]
    m[at], G[at], rest[at] = np.matmul(turn, middle[..., None])[..., 0], 0, half + TINY
    off = slack(m.shape[-1] + 2) * across(turn, np.abs(middle) + half)
    e[at] = (across(missed[at], reach) + off) * _UP + TINY


def collapsed(x: Form, k: int) -> Form:
    """The form with all symbols after the first k moved into its error."""
    more = np.abs(x.G[..., k:]).sum(-1) * (1 + slack(x.G.shape[-1]))
    return Form(x.c, x.G[..., :k], (x.e + more) * _UP)


def dot(a: Form, b: Form, k: int) -> Form:
    """Σ a b over the last axis of c: a scalar form with the symbols of a, of which b shares the
    first k; the other symbols of b, and what is not affine, go into its error."""
    c = (a.c * b.c).sum(-1)
    by_a, by_b = (np.matmul(x.c[..., None, :], y.G)[..., 0, :] for x, y in ((a, b), (b, a)))
    own = np.abs(by_a[..., k:]).sum(-1)
    ra, rb = a.spread() + a.e, b.spread() + b.e
    e = np.abs(a.c) * b.e + np.abs(b.c) * a.e + ra * rb
    e = e + slack(2 * a.c.shape[-1] + b.G.shape[-1]) * (np.abs(a.c) + ra) * (np.abs(b.c) + rb)
    by_b[..., :k] += by_a[..., :k]
    return Form(c, by_b, (e.sum(-1) + own) * (_UP + slack(e.shape[-1])) + TINY)


def product(weight: Form, value: Form) -> Form:
    """A scalar form times a vector form, whose symbols are the first ones of the scalar."""
    more = weight.G.shape[-1] - value.G.shape[-1]
    G = np.concatenate([value.G, np.zeros((*value.G.shape[:-1], more))], -1)
    value = Form(value.c, G, value.e)
    w, W = weight.c[..., None], weight.G[..., None, :]
    rw, rv = (weight.spread() + weight.e)[..., None], value.spread() + value.e
    e = np.abs(value.c) * weight.e[..., None] + np.abs(w) * value.e + rw * rv
    e = e + slack(4) * (np.abs(w) + rw) * (np.abs(value.c) + rv)
    return Form(w * value.c, W * value.c[..., None] + w[..., None] * value.G, e * _UP + TINY)


def convex(x: Form, features: bool) -> Form:
    """exp, or ELU + 1, of every coordinate: between the chord and a tangent.

    Both functions are at least e^t (1 + x - t), ELU + 1 if t <= 0.
    """
    low, high = x.bounds()
    a, b = (_convex_at(end, features) for end in (low, high))
    width = high - low
    slope = np.where(width > 1e-6, (b.hi - a.lo) / np.maximum(width, 1e-6), b.hi)
    t = np.log(np.maximum(slope, 1e-300))
    if features:
        slope, t = np.minimum(slope, 1), np.minimum(t, 0)
    near = Interval(t, t).exp()
    far = np.maximum(np.abs(low), np.abs(high))
    off = slack(8) * (b.hi + slope * far)
    top = np.maximum(a.hi - slope * low, b.hi - slope * high) + off
    twist = np.maximum(np.abs(near.hi - slope), np.abs(near.lo - slope)) + slack(0) * slope
    tangent = np.minimum(near.lo * (1 - t), near.hi * (1 - t)) - twist * far
    bottom = np.minimum(tangent - slack(8) * near.hi * (1 + np.abs(t)) - off, top)
    middle, radius = (top + bottom) / 2, (top - bottom) / 2
    sizes = slope * (np.abs(x.c) + x.spread()) + np.abs(middle) + radius
    e = (x.e * slope + radius + slack(0) * sizes) * _UP + TINY
    return Form(slope * x.c + middle, x.G * slope[..., None], e)


def _convex_at(x: FloatArray, features: bool) -> Interval:
    """Bounds of exp, or ELU + 1, at float points."""
    value = Interval(x, x).exp()
    if not features:
        return value
    line = x + 1
    low, high = line - slack(0) * np.abs(line), line + slack(0) * np.abs(line)
    return Interval(np.where(x > 0, low, value.lo), np.where(x > 0, high, value.hi))


def chosen(x: Form, n: int, free: Ints, bands: Bands) -> Form:
    """The sum over slots (axis 1) of what the bits choose; the symbols are the free bits, then the
    functionals.

    The products of ε_j and a generator h_j of a functional's symbol τ add up to (Σ_j h_j ε_j) τ,
    whose first factor is split again.
    """
    zero, one, k = slice(0, n), slice(n, 2 * n), len(free)
    c = (x.c[:, zero] + x.c[:, one]).sum(1) / 2 + x.c[:, 2 * n :].sum(1)
    G = (x.G[:, zero] + x.G[:, one]).sum(1) / 2 + x.G[:, 2 * n :].sum(1)
    half = np.moveaxis((x.c[:, one] - x.c[:, zero])[:, free] / 2, 1, -1)  # node … bit
    p = bands.share(half)
    c = c + bands.centre(p)
    m = k + bands.count
    G[..., :m] += bands.generators(half, p)
    h = (x.G[:, one] - x.G[:, zero])[:, free] / 2  # node bit … symbol
    of_bits = np.abs(h[..., :k]).sum(-1).sum(1) + np.abs(h[..., m:]).sum(-1).sum(1)
    h = np.moveaxis(h[..., k:m], 1, -1)  # node … functional bit
    hp = bands.share(h)
    G[..., k:m] += bands.centre(hp)
    e = np.maximum(x.e[:, zero], x.e[:, one]).sum(1) + x.e[:, 2 * n :].sum(1) + of_bits
    e = e + np.abs(bands.generators(h, hp)).sum((-1, -2))
    e = e + bands.off(half, p) + bands.off(h, hp).sum(-1)
    sizes = np.abs(x.c).sum(1) + np.abs(x.G).sum(-1).sum(1) + x.e.sum(1)
    return Form(c, G, (e + slack(2 * n + x.G.shape[-1] + 8) * 2 * sizes) * _UP + TINY)


def of_bits(x: FloatArray, n: int, choose: Any) -> FloatArray:
    """The least or greatest sum of bounds over slots (axis 1), chosen bit by bit."""
    total: FloatArray = choose(x[:, :n], x[:, n : 2 * n]).sum(1) + x[:, 2 * n :].sum(1)
    return total
