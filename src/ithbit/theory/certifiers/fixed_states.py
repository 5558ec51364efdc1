"""An exact argument for one RNN layer on LHI: follow the states that the tokens leave unchanged.

For a state h, position k holding bit b *moves* h if N1(x, h) differs from h. Suppose that,
with index i, no position before i moves the state after the index token, and no position after i
moves the state after position i. Then the states are known for all values of the other bits at
once: index, position i, end.

The tokens' embeddings differ in one coordinate t only, so for fixed h the update is a ReLU function
of t with few breakpoints: between two of them it is affine, and either equals h throughout or is
checked at the few tokens that lie there. Exact rationals; O(n log n) for n indices.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from flint import fmpq

from ithbit.theory.certifiers.exact import (
    EXACT,
    Bound,
    Line,
    Rational,
    dot,
    exact_row,
    need,
    rounded_down,
)
from ithbit.theory.layers import FloatArray, ReluNet, Rnn
from ithbit.theory.solution import Solution

State = tuple[Rational, ...]


class _Net:
    """An MLP with one hidden layer on rationals."""

    def __init__(self, net: ReluNet) -> None:
        need(len(net.weights) == 2, "the argument needs MLPs with one hidden layer")
        self.hidden, self.out = ([exact_row(row) for row in W] for W in net.weights)
        self.shift, self.bias = map(exact_row, net.biases)

    def inner(self, x: Sequence[Rational]) -> list[Rational]:
        """What the hidden units see."""
        return [dot(row, x) + b for row, b in zip(self.hidden, self.shift, strict=True)]

    def __call__(self, x: State, h: State) -> State:
        relu = [max(value, fmpq(0)) for value in self.inner(x + h)]
        return tuple(dot(row, relu) + b for row, b in zip(self.out, self.bias, strict=True))


def certify_states(solution: Solution) -> Bound:
    """The exact minimum of the margin; raises `UnsuitableError` if the argument does not apply.

    >>> from ithbit.theory.constructions import construct
    >>> certify_states(construct("lhi", "rnn", 1024)).margin
    1028.0
    """
    layer = solution.layers[0]
    table = solution.embedding
    one = solution.depth == 1 and isinstance(layer, Rnn) and solution.task == "lhi"
    need(one, "the argument needs one RNN layer and LHI")
    assert isinstance(layer, Rnn)
    assert table.end is not None
    update, readout = _Net(layer.N1), _Net(layer.N2)
    line = _TokenLine(table.bit, update)
    end, zero = _row(table.end), (fmpq(0),) * layer.d_in
    rows = [exact_row(alphas) for alphas in solution.output]
    margins: list[tuple[Rational, int, int]] = []
    for i in range(1, solution.n_bits + 1):
        start = update(_row(table.index[i - 1]), zero)
        line.require_still(start, 1, i - 1, i)
        for answer in (0, 1):
            state = update(_row(table.bit[i - 1, answer]), start)
            line.require_still(state, i + 1, solution.n_bits, i)
            y = readout(end, update(end, state))
            margins.append((dot(rows[answer], y) - dot(rows[1 - answer], y), i, answer))
    least, index, answer = min(margins)
    return Bound(rounded_down(least), index, answer, EXACT)


def _row(values: FloatArray) -> State:
    return tuple(exact_row(values))


class _TokenLine:
    """The bit tokens sorted along the one coordinate in which they differ."""

    def __init__(self, bits: FloatArray, update: _Net) -> None:
        flat = bits.reshape(-1, bits.shape[-1])
        moving = np.flatnonzero((flat != flat[0]).any(axis=0))
        need(len(moving) <= 1, "the bit tokens differ in more than one coordinate")
        self.axis = axis = int(moving[0]) if len(moving) else 0
        self.tokens = [_row(token) for token in flat]  # entries 2 (k − 1) + b
        self.order = sorted(range(len(flat)), key=lambda entry: self.tokens[entry][axis])
        self.sorted = [self.tokens[entry][axis] for entry in self.order]
        self.update = update
        self.moved: dict[State, list[int]] = {}

    def require_still(self, state: State, first: int, last: int, index: int) -> None:
        """Raise `UnsuitableError` unless no position in first … last moves the state."""
        if state not in self.moved:
            self.moved[state] = self._moved_by(state)
        for entry in self.moved[state]:
            k, bit = divmod(entry, 2)
            still = not first <= k + 1 <= last
            need(still, f"with index {index}, position {k + 1} holding {bit} moves the state")

    def _moved_by(self, state: State) -> list[int]:
        """The tokens that change this state."""
        net, base = self.update, [*self.tokens[0], *state]
        base[self.axis] = fmpq(0)
        slopes = [row[self.axis] for row in net.hidden]
        shifts = net.inner(base)
        lines = [
            Line(tuple(zip(out, slopes, shifts, strict=True)), bias)
            for out, bias in zip(net.out, net.bias, strict=True)
        ]
        kinks = lines[0].breakpoints()
        edges = [kinks[0] - 1, *kinks, kinks[-1] + 1] if kinks else [fmpq(0), fmpq(1)]
        cuts = [0, *(bisect_left(self.sorted, t) for t in kinks), len(self.sorted)]
        moved: list[int] = []
        for ends, (a, b) in zip(pairwise(edges), pairwise(cuts), strict=True):
            # Affine on this piece: if it fixes the state at both ends, it does so in between.
            if any(f(t) != h for f, h in zip(lines, state, strict=True) for t in ends):
                moved += [k for k in self.order[a:b] if net(self.tokens[k], state) != state]
        return moved
