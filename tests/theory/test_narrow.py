"""Bounds at width 1 and 2: their algebra, samples that stay below, weights that come near."""

from collections import defaultdict
from math import comb

import numpy as np
import pytest
from experiments.gray_code import gray_rnn, gray_ssm

from ithbit.theory.architecture import architecture
from ithbit.theory.bounds import bound
from ithbit.theory.bounds.narrow import GRU_SIGN_CHANGES, narrow
from ithbit.theory.layers import sigmoid
from ithbit.theory.precision import smallest_margin
from ithbit.theory.verdicts import hidden_units

Polynomial = dict[tuple[int, int, int], float]  # exponents of h, X, E


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = defaultdict(float)
    for (i, j, k), x in a.items():
        for (p, q, r), y in b.items():
            out[i + p, j + q, k + r] += x * y
    return dict(out)


def plus(a: Polynomial, b: Polynomial, factor: float = 1.0) -> Polynomial:
    out = defaultdict(float, a)
    for key, value in b.items():
        out[key] += factor * value
    return dict(out)


def derivative(a: Polynomial, uz: float, ur: float) -> Polynomial:
    """By h, where X' = u_z X and E' = −u_r E."""
    out: Polynomial = defaultdict(float)
    for (i, j, k), x in a.items():
        if i:
            out[i - 1, j, k] += i * x
        out[i, j, k] += (j * uz - k * ur) * x
    return dict(out)


def test_the_exponential_polynomial_has_the_stated_degrees():
    c, uz, ur, u, b = 0.3, 0.7, 1.3, -1.9, 0.6
    one, h, X, E = {(0, 0, 0): 1.0}, {(1, 0, 0): 1.0}, {(0, 1, 0): 1.0}, {(0, 0, 1): 1.0}
    G = plus({(0, 0, 0): c}, times(plus({(0, 0, 0): c}, h, -1.0), X))
    bottom = plus(one, E)
    top = plus(times({(0, 0, 0): u}, h), {(0, 0, 0): b})
    # (1 + E)^2 A' = top' (1 + E) − top E'
    slope = plus(times(derivative(top, uz, ur), bottom), times(top, derivative(E, uz, ur)), -1.0)
    P = plus(
        times(derivative(G, uz, ur), times(bottom, bottom)),
        times(plus(one, times(G, G), -1.0), slope),
        -1.0,
    )
    degrees: dict[tuple[int, int], int] = {}
    for (i, j, k), value in P.items():
        if abs(value) > 1e-12:
            degrees[j, k] = max(degrees.get((j, k), 0), i)
    stated = {(0, 0): 0, (0, 1): 1, (1, 0): 1, (1, 1): 2, (1, 2): 1, (2, 0): 2, (2, 1): 3}
    assert degrees == stated
    assert sum(degree + 1 for degree in stated.values()) - 1 + 1 == GRU_SIGN_CHANGES


def test_a_gru_of_width_one_turns_no_more_often_than_proved():
    rng = np.random.default_rng(0)
    h, most = np.linspace(-60, 60, 20_001), 0
    for _ in range(300):
        ar, az, alpha, b = rng.normal(size=4) * 4
        ur, uz, u = rng.normal(size=3) * rng.choice([1, 5])
        r, z = sigmoid(ar + ur * h), sigmoid(az + uz * h)
        n = np.tanh(alpha + r * (u * h + b))
        signs = np.sign((1 - z) * n + z * h - rng.uniform(-1, 1))
        most = max(most, int((signs[1:] != signs[:-1]).sum()))
    assert 3 <= most <= GRU_SIGN_CHANGES


@pytest.mark.parametrize(
    ("task", "family", "sizes", "number"),
    [
        ("rhi", "gru", {"model": "trained", "width": 1}, 6),
        ("rhi", "gru", {"model": "trained", "width": 2}, 80),
        ("rhi", "rnn", {"width": 1}, 16),
        ("rhi", "rnn", {"width": 1, "hidden": 0}, 1),
        ("rhi", "ssm", {"width": 1}, 9),
        ("rhi", "ssm", {"width": 1, "hidden": 8}, 5),
        ("rhi", "linear-causal", {"width": 1, "hidden": 0}, 2),
        ("lhi", "softmax-full", {"width": 1}, 19),
        ("rhi", "mamba2", {"model": "trained", "width": 1, "heads": 1, "state": 1}, 3),
        ("rhi", "mamba2", {"model": "trained", "width": 1, "heads": 1, "state": 5}, 7),
        ("lhi", "softmax-full", {"model": "trained", "width": 1, "heads": 1, "n_layers": 4}, 0),
        ("rhi", "linear-causal", {"model": "trained", "width": 1, "heads": 1}, 0),
    ],
)
def test_n_star_at_small_width(task, family, sizes, number):
    assert bound(task, architecture(family, **sizes)).n_star == number


def test_n_star_is_a_threshold():
    for arch in (
        architecture("gru", "trained", width=1),
        architecture("gru", "trained", width=2),
        architecture("ssm", width=1),
        architecture("linear-causal", width=1),
        architecture("mamba2", "trained", width=1, heads=1, state=1),
        architecture("mamba2", "trained", width=1, heads=1, state=30),
    ):
        found = narrow("rhi", arch)
        assert 1 << found.n_star <= found.answers(found.n_star)
        for n in range(found.n_star + 1, found.n_star + 300):
            assert 1 << n > found.answers(n)


def test_wider_or_deeper_layers_are_left_to_other_routes():
    assert narrow("rhi", architecture("gru", "trained", width=3)) is None
    assert narrow("rhi", architecture("gru", "trained", width=1, n_layers=2)) is None
    assert narrow("rhi", architecture("softmax-full", width=1)) is None
    assert narrow("lhi", architecture("rnn", width=1)) is None


def test_the_count_for_two_units_is_the_one_in_the_head():
    found = narrow("rhi", architecture("gru", "trained", width=2))
    pair, single = 2**36 * 17**8, 2**15 * 112 * 16**6
    assert found.answers(3) == 1 + 3 * single + comb(3, 2) * pair


@pytest.mark.parametrize("build", [gray_ssm, gray_rnn])
def test_gray_code_weights_are_right_on_all_inputs(build):
    for n in range(1, 6):
        solution = build(n)
        assert smallest_margin(solution, object) >= 1  # rationals: exact
        w = hidden_units(solution)
        assert n <= bound("rhi", architecture(solution.family, width=1, hidden=w)).n_star
    assert smallest_margin(build(7)) > 0
    assert hidden_units(build(7)) == 64
