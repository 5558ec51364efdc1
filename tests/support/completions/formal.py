"""Fingerprint and completion of the paper's causal layers (Definitions 5, 6, 8, 9; Proposition 13).

Plain programs on lists: `fingerprint(xs)` is what is kept of the inputs so far, `completion(f, x)`
the layer's output at the next token. The second works on floats and on counting scalars.

    K, Q, V matrices   N, N1, N2 MLPs   phi the kernel function   h the state
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.completions.scalar import (
    Matrix,
    Scalar,
    Vector,
    add,
    affine,
    dot,
    exp,
    matvec,
    plain,
    relu,
    total,
)

from ithbit.theory.architecture import Feature

Inputs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Mlp:
    """Affine, ReLU, …, ReLU, affine."""

    weights: tuple[Matrix, ...]
    biases: tuple[Sequence[float], ...]

    def __call__(self, x: Vector) -> list[Scalar]:
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            x = [relu(u) for u in affine(weight, bias, x)]
        return affine(*last, x)


@dataclass(frozen=True)
class RnnLayer:
    """h_k = N1(x_k, h_{k-1}), y_k = N2(x_k, h_k), h_0 = 0. The fingerprint is h_{k-1}."""

    width: int
    N1: Mlp
    N2: Mlp

    def fingerprint(self, xs: Inputs) -> list[float]:
        h: Vector = [0.0] * self.width
        for x in xs:
            h = self.N1([*x, *h])
        return list(h)

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        h = self.N1([*x, *fingerprint])
        return self.N2([*x, *h])


class _StateSpace(ABC):
    """y_k = phi(x_k, h_k); how the state moves on is each model's own."""

    phi: Mlp
    h0: Sequence[float]

    @abstractmethod
    def _state(self, h: Vector, x: Vector) -> list[Scalar]: ...

    def fingerprint(self, xs: Inputs) -> list[float]:
        h: Vector = self.h0
        for x in xs:
            h = self._state(h, x)
        return list(h)

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        return self.phi([*x, *self._state(fingerprint, x)])


@dataclass(frozen=True)
class SsmLayer(_StateSpace):
    """h_k = A h_{k-1} + B x_k with constant matrices, y_k = phi(x_k, h_k)."""

    A: Matrix
    B: Matrix
    phi: Mlp
    h0: Sequence[float]

    def _state(self, h: Vector, x: Vector) -> list[Scalar]:
        return add(matvec(self.A, h), matvec(self.B, x))


@dataclass(frozen=True)
class SelectiveSsmLayer(_StateSpace):
    """h_k = A(x_k) h_{k-1} + B(x_k) with A(x), B(x) affine in x, y_k = phi(x_k, h_k).

    Row r of A(x) is `A[r] x + A_bias[r]`, a d × d matrix and a d-vector each.
    """

    A: Sequence[Matrix]
    A_bias: Matrix
    B: Matrix
    B_bias: Sequence[float]
    phi: Mlp
    h0: Sequence[float]

    def _state(self, h: Vector, x: Vector) -> list[Scalar]:
        rows = [affine(a, bias, x) for a, bias in zip(self.A, self.A_bias, strict=True)]
        return add([dot(row, h) for row in rows], affine(self.B, self.B_bias, x))


def feature_map(feature: Feature, x: Vector) -> list[Scalar]:
    """ELU+1 or ReLU+1, coordinate by coordinate: a comparison, and an addition or an exponential.

    >>> feature_map("elu", [2.0, 0.0])
    [3.0, 1.0]
    """
    if feature == "relu":
        return [relu(u) + 1.0 for u in x]
    return [u + 1.0 if u > 0 else exp(u) for u in x]


def split(x: Vector, heads: int) -> list[Vector]:
    """The vector cut into equal parts, one a head."""
    size = len(x) // heads
    return [x[j * size : (j + 1) * size] for j in range(heads)]


def linear_sums(keys: Sequence[Vector], values: Sequence[Vector], heads: int) -> list[Scalar]:
    """S = sum v phi(k)^T row by row, then z = sum phi(k), head after head."""
    found: list[Scalar] = []
    for head in range(heads):
        phi = [split(key, heads)[head] for key in keys]
        v = [split(value, heads)[head] for value in values]
        size = range(len(keys[0]) // heads)
        found += [sum(a[r] * b[c] for a, b in zip(v, phi, strict=True)) for r in size for c in size]
        found += [sum(b[c] for b in phi) for c in size]
    return found


def linear_attention(
    fingerprint: Vector, key: Vector, query: Vector, value: Vector, heads: int, eps: float
) -> list[Scalar]:
    """(S phi(q) + v (phi(k).phi(q))) / (z.phi(q) + phi(k).phi(q) + eps), head after head.

    `key` and `query` are phi(k) and phi(q); no operation is spent on eps = 0.
    """
    size = len(key) // heads
    kept = split(fingerprint, heads)
    found: list[Scalar] = []
    for part, k, q, v in zip(
        kept, split(key, heads), split(query, heads), split(value, heads), strict=True
    ):
        own = dot(k, q)
        rows = [dot(part[r * size : (r + 1) * size], q) for r in range(size)]
        num = add(rows, [u * own for u in v])
        den = dot(part[size * size :], q) + own
        if eps:
            den = den + eps
        found += [u / den for u in num]
    return found


@dataclass(frozen=True)
class LinearLayer:
    """Causal linear attention. The fingerprint is S = sum v phi(k)^T and z = sum phi(k)."""

    K: Matrix
    Q: Matrix
    V: Matrix
    net: Mlp
    feature: Feature = "elu"
    heads: int = 1

    def fingerprint(self, xs: Inputs) -> list[float]:
        keys = [feature_map(self.feature, matvec(self.K, x)) for x in xs]
        return linear_sums(keys, [matvec(self.V, x) for x in xs], self.heads)

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        key = feature_map(self.feature, matvec(self.K, x))
        query = feature_map(self.feature, matvec(self.Q, x))
        value = matvec(self.V, x)
        return self.net(
            add(x, linear_attention(fingerprint, key, query, value, self.heads, eps=0.0))
        )


def softmax_attention(
    fingerprint: Vector, key: Vector, query: Vector, value: Vector, heads: int
) -> list[Scalar]:
    """Attention over the cached keys and values and the token's own, head after head.

    The largest score is not taken off first: the programs are counted in real arithmetic.
    """
    d = len(key)
    tokens = [fingerprint[j : j + 2 * d] for j in range(0, len(fingerprint), 2 * d)]
    keys, values = [t[:d] for t in tokens] + [key], [t[d:] for t in tokens] + [value]
    found: list[Scalar] = []
    for head, q in enumerate(split(query, heads)):
        weights = [exp(dot(split(k, heads)[head], q)) for k in keys]
        den = total(weights)
        columns = zip(*[split(v, heads)[head] for v in values], strict=True)
        found += [dot(list(column), weights) / den for column in columns]
    return found


@dataclass(frozen=True)
class SoftmaxLayer:
    """Causal softmax attention. The fingerprint is every earlier key and value: it grows."""

    K: Matrix
    Q: Matrix
    V: Matrix
    net: Mlp
    heads: int = 1

    def fingerprint(self, xs: Inputs) -> list[float]:
        return [plain(u) for x in xs for u in (*matvec(self.K, x), *matvec(self.V, x))]

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        key, query, value = matvec(self.K, x), matvec(self.Q, x), matvec(self.V, x)
        return self.net(add(x, softmax_attention(fingerprint, key, query, value, self.heads)))
