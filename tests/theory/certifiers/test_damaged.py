"""Certifiers on damaged constructions: no stated margin exceeds the true one on any input.

The true margins are balls over all n · 2^n inputs, from an evaluator of its own.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flint import arb, fmpq
from tests.support.damage import changed, constructions, damaged
from tests.support.in_balls import all_of, margin

from ithbit.errors import SpecError
from ithbit.theory.certificate import METHODS, certify
from ithbit.theory.certifiers.exact import UnsuitableError, rational_above, rounded_down
from ithbit.theory.constructions import CONSTRUCTIONS, TRAINED, construct, construct_trained
from ithbit.theory.precision import smallest_margin


def true_margins(solution):
    """Upper ends of the margin on every input; the precision is raised until all are finite."""
    for bits in (400, 4000):
        found = [margin(solution, *given, bits) for given in all_of(solution.n_bits)]
        if all(bool(each.is_finite()) for each in found):
            break
    return [each.upper() for each in found if bool(each.is_finite())]


def compare(seed: int, count: int, lengths: tuple[int, ...]) -> Counter[tuple[str, str]]:
    """Every certifier on damaged constructions, against all inputs: how often it said what."""
    rng, counts = np.random.default_rng(seed), Counter()
    source = constructions(rng, lengths)
    for number in range(count):
        solution = damaged(next(source), rng)
        if solution is None:
            counts["weights", "not finite"] += 1
            continue
        bounds = {}
        for name, method in METHODS.items():
            if isinstance(solution, method.of):
                try:
                    bounds[name] = method.bound(solution).margin
                except UnsuitableError:
                    counts[name, "refused"] += 1
        true = true_margins(solution) if bounds else []
        for name, bound in bounds.items():
            case = (seed, number, name, solution.task, solution.family, bound)
            assert bound == bound, case
            assert all(bool(arb(bound) <= each) for each in true), case
            counts[name, "positive" if bound > 0 else "not positive"] += 1
    return counts


def test_no_certifier_states_more_than_is_true():
    counts = compare(seed=0, count=250, lengths=(2, 3))
    for name in METHODS:
        assert counts[name, "positive"] > 1, counts
        assert counts[name, "not positive"] > 1, counts
    stated = sum(k for (_, what), k in counts.items() if "positive" in what)
    assert stated > 140


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(1, 9))
def test_no_certifier_states_more_than_is_true_of_many(seed):
    counts = compare(seed, 2000, (2, 3, 4))
    assert all(counts[name, "positive"] > 10 for name in METHODS)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("n", [5, 6])
def test_no_certifier_states_more_than_is_true_of_longer_ones(n):
    compare(100 + n, 150, (n,))


@pytest.mark.parametrize(("scale", "top", "bit"), [(4, 2.8, 0.55), (4, 2, 0.6), (1, 2.9, 0.55)])
def test_a_window_with_a_negative_sum_has_no_margin_above_the_true_one(scale, top, bit):
    """Mamba2 whose edges are moved: other places write more than the index's own."""
    n, d = 6, 6
    good = construct_trained("lhi", "mamba2", n, d_model=d, d_state=1)
    weights = {name: np.array(value) for name, value in good.weights.items()}
    units = weights["blocks.1.in.weight"][d : 2 * d]
    step = units[2, 0] - units[1, 0]
    units[[0, 3], 0] -= step * top
    units[:, 2] *= bit
    units[:, 0] -= 2 * (1 - bit) * units[0, 1] / (8 * n + 16)
    units *= scale
    weights["blocks.1.out.weight"] *= 2.0**-16
    weights["blocks.1.a_log"] -= 30
    bad = replace(good, weights=weights)
    true = smallest_margin(bad)
    assert true < 0
    assert METHODS["mamba2 window"].bound(bad).margin <= true + 1e-12


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(value):
    def spoil(array):
        new = np.array(array)
        new.ravel()[0] = value
        return new

    for entry in (*TRAINED, *CONSTRUCTIONS):
        build = construct_trained if entry in TRAINED else construct
        good = build(entry.task, entry.family, 2)
        for at in range(len(good.arrays())):
            with pytest.raises(SpecError, match="finite"):
                changed(good, at, spoil)


def test_huge_numbers_are_refused_and_do_not_end_the_process():
    """flint aborts where a rational would need more memory than there is."""
    with pytest.raises(UnsuitableError, match="too large"):
        rational_above(arb(10**30).exp())
    assert rational_above(arb(-(10**30)).exp()) > 0
    assert rational_above(arb(3) / 4) == fmpq(3, 4)
    for factor in (1e30, 1e120, 1e300, -1e120):
        for entry in CONSTRUCTIONS:
            good = construct(entry.task, entry.family, 2)
            for at in range(len(good.arrays())):
                bad = changed(good, at, lambda array, factor=factor: array * factor)
                for name in ("marker", "fixed states"):
                    try:
                        bound = METHODS[name].bound(bad).margin
                    except UnsuitableError:
                        continue
                    assert bound < np.inf


def test_bounds_are_rounded_down_wherever_they_lie():
    assert rounded_down(arb(10) ** 400) < np.inf
    assert rounded_down(-(arb(10) ** 400)) == -np.inf
    assert rounded_down((arb(-(10**9))).exp()) == 0.0
    assert rounded_down(-(arb(-(10**9)).exp())) < 0
    for value in (fmpq(1, 3), fmpq(-1, 3), fmpq(10**400, 3), fmpq(3, 10**400), fmpq(-3, 10**400)):
        found = rounded_down(value)
        assert found == -np.inf or fmpq(*found.as_integer_ratio()) <= value
    with pytest.raises(UnsuitableError):
        rounded_down(arb("nan"))


def test_a_certificate_of_damaged_weights_still_compares():
    """The public function on the same kind of weights: certified means every input is right."""
    rng, certified = np.random.default_rng(7), 0
    source = constructions(rng, (2,))
    for _ in range(60):
        solution = damaged(next(source), rng)
        try:
            found = None if solution is None else certify(solution)
        except SpecError:
            continue
        if found is not None and found.certified:
            certified += 1
            assert all(bool(each > 0) for each in true_margins(solution))
    assert certified > 10


def test_an_overflow_in_the_generic_argument_is_no_warning():
    good = construct("rhi", "softmax-full", 3)
    bad = good
    for at in range(4):
        bad = changed(bad, at, lambda array: array * 1e120)
        assert METHODS["boxes"].bound(bad).margin < np.inf
