"""The counting theorem in whole numbers: slow, and sharing nothing with `bounds.counting` but the
formulas of its head. Logarithms are enclosed by repeated squaring of integers; no float occurs.
"""

from fractions import Fraction
from itertools import accumulate, repeat
from math import factorial

SCALE = 96  # logarithms are whole multiples of 2^-SCALE
_DIGITS = 320

# sum_{k < 60} 1 / k! < e < the same + 2 / 60!
_LOW = sum(Fraction(1, factorial(k)) for k in range(60))
E = (_LOW, _LOW + Fraction(2, factorial(60)))


def log2_bounds(x: int) -> tuple[int, int]:
    """Whole numbers below and above 2^SCALE log2 x, for x >= 1.

    >>> [bound / 2**SCALE for bound in log2_bounds(8)]
    [3.0, 3.0]
    """
    if x & (x - 1) == 0:
        return ((x.bit_length() - 1) << SCALE,) * 2
    shift = x.bit_length() - 1
    one = 1 << _DIGITS
    low = x << _DIGITS >> shift  # x / 2^shift in [1, 2), rounded down
    bounds = []
    for value, up in ((low, 0), (low + 1, 1)):
        digits = shift
        for _ in range(SCALE):
            value = (value * value >> _DIGITS) + up
            digits *= 2
            if value >= 2 * one:
                value, digits = (value >> 1) + up, digits + 1
        bounds.append(digits + up)
    return bounds[0], bounds[1]


def cells(hyperplanes: int, dimension: int) -> int:
    """sum_{r <= p} C(N, r), term by term."""
    N, p = hyperplanes, min(dimension, hyperplanes)
    terms = accumulate(range(1, p + 1), lambda term, r: term * (N - r + 1) // r, initial=1)
    return sum(terms)


def log2_gamma(stage, n: int, polynomial: str) -> tuple[int, int]:
    """Bounds of 2^SCALE log2 Gamma of one stage, never more than 2^SCALE N."""
    N, p, l = n * stage.tests, stage.parameters, stage.degree  # noqa: E741
    factors = []  # (number, exponent): Gamma is their product, times a power of two
    twos = 0
    if stage.kind == "P" and polynomial == "warren":
        if p >= N:
            return N << SCALE, N << SCALE
        low, high = (
            log2_bounds(2 * e.numerator * N * l)[side] - log2_bounds(e.denominator * p)[1 - side]
            for side, e in enumerate(E)
        )
        return tuple(min(N << SCALE, (1 << SCALE) + p * value) for value in (low, high))
    factors.append((cells(N, p), 1))
    if stage.kind == "P":
        factors.append((l, 2 * p))
    elif stage.kind == "K":
        M = stage.chain_degree
        Q = stage.shared_chain + p * stage.chain
        D = E_ = p * (stage.implicit + 1)
        last = min(Q, D + E_) * M + E_ * l + D * (l + M) - D - E_ + 1
        twos = Q * (Q - 1) // 2
        factors += [(l, E_), (l + M, D), (last, Q)]
    sums = list(repeat(twos << SCALE, 2))
    for number, exponent in factors:
        for side, value in enumerate(log2_bounds(number)):
            sums[side] += exponent * value
    return tuple(min(N << SCALE, value) for value in sums)


def excluded(stages, n: int, polynomial: str) -> bool:
    """Whether 2^n > prod Gamma, decided in integers; an assertion fails if it cannot be."""
    low, high = map(sum, zip(*(log2_gamma(s, n, polynomial) for s in stages), strict=True))
    if low >= n << SCALE:
        return False
    if high < n << SCALE:
        return True
    assert all(stage.kind == "A" for stage in stages), "more digits are needed"
    product = 1
    for stage in stages:
        product *= cells(n * stage.tests, stage.parameters)
    return product < 1 << n
