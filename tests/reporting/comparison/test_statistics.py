"""Exact tests against brute force, and all of them against scipy where it is installed."""

import dataclasses
import itertools
import math
import random

import pytest

from ithbit.reporting.comparison.statistics import (
    Difference,
    directed_exact,
    fisher_exact,
    fisher_limits,
    holm,
    median_ratio,
    omnibus_exact,
    student_quantile,
    student_two_sided,
    welch,
)


def test_fisher_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for k, m, other_k, other_m in itertools.product((0, 1, 3, 5), (5, 7), (0, 2, 5), (5, 12)):
        table = [[k, m - k], [other_k, other_m - other_k]]
        expected = stats.fisher_exact(table).pvalue
        assert math.isclose(fisher_exact((k, m), (other_k, other_m)), expected, rel_tol=1e-9)


def test_fisher_counts_every_assignment_of_runs() -> None:
    """By brute force: which 3 of 8 runs succeed, and in how many choices is it this unlikely?"""
    runs = range(8)
    counts = [sum(run < 4 for run in chosen) for chosen in itertools.combinations(runs, 3)]
    weights = {k: counts.count(k) for k in set(counts)}
    unlikely = sum(weight for weight in weights.values() if weight <= weights[0])
    assert fisher_exact((0, 4), (3, 4)) == unlikely / len(counts)


def test_fisher_is_symmetric_and_never_above_one() -> None:
    for k, other_k in itertools.product(range(6), repeat=2):
        p_value = fisher_exact((k, 5), (other_k, 5))
        assert 0 < p_value <= 1
        assert p_value == fisher_exact((other_k, 5), (k, 5))
    assert fisher_exact((0, 0), (3, 5)) == 1.0


def test_holm_agrees_with_its_definition() -> None:
    p_values = [0.03, 0.001, 0.2, 0.04, 0.011]
    assert holm(p_values) == pytest.approx([0.09, 0.005, 0.2, 0.09, 0.044])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_five_against_five_cannot_differ_after_holm_over_92_cells() -> None:
    assert 92 * fisher_exact((0, 5), (5, 5)) > 0.7


def test_omnibus_of_one_cell_is_the_two_sided_test() -> None:
    assert omnibus_exact([((0, 5), (5, 5))]) == pytest.approx(2 / 252)
    assert omnibus_exact([]) == 1.0


def test_omnibus_counts_every_assignment_of_runs() -> None:
    cells = [((0, 2), (2, 3)), ((1, 3), (1, 2))]

    def distance(split: int, total: int, m: int, other_m: int) -> float:
        both = m + other_m
        variance = m * other_m * total * (both - total) / (both**2 * (both - 1))
        return (split - total * m / both) ** 2 / variance

    choices = []
    seen = 0.0
    for (k, m), (other_k, other_m) in cells:
        total = k + other_k
        picks = itertools.combinations(range(m + other_m), total)
        choices.append([distance(sum(i < m for i in p), total, m, other_m) for p in picks])
        seen += distance(k, total, m, other_m)
    sums = [sum(pair) for pair in itertools.product(*choices)]
    # The statistic is rounded to twentieths; these sums are further apart than that.
    expected = sum(value >= seen - 1e-9 for value in sums) / len(sums)
    assert omnibus_exact(cells) == pytest.approx(expected)


def test_omnibus_sees_what_holm_cannot_and_ignores_cells_that_say_nothing() -> None:
    silent = [((5, 5), (5, 5))] * 45 + [((0, 5), (0, 5))] * 45
    apart = [((0, 5), (5, 5)), ((1, 5), (5, 5))]
    assert min(holm([fisher_exact(*cell) for cell in silent + apart])) > 0.5
    assert omnibus_exact(silent + apart) < 0.001
    assert omnibus_exact(silent + apart) == omnibus_exact(apart)


def test_omnibus_keeps_its_level_when_nothing_differs() -> None:
    rng = random.Random(0)
    false_alarms = 0
    for _ in range(200):
        rates = [rng.random() for _ in range(20)]
        cells = [
            tuple((sum(rng.random() < rate for _ in range(5)), 5) for _ in range(2))
            for rate in rates
        ]
        false_alarms += omnibus_exact(cells) <= 0.05  # type: ignore[arg-type]
    # 10 expected of 200; 22 or more would happen once in a thousand.
    assert false_alarms < 22


def sums_by_assignment(cells: list[tuple[tuple[int, int], tuple[int, int]]]) -> list[int]:
    """By brute force: our successes in every choice of which runs of each cell succeed."""
    choices = []
    for (k, m), (other_k, other_m) in cells:
        picks = itertools.combinations(range(m + other_m), k + other_k)
        choices.append([sum(run < m for run in chosen) for chosen in picks])
    return [sum(each) for each in itertools.product(*choices)]


@pytest.mark.parametrize(
    "cells",
    [
        [((0, 2), (2, 3)), ((1, 3), (1, 2))],
        [((4, 4), (3, 5)), ((2, 3), (0, 2)), ((1, 1), (1, 1))],
        [((0, 3), (3, 3)), ((3, 3), (0, 3))],
    ],
)
def test_directed_counts_every_assignment_of_runs(cells) -> None:
    sums, found = sums_by_assignment(cells), directed_exact(cells)
    fewer = sum(each <= found.ours for each in sums) / len(sums)
    more = sum(each >= found.ours for each in sums) / len(sums)
    assert found.ours == sum(k for (k, _), _ in cells)
    assert found.expected == pytest.approx(sum(sums) / len(sums))
    assert (found.p_fewer, found.p_more) == (pytest.approx(fewer), pytest.approx(more))
    assert found.p_value == pytest.approx(min(1, 2 * fewer, 2 * more))


def convolved(cells) -> dict[int, float]:
    """The distribution of the sum in floats, cell by cell, from the hypergeometric formula."""
    total = {0: 1.0}
    for (k, m), (other_k, other_m) in cells:
        K, N = k + other_k, m + other_m
        alone = {
            x: math.exp(
                math.lgamma(K + 1) - math.lgamma(x + 1) - math.lgamma(K - x + 1)
                + math.lgamma(N - K + 1) - math.lgamma(m - x + 1)
                - math.lgamma(N - K - m + x + 1)
                - (math.lgamma(N + 1) - math.lgamma(m + 1) - math.lgamma(N - m + 1))
            )
            for x in range(max(0, K - other_m), min(m, K) + 1)
        }  # fmt: skip
        added: dict[int, float] = {}
        for (a, p), (b, q) in itertools.product(total.items(), alone.items()):
            added[a + b] = added.get(a + b, 0.0) + p * q
        total = added
    return total


def test_directed_agrees_with_a_convolution_and_with_the_normal_approximation() -> None:
    rng = random.Random(2)
    cells = [
        (
            (sum(rng.random() < rate for _ in range(20)), 20),
            (sum(rng.random() < rate for _ in range(5)), 5),
        )
        for rate in (rng.random() for _ in range(92))
    ]
    found, other = directed_exact(cells), convolved(cells)
    assert found.p_fewer == pytest.approx(sum(p for x, p in other.items() if x <= found.ours))
    assert found.p_more == pytest.approx(sum(p for x, p in other.items() if x >= found.ours))
    variance = sum(
        m * o * (k + j) * (m + o - k - j) / ((m + o) ** 2 * (m + o - 1)) for (k, m), (j, o) in cells
    )
    z = (found.ours + 0.5 - found.expected) / math.sqrt(variance)  # as Mantel and Haenszel
    assert found.p_fewer == pytest.approx(math.erfc(-z / math.sqrt(2)) / 2, abs=0.01)


def test_directed_sees_one_seed_that_fails_in_many_cells() -> None:
    cells = [((4, 5), (5, 5))] * 30
    assert directed_exact(cells).p_value == pytest.approx(2 * 0.5**30)  # about 2e-9
    assert min(holm([fisher_exact(*cell) for cell in cells])) == 1.0
    assert omnibus_exact(cells) > 0.5
    assert directed_exact([(theirs, ours) for ours, theirs in cells]).p_more < 1e-8
    opposed = cells + [((5, 5), (4, 5))] * 30  # cancels, which is what the other test is for
    assert directed_exact(opposed).p_value == 1.0


def test_directed_of_cells_that_say_nothing() -> None:
    assert directed_exact([]).p_value == 1.0
    silent = directed_exact([((5, 5), (5, 5)), ((0, 20), (0, 5))])
    assert (silent.ours, silent.expected, silent.p_value) == (5, 5.0, 1.0)
    assert silent.limits(0.05) == (None, None)


def test_directed_keeps_its_level_when_nothing_differs() -> None:
    rng = random.Random(0)
    false_alarms = 0
    for _ in range(200):
        cells = [
            tuple((sum(rng.random() < rate for _ in range(m)), m) for m in (8, 5))
            for rate in (rng.random() for _ in range(20))
        ]
        false_alarms += directed_exact(cells).p_value <= 0.05  # type: ignore[arg-type]
    # At most 10 expected of 200; 22 or more would happen once in a thousand.
    assert false_alarms < 22


def test_limits_are_where_the_verdict_changes() -> None:
    found = directed_exact([((10, 20), (3, 5))] * 12)
    few, many = found.limits(0.01)
    assert few is not None
    assert many is not None
    for ours, differs in ((few, True), (few + 1, False), (many, True), (many - 1, False)):
        assert (dataclasses.replace(found, ours=ours).p_value <= 0.01) is differs


@pytest.mark.parametrize("alpha", [0.05, 0.007, 8e-5])
def test_counts_that_differ_are_those_beyond_the_limits(alpha) -> None:
    for runs, theirs in itertools.product((1, 5, 20, 27), ((0, 5), (2, 5), (5, 5), (17, 27))):
        few, many = fisher_limits(runs, theirs, alpha)
        for k in range(runs + 1):
            beyond = (few is not None and k <= few) or (many is not None and k >= many)
            assert (fisher_exact((k, runs), theirs) <= alpha) is beyond


def test_student_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for df in (1, 1.3, 4, 5.7, 20, 100, 1000):
        for t in (1e-3, 0.3, 1.0, 2.7, 9.0, 80.0):
            expected = 2 * stats.t.sf(t, df)
            assert math.isclose(student_two_sided(t, df), expected, rel_tol=1e-9, abs_tol=1e-300)
        for alpha in (0.5, 0.05, 1e-4):
            assert math.isclose(
                student_quantile(alpha, df), stats.t.isf(alpha / 2, df), rel_tol=1e-7
            )


def test_student_at_its_ends() -> None:
    assert student_two_sided(0.0, 4) == 1.0
    assert student_two_sided(math.inf, 4) == 0.0
    # Cauchy's distribution in closed form: P(|t| > x) = 1 - 2 atan(x) / pi.
    assert student_two_sided(3.0, 1) == pytest.approx(1 - 2 * math.atan(3) / math.pi)


def test_welch_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    ours = welch(0.83, 0.04, 5, 0.78, 0.01, 7)
    theirs = stats.ttest_ind_from_stats(0.83, 0.04, 5, 0.78, 0.01, 7, equal_var=False)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    low, high = ours.interval(0.05)
    assert low < 0.05 < high
    # The interval ends where the difference would just be distinguished from none.
    assert Difference(high - 0.05, ours.standard_error, ours.df).p_value == pytest.approx(0.05)


def test_what_does_not_vary_differs_or_not() -> None:
    assert welch(1.0, 0.0, 5, 1.0, 0.0, 5).p_value == 1.0
    assert welch(1.0, 0.0, 5, 0.9, 0.0, 5).p_value == 0.0
    assert welch(1.0, 0.0, 5, 0.9, 0.0, 5).interval(0.05) == pytest.approx((0.1, 0.1))


def test_slack_covers_rounding() -> None:
    within = Difference(0.004, 0.0, 4, slack=0.005)
    assert within.p_value == 1.0
    assert within.interval(0.05)[0] < 0 < within.interval(0.05)[1]
    assert Difference(0.006, 0.0, 4, slack=0.005).p_value == 0.0


def test_median_ratio_keeps_its_level_on_log_normal_epochs() -> None:
    rng = random.Random(1)
    missed = 0
    for _ in range(400):
        ours = [rng.lognormvariate(5, 0.2) for _ in range(5)]
        theirs = sorted(rng.lognormvariate(5, 0.2) for _ in range(5))[2]
        low, high = median_ratio(ours, theirs, 5, 0.5).interval(0.05)
        missed += not low <= 0 <= high
    # 20 expected of 400.
    assert missed < 40


def test_median_ratio_sees_a_factor_of_three() -> None:
    assert median_ratio([300, 310, 290, 305, 295], 100, 5, 0.5).p_value < 1e-4
    assert median_ratio([500, 500, 500], 33, 5, 0.5).p_value < 1e-4


def test_two_equal_runs_are_not_certain() -> None:
    assert median_ratio([33, 33], 35, 5, 0.5).p_value > 0.01
