"""Two full linear-attention layers for RHI, as sketched in the proof of Thm. 12b: weight 100 n^2.

Width 5; a token holds (key, index, found, position, bit):

    embedding   bit k -> (0, 0, 0, k, sigma_k)     index -> (c, i, 0, n + 1, 0), c = 500 n^2 − 5
    layer 1     K = key, Q = 0, V: index -> found
                N: marker m = [|position − found| <= 1/4] -> (c m, 0, 0, 0, m · sigma)
    layer 2     K = key, Q = 0, V: bit -> bit; N: 2 (bit)+ − 1 in the last coordinate
    output      logits (0, y_5)

It needs care in two places:

* The weight phi(k)·phi(q) adds up over all five coordinates, and phi(0) = 1 in each, so an ordinary
  token weighs 5. For the ratio 100 n^2 : 1 the heavy key must be c + 5 = 500 n^2. Then every token
  finds i up to i n / (100 n^2 + n) < 0.01, as the sketch says.
* The residual x + a adds a token's own coordinates. If V wrote the index where the index token
  stores it, that token would see 2i and fake a marker whenever 2i = n + 1, so some answer is wrong
  at every odd n. Hence the separate coordinate `found`.

The second layer finds the marked token in the same way: margin 1 − 2 / (100 n + 1) if sigma_i = 1,
and 1 if sigma_i = 0. The product m · sigma is (m + sigma − 1)+, a second hidden layer.
"""

import numpy as np

from ithbit.theory.gadgets import two_step, window
from ithbit.theory.layers import LinearAttention, ReluNet, matrix
from ithbit.theory.solution import Parts, embedding_of

KEY, INDEX, FOUND, POSITION, BIT = range(5)


def _copy(source: int, target: int) -> list[list[float]]:
    """The 5 × 5 matrix that moves one coordinate to another and drops the rest."""
    moved = np.zeros((5, 5))
    moved[target, source] = 1
    return list(moved)


def heavy(family: str, n_bits: int) -> Parts:
    """RHI by two full linear-attention layers with one heavy token, as sketched; margin >= 0.98."""
    key = 500.0 * n_bits**2 - 5
    k = np.arange(1, n_bits + 1, dtype=np.float64)
    bits, index = np.zeros((n_bits, 2, 5)), np.zeros((n_bits, 5))
    bits[:, :, POSITION] = k[:, None]
    bits[:, 1, BIT] = 1
    index[:, KEY], index[:, INDEX], index[:, POSITION] = key, k, n_bits + 1

    offset = np.zeros(5)
    offset[POSITION], offset[FOUND] = 1, -1
    near = window(0.25, 0.75, tuple(offset))
    bit_row = np.eye(5)[BIT][None]
    mark = ReluNet(
        weights=(
            matrix(np.concatenate([near.weights[0], bit_row])),
            matrix([[*near.weights[1][0], 0], [*near.weights[1][0], 1]]),
            matrix([[key, 0], [0, 0], [0, 0], [0, 0], [0, 1]]),
        ),
        biases=(
            matrix([*near.biases[0], 0], 1),
            matrix([0, -1], 1),
            matrix(np.zeros(5), 1),
        ),
    )
    read = two_step(list(bit_row), [0], [[0], [0], [0], [0], [2]], [0, 0, 0, 0, -1])
    K, Q = matrix(_copy(KEY, KEY)), matrix(np.zeros((5, 5)))
    layers = (
        LinearAttention(causal=False, K=K, Q=Q, V=matrix(_copy(INDEX, FOUND)), net=mark),
        LinearAttention(causal=False, K=K, Q=Q, V=matrix(_copy(BIT, BIT)), net=read),
    )
    return embedding_of(index, bits), layers, [[0] * 5, [0, 0, 0, 0, 1]]
