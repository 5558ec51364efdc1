"""Margins that hold for every n: each closed form at huge n, in balls, and what is said of it."""

import numpy as np
import pytest
from flint import arb, ctx

from ithbit import certify, construct, verdict
from ithbit.theory.certificate import for_every_n
from ithbit.theory.certifiers import every_n as closed
from ithbit.theory.certifiers.every_n import trained_every_n
from ithbit.theory.certifiers.exact import UnsuitableError
from ithbit.theory.constructions import CONSTRUCTIONS, TRAINED, construct_trained
from ithbit.theory.constructions.gru_latch import GROWS, HEAD, keep
from ithbit.theory.solution import Solution, TrainedSolution

LENGTHS = (*range(1, 12), *(10**k for k in range(2, 61)), 10**100, 10**200)
WIDE = ctx.workprec(2000)  # bits: 10^200 squared, and what is small beside it

# Every claim "for every n" about trained blocks, as a function of n; those of `angle_right` do not
# depend on n at all.
CLAIMS = {
    "angle left, width 6": lambda n: closed.angle_left(6, n),
    "angle left, width 16": lambda n: closed.angle_left(16, n),
    "angle left, width 10^5": lambda n: closed.angle_left(10**5, n),
    "linear rhi, width 6": lambda n: closed.window_linear("rhi", 6, 1, n),
    "linear rhi, width 16": lambda n: closed.window_linear("rhi", 16, 8, n),
    "linear lhi, width 16": lambda n: closed.window_linear("lhi", 16, 8, n),
    "linear lhi, width 10^5": lambda n: closed.window_linear("lhi", 10**5, 1, n),
    "mamba2, width 6": lambda n: closed.window_mamba2(6, n),
    "mamba2, width 838,000": lambda n: closed.window_mamba2(838_000, n),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_closed_form_is_positive_and_least_at_n_1(claim):
    with WIDE:
        values = [claim(n) for n in LENGTHS]
        assert all(bool(value > 0) for value in values)
        assert all(bool(value > values[0]) for value in values[1:])


def latch_at(n: int, i: int) -> object:
    """The margin of the GRU at one index: every gate in balls, with the formulas' own weights."""
    N = n + 1
    B = 60 + 3 * (arb(N) / GROWS).log().max(arb(0))
    b, c, o, x = B * N, 1 / (4 * arb(N).sqrt()), arb(5) / (12 * N), 1 + arb(i) / N

    def sigmoid(t):
        return 1 / (1 + (-t).exp())

    kept = (sigmoid(B) ** (n + 1)).lower().union(arb(1))
    stored = (1 - sigmoid(B - 2 * B * x)) * (c * x).tanh() * kept

    def tau(k, reset=1):
        return arb(k) / N - reset * stored / c + 1 + o

    def turned(argument):
        stale = sigmoid(-B)
        return (1 - stale) * argument.tanh() + stale * arb(0, 1)

    before = turned(b * (1 + o) - 3 * b * x) if i == 1 else turned(b * tau(i - 1, sigmoid(B)))
    after = turned(b * tau(i, sigmoid(B)))
    opening = sigmoid(-b * tau(i) + b * (1 + before)).upper()
    leak = sigmoid(b * tau(N) - b * (1 + after)).upper()
    return HEAD * ((1 - opening) * arb(30).tanh() - opening - 2 * n * leak)


def test_the_latch_holds_at_every_length():
    with WIDE:
        always = closed.latch()
        assert bool(always > 2)
        for n in LENGTHS:
            stated = closed.latch(n)
            assert bool(stated >= always)
            for i in sorted({1, min(2, n), (n + 1) // 2, max(1, n - 1), n}):
                assert bool(latch_at(n, i) >= stated), (n, i)


def test_the_latch_is_as_before_at_every_length_that_is_built():
    assert {keep(N) for N in (2, 3, 100_001, GROWS)} == {60.0}
    with WIDE:  # with weights that do not grow it would be wrong from 1.5 · 10^21 on
        N = 10**22
        assert bool(60 * N * 2 * arb(-50).exp() > 25)
    found = verdict("lhi", "gru", 1, 10**30, model="trained")
    assert found.answer == "possible"
    assert "as weights grow with n" in found.because


def test_the_formal_deviations_are_suprema():
    """Over n and i, evaluated directly in balls."""
    with ctx.workprec(400):
        r = arb(-3).exp()
        softmax, linear = closed.softmax_deviation(), closed.linear_deviation()
        parabola = closed.parabola_deviation()
        for n in (1, 2, 3, 10, 10**3, 10**6):
            for i in sorted({1, min(2, n), n}):
                beyond = r ** (i + 1) * (i + 1 - i * r) / (1 - r) ** 2  # sum of t r^t over t > i
                last = (n + 1) * (n + 2 + i)
                assert bool(beyond + last * r ** (n + 2 + i) <= softmax)
                some = i * r / (1 - r) + r / (1 - r) ** 2 + last * r ** (n + 2)
                assert bool(some / (1 + 3 * i) <= linear)
                far = arb(0)
                for D in range(1, 40):
                    far += 2 * (-12 * i * (D * D - arb(0.5))).exp() * (D * (2 * i + D) + arb(0.5))
                own = (-12 * i * (i * i - arb(0.25))).exp() * (2 * i * i + arb(0.25))
                assert bool(far + own <= parabola)


def test_epsilon_ends_the_proof_at_some_width():
    assert trained_every_n("lhi", "mamba2", 838_000).margin > 0.3
    for width in (840_000, 10**6, 10**9):
        assert trained_every_n("lhi", "mamba2", width) is None
    with pytest.raises(UnsuitableError, match="at this width"):
        closed.window_mamba2(840_000)
    found = verdict("lhi", "mamba2", 2, 64, model="trained", width=840_000)
    assert found.answer == "open"
    assert "not proved at width 840,000" in found.because


def test_only_the_construction_itself_has_a_margin_for_every_n():
    """Certified or not: other weights, under whatever name, get no such line."""
    for entry in TRAINED:
        good = construct_trained(entry.task, entry.family, 3)
        assert for_every_n(good) is not None
        weights = dict(good.weights)
        weights["head.weight"] = weights["head.weight"] * 0.5
        other = TrainedSolution(good.spec, weights, good.theorem, good.variant)
        assert for_every_n(other) is None
        assert certify(other).certified
        assert "for every n" not in str(certify(other))
    for entry in CONSTRUCTIONS:
        good = construct(entry.task, entry.family, 3)
        assert for_every_n(good) is not None
        parts = (good.layers, good.embedding, np.array(good.output) * 0.5)
        other = Solution(good.task, good.family, 3, *parts, good.theorem, good.variant)
        assert for_every_n(other) is None
        assert "for every n" not in str(certify(other))
