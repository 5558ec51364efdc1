"""Certificates: what they promise at every size, and that they refuse weights that are wrong."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flint import arb, ctx

from ithbit.errors import SpecError
from ithbit.theory.certificate import METHODS, certify, find_worst
from ithbit.theory.certifiers.every_n import (
    every_n,
    linear_deviation,
    parabola_deviation,
    softmax_deviation,
)
from ithbit.theory.certifiers.exact import exact
from ithbit.theory.certifiers.marker import approach_of
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.gadgets import hat, ramp
from ithbit.theory.layers import matrix
from ithbit.theory.precision import smallest_margin
from ithbit.theory.solution import Solution

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]
LINEAR_TIME = [entry for entry in ENTRIES if entry[2] not in ("heavy", "latch", "cosine")]


def least_margin(variant: str, n: int) -> float:
    return {"parabola": 1.997918, "scalar": n + 4, "cosine": 0.46, "heavy": 0.98}.get(
        variant, 1.0 if variant != "latch" else 0.999999
    )


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_certificates_agree_with_enumeration(task, family, variant):
    for n in (1, 2, 5, 8):
        solution = construct(task, family, n, variant)
        certificate, truth = certify(solution), smallest_margin(solution)
        assert certificate.certified
        assert certificate.inputs == n * 2**n
        assert truth - 1e-7 <= certificate.margin <= truth + 1e-12
        assert certificate.margin <= certificate.worst.margin + 1e-12


# The heavy sketch takes n^3 steps in width 5; it is certified at n = 32 with the generic certifier.
@pytest.mark.parametrize(
    ("task", "family", "variant"), [entry for entry in ENTRIES if entry[2] != "heavy"]
)
def test_sixty_four_bits(task, family, variant):
    certificate = certify(construct(task, family, 64, variant))
    assert certificate.margin >= least_margin(variant, 64)
    assert certificate.inputs == 64 << 64


@pytest.mark.parametrize(("task", "family", "variant"), LINEAR_TIME)
def test_long_strings(task, family, variant):
    n = 2048
    certificate = certify(construct(task, family, n, variant))
    assert certificate.margin >= least_margin(variant, n)
    assert certificate.inputs == n << n
    assert len(certificate.worst.bits) == n
    assert certificate.worst.margin == pytest.approx(certificate.margin, abs=1e-6)


def test_the_generic_argument_agrees_with_the_linear_time_ones():
    for task, family, variant in LINEAR_TIME:
        solution = construct(task, family, 9, variant)
        special, generic = certify(solution), certify(solution, "boxes")
        assert generic.method == "boxes"
        assert generic.margin == pytest.approx(special.margin, rel=1e-9)


def test_deviations_stay_below_the_constants_for_every_n():
    assert softmax_deviation() == pytest.approx(0.005404, abs=1e-6)
    assert linear_deviation() == pytest.approx(0.027131, abs=1e-6)
    assert parabola_deviation() == pytest.approx(0.017629, abs=1e-6)
    for n in (1, 2, 3, 10, 500):
        for family, most in (
            ("softmax-full", softmax_deviation()),
            ("softmax-causal", softmax_deviation()),
            ("linear-full", linear_deviation()),
            ("linear-causal", linear_deviation()),
        ):
            spread = approach_of(construct("lhi", family, n)).spread
            assert max(high - low for low, high in spread) <= exact(most)


def test_the_closed_forms_are_what_certificates_find():
    for task, family, variant in ENTRIES:
        always = every_n(variant, family)
        if always is None:
            assert variant in ("cosine", "heavy", "latch")
            continue
        for n in (1, 6):
            promised = n + 4 if always.margin == "n + 4" else float(always.margin)
            assert certify(construct(task, family, n, variant)).margin >= promised


def closed_form_deviation(family: str, n: int, i: int) -> float:
    """The bound of a_k + i printed beside the weights, summed up term by term."""
    r = math.exp(-3)
    if family.startswith("softmax"):
        near = sum(t * r**t for t in range(i + 1, i + n + 1))
        return near + (n + 1) * (n + 2 + i) * r ** (n + 2 + i)
    near = sum((i + k) * r**k for k in range(1, n + 1))
    return (near + (n + 1) * (n + 2 + i) * r ** (n + 2)) / (1 + 3 * i)


@pytest.mark.parametrize("family", ["softmax-full", "linear-causal"])
def test_the_closed_form_bounds_the_error_of_every_token(family):
    n = 6
    solution = construct("lhi", family, n)
    for i in range(1, n + 1):
        largest = 0.0
        for number in range(2**n):
            bits = [(number >> k) & 1 for k in range(n)]
            x, traces = solution.trace(bits, i)
            found = (traces[0].attention[0] @ x[0])[1:, 0] + i
            assert found.min() >= -1e-12
            largest = max(largest, float(found.max()))
        assert largest <= closed_form_deviation(family, n, i)


def test_softmax_that_is_too_weak_is_refused():
    good = construct("rhi", "softmax-full", 6)
    weak = replace(good.layers[0], Q=matrix([[0, -2], [2, 0]]))
    certificate = certify(replace(good, layers=(weak,)))
    assert not certificate.certified
    assert certificate.margin == pytest.approx(-3.8956, abs=1e-3)
    assert certificate.worst.margin < 0


def test_a_hat_that_is_too_wide_is_refused():
    good = construct("lhi", "softmax-causal", 8)
    wide = replace(good, layers=(replace(good.layers[0], net=hat(1.5)), good.layers[1]))
    certificate = certify(wide)
    assert not certificate.certified
    assert certificate.margin < -0.9
    assert certificate.method == "boxes"
    assert certificate.refused[0].startswith("marker: with index 1, position 2 holding 1 may be")


def test_a_layer_that_adds_without_marks_is_refused():
    good = construct("lhi", "ssm", 6)
    biased = replace(good.layers[1], B=ramp(1.0, 0.25))
    certificate = certify(replace(good, layers=(good.layers[0], biased)))
    assert not certificate.certified
    assert "adds something for tokens without a mark" in certificate.refused[0]


def test_marker_and_boxes_agree_on_weights_that_are_merely_different():
    """Weights changed within the marker argument's form: both bounds hold, and mostly agree."""
    rng = np.random.default_rng(3)
    agreed = 0
    for _ in range(40):
        family = ("softmax-full", "softmax-causal", "linear-full", "linear-causal")[rng.integers(4)]
        n = int(rng.integers(1, 6))
        good = construct("lhi", family, n)
        first = replace(
            good.layers[0],
            K=matrix([[-rng.uniform(0.8, 4)]]),
            V=matrix([[1 + rng.normal() * 0.03]]),
            net=hat(float(rng.uniform(0.3, 0.8))),
        )
        second = replace(
            good.layers[1], net=ramp(rng.uniform(1, 4) * (n + 2), -rng.uniform(0.5, 2))
        )
        solution = replace(good, layers=(first, second))
        truth = smallest_margin(solution)
        for method in ("marker", "boxes"):
            try:
                bound = certify(solution, method).margin
            except SpecError:  # the marker argument's hypotheses fail; boxes always apply
                assert method == "marker"
                continue
            assert bound <= truth + 1e-9
            agreed += method == "marker" and bound > truth - 0.2
    assert agreed >= 15


def test_an_rnn_whose_state_is_moved_by_other_tokens_is_refused():
    good = construct("lhi", "rnn", 5)
    layer = good.layers[0]
    bad_weight = np.array(layer.N1.weights[1])
    bad_weight[0, 3] += 1.0
    moved = replace(layer.N1, weights=(layer.N1.weights[0], matrix(bad_weight)))
    certificate = certify(replace(good, layers=(replace(layer, N1=moved),)))
    assert certificate.method == "boxes"
    assert "moves the state" in certificate.refused[1]
    truth = smallest_margin(replace(good, layers=(replace(layer, N1=moved),)))
    assert certificate.margin <= truth


def test_methods_can_be_asked_for_by_name_and_say_why_they_do_not_apply():
    solution = construct("rhi", "softmax-full", 4)
    with pytest.raises(SpecError, match="two layers of width 1"):
        certify(solution, "marker")
    with pytest.raises(SpecError, match="one RNN layer and LHI"):
        certify(solution, "fixed states")
    with pytest.raises(SpecError, match="unknown method 'luck'; choose one of marker"):
        certify(solution, "luck")
    with pytest.raises(SpecError, match=r"offered up to n = 160.*take a shorter n"):
        certify(construct("rhi", "linear-full", 200, "heavy"))
    formal = [name for name, method in METHODS.items() if method.of is Solution]
    assert formal == ["marker", "fixed states", "boxes"]


def test_the_worst_input_found_has_the_asked_index_and_answer():
    for answer in (0, 1):
        worst = find_worst(construct("rhi", "softmax-full", 7), 3, answer)
        assert (worst.index, worst.bits[2]) == (3, str(answer))


def test_arithmetic_is_named_for_what_it_was():
    assert certify(construct("lhi", "ssm", 4)).arithmetic == "exact rationals"
    assert certify(construct("lhi", "rnn", 4)).arithmetic == "exact rationals"
    assert "arb balls" in certify(construct("lhi", "softmax-full", 4)).arithmetic
    assert "rounded outward" in certify(construct("rhi", "softmax-full", 4)).arithmetic


def margin_in_balls(solution, bits, index):
    """The margin of a one-layer softmax solution on one input, evaluated in 200-bit balls."""
    layer = solution.layers[0]
    x = solution.embedding(np.array([bits]), np.array([index]))[0]
    d = x.shape[1]

    def times(weight, vector):
        return [
            sum((arb(float(w)) * v for w, v in zip(row, vector, strict=True)), arb(0))
            for row in weight
        ]

    tokens = [[arb(float(value)) for value in row] for row in x]
    query = times(layer.Q, tokens[-1])
    keys = [times(layer.K, token) for token in tokens]
    values = [times(layer.V, token) for token in tokens]
    weights = [sum((a * b for a, b in zip(key, query, strict=True)), arb(0)).exp() for key in keys]
    pairs = list(zip(weights, values, strict=True))
    y = [tokens[-1][c] + sum(w * v[c] for w, v in pairs) / sum(weights) for c in range(d)]
    for depth, (weight, bias) in enumerate(zip(layer.net.weights, layer.net.biases, strict=True)):
        y = [value.max(arb(0)) for value in y] if depth else y
        y = [a + arb(float(b)) for a, b in zip(times(weight, y), bias, strict=True)]
    alpha = times(solution.output, y)
    return alpha[bits[index - 1]] - alpha[1 - bits[index - 1]]


@pytest.mark.parametrize("variant", ["parabola", "cosine"])
def test_one_softmax_layer_against_balls_on_every_input(variant):
    solution = construct("rhi", "softmax-full", 4, variant)
    certificate = certify(solution)
    with ctx.workprec(200):
        margins = [
            margin_in_balls(solution, bits, index)
            for bits in product((0, 1), repeat=4)
            for index in range(1, 5)
        ]
        assert all(margin > arb(certificate.margin) for margin in margins)
        assert any(margin < arb(certificate.margin + 1e-10) for margin in margins)
