"""What the stored weights of a trained block read and write, as exact rationals.

The arguments of this folder are about contents (`constructions/content.py`). Here stored
float64 weights become maps between contents, exactly: every row that reads and every column that
writes must lie in the span of U, and everything an argument takes to be 0 or 1 must be exactly
that. Otherwise `UnsuitableError` names what is not. Both ends of a ball are balls of radius 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flint import ctx, fmpq, fmpq_mat

from ithbit.theory.certifiers.exact import (
    BALLS,
    Ball,
    Bound,
    Matrix,
    Rational,
    exact_matrix,
    need,
    rounded_down,
)
from ithbit.theory.constructions.content import is_norm
from ithbit.theory.layers import FloatArray
from ithbit.theory.solution import Column, TrainedSolution

Argument = Callable[[TrainedSolution], Bound]
# Decorates an argument. In bits: scores are of size n^2 and their gaps of size 1.
in_balls: Callable[[Argument], Argument] = ctx.workprec(160)
ONE, PLACE, BITS = range(3)  # the first contents of every construction


def least_of(margins: list[Ball]) -> Bound:
    """The least margin over indices 1 to n; the answers are symmetric, so 1 stands for both."""
    return Bound(*min((rounded_down(margin), i, 1) for i, margin in enumerate(margins, 1)), BALLS)


class Reader:
    """The weights of a solution as maps between contents; every norm must be plain."""

    def __init__(self, solution: TrainedSolution, U: FloatArray) -> None:
        self.solution, self.weights = solution, solution.weights
        self.U = exact_matrix(U)
        self.norms = [fmpq(int(value)) for value in (U * U).sum(0)]
        self.dual = fmpq_mat(
            [[x / nu for x, nu in zip(row, self.norms, strict=True)] for row in self.U.tolist()]
        )
        for name, value in self.weights.items():
            if is_norm(name):
                wanted = 1.0 if name.endswith("weight") else 0.0
                need(bool((value == wanted).all()), f"{name} must be {wanted:g} throughout")

    def rows(self, weights: FloatArray, what: str) -> Matrix:
        """What each row reads of the content."""
        self._factors(weights, f"{what} reads more of the stream than the content")
        return exact_matrix(weights) * self.U

    def writes(self, columns: FloatArray, what: str) -> Matrix:
        """The content that each column of the stream holds, one in a row."""
        return self._factors(columns.T, f"{what} writes more to the stream than content")

    def _factors(self, vectors: FloatArray, otherwise: str) -> Matrix:
        """The vectors, one in a row, as combinations of the columns of U."""
        given = exact_matrix(vectors)
        factors = given * self.dual
        need(given == factors * self.U.transpose(), otherwise)
        return factors

    def product(self, out: FloatArray, inner: FloatArray, what: str) -> Matrix:
        """The map out · inner between contents: what the channels in between pass on."""
        used = inner.any(1) & out.any(0)
        read = self.rows(inner[used], what)
        return self.writes(out[:, used], what).transpose() * read

    def values(self, layer: int) -> Matrix:
        """What head 0 of a block moves between contents; the other heads must write nothing."""
        d, size, what = self.solution.width, self.solution.spec.d_head, f"block {layer + 1}"
        given = self.weights[f"blocks.{layer}.qkv.weight"][2 * d :]
        out = self.weights[f"blocks.{layer}.out.weight"]
        spare = self.product(out[:, size:], given[size:], what)
        need(not any(spare.entries()), f"{what}: only the first head may write")
        return self.product(out[:, :size], given[:size], what)

    def zero(self, *names: str) -> None:
        """Raise unless these parameters are 0."""
        for name in names:
            need(not self.weights[name].any(), f"{name} must be 0")

    def head(self, coordinate: int) -> Rational:
        """The factor by which the head reads this coordinate; it must read nothing else."""
        (row,) = self.rows(self.weights["head.weight"], "the head").tolist()
        only(row, {coordinate}, "the head")
        self.zero("head.bias")
        need(row[coordinate] > 0, "the head must read the answer with a positive factor")
        return row[coordinate]


@dataclass(frozen=True)
class Tokens:
    """The contents of all tokens, affine in features: content = sum of columns times features."""

    bit: list[Rational]
    query: list[Rational]
    end: list[Rational]
    value: list[Rational]
    fraction: list[Rational]
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
    features = reader.writes(embed[:, : Column.SQUARE], "the embedding")
    place = reader.writes(places[:, :1], "the map of positions")
    return Tokens(*features.tolist(), *place.tolist())


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
    for r, row in enumerate(found.tolist()):
        for c, value in enumerate(row):
            need(value == 0 or (r, c) in allowed, f"{what} maps content {c} to {r}")
