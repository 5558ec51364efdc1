"""What the stored weights of a trained block read and write, as exact rationals.

The arguments of this folder are about contents (`constructions/content.py`). Here stored
float64 weights become maps between contents, exactly: every row that reads and every column that
writes must lie in the span of U, and everything an argument takes to be 0 or 1 must be exactly
that. Otherwise `UnsuitableError` names what is not. Both ends of a ball are balls of radius 0.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flint import ctx, fmpq

from ithbit.theory.certifiers.exact import (
    BALLS,
    Ball,
    Bound,
    Rational,
    dot,
    exact_row,
    need,
    rounded_down,
)
from ithbit.theory.constructions.content import is_norm
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Column, TrainedSolution

Matrix = list[list[Rational]]
Argument = Callable[[TrainedSolution], Bound]
# Decorates an argument. In bits: scores are of size n^2 and their gaps of size 1.
in_balls: Callable[[Argument], Argument] = ctx.workprec(160)
ONE, PLACE, BITS = range(3)  # the first contents of every construction


def least_of(margins: list[Ball]) -> Bound:
    """The least margin over indices 1 to n; the answers are symmetric, so 1 stands for both."""
    ends = [rounded_down(margin) for margin in margins]
    least = min(range(len(ends)), key=ends.__getitem__)
    return Bound(ends[least], least + 1, 1, BALLS)


class Reader:
    """The weights of a solution as maps between contents; every norm must be plain."""

    def __init__(self, solution: TrainedSolution, U: FloatArray) -> None:
        self.solution, self.weights = solution, solution.weights
        self.columns = [[fmpq(int(value)) for value in column] for column in U.T]
        self.norms = [dot(column, column) for column in self.columns]
        self.m = len(self.norms)
        for name, value in self.weights.items():
            if is_norm(name):
                wanted = 1.0 if name.endswith("weight") else 0.0
                need(bool((value == wanted).all()), f"{name} must be {wanted:g} throughout")

    def rows(self, weights: FloatArray, what: str) -> Matrix:
        """What each row reads of the content, including rows of zeros."""
        return [self._row(row, what) for row in weights]

    def _row(self, row: FloatArray, what: str) -> list[Rational]:
        if not row.any():
            return [fmpq(0)] * self.m
        values = exact_row(row)
        found = [dot(values, column) for column in self.columns]
        factors = [c / nu for c, nu in zip(found, self.norms, strict=True)]
        need(values == self._lift(factors), f"{what} reads more of the stream than the content")
        return found

    def _lift(self, content: list[Rational]) -> list[Rational]:
        parts = [(c, column) for c, column in zip(content, self.columns, strict=True) if c != 0]
        return [
            sum((c * column[k] for c, column in parts), fmpq(0)) for k in range(self.solution.width)
        ]

    def write(self, column: FloatArray, what: str) -> list[Rational]:
        """The content that a column of the stream holds."""
        values = exact_row(column)
        factors = [dot(values, c) / nu for c, nu in zip(self.columns, self.norms, strict=True)]
        need(values == self._lift(factors), f"{what} writes more to the stream than content")
        return factors

    def product(self, out: FloatArray, inner: FloatArray, what: str) -> Matrix:
        """The map out · inner between contents: what the channels in between pass on."""
        used = [k for k in range(len(inner)) if inner[k].any() and out[:, k].any()]
        pairs = [(self._row(inner[k], what), self.write(out[:, k], what)) for k in used]
        return self.combined((written, read) for read, written in pairs)

    def combined(self, pairs: Iterable[tuple[list[Rational], list[Rational]]]) -> Matrix:
        """The sum of a bᵀ over pairs of rows."""
        pairs, of = list(pairs), range(self.m)
        return [[sum((a[r] * b[c] for a, b in pairs), fmpq(0)) for c in of] for r in of]

    def values(self, layer: int) -> Matrix:
        """What head 0 of a block moves between contents; the other heads must write nothing."""
        d, size, what = self.solution.width, self.solution.spec.d_head, f"block {layer + 1}"
        given = self.weights[f"blocks.{layer}.qkv.weight"][2 * d :]
        out = self.weights[f"blocks.{layer}.out.weight"]
        spare = self.product(out[:, size:], given[size:], what)
        need(not any(any(row) for row in spare), f"{what}: only the first head may write")
        return self.product(out[:, :size], given[:size], what)

    def zero(self, *names: str) -> None:
        """Raise unless these parameters are 0."""
        for name in names:
            need(not self.weights[name].any(), f"{name} must be 0")

    def head(self, coordinate: int) -> Rational:
        """The factor by which the head reads this coordinate; it must read nothing else."""
        (row,) = self.rows(self.weights["head.weight"], "the head")
        only(row, {coordinate}, "the head")
        self.zero("head.bias")
        need(row[coordinate] > 0, "the head must read the answer with a positive factor")
        return row[coordinate]


@dataclass(frozen=True)
class Tokens:
    """The contents of all tokens, affine in features: content = sum of columns times features."""

    bit: list[Rational]
    value: list[Rational]
    query: list[Rational]
    fraction: list[Rational]
    end: list[Rational]
    place: list[Rational]

    def index(self, i: int, n: int, place: Rational) -> list[Rational]:
        """The content of the index token i at a place feature p."""
        f = fmpq(i - 1, n)
        parts = zip(self.query, self.fraction, self.place, strict=True)
        return [q + c * f + p * place for q, c, p in parts]

    def last(self) -> list[Rational]:
        """The content of the end token, whose place feature is 1."""
        return [e + p for e, p in zip(self.end, self.place, strict=True)]


def tokens(reader: Reader) -> Tokens:
    """The contents of the tokens; squared features must be unused."""
    embed, places = reader.weights["embed"], reader.weights["positions.polynomial"]
    need(not embed[:, Column.SQUARE].any(), "the square of the index feature must be unused")
    need(not places[:, 1].any(), "the square of the position must be unused")
    order = (Column.BIT, Column.VALUE, Column.QUERY, Column.FRACTION, Column.END)
    parts = [reader.write(embed[:, k], "the embedding") for k in order]
    parts.append(reader.write(places[:, 0], "the map of positions"))
    return Tokens(*parts)


def bits_of(t: Tokens) -> tuple[Rational, Rational, Rational]:
    """(a_0, slope of the place, v): bits hold (a_0, slope p, ±v) in the first three contents."""
    only(t.bit, {ONE, BITS}, "the bit's type")
    only(t.value, {BITS}, "the bit's value")
    only(t.place, {PLACE}, "the position")
    one, slope, v = t.bit[ONE], t.place[PLACE], t.bit[BITS] + t.value[BITS]
    need(v > 0 and t.bit[BITS] == -v, "a bit must be written as ±v")
    need(one > 0 and slope > 0, "bits must hold a constant and their place")
    return one, slope, v


def places_of(solution: TrainedSolution, slope: Rational) -> list[Rational]:
    """The places of bits 1 to n."""
    first, last = (0 if solution.task == "rhi" else 1), solution.n_tokens - 1
    return [slope * fmpq(first + k, last) for k in range(solution.n_bits)]


def only(values: Sequence[Rational], allowed: set[int], what: str) -> None:
    """Raise unless all coordinates but the allowed ones are 0."""
    wrong = [k for k, value in enumerate(values) if value != 0 and k not in allowed]
    need(not wrong, f"{what} must leave content {', '.join(map(str, wrong))} alone")


def only_entries(found: Matrix, allowed: set[tuple[int, int]], what: str) -> None:
    """Raise unless a map between contents has no entries but the allowed ones."""
    for r, row in enumerate(found):
        for c, value in enumerate(row):
            need(value == 0 or (r, c) in allowed, f"{what} maps content {c} to {r}")
