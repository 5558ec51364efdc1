"""Where V^n passes the number of answer vectors, decided in balls: rounding decides no border.

The counts of `ithbit.theory.bounds.counting` once more, as balls of python-flint, which carry all
rounding, so a comparison that is certain is a proof. If a ball at high precision does not decide,
products of affine counts are compared as integers, and any other n is left open (*not* excluded).
"""

from math import prod
from typing import Any

from flint import arb, ctx

from ithbit.theory.bounds.counting import Polynomial, Stage, cells, last_terms

Ball = Any  # flint.arb, which has no type stubs

_PRECISIONS = (128, 512, 2048)  # bits beyond those of n itself
_WHOLE = 256  # up to this p the sum over r <= p is one integer
# Where 2p >= N and p is larger than this, the sum is enclosed by 2^(N-1) and 2^N.
_ADDED = 10**6
_INTEGERS = 2_000  # up to this p ties of affine counts are decided in integers
_LARGEST = 1 << 26  # bits of V^n there


def excluded(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> bool:
    """Whether V^n is proved to exceed the number of answer vectors.

    >>> [excluded((Stage("readout", parameters=70, tests=1),), n, "bezout") for n in (70, 71)]
    [False, True]
    """
    last, values = stages[-1], stages[-1].values
    if values == 2 and any(n <= stage.signs(n) <= stage.parameters for stage in stages):
        return False  # that stage alone allows 2^n outcomes
    if last.kind == "A" and n <= last.parameters:
        return False  # n units in R^p may have all V^n winners
    if len(stages) == 1 and last.kind == "A" and last.tests == 1:
        return True  # n > p units in R^p never have V^n winners
    for precision in _PRECISIONS:
        with ctx.workprec(precision + 2 * n.bit_length()):
            excess = log2_count(stages, n, polynomial) - n * _log2(values)
            if excess < 0:
                return True
            if excess >= 0:
                return False
    if any(stage.kind != "A" or stage.parameters > _INTEGERS for stage in stages):
        return False
    counts = (_whole_count(stage, n) for stage in stages)
    return n * values.bit_length() < _LARGEST and prod(counts) < values**n


def log2_count(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> Ball:
    """log2 of the number of answer vectors over n indices, as a ball of the precision that is
    set."""
    found = {stage: _log2_gamma(stage, n, polynomial) for stage in set(stages)}
    return sum((found[stage] for stage in stages), arb(0))


def largest_after(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> int:
    """A number that n* does not exceed, below an excluded n: the whole part of log_V of the count.

    The count grows with n. So if it stays below V^(m+1) at n, it does at m + 1, ..., n, which are
    then all excluded.
    """
    with ctx.workprec(_PRECISIONS[0] + 2 * n.bit_length()):
        total = log2_count(stages, n, polynomial) / _log2(stages[-1].values)
        return min(n - 1, int(total.upper().floor().unique_fmpz()))


def _log2(x: Any) -> Ball:
    """log2 of a ball or a whole number; exact for powers of two."""
    if isinstance(x, int) and x & (x - 1) == 0:
        return arb(x.bit_length() - 1)
    return arb(x).log() / arb.const_log2()


def _whole_count(stage: Stage, n: int) -> int:
    """The outcomes of a stage of affine tests, as an integer."""
    if stage.winners:
        return cells(n, stage.parameters, stage.values)
    return cells(stage.signs(n), stage.parameters)


def _log2_gamma(stage: Stage, n: int, polynomial: Polynomial) -> Ball:
    """log2 Gamma of one stage over n indices, as the head of `counting` defines it."""
    p, l, M = stage.parameters, stage.degree, stage.chain_degree  # noqa: E741
    if stage.winners:
        return _log2_winners(n, p, stage.values)
    N = stage.signs(n)
    most = arb(N) if stage.values == 2 else n * _log2(stage.values)
    if stage.kind == "P" and polynomial == "warren":
        if p >= N:
            return most.min(arb(N))
        return most.min(1 + p * _log2(2 * arb.const_e() * N * l / p))
    found = _log2_winners(N, p, 2)
    if stage.kind == "P":
        found += 2 * p * _log2(l)
    elif stage.kind == "K":
        Q = stage.shared_chain + p * stage.chain
        D = E = p * (stage.implicit + 1)
        last = min(Q, D + E) * M + E * l + D * (l + M) - D - E + 1
        found += Q * (Q - 1) // 2 + E * _log2(l) + D * _log2(l + M) + Q * _log2(last)
    return most.min(found)


def _log2_winners(n: int, p: int, values: int) -> Ball:
    """log2 sum_{r <= p} C(n, r) (V - 1)^r."""
    u, whole = values - 1, n * _log2(values)
    if p >= n:
        return whole
    if p <= _WHOLE:
        return _log2(cells(n, p, values))
    if p * values < n * u:
        return _log2_sum(n, p, arb(u))
    if p > _ADDED:  # from the mean on: at least half of all
        return whole - arb(0.5, 0.5)
    # What is missing, counted by the other value: sum_{s < n - p} C(n, s) u^(n - s).
    missing = n * _log2(u) + _log2_sum(n, n - p - 1, 1 / arb(u)) - whole
    return whole + (-(arb(2) ** missing)).log1p() / arb.const_log2()


def _log2_sum(n: int, p: int, weight: Ball) -> Ball:
    """log2 sum_{r <= p} C(n, r) a^r for p below the mean, p (1 + a) <= n a."""
    largest = (arb(n + 1).lgamma() - arb(p + 1).lgamma() - arb(n - p + 1).lgamma()) / (
        arb.const_log2()
    ) + p * _log2(weight)
    total, term = last_terms(n, p, weight, arb(1), arb(2) ** -ctx.prec)
    rest = (term * p / ((n - p + 1) * weight - p)).upper()
    return largest + _log2(total + (arb(0.5, 0.5) * rest))
