"""One RNN layer that solves LHI (Thm. 14a): width 1, or width 2 with weights independent of n.

Both use the embedding index -> −i, a 1 at position k -> k, a 0 and the end -> n + 2, and hat_1, the
tent that is 1 at 0 and 0 at every other integer. All numbers are small integers.

Scalar state, with M = n + 2:

    N1(x, h) = (h)+ + (−x)+ + 2M hat_1(x − h)        N2(x, h) = 2 (h)+ − 3M

The index token sets h = i. A token with x = i, that is, only position i holding a 1, lifts the
state to i + 2M, out of reach of every x <= M; all others leave it unchanged. At the end
y = 2i − 3M < 0 or 2i + M > 0: the margin is at least M + 2 = n + 4, attained at i = 1 with
sigma_i = 1.

In float32 the products stay exact while 4 M^2 <= 2^24, that is, up to n = 2046.

Two-dimensional state (index, answer), as in the paper:

    h_1' = (h_1)+ + (−x)+      h_2' = (h_2)+ + hat_1(x − h_1)      y = 2 (h_2)+ − 1

Here the end token leaves h_2 alone since n + 2 > i + 1; the margin is exactly 1. At the index token
itself h_1 = 0 and x = −i: for i = 1 the tent has just ended, hat_1(−1) = 0.
"""

import numpy as np

from ithbit.theory.constructions.attention_marker import marker_embedding
from ithbit.theory.gadgets import two_step
from ithbit.theory.layers import Rnn
from ithbit.theory.solution import Parts, embedding_of


def scalar(family: str, n_bits: int) -> Parts:
    """LHI by one RNN layer of width 1; margin exactly n + 4."""
    M = n_bits + 2.0
    N1 = two_step(
        [[0, 1], [-1, 0], [1, -1], [1, -1], [1, -1]],
        [0, 0, 1, 0, -1],
        [[1, 1, 2 * M, -4 * M, 2 * M]],
        [0],
    )
    N2 = two_step([[0, 1]], [0], [[2]], [-3 * M])
    return marker_embedding("lhi", n_bits), [Rnn(N1, N2)], [[0], [1]]


def pair(family: str, n_bits: int) -> Parts:
    """LHI by one RNN layer of width 2 whose weights do not depend on n; margin exactly 1."""
    line = marker_embedding("lhi", n_bits)
    assert line.end is not None
    padded = [np.insert(rows, 1, 0.0, axis=-1) for rows in (line.index, line.bit, line.end)]
    tent = [[1, 0, -1, 0]] * 3
    N1 = two_step(
        [[0, 0, 1, 0], [-1, 0, 0, 0], [0, 0, 0, 1], *tent],
        [0, 0, 0, 1, 0, -1],
        [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, -2, 1]],
        [0, 0],
    )
    N2 = two_step([[0, 0, 0, 1]], [0], [[0], [2]], [0, -1])
    return embedding_of(*padded), [Rnn(N1, N2)], [[0, 0], [0, 1]]
