"""Attention as a ratio of sums over tokens, each of which a free bit chooses between two.

With ε_j = ±1 for a free bit, N = N₀ + Σ n_j ε_j and D = D₀ + Σ d_j ε_j where weights and values are
known numbers: for any m,

    N/D = m + (N₀ - m D₀ + Σ g_j ε_j) / D,   g_j = n_j - m d_j,

so with 1/D in κ ± ρ it is an affine form with generators κ g_j and a remainder ρ Σ|g_j|.
"""

from dataclasses import dataclass

import numpy as np

from ithbit.prove.bounded import Ints
from ithbit.prove.forms import TINY, slack
from ithbit.prove.tokens import ENTRY
from ithbit.theory.layers import FloatArray


@dataclass(frozen=True, eq=False)
class Ratio:
    """N/D = m + G ε ± (rest + e), dim last; symbols are the free bits, before dim."""

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
) -> Ratio:
    """The ratio from weights (..., bit) and weighted values (..., bit, dim) of bits 0 and 1, and
    the sums over the other tokens (...) and (..., dim). A bit that is fixed has the same twice.

    Weights are within 2^-52 of themselves, values also within `ENTRY` of the truth.
    """
    (w0, w1), (x0, x1) = weight, weighted
    n = w0.shape[-1]
    count = slack(3 * n)
    D0 = (w0 + w1).sum(-1) / 2 + fixed
    N0 = (x0 + x1).sum(-2) / 2 + fixed_weighted
    least = np.minimum(w0, w1).sum(-1) + fixed
    most = np.maximum(w0, w1).sum(-1) + fixed
    least, most = least * (1 - count) - n * TINY, most * (1 + count) + n * TINY
    m = N0 / D0[..., None]
    d, x = (w1 - w0)[..., free] / 2, (x1 - x0)[..., free, :] / 2
    g = x - m[..., None, :] * d[..., None]
    size = np.abs(g)
    large = size.sum(-2) * (1 + count)
    sizes = (np.abs(x0) + np.abs(x1)).sum(-2) + 2 * np.abs(fixed_weighted)
    sizes = sizes + np.abs(m) * (most * 3)[..., None]
    wrong = count * sizes + (4 * ENTRY * most)[..., None] + n * TINY
    top, low = 1 / least, 1 / most
    radius = (top - low) / 2 + top * slack(0)
    return Ratio(
        m,
        g * ((top + low) / 2)[..., None, None],
        large * radius[..., None] * (1 + slack(0)) + TINY,
        (wrong + count * large) * top[..., None] * (1 + slack(0)),
        least,
        most,
        size.sum(-1) / most[..., None],
    )
