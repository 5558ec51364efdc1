"""How accurate any weights can be past n*: the counting theorem for random answers.

Let the n answers be independent and uniform over V values, and the index uniform. Of at most 2^B
answer vectors, B = sum_s log2 Gamma_s(n), the best is right at k indices or more with probability
at most 2^B P[Bin(n, 1/V) >= k], so the expected accuracy is at most

    (1/n) sum_{k=1}^n min(1, 2^B P[Bin(n, 1/V) >= k]),

also for more than n answers, and with ties decided in any fixed way. docs/recall.md has the proof,
and how the sum is bounded in balls, by c + 2^B b(c + 1) / (1 - rho)^2 for some c: b is the binomial
probability, rho the ratio of two of its values.
"""

import math
from functools import cache

from flint import arb, ctx

from ithbit.theory.bounds.borders import Ball, log2_count
from ithbit.theory.bounds.counting import Stage, bracketed

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
    with ctx.workprec(_PRECISION + 2 * n.bit_length()):
        log_vectors = arb.const_log2() * log2_count(stages, n, "bezout")

        def others(c: int) -> Ball:
            """The sum of the terms after the first c, from above; n up to the mean."""
            ratio = arb(n - c - 1) / ((c + 2) * (values - 1))
            if not ratio < 1:
                return arb(n)
            return (log_vectors + _log_binomial(n, c + 1, values)).exp() / (1 - ratio) ** 2

        _, c = bracketed(lambda c: c == n or bool(others(c) < 1), 0, n)
        if c == n:
            return 1.0
        bound = (c + others(c)) / n
        return min(1.0, math.nextafter(float(bound.upper()), math.inf))


def _log_binomial(n: int, k: int, values: int) -> Ball:
    """ln of the probability that exactly k of n are right."""
    choose = arb(n + 1).lgamma() - arb(k + 1).lgamma() - arb(n - k + 1).lgamma()
    wrong = (arb(values - 1) / values).log() * (n - k)
    return choose + wrong - k * arb(values).log()
