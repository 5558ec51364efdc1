"""Numbers that write down the system of equations behind them, for the counting theorem (K).

A decision is run on `Term` numbers. Parameters are the coordinates of the fingerprint theta. What
depends on the index alone is a plain float and free. Everything else is a polynomial in parameters,
implicit variables and functions of a Pfaffian chain, kept as an expression together with its value.
`System` has the only ways to make a new implicit variable or chain function, and each refuses what
the theorem does not allow:

    keep(x, den)   y with y den = x           den must be positive everywhere
    inverse(den)   w with w den = 1           a den that may vanish becomes one more test
    rsqrt(v)       rho > 0 with rho^2 v = 1   v must be positive everywhere
    log(u)         y with e^y = u             u must be positive everywhere
    exp(a)         e^a                        a must be affine in parameters and implicit variables
    gelu(u)        u Phi(u)                   u likewise; the chain is e^(-u^2/2), Phi(u)

So every implicit equation can be solved for its own variable, in the order in which they are made,
and is regular there. Exponentials that differ by a factor are one chain function.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Scalar = Any  # float or Term: the decisions are the same program for both
Vector = Sequence[Scalar]
Matrix = Sequence[Sequence[float]]

_PRIME = (1 << 61) - 1


class NotAllowedError(Exception):
    """The theorem does not allow this step."""


class Term:
    """A polynomial with its value: degree bound, sign if it is known everywhere, linear part."""

    __slots__ = ("args", "degree", "linear", "op", "sign", "value")

    def __init__(self, op, args, value, degree, sign="", linear=None):
        self.op, self.args, self.value, self.degree = op, args, value, degree
        self.sign = sign  # "+": positive for all theta; "0": never negative; "": unknown
        self.linear = linear  # coefficients if affine in parameters and implicit variables

    def __add__(self, other):
        if not isinstance(other, Term):
            other = constant(other)
        both = {self.sign, other.sign}
        sign = "" if "" in both else "+" if "+" in both else "0"
        linear = None
        if self.linear is not None and other.linear is not None:
            linear = dict(self.linear)
            for symbol, factor in other.linear.items():
                linear[symbol] = linear.get(symbol, 0.0) + factor
        degree = max(self.degree, other.degree)
        return Term("+", (self, other), self.value + other.value, degree, sign, linear)

    __radd__ = __add__

    def __mul__(self, other):
        if not isinstance(other, Term):
            other = constant(other)
        sign = "".join(sorted({self.sign, other.sign})) if self.sign and other.sign else ""
        sign = sign if sign in ("+", "0") else "0" if sign else ""
        if other is self:
            sign = "+" if sign == "+" else "0"
        linear = None
        for a, b in ((self, other), (other, self)):
            if a.op == "constant" and b.linear is not None:
                linear = {symbol: a.value * factor for symbol, factor in b.linear.items()}
        degree = self.degree + other.degree
        return Term("*", (self, other), self.value * other.value, degree, sign, linear)

    __rmul__ = __mul__

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -1.0 * other

    def __rsub__(self, other):
        return -self + other


def constant(value: float) -> Term:
    sign = "+" if value > 0 else "" if value < 0 else "0"
    return Term("constant", (), float(value), 0, sign, {})


def value_of(x: Scalar) -> float:
    return x.value if isinstance(x, Term) else float(x)


def total(values: Vector) -> Scalar:
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def dot(a: Vector, b: Vector) -> Scalar:
    return total([x * y for x, y in zip(a, b, strict=True)])


def matvec(matrix: Matrix, x: Vector) -> list[Scalar]:
    return [dot(x, row) for row in matrix]


def affine(matrix: Matrix, bias: Sequence[float], x: Vector) -> list[Scalar]:
    return [u + b for u, b in zip(matvec(matrix, x), bias, strict=True)]


def add(a: Vector, b: Vector) -> list[Scalar]:
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass
class System:
    """What one index's decision consists of, at one stage."""

    parameters: list[Term] = field(default_factory=list)
    implicit: list[Term] = field(default_factory=list)
    equations: list[Term] = field(default_factory=list)
    chain: dict[tuple, Term] = field(default_factory=dict)
    tests: list[Term] = field(default_factory=list)
    chain_degree: int = 1

    def parameter(self, value: float) -> Term:
        name = ("theta", len(self.parameters))
        found = Term("symbol", name, float(value), 1, linear={name: 1.0})
        self.parameters.append(found)
        return found

    def fingerprint(self, values: Sequence[float]) -> list[Term]:
        return [self.parameter(value) for value in values]

    def squared(self, values: Sequence[float]) -> list[Term]:
        """Numbers that are never negative, as the squares of parameters."""
        roots = [self.parameter(math.sqrt(value)) for value in values]
        return [root * root for root in roots]

    def _variable(self, value: float, sign: str = "") -> Term:
        name = ("implicit", len(self.implicit))
        found = Term("symbol", name, value, 1, sign, {name: 1.0})
        self.implicit.append(found)
        return found

    def _equation(self, equation: Term) -> None:
        scale = max([1.0, *(abs(arg.value) for arg in equation.args)])
        assert abs(equation.value) <= 1e-9 * scale, "the equation holds at the value"
        self.equations.append(equation)

    def keep(self, x: Scalar, den: Scalar = 1.0) -> Scalar:
        """x / den as a variable of its own."""
        if not isinstance(x, Term) and not isinstance(den, Term):
            return x / den
        if isinstance(den, Term) and den.sign != "+":
            raise NotAllowedError("the denominator may vanish")
        y = self._variable(value_of(x) / value_of(den))
        self._equation(y * den - x)
        return y

    def inverse(self, den: Scalar) -> Scalar:
        """1 / den, which is positive at every true fingerprint."""
        if not isinstance(den, Term):
            return 1 / den
        if den.sign != "+":
            self.tests.append(den)
        w = self._variable(1 / den.value, "+")
        self._equation(w * den - 1.0)
        return w

    def rsqrt(self, v: Scalar) -> Scalar:
        """1 / sqrt(v)."""
        if not isinstance(v, Term):
            return 1 / math.sqrt(v)
        if v.sign != "+":
            raise NotAllowedError("the root may not exist")
        rho = self._variable(v.value**-0.5, "+")
        self._equation(rho * rho * v - 1.0)
        return rho

    def exp(self, a: Scalar) -> Scalar:
        if not isinstance(a, Term):
            return math.exp(a)
        return self._chained("exp", a)

    def log(self, u: Scalar) -> Scalar:
        if not isinstance(u, Term):
            return math.log(u)
        if u.sign != "+":
            raise NotAllowedError("the logarithm may not exist")
        y = self._variable(math.log(u.value))
        self._equation(self.exp(y) - u)
        return y

    def gelu(self, u: Scalar) -> Scalar:
        if not isinstance(u, Term):
            return u * _phi(u)
        self.chain_degree = 2  # d/du e^(-u^2/2) = -u e^(-u^2/2)
        self._chained("gauss", u)
        return u * self._chained("Phi", u)

    def _chained(self, kind: str, a: Term) -> Term:
        """The chain function of an affine argument; factors of exponentials are constants."""
        if a.linear is None:
            raise NotAllowedError("chain functions take affine arguments")
        form = {symbol: c for symbol, c in sorted(a.linear.items()) if c}
        offset = 0.0
        if kind == "exp":
            values = {s.args: s.value for s in (*self.parameters, *self.implicit)}
            offset = a.value - sum(c * values[symbol] for symbol, c in form.items())
        key = (kind, a.value if kind != "exp" else None, *form.items())
        if key not in self.chain:
            at = a.value - offset
            found = {"exp": math.exp, "gauss": lambda u: math.exp(-u * u / 2), "Phi": _phi}[kind](
                at
            )
            self.chain[key] = Term("symbol", ("chain", len(self.chain)), found, 1, "+")
        symbol = self.chain[key]
        return symbol * math.exp(offset) if kind == "exp" else symbol

    def test(self, f: Scalar) -> None:
        """One sign test; a constant is none."""
        if isinstance(f, Term):
            self.tests.append(f)

    @property
    def degree(self) -> int:
        """The largest degree of an equation or test, by the rules for sums and products."""
        return max((term.degree for term in (*self.equations, *self.tests)), default=0)

    def measured_degree(self) -> int:
        """The same on a random line, by differences modulo a prime: no rule for degrees is used."""
        rng = random.Random(0)
        line = {
            symbol.args: (rng.randrange(_PRIME), rng.randrange(_PRIME))
            for symbol in (*self.parameters, *self.implicit, *self.chain.values())
        }
        roots = [*self.equations, *self.tests]
        rows = [_evaluated(roots, line, t) for t in range(self.degree + 2)]
        degree = -1
        while any(value for row in rows for value in row):
            rows = [
                [(b - a) % _PRIME for a, b in zip(first, second, strict=True)]
                for first, second in pairwise(rows)
            ]
            degree += 1
            assert rows, "the degree exceeds its bound"
        return degree

    def shared_with(self, other: "System") -> set[tuple]:
        """Chain functions of theta alone that both have."""
        return {key for key in self.chain if key in other.chain and _of_theta(key)}


def _of_theta(key: tuple) -> bool:
    return all(symbol[0] == "theta" for symbol, _ in key[2:])


def _phi(u: float) -> float:
    return (1 + math.erf(u / math.sqrt(2))) / 2


def _evaluated(roots: list[Term], line: dict, t: int) -> list[int]:
    """The terms at a point of the line, modulo the prime; every expression once."""
    found: dict[int, int] = {}
    for root in roots:
        waiting = [root]
        while waiting:
            term = waiting[-1]
            if id(term) in found:
                waiting.pop()
            elif term.op == "constant":
                top, bottom = term.value.as_integer_ratio()
                found[id(term)] = top * pow(bottom, -1, _PRIME) % _PRIME
            elif term.op == "symbol":
                start, step = line[term.args]
                found[id(term)] = (start + t * step) % _PRIME
            elif missing := [arg for arg in term.args if id(arg) not in found]:
                waiting += missing
            else:
                a, b = (found[id(arg)] for arg in term.args)
                found[id(term)] = (a + b if term.op == "+" else a * b) % _PRIME
    return [found[id(root)] for root in roots]
