"""`nn.GRU` with a latch: the margin over all inputs, in O(n) balls.

The argument of `constructions/gru_latch.py`, with the numbers of the stored weights. Units
0, 1 and 2 are h_1, h_2, h_3 of its docstring; all weights except those named there must be 0.
"""

import numpy as np
from flint import arb

from ithbit.theory.certifiers.exact import Ball, Bound, exact, need
from ithbit.theory.certifiers.reading import in_balls, least_of
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Column, TrainedSolution


def _sigmoid(x: Ball) -> Ball:
    return 1 / (1 + (-x).exp())


def _take(array: FloatArray, places: list[tuple[int, ...]], what: str) -> list[Ball]:
    """The entries at these places; all others must be 0."""
    rest = np.array(array)
    found = [arb(float(rest[place])) for place in places]
    for place in places:
        rest[place] = 0
    need(not rest.any(), f"{what} has nonzero entries that the argument does not cover")
    return found


@in_balls
def certify_latch(solution: TrainedSolution) -> Bound:
    """A lower bound on the margin over all inputs; `UnsuitableError` if it does not apply."""
    need(
        solution.family == "gru" and solution.task == "lhi", "the argument is about nn.GRU and LHI"
    )
    need(solution.width >= 3, "width 3 is needed")
    w, d, n, N = solution.weights, solution.width, solution.n_bits, solution.n_tokens - 1
    r, z, c = 0, d, 2 * d
    first, step, off, on = _take(
        w["embed"],
        [(0, Column.QUERY), (0, Column.FRACTION), (2, Column.BIT), (2, Column.VALUE)],
        "the embedding",
    )
    need(bool(off + on == -off) and bool(off < 0), "a bit must be written as ±v")
    (slope,) = _take(w["positions.polynomial"], [(1, 0)], "the map of positions")
    block = "blocks.0."
    forget, close, store, reset2, rise, gain = _take(
        w[block + "ih.weight"],
        [(z, 0), (z + 2, 1), (c, 0), (c + 1, 0), (c + 1, 1), (c + 2, 2)],
        "ih",
    )
    hold, turned, compare = _take(
        w[block + "hh.weight"], [(z + 2, 0), (z + 2, 1), (c + 1, 0)], "hh"
    )
    _, reset, _, keep, fresh, shift, origin = _take(
        w[block + "ih.bias"],
        [(r,), (r + 1,), (r + 2,), (z,), (z + 1,), (z + 2,), (c + 1,)],
        "ih.bias",
    )
    need(not w[block + "hh.bias"].any(), "hh.bias must be 0")
    for sign, what in ((slope, "slope"), (-close, "close"), (turned, "turned"), (rise, "rise")):
        need(bool(sign > 0), f"the weight {what!r} has the wrong sign")
    kept, stale, open_reset = _sigmoid(keep), _sigmoid(fresh), _sigmoid(reset)
    long = (kept ** (n + 1)).lower().union(arb(1))

    def h2(argument: Ball) -> Ball:
        """The second unit after a token with this candidate, whatever it was before."""
        return (1 - stale) * argument.tanh() + stale * arb(-1).union(arb(1))

    margins: list[Ball] = []
    for i in range(1, n + 1):
        x = first + step * arb(exact(float(i - 1))) / n
        stored = (1 - _sigmoid(keep + forget * x)) * (store * x).tanh() * long
        place, last = slope * i / N, slope

        def argument(p: Ball, stored: Ball = stored) -> Ball:
            return rise * p + origin + open_reset * compare * stored

        before = h2(origin + reset2 * x)
        if i > 1:  # earlier bits have smaller arguments, so h_2 is no larger after them
            before = before.max(h2(argument(slope * (i - 1) / N)))
        after = h2(argument(place).lower()).lower()
        opening = _sigmoid(close * place + shift + hold * stored + turned * before.upper()).upper()
        leak = _sigmoid(-(close * last + shift + hold * stored + turned * after)).upper()
        answer = (1 - opening) * (gain * -off).tanh() - opening - 2 * n * leak
        margins.append(_later_layers(solution, answer.lower()))
    return least_of(margins)


def _later_layers(solution: TrainedSolution, answer: Ball) -> Ball:
    """The third unit after layers that pass it on, and the head."""
    w, d = solution.weights, solution.width
    for layer in range(1, solution.depth):
        block = f"blocks.{layer}."
        need(not w[block + "hh.weight"].any(), f"{block}hh.weight must be 0")
        need(not w[block + "hh.bias"].any(), f"{block}hh.bias must be 0")
        (fresh,) = _take(w[block + "ih.bias"], [(d + 2,)], f"{block}ih.bias")
        (gain,) = _take(w[block + "ih.weight"], [(2 * d + 2, 2)], f"{block}ih.weight")
        need(bool(gain > 0), f"{block}ih.weight must keep the sign")
        stale = _sigmoid(fresh)
        answer = ((1 - stale) * (gain * answer).tanh() - stale).lower()
    (head,) = _take(w["head.weight"], [(0, 2)], "the head")
    need(
        bool(head > 0) and not w["head.bias"].any(), "the head must read h_3 with a positive factor"
    )
    return head * answer
