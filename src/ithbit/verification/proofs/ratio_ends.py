"""Axes of a ratio of sums over tokens, and its exact range along each of them.

An affine form of N/D (`attention.py`) has a remainder for the range of 1/D. Where weights differ by
orders of magnitude, as in attention that sees little but the tokens of one bit value, D moves by a
factor of n while the ratio hardly moves, and the form is wide. But for any t

    N - t D <= F(t) = N₀ - t D₀ + Σ |n_j - t d_j|   for all ε = ±1,

with equality for one of them, so F(t) <= 0 proves N/D <= t where D > 0; the least such t is the
greatest ratio. The values of tokens differ mostly along one line, so ranges along axes that follow
it are narrower than those of coordinates: any axis a makes aᵀN / D such a ratio. Newton's method
finds it (Dinkelbach): from the ratio at some ε, the best ε for that t gives the next, larger ratio,
and a few steps suffice. What it finds is used only after F has been bounded from above with all
rounding. The least ratio is that of -N.
"""

import numpy as np

from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import axes_of, slack

_STEPS = 8
_UP = 1 + slack(8)


def ratio_ends(
    sums: tuple[FloatArray, FloatArray],
    moves: tuple[FloatArray, FloatArray],
    least: FloatArray,
    wrong: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Proved ends of (N₀ + Σ n_j ε_j) / (D₀ + Σ d_j ε_j) over all ε = ±1; -inf and inf where none
    are.

    `sums` are N₀ (row, dim) and D₀ (row); `moves` are n (row, bit, dim) and d (row, bit); D is at
    least `least` (row), NaN or not positive where that is not known. For every t and ε, the number
    that is computed as N - t D, or as a sum of parts of F(t) in any order, is off by at most
    a + b |t| for `wrong` = (a, b), each (row, dim).

    >>> sums, moves = (np.ones((1, 1)), np.array([3.0])), (np.ones((1, 1, 1)), np.array([[2.0]]))
    >>> low, high = ratio_ends(sums, moves, np.ones(1), (np.full((1, 1), 1e-15),) * 2)
    >>> low.round(9), high.round(9)  # 0/1 and 2/5
    (array([[-0.]]), array([[0.4]]))
    """
    (N, D), (n, d), (a, b) = sums, (moves[0], moves[1][..., None]), wrong
    D = D[:, None]
    room = np.where(least > 0, least, np.nan)[:, None]
    ends = []
    for sign in (-1.0, 1.0):
        t = N / D
        for _ in range(_STEPS):
            e = np.where(n - t[:, None] * d > 0, sign, -sign)
            t = (N + (n * e).sum(1)) / (D + (d * e).sum(1))
        t = t + sign * (4 * (a + b * np.abs(t)) / room + slack(0) * np.abs(t))
        F = sign * (N - t * D) + np.abs(n - t[:, None] * d).sum(1) + (a + b * np.abs(t)) * _UP
        ends.append(np.where((F <= 0) & np.isfinite(t), t, sign * np.inf))
    return ends[0], ends[1]


def principal_axes(g: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Orthonormal axes (... dim axis) of generators (... symbol dim), those along which they differ
    most among them; and what these miss by rounding: every y is within `missed` |y| of A Aᵀ y."""
    axes = axes_of(g.swapaxes(-1, -2))
    d = axes.shape[-1]
    missed = np.abs(np.eye(d) - np.matmul(axes, axes.swapaxes(-1, -2)))
    missed += slack(d) * (across(axes, np.abs(axes).swapaxes(-1, -2)) + np.eye(d))
    return axes, missed * _UP


def across(matrix: FloatArray, sizes: FloatArray) -> FloatArray:
    """The most that a matrix (... row column) makes of numbers of these sizes: ... row. Of more
    columns of sizes, one dimension more, the same."""
    if sizes.ndim == matrix.ndim:
        return np.matmul(np.abs(matrix), sizes)
    return np.matmul(np.abs(matrix), sizes[..., None])[..., 0]


def scaled(
    vectors: FloatArray, e: FloatArray, radius: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """δ (V ε ± e) for any |δ| <= radius (...) and vectors V (... dim symbol): generators (... dim
    axis) and an error (... dim), which keep the directions of V; and the size of V ε ± e."""
    d, count = vectors.shape[-2:]
    axes, missed = principal_axes(vectors.swapaxes(-1, -2))
    back = axes.swapaxes(-1, -2)
    size = np.abs(vectors).sum(-1) * (1 + slack(count)) + e
    along = np.abs(np.matmul(back, vectors)).sum(-1) * (1 + slack(count))
    along = along + across(back, e) + slack(d + 4) * across(back, size)
    return (
        axes * (along * radius[..., None] * _UP)[..., None, :],
        across(missed, size * radius[..., None]) * _UP,
        size,
    )
