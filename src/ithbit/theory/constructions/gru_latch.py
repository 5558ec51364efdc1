"""Explicit weights with which `nn.GRU` (one layer, input 4, hidden 3) solves LHI.

Theorem 14a is about RNNs whose update is a ReLU MLP; a GRU is not of that form, so its entry in the
experiments needs its own weights. With b = 80 n and B = 60:

    input       x = (first, v, pos, bit)
                index -> (1, artanh(i / 2n), −1, 0)   bit k -> (0, 0, k / 2n, ±1)
                end   -> (0, 0, (n + 1) / 2n, 0)
    reset       r = sigmoid(B), which is 1 up to e^{−60}
    update      z_1 = sigmoid(B − 2B first)   z_2 = sigmoid(−B)
                z_3 = sigmoid(−b (pos − h_1 + 1/4n) + b (1 + h_2))
    candidate   tanh(v), tanh(b (pos − h_1 + 1/4n)), tanh(30 bit)
    output      logits (0, h_3)

h_1 takes i / 2n from the index token and keeps it. h_2 is the sign of k − i + 1/2, recomputed at
every token: −1 before position i and +1 from it on. h_3 is a latch: it is overwritten while z_3 is
near 0, which requires pos >= h_1 now (k >= i) but h_2 = −1 one step earlier (k − 1 < i): at k = i
alone. The end token finds h_2 = +1 and leaves the latch as it is. The margin is |h_3|, just under
1.

All thresholds hold with a slack of b / 4n = 20 in the exponent. All biases are in b_ih; the
stored numbers are the float64 roundings of the formulas above.
"""

import math

import numpy as np

from ithbit.theory.layers import Gru, matrix
from ithbit.theory.solution import Parts, embedding_of


def latch(family: str, n_bits: int) -> Parts:
    """LHI by one GRU layer with hidden size 3; margin just under 1."""
    b, B, half = 80.0 * n_bits, 60.0, 1 / (4 * n_bits)
    index, bits = np.zeros((n_bits, 4)), np.zeros((n_bits, 2, 4))
    for i in range(1, n_bits + 1):
        index[i - 1] = (1, math.atanh(i / (2 * n_bits)), -1, 0)
        bits[i - 1] = [(0, 0, i / (2 * n_bits), sign) for sign in (-1, 1)]
    end = [0, 0, (n_bits + 1) / (2 * n_bits), 0]

    W, U, bias = np.zeros((9, 4)), np.zeros((9, 3)), np.zeros(9)
    first, v, pos, bit = range(4)
    r, z, candidate = 0, 3, 6
    bias[r : r + 3] = B
    W[z, first], bias[z] = -2 * B, B
    bias[z + 1] = -B
    W[z + 2, pos], U[z + 2, 0], U[z + 2, 1], bias[z + 2] = -b, b, b, b - b * half
    W[candidate, v] = 1
    W[candidate + 1, pos], U[candidate + 1, 0], bias[candidate + 1] = b, -b, b * half
    W[candidate + 2, bit] = 30
    layer = Gru(matrix(W), matrix(U), matrix(bias, 1), matrix(np.zeros(9), 1))
    return embedding_of(index, bits, end), [layer], [[0, 0, 0], [0, 0, 1]]
