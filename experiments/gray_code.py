"""RHI at small n by one SSM or RNN layer of width 1: how tight the bounds at width 1 are.

No number of such layers solves RHI for every n; this shows how far one gets with w hidden units.
With rho = 1/4 a bit b folds the state, h' = |rho h − b|, from h = 0. So h < 1/2 says that the
last bit is 0, and h = 1/4 g or 1 − 1/4 g with g the state before it: the strings lie in the order
of the reflected Gray code, with gaps between them. With the fold's inverse F (h / rho below 1/2,
(1 − h) / rho above), bit n − j is 1 if F^j(h) > 1/2. Since F(rho h) = h, that is the question for
j = n − 1 at rho^(n−1−j) h: every index reads one zigzag, which has 2^(n−1) zeros, at the scale
rho^(i−1).

    zigzag   t − z_1 + 2 sum_j (−1)^j (t − m_j)+, m_j midway between the zeros z_j, z_{j+1} of bit 1
    SSM      A(x) = rho (1 − 2x), B(x) = x, phi(x, h) = zigzag(h − x);  2^(n−1) hidden units
             bit b -> b, index i -> (1 − rho^(i−2)) / 2, so that A = rho^(i−1)
    RNN      bit b -> b, index i -> i − n − 1
             N1 = |rho h − x| − (−x)+ + sum_{j <= n} ±((d_j h − x − j)+ − (−x − j)+),
             the slope rho ± d_1 ± … made rho^(i−1); N2(x, h) = zigzag(h);  2n + 3 and 2^(n−1) units

All weights are dyadic, so a run in rationals on all inputs is a proof for that n.
"""

from itertools import pairwise

import numpy as np

from ithbit.theory.gadgets import affine, two_step
from ithbit.theory.layers import ReluNet, Rnn, Ssm, matrix
from ithbit.theory.solution import Embedding, Layer, Solution, embedding_of

RHO = 0.25
NAMED = ("below the bound at width 1", "gray code")


def _zeros(depth: int) -> list[float]:
    """Where bit 1 of depth + 1 bits flips: the preimages of 1/2 under F^depth, in order."""
    found = [0.5]
    for _ in range(depth):
        found = sorted([RHO * z for z in found] + [1 - RHO * z for z in found])
    return found


def _zigzag(n_bits: int, reads: tuple[float, float]) -> ReluNet:
    """The zigzag of t = reads · (x, h), at least 1 away from 0 on all strings."""
    zeros = _zeros(n_bits - 1)
    kinks = [0.0] + [(a + b) / 2 for a, b in pairwise(zeros)]
    scale = 4.0**n_bits
    outer = [scale] + [2 * scale * (-1) ** j for j in range(1, len(kinks))]
    inner = [list(reads) for _ in kinks]
    return two_step(inner, [-k for k in kinks], [outer], [-scale * zeros[0]])


def _embedding(n_bits: int, index: list[float]) -> Embedding:
    bits = np.tile(np.array([[[0.0], [1.0]]]), (n_bits, 1, 1))
    return embedding_of(np.array(index)[:, None], bits)


def _solution(family: str, embedding: Embedding, layer: Layer) -> Solution:
    output = matrix([[0], [1]])
    return Solution("rhi", family, embedding.n_bits, (layer,), embedding, output, *NAMED)


def gray_ssm(n_bits: int) -> Solution:
    """RHI for this n by one SSM layer of width 1 with 2^(n−1) hidden units.

    >>> from ithbit.theory.precision import smallest_margin
    >>> smallest_margin(gray_ssm(4), object) > 0
    True
    """
    fold, keep = affine([[-2 * RHO]], [RHO]), affine([[1.0]], [0.0])
    layer = Ssm(A=fold, B=keep, phi=_zigzag(n_bits, (-1.0, 1.0)), h0=matrix([0.0], 1))
    embedding = _embedding(n_bits, [(1 - RHO ** (i - 2)) / 2 for i in range(1, n_bits + 1)])
    return _solution("ssm", embedding, layer)


def gray_rnn(n_bits: int) -> Solution:
    """RHI for this n by one RNN layer of width 1 with max(2n + 3, 2^(n−1)) hidden units.

    >>> from ithbit.theory.precision import smallest_margin
    >>> smallest_margin(gray_rnn(4), object) > 0
    True
    """
    n = n_bits
    inner, bias, outer = [[-1.0, RHO], [1.0, -RHO], [-1.0, 0.0]], [0.0] * 3, [1.0, 1.0, -1.0]
    slope = RHO  # of the state at the index token n, whose number is −1
    for step in range(1, n + 1):
        wanted = RHO ** (n - step)  # of index n + 1 − step, whose number is −step
        rise = wanted - slope
        sign = 1.0 if rise >= 0 else -1.0
        inner += [[-1.0, abs(rise)], [-1.0, 0.0]]
        bias += [-float(step)] * 2
        outer += [sign, -sign]
        slope = wanted
    layer = Rnn(two_step(inner, bias, [outer], [0.0]), _zigzag(n, (0.0, 1.0)))
    embedding = _embedding(n, [float(i - n - 1) for i in range(1, n + 1)])
    return _solution("rnn", embedding, layer)
