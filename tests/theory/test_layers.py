"""The formal layers against their definitions, written out as loops."""

from fractions import Fraction

import numpy as np
import pytest

from ithbit.errors import SpecError
from ithbit.theory.gadgets import affine, constant, hat, ramp, two_step, window
from ithbit.theory.layers import (
    LinearAttention,
    ReluNet,
    Rnn,
    SoftmaxAttention,
    Ssm,
    features,
    like,
    matrix,
)

RNG = np.random.default_rng(0)


def random_net(d_in: int, d_out: int) -> ReluNet:
    return ReluNet(
        (matrix(RNG.normal(size=(5, d_in))), matrix(RNG.normal(size=(d_out, 5)))),
        (matrix(RNG.normal(size=5), 1), matrix(RNG.normal(size=d_out), 1)),
    )


def relu_net(net, x):
    for depth, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        x = weight @ (np.maximum(x, 0) if depth else x) + bias
    return x


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["softmax", "elu+1", "relu+1"])
def test_attention_is_the_weighted_average_of_the_definition(kind, causal):
    d, length = 3, 6
    K, Q, V = (matrix(RNG.normal(size=(d, d))) for _ in range(3))
    net = random_net(d, d)
    if kind == "softmax":
        layer = SoftmaxAttention(causal, K, Q, V, net)
    else:
        layer = LinearAttention(causal, K, Q, V, net, feature=kind)
    x = RNG.normal(size=(2, length, d))
    got = layer(x)
    for batch in range(2):
        for k in range(length):
            seen = range(k + 1) if causal else range(length)
            key = [K @ x[batch, m] for m in seen]
            query = Q @ x[batch, k]
            if kind == "softmax":
                weights = [np.exp(one @ query) for one in key]
            else:
                weights = [features(kind, one) @ features(kind, query) for one in key]
            values = [V @ x[batch, m] for m in seen]
            average = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
            expected = relu_net(net, x[batch, k] + average)
            np.testing.assert_allclose(got[batch, k], expected, rtol=1e-12)
    np.testing.assert_allclose(layer(x, last=True), got[:, -1:], rtol=1e-12)
    trace = layer.trace(x)
    np.testing.assert_allclose(trace.attention.sum(axis=2), 1.0, rtol=1e-12)
    if causal:
        assert not np.triu(trace.attention[0], 1).any()


def test_full_and_causal_agree_at_the_last_token_of_one_layer():
    weights = [matrix(RNG.normal(size=(2, 2))) for _ in range(3)]
    net = random_net(2, 2)
    x = RNG.normal(size=(3, 5, 2))
    for attention in (SoftmaxAttention, LinearAttention):
        full, causal = (attention(mask, *weights, net) for mask in (False, True))
        np.testing.assert_allclose(full(x)[:, -1], causal(x)[:, -1], rtol=1e-12)


def test_ssm_and_rnn_run_their_recurrences():
    d, length = 2, 5
    A, B, phi = random_net(d, d * d), random_net(d, d), random_net(2 * d, d)
    N1, N2 = random_net(2 * d, d), random_net(2 * d, d)
    h0 = matrix([0.5, -1.0], 1)
    x = RNG.normal(size=(1, length, d))
    ssm, rnn = Ssm(A, B, phi, h0), Rnn(N1, N2)
    h, g = h0, np.zeros(d)
    for k in range(length):
        h = relu_net(A, x[0, k]).reshape(d, d) @ h + relu_net(B, x[0, k])
        g = relu_net(N1, np.concatenate([x[0, k], g]))
        np.testing.assert_allclose(ssm(x)[0, k], relu_net(phi, np.concatenate([x[0, k], h])))
        np.testing.assert_allclose(rnn(x)[0, k], relu_net(N2, np.concatenate([x[0, k], g])))
    np.testing.assert_allclose(ssm(x, last=True), ssm(x)[:, -1:])
    np.testing.assert_allclose(rnn.trace(x).states, rnn.states(x))


def test_a_slice_of_the_softmax_matrix_changes_nothing(monkeypatch):
    layer = SoftmaxAttention(True, *(matrix(RNG.normal(size=(2, 2))) for _ in range(3)), hat2())
    x = RNG.normal(size=(3, 7, 2))
    whole = layer(x)
    monkeypatch.setattr("ithbit.theory.layers.SLICE", 50)
    np.testing.assert_allclose(layer(x), whole, rtol=1e-14)


def hat2() -> ReluNet:
    return random_net(2, 2)


def test_float_types_are_kept_and_exact_arithmetic_is_exact():
    net = hat(0.5)
    assert net(np.array([[0.1]], np.float32)).dtype == np.float32
    third = np.array([[Fraction(1, 3)]], dtype=object)
    assert net(third)[0, 0] == Fraction(1, 3)
    ssm = Ssm(constant([1.0], 1), affine([[1]], [0]), ramp(1.0, 0.0, (0.0, 1.0)), matrix([0], 1))
    tokens = np.array([[[Fraction(1, 3)], [Fraction(1, 7)]]], dtype=object)
    assert ssm(tokens)[0, 1, 0] == Fraction(10, 21)
    relu = LinearAttention(
        False, *(matrix([[1]]) for _ in range(3)), affine([[1]], [0]), feature="relu+1"
    )
    assert relu(tokens)[0, 0, 0] == Fraction(1, 3) + (
        (Fraction(1, 3) * Fraction(4, 3) + Fraction(1, 7) * Fraction(8, 7))
        / (Fraction(4, 3) + Fraction(8, 7))
    )


def test_exponentials_have_no_exact_arithmetic():
    one, net = matrix([[1]]), affine([[1]], [0])
    tokens = np.array([[[Fraction(1)]]], dtype=object)
    with pytest.raises(SpecError, match="softmax needs exponentials"):
        SoftmaxAttention(False, one, one, one, net)(tokens)
    with pytest.raises(SpecError, match=r"ELU\+1 needs exponentials"):
        LinearAttention(False, one, one, one, net)(tokens)


def test_sizes_are_the_papers():
    one, net = matrix(np.eye(2)), two_step([[0, 8], [0, -8]], [0, 0], [[1, 0], [0, 1]], [0, 0])
    assert SoftmaxAttention(False, one, one, one, net).size == 12 + 12
    assert LinearAttention(False, one, one, one, net).size == 12 + 12 + 6
    assert hat(1.0).n_parameters == 10
    assert window(0.25, 0.75).n_parameters == 13
    # hat_1(x + h): x+h+1, x+h, x+h−1 (5), ReLU (3), a − 2b + c (3), output (1).
    assert hat(1.0, (1.0, 1.0)).operations == 12
    assert constant([1.0], 1).operations == 1
    assert affine([[1.0]], [0.0]).operations == 1
    # −(−x)+: negate, ReLU, negate, output.
    assert two_step([[-1]], [0], [[-1]], [0]).operations == 4


@pytest.mark.parametrize("feature", ["elu+1", "relu+1"])
def test_feature_maps_are_positive(feature):
    assert (features(feature, np.linspace(-30, 30, 201)) > 0).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ReluNet((matrix([[1, 2]]),), (matrix([0, 0], 1),)), "must chain"),
        (
            lambda: SoftmaxAttention(
                False, matrix([[1]]), matrix([[1]]), matrix(np.eye(2)), affine([[1]], [0])
            ),
            "must share one width",
        ),
        (
            lambda: LinearAttention(
                False, *(matrix([[1]]) for _ in range(3)), affine([[1]], [0]), feature="relu"
            ),
            r"must be elu\+1 or relu\+1",
        ),
        (
            lambda: Ssm(affine([[1]], [0]), hat(1.0), hat(1.0), matrix([0], 1)),
            "must map d → d²",
        ),
        (lambda: Rnn(hat(1.0), hat(1.0)), "must both map 2d → d"),
        (lambda: matrix([np.nan], 1), "finite"),
        (lambda: hat(0.0), "must be positive"),
        (lambda: window(0.5, 0.25), "0 <= inner < outer"),
    ],
)
def test_weights_that_do_not_fit_are_refused(build, message):
    with pytest.raises(SpecError, match=message):
        build()


def test_weights_are_read_only_and_converted_exactly():
    weights = matrix([[0.1]])
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1
    assert like(weights, np.zeros(1, object))[0, 0] == Fraction(0.1)
