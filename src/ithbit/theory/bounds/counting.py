"""The counting theorem: how many answer vectors a staged decision can give at most, and n*.

With the weights fixed, what a causal layer keeps of the bits is a point theta in R^p (its
*fingerprint*), and a solution of an indexing task must give all 2^n answer vectors over the n
indices as theta varies. Let the decision on each index be computed in stages; given the outcomes
of the earlier stages over all n indices, stage s makes kappa sign tests 1[f > 0] per index, each f
a single function of theta on all of R^p. Then there are at most prod_s Gamma_s(n) answer vectors,
so solving implies n <= sum_s log2 Gamma_s(n). With N = n kappa, Gamma is

    (A)  affine tests:         sum_{r<=p} C(N, r)
    (A)  winner of V affine functions per index, in the last stage:  sum_{r<=p} C(n, r) (V - 1)^r
    (P)  degree <= l, Warren:  2 (2 e N l / p)^p          Anthony-Bartlett, Theorem 8.3, cited
    (P') degree <= l, Bezout:  l^(2p) sum_{r<=p} C(N, r)  proved here, no cited constant
    (K)  degree <= l with m implicit variables and a Pfaffian chain of q functions per index and
         q0 shared ones, of chain degree M:  2^beta sum_{r<=p} C(N, r), where
         Q = q0 + p q,  D = E = p (m + 1),  beta = Q (Q-1) / 2 + E log2 l + D log2(l + M)
                          + Q log2(min(Q, D+E) M + E l + D (l + M) - D - E + 1)

and never more than 2^N, or V^n for V values.

*V values.* If an answer is one of V values, the strict greatest of V functions, there are V^n
answer vectors, so solving implies n log2 V <= sum_s log2 Gamma_s(n). Affine functions are counted
by Lemma 1; for any others the last stage makes its tests for each of the V (V - 1) / 2 differences,
so N = n kappa V (V - 1) / 2 there. A positive factor common to all V functions may be left out.

*Queries of several tokens.* The layers take one step for each of t tokens, all from the same theta.
A stage of step j makes its tests once for every beginning of j tokens: at most n of them, and at
most A^j over A symbols.

*Lemma 1.* Let g_(q,v) be affine on R^p, for n units q of V values v each. At most sum_{r<=p}
C(n, r) (V - 1)^r vectors w have a theta with g_(q,w_q) > g_(q,v) for all q and all v other than
w_q. The proof is in docs/recall.md; V = 2 counts cells.

Proof. *Every test has its own epsilon.* Pick one theta for each vector of outcomes that occurs:
finitely many. Every test f_j becomes f_j - eps_j, with 0 < eps_j below all positive values of f_j
at the picked theta. There f_j > 0 means f_j - eps_j > 0 and f_j <= 0 means f_j - eps_j < 0: the
outcomes stay what they were, and no value is 0. So the picked theta lie in different components of
the complement of the N sets {f_j = eps_j}: one set per test, since outcomes have two values, not
three. By Sard's theorem almost every choice of (eps_j) is a regular value of (f_j), j in J, for
every set J of tests: then Z_J = {f_j = eps_j for j in J} is a manifold of codimension |J|, empty if
|J| > p. (With one epsilon for all tests it need not be: two equal tests have the same zero set, and
the diagonal of the epsilons has measure 0, so Sard's theorem says nothing about it.)

*Cells.* Let a regular hypersurface be removed from a manifold. Each of its components borders at
most two components of the rest, and these borders connect what was connected, so at most one
component is added for each. Removing the sets one after the other, and the same inside each Z_J,
gives at most sum_{|J| <= p} comp(Z_J) cells, with comp(Z_J) = 1 for J empty.

*Components.* Lift Z_J to the graph of the implicit variables of its r <= |J| indices, in R^(p+rm).
It is closed, and a union of components of the set of solutions: every implicit equation is regular
at its own variable. So each component carries a point nearest to a generic point, where x - a = sum
lambda_e grad g_e: at most E equations g_e = 0 of degree <= l and at most D of degree 1 + (l - 1) +
M = l + M, in the unknowns x and lambda. For almost every a all solutions on the graph are
nondegenerate, and Khovanskii's theorem bounds the nondegenerate solutions by 2^beta, which
increases with E, D and Q. Without a chain and implicit variables, Bezout's theorem bounds their
number by l^(2p), as the Lagrange equations then have degree <= l: this is (P'). Affine zero sets
are connected: this is (A).

*Denominators that may vanish.* If a function is defined only where some denominators are positive,
as they are at every true fingerprint, each of these is a test too. Take them first, in the order in
which they are needed, and keep only the cells where they exceed their epsilons: there everything
after them is defined. The lift stays closed, since w den = 1 keeps den away from 0 and w positive.

*Ties.* 1[f > 0] does not tell f = 0 from f < 0. It need not: a solution is strict, so the logit is
never 0 where it is asked for, and at the kink of ReLU or ELU both branches have the same value.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Bracket = tuple[int, int]  # a number below a border and one past it
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
# Room for rounding, per bit: the sums below lose less than 2^-46 of their value in doubles.
_SLACK = 2.0**-42
_FASTEST = 2**16  # growth of the numbers tried: counts of values as many stay in float range
_STEPS = 20  # from the number that doubles find to the border


@dataclass(frozen=True)
class Stage:
    """One stage of a decision: `tests` signs per index of functions of `parameters` reals."""

    what: str = field(compare=False)
    parameters: int  # p
    tests: int  # kappa
    degree: int = 1  # l
    implicit: int = 0  # m
    chain: int = 0  # q
    shared_chain: int = 0  # q0
    chain_degree: int = 1  # M
    values: int = 2  # V: in the last stage, the greatest of V functions wins; 2 is a sign
    words: int = 0  # of the query, so far, if fewer than there are indices; 0: as many as indices

    def __post_init__(self) -> None:
        assert min(self.parameters, self.tests, self.degree, self.chain_degree) >= 1
        assert self.values >= 2
        assert min(self.implicit, self.chain, self.shared_chain) >= 0

    @property
    def kind(self) -> Literal["A", "P", "K"]:
        """The letter of the theorem's case."""
        if self.implicit or self.chain or self.shared_chain:
            return "K"
        return "A" if self.degree == 1 else "P"

    @property
    def winners(self) -> bool:
        """Whether Lemma 1 counts it."""
        return self.kind == "A" and self.tests == 1 and self.values > 2

    def signs(self, n: int) -> int:
        """N, the sign tests over n indices: every two of the V functions are compared."""
        n = min(n, self.words or n)
        return n * self.tests * (self.values * (self.values - 1) // 2)


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
    return log2_winners(N, p, 2)


def log2_winners(units: int, dimension: int, values: int) -> float:
    """Upper bound on log2 sum_{r <= p} C(n, r) (V - 1)^r, Lemma 1; at most a bit above it.

    >>> round(2 ** log2_winners(10, 2, 3)), round(2 ** log2_winners(3, 3, 4))  # 1 + 20 + 180, 4^3
    (201, 64)
    """
    n, p, u = units, dimension, values - 1
    if p >= n or p * values >= n * u:  # from the mean on: half of all vectors or more
        return n * math.log2(values)
    total, term = last_terms(n, p, u, 1.0, 1e-18)
    if p > _TERMS and term >= 1e-18:
        total += term * ((n - p + 1) * u) / ((n - p + 1) * u - p)
    return min(n * math.log2(values), _log2_choose(n, p) + p * math.log2(u) + math.log2(total))


def _log2_choose(N: int, p: int) -> float:
    """log2 C(N, p), up to rounding, or from above by Robbins' formula."""
    if p <= _DIRECT:
        return math.fsum(math.log2((N - j) / (p - j)) for j in range(p))
    rest = N - p
    return (
        p * math.log2(N / p)
        - rest * math.log1p(-p / N) / math.log(2)
        + 0.5 * math.log2(N / rest / (2 * math.pi * p))
        + (1 / (12 * N) - 1 / (12 * p + 1) - 1 / (12 * rest + 1)) / math.log(2)
    )


def last_terms(n: int, p: int, weight: Any, one: Any, small: Any) -> tuple[Any, Any]:
    """sum_{r <= p} C(n, r) a^r in units of its last term, without terms below `small` and all but
    the last `_TERMS`, and the smallest term of it. Their ratios are r / (n - r + 1) / a."""
    total = term = one
    for r in range(p, max(0, p - _TERMS), -1):
        term *= r / ((n - r + 1) * weight)
        total += term
        if term < small:
            break
    return total, term


def cells(hyperplanes: int, dimension: int, values: int = 2) -> int:
    """sum_{r <= p} C(N, r) (V - 1)^r, exact."""
    total = term = 1
    for r in range(1, min(dimension, hyperplanes) + 1):
        term = term * (hyperplanes - r + 1) * (values - 1) // r
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
    N, p = stage.signs(n), stage.parameters
    most = float(N) if stage.values == 2 else n * math.log2(stage.values)
    if stage.winners:
        return log2_winners(n, p, stage.values)
    if stage.kind == "P" and polynomial == "warren":
        # The theorem requires N >= p. Deep stacks have degrees too large for a float.
        degree = min(stage.degree, 1 << 64)
        more = math.log2(stage.degree) - 64 if stage.degree > degree else 0.0
        return min(most, 1 + p * (math.log2(2 * math.e * max(N, p) * degree / p) + more))
    extra = 0.0
    if stage.kind == "P":
        extra = 2 * p * math.log2(stage.degree)
    elif stage.kind == "K":
        extra = chain_exponent(stage)
    return min(most, extra + log2_cells(N, p))


def log2_answers(stages: tuple[Stage, ...], n: int, polynomial: Polynomial = "bezout") -> float:
    """log2 of the number of answer vectors over n indices, bounded above by the counting theorem.

    >>> log2_answers((Stage("hidden", 2, 8), Stage("readout", 2, 1)), 10) < 20
    True
    """
    found = {stage: log2_gamma(stage, n, polynomial) for stage in set(stages)}
    return math.fsum(found[stage] for stage in stages)


@cache
def n_star(stages: tuple[Stage, ...], polynomial: Polynomial = "bezout") -> int:
    """The largest n that the counting theorem does not exclude; every larger n is excluded.

    Each log2 Gamma is concave in n and 0 at n = 0: with a = sum_{r<=p} C(N, r) u^r, u = V - 1, the
    growth factor is 1 + u - u C(N, p) u^p / a, and C(N, p) u^p / a increases in N; (P) is a
    logarithm; the minimum with a multiple of n keeps both, as does a limit on n. Hence
    n log2 V - sum_s log2 Gamma_s(n), once positive, stays positive, and bisection finds the border:
    doubles locate it, balls decide it (`ithbit.theory.bounds.borders`).

    >>> n_star((Stage("readout", parameters=5, tests=1),))
    5
    >>> n_star((Stage("hidden", 16, 64), Stage("readout", 16, 1, values=4096)))
    28
    """
    from ithbit.theory.bounds.borders import excluded, largest_after

    def past(n: int) -> bool:
        return excluded(stages, n, polynomial)

    low, high = _located(stages, polynomial)
    while not past(high):
        low, high = high, 2 * high
    # From above: in few steps where the count hardly grows, else by bisection.
    for _ in range(_STEPS):
        last = largest_after(stages, high, polynomial)
        if not past(last):
            return last
        high = last
    while past(low):
        low //= 2
    return bracketed(past, low, high)[0]


def bracketed(past: Callable[[int], bool], low: int, high: int, bits: int | None = None) -> Bracket:
    """Where a test turns from false to true: two neighbours past `low`, or with `bits` two numbers
    that agree in about so many bits; `high` may be too low."""
    factor = 2
    while not past(high):
        low, high, factor = high, high * factor, min(factor * factor, _FASTEST)
    while high - low > 1 + (0 if bits is None else high >> bits):
        middle = math.isqrt(low * high) if high > 4 * low > 0 else (low + high) // 2
        low, high = (low, middle) if past(middle) else (middle, high)
    return low, high


def _located(stages: tuple[Stage, ...], polynomial: Polynomial) -> Bracket:
    """Numbers about the border in doubles: at `high` an excess is beyond rounding, at `low` not."""
    each = math.log2(stages[-1].values)

    def beyond(n: int) -> bool:
        if stages[-1].values == 2 and any(n <= s.signs(n) <= s.parameters for s in stages):
            return False
        return log2_answers(stages, n, polynomial) - n * each < -_SLACK * n * each

    first = max(1, *(stage.parameters // stage.tests for stage in stages))
    return bracketed(beyond, 0, first, bits=40)
