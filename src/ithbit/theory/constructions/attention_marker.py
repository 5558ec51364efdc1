"""Two attention layers of width 1: softmax LHI, linear LHI (Thm. 14c) and full linear RHI (12b).

One recipe serves full and causal softmax and full and causal linear attention. With T tokens:

    embedding   index -> −i     bit k -> k if sigma_k = 1 else n + 2     end -> n + 2
    layer 1     K = −3, V = 1, Q = 1 (softmax) or 0 (linear), N(s) = hat_{1/2}(s)
    layer 2     K = Q = 0, V = 1 (the plain mean),            N(s) = 3 T (s)+ − 1
    output      logits (0, y)

Layer 1 brings the index to every token. With r = e^{−3}, token l has weight at most r^{i + x_l}
(softmax, query x_k >= 1) or r^{x_l} / (1 + 3i) (linear, ELU + 1) relative to the index token, and
its value is off by i + x_l. The 1-bits sit at distinct x_l = l, all others at n + 2, so
a_k = −i + e,

    softmax   0 <= e <= sum_{t > i} t r^t + (n + 1)(n + 2 + i) r^{n + 2 + i}               < 0.00541
    linear    0 <= e <= (sum_l (i + l) r^l + (n + 1)(n + 2 + i) r^{n + 2}) / (1 + 3i)      < 0.02714

for all n and i at once; masks and RHI only remove terms. Then s_k = x_k + a_k is in [0, e] at the
token k = i if sigma_i = 1, at distance >= 1 − e from 0 at every other 1-bit, and >= 2 at 0-bits and
end. The index token itself has s = −2i + e' (or, in full softmax, n + 2 − i − e', as it attends
to the end). So the hat is in [1 − 2e, 1] at the marked bit and *exactly* 0 elsewhere.

Layer 2 reads y_last = 0 plus the mean sigma_i y_i / T, and its MLP gives 3 sigma_i y_i − 1: the
margin is 1 if sigma_i = 0 and at least 2 − 6e > 1 if sigma_i = 1, for every n.

The large marker and the second focused attention of the paper's sketch are not needed: the markers
are exactly zero elsewhere, and the mean is enough. The linear layer has Q = 0 rather than 1: in
width 1 the query's factor phi(Q x_k) cancels, but e^{−i} underflows to 0/0 in float32 from n ~ 100.
"""

import numpy as np

from ithbit.families import Task
from ithbit.tasks.indexing import n_tokens
from ithbit.theory.gadgets import hat, ramp
from ithbit.theory.layers import LinearAttention, SoftmaxAttention, matrix
from ithbit.theory.solution import Embedding, Parts, embedding_of


def marker_embedding(task: Task, n_bits: int) -> Embedding:
    """index -> −i, a 1 at position k -> k, a 0 and the end -> n + 2; in R^1.

    >>> marker_embedding("lhi", 2).bit[..., 0].tolist()
    [[4.0, 1.0], [4.0, 2.0]]
    """
    position = np.arange(1, n_bits + 1, dtype=np.float64)
    far = np.full(n_bits, n_bits + 2.0)
    bits = np.stack([far, position], axis=1)[..., None]
    return embedding_of(-position[:, None], bits, None if task == "rhi" else [n_bits + 2.0])


def marker(task: Task, family: str, n_bits: int) -> Parts:
    """LHI by two attention layers, softmax or linear, full or causal (Thm. 14c), or RHI by two full
    linear ones (Thm. 12b); margin >= 1."""
    kind, _, mask = family.partition("-")
    causal, zero, one = mask == "causal", matrix([[0]]), matrix([[1]])
    find, read = hat(0.5), ramp(3.0 * n_tokens(task, n_bits), -1.0)
    layer, query = (SoftmaxAttention, one) if kind == "softmax" else (LinearAttention, zero)
    layers = (
        layer(causal, K=matrix([[-3]]), Q=query, V=one, net=find),
        layer(causal, K=zero, Q=zero, V=one, net=read),
    )
    return marker_embedding(task, n_bits), layers, [[0], [1]]
