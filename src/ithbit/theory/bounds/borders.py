"""Where 2^n passes the number of answer vectors, decided in balls: rounding decides no border.

The counts of `ithbit.theory.bounds.counting` once more, as balls of python-flint, which carry all
rounding, so a comparison that is certain is a proof. If a ball at high precision does not decide,
products of affine counts are compared as integers, and any other n is left open (*not* excluded).
"""

from math import prod
from typing import Any

from flint import arb, ctx

from ithbit.theory.bounds.counting import Polynomial, Stage, cells

Ball = Any  # flint.arb, which has no type stubs

_PRECISIONS = (128, 512, 2048)  # bits beyond those of n itself
_WHOLE = 256  # up to this p the sum over r <= p is one integer
_TERMS = 10_000  # terms of the sum; a geometric series encloses the rest
# Where 2p >= N and p is larger than this, the sum is enclosed by 2^(N-1) and 2^N.
_ADDED = 10**6
_INTEGERS = 2_000  # up to this p ties of affine counts are decided in integers


def excluded(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> bool:
    """Whether 2^n is proved to exceed the number of answer vectors.

    >>> [excluded((Stage("readout", parameters=70, tests=1),), n, "bezout") for n in (70, 71)]
    [False, True]
    """
    if any(n * stage.tests <= stage.parameters for stage in stages):
        return False  # that stage alone allows 2^n outcomes
    if len(stages) == 1 and stages[0].kind == "A" and stages[0].tests == 1:
        return True  # n > p hyperplanes in R^p never have 2^n cells
    for precision in _PRECISIONS:
        with ctx.workprec(precision + 2 * n.bit_length()):
            excess = sum((_log2_gamma(s, n, polynomial) for s in stages), arb(0)) - n
            if excess < 0:
                return True
            if excess >= 0:
                return False
    if any(stage.kind != "A" or stage.parameters > _INTEGERS for stage in stages):
        return False
    return prod(cells(n * stage.tests, stage.parameters) for stage in stages) < 1 << n


def largest_after(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> int:
    """A number that n* does not exceed, below an excluded n: the whole part of log2 of the count.

    The count grows with n. So if it stays below 2^(m+1) at n, it does at m + 1, ..., n, which are
    then all excluded.
    """
    with ctx.workprec(_PRECISIONS[0] + 2 * n.bit_length()):
        total = sum((_log2_gamma(s, n, polynomial) for s in stages), arb(0))
        return min(n - 1, int(total.upper().floor().unique_fmpz()))


def _log2(x: Ball) -> Ball:
    return x.log() / arb.const_log2()


def _log2_gamma(stage: Stage, n: int, polynomial: Polynomial) -> Ball:
    """log2 Gamma of one stage over n indices, as the head of `counting` defines it."""
    N, p, l, M = n * stage.tests, stage.parameters, stage.degree, stage.chain_degree  # noqa: E741
    if stage.kind == "P" and polynomial == "warren":
        if p >= N:
            return arb(N)
        return arb(N).min(1 + p * _log2(2 * arb.const_e() * N * l / p))
    found = _log2_cells(N, p)
    if stage.kind == "P":
        found += 2 * p * _log2(arb(l))
    elif stage.kind == "K":
        Q = stage.shared_chain + p * stage.chain
        D = E = p * (stage.implicit + 1)
        last = min(Q, D + E) * M + E * l + D * (l + M) - D - E + 1
        found += Q * (Q - 1) // 2 + E * _log2(arb(l)) + D * _log2(arb(l + M)) + Q * _log2(arb(last))
    return arb(N).min(found)


def _log2_cells(N: int, p: int) -> Ball:
    """log2 sum_{r <= p} C(N, r)."""
    if p >= N:
        return arb(N)
    if p <= _WHOLE:
        return _log2(arb(cells(N, p)))
    if 2 * p >= N:
        if p > _ADDED:
            return arb(N) - arb(0.5, 0.5)
        missing = _log2_cells(N, N - p - 1) - N
        return N + (-(arb(2) ** missing)).log1p() / arb.const_log2()
    largest = (arb(N + 1).lgamma() - arb(p + 1).lgamma() - arb(N - p + 1).lgamma()) / (
        arb.const_log2()
    )
    # C(N, r-1) / C(N, r) = r / (N - r + 1), which falls with r: the sum in units of C(N, p).
    total = term = arb(1)
    small = arb(2) ** -ctx.prec
    for r in range(p, max(0, p - _TERMS), -1):
        term *= arb(r) / (N - r + 1)
        total += term
        if term < small:
            break
    rest = (term * p / (N - 2 * p + 1)).upper()
    return largest + _log2(total + (arb(0.5, 0.5) * rest))
