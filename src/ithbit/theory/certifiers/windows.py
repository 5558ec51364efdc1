"""Linear attention and Mamba2 with a window: the margin over all inputs, in O(n) balls.

The arguments of `constructions/linear_window.py` and `mamba2_window.py`, with the numbers of the
stored weights. Common to both are six units that open a window at one place. Units come in two
groups of three that differ in the sign h with which they read the bit; at a token with content a_0
= C, a_1, bit ±v the group that opens sees s L_mu, L_mu = u_1 a_1 + u_0mu C − h v, the other s (L_mu
+ 2 h v). They write ±z (1, −2, 1). Where all three L_mu have the same sign, the ReLUs cancel up to
residue = |u_0− − 2 u_00 + u_0+| C, which is due to rounding. The activation is ReLU − psi.

Linear attention is covered with both masks: where the index comes first, every token sees it, and
the other tokens it sees add between nothing and all of the other weights to the denominator. In
Mamba2 the stream itself is the content, so U is the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flint import arb, fmpq

from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR, MAMBA2
from ithbit.theory.certifiers.exact import Ball, Bound, Rational, exact, need
from ithbit.theory.certifiers.reading import (
    BITS,
    ONE,
    PLACE,
    Reader,
    Tokens,
    bits_of,
    in_balls,
    least_of,
    only,
    only_entries,
    places_of,
    tokens,
)
from ithbit.theory.constructions import linear_window, mamba2_window
from ithbit.theory.constructions.content import columns
from ithbit.theory.solution import TrainedSolution

Contents = list[list[Rational]]


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
class MarkBounds:
    """A mark: at least `signal`, which may be negative, and at most `peak` in size at the index, at
    most `tail` in size elsewhere."""

    signal: Ball
    peak: Ball
    tail: Ball


@dataclass(frozen=True)
class Window:
    """Six units, what they read and write, on tokens whose place has been moved by the index."""

    activation: Activation
    tokens: tuple[Rational, Rational]  # C and v, what all tokens and the bits hold
    step: Rational  # between neighbouring places
    place: Rational  # u_1
    constant: tuple[Rational, ...]  # u_0 of the three, rising
    bit: Rational  # h > 0
    writes: Rational  # z > 0

    def mark_bounds(self, offset: Ball, lowest: Ball, least: Ball, most: Ball) -> MarkBounds:
        """What the window writes if a_1 is `offset` at the bit of the index.

        `lowest` is the least a_1 of any bit, and the norm's scale lies between least and most.
        """
        C, v = self.tokens
        first, middle, last = (arb(x * C - self.bit * v) for x in self.constant)
        up, down = last - middle, middle - first
        tau = abs(arb(self.place) * offset + middle)
        slack = (up - tau).min(down - tau)
        need(bool(slack > 0), "the window misses its place")
        across = arb(self.place * self.step) - tau - up.max(down)
        below = arb(self.place) * lowest + first + arb(2 * self.bit * v)
        edge = across.min(below)
        need(bool(edge > 0), "the window is open at another place")
        psi, z = self.activation.at_least(least * edge), arb(self.writes)
        low, mid, top = self.constant
        residue = most * abs(arb((low - 2 * mid + top) * C))
        inside = least * (up - tau).lower()
        signal = inside - 2 * self.activation.at_least(least * slack) - 2 * psi - residue
        peak = most * up + 2 * self.activation.most + 2 * psi + residue
        return MarkBounds(
            (z * signal).lower(), (z * peak).upper(), (z * (4 * psi + 2 * residue)).upper()
        )


def window_of(
    activation: Activation,
    tokens: tuple[Rational, Rational],
    step: Rational,
    rows: Contents,
    writes: list[Rational],
) -> Window:
    """The window of the units behind the rows that write something."""
    found = [(row, z) for row, z in zip(rows, writes, strict=True) if z != 0]
    need(len(found) == 6, f"six units must write, found {len(found)}")
    _, place, bit = found[0][0][:3]
    for row, _ in found:
        only(row, {ONE, PLACE, BITS}, "a unit")
        need(row[PLACE] == place and place > 0, "units must read the place alike")
        need(abs(row[BITS]) == abs(bit) and bit != 0, "units must read ±bit alike")
    plus, minus = (
        sorted((row[ONE], z) for row, z in found if (row[BITS] < 0) == opens)
        for opens in (True, False)
    )
    need(len(plus) == len(minus) == 3, "three units must read the bit with each sign")
    constant = tuple(x for x, _ in plus)
    need(constant == tuple(x for x, _ in minus), "both groups must read the constant alike")
    z = plus[0][1]
    need(z > 0, "the group that opens at 1 must write towards 1")
    need([w for _, w in plus] == [z, -2 * z, z], "units must write in the ratio 1, −2, 1")
    need([w for _, w in minus] == [-z, 2 * z, -z], "the groups must write with opposite signs")
    return Window(activation, tokens, step, place, constant, abs(bit), z)


def check_tokens(t: Tokens, task: str, index: int) -> tuple[Rational, Rational, Rational]:
    """(C, slope, v): all tokens hold C, bits also slope p and ±v, the index no place."""
    C, slope, v = bits_of(t)
    need(t.query[ONE] == C, "all tokens must hold the same constant")
    at = fmpq(1) if task == "rhi" else fmpq(0)
    need(t.query[PLACE] + slope * at == 0, "the index token must hold no place")
    only(t.fraction, {index}, "the index's value")
    if task == "lhi":
        end = t.last()
        only(end, {ONE}, "the end token")
        need(end[ONE] == C, "all tokens must hold the same constant")
    return C, slope, v


@in_balls
def certify_linear(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(solution.family.startswith("linear"), "the argument is about linear attention")
    need(solution.depth >= 2, "two blocks are needed")
    seen = solution.task == "lhi" or not FAMILIES[solution.family].causal
    need(seen, "every token must see the index")
    INDEX, FOUND = linear_window.INDEX, linear_window.FOUND
    reader = Reader(solution, columns(solution.width, linear_window.ORDER))
    reader.zero("blocks.0.up.bias", "blocks.0.down.bias")
    for layer in range(1, solution.depth):
        reader.zero(f"blocks.{layer}.down.weight", f"blocks.{layer}.down.bias")
    reader.zero(*(f"blocks.{layer}.out.weight" for layer in range(2, solution.depth)))
    t, d, n, T = tokens(reader), solution.width, solution.n_bits, solution.n_tokens
    size, nu = solution.spec.d_head, reader.norms
    e = d * exact(LINEAR.norm_eps)
    C, slope, v = check_tokens(t, solution.task, INDEX)
    only(t.query, {ONE, PLACE, INDEX}, "the index's type")

    def scale(*squares: Rational | Ball) -> Ball:
        """LayerNorm's scale of content C together with these weighted squares."""
        total = arb(nu[ONE] * C * C + e) + sum((arb(x) for x in squares), arb(0))
        return (d / total).sqrt()

    weight = reader.weights["blocks.0.qkv.weight"]
    need(not weight[:d].any(), "block 1 must ask nothing: its queries are 0")
    keys = reader.rows(weight[d : d + size], "block 1, key").tolist()
    need(all(row == keys[0] for row in keys), "the keys of the first head must be alike")
    only(keys[0], {ONE, INDEX}, "the key of block 1")
    common, heavy = keys[0][ONE], keys[0][INDEX]
    need(common < 0 < heavy, "only the index may weigh much")
    moved = reader.values(0)
    only_entries(moved, {(PLACE, INDEX)}, "the value of block 1")
    need(moved[PLACE, INDEX] < 0, "the index must be subtracted from the place")

    places = places_of(solution, slope)
    light = (scale(nu[PLACE] * slope**2, nu[BITS] * v**2).lower() * arb(common * C)).exp()
    others = (T - 1) * size * light.upper()
    eps = arb(exact(LINEAR.denominator_eps))
    taken: list[Ball] = []  # what each index subtracts from every token's place
    for i in range(1, n + 1):
        held = t.index(i, n, fmpq(1 if solution.task == "rhi" else 0))[INDEX]
        need(held > 0, "the index must be held as a positive number")
        s = scale(nu[INDEX] * held * held)
        own = size * (1 + s * arb(common * C + heavy * held))
        need(bool(own > size), "the index must weigh more than the others")
        whole = -s * arb(moved[PLACE, INDEX] * held)
        taken.append((whole * own / (own + others + eps)).lower().union(whole.upper()))
    farthest = max((a.upper() for a in taken), key=float)

    up, down = reader.weights["blocks.0.up.weight"], reader.weights["blocks.0.down.weight"]
    used = down.any(0)
    written = reader.writes(down[:, used], "a unit").tolist()
    for column in written:
        only(column, {FOUND}, "a unit's output")
    rows, writes = reader.rows(up[used], "a unit").tolist(), [c[FOUND] for c in written]
    window = window_of(gelu(), (C, v), slope / (T - 1), rows, writes)
    reach = arb(nu[PLACE]) * farthest.max(arb(slope)) ** 2
    least, most = scale(nu[BITS] * v * v, reach).lower(), scale(nu[BITS] * v * v).upper()

    weight = reader.weights["blocks.1.qkv.weight"]
    need(not weight[: 2 * d].any(), "block 2 must take the plain mean: queries and keys are 0")
    moved = reader.values(1)
    only_entries(moved, {(FOUND, FOUND)}, "the value of block 2")
    need(moved[FOUND, FOUND] > 0, "block 2 must keep the sign of the mark")
    factor = arb(moved[FOUND, FOUND] * reader.head(FOUND)) * size / (T * size + eps)

    margins: list[Ball] = []
    for i in range(1, n + 1):
        offset = arb(places[i - 1]) - taken[i - 1]
        opened = window.mark_bounds(offset, arb(places[0]) - taken[i - 1].upper(), least, most)
        normed = scale(nu[BITS] * v * v, reach, arb(nu[FOUND]) * opened.peak**2).lower()
        # The norm's scale lies between normed and most: the worse of the two, by the signal's sign.
        mark = (normed * opened.signal).min(most * opened.signal)
        margins.append(factor * (mark - (n - 1) * most * opened.tail))
    return least_of(margins)


class _Block:
    """One block whose gate, step, B and C are the same at every token, up to the norm's scale."""

    def __init__(self, reader: Reader, layer: int) -> None:
        spec, what = reader.solution.spec, f"block {layer + 1}"
        d, state = spec.d_model, spec.d_state
        names = ("in.weight", "conv.weight", "conv.bias", "dt_bias", "a_log", "out.weight")
        own = (reader.weights[f"blocks.{layer}.{name}"] for name in names)
        weights, conv, bias, steps, logs, out = own
        gates = reader.rows(weights[:d], f"{what}, gate").tolist()
        need(all(row == gates[0] for row in gates), f"{what}: the gates must be alike")
        only(gates[0], {ONE}, f"{what}, gate")
        need(gates[0][ONE] > 0, f"{what}: the gate must be open")
        self.gate = gates[0][ONE]
        need(not weights[2 * d :].any(), f"{what}: B, C and dt must not depend on the token")
        need(not conv[:-1].any(), f"{what}: the convolution must drop the past")
        need(bool((conv[-1] == 1).all()), f"{what}: the convolution must keep the present")
        need(not bias[:d].any(), f"{what}: the channels must have no bias")
        B, C = bias[d : d + state], bias[d + state :]
        same = sum((silu_at(arb(x)) * silu_at(arb(y)) for x, y in zip(B, C, strict=True)), arb(0))
        need(bool(same > 0), f"{what}: B and C must agree")
        reader.zero(f"blocks.{layer}.skip")
        alike = (steps == steps[0]).all() and (logs == logs[0]).all()
        need(bool(alike), f"{what}: the heads must decay alike")
        dt = (1 + arb(float(steps[0])).exp()).log()
        self.decay = (-dt * arb(float(logs[0])).exp()).exp()
        self.gain = dt * same
        self.rows: Contents = reader.rows(weights[d : 2 * d], f"{what}, channel").tolist()
        self.writes: Contents = reader.writes(out, f"{what}, output").tolist()


@in_balls
def certify_mamba2(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(
        solution.family == "mamba2" and solution.task == "lhi", "the argument is about Mamba2, LHI"
    )
    need(solution.depth >= 2 and solution.width >= 6, "two blocks of width 6 are needed")
    FLAG, INDEX, FOUND = mamba2_window.FLAG, mamba2_window.INDEX, mamba2_window.FOUND
    reader = Reader(solution, np.eye(solution.width))
    reader.zero(*(f"blocks.{layer}.out.weight" for layer in range(2, solution.depth)))
    t, d, n, T = tokens(reader), solution.width, solution.n_bits, solution.n_tokens
    e = d * exact(MAMBA2.norm_eps)
    C, slope, v = check_tokens(t, "lhi", INDEX)
    only(t.query, {ONE, FLAG, INDEX}, "the index's type")
    index = [t.index(i, n, fmpq(0)) for i in range(1, n + 1)]
    held = max(a[FLAG] ** 2 + a[INDEX] ** 2 for a in index)

    def scale(*squares: Rational | Ball) -> Ball:
        """RMSNorm's scale of C together with these squares."""
        return (d / (arb(C * C + e) + sum((arb(x) for x in squares), arb(0)))).sqrt()

    one, two = _Block(reader, 0), _Block(reader, 1)
    for row, column in zip(one.rows, one.writes, strict=True):
        only(row, {FLAG, INDEX}, "a channel of block 1")
        only(column, {PLACE}, "the output of block 1")
    least = scale(max(slope**2 + v * v, held)).lower()
    gate = silu_at(least * arb(one.gate * C)).union(silu_at(scale().upper() * arb(one.gate * C)))
    decay = (one.decay ** (T - 1)).union(arb(1))
    strength = one.gain * gate * decay
    noise = arb(e) / strength**2
    taken: list[Ball] = []
    for a in index:
        s = scale(a[FLAG] ** 2 + a[INDEX] ** 2)
        channels = [silu_at(s * arb(r[FLAG] * a[FLAG] + r[INDEX] * a[INDEX])) for r in one.rows]
        square = sum((x * x for x in channels), arb(0))
        moved = sum((arb(w[PLACE]) * x for w, x in zip(one.writes, channels, strict=True)), arb(0))
        taken.append(-moved * arb(d).sqrt() / (square + noise).sqrt())
    farthest = max((x.upper() for x in taken), key=float)
    nearest = min((x.lower() for x in taken), key=float)
    need(bool(nearest > 0), "the index must be subtracted from the place")

    for column in two.writes:
        only(column, {FOUND}, "the output of block 2")
    writes = [column[FOUND] for column in two.writes]
    window = window_of(silu(), (C, v), slope / (T - 1), two.rows, writes)
    need(
        all(not any(row) for row, w in zip(two.rows, writes, strict=True) if w == 0),
        "channels of block 2 that write nothing must read nothing",
    )
    places = places_of(solution, slope)
    reach = farthest.max(arb(slope)) ** 2
    least, most = scale(v * v, reach, held).lower(), scale().upper()
    end = scale(reach).lower()
    strength = two.gain * silu_at(end * arb(two.gate * C))
    bit = window.bit * v
    below = arb(window.place) * -farthest + arb(window.constant[0] * C - bit)
    above = arb(window.place) * (arb(places[-1]) - nearest) + arb(window.constant[2] * C + bit)
    channel = T * most * abs(below).max(abs(above))
    spread = (6 * channel**2 + arb(e) / strength**2).sqrt()
    head = arb(reader.head(FOUND))
    margins: list[Ball] = []
    for i in range(1, n + 1):
        offset = arb(places[i - 1]) - taken[i - 1]
        opened = window.mark_bounds(offset, arb(places[0]) - taken[i - 1].upper(), least, most)
        total = (two.decay ** (T - 1 - i) * opened.signal - (n - 1) * opened.tail).lower()
        mark = (arb(d).sqrt() * total / spread).lower()
        # `spread` is an upper bound: it lowers a positive sum. Of another sum only the final norm
        # is known, after which no coordinate is larger than sqrt d.
        normed = mark * scale(reach, mark * mark) if bool(mark > 0) else -arb(d).sqrt()
        margins.append(head * normed)
    return least_of(margins)
