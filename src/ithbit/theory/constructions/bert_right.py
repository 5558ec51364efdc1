"""One BERT block solves RHI for every n by pointing at an angle, from width 4 on (cf. Thm. 12c).

Content (one, place, bit) as in `content`; D0 = nu_0 + nu_2 + d eps, c^2 = D0 / nu_1, T = n + 1:

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
"""

import math

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
from ithbit.theory.solution import Column
from ithbit.theory.trained_blocks import BERT_EPS

ONE, PLACE, VALUE_OF_BIT = range(3)
ORDER = (0, 1, 2)
GAIN = 40.0


def build(spec: ModelSpec) -> Weights:
    """RHI by one BERT block, full or causal; margin >= 1.9 for every n."""
    d, n = spec.d_model, spec.n_bits
    U = columns(d, ORDER)
    nu = norms(U)
    c2 = (nu[ONE] + nu[VALUE_OF_BIT] + d * BERT_EPS) / nu[PLACE]
    beta = GAIN * n**2 * sharpness(2.0) / sharpness(c2) * nu[PLACE] * math.sqrt(spec.d_head) / d
    w = zeros(spec)
    w["embed"][:, Column.BIT] = writer(U, {ONE: 1, VALUE_OF_BIT: -1})
    w["embed"][:, Column.VALUE] = writer(U, {VALUE_OF_BIT: 2})
    w["embed"][:, Column.QUERY] = writer(U, {ONE: -1, PLACE: -1})
    w["embed"][:, Column.FRACTION] = writer(U, {PLACE: -1})
    w["positions.polynomial"][:, 0] = writer(U, {PLACE: 1})
    qkv = w["blocks.0.qkv.weight"]
    qkv[0], qkv[1] = reader(U, {ONE: -beta * c2}), reader(U, {PLACE: -beta})
    qkv[d], qkv[d + 1] = reader(U, {ONE: 1}), reader(U, {PLACE: 1})
    qkv[2 * d] = reader(U, {VALUE_OF_BIT: 1})
    w["blocks.0.out.weight"][:, 0] = writer(U, {VALUE_OF_BIT: 1})
    w["head.weight"][0] = reader(U, {VALUE_OF_BIT: 4 * math.sqrt(nu[VALUE_OF_BIT] / d)})
    return w
