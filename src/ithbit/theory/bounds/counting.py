"""The counting theorem: how many answer vectors a staged decision can give at most, and n*.

With the weights fixed, what a causal layer keeps of the bits is a point theta in R^p (its
*fingerprint*), and a solution of an indexing task must give all 2^n answer vectors over the n
indices as theta varies. Let the decision on each index be computed in stages; given the outcomes
of the earlier stages over all n indices, stage s makes kappa sign tests 1[f > 0] per index, each f
a single function of theta on all of R^p. Then there are at most prod_s Gamma_s(n) answer vectors,
so solving implies n <= sum_s log2 Gamma_s(n). With N = n kappa, Gamma is

    (A)  affine tests:         sum_{r<=p} C(N, r)
    (P)  degree <= l, Warren:  2 (2 e N l / p)^p          Anthony-Bartlett, Theorem 8.3, cited
    (P') degree <= l, Bezout:  l^(2p) sum_{r<=p} C(N, r)  proved here, no cited constant
    (K)  degree <= l with m implicit variables and a Pfaffian chain of q functions per index and
         q0 shared ones, of chain degree M:  2^beta sum_{r<=p} C(N, r), where
         Q = q0 + p q,  D = E = p (m + 1),  beta = Q (Q-1) / 2 + E log2 l + D log2(l + M)
                          + Q log2(min(Q, D+E) M + E l + D (l + M) - D - E + 1)

and never more than 2^N.

Proof of (K). Pick one theta per sign vector and replace f by f - eps, with eps > 0 generic and
below all positive values at these theta: then strict signs suffice and, by Sard, at most p of the
zero sets meet, and they meet regularly. Removing a regular hypersurface from a connected manifold
adds at most as many components as the hypersurface has, so there are at most sum_{|J| <= p}
comp(Z_J) cells. Lift Z_J to the graph of the implicit variables of its at most p indices: a union
of components of a closed set, so each carries a critical point of the squared distance to a generic
point. That is a square system of E equations of degree <= l and D Lagrange equations of degree
<= l + M, all solutions nondegenerate, and Khovanskii's theorem bounds their number by 2^beta.
Without a chain and implicit variables, Bezout's theorem bounds it by l^(2p), as the Lagrange
equations then have degree <= l: this is (P'). Affine zero sets are connected: this is (A).
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

Polynomial = Literal["bezout", "warren"]

# Up to this p the binomial coefficient is a product of p factors; above it Robbins' form of
# Stirling's formula is an upper bound that is loose by less than 1 / (49 p^2) bits.
_DIRECT = 256
_LOOSE = 4e-7
# Up to this p the sum over r <= p is complete up to rounding. Above it a geometric series bounds
# what is left after _TERMS terms; where 2p >= N, 2^N bounds the sum, which is loose by less than a
# bit.
_ADDED = 10**6
_TERMS = 10_000
# Up to this p a border within rounding error is decided in exact integers.
_WHOLE = 2_000

# Room for rounding, per bit: the sums below lose less than 2^-46 of their value in doubles.
_SLACK = 2.0**-42
_TELLING = 50  # the border is located to this many leading bits of n


@dataclass(frozen=True)
class Stage:
    """One stage of a decision: `tests` signs per index of functions of `parameters` reals."""

    what: str
    parameters: int  # p
    tests: int  # kappa
    degree: int = 1  # l
    implicit: int = 0  # m
    chain: int = 0  # q
    shared_chain: int = 0  # q0
    chain_degree: int = 1  # M

    def __post_init__(self) -> None:
        assert min(self.parameters, self.tests, self.degree, self.chain_degree) >= 1
        assert min(self.implicit, self.chain, self.shared_chain) >= 0

    @property
    def kind(self) -> Literal["A", "P", "K"]:
        """The letter of the theorem's case."""
        if self.implicit or self.chain or self.shared_chain:
            return "K"
        return "A" if self.degree == 1 else "P"


def log2_cells(hyperplanes: int, dimension: int) -> float:
    """Upper bound on log2 sum_{r <= p} C(N, r), the cells of N hyperplanes in R^p.

    Exact up to rounding and to the looseness of Robbins' formula, below 1e-6 bits.

    >>> round(2 ** log2_cells(10, 2)), round(2 ** log2_cells(10, 8))  # 1 + 10 + 45, 1024 - 10 - 1
    (56, 1013)
    """
    N, p = hyperplanes, dimension
    if p >= N:
        return float(N)
    if 2 * p >= N:
        if p > _ADDED:
            return float(N)
        # 2^N less the sum over r <= N - p - 1, which must be bounded from below here.
        rest = log2_cells(N, N - p - 1) - _LOOSE
        return N + math.log1p(-(2.0 ** (rest - N))) / math.log(2)
    if p <= _DIRECT:
        largest = math.fsum(math.log2((N - j) / (p - j)) for j in range(p))
    else:
        rest = N - p
        largest = (
            p * math.log2(N / p)
            - rest * math.log1p(-p / N) / math.log(2)
            + 0.5 * math.log2(N / (2 * math.pi * p * rest))
            + (1 / (12 * N) - 1 / (12 * p + 1) - 1 / (12 * rest + 1)) / math.log(2)
        )
    # C(N, r-1) / C(N, r) = r / (N - r + 1): the sum over r <= p in units of C(N, p).
    total = term = 1.0
    for r in range(p, max(0, p - _TERMS), -1):
        term *= r / (N - r + 1)
        total += term
        if term < 1e-18:
            break
    if p > _TERMS and term >= 1e-18:
        total += term * (N - p + 1) / (N - 2 * p + 1)
    return min(float(N), largest + math.log2(total))


def cells(hyperplanes: int, dimension: int) -> int:
    """sum_{r <= p} C(N, r), exact."""
    total = term = 1
    for r in range(1, min(dimension, hyperplanes) + 1):
        term = term * (hyperplanes - r + 1) // r
        total += term
    return total


@cache
def chain_exponent(stage: Stage) -> float:
    """The exponent beta of (K), from Khovanskii's theorem."""
    p, l, M = stage.parameters, stage.degree, stage.chain_degree  # noqa: E741
    Q = stage.shared_chain + p * stage.chain
    D = E = p * (stage.implicit + 1)
    last = min(Q, D + E) * M + E * l + D * (l + M) - D - E + 1
    return Q * (Q - 1) / 2 + E * math.log2(l) + D * math.log2(l + M) + Q * math.log2(last)


def log2_gamma(stage: Stage, n: int, polynomial: Polynomial = "bezout") -> float:
    """log2 of the number of outcomes of one stage over n indices, bounded above.

    `polynomial` chooses between (P') and (P) for tests of higher degree.

    >>> log2_gamma(Stage("readout", parameters=3, tests=1), 3)
    3.0
    """
    N, p = n * stage.tests, stage.parameters
    if stage.kind == "P" and polynomial == "warren":
        # The theorem requires N >= p. Deep stacks have degrees too large for a float.
        degree = min(stage.degree, 1 << 64)
        more = math.log2(stage.degree) - 64 if stage.degree > degree else 0.0
        return min(float(N), 1 + p * (math.log2(2 * math.e * max(N, p) * degree / p) + more))
    extra = 0.0
    if stage.kind == "P":
        extra = 2 * p * math.log2(stage.degree)
    elif stage.kind == "K":
        extra = chain_exponent(stage)
    return min(float(N), extra + log2_cells(N, p))


def log2_answers(stages: tuple[Stage, ...], n: int, polynomial: Polynomial = "bezout") -> float:
    """log2 of the number of answer vectors over n indices, bounded above by the counting theorem.

    >>> log2_answers((Stage("hidden", 2, 8), Stage("readout", 2, 1)), 10) < 20
    True
    """
    return math.fsum(log2_gamma(stage, n, polynomial) for stage in stages)


@cache
def n_star(stages: tuple[Stage, ...], polynomial: Polynomial = "bezout") -> int:
    """The largest n that the counting theorem does not exclude; every larger n is excluded.

    Each log2 Gamma is concave in n and 0 at n = 0: C(N, p) / sum_{r<=p} C(N, r) increases in N, so
    the growth factor 2 - C(N, p) / sum does not; (P) is a logarithm; the minimum with N keeps both.
    Hence n - sum_s log2 Gamma_s(n), once positive, stays positive, and bisection finds the border.
    Rounding errs on the safe side: an n within rounding error of the border is not excluded, unless
    all tests are affine and p is small, where exact integers decide. Past 2^50 the border is found
    from above, to the resolution of doubles.

    >>> n_star((Stage("readout", parameters=5, tests=1),))
    5
    """
    low, high, factor = 0, max(1, *(stage.parameters // stage.tests for stage in stages)), 2
    while not _excluded(stages, high, polynomial):
        low, high, factor = high, high * factor, factor * factor
    while high - low > 1 + (high >> _TELLING):
        far = high > 4 * low > 0
        middle = math.isqrt(low * high) if far else (low + high) // 2
        if _excluded(stages, middle, polynomial):
            high = middle
        else:
            low = middle
    beyond = (high, high + 1 + (high >> 40), 2 * high, 1000 * high)  # a step that floats resolve
    assert all(_excluded(stages, n, polynomial) for n in beyond), "n* must be a threshold"
    return high - 1


def _excluded(stages: tuple[Stage, ...], n: int, polynomial: Polynomial) -> bool:
    if any(n * stage.tests <= stage.parameters for stage in stages):
        return False  # that stage alone allows 2^n outcomes
    excess = log2_answers(stages, n, polynomial) - n
    if abs(excess) > _SLACK * n:
        return excess < 0
    if len(stages) == 1 and stages[0].kind == "A" and stages[0].tests == 1:
        return True  # n > p hyperplanes in R^p never have 2^n cells
    if any(stage.kind != "A" or stage.parameters > _WHOLE for stage in stages):
        return False
    return math.prod(cells(n * stage.tests, stage.parameters) for stage in stages) < 1 << n
