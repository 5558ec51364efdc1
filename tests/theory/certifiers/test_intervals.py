"""Intervals against exact rationals and arb balls: they contain the truth, and stay exact."""

from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx

from ithbit.theory.certifiers.intervals import (
    EXP_LIMIT,
    Interval,
    choose,
    concatenate,
    sigmoid,
    tanh,
)

RNG = np.random.default_rng(0)


def spread_numbers(count: int) -> np.ndarray:
    return RNG.normal(size=count) * 10.0 ** RNG.integers(-9, 9, count)


@pytest.mark.parametrize("operation", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b])
def test_operations_on_points_contain_the_exact_result_within_one_step(operation):
    a, b = spread_numbers(500), spread_numbers(500)
    got = operation(Interval.point(a), Interval.point(b))
    for x, y, low, high in zip(a, b, got.lo, got.hi, strict=True):
        truth = operation(Fraction(x), Fraction(y))
        assert Fraction(low) <= truth <= Fraction(high)
        assert high <= np.nextafter(low, np.inf)


@pytest.mark.parametrize("operation", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b])
def test_operations_on_intervals_contain_all_ends(operation):
    ends = np.sort(spread_numbers(800).reshape(2, 400), axis=0)
    other = np.sort(spread_numbers(800).reshape(2, 400), axis=0)
    got = operation(Interval(*ends), Interval(*other))
    for k in range(400):
        for x in ends[:, k]:
            for y in other[:, k]:
                truth = operation(Fraction(x), Fraction(y))
                assert Fraction(got.lo[k]) <= truth <= Fraction(got.hi[k])


def test_exact_operations_add_no_width():
    a, b = Interval.point(np.arange(64.0) / 8), Interval.point(np.arange(64.0) - 30)
    result = (a * b + b - a).total(axis=0)
    assert result.lo == result.hi
    assert len((a * b).ends) == 1


def test_underflow_and_overflow_are_bounded():
    tiny = Interval.point([1e-200]) * Interval.point([1e-200])
    assert tiny.lo[0] <= 0 < tiny.hi[0]
    huge = Interval.point([1e200]) * Interval.point([1e200])
    assert np.isfinite(huge.lo[0])
    assert huge.hi[0] == np.inf
    most = np.finfo(float).max
    assert (Interval.point([most]) + Interval.point([most])).hi[0] == np.inf


def test_quotients_contain_the_exact_result():
    a, b = spread_numbers(200), np.abs(spread_numbers(200))
    got = Interval.point(a) / Interval.point(b)
    for x, y, low, high in zip(a, b, got.lo, got.hi, strict=True):
        assert Fraction(low) < Fraction(x) / Fraction(y) < Fraction(high)


def test_exponentials_contain_arbs():
    x = np.concatenate(
        [RNG.uniform(-720, 720, 800), RNG.uniform(-1, 1, 800), [0, 0.5, -0.5, 1e-300, 700, -700]]
    )
    got = Interval.point(x).exp()
    with ctx.workprec(200):
        for value, low, high in zip(x, got.lo, got.hi, strict=True):
            truth = arb(float(value)).exp()
            assert arb(float(low)) <= truth
            assert high == np.inf or truth <= arb(float(high))
            if abs(value) < EXP_LIMIT:
                assert high - low <= low * 1e-14
    assert Interval.point([0.0]).exp().lo == Interval.point([0.0]).exp().hi == 1


def test_exp_of_an_interval_takes_its_ends():
    got = Interval(np.array([-1.0]), np.array([2.0])).exp()
    assert got.lo[0] <= np.exp(-1) < np.exp(2) <= got.hi[0]
    assert got.hi[0] < 7.39


@pytest.mark.parametrize("function", [sigmoid, tanh])
def test_squashing_contains_arbs(function):
    x = np.concatenate([RNG.uniform(-50, 50, 300), [0.0, 300.0, -300.0]])
    got = function(Interval.point(x))
    with ctx.workprec(2000):
        for value, low, high in zip(x, got.lo, got.hi, strict=True):
            ball = arb(float(value))
            truth = 1 / (1 + (-ball).exp()) if function is sigmoid else ball.tanh()
            assert arb(float(low)) <= truth <= arb(float(high))
            assert high - low < 1e-13


def test_total_adds_up_any_number_of_terms():
    for count in (0, 1, 2, 7):
        terms = spread_numbers(count)
        got = Interval.point(terms[None]).total(axis=1)
        assert Fraction(got.lo[0]) <= sum(map(Fraction, terms)) <= Fraction(got.hi[0])


def test_choosing_and_joining_keep_points():
    a, b = Interval.point([1.0, 2.0]), Interval.point([3.0, 4.0])
    assert choose(np.array([True, False]), a, b).lo.tolist() == [1.0, 4.0]
    assert len(concatenate([a, b], axis=0).ends) == 1
    assert a.meet(Interval(np.array([0.0, 1.5]), np.array([1.0, 9.0]))).lo.tolist() == [1.0, 2.0]
    assert len(Interval(a.lo, a.hi.copy()).ends) == 1
