"""One `nn.GRU` layer on the experiments' inputs solves LHI for every n, width 3 on (cf. Thm. 14a).

`constructions/gru_latch.py` has free inputs; here they are what `models/` computes from token
features and positions, so the index i / N reaches the layer as a linear feature and is stored
through a tanh. N = n + 1, g = i / N, B = 60, plus 2 ln(N / 10^10) for N past 10^10, b = 60 N,
c = 1 / (4 sqrt N), o = 5 / (12 N):

    input      x = (1 + g at the index and 0 elsewhere, place p = k / N, bit ±1 or 0)
    reset      r = sigmoid(B) for all units
    update     z_1 = sigmoid(B − 2B x_1)    z_2 = sigmoid(−B)
               z_3 = sigmoid(−b (x_2 − h_1 / c + 1 + o) + b (1 + h_2))
    candidate  tanh(c x_1)    tanh(b (x_2 − h_1 / c + 1 + o) − 3b x_1)    tanh(30 x_3)
    head       (2 + 2^−20) h_3

h_1 is tanh(c (1 + g)) from the index on, up to e^(−B) per step, and u − u^3/3 <= tanh u <= u makes
h_1 / c = 1 + g − err with 0 <= err <= c^2 (1 + g)^3 / 3 <= 1 / (6N). So tau = p − g + err + o is at
least 5/(12N) from position i on and at most −5/(12N) before it: h_2 is −1 before i, the index token
included, and +1 from it on, up to 2 e^(−50). h_3 is open where tau > 0 and h_2 is still −1, at
k = i alone, with z_3 <= e^(−25). Afterwards z_3 >= 1 − e^(−b (1 − 7/(12N))), at the end token too.
What h_1 loses on the way moves tau by at most 2 n e^(−B), and so the exponent by 120 N^2 e^(−B),
below 0.001 by the choice of B. So |h_3| >= 1 − 4 e^(−25).

Further layers, if any, pass h_3 on: z_3 = sigmoid(−B), candidate tanh(30 x_3).
"""

import math

from ithbit.spec import ModelSpec
from ithbit.theory.constructions.trained.content import zeros
from ithbit.theory.trained_solution import Column, TrainedSolution

LEAST_WIDTH = 3
KEEP, GAIN = 60.0, 30.0  # B at every n for which weights are built
HEAD = 2 + 2.0**-20  # so that the margin is at least 2, not just below


def build(spec: ModelSpec) -> TrainedSolution:
    """LHI by nn.GRU; margin >= 2 for every n."""
    d, n = spec.d_model, spec.n_bits
    N = n + 1
    b, c, offset = 60.0 * N, 1 / (4 * math.sqrt(N)), 5 / (12 * N)
    w = zeros(spec)
    w["embed"][0, [Column.QUERY, Column.FRACTION]] = 1 + 1 / N, n / N
    w["embed"][2, [Column.BIT, Column.VALUE]] = -1, 2
    w["positions.polynomial"][1, 0] = 1
    W, U, bias = (w[f"blocks.0.{name}"] for name in ("ih.weight", "hh.weight", "ih.bias"))
    z, candidate = d, 2 * d
    bias[:3] = KEEP
    W[z, 0], bias[z], bias[z + 1] = -2 * KEEP, KEEP, -KEEP
    W[z + 2, 1], U[z + 2, 0], U[z + 2, 1], bias[z + 2] = -b, b / c, b, -b * offset
    W[candidate, 0] = c
    W[candidate + 1, :2], U[candidate + 1, 0] = (-3 * b, b), -b / c
    bias[candidate + 1] = b * (1 + offset)
    W[candidate + 2, 2] = GAIN
    for layer in range(1, spec.n_layers):
        w[f"blocks.{layer}.ih.bias"][z + 2] = -KEEP
        w[f"blocks.{layer}.ih.weight"][candidate + 2, 2] = GAIN
    w["head.weight"][0, 2] = HEAD
    return TrainedSolution(spec, w, "beside Theorem 14a: the trained layer itself", "latch")
