"""Six units that open a window at one place: what they write at the index, and at most elsewhere.

The common part of the arguments for linear attention and Mamba2 (see the heads of
`constructions/trained/linear_window.py` and `mamba2_window.py`). Units come in two groups of three
that differ in the sign h with which they read the bit; at a token with content a_0 = C, a_1, bit ±v
the group that opens sees s L_mu, L_mu = u_1 a_1 + u_0mu C − h v, the other s (L_mu + 2 h v). They
write ±z (1, −2, 1). Where all three L_mu have the same sign, the ReLUs cancel up to
residue = |u_0− − 2 u_00 + u_0+| C, which is due to rounding. The activation is ReLU − psi.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flint import arb, fmpq

from ithbit.theory.certifiers.arithmetic.exact import Ball, Rational
from ithbit.theory.certifiers.bound import need
from ithbit.theory.certifiers.trained.reading import Matrix, only


@dataclass(frozen=True)
class Activation:
    """ReLU − psi with 0 <= psi <= most; psi decreases from `falls` on."""

    psi: Callable[[Ball], Ball]
    falls: Ball
    most: Ball

    def at_least(self, x: Ball) -> Ball:
        """An upper bound on psi at all points at least x away from 0."""
        return self.psi(x.lower()).upper() if bool(x.lower() >= self.falls) else self.most


def gelu() -> Activation:
    """psi(x) = x Q(x), Q the normal tail; psi' = Q − x phi < 0 from 0.76 on.

    (Q − x phi)' = (x^2 − 2) phi: it falls up to sqrt 2 and then rises to its limit 0, and it is
    negative at 0.76. The maximum is 0.16997.
    """
    return Activation(
        lambda x: x * (x / arb(2).sqrt()).erfc() / 2, arb(fmpq(76, 100)), arb(fmpq(17, 100))
    )


def silu_at(x: Ball) -> Ball:
    return x / (1 + (-x).exp())


def silu() -> Activation:
    """psi(x) = x / (1 + e^x), falling where 1 + e^x (1 − x) < 0, from 1.28 on; at most 0.2785."""
    return Activation(lambda x: x / (1 + x.exp()), arb(fmpq(128, 100)), arb(fmpq(2785, 10000)))


@dataclass(frozen=True)
class Units:
    """The six units: what they read of place, constant and bit, and what they write."""

    place: Rational  # u_1
    constant: tuple[Rational, Rational, Rational]  # u_0 of the three, rising
    bit: Rational  # h > 0
    writes: Rational  # z > 0


def units(rows: Matrix, writes: list[Rational]) -> Units:
    """The units behind the rows that write something."""
    one, place, bit = range(3)  # the first contents, as in `bits_of`
    groups: dict[bool, list[tuple[Rational, Rational, Rational]]] = {True: [], False: []}
    found = [(row, z) for row, z in zip(rows, writes, strict=True) if z != 0]
    need(len(found) == 6, f"six units must write, found {len(found)}")
    for row, _ in found:
        only(row, {one, place, bit}, "a unit")
        need(row[place] == found[0][0][place] and row[place] > 0, "units must read the place alike")
        need(abs(row[bit]) == abs(found[0][0][bit]) and row[bit] != 0, "units must read ±bit alike")
    for row, z in found:
        groups[row[bit] < 0].append((row[one], z, row[bit]))
    plus, minus = (sorted(groups[key]) for key in (True, False))
    need(len(plus) == len(minus) == 3, "three units must read the bit with each sign")
    need(
        [x for x, *_ in plus] == [x for x, *_ in minus], "both groups must read the constant alike"
    )
    z = plus[0][1]
    need(z > 0, "the group that opens at 1 must write towards 1")
    need([w for _, w, _ in plus] == [z, -2 * z, z], "units must write in the ratio 1, −2, 1")
    need([w for _, w, _ in minus] == [-z, 2 * z, -z], "the groups must write with opposite signs")
    low3, mid, top = (x for x, *_ in plus)
    return Units(found[0][0][place], (low3, mid, top), abs(found[0][0][bit]), z)


@dataclass(frozen=True)
class Opened:
    """A mark: at least `signal` and at most `peak` at the index, at most `tail` elsewhere."""

    signal: Ball
    peak: Ball
    tail: Ball


@dataclass(frozen=True)
class Window:
    """Units on tokens whose place has been moved by the index."""

    units: Units
    activation: Activation
    constant: Rational  # C
    value: Rational  # v
    step: Rational  # between neighbouring places

    def opened(self, offset: Ball, lowest: Ball, least: Ball, most: Ball) -> Opened:
        """What the window writes if a_1 is `offset` at the asked bit.

        `lowest` is the least a_1 of any bit, and the norm's scale lies between least and most.
        """
        u, C = self.units, self.constant
        first, middle, last = (arb(x * C - u.bit * self.value) for x in u.constant)
        up, down = last - middle, middle - first
        tau = abs(arb(u.place) * offset + middle)
        slack = (up - tau).min(down - tau)
        need(bool(slack > 0), "the window misses its place")
        across = arb(u.place * self.step) - tau - up.max(down)
        beside = arb(u.place) * lowest + first + arb(2 * u.bit * self.value)
        edge = across.min(beside)
        need(bool(edge > 0), "the window is open at another place")
        psi, z = self.activation.at_least(least * edge), arb(u.writes)
        residue = most * abs(arb((u.constant[0] - 2 * u.constant[1] + u.constant[2]) * C))
        inside = least * (up - tau).lower()
        signal = inside - 2 * self.activation.at_least(least * slack) - 2 * psi - residue
        peak = most * up + 2 * self.activation.most + 2 * psi + residue
        return Opened(
            (z * signal).lower(), (z * peak).upper(), (z * (4 * psi + 2 * residue)).upper()
        )
