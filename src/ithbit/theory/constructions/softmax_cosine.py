"""One softmax layer for RHI with the keys (cos k, sin k) that the proof of Thm. 12c sketches.

    embedding   bit k -> (cos k, sin k, ±1)     index -> (cos i, sin i, 0)
    layer       K = first two coordinates, Q = scale · K, V = third coordinate
                N(s) = ((s_3)+, (−s_3)+, 0)
    output      alpha_1 = y_1, alpha_0 = y_2

The score of position k is scale · cos(k − i), largest at k = i, as the sketch says. It needs care
in two places:

* The index token carries the same (cos i, sin i), so it scores itself as high as position i. Half
  of the attention stays there: the sign is right, but the margin is 1/2 instead of 1.
* "A sufficiently large constant" grows with n, and fast: it must outweigh the smallest gap
  1 − cos m, m < n, which is 4.0e-2 from m = 6 on, 1.6e-4 from 44, 3.9e-5 from 333 and 1.8e-9 from
  710 on, where 710 is close to 113 · 2 pi. Float32 works at n = 700 and fails at n = 720. The
  scale used here is the power of two above ln(8n) / gap.

The stored cosines and sines are float64 numbers; a certificate is about these.
"""

import math

import numpy as np

from ithbit.theory.gadgets import two_step
from ithbit.theory.layers import SoftmaxAttention, matrix
from ithbit.theory.solution import Parts, embedding_of


def cosine_scale(n_bits: int) -> float:
    """The power of two above ln(8n) / min_{0 < m < n} (1 − cos m); 2 if n = 1.

    >>> cosine_scale(45)
    65536.0
    """
    gaps = 1 - np.cos(np.arange(1, max(n_bits, 2), dtype=np.float64))
    return 2.0 ** math.ceil(math.log2(max(2.0, math.log(8 * n_bits) / gaps.min())))


def cosine(family: str, n_bits: int) -> Parts:
    """RHI by one softmax layer with keys on the circle, as sketched; margin just under 1/2."""
    k = np.arange(1, n_bits + 1, dtype=np.float64)
    circle = np.stack([np.cos(k), np.sin(k)], axis=1)
    bits = np.stack([np.insert(circle, 2, sign, axis=1) for sign in (-1.0, 1.0)], axis=1)
    plane = np.diag([1.0, 1.0, 0.0])
    layer = SoftmaxAttention(
        causal=family == "softmax-causal",
        K=matrix(plane),
        Q=matrix(cosine_scale(n_bits) * plane),
        V=matrix(np.diag([0.0, 0.0, 1.0])),
        net=two_step([[0, 0, 1], [0, 0, -1]], [0, 0], [[1, 0], [0, 1], [0, 0]], [0, 0, 0]),
    )
    index = np.insert(circle, 2, 0.0, axis=1)
    return embedding_of(index, bits), [layer], [[0, 1, 0], [1, 0, 0]]
