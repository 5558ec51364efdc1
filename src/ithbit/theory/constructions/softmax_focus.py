"""One softmax layer that solves RHI (Thm. 12c): the index token focuses on position i.

*Keys on a parabola*, width 2; every weight is independent of n.

    embedding   bit k -> (k, k^2 + tau_k), tau_k = ±1/4 for sigma_k = 1, 0     index -> (−i/2, −i^2)
    layer       K = V = I, Q = 24 J with J = [[0, −1], [1, 0]]
                N(s) = ((8 s_2)+, (−8 s_2)+)
    output      alpha_1 = y_1, alpha_0 = y_2

With beta = 12 the index token scores position k by beta · i · (2 i k − k^2 − tau_k): the points
(k, k^2) are in convex position, and k = i beats the others by at least beta · i · ((k−i)^2 − 1/2).
J is antisymmetric, so the index token scores itself 0, less than beta · i · (i^2 − tau_i): no tie
with its own key, unlike in the cos/sin sketch. The residual cancels the position:

    s_2 = −i^2 + a_2 = tau_i + err
    |err| <= 2 sum_{D>=1} e^{−12 i (D^2 − 1/2)} (D (2i + D) + 1/2)
             + e^{−12 i (i^2 − 1/4)} (2 i^2 + 1/4)

which decreases in i and is at most 0.0177 at i = 1. Margin 8 |s_2| >= 8 (1/4 − 0.0177) = 1.858 for
every n. At the last token full and causal attention are the same (Remark 7).

Precision: the relative gap of the scores is 1 / (2 i^2), which n points in convex position in the
plane cannot avoid; float32 first fails between n = 1200 and 1448, where float64 is still exact.

*Keys on a circle*, (cos k, sin k), width 3, as the proof of Thm. 12c sketches.

    embedding   bit k -> (cos k, sin k, ±1)     index -> (cos i, sin i, 0)
    layer       K = first two coordinates, Q = scale · K, V = third coordinate
                N(s) = ((s_3)+, (−s_3)+, 0)
    output      alpha_1 = y_1, alpha_0 = y_2

The score of position k is scale · cos(k − i), largest at k = i, as the sketch says. It needs care
in two places:

* The index token carries the same (cos i, sin i), so it scores itself as high as position i. Half
  of the attention stays there: the sign is right, but the margin is 1/2 instead of 1.
* "A sufficiently large constant" grows with n, and fast: it must outweigh the smallest gap
  1 − cos m, m < n, which is 4.0e-2 from m = 6 on, 1.6e-4 from 44, 3.9e-5 from 333 and 1.8e-9 from
  710 on, where 710 is close to 113 · 2 pi. Float32 works at n = 700 and fails at n = 720. The
  scale used here is the power of two above ln(8n) / gap.

The stored cosines and sines are float64 numbers; a certificate is about these.
"""

import math

import numpy as np

from ithbit.theory.gadgets import two_step
from ithbit.theory.layers import SoftmaxAttention, matrix
from ithbit.theory.solution import Parts, embedding_of

BETA = 12.0  # half the factor of Q; beta = 1 is too weak: its margin is −3.90 at n = 6


def parabola(family: str, n_bits: int) -> Parts:
    """RHI by one softmax layer, keys on a parabola; margin >= 1.858 for every n."""
    k = np.arange(1, n_bits + 1, dtype=np.float64)
    bits = np.stack([np.stack([k, k**2 + tau], axis=1) for tau in (-0.25, 0.25)], axis=1)
    layer = SoftmaxAttention(
        causal=family == "softmax-causal",
        K=matrix(np.eye(2)),
        Q=matrix([[0, -2 * BETA], [2 * BETA, 0]]),
        V=matrix(np.eye(2)),
        net=two_step([[0, 8], [0, -8]], [0, 0], [[1, 0], [0, 1]], [0, 0]),
    )
    index = np.stack([-k / 2, -(k**2)], axis=1)
    return embedding_of(index, bits), [layer], [[0, 1], [1, 0]]


def cosine_scale(n_bits: int) -> float:
    """The power of two above ln(8n) / min_{0 < m < n} (1 − cos m); 2 if n = 1.

    >>> cosine_scale(45)
    65536.0
    """
    gaps = 1 - np.cos(np.arange(1, max(n_bits, 2), dtype=np.float64))
    return 2.0 ** math.ceil(math.log2(max(2.0, math.log(8 * n_bits) / gaps.min())))


def cosine(family: str, n_bits: int) -> Parts:
    """RHI by one softmax layer with keys on the circle, as sketched; margin just under 1/2."""
    k = np.arange(1, n_bits + 1, dtype=np.float64)
    circle = np.stack([np.cos(k), np.sin(k)], axis=1)
    bits = np.stack([np.insert(circle, 2, sign, axis=1) for sign in (-1.0, 1.0)], axis=1)
    plane = np.diag([1.0, 1.0, 0.0])
    layer = SoftmaxAttention(
        causal=family == "softmax-causal",
        K=matrix(plane),
        Q=matrix(cosine_scale(n_bits) * plane),
        V=matrix(np.diag([0.0, 0.0, 1.0])),
        net=two_step([[0, 0, 1], [0, 0, -1]], [0, 0], [[1, 0], [0, 1], [0, 0]], [0, 0, 0]),
    )
    index = np.insert(circle, 2, 0.0, axis=1)
    return embedding_of(index, bits), [layer], [[0, 1, 0], [1, 0, 0]]
