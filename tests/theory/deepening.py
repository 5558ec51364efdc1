"""Identity layers on top of a solution: what solves a task in k layers does so in more. Verdicts
count the hidden units of such layers; this builds them."""

from dataclasses import replace

import numpy as np

from ithbit.theory.gadgets import constant, two_step
from ithbit.theory.layers import (
    FloatArray,
    LinearAttention,
    ReluNet,
    Rnn,
    SoftmaxAttention,
    Ssm,
    matrix,
)
from ithbit.theory.solution import Layer, Solution


def deepened(solution: Solution, n_layers: int) -> Solution:
    """The same solution with identity layers on top, so that it has `n_layers` layers.

    *Exact*: an identity layer gives its input back in real arithmetic, so the margin on every input
    is unchanged. Attention takes V = 0, an SSM or RNN ignores its state; the MLP is x = x+ − (−x)+.
    """
    extra = n_layers - solution.depth
    assert extra >= 0
    if not extra:
        return solution
    top = _identity_layer(solution.layers[-1])
    layers, variant = solution.layers + (top,) * extra, f"{solution.variant}, deepened"
    return replace(solution, layers=layers, variant=variant)


def _identity_layer(like: Layer) -> Layer:
    d = like.d_out
    eye, zero = np.eye(d), matrix(np.zeros((d, d)))
    own = _identity_net(eye)
    if isinstance(like, SoftmaxAttention):
        return SoftmaxAttention(like.causal, zero, zero, zero, own)
    if isinstance(like, LinearAttention):
        return LinearAttention(like.causal, zero, zero, zero, own, like.feature)
    read = _identity_net(np.hstack([eye, 0 * eye]))  # reads x and not h
    if isinstance(like, Ssm):
        return Ssm(constant([0.0] * d**2, d), constant([0.0] * d, d), read, matrix([0.0] * d, 1))
    assert isinstance(like, Rnn)
    return Rnn(constant([0.0] * d, 2 * d), read)


def _identity_net(pick: FloatArray) -> ReluNet:
    """x+ − (−x)+ of the coordinates that `pick` selects; two hidden units each."""
    d = len(pick)
    eye = np.eye(d)
    inner, outer = np.vstack([pick, -pick]), np.hstack([eye, -eye])
    return two_step(inner.tolist(), [0.0] * (2 * d), outer.tolist(), [0.0] * d)
