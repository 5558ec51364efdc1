"""BERT blocks that point at an angle: the margin over all inputs, in O(n) balls.

The argument of `constructions/bert_angle.py`, with the numbers of the stored weights. Checked
exactly: which content every map reads and writes, that bits are (a_0, p, ±v), that norms are plain
and that feed-forward parts write nothing. Then:

* Bit k scores (A_i + B_i p) s(p) at the reading token, s(p) = sqrt(d) / sqrt(D0 + D1 p^2). For
  A, B >= 0 its derivative has the sign of B D0 − A D1 p, so it rises up to the place p* =
  B D0 / (A D1) and falls after it. If p* is within W places of the index, which is checked, bits
  more than W places away weigh no more than the one W places away on their side.
* Weights do not depend on the bits, so the pull towards the answer is least when all other bits
  oppose it: (s_i − sum_k w_k s_k) / (1 + sum_k w_k + w_rest), with w relative to bit i.
* Block 1 of LHI scales the bits by a factor in [shrink, 1], under either mask.
"""

from dataclasses import dataclass

from flint import arb, fmpq

from ithbit.layouts import SOFTMAX
from ithbit.theory.certifiers.exact import Ball, Bound, Matrix, Rational, exact, need
from ithbit.theory.certifiers.reading import (
    BITS,
    ONE,
    PLACE,
    Reader,
    bits_of,
    in_balls,
    least_of,
    only,
    only_entries,
    places_of,
    tokens,
)
from ithbit.theory.constructions.bert_angle import FLAG, INDEX, ORDERS
from ithbit.theory.constructions.content import columns
from ithbit.theory.solution import TrainedSolution

WINDOW = 5  # places on each side of the index that are evaluated one by one


@dataclass(frozen=True)
class ScoredCurve:
    """What the last attention sees: n bits on a curve, scored by the reading token."""

    places: list[Ball]
    scale: list[Ball]  # s(p) of each bit, an upper bound
    shrink: Ball  # the true scale is that times a factor in [shrink, 1]
    rise: Ball  # D0 / D1, so that the peak is at rise B / A
    value: Ball  # |a_2| of a bit, times what the value and output maps make of it


@in_balls
def certify_angle(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(solution.family.startswith("softmax"), "the argument is about BERT blocks")
    right = solution.task == "rhi"
    need(solution.depth >= (1 if right else 2), "too few layers")
    reader = Reader(solution, columns(solution.width, ORDERS[solution.task]))
    reader.zero("enter.type")
    for layer in range(solution.depth):
        names = ("qkv.bias", "out.bias", "down.weight", "down.bias")
        reader.zero(*(f"blocks.{layer}.{name}" for name in names))
    used = 1 if right else 2
    reader.zero(*(f"blocks.{layer}.out.weight" for layer in range(used, solution.depth)))
    return _rhi_margin(solution, reader) if right else _lhi_margin(solution, reader)


def _head_maps(reader: Reader, layer: int) -> tuple[Matrix, Matrix]:
    """K^T Q and O V of head 0, as maps between contents; the other heads must write nothing."""
    d, size, what = reader.solution.width, reader.solution.spec.d_head, f"block {layer + 1}"
    weight = reader.weights[f"blocks.{layer}.qkv.weight"]
    q = reader.rows(weight[:size], f"{what}, query")
    k = reader.rows(weight[d : d + size], f"{what}, key")
    return q.transpose() * k, reader.values(layer)


def _root(d: int, square: Rational | Ball) -> Ball:
    return (arb(d) / arb(square)).sqrt()


def _pointed(
    reader: Reader,
    layer: int,
    slope: Rational,
    v: Rational,
    D: tuple[Rational, Rational],
    shrink: Ball,
) -> tuple[Matrix, ScoredCurve]:
    """The scores of the block that points, and what it sees; s(p) = sqrt(d / (D0 + D1 p^2))."""
    what = f"of block {layer + 1}"
    scores, moved = _head_maps(reader, layer)
    only_entries(moved, {(BITS, BITS)}, f"the value {what}")
    for row in scores.tolist():
        only(row, {ONE, PLACE}, f"the key {what}")
    need(moved[BITS, BITS] > 0, "the value must keep the sign of the bit")
    places, (D0, D1) = places_of(reader.solution, slope), D
    scale = [_root(reader.solution.width, D0 + D1 * p * p) for p in places]
    value = arb(v * moved[BITS, BITS])
    return scores, ScoredCurve([arb(p) for p in places], scale, shrink, arb(D0 / D1), value)


def _rhi_margin(solution: TrainedSolution, reader: Reader) -> Bound:
    t, d, n = tokens(reader), solution.width, solution.n_bits
    nu, eps = reader.norms, exact(SOFTMAX.norm_eps)
    one, slope, v = bits_of(t)
    D0, D1 = nu[ONE] * one**2 + nu[BITS] * v**2 + d * eps, nu[PLACE]
    scores, seen = _pointed(reader, 0, slope, v, (D0, D1), arb(1))
    scale = 1 / arb(solution.spec.d_head).sqrt()
    margins: list[Ball] = []
    for i in range(1, n + 1):
        a = t.index(i, n, fmpq(1))
        only(a, {ONE, PLACE}, "the index token")
        square = nu[ONE] * a[ONE] ** 2 + nu[PLACE] * a[PLACE] ** 2
        s = _root(d, square + d * eps)
        read = [sum((a[r] * scores[r, c] for r in (ONE, PLACE)), fmpq(0)) for c in (ONE, PLACE)]
        A, B = (s * scale * arb(x * y) for x, y in zip(read, (one, fmpq(1)), strict=True))
        own = s * s * scale * arb(read[0] * a[ONE] + read[1] * a[PLACE])
        y = _pull(seen, i, A, B, [own])
        margins.append(_after_norms(reader, y, s * s * arb(square)))
    return least_of(margins)


def _pull(seen: ScoredCurve, i: int, A: Ball, B: Ball, rest: list[Ball]) -> Ball:
    """The least that attention adds towards the answer; `rest` are scores of other tokens."""
    need(bool(A > 0) and bool(B >= 0), "scores must rise with the place and then fall")
    n, at = len(seen.places), i - 1
    top = ((A + B * seen.places[at]) * seen.scale[at] * seen.shrink).lower()
    peak = seen.rise * B / A
    first, end = max(0, at - WINDOW), min(n, at + WINDOW + 1)
    need(first == 0 or bool(peak >= seen.places[first]), f"index {i}: scores peak too early")
    need(end == n or bool(peak <= seen.places[end - 1]), f"index {i}: scores peak too late")
    weight, pull = arb(0), arb(0)
    for k in range(first, end):
        if k == at:
            continue
        w = ((A + B * seen.places[k]) * seen.scale[k] - top).exp()
        if k == first and first > 0:
            w = w * (first + 1)  # it and all before it, which weigh no more
        if k == end - 1 and end < n:
            w = w * (n - end + 1)
        # s falls with the place, so that of the tokens before the window is at most s(0).
        weight, pull = weight + w, pull + w * (seen.scale[0] if k == first else seen.scale[k])
    for score in rest:
        weight = weight + (score - top).exp()
    gained = seen.scale[at] * seen.shrink - pull
    return seen.value * gained.lower() / (1 + (weight if bool(gained > 0) else arb(0)))


def _after_norms(reader: Reader, y: Ball, square: Ball) -> Ball:
    """The logit towards the answer from y, next to content of weighted squared norm `square`.

    Two LayerNorms scale by sqrt(d) / sqrt((1 + eps) X + d eps^2); further blocks, which write
    nothing, do so again. The result increases in y, so a lower bound on y gives one on the logit;
    more content beside it makes it smaller in size.
    """
    d, eps = reader.solution.width, arb(exact(SOFTMAX.norm_eps))
    y = y.lower()
    square = square.upper() if bool(y > 0) else square.lower()
    for _ in range(reader.solution.depth - (0 if reader.solution.task == "rhi" else 1)):
        X = square + arb(reader.norms[BITS]) * y * y
        s = (d / ((1 + eps) * X + d * eps**2)).sqrt()
        y, square = y * s, square * s * s
    return arb(reader.head(BITS)) * y


def _lhi_margin(solution: TrainedSolution, reader: Reader) -> Bound:
    t, d, n = tokens(reader), solution.width, solution.n_bits
    nu, eps = reader.norms, exact(SOFTMAX.norm_eps)
    one, slope, v = bits_of(t)
    only(t.query, {FLAG, INDEX}, "the index's type")
    only(t.fraction, {INDEX}, "the index's value")
    end = t.last()
    only(end, {ONE}, "the end token")
    need(end[ONE] < 0, "the end token must hold a negative constant")
    scores, moved = _head_maps(reader, 0)
    only_entries(scores, {(ONE, FLAG)}, "the scores of block 1")
    pairs = {(r, c) for r in (FLAG, INDEX) for c in (FLAG, INDEX)}
    only_entries(moved, pairs, "the value of block 1")
    need(scores[ONE, FLAG] < 0, "the end must look for the index, and bits must not")
    scale = 1 / arb(solution.spec.d_head).sqrt()
    look = scale * arb(scores[ONE, FLAG])
    s_end = _root(d, nu[ONE] * end[ONE] ** 2 + d * eps)

    index = [t.index(i, n, fmpq(0)) for i in range(1, n + 1)]
    s_index = [
        _root(d, nu[FLAG] * a[FLAG] ** 2 + nu[INDEX] * a[INDEX] ** 2 + d * eps) for a in index
    ]
    need(all(a[FLAG] > 0 and a[INDEX] >= 0 for a in index), "the index must hold a positive flag")
    brought = [
        [s * arb(moved[r, FLAG] * a[FLAG] + moved[r, INDEX] * a[INDEX]) for r in (FLAG, INDEX)]
        for s, a in zip(s_index, index, strict=True)
    ]
    places = places_of(solution, slope)
    A_bit = nu[ONE] * one**2 + nu[BITS] * v**2
    flag = min(((s * arb(a[FLAG])).lower() for s, a in zip(s_index, index, strict=True)), key=float)
    far = _root(d, A_bit + nu[PLACE] * places[-1] ** 2 + d * eps)
    leak = (look * arb(one) * far.lower() * flag).exp().upper()  # a bit's weight on the index
    largest = max(
        ((arb(nu[FLAG]) * x * x + arb(nu[INDEX]) * y * y).upper() for x, y in brought), key=float
    )
    X = arb(d * A_bit / (A_bit + d * eps)) * (1 + arb(eps))
    shrink = (1 / (1 + (1 + arb(eps)) * leak * leak * largest / X).sqrt()).lower()

    more = 1 + eps + eps**2
    D0, D1 = more * A_bit + d * eps**3, more * nu[PLACE]
    scores, seen = _pointed(reader, 1, slope, v, (D0, D1), shrink)
    margins: list[Ball] = []
    for i in range(1, n + 1):
        s, a = s_index[i - 1], index[i - 1]
        look_at = look * arb(end[ONE]) * s_end * s * arb(a[FLAG])
        W = 1 / (1 + (n + 1) * (-look_at).exp())
        held = {
            ONE: s_end * arb(end[ONE]),
            FLAG: W * brought[i - 1][0],
            INDEX: W * brought[i - 1][1],
        }
        square = sum((arb(nu[c]) * x * x for c, x in held.items()), arb(0))
        s2 = (d / ((1 + arb(eps)) * square + d * arb(eps) ** 2)).sqrt()
        held = {c: x * s2 for c, x in held.items()}
        read = [
            sum((held[r] * arb(scores[r, c]) for r in held if scores[r, c] != 0), arb(0)) * scale
            for c in (ONE, PLACE)
        ]
        rest = [arb(0), read[0] * held[ONE]]  # the index token's key is 0; the end's own key
        y = _pull(seen, i, read[0] * arb(one), read[1], rest)
        margins.append(_after_norms(reader, y, square * s2 * s2))
    return least_of(margins)
