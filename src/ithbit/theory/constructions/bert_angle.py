"""BERT blocks, full or causal, solve RHI and LHI for every n by pointing at an angle.

*RHI: one block, from width 4 on (cf. Thm. 12c).* Content (one, place, bit) as in `content`;
D0 = nu_0 + nu_2 + d eps, c^2 = D0 / nu_1, T = n + 1:

    bit k    (1, p, b)     p = (k − 1) / n, b = ±1
    index i  −(1, f, 0)    f = (i − 1) / n; its place feature 1 is subtracted again
    head 0   q = −beta (c^2 a_0, a_1)   k = (a_0, a_1)   v = a_2 -> a_2;   all else 0
    beta     40 n^2 (lambda(2) / lambda(c^2)) nu_1 sqrt(d_h) / d
    head     4 sqrt(nu_2 / d) a_2

1. LayerNorm turns bit k into s_k (1, p, b), s_k = sqrt(d / nu_1) / sqrt(c^2 + p^2), and the index
   into −s (1, f, 0). So the score of bit k is G (c^2 + f p) / sqrt((c^2 + p^2)(c^2 + f^2)), that
   is, G cos(theta_k − theta_i) with theta = arctan(p / c), as c^2 absorbs the norm's scale, and G =
   (beta d / (nu_1 sqrt(d_h))) sqrt((c^2 + f^2) / (nu_0 / nu_1 + f^2 + d eps / nu_1)) >= 40 n^2
   lambda(2) / lambda(c^2), since c^2 >= (nu_0 + d eps) / nu_1. The index's own key scores <= 0.
2. By `content.sharpness` bit k scores at least 40 lambda(2) (k − i)^2 =: gamma (k − i)^2 less than
   bit i, gamma > 4.30. Against bit i the other bits weigh r <= 2 sum_k e^(−gamma k^2) together, and
   the index token e^(−G). Their values are at most s_k <= s_i sqrt((c^2 + 1) / c^2). So a_2 at the
   index token has the sign of the bit and a size of at least
   y = s_i (1 − sqrt(1 + 1/c^2) r) / (1 + r'), where r' = r + e^(−G).
3. The feed-forward part is 0. Two LayerNorms in a row scale by sqrt(d) / sqrt((1 + eps) X
   + d eps^2), X = sum_j nu_j a_j^2: X <= d + nu_2 y^2 for the index token. y over that root
   increases in y, so the logit is at least 4 sqrt(nu_2) y / sqrt((1 + eps)(d + nu_2 y^2) + d
   eps^2). Nothing depends on n.

The margin at width 16 is at least 1.91 for every n, and just under 2 for large n (observed).

*LHI: two blocks, from width 6 on (cf. Thm. 14c).* Content (one, place, bit, flag, index);
N = n + 1, D0 = nu_0 + nu_2:

    bit k    (1, p, b, 0, 0)    p = k / N, b = ±1
    index i  (0, 0, 0, 1, g)    g = 1/N + (n/N) (i − 1)/n = i / N = p_i
    end      (−1, 0, 0, 0, 0)   its place feature 1 is subtracted again
    block 1  q = −B a_0   k = a_3   v = (a_3, a_4) -> (a_3, a_4)
    block 2  q = beta (alpha a_3, a_4)   k = (a_0, a_1)   v = a_2 -> a_2
    B        b sqrt(d_h) / d sqrt((nu_0 + nu_1 + nu_2)(nu_3 + nu_4) / 6),  b = 6 ln(n + 2) + 60
    alpha    D0 / nu_1 + d eps^3 / (nu_1 (1 + eps + eps^2))
    beta     GAIN sqrt(3/4) (lambda(2) / lambda(alpha)) N^2 sqrt(2 nu_1 d_h / q0) / d,
             q0 = min(alpha / nu_3, (alpha + 1) / (nu_3 + nu_4)), GAIN = 60
    head     4 sqrt(nu_2 / d) a_2;   all else 0

1. *Block 1 brings the index to the end.* Keys and values are 0 at every token but the index, so
   the end token gives it the weight W = 1 / (1 + (n + 1) e^(−score)) whatever the bits, with
   score >= b / sqrt(2 (1 + d eps)) up to eps, and holds W (1, g) times a positive scale. The
   index token's own query is 0, and its key and value in block 2 stay 0, as only a_3 and a_4 are
   written.
2. *It leaves the bits alone.* A bit's score for the index is at most −b / sqrt(6), up to eps, so
   it takes up a multiple w <= e^(−b / sqrt 6) of the index's (1, g), orthogonal to what it holds.
   Without it, three LayerNorms scale (1, p, b) by sqrt(d) / sqrt(nu_1 (1 + eps + eps^2)(alpha +
   p^2)), the closed form of their product; with it, by that times a factor in [1 − w^2, 1].
3. *Block 2 points at the angle* as for RHI: the score of bit k is G cos(theta_k − theta_i)
   up to that factor, theta = arctan(p / sqrt(alpha)), G >= 51.9 (lambda(2) / lambda(alpha)) N^2.
   The index's key is 0, and the end's key scores below 0. The gap at distance k is at least 51.9
   lambda(2) k^2 − G w^2. Since G <= 168 N^2, G w^2 is below N^2 (n + 2)^(−4.89) e^(−43), which is
   negligible.
4. The end token finishes as the index token does for RHI: X <= d + nu_2 y^2.

The margin at width 16 is at least 1.97 for every n. Both are computed up to width 1,000,000, where
d eps is 10^−6 and changes them in the seventh digit.
"""

import math

from ithbit.layouts import SOFTMAX
from ithbit.spec import ModelSpec
from ithbit.theory.constructions.content import (
    Weights,
    columns,
    norms,
    reader,
    sharpness,
    writer,
    zeros,
)
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Column

ONE, PLACE, VALUE_OF_BIT, FLAG, INDEX = range(5)
# In LHI the fraction i / N must not share a coordinate with the flag.
ORDERS = {"rhi": (0, 1, 2), "lhi": (0, 1, 4, 3, 2)}
GAINS = {"rhi": 40.0, "lhi": 60.0}

Query = tuple[dict[int, float], dict[int, float]]  # what the two query channels read


def build(spec: ModelSpec) -> Weights:
    """RHI by one BERT block and LHI by two, full or causal; margins >= 1.9 and 1.95 for every n."""
    d, U, w = spec.d_model, columns(spec.d_model, ORDERS[spec.task]), zeros(spec)
    w["embed"][:, Column.BIT] = writer(U, {ONE: 1, VALUE_OF_BIT: -1})
    w["embed"][:, Column.VALUE] = writer(U, {VALUE_OF_BIT: 2})
    w["positions.polynomial"][:, 0] = writer(U, {PLACE: 1})
    block, query = (
        (0, _rhi_weights(spec, U, w)) if spec.task == "rhi" else (1, _lhi_weights(spec, U, w))
    )
    qkv, out = w[f"blocks.{block}.qkv.weight"], w[f"blocks.{block}.out.weight"]
    qkv[0], qkv[1] = (reader(U, channel) for channel in query)
    qkv[d], qkv[d + 1] = reader(U, {ONE: 1}), reader(U, {PLACE: 1})
    qkv[2 * d], out[:, 0] = reader(U, {VALUE_OF_BIT: 1}), writer(U, {VALUE_OF_BIT: 1})
    bit = norms(U)[VALUE_OF_BIT]
    w["head.weight"][0] = reader(U, {VALUE_OF_BIT: 4 * math.sqrt(bit / d)})
    return w


def _rhi_weights(spec: ModelSpec, U: FloatArray, w: Weights) -> Query:
    """Write the index token of RHI; what it asks for."""
    d, n = spec.d_model, spec.n_bits
    one, place, bit = norms(U)
    c2 = (one + bit + d * SOFTMAX.norm_eps) / place
    gain = GAINS["rhi"] * n**2 * sharpness(2.0) / sharpness(c2)
    beta = gain * place * math.sqrt(spec.d_head) / d
    w["embed"][:, Column.QUERY] = writer(U, {ONE: -1, PLACE: -1})
    w["embed"][:, Column.FRACTION] = writer(U, {PLACE: -1})
    return {ONE: -beta * c2}, {PLACE: -beta}


def _lhi_weights(spec: ModelSpec, U: FloatArray, w: Weights) -> Query:
    """Write index and end token of LHI, and block 1; what the end token then asks for."""
    d, n = spec.d_model, spec.n_bits
    N, root = n + 1, math.sqrt(spec.d_head)
    one, place, bit, flag, index = norms(U)
    eps = SOFTMAX.norm_eps
    alpha = (one + bit) / place + d * eps**3 / (place * (1 + eps + eps**2))
    b = 6 * math.log(n + 2) + 60
    B = b * root / d * math.sqrt((one + place + bit) * (flag + index) / 6)
    q0 = min(alpha / flag, (alpha + 1) / (flag + index))
    gain = GAINS["lhi"] * math.sqrt(0.75) * sharpness(2.0) / sharpness(alpha)
    beta = gain * N**2 * root / d * math.sqrt(2 * place / q0)
    w["embed"][:, Column.QUERY] = writer(U, {FLAG: 1, INDEX: 1 / N})
    w["embed"][:, Column.FRACTION] = writer(U, {INDEX: n / N})
    w["embed"][:, Column.END] = writer(U, {ONE: -1, PLACE: -1})
    qkv, out = w["blocks.0.qkv.weight"], w["blocks.0.out.weight"]
    qkv[0], qkv[d] = reader(U, {ONE: -B}), reader(U, {FLAG: 1})
    for channel, coordinate in enumerate((FLAG, INDEX)):
        qkv[2 * d + channel] = reader(U, {coordinate: 1})
        out[:, channel] = writer(U, {coordinate: 1})
    return {FLAG: alpha * beta}, {INDEX: beta}
