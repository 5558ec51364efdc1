"""Attention as a ratio of sums over tokens, where a free bit chooses between two tokens.

If weights and values are known numbers, then N = N₀ + Σ n_j ε_j and D = D₀ + Σ d_j ε_j, with
ε_j = ±1 for a free bit. For any m,

    N/D = m + (N₀ - m D₀ + Σ g_j ε_j) / D,   g_j = n_j - m d_j,

so with 1/D in κ ± ρ and m = N₀/D₀ it is an affine form with generators κ g_j and a remainder
ρ Σ|g_j|.
"""

from dataclasses import dataclass

import numpy as np

from ithbit.prove.bands import Bands
from ithbit.prove.bounded import Ints
from ithbit.prove.forms import TINY, slack
from ithbit.prove.tokens import ENTRY
from ithbit.theory.layers import FloatArray


@dataclass(frozen=True, eq=False)
class Ratio:
    """N/D = m + G ε ± (rest + e), dim last; G has the symbols, first the free bits, before dim."""

    m: FloatArray
    G: FloatArray
    rest: FloatArray
    e: FloatArray  # rounding
    least: FloatArray  # of D
    most: FloatArray
    moves: FloatArray  # ... bit: how much a free bit moves the ratio


def separable_ratio(
    weight: tuple[FloatArray, FloatArray],
    weighted: tuple[FloatArray, FloatArray],
    fixed: FloatArray,
    fixed_weighted: FloatArray,
    free: Ints,
    bands: Bands | None = None,
) -> Ratio:
    """The ratio from weights (..., bit) and weighted values (..., bit, dim) of bits 0 and 1, and
    the sums over the other tokens (...) and (..., dim). A fixed bit has the same entry twice.

    Weights are off by at most a relative 2^-52, values by that plus `ENTRY`.
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
        dp, dr = bands.split(d)
        xp, _ = bands.split(x)
        D0, N0 = D0 + bands.centre(dp), N0 + bands.centre(xp)
        reach = np.abs(bands.generators(dp, dr)).sum(-1) * (1 + count)
        reach = reach + bands.off(d, dp) + count * most
        least, most = np.maximum(least, D0 - reach), np.minimum(most, D0 + reach)
    m = N0 / D0[..., None]
    off: FloatArray | float = 0.0
    if bands is None:
        g = x - m[..., None, :] * d[..., None]
    else:
        by_bit, p = x - m[..., None] * d[..., None, :], xp - m[..., None] * dp[..., None, :]
        g = bands.generators(p, bands.without(by_bit, p)).swapaxes(-1, -2)
        off = 2 * bands.off(
            np.abs(x) + np.abs(m)[..., None] * np.abs(d)[..., None, :],
            np.abs(xp) + np.abs(m)[..., None] * np.abs(dp)[..., None, :],
        )
    size = np.abs(g)
    large = size.sum(-2) * (1 + count)
    moves = size.sum(-1)
    if bands is None:  # a bit that dominates D moves the ratio only by what rounding hides
        moves = moves + count * (np.abs(x).sum(-1) + np.abs(m).sum(-1)[..., None] * np.abs(d))
    sizes = (np.abs(x0) + np.abs(x1)).sum(-2) + 2 * np.abs(fixed_weighted)
    sizes = sizes + np.abs(m) * (most * 3)[..., None]
    wrong = count * sizes + (4 * ENTRY * most)[..., None] + n * TINY + off
    top, low = 1 / least, 1 / most
    radius = (top - low) / 2 + top * slack(0)
    return Ratio(
        m,
        g * ((top + low) / 2)[..., None, None],
        large * radius[..., None] * (1 + slack(0)) + TINY,
        (wrong + count * large) * top[..., None] * (1 + slack(0)),
        least,
        most,
        moves / least[..., None],
    )
