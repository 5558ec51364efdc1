"""Margins of the constructions that hold for every n at once, evaluated in arb balls.

They are about the formulas in `constructions/`, with every weight as written there, in real
arithmetic; a certificate for one n checks the stored weights instead. The docstrings of those
modules have the proofs. Each bound below either does not depend on n or is least at the least n,
and is evaluated there. A term that both rises and falls with n is replaced by its supremum over all
n. For the formal layers, r = e^{−3} and all suprema are at i = n = 1. The epsilon of a norm counts
in proportion to the width, so the trained bounds end at some width: Mamba2's at about 839,000.
"""

from dataclasses import dataclass
from fractions import Fraction

from flint import arb, ctx, fmpq

from ithbit.display import lower_text, upper_text
from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR, MAMBA2, SOFTMAX
from ithbit.theory.certifiers.exact import Ball, UnsuitableError, exact, need, rounded_down
from ithbit.theory.certifiers.windows import gelu, silu, silu_at
from ithbit.theory.constructions import bert_angle, linear_window
from ithbit.theory.constructions.content import columns, norms
from ithbit.theory.constructions.gru_latch import GROWS, HEAD

_FORMAL_PRECISION, _PRECISION = 80, 128


@dataclass(frozen=True)
class EveryN:
    """A margin that holds for every n, rounded down or as text that may contain n; and why."""

    margin: float | str
    because: str


def _rounded_up(ball: Ball) -> float:
    return -rounded_down(-ball)


def softmax_deviation() -> float:
    """Upper bound on a_k + i in the first softmax layer of the marker recipe, for all n and i.

    sum_{t > i} t r^t + (n + 1)(n + 2 + i) r^{n + 2 + i}. The sum decreases in i, and
    increasing n or i by 1 multiplies the last term by less than 2r < 1. So the worst case is
    i = n = 1: r / (1 − r)^2 − r + 8 r^4.

    >>> upper_text(softmax_deviation(), 4)
    '0.005404'
    """
    with ctx.workprec(_FORMAL_PRECISION):
        r = arb(-3).exp()
        return _rounded_up(r / (1 - r) ** 2 - r + 8 * r**4)


def linear_deviation() -> float:
    """Upper bound on a_k + i in the first linear layer of the marker recipe, for all n and i.

    (sum_l (i + l) r^l + (n + 1)(n + 2 + i) r^{n + 2}) / (1 + 3i). This is (p + q i) / (1 + 3i) with
    p >= q, term by term, so it decreases in i; increasing n by 1 multiplies the last
    term by less than 2r.

    >>> upper_text(linear_deviation(), 4)
    '0.02714'
    """
    with ctx.workprec(_FORMAL_PRECISION):
        r = arb(-3).exp()
        return _rounded_up((r / (1 - r) + r / (1 - r) ** 2 + 8 * r**3) / 4)


def parabola_deviation() -> float:
    """Upper bound on |s_2 − tau_i| in the softmax layer with keys on a parabola, for all n and i.

    2 sum_{D >= 1} e^{−12 i (D^2 − 1/2)} (D (2i + D) + 1/2) + e^{−12 i (i^2 − 1/4)} (2 i^2 + 1/4):
    increasing i by 1 multiplies each term by less than 4 e^{−6} < 1. At i = 1 the terms from D = 5
    on are each below e^{−12 D}, together below e^{−59}.

    >>> upper_text(parabola_deviation(), 4)
    '0.01763'
    """
    with ctx.workprec(_FORMAL_PRECISION):
        near = sum(
            ((-12 * (arb(D**2) - arb(0.5))).exp() * (D * (2 + D) + arb(0.5)) for D in range(1, 5)),
            arb(0),
        )
        return _rounded_up(2 * near + arb(-59).exp() + arb(-9).exp() * arb(2.25))


def every_n(variant: str, family: str) -> EveryN | None:
    """The margin that the closed form guarantees for every n; None for the sketches and the GRU.

    >>> every_n("parabola", "softmax-full").margin
    '1.858'
    """
    if variant == "marker":
        softmax = family.startswith("softmax")
        e = softmax_deviation() if softmax else linear_deviation()
        assert 2 - 6 * e > 1
        return EveryN("1", f"min(1, 2 − 6E) with a deviation E <= {upper_text(e, 4)}")
    if variant == "parabola":
        e = parabola_deviation()
        least = lower_text(8 * (Fraction(1, 4) - Fraction(e)), 4)
        return EveryN(least, f"8 (1/4 − E) with an error E <= {upper_text(e, 5)}")
    exact = {
        "selective": EveryN("1", "small integers, exactly"),
        "time-invariant": EveryN("1", "min(1, 2 − 6E) with a drift E <= 1/8"),
        "scalar": EveryN("n + 4", "small integers, exactly"),
        "pair": EveryN("1", "small integers, exactly"),
    }
    return exact.get(variant)


def trained_every_n(task: str, family: str, width: int = 16, heads: int = 2) -> EveryN | None:
    """The margin of a trained construction that holds for every n, at this width; None where the
    proof does not reach so wide.

    >>> round(trained_every_n("rhi", "softmax-full").margin, 3)
    1.91
    """
    kind = FAMILIES[family].kind
    if kind == "softmax":
        because = "scores fall by the square of the distance to the index, whatever n"
    elif kind == "gru":
        because = "every threshold is met with an exponent of 25 to spare, as weights grow with n"
    else:
        because = "the window's height grows and its tails fall with n, so n = 1 is worst"
    try:
        with ctx.workprec(_PRECISION):
            least = rounded_down(_trained_margin(task, kind, width, heads))
    except UnsuitableError:
        return None
    return EveryN(least, because) if least > 0 else None


def _trained_margin(task: str, kind: str, width: int, heads: int) -> Ball:
    """A lower bound on the margin at every n; `UnsuitableError` if a step of the proof fails."""
    if kind == "softmax":
        return angle_right(width) if task == "rhi" else angle_left(width)
    if kind == "gru":
        return latch()
    return window_linear(task, width, width // heads) if kind == "linear" else window_mamba2(width)


def _sharpness(ratio: Ball) -> Ball:
    """`content.sharpness` in balls."""
    x = (1 / ratio.sqrt()).atan()
    return (1 - x * x / 12) * ratio / (ratio + 1) ** 2 / 2


def _tail(gamma: Ball) -> Ball:
    """2 sum_k e^(−gamma k^2) over k >= 1: two terms, and the rest by a geometric sum."""
    q = (-gamma).exp()
    return 2 * (q + q**4 + q**9 / (1 - q))


def _read(y: Ball, d: int, bit: Ball, eps: Ball) -> Ball:
    """The logit of y, next to content of weighted square at most d, after two LayerNorms."""
    return 4 * bit.sqrt() * y / ((1 + eps) * (d + bit * y * y) + d * eps**2).sqrt()


def angle_right(d: int) -> Ball:
    """The margin of `bert_angle` on RHI, by steps 1 to 3 of its proof."""
    one, place, bit = (arb(x) for x in norms(columns(d, bert_angle.ORDERS["rhi"])))
    eps = arb(exact(SOFTMAX.norm_eps))
    c2 = (one + bit + d * eps) / place
    gamma = bert_angle.GAINS["rhi"] * _sharpness(arb(2))
    r = _tail(gamma)
    own = (-gamma / _sharpness(c2)).exp()
    share = (1 - (1 + 1 / c2).sqrt() * r) / (1 + r + own)
    return _read((d / (place * (c2 + 1))).sqrt() * share, d, bit, eps)


def angle_left(d: int, n: int = 1) -> Ball:
    """The margin of `bert_angle` on LHI, by steps 1 to 4, for this n and all larger ones."""
    one, place, bit, flag, index = (arb(x) for x in norms(columns(d, bert_angle.ORDERS["lhi"])))
    eps = arb(exact(SOFTMAX.norm_eps))
    more = 1 + eps + eps**2
    alpha = (one + bit) / place + d * eps**3 / (place * more)
    b = 6 * arb(n + 2).log() + 60
    loss = ((1 + d * eps / one) * (1 + d * eps / flag)).sqrt()  # the epsilons of two LayerNorms
    # w^2 falls as (n + 2)^(−12 / (sqrt 6 loss)), faster than (n + 1)^−2.
    need(bool(loss < 2), "the norms' epsilons weigh too much at this width")
    to_index = b / arb(6).sqrt() / loss
    leak = (-2 * to_index).exp()  # w^2
    W = 1 / (1 + (n + 1) * (-to_index * ((one + place + bit) / one).sqrt()).exp())
    gain = bert_angle.GAINS["lhi"] * arb(fmpq(3, 4)).sqrt() * _sharpness(arb(2)) / _sharpness(alpha)
    ends = alpha / flag, (alpha + 1) / (flag + index)
    least = gain * W / (more * (1 + eps + eps**2 / 2) * (1 + d * eps / flag)).sqrt()  # G / N^2
    most = gain * (2 * ends[0].max(ends[1]) / ends[0].min(ends[1])).sqrt() * (1 + d * eps / one)
    slip = most * (n + 1) ** 2 * leak  # G (1 − shrink), as shrink >= 1 − w^2
    r = _tail(least * _sharpness(alpha)) * slip.exp()
    rest = 2 * (-least * (1 - leak)).exp()
    share = (1 - leak - (1 + 1 / alpha).sqrt() * r) / (1 + r + rest)
    return _read((d / (place * more * (alpha + 1))).sqrt() * share, d, bit, eps)


def window_linear(task: str, d: int, size: int, n: int = 1) -> Ball:
    """The margin of `linear_window`, by steps 1 to 4, for this n and all larger ones."""
    _, place, bit, index, found = (arb(x) for x in norms(columns(d, linear_window.ORDER)))
    N, T = (n, n + 1) if task == "rhi" else (n + 1, n + 2)
    e, eps = d * arb(exact(LINEAR.norm_eps)), arb(exact(LINEAR.denominator_eps))
    room = index * (8 * N + 8) ** 2  # nu_0 C^2
    sigma = 1 / (1 + (4 * index + e) / room).sqrt()
    need(bool(sigma > arb(fmpq(9, 10))), "the norm is not nearly linear at this width")
    # N (1 − rho) <= N T e^(−K sigma) + N eps / (2 K sigma d_h), K = N + 40 > N, and
    # N (N + 2) e^(−N sigma) < 2 for sigma > 0.9.
    lost = 2 * (-40 * sigma).exp() + eps / (2 * sigma * size)
    delta = N * (4 * index + e) / room + 2 * lost  # delta N
    R = 4 + (2 * arb(N).log()).sqrt()
    seen = 1 / (1 + (4 * place + bit + e) / room).sqrt()
    inside = R * seen * (arb(fmpq(1, 2)) - 2 * delta)
    edge = seen * (arb(fmpq(3, 4)) - delta)  # E = 2 R edge
    psi = gelu()
    tail = psi.at_least(2 * R * edge)
    # N psi(E) <= N phi(E) <= N^(1 − 4 edge^2) e^(−32 edge^2), which decreases in N for edge > 1/2.
    need(bool(edge > arb(fmpq(1, 2))), "the window is too wide at this width")
    tails = arb(N) ** (1 - 4 * edge**2) * (-32 * edge**2).exp()
    signal = inside - 2 * psi.at_least(inside) - 2 * tail
    need(bool(delta < arb(fmpq(1, 4))) and bool(signal > 0), "the window does not open")
    peak = R / 2 + 2 * psi.most + 2 * tail
    normed = 1 / (1 + (4 * place + bit + e + found * peak**2) / room).sqrt()
    return (normed * signal - 4 * tails) * T * size / (T * size + eps)


def window_mamba2(d: int, n: int = 1) -> Ball:
    """The margin of `mamba2_window`, by steps 1 to 4, for this n and all larger ones."""
    N, T = n + 1, n + 2
    e = d * arb(exact(MAMBA2.norm_eps))
    C = arb(8 * N + 8)
    sigma = 1 / (1 + (2 + e) / C**2).sqrt()
    seen = 1 / (1 + (arb(fmpq(301, 100)) + e) / C**2).sqrt()
    strength = arb(2).log() * silu_at(arb(1)) ** 2 * silu_at(seen)
    noise = e / (strength / 2) ** 2
    # N / M^2 = N / (8N + 40)^2 <= 1 / 1280 for every N, and N e^(−M sigma) decreases.
    delta = (1 + noise) / (2 * 1280 * sigma**2) + 3 * N * (-(8 * N + 40) * sigma).exp()
    R = 8 + arb(N).log()
    kappa = 2 * N * R
    inside = R * seen * (arb(fmpq(1, 2)) - 2 * delta)
    edge = seen * (arb(fmpq(3, 4)) - delta)
    E = 2 * R * edge
    psi = silu()
    # N psi(E) <= N E e^(−E), which decreases in N where 1 + 1/R < 2 edge.
    need(bool(2 * edge > 1 + 1 / R), "the window is too wide at this width")
    tails = 4 * N * E * (-E).exp()
    signal = (inside - 2 * psi.at_least(inside) - 2 * psi.at_least(E)) / 2 - tails
    need(bool(delta < arb(fmpq(1, 4))) and bool(signal > 0), "the window does not open")
    channel = (5 + arb(fmpq(1, 4 * N)) + delta) * T * kappa
    mark = 10 * T * kappa * signal / (6 * channel**2 + noise).sqrt()  # a_5 / C
    return 2 / (1 + (1 + (arb(fmpq(101, 100)) + e) / C**2) / mark**2).sqrt()


def latch(n: int | None = None) -> Ball:
    """The margin of `gru_latch` at this n, by steps 1 to 3; without n, at every n, by step 4."""
    N, shortest = (GROWS, 2) if n is None else (n + 1, n + 1)
    B = 60 + 3 * (arb(N) / GROWS).log().max(arb(0))
    slip = 2 * B * N * (N + 2) * (-B).exp()  # E1
    late = 2 * B * N * ((2 * slip - 5 * B / 6).exp() + (-B).exp())  # E2
    opening = (late - 5 * B / 12).exp()
    leak = 2 * shortest * (slip + late - B * shortest).exp()
    return arb(HEAD) * (1 - 2 * opening - 2 * arb(-60).exp() - leak)
