"""Two pre-LN linear-attention blocks solve RHI (full) and LHI (full, causal), from width 6 on.

Cf. Thm. 12b and 14c. Content (one, place, bit, index, found) as in `content`; N = n for RHI
and n + 1 for LHI, T tokens, g = (i − 1)/n or i / N, so that g = p_i; e = d eps:

    all      a_0 = C,  C = (8N + 8) sqrt(nu_3 / nu_0),  S = sqrt(d / nu_0) / C
    bit k    a_1 = p, a_2 = b = ±1;     index i  a_3 = 1 + g;    all else 0
    block 1  q = 0, every key coordinate (K / S)(−a_0 / C + 3 a_3), v = a_3 / S -> −a_1, K = N + 40
             units GELU((kappa / S)[a_1 + (3 + mu w) a_0 / C ∓ 2 a_2]) -> ±(1, −2, 1) a_4 for
             mu = −1, 0, 1;  R = 4 + sqrt(2 ln N), kappa = 2 N R, w = 1 / (4N)
    block 2  q = k = 0, v = a_4 / S -> T a_4, feed-forward part 0
    head     a_4

1. *Every token finds the index.* The large constant C makes LayerNorm nearly linear: s = S sigma,
   sigma = (1 + (sum_{j>0} nu_j a_j^2 + e) / (nu_0 C^2))^(−1/2). Values vanish except at the index
   token. The others' keys have ELU+1 features e^(−K sigma), the index's at least 1 + 2 K sigma, so
   a_1 decreases by (1 + g) rho sigma, where 1 − rho <= (T e^(−K sigma) + 1e-6 / d_h) / (1 + 2 K
   sigma), and a_1 + 1 = p − g + err with 0 <= err <= delta = 2 (1 − rho sigma). delta N decreases
   in N.
2. *A window opens at p = g.* With t = p − g + err and kappa' = kappa sigma the units of one sign
   see kappa'(t + mu w) if the bit has that sign, else kappa'(t + 4 + mu w). GELU = ReLU − psi with
   0 <= psi(x) = |x| Q(|x|) <= phi(x), Q the normal tail; psi decreases from 0.76 on. ReLUs of one
   sign cancel in (1, −2, 1), so at j != i, where every edge is at least E = kappa'(3/(4N) − delta)
   away from 0, |y_j| <= 4 psi(E). At i the ReLUs give kappa'(w − |t|): b y_i >= kappa'(w − delta) −
   2 psi(kappa'(w − delta)) − 2 psi(E). Index and end have b = 0: both signs are equal and cancel
   exactly.
3. *The mean adds up.* Block 2 gives the last token T times the mean of all a_4, up to LayerNorm's
   sigma: the margin is at least (sigma_2 b y_i − (n − 1) 4 psi(E)) T d_h / (T d_h + 1e-6).
4. *Every n.* R increases in N. delta N decreases, as N / (N + 1)^2 does, up to terms below 1e-6
   that are taken at their suprema. N psi(E) decreases: E >= 1.4 R and R^2 >= 16 + 2 ln N, so it
   falls faster than N^(−0.9). R / C decreases: it is 1/4, 0.22, 0.17 at N = 1, 2, 3 (width 16), and
   from there on R' / R = 1 / (N R sqrt(2 ln N)) < 1 / (N + 1) = C' / C. So the bound increases in
   N, and its value at n = 1 holds for every n: 1.70 (RHI) and 2.37 (LHI) at width 16, and 1.48
   and 2.15 at width 1,000,000, as e = d eps grows with the width d.
"""

import math

from ithbit.spec import ModelSpec
from ithbit.theory.constructions.content import Weights, columns, norms, reader, writer, zeros
from ithbit.theory.solution import Column

ONE, PLACE, VALUE_OF_BIT, INDEX, FOUND = range(5)
ORDER = (2, 0, 1, 3, 4)  # units read one, place and bit; keys read one and index
UNITS = tuple((sign, step) for sign in (1, -1) for step in (-1, 0, 1))
LEAST_FF = len(UNITS)


def build(spec: ModelSpec) -> Weights:
    """RHI by full, LHI by full or causal linear attention; margins >= 1.4 and 2.0 for every n
    up to width 1,000,000."""
    d, n, right = spec.d_model, spec.n_bits, spec.task == "rhi"
    N, T = (n, n + 1) if right else (n + 1, n + 2)
    U = columns(d, ORDER)
    nu = norms(U)
    C = (8 * N + 8) * math.sqrt(nu[INDEX] / nu[ONE])
    S, K = math.sqrt(d / nu[ONE]) / C, N + 40
    kappa, w0 = 2 * N * (4 + math.sqrt(2 * math.log(N))), 1 / (4 * N)
    first, step = (0.0, 1.0) if right else (1 / N, n / N)  # g = first + step (i − 1) / n
    w = zeros(spec)
    embed = w["embed"]
    embed[:, Column.BIT] = writer(U, {ONE: C, VALUE_OF_BIT: -1})
    embed[:, Column.VALUE] = writer(U, {VALUE_OF_BIT: 2})
    embed[:, Column.QUERY] = writer(U, {ONE: C, PLACE: -1 if right else 0, INDEX: 1 + first})
    embed[:, Column.FRACTION] = writer(U, {INDEX: step})
    if not right:
        embed[:, Column.END] = writer(U, {ONE: C, PLACE: -1})
    w["positions.polynomial"][:, 0] = writer(U, {PLACE: 1})
    qkv = w["blocks.0.qkv.weight"]
    qkv[d : 2 * d] = reader(U, {ONE: -K / (S * C), INDEX: 3 * K / S})
    qkv[2 * d] = reader(U, {INDEX: 1 / S})
    w["blocks.0.out.weight"][:, 0] = writer(U, {PLACE: -1})
    for unit, (sign, mu) in enumerate(UNITS):
        w["blocks.0.up.weight"][unit] = reader(
            U,
            {
                ONE: kappa / (S * C) * (3 + mu * w0),
                PLACE: kappa / S,
                VALUE_OF_BIT: -2 * sign * kappa / S,
            },
        )
        w["blocks.0.down.weight"][:, unit] = writer(U, {FOUND: sign * (1 if mu else -2)})
    w["blocks.1.qkv.weight"][2 * d] = reader(U, {FOUND: 1 / S})
    w["blocks.1.out.weight"][:, 0] = writer(U, {FOUND: T})
    w["head.weight"][0] = reader(U, {FOUND: 1})
    return w
