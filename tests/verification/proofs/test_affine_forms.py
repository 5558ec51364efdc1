"""Forms contain what they stand for: sampled, at corners, at points, and against arb balls."""

import numpy as np
import pytest
from flint import arb, ctx

from ithbit.verification.proofs.affine_forms import (
    Form,
    add,
    gelu,
    gelu_off,
    gelu_value,
    layer_norm,
    linear,
    with_own,
)

D, S, NODES = 6, 4, 40


def form(rng, size=1.0, symbols=S) -> Form:
    """Nodes of very different sizes, some of them with a constant or tiny vector."""
    scale = size * 10.0 ** rng.uniform(-3, 0.5, (NODES, 1, 1))
    c = rng.normal(size=(NODES, D))
    c[0], c[1] = 1.0, 1e-7 * c[1]
    return Form(c, rng.normal(size=(NODES, D, symbols)) * scale, np.zeros((NODES, D)))


def contained(given: Form, out: Form, function, rng, tries=200) -> float:
    """The least room left when inputs of `given` are mapped; the first symbols are shared."""
    k, room = given.G.shape[-1], np.inf
    for attempt in range(tries):
        eps = rng.uniform(-1, 1, (NODES, k, 1))
        if attempt % 2:
            eps = np.sign(eps)  # corners
        x = given.c + (given.G @ eps)[..., 0] + given.e * rng.uniform(-1, 1, given.e.shape)
        far = np.abs(function(x) - out.c - (out.G[..., :k] @ eps)[..., 0])
        reach = np.abs(out.G[..., k:]).sum(-1) + out.e
        room = min(room, ((reach - far) / (1e-12 + np.abs(out.c) + reach)).min())
    return room


def norm(x, gain, bias, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain + bias


def exact_gelu(x: float) -> arb:
    return arb(x) * (1 + (arb(x) / arb(2).sqrt()).erf()) / 2


def test_sums_and_products_contain_the_truth_up_to_their_rounding(rng) -> None:
    x, weight, bias = form(rng), rng.normal(size=(9, D)), rng.normal(size=9)
    y = linear(x, weight, bias)
    assert contained(x, y, lambda v: v @ weight.T + bias, rng) > -1e-13
    assert (y.e < 1e-11).all()
    z = add(x, linear(with_own(x, np.full((NODES, D), 0.5)), np.eye(D)))
    assert contained(x, z, lambda v: 2 * v + 0.5 * np.sign(rng.normal(size=v.shape)), rng) > -1e-13


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 30.0])
def test_layer_norms_cannot_be_beaten(rng, size) -> None:
    x, gain, bias = form(rng, size), rng.normal(size=D), rng.normal(size=D)
    y = layer_norm(x, gain, bias, 1e-12)
    assert contained(x, y, lambda v: norm(v, gain, bias, 1e-12), rng) > -1e-9


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 30.0])
def test_gelus_cannot_be_beaten(rng, size) -> None:
    x = form(rng, size)

    def function(v):
        return np.vectorize(lambda t: float(exact_gelu(t).mid()))(v)

    assert contained(x, gelu(x), function, rng, tries=8) > -1e-9


def test_norms_and_gelus_are_tight_at_points_and_where_little_moves(rng) -> None:
    point = form(rng, symbols=0)
    for function in (gelu, lambda x: layer_norm(x, np.ones(D), np.zeros(D), 1e-5)):
        low, high = function(point).bounds()
        assert (high - low < 1e-8).all()
    small = form(rng, 1e-5)
    low, high = layer_norm(small, np.ones(D), np.zeros(D), 1e-5).bounds()
    seen = norm(small.c + (small.G @ np.sign(rng.normal(size=(NODES, S, 1))))[..., 0], 1, 0, 1e-5)
    assert np.median(high - low) < 30 * np.median(np.abs(seen - norm(small.c, 1, 0, 1e-5)))


def test_points_of_norms_lie_within_rounding_of_balls(rng) -> None:
    """Cancellation included: a large common part, which the norm takes away."""
    x = Form(rng.normal(size=(NODES, D)) + 1e6, np.zeros((NODES, D, 0)), np.zeros((NODES, D)))
    low, high = layer_norm(x, np.ones(D), np.zeros(D), 1e-12).bounds()
    with ctx.workprec(200):
        for row, a, b in zip(x.c, low, high, strict=True):
            mean = sum(map(arb, row), arb(0)) / D
            square = sum(((arb(v) - mean) ** 2 for v in row), arb(0)) / D
            for v, least, most in zip(row, a, b, strict=True):
                true = (arb(v) - mean) / (square + arb(1e-12)).sqrt()
                assert bool(arb(least) <= true)
                assert bool(true <= arb(most))
    assert (high - low).max() < 1e-5


def test_gelu_points_lie_within_what_they_may_be_off(rng) -> None:
    x = np.concatenate([rng.uniform(-9, 9, 400), [0, 8, -8, 8.0001, -40, 700, 1e-300, 1 / 256]])
    value = gelu_value(x)
    off = gelu_off(np.abs(value))
    assert off.max() < 1e-9 or (off / np.maximum(1, np.abs(x))).max() < 1e-10
    with ctx.workprec(200):
        for at, v, o in zip(x, value, off, strict=True):
            assert bool(abs(arb(v) - exact_gelu(at)) <= arb(o))
