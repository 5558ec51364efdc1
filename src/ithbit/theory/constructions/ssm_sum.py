"""Two SSM layers of width 1 that solve LHI (Thm. 14c), in two ways.

Selective (B depends on the token's sign; every weight independent of n), on the embedding
index -> −i, a 1 at position k -> k, a 0 and the end -> n + 2:

    layer 1     A = 1, B(x) = min(x, 0) = −(−x)+, h_0 = 0, phi(x, h) = hat_1(x + h)
    layer 2     A = 1, B(x) = x,                  h_0 = 0, phi(x, h) = 2 (h)+ − 1
    output      logits (0, y)

Only the index token is negative, so h_k = −i for all k, and x_k + h_k is an integer that is 0 at
k = i if sigma_i = 1 and nowhere else (−2i at the index, n + 2 − i >= 2 at 0-bits and the end). The
hat gives y_k = [k = i] sigma_k exactly, layer 2 adds them up, and the margin is exactly 1. Small
integers throughout: float32 is exact for n < 2^23.

Time-invariant (A constant, B linear, as the paper describes Mamba), on the embedding index -> −i,
a 1 at position k -> eps · k, a 0 and the end -> 0, with eps = 2^−ceil(log2(4 n (n + 1))):

    layer 1     A = 1, B(x) = x, phi(x, h) = hat_{1/2}(x / eps + h)
    layer 2     A = 1, B(x) = x, phi(x, h) = 3 (h)+ − 1

Now the bits disturb the state, h_k = −i + eps · (sum of the 1-positions so far), but by at most
eps n (n + 1) / 2 <= 1/8. So y_i >= 1 − 2/8 at the marked bit; elsewhere |x_k / eps + h_k| >=
1 − 1/8 > 1/2 and y = 0 exactly. (The index token itself has s = −i / eps − i.) Margin: 1 if
sigma_i = 0, at least 3 · 3/4 − 1 = 5/4 if sigma_i = 1.
"""

import math

import numpy as np

from ithbit.theory.constructions.attention_marker import marker_embedding
from ithbit.theory.gadgets import affine, constant, hat, ramp, two_step
from ithbit.theory.layers import ReluNet, Ssm, matrix
from ithbit.theory.solution import Parts, embedding_of


def _layer(B: ReluNet, phi: ReluNet) -> Ssm:
    return Ssm(A=constant([1.0], 1), B=B, phi=phi, h0=matrix([0], 1))


def selective(family: str, n_bits: int) -> Parts:
    """LHI by two SSM layers that take in negative inputs only; margin exactly 1."""
    negative_part = two_step([[-1]], [0], [[-1]], [0])
    layers = (
        _layer(negative_part, hat(1.0, (1.0, 1.0))),
        _layer(affine([[1]], [0]), ramp(2.0, -1.0, (0.0, 1.0))),
    )
    return marker_embedding("lhi", n_bits), layers, [[0], [1]]


def time_invariant(family: str, n_bits: int) -> Parts:
    """LHI by two SSM layers with constant A and linear B; margin exactly 1."""
    eps = 2.0 ** -math.ceil(math.log2(4 * n_bits * (n_bits + 1)))
    k = np.arange(1, n_bits + 1, dtype=np.float64)
    embedding = embedding_of(-k[:, None], np.stack([0 * k, eps * k], axis=1)[..., None], [0.0])
    identity = affine([[1]], [0])
    layers = (
        _layer(identity, hat(0.5, (1 / eps, 1.0))),
        _layer(identity, ramp(3.0, -1.0, (0.0, 1.0))),
    )
    return embedding, layers, [[0], [1]]
