"""Two Mamba2 blocks solve LHI for every n, from state 1 and width 6 on (cf. Thm. 14c).

RMSNorm subtracts no mean, so the content is the stream itself: (one, place, bit, flag, index,
found), 0 beyond. N = n + 1, T = n + 2, g = i / N, e = d eps:

    all      a_0 = C = 8N + 8,  S = sqrt(d) / C
    bit k    a_1 = p = k / N, a_2 = b = ±1;    index i  a_3 = 1, a_4 = g;    all else 0
    both     gate a_0 / (S C) on every channel; the convolution is the identity; B = C = (silu(1),
             0, …) from its bias; dt = softplus(0) = ln 2; A = −1 / T; skip 0
    block 1  x = (a_4, −a_4, M a_3) / S,  M = 8N + 40;   a_1 −= (M / sqrt d)(y_0 − y_1)
    block 2  x_{±,mu} = (kappa / S)[a_1 + (2 + mu w) a_0 / C ∓ 2 a_2],  mu = −1, 0, 1,
             kappa = 2 N R, R = 8 + ln N, w = 1 / (4N);
             a_5 = (10 T kappa C / sqrt d) sum ±(1, −2, 1) y
    head     2 a_5 / sqrt d

1. *Every token finds the index.* In block 1 the convolution's SiLU is 0 at all tokens but the
   index, so at token t the state times C is lambda_t v, v = silu(sigma (g, −g, M)), and lambda_t
   > 0: the decay, which is 2^(−t/T) in (1/2, 1], times ln 2 silu(1)^2 silu(gate). The gated
   RMSNorm gives sqrt(d) v / sqrt(|v|^2 + e / lambda_t^2): one direction, whatever t. Since
   silu(x) − silu(−x) = x, a_1 decreases by g M sigma / sqrt(|v|^2 + e / lambda_t^2), which is g
   within a relative error delta <= max((1 + e / lambda^2) / (2 M^2 sigma^2), 3 e^(−M sigma)).
2. *A window opens at p = g*, as in `linear_window` with silu = ReLU − psi and psi(x) = |x| / (1 +
   e^|x|) <= 0.2785, decreasing from 1.28 on: |Y_j| <= 4 psi(E) for j != i, E = kappa'(3/(4N) −
   delta), and b Y_i >= kappa'(w − delta) − 2 psi(kappa'(w − delta)) − 2 psi(E). Index and end,
   where b = 0, cancel exactly, as both heads decay alike.
3. *The state adds up.* At the end token the sum has the sign of the bit and is at least Y = b Y_i
   / 2 − 4 n psi(E). The six channels are below 5.2 T kappa each, so the gated RMSNorm leaves
   |a_5| >= 10 T kappa C Y / sqrt(6 (5.2 T kappa)^2 + e / lambda^2) >= 1.4 C, and the final one 2
   / sqrt(1 + (C^2 + 1.01 + e) / a_5^2).
4. *Every n.* R increases in N; n psi(E) decreases, since E >= 1.49 R; N / M^2 <= 1 / 1280 for all
   N, so delta N is taken at its supremum. So the bound increases in N and is least at n = 1: 1.71.
   The numbers of steps 3 and 4 are for width 16. e = d eps grows with the width d, and with it
   delta: the bound is 1.66 at width 100,000 and proves nothing past width 839,223.
"""

import math

import numpy as np

from ithbit.spec import ModelSpec
from ithbit.theory.constructions.content import Weights, zeros
from ithbit.theory.constructions.linear_window import UNITS
from ithbit.theory.solution import Column

ONE, PLACE, VALUE_OF_BIT, FLAG, INDEX, FOUND = range(6)
LEAST_WIDTH = 6


def build(spec: ModelSpec) -> Weights:
    """LHI by two Mamba2 blocks; margin >= 1.6 for every n, up to width 100,000."""
    d, n, state = spec.d_model, spec.n_bits, spec.d_state
    N, T = n + 1, n + 2
    C, M = 8.0 * N + 8, 8.0 * N + 40
    S, root = math.sqrt(d) / C, math.sqrt(d)
    kappa, w0 = 2 * N * (8 + math.log(N)), 1 / (4 * N)
    w = zeros(spec)
    embed = w["embed"]
    embed[ONE, [Column.BIT, Column.QUERY, Column.END]] = C
    embed[PLACE, Column.END] = -1
    embed[VALUE_OF_BIT, [Column.BIT, Column.VALUE]] = -1, 2
    embed[FLAG, Column.QUERY] = 1
    embed[INDEX, [Column.QUERY, Column.FRACTION]] = 1 / N, n / N
    w["positions.polynomial"][PLACE, 0] = 1
    for layer in (0, 1):
        block = f"blocks.{layer}."
        w[f"{block}in.weight"][:d, ONE] = 1 / (S * C)
        w[f"{block}conv.weight"][-1] = 1
        w[f"{block}conv.bias"][[d, d + state]] = 1
        w[f"{block}a_log"][:] = -math.log(T)
    x, out = w["blocks.0.in.weight"][d:], w["blocks.0.out.weight"]
    x[0, INDEX], x[1, INDEX], x[2, FLAG] = 1 / S, -1 / S, M / S
    out[PLACE, :2] = -M / root, M / root
    x, out = w["blocks.1.in.weight"][d:], w["blocks.1.out.weight"]
    for unit, (sign, mu) in enumerate(UNITS):
        x[unit, ONE] = kappa / (S * C) * (2 + mu * w0)
        x[unit, PLACE] = kappa / S
        x[unit, VALUE_OF_BIT] = -2 * sign * kappa / S
        out[FOUND, unit] = sign * (1 if mu else -2) * 10 * T * kappa * C / root
    w["head.weight"][0] = np.eye(d)[FOUND] * 2 / root
    return w
