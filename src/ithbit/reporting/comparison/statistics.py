"""The few tests a comparison of small samples needs, written out.

scipy has all but one of them, but importing its statistics takes longer than a whole `compare`; the
tests check these functions against scipy where it is installed. Counts are compared in exact
integers, and python-flint has polynomials and the incomplete beta function.

Letters: k successes of m runs; alpha, the chance of a false alarm that is accepted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import accumulate

Count = tuple[int, int]  # successes, runs


def _splits(ours: Count, theirs: Count) -> dict[int, int]:
    """In how many ways we can have each possible number of the successes of both."""
    (k, m), (other_k, other_m) = ours, theirs
    total = k + other_k
    return {
        split: math.comb(m, split) * math.comb(other_m, total - split)
        for split in range(max(0, total - other_m), min(m, total) + 1)
    }


def fisher_exact(ours: Count, theirs: Count) -> float:
    """Two-sided p-value of Fisher's exact test that both counts have one success rate.

    Sums the probability of every split of the successes that is no more likely than the one seen.
    *Exact*: integers until the last division.

    >>> round(fisher_exact((0, 5), (5, 5)), 4)
    0.0079
    >>> fisher_exact((5, 5), (5, 5))
    1.0
    """
    ways = _splits(ours, theirs)
    extreme = sum(weight for weight in ways.values() if weight <= ways[ours[0]])
    return float(Fraction(extreme, sum(ways.values())))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: if those at most alpha are rejected, a false alarm among all of
    them has probability at most alpha, under any dependence.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    m = len(p_values)
    order = sorted(range(m), key=lambda index: p_values[index])
    alone = (min(1.0, (m - rank) * p_values[index]) for rank, index in enumerate(order))
    adjusted = dict(zip(order, accumulate(alone, max), strict=True))
    return [adjusted[index] for index in range(m)]


def _squares(ours: Count, theirs: Count) -> dict[int, tuple[Fraction, int]]:
    """For each split of a cell's successes: its standardised squared distance, and its weight."""
    (k, m), (other_k, other_m) = ours, theirs
    total, both = k + other_k, m + other_m
    spread = m * other_m * total * (both - total)
    return {
        split: (Fraction((split * both - total * m) ** 2 * (both - 1), spread), weight)
        for split, weight in _splits(ours, theirs).items()
    }


def omnibus_exact(cells: Sequence[tuple[Count, Count]]) -> float:
    """p-value for the hypothesis that no cell differs, from all cells at once.

    The statistic is the sum over cells of the squared distance between our successes and our
    expected share of the cell's successes, in units of its variance. Given each cell's successes
    and runs, it is a sum over independent hypergeometric draws; their distributions are multiplied
    here as polynomials over the integers. *Exact* for the statistic as rounded here. Five runs
    against five cannot show a difference in one of many cells after Holm's correction; this can,
    because cells add up.

    >>> round(omnibus_exact([((0, 5), (5, 5))]), 4)
    0.0079
    >>> omnibus_exact([((5, 5), (5, 5)), ((0, 5), (0, 5))])
    1.0
    """
    # A cell whose runs all succeed, or all fail, has one possible split and says nothing.
    telling = [(o, t) for o, t in cells if 0 < o[0] + t[0] < o[1] + t[1]]
    squares = [_squares(ours, theirs) for ours, theirs in telling]
    # Coarser steps for more cells: the table of sums stays at a few thousand entries.
    largest = sum(max(square for square, _ in cell.values()) for cell in squares)
    steps = max(1, min(20, int(4000 / largest))) if squares else 1
    from flint import fmpz_poly  # imported here: two counts can be compared without it

    # The coefficient of x^k is in how many ways the distances add up to k.
    ways = fmpz_poly([1])
    for cell in squares:
        alone = fmpz_poly()
        for square, weight in cell.values():
            alone[round(steps * square)] += weight
        ways *= alone
    observed = sum(
        round(steps * cell[o[0]][0]) for (o, _), cell in zip(telling, squares, strict=True)
    )
    counts = list(map(int, ways.coeffs()))
    return float(Fraction(sum(counts[observed:]), sum(counts)))


@dataclass(frozen=True)
class Directed:
    """The sum of our successes over all cells, and how it is distributed if no cell differs.

    Given each cell's successes and runs, the sum is one of `least`, `least` + 1, …; `ways` says in
    how many ways it can be each of them.
    """

    ours: int
    least: int
    ways: tuple[int, ...]

    @property
    def expected(self) -> float:
        """The mean of the sum."""
        total = sum(weight * at for at, weight in enumerate(self.ways))
        return self.least + float(Fraction(total, sum(self.ways)))

    @property
    def p_fewer(self) -> float:
        """The probability of so few successes or fewer."""
        return float(Fraction(sum(self.ways[: self.ours - self.least + 1]), sum(self.ways)))

    @property
    def p_more(self) -> float:
        """The probability of so many successes or more."""
        return float(Fraction(sum(self.ways[self.ours - self.least :]), sum(self.ways)))

    @property
    def p_value(self) -> float:
        """Two-sided: twice the smaller of both, at most 1."""
        return min(1.0, 2 * self.p_fewer, 2 * self.p_more)

    def limits(self, alpha: float) -> tuple[int | None, int | None]:
        """The largest sum that is too small, and the smallest that is too large, at level alpha;
        None where no sum is."""
        sums = [replace(self, ours=self.least + at) for at in range(len(self.ways))]
        few = [each.ours for each in sums if 2 * each.p_fewer <= alpha]
        many = [each.ours for each in sums if 2 * each.p_more <= alpha]
        return max(few, default=None), min(many, default=None)


def directed_exact(cells: Sequence[tuple[Count, Count]]) -> Directed:
    """The test that no cell differs, against ours succeeding more often, or less often, throughout.

    The exact test that belongs to Mantel and Haenszel's statistic: given each cell's successes and
    runs, our successes are independent hypergeometric draws, and their sum is the statistic. Single
    runs that fail in many cells, each no evidence by itself, add up here; differences of opposite
    signs cancel, for which there is `omnibus_exact`. *Exact*, in integers, if runs are independent.

    >>> found = directed_exact([((4, 5), (5, 5))] * 20)
    >>> found.ours, found.expected, found.p_value == 2 * 0.5**20
    (80, 90.0, True)
    """
    from flint import fmpz_poly  # as above

    ways, least = fmpz_poly([1]), 0
    for ours, theirs in cells:
        splits = _splits(ours, theirs)
        least += min(splits)
        ways *= fmpz_poly([splits[k] for k in sorted(splits)])
    return Directed(sum(k for (k, _), _ in cells), least, tuple(map(int, ways.coeffs())))


@cache
def fisher_limits(runs: int, theirs: Count, alpha: float) -> tuple[int | None, int | None]:
    """Which counts of ours would differ from theirs at level alpha by Fisher's exact test: those up
    to the first number and those from the second on; None where there are none.

    >>> fisher_limits(20, (5, 5), 0.01), fisher_limits(20, (0, 5), 0.0001)
    ((6, None), (None, 20))
    >>> fisher_limits(5, (5, 5), 0.001)
    (None, None)
    """
    differ = [k for k in range(runs + 1) if fisher_exact((k, runs), theirs) <= alpha]
    share = Fraction(*theirs)
    few = [k for k in differ if Fraction(k, runs) < share]
    many = [k for k in differ if Fraction(k, runs) > share]
    return max(few, default=None), min(many, default=None)


def student_two_sided(t: float, df: float) -> float:
    """Probability that Student's t with `df` degrees of freedom is at least |t| in size.

    >>> round(student_two_sided(2.776445, 4), 6)
    0.05
    """
    from flint import arb

    return float(arb(df / (df + t * t)).beta_lower(df / 2, 0.5, True))


def student_quantile(alpha: float, df: float) -> float:
    """The t that is exceeded in size with probability alpha, by bisection.

    >>> round(student_quantile(0.05, 4), 4)
    2.7764
    """
    low, high = 0.0, 1.0
    while student_two_sided(high, df) > alpha:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_two_sided(middle, df) > alpha else (low, middle)
    return high


@dataclass(frozen=True)
class Difference:
    """An estimated difference, ours minus published, with its standard error.

    `slack` is what rounding of the published number may have hidden; intervals are widened by it.
    """

    estimate: float
    standard_error: float
    df: float
    slack: float = 0.0

    @property
    def p_value(self) -> float:
        """Two-sided, for no difference; 0 or 1 where nothing varies."""
        beyond = max(0.0, abs(self.estimate) - self.slack)
        if beyond == 0.0:
            return 1.0
        return (
            student_two_sided(beyond / self.standard_error, self.df) if self.standard_error else 0.0
        )

    def interval(self, alpha: float) -> tuple[float, float]:
        """Interval for the difference that misses it with probability at most alpha."""
        reach = self.slack
        if self.standard_error:
            reach += student_quantile(alpha, self.df) * self.standard_error
        return self.estimate - reach, self.estimate + reach


def welch(
    mean: float, sd: float, runs: int, other_mean: float, other_sd: float, other_runs: int
) -> Difference:
    """Difference of two means with unequal variances, by Welch's approximation.

    *Approximate*: it assumes that the values are about normal. Accuracies near 1 are not, and where
    one seed failed the interval is wide, as it should be.

    >>> round(welch(0.80, 0.03, 5, 0.78, 0.01, 5).p_value, 3)
    0.218
    """
    ours, theirs = sd * sd / runs, other_sd * other_sd / other_runs
    total = ours + theirs
    if total == 0.0:
        return Difference(mean - other_mean, 0.0, 1.0)
    df = total * total / (ours * ours / (runs - 1) + theirs * theirs / (other_runs - 1))
    return Difference(mean - other_mean, math.sqrt(total), df)


def median_ratio(
    ours: Sequence[float], other_median: float, other_runs: int, half_unit: float
) -> Difference:
    """Difference of the logarithms of two medians, where only the median of the other is known.

    *Approximate*: it assumes that the logarithms are normal with our spread on both sides, and that
    the variance of a median of m normal values is pi / (2 (m + pi/2 - 1)) of theirs (right at m = 1
    and for large m, 2 % low at m = 5). Values are whole numbers; the variance that rounding may
    hide, 1/12 of a unit squared, is added, so that two equal runs do not count as certain. Needs
    two runs.

    >>> round(median_ratio([190, 200, 210, 220, 294], 185, 5, 0.5).p_value, 2)
    0.39
    """
    logs = sorted(math.log(value) for value in ours)
    m = len(logs)
    mean = math.fsum(logs) / m
    variance = math.fsum((value - mean) ** 2 for value in logs) / (m - 1)
    variance += math.exp(-2 * mean) / 12
    median = (logs[(m - 1) // 2] + logs[m // 2]) / 2
    share = sum(math.pi / (2 * (runs + math.pi / 2 - 1)) for runs in (m, other_runs))
    return Difference(
        median - math.log(other_median),
        math.sqrt(variance * share),
        m - 1,
        math.log1p(half_unit / other_median),
    )
