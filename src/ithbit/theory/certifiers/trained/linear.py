"""Pre-LN linear attention with a window: the margin over all inputs, in O(n) balls.

The argument of `constructions/trained/linear_window.py`, with the numbers of the stored weights. It
covers both masks: where the index comes first, every token sees it, and the other tokens it sees
add between nothing and all of the other weights to the denominator.
"""

from flint import arb, ctx, fmpq

from ithbit.families import FAMILIES
from ithbit.theory.certifiers.arithmetic.exact import Ball, Rational, exact
from ithbit.theory.certifiers.bound import Bound, need
from ithbit.theory.certifiers.trained.reading import (
    PRECISION,
    Reader,
    Tokens,
    bits_of,
    least_of,
    only,
    only_entries,
    places_of,
    tokens,
)
from ithbit.theory.certifiers.trained.window import Window, gelu, units
from ithbit.theory.constructions.trained.content import columns
from ithbit.theory.constructions.trained.linear_window import ORDER
from ithbit.theory.trained_blocks import DENOMINATOR_EPS, LINEAR_EPS
from ithbit.theory.trained_solution import TrainedSolution

ONE, PLACE, BITS, INDEX, FOUND = range(5)


def certify_linear(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(solution.family.startswith("linear"), "the argument is about linear attention")
    need(solution.depth >= 2, "two blocks are needed")
    seen = solution.task == "lhi" or not FAMILIES[solution.family].causal
    need(seen, "every token must see the index")
    with ctx.workprec(PRECISION):
        reader = Reader(solution, columns(solution.width, ORDER))
        reader.zero("blocks.0.up.bias", "blocks.0.down.bias")
        for layer in range(1, solution.depth):
            reader.zero(f"blocks.{layer}.down.weight", f"blocks.{layer}.down.bias")
        reader.zero(*(f"blocks.{layer}.out.weight" for layer in range(2, solution.depth)))
        return _certify(solution, reader)


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


def _certify(solution: TrainedSolution, reader: Reader) -> Bound:
    t, d, n, T = tokens(reader), solution.width, solution.n_bits, solution.n_tokens
    size, nu = solution.spec.d_head, reader.norms
    e = d * exact(LINEAR_EPS)
    C, slope, v = check_tokens(t, solution.task, INDEX)
    only(t.query, {ONE, PLACE, INDEX}, "the index's type")

    def scale(*squares: Rational | Ball) -> Ball:
        """LayerNorm's scale of content C together with these weighted squares."""
        total = arb(nu[ONE] * C * C + e) + sum((arb(x) for x in squares), arb(0))
        return (d / total).sqrt()

    weight = reader.weights["blocks.0.qkv.weight"]
    need(not weight[:d].any(), "block 1 must ask nothing: its queries are 0")
    keys = reader.rows(weight[d : d + size], "block 1, key")
    need(all(row == keys[0] for row in keys), "the keys of the first head must be alike")
    only(keys[0], {ONE, INDEX}, "the key of block 1")
    common, heavy = keys[0][ONE], keys[0][INDEX]
    need(common < 0 < heavy, "only the index may weigh much")
    moved = reader.values(0)
    only_entries(moved, {(PLACE, INDEX)}, "the value of block 1")
    need(moved[PLACE][INDEX] < 0, "the index must be subtracted from the place")

    places = places_of(solution, slope)
    light = (scale(nu[PLACE] * slope**2, nu[BITS] * v**2).lower() * arb(common * C)).exp()
    others = (T - 1) * size * light.upper()
    eps = arb(exact(DENOMINATOR_EPS))
    taken: list[Ball] = []  # what each index subtracts from every token's place
    for i in range(1, n + 1):
        held = t.index(i, n, fmpq(1 if solution.task == "rhi" else 0))[INDEX]
        need(held > 0, "the index must be held as a positive number")
        s = scale(nu[INDEX] * held * held)
        own = size * (1 + s * arb(common * C + heavy * held))
        need(bool(own > size), "the index must weigh more than the others")
        whole = -s * arb(moved[PLACE][INDEX] * held)
        taken.append((whole * own / (own + others + eps)).lower().union(whole.upper()))
    farthest = max((a.upper() for a in taken), key=float)

    up, down = reader.weights["blocks.0.up.weight"], reader.weights["blocks.0.down.weight"]
    used = [k for k in range(len(up)) if down[:, k].any()]
    written = [reader.write(down[:, k], "a unit") for k in used]
    for column in written:
        only(column, {FOUND}, "a unit's output")
    found = units(reader.rows(up[used], "a unit"), [c[FOUND] for c in written])
    window = Window(found, gelu(), C, v, slope / (T - 1))
    reach = arb(nu[PLACE]) * farthest.max(arb(slope)) ** 2
    least, most = scale(nu[BITS] * v * v, reach).lower(), scale(nu[BITS] * v * v).upper()

    weight = reader.weights["blocks.1.qkv.weight"]
    need(not weight[: 2 * d].any(), "block 2 must take the plain mean: queries and keys are 0")
    moved = reader.values(1)
    only_entries(moved, {(FOUND, FOUND)}, "the value of block 2")
    need(moved[FOUND][FOUND] > 0, "block 2 must keep the sign of the mark")
    factor = arb(moved[FOUND][FOUND] * reader.head(FOUND)) * size / (T * size + eps)

    margins: list[Ball] = []
    for i in range(1, n + 1):
        offset = arb(places[i - 1]) - taken[i - 1]
        opened = window.opened(offset, arb(places[0]) - taken[i - 1].upper(), least, most)
        normed = scale(nu[BITS] * v * v, reach, arb(nu[FOUND]) * opened.peak**2).lower()
        margins.append(factor * (normed * opened.signal - (n - 1) * most * opened.tail))
    return least_of(margins)
