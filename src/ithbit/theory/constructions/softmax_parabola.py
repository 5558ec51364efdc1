"""One softmax layer of width 2 that solves RHI (Thm. 12c); every weight is independent of n.

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
"""

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
