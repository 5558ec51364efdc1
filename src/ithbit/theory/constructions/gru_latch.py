"""Explicit weights with which `nn.GRU` solves LHI: on free inputs, and on those of the experiments.

Theorem 14a is about RNNs whose update is a ReLU MLP; a GRU is not of that form, so its entry in the
experiments needs its own weights. One layer with input 4 and hidden size 3, with b = 80 n and
B = 60:

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

All thresholds hold with a slack of b / 4n = 20 in the exponent, less b (1 + h_2) <= 160 n e^{−40}
and what e^{−60} per step takes from h_1: for n <= 10^10, far more than weights are built for. All
biases are in b_ih; the stored numbers are the float64 roundings of the formulas above.

On the experiments' inputs one layer solves LHI for every n, from width 3 on. Here the inputs are
what `models/` computes from token features and positions, so the index i / N reaches the layer as a
linear feature and is stored through a tanh. N = n + 1, g = i / N, B = 60, plus 3 ln(N / 10^10) for
N past 10^10, b = B N, c = 1 / (4 sqrt N), o = 5 / (12 N):

    input      x = (1 + g at the index and 0 elsewhere, place p = k / N, bit ±1 or 0)
    reset      r = sigmoid(B) for all units
    update     z_1 = sigmoid(B − 2B x_1)    z_2 = sigmoid(−B)
               z_3 = sigmoid(−b (x_2 − h_1 / c + 1 + o) + b (1 + h_2))
    candidate  tanh(c x_1)    tanh(b (x_2 − r h_1 / c + 1 + o) − 3b x_1)    tanh(30 x_3)
    head       (2 + 2^−20) h_3

1. *h_1 keeps the index.* It is tanh(c (1 + g)) up to a factor 1 − e^(−B) per token and one more for
   r, and u − u^3/3 <= tanh u <= u makes h_1 / c = 1 + g − err − slip with 0 <= err <=
   c^2 (1 + g)^3 / 3 <= 1 / (6N) and 0 <= slip <= 2 (N + 2) e^(−B). So tau = p − g + err + slip + o
   is at least 5/(12N) from position i on and at most −5/(12N) + slip before it. In exponents slip
   counts as b slip <= E1 = 2 B N (N + 2) e^(−B).
2. *h_2 turns at position i.* Its candidate is tanh(b tau), and at the index token at most
   tanh(−b), so h_2 is −1 before i, the index token included, and +1 from i on, up to
   2 e^(−5B/6 + 2 E1) + 2 e^(−B). In exponents this counts as E2 = b times that.
3. *h_3 is open at k = i alone,* where tau > 0 and h_2 is still −1: z_3 <= e^(−5B/12 + E2) there.
   Afterwards tau <= 1 − 5/(12N) + slip, at the end token too, so 1 − z_3 <= e^(−b + E1 + E2). So
   |h_3| >= 1 − 2 e^(−5B/12 + E2) − 2 e^(−60) − 2 N e^(−b + E1 + E2).
4. *Every n.* Up to N = 10^10, where B = 60, E1 and E2 increase in N. From there on e^(−B) is
   e^(−60) (10^10 / N)^3, so E1 is a multiple of B (1 + 2/N) / N and E2 at most one of
   B N (10^10 / N)^2.5, both decreasing in N. So both are largest at N = 10^10: E1 < 0.0002 and
   E2 < 10^−8. B >= 60 and 2 N e^(−b) decreases. So |h_3| >= 1 − 4 e^(−25) for every n, in real
   arithmetic on these formulas. (The largest weight, 4 B N^1.5, exceeds float64 past N = 10^203.)

Further layers, if any, pass h_3 on: z_3 = sigmoid(−B), candidate tanh(30 x_3).
"""

import math

import numpy as np

from ithbit.spec import ModelSpec
from ithbit.theory.constructions.content import Weights, zeros
from ithbit.theory.layers import Gru, matrix
from ithbit.theory.solution import Column, Parts, embedding_of

LEAST_WIDTH = 3
GAIN = 30.0
GROWS = 10**10  # the length N from which on B grows
HEAD = 2 + 2.0**-20  # so that the margin is at least 2, not just below


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


def keep(N: int) -> float:
    """B: exactly 60 up to N = 10^10."""
    return 60.0 if N <= GROWS else 60 + 3 * math.log(N / GROWS)


def build(spec: ModelSpec) -> Weights:
    """LHI by nn.GRU; margin >= 2 for every n."""
    d, n = spec.d_model, spec.n_bits
    N = n + 1
    B = keep(N)
    b, c, offset = B * N, 1 / (4 * math.sqrt(N)), 5 / (12 * N)
    w = zeros(spec)
    w["embed"][0, [Column.QUERY, Column.FRACTION]] = 1 + 1 / N, n / N
    w["embed"][2, [Column.BIT, Column.VALUE]] = -1, 2
    w["positions.polynomial"][1, 0] = 1
    W, U, bias = (w[f"blocks.0.{name}"] for name in ("ih.weight", "hh.weight", "ih.bias"))
    z, candidate = d, 2 * d
    bias[:3] = B
    W[z, 0], bias[z], bias[z + 1] = -2 * B, B, -B
    W[z + 2, 1], U[z + 2, 0], U[z + 2, 1], bias[z + 2] = -b, b / c, b, -b * offset
    W[candidate, 0] = c
    W[candidate + 1, :2], U[candidate + 1, 0] = (-3 * b, b), -b / c
    bias[candidate + 1] = b * (1 + offset)
    W[candidate + 2, 2] = GAIN
    for layer in range(1, spec.n_layers):
        w[f"blocks.{layer}.ih.bias"][z + 2] = -B
        w[f"blocks.{layer}.ih.weight"][candidate + 2, 2] = GAIN
    w["head.weight"][0, 2] = HEAD
    return w
