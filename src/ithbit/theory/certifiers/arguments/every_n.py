"""Closed forms: the constructions' margins for every n at once, with constants in arb balls.

These speak of the formulas in `constructions/`, with every weight as written there; a certificate
for one n checks the stored weights instead. r = e^{−3}; all suprema are at i = n = 1.
"""

from dataclasses import dataclass
from typing import Any

from flint import arb, ctx

_PRECISION = 80


@dataclass(frozen=True)
class EveryN:
    """A margin that holds for every n, as text with n free, and the deviation it rests on.

    `deviation` is an upper bound, rounded up; 0 where the construction is exact.
    """

    margin: str
    deviation: float
    because: str


def _upper(ball: Any) -> float:
    return float(ball.upper())


def softmax_deviation() -> float:
    """Upper bound of a_k + i in the first softmax layer of the marker recipe; for all n and i.

    sum_{t > i} t r^t + (n + 1)(n + 2 + i) r^{n + 2 + i}. The sum decreases in i; in the last term a
    step of n or i multiplies by less than 2r < 1. So the worst is i = n = 1:
    r / (1 − r)^2 − r + 8 r^4.

    >>> round(softmax_deviation(), 6)
    0.005403
    """
    with ctx.workprec(_PRECISION):
        r = arb(-3).exp()
        return _upper(r / (1 - r) ** 2 - r + 8 * r**4)


def linear_deviation() -> float:
    """Upper bound of a_k + i in the first linear layer of the marker recipe; for all n and i.

    (sum_l (i + l) r^l + (n + 1)(n + 2 + i) r^{n + 2}) / (1 + 3i). This is (p + q i) / (1 + 3i) with
    p >= q, term by term, so it decreases in i; a step of n multiplies the last term by
    less than 2r.

    >>> round(linear_deviation(), 6)
    0.027131
    """
    with ctx.workprec(_PRECISION):
        r = arb(-3).exp()
        return _upper((r / (1 - r) + r / (1 - r) ** 2 + 8 * r**3) / 4)


def parabola_deviation() -> float:
    """Upper bound of |s_2 − tau_i| in the softmax layer with keys on a parabola; for all n and i.

    2 sum_{D >= 1} e^{−12 i (D^2 − 1/2)} (D (2i + D) + 1/2) + e^{−12 i (i^2 − 1/4)} (2 i^2 + 1/4): a
    step of i multiplies each term by less than 4 e^{−6} < 1. At i = 1 the terms from D = 5 on are
    below e^{−12 D}, together below e^{−59}.

    >>> round(parabola_deviation(), 6)
    0.017629
    """
    with ctx.workprec(_PRECISION):
        near = sum(
            ((-12 * (arb(D**2) - arb(0.5))).exp() * (D * (2 + D) + arb(0.5)) for D in range(1, 5)),
            arb(0),
        )
        return _upper(2 * near + arb(-59).exp() + arb(-9).exp() * arb(2.25))


def every_n(variant: str, family: str) -> EveryN | None:
    """What the closed form promises for every n; None for the sketches and the GRU.

    >>> every_n("parabola", "softmax-full").margin
    '1.858'
    """
    if variant == "marker":
        softmax = family.startswith("softmax")
        e = softmax_deviation() if softmax else linear_deviation()
        assert 2 - 6 * e > 1
        return EveryN("1", e, f"min(1, 2 − 6E) with a deviation E <= {e:.6f}")
    if variant == "parabola":
        e = parabola_deviation()
        floor = int(8 * (0.25 - e) * 1000) / 1000
        return EveryN(f"{floor}", e, f"8 (1/4 − E) with an error E <= {e:.6f}")
    exact = {
        "selective": EveryN("1", 0.0, "small integers, exactly"),
        "time-invariant": EveryN("1", 0.125, "min(1, 2 − 6E) with a drift E <= 1/8"),
        "scalar": EveryN("n + 4", 0.0, "small integers, exactly"),
        "pair": EveryN("1", 0.0, "small integers, exactly"),
    }
    return exact.get(variant)
