"""The counting theorem against exact counts and against sampled sign patterns."""

import itertools
import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from ithbit.theory.architecture import architecture
from ithbit.theory.bounds.borders import excluded
from ithbit.theory.bounds.counting import (
    Stage,
    chain_exponent,
    log2_answers,
    log2_cells,
    log2_gamma,
    n_star,
)
from ithbit.theory.bounds.stages import stages


@pytest.mark.parametrize("dimension", [1, 2, 7, 100, 255, 256, 257, 300, 1000])
def test_cells_bound_the_exact_count_from_above_and_closely(dimension):
    for hyperplanes in (1, dimension, 2 * dimension, 2 * dimension + 1, 5 * dimension, 10**6):
        exact = sum(math.comb(hyperplanes, r) for r in range(dimension + 1))
        found = log2_cells(hyperplanes, dimension)
        assert math.log2(exact) - 1e-9 <= found <= math.log2(exact) + 1e-6


STAGE_LISTS = [
    (Stage("a", 3, 1),),
    (Stage("a", 60, 1),),
    (Stage("a", 4, 8), Stage("b", 4, 1)),
    (Stage("a", 5, 3, degree=2), Stage("b", 9, 1, degree=4)),
    (Stage("k", 2, 1, degree=2, implicit=6, chain=2, shared_chain=4),),
]


@pytest.mark.parametrize("stage_list", STAGE_LISTS)
@pytest.mark.parametrize("polynomial", ["bezout", "warren"])
def test_log_gamma_is_concave_so_n_star_is_a_threshold(stage_list, polynomial):
    values = [log2_answers(stage_list, n, polynomial) for n in range(600)]
    steps = [b - a for a, b in pairwise(values)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(steps))
    star = n_star(stage_list, polynomial)
    assert all(values[n] >= n - 1e-9 for n in range(star + 1))
    assert all(values[n] <= n for n in range(star + 1, 600))
    assert all(values[n] < n - 1e-6 for n in range(star + 30, 600))


@pytest.mark.parametrize("dimension", [1, 2, 10, 70, 200])
def test_ties_of_affine_tests_are_decided_exactly(dimension):
    # 2^n - 1 < 2^n at n = p + 1, which no double can tell from 2^n for p > 60.
    assert n_star((Stage("readout", dimension, 1),)) == dimension


def test_exponent_of_the_chain_by_hand():
    # p = 1, m = 3, q = 1, q0 = 2, degree 2, M = 1: Q = 3, D = E = 4.
    stage = Stage("k", 1, 1, degree=2, implicit=3, chain=1, shared_chain=2)
    by_hand = 3 + 4 * 1 + 4 * math.log2(3) + 3 * math.log2(3 + 8 + 12 - 8 + 1)
    assert chain_exponent(stage) == pytest.approx(by_hand)
    assert log2_gamma(stage, 100) == pytest.approx(by_hand + math.log2(101))
    assert stage.kind == "K"


def relu(x):
    return np.maximum(x, 0)


def mlp(rng, *widths):
    layers = [(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in pairwise(widths)]

    def net(x):
        for weight, bias in layers[:-1]:
            x = relu(x @ weight.T + bias)
        weight, bias = layers[-1]
        return x @ weight.T + bias

    return net


def patterns(decide, n_theta, theta_size, rng):
    """Distinct answer vectors over sampled fingerprints of widely different sizes."""
    theta = rng.normal(size=(n_theta, theta_size)) * 10 ** rng.uniform(-2, 2, size=(n_theta, 1))
    logit = decide(theta)
    # The readout may have a bias; one of the quartiles makes both answers occur.
    biases = np.quantile(logit, (0.25, 0.5, 0.75))
    place = 1 << np.arange(logit.shape[1])
    return max(len(np.unique((logit > bias) @ place)) for bias in biases)


def rnn_decision(rng, d, w, n, n_layers):
    nets = [(mlp(rng, 2 * d, w, d), mlp(rng, 2 * d, w, d)) for _ in range(n_layers)]
    index, readout = rng.normal(size=(n, d)) * 3, rng.normal(size=d)

    def decide(theta):
        x = np.broadcast_to(index, (len(theta), n, d))
        for layer, (first, second) in enumerate(nets):
            state = theta[:, None, layer * d : (layer + 1) * d]
            h = first(np.concatenate([x, np.broadcast_to(state, x.shape)], axis=-1))
            x = second(np.concatenate([x, h], axis=-1))
        return x @ readout

    return decide


def linear_decision(rng, d, w, n, n_layers, feature):
    matrices = [[rng.normal(size=(d, d)) for _ in "kqv"] for _ in range(n_layers)]
    nets = [mlp(rng, d, w, d) for _ in range(n_layers)]
    index, readout = rng.normal(size=(n, d)) * 3, rng.normal(size=d)

    def phi(x):
        return np.where(x > 0, 1 + x, np.exp(np.minimum(x, 0)) if feature == "elu" else 1.0)

    def decide(theta):
        x = np.broadcast_to(index, (len(theta), n, d))
        for layer, ((K, Q, V), net) in enumerate(zip(matrices, nets, strict=True)):
            part = theta[:, layer * (d * d + d) : (layer + 1) * (d * d + d)]
            S, z = part[:, : d * d].reshape(-1, d, d), np.abs(part[:, d * d :])
            key, query, value = phi(x @ K.T), phi(x @ Q.T), x @ V.T
            own = (key * query).sum(-1, keepdims=True)
            num = np.einsum("tij,tnj->tni", S, query) + value * own
            x = net(x + num / (np.einsum("tj,tnj->tn", z, query)[..., None] + own))
        return x @ readout

    return decide


def gru_decision(rng, d, n):
    W, U = rng.normal(size=(3, d, d)) * 2, rng.normal(size=(3, d, d)) * 2
    index, readout, bias = rng.normal(size=(n, d)) * 3, rng.normal(size=d), rng.normal()

    def decide(h):
        r, z = (
            1 / (1 + np.exp(-np.clip(index @ W[g].T + (h @ U[g].T)[:, None], -500, 500)))
            for g in (0, 1)
        )
        new = np.tanh(index @ W[2].T + r * (h @ U[2].T)[:, None])
        return (new + z * (h[:, None] - new)) @ readout + bias

    return decide


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("family", ["rnn", "linear-causal elu", "linear-causal relu", "gru"])
def test_sampled_sign_patterns_never_beat_the_bound(family, n_layers, seed, d):
    rng = np.random.default_rng([seed, d, n_layers])
    n, w = 12, 2
    name, _, feature = family.partition(" ")
    if name == "rnn":
        arch = architecture("rnn", n_layers=n_layers, width=d, hidden=w)
        decide, size = rnn_decision(rng, d, w, n, n_layers), n_layers * d
    elif name == "gru":
        arch = architecture("gru", "trained", n_layers=1, width=d)
        decide, size = gru_decision(rng, d, n), d
    else:
        arch = architecture(name, n_layers=n_layers, width=d, hidden=w, feature=feature)
        decide = linear_decision(rng, d, w, n, n_layers, feature)
        size = n_layers * (d * d + d)
    found = patterns(decide, 40_000, size, rng)
    assert found >= 2, "the sample must see both answers"
    for polynomial in ("bezout", "warren"):
        assert math.log2(found) <= log2_answers(stages("rhi", arch), n, polynomial) + 1e-9


def normal(x, bias):
    """LayerNorm over the last axis, gain 1."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) + bias


def attention_decision(rng, d, heads, w, n, block):
    """One layer on LHI, formal, pre-LN or BERT with ReLU; theta = beta (d), rho (one a head)."""
    alpha, gamma = rng.normal(size=(n, d)), rng.exponential(size=(n, heads))
    x, bias1, bias2, readout = rng.normal(size=(4, d))
    out, net = rng.normal(size=(d, d)), mlp(rng, d, w, d)

    def decide(theta):
        den = np.repeat(gamma + np.abs(theta[:, None, d:]), d // heads, axis=-1)
        a = (alpha + theta[:, None, :d]) / den
        if block == "formal":
            return net(x + a) @ readout
        s = x + a @ out.T
        if block == "pre-LN":
            return (s + net(normal(s, bias1))) @ readout
        s = normal(s, bias1)
        return normal(s + net(s), bias2) @ readout

    return decide


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("block", ["formal", "pre-LN", "BERT"])
def test_sampled_patterns_of_one_attention_layer_on_lhi(block, heads, seed):
    rng = np.random.default_rng([seed, heads])
    d, w, n = 2, 2, 16
    sizes = {"width": d, "heads": heads, "hidden": w}
    if block == "formal":
        arch = architecture("softmax-full", **sizes)
    else:
        family = "linear-full" if block == "pre-LN" else "softmax-full"
        arch = architecture(family, "trained", activation="relu", **sizes)
    decide = attention_decision(rng, d, heads, w, n, block)
    found = patterns(decide, 40_000, d + heads, rng)
    assert found >= 2, "the sample must see both answers"
    for polynomial in ("bezout", "warren"):
        assert math.log2(found) <= log2_answers(stages("lhi", arch), n, polynomial) + 1e-9


@pytest.mark.parametrize("transition", ["constant", "affine"])
@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("d", [1, 2])
def test_sampled_patterns_of_one_ssm_layer(task, transition, d):
    rng = np.random.default_rng(d)
    n, w = 12, 2
    x, end, readout = rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=d)
    A, B, phi = rng.normal(size=(n, d, d)), rng.normal(size=(n, d)), mlp(rng, 2 * d, w, d)
    if transition == "constant":
        A[:] = A[0]

    def decide(theta):
        if task == "rhi":
            h = np.einsum("nij,tj->tni", A, theta) + B
            seen = np.broadcast_to(x, h.shape)
        else:
            start = np.einsum("tij,nj->tni", theta[:, d:].reshape(-1, d, d), x)
            h = (x @ A[0].T if transition == "constant" else start) + theta[:, None, :d]
            seen = np.broadcast_to(end, h.shape)
        return phi(np.concatenate([seen, h], axis=-1)) @ readout

    size = d if task == "rhi" else d + d * d
    found = patterns(decide, 40_000, size, rng)
    assert found >= 2, "the sample must see both answers"
    arch = architecture("ssm", width=d, hidden=w, transition=transition)
    assert math.log2(found) <= log2_answers(stages(task, arch), n) + 1e-9


@pytest.mark.parametrize("d", [1, 2])
def test_the_affine_count_is_reached_so_sampling_can_see_a_wrong_bound(d):
    # Affine readout, theta in R^d: in general position all sum_{r<=d} C(n, r) patterns occur.
    rng = np.random.default_rng(d)
    n = 6
    normal, offset = rng.normal(size=(n, d)), rng.normal(size=n)
    found = patterns(lambda theta: theta @ normal.T + offset, 200_000, d, rng)
    assert found == sum(math.comb(n, r) for r in range(d + 1))


def outcomes_on_a_line(tests):
    """Every vector of 1[f > 0] that occurs on the line; tests are (factor, roots), exact."""
    roots = sorted({root for _, zeros in tests for root in zeros})
    between = [(a + b) / 2 for a, b in pairwise(roots)]
    points = [roots[0] - 1, *roots, *between, roots[-1] + 1]
    found = {}
    for theta in points:
        values = tuple(factor * math.prod(theta - r for r in zeros) for factor, zeros in tests)
        found.setdefault(tuple(value > 0 for value in values), values)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_degenerate_tests_stay_below_the_bound(seed):
    """Equal, opposite, touching and multiple zeros: what a shift by one epsilon does not undo."""
    rng = random.Random(seed)
    degree, n = rng.choice([1, 2, 3, 4]), rng.randint(2, 8)
    spots = [Fraction(rng.randint(-3, 3)) for _ in range(rng.randint(1, 4))]
    tests = [(rng.choice([-1, 1]), [rng.choice(spots) for _ in range(degree)]) for _ in range(n)]
    tests[1] = tests[0] if seed % 2 else (-tests[0][0], tests[0][1])
    found = outcomes_on_a_line(tests)
    for polynomial in ("bezout", "warren"):
        stage = Stage("a", parameters=1, tests=1, degree=degree)
        assert math.log2(len(found)) <= log2_gamma(stage, n, polynomial) + 1e-9
    # The step of the proof: each test has an epsilon of its own below its positive values. No
    # outcome changes, no value is 0, and the zeros of all tests together bound the outcomes.
    kept = list(found.values())
    least = [min((v[j] for v in kept if v[j] > 0), default=Fraction(1)) for j in range(n)]
    eps = [least[j] * Fraction(rng.randint(1, 10**9), 10**9 + 7) for j in range(n)]
    for outcome, values in found.items():
        shifted = [value - e for value, e in zip(values, eps, strict=True)]
        assert tuple(value > 0 for value in shifted) == outcome
        assert 0 not in shifted
    cells = 1 + sum(
        _zeros_above(factor, zeros, e) for (factor, zeros), e in zip(tests, eps, strict=True)
    )
    assert len(found) <= cells <= 1 + n * degree


def _zeros_above(factor, zeros, eps):
    """How many real solutions factor prod (theta - r) = eps has, counted by numpy."""
    found = np.roots(factor * np.poly([float(r) for r in zeros]) - np.eye(len(zeros) + 1)[-1] * eps)
    return int((abs(found.imag) < 1e-7).sum())


def test_ties_under_square_roots_do_not_change_a_strict_answer():
    """Whole numbers, so that A = ±B r and A = ±c sqrt(W) occur: 1[f > 0] is enough all the same."""

    def one_root(first, second, v):
        square = first**2 - second**2 * v > 0
        return (first > 0 or not square) if second > 0 else (first > 0 and square)

    small = range(-3, 4)
    for A, B, r in itertools.product(small, small, (1, 2)):
        if A + B * r:
            assert (A + B * r > 0) == one_root(A, B, r * r)
    ties = 0
    for b, c2, c1, t0, t1, r in itertools.product(small, small, small, small, small, (1, 2)):
        # W = (t0 + t1 r)^2 + 3 v: a square for many of these.
        v, q2, q1, q0 = r * r, t0**2, 2 * t0 * t1, t1**2 + 3
        root = math.isqrt(W := q2 + q1 * r + q0 * v)
        if root * root != W or not (logit := b + c2 * r + c1 * root):
            continue
        X, Y = b**2 + c2**2 * v - c1**2 * (q2 + q0 * v), 2 * b * c2 - c1**2 * q1
        first, square = one_root(b, c2, v), one_root(X, Y, v)
        assert (logit > 0) == ((first or not square) if c1 > 0 else (first and square))
        ties += 0 in (b + c2 * r, X + Y * r, X, Y, X * X - Y * Y * v)
    assert ties > 500


def test_signs_under_square_roots_follow_from_the_tests_that_are_counted():
    """Three tests decide A + B r, five decide A + c sqrt(W), with r = sqrt(v)."""
    rng = np.random.default_rng(0)
    size = 200_000
    A, B, b, c2, c1, t0, t1 = rng.normal(size=(7, size))
    v = rng.exponential(size=size)
    r = np.sqrt(v)

    def one_root(first, second, v):
        """Sign of first + second sqrt(v) from the signs of three polynomials."""
        square = first**2 - second**2 * v > 0
        return np.where(second > 0, (first > 0) | ~square, (first > 0) & square)

    assert ((A + B * r > 0) == one_root(A, B, v)).mean() == 1
    # W = (t0 + t1 r)^2 + v is a variance as the second normalisation meets it, times v.
    q2, q1, q0 = t0**2, 2 * t0 * t1, t1**2 + 1
    W = q2 + q1 * r + q0 * v
    X, Y = b**2 + c2**2 * v - c1**2 * (q2 + q0 * v), 2 * b * c2 - c1**2 * q1
    first = one_root(b, c2, v)  # sign of A = b + c2 r, c2 a constant
    square = one_root(X, Y, v)  # sign of A^2 - c1^2 W = X + Y r
    five = np.where(c1 > 0, first | ~square, first & square)
    assert ((b + c2 * r + c1 * np.sqrt(W) > 0) == five).mean() == 1


def test_a_border_past_what_doubles_can_tell_is_exact():
    found = stages("rhi", architecture("linear-causal", n_layers=40, width=10**6))
    border = n_star(found)
    assert border > 1 << 60
    assert excluded(found, border + 1, "bezout")
    assert not excluded(found, border, "bezout")
