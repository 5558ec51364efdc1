"""Identity layers on top of a solution, and wider layers: what solves a task in k layers does so in
more and in wider ones. Verdicts count the hidden units of such layers; this builds them."""

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
from ithbit.theory.solution import Embedding, Layer, Solution


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


def widened(solution: Solution, width: int) -> Solution:
    """The same solution in layers of this width: other coordinates are 0, and linear attention of
    width 1 repeats its key in all of them, which multiplies all weights alike. *Exact*."""
    table, d = solution.embedding, solution.width
    padded = [
        None if rows is None else _padded(rows, (*rows.shape[:-1], width))
        for rows in (table.index, table.bit, table.end)
    ]
    return replace(
        solution,
        layers=tuple(_wider(layer, d, width) for layer in solution.layers),
        embedding=Embedding(*padded),
        output=_padded(solution.output, (2, width)),
    )


def _padded(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    wide = np.zeros(shape)
    wide[tuple(slice(size) for size in values.shape)] = values
    return wide


def _wider(layer: Layer, d: int, width: int) -> Layer:
    if isinstance(layer, SoftmaxAttention | LinearAttention):
        K, Q, V = (_padded(w, (width, width)) for w in (layer.K, layer.Q, layer.V))
        if isinstance(layer, LinearAttention):
            assert d == 1
            K[:, 0] = layer.K[0, 0]
        return replace(layer, K=K, Q=Q, V=V, net=_wider_net(layer.net, d, width))
    if isinstance(layer, Ssm):
        decay = np.zeros((width, width))
        decay[:d, :d] = layer.A(np.zeros((1, d)))[0].reshape(d, d)
        return Ssm(
            constant(decay.ravel().tolist(), width),
            _wider_net(layer.B, d, width),
            _wider_net(layer.phi, d, width),
            _padded(layer.h0, (width,)),
        )
    assert isinstance(layer, Rnn)
    return Rnn(_wider_net(layer.N1, d, width), _wider_net(layer.N2, d, width))


def _wider_net(net: ReluNet, d: int, width: int) -> ReluNet:
    """Reads the first d of each `width` inputs, writes the first d of `width` outputs."""
    first = net.weights[0].reshape(len(net.weights[0]), -1, d)
    first = _padded(first, (*first.shape[:2], width)).reshape(len(first), -1)
    weights, biases = [first, *net.weights[1:]], list(net.biases)
    weights[-1] = _padded(weights[-1], (width, weights[-1].shape[1]))
    biases[-1] = _padded(biases[-1], (width,))
    return ReluNet(tuple(weights), tuple(biases))
