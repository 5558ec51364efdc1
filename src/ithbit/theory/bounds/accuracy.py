"""How accurate any weights can be past n*: the counting theorem for random answers.

Let the n answers be independent and uniform over V values, and the index uniform. With the weights
fixed there are at most 2^B answer vectors, B = sum_s log2 Gamma_s(n). One fixed vector is right at
a number of indices that is binomial (n, 1/V). So at least k are right for the best of 2^B with
probability at most 2^B P[Bin(n, 1/V) >= k], and the expected accuracy is at most

    (1/n) sum_{k=1}^n min(1, 2^B P[Bin(n, 1/V) >= k]).

A bound for n holds for more than n answers too: on average over the n of them that are counted.

Ties may be decided by any fixed order of the values: that is the limit of adding small constants to
the logits, so no further vectors come about.

*Computed*: for any c, the first c terms are at most 1 each, and the others sum to 2^B times
sum_{j>=1} j b(c + j), where b is the binomial probability. Its values fall by ratios of at most rho
= (n - c - 1) / (c + 2) / (V - 1), so this is at most b(c + 1) / (1 - rho)^2. Doubles choose c, and
balls give the bound: every c gives one.
"""

import math
from functools import cache

from flint import arb, ctx

from ithbit.theory.bounds.borders import Ball, log2_count
from ithbit.theory.bounds.counting import Stage, log2_answers

_PRECISION = 128
_MOST = 10**15  # answers that are counted


@cache
def accuracy_bound(stages: tuple[Stage, ...], n: int) -> float:
    """An upper bound on the expected accuracy at n on random answers, rounded up; 1 says nothing.

    >>> from ithbit.theory.bounds.stages import stages
    >>> from ithbit.theory.architecture import architecture
    >>> accuracy_bound(stages("rhi", architecture("rnn"), 4096), 256) < 0.2744
    True
    """
    values, n = stages[-1].values, min(n, _MOST)
    right = _surely_right(log2_answers(stages, n), n, values)
    if right >= n:
        return 1.0
    with ctx.workprec(_PRECISION + 2 * n.bit_length()):
        log2_vectors = log2_count(stages, n, "bezout")
        rest = (arb.const_log2() * log2_vectors + _log_binomial(n, right + 1, values)).exp()
        ratio = arb(n - right - 1) / ((right + 2) * (values - 1))
        bound = (right + rest / (1 - ratio) ** 2) / n
        return min(1.0, math.nextafter(float(bound.upper()), math.inf))


def _surely_right(log2_vectors: float, n: int, values: int) -> int:
    """A number c past which the terms are about below 1, by doubles."""

    def above(k: int) -> bool:
        """Whether 2^B b(k) / (1 - ratio)^2 is at least 1, or k is not past the mean."""
        ratio = (n - k) / ((k + 1) * (values - 1))
        if ratio >= 1:
            return True
        choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        log = choose - k * math.log(values) + (n - k) * math.log1p(-1 / values)
        return log2_vectors * math.log(2) + log - 2 * math.log1p(-ratio) >= 0

    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return n if above(high) else low


def _log_binomial(n: int, k: int, values: int) -> Ball:
    """ln of the probability that exactly k of n are right."""
    choose = arb(n + 1).lgamma() - arb(k + 1).lgamma() - arb(n - k + 1).lgamma()
    wrong = (arb(values - 1) / values).log() * (n - k)
    return choose + wrong - k * arb(values).log()
