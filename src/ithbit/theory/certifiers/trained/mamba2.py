"""Mamba2 with a window: the margin over all inputs, in O(n) balls.

The argument of `constructions/trained/mamba2_window.py`, with the numbers of the stored weights.
Here the stream itself is the content, so U is the identity.
"""

import numpy as np
from flint import arb, ctx, fmpq

from ithbit.theory.certifiers.arithmetic.exact import Ball, Rational, exact
from ithbit.theory.certifiers.bound import Bound, need
from ithbit.theory.certifiers.trained.linear import check_tokens
from ithbit.theory.certifiers.trained.reading import (
    PRECISION,
    Matrix,
    Reader,
    least_of,
    only,
    places_of,
    tokens,
)
from ithbit.theory.certifiers.trained.window import Window, silu, silu_at, units
from ithbit.theory.trained_blocks import MAMBA_EPS
from ithbit.theory.trained_solution import TrainedSolution

ONE, PLACE, BITS, FLAG, INDEX, FOUND = range(6)


def certify_mamba2(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(
        solution.family == "mamba2" and solution.task == "lhi", "the argument is about Mamba2, LHI"
    )
    need(solution.depth >= 2 and solution.width >= 6, "two blocks of width 6 are needed")
    with ctx.workprec(PRECISION):
        reader = Reader(solution, np.eye(solution.width))
        reader.zero(*(f"blocks.{layer}.out.weight" for layer in range(2, solution.depth)))
        return _certify(solution, reader)


class _Block:
    """One block whose gate, step, B and C are the same at every token, up to the norm's scale."""

    def __init__(self, reader: Reader, layer: int) -> None:
        spec, what = reader.solution.spec, f"block {layer + 1}"
        d, state = spec.d_model, spec.d_state
        names = ("in.weight", "conv.weight", "conv.bias", "dt_bias", "a_log", "out.weight")
        own = (reader.weights[f"blocks.{layer}.{name}"] for name in names)
        weights, conv, bias, steps, logs, out = own
        gates = reader.rows(weights[:d], f"{what}, gate")
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
        self.rows: Matrix = reader.rows(weights[d : 2 * d], f"{what}, channel")
        self.writes: Matrix = [reader.write(column, f"{what}, output") for column in out.T]


def _certify(solution: TrainedSolution, reader: Reader) -> Bound:
    t, d, n, T = tokens(reader), solution.width, solution.n_bits, solution.n_tokens
    e = d * exact(MAMBA_EPS)
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
    found = units(two.rows, writes)
    need(
        all(not any(row) for row, w in zip(two.rows, writes, strict=True) if w == 0),
        "channels of block 2 that write nothing must read nothing",
    )
    places = places_of(solution, slope)
    window = Window(found, silu(), C, v, slope / (T - 1))
    reach = farthest.max(arb(slope)) ** 2
    least, most = scale(v * v, reach, held).lower(), scale().upper()
    end = scale(reach).lower()
    strength = two.gain * silu_at(end * arb(two.gate * C))
    bit = found.bit * v
    below = arb(found.place) * -farthest + arb(found.constant[0] * C - bit)
    above = arb(found.place) * (arb(places[-1]) - nearest) + arb(found.constant[2] * C + bit)
    channel = T * most * abs(below).max(abs(above))
    spread = (6 * channel**2 + arb(e) / strength**2).sqrt()
    head = arb(reader.head(FOUND))
    margins: list[Ball] = []
    for i in range(1, n + 1):
        offset = arb(places[i - 1]) - taken[i - 1]
        opened = window.opened(offset, arb(places[0]) - taken[i - 1].upper(), least, most)
        kept = (two.decay ** (T - 1 - i)).lower()
        mark = (arb(d).sqrt() * (kept * opened.signal - (n - 1) * opened.tail) / spread).lower()
        margins.append(head * mark * scale(reach, mark * mark))
    return least_of(margins)
