"""Fingerprint and completion of the blocks that are trained: nn.GRU, pre-LN linear, BERT, Mamba2.

The same two maps as in `formal`, for the blocks of the paper's experiments, normalisation, heads
and activation included. Weights have PyTorch's layout (rows are outputs). Constants may be negated,
doubled or scaled beforehand, since they are free.

    d width   H heads   w feed-forward   N state   v width of the convolution
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.completions.formal import (
    Inputs,
    feature_map,
    linear_attention,
    linear_sums,
    softmax_attention,
)
from tests.support.completions.scalar import (
    Matrix,
    Scalar,
    Vector,
    add,
    affine,
    dot,
    erf,
    exp,
    log,
    matvec,
    plain,
    relu,
    sqrt,
    total,
)

from ithbit.theory.architecture import Activation


@dataclass(frozen=True)
class GruLayer:
    """One layer of nn.GRU; gates in PyTorch's order r, z, n. The fingerprint is h_{k-1}."""

    w_ih: Matrix
    w_hh: Matrix
    b_ih: Sequence[float]
    b_hh: Sequence[float]

    @property
    def width(self) -> int:
        return len(self.b_hh) // 3

    def fingerprint(self, xs: Inputs) -> list[float]:
        h: Vector = [0.0] * self.width
        for x in xs:
            h = self.completion(h, x)
        return list(h)

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        d, h = self.width, fingerprint
        # The sigmoid is 1 / (1 + e^-a): negated constants spare a negation.
        gates = [[-u for u in (*wi, *wh)] for wi, wh in zip(self.w_ih, self.w_hh, strict=True)]
        bias = [-(bi + bh) for bi, bh in zip(self.b_ih, self.b_hh, strict=True)]
        sigmoid = [1.0 / (exp(a) + 1.0) for a in affine(gates[: 2 * d], bias[: 2 * d], [*x, *h])]
        r, z = sigmoid[:d], sigmoid[d:]
        # tanh(a) is 1 - 2 / (e^2a + 1): doubled constants spare a product.
        new = slice(2 * d, 3 * d)
        twice_x = affine(_scaled(self.w_ih[new], 2.0), [2 * b for b in self.b_ih[new]], x)
        twice_h = affine(_scaled(self.w_hh[new], 2.0), [2 * b for b in self.b_hh[new]], h)
        n = [
            1.0 - 2.0 / (exp(a + gate * b) + 1.0)
            for a, gate, b in zip(twice_x, r, twice_h, strict=True)
        ]
        return [a + gate * (old - a) for a, gate, old in zip(n, z, h, strict=True)]


def _scaled(matrix: Matrix, factor: float) -> list[list[float]]:
    return [[factor * u for u in row] for row in matrix]


@dataclass(frozen=True)
class Norm:
    """LayerNorm; 7d + 3 operations, one of them a square root."""

    weight: Sequence[float]
    bias: Sequence[float]
    eps: float

    def __call__(self, x: Vector) -> list[Scalar]:
        mean = total(x) * (1 / len(x))
        centred = [u - mean for u in x]
        rho = 1.0 / sqrt(total([u * u for u in centred]) * (1 / len(x)) + self.eps)
        return [u * rho * g + b for u, g, b in zip(centred, self.weight, self.bias, strict=True)]


@dataclass(frozen=True)
class RmsNorm:
    """RMSNorm; 4d + 3 operations, one of them a square root."""

    weight: Sequence[float]
    eps: float

    def __call__(self, x: Vector) -> list[Scalar]:
        rho = 1.0 / sqrt(total([u * u for u in x]) * (1 / len(x)) + self.eps)
        return [u * rho * g for u, g in zip(x, self.weight, strict=True)]


@dataclass(frozen=True)
class FeedForward:
    """Affine, GELU or ReLU, affine. GELU(u) = u (1 + erf(u / √2)) / 2, its half in the weights."""

    w1: Matrix
    b1: Sequence[float]
    w2: Matrix
    b2: Sequence[float]
    activation: Activation

    def __call__(self, x: Vector) -> list[Scalar]:
        inner = affine(self.w1, self.b1, x)
        if self.activation == "relu":
            return affine(self.w2, self.b2, [relu(u) for u in inner])
        twice = [u * (erf(u * math.sqrt(0.5)) + 1.0) for u in inner]
        return affine(_scaled(self.w2, 0.5), self.b2, twice)


@dataclass(frozen=True)
class PreLnLinearBlock:
    """x + W_o a(LN x), then s + FF(LN s); ELU+1, bias-free projections, eps added to the den."""

    norm1: Norm
    K: Matrix
    Q: Matrix
    V: Matrix
    out: Matrix
    norm2: Norm
    ff: FeedForward
    heads: int
    eps: float

    def fingerprint(self, xs: Inputs) -> list[float]:
        inner = [self.norm1(x) for x in xs]
        keys = [feature_map("elu", matvec(self.K, u)) for u in inner]
        return linear_sums(keys, [matvec(self.V, u) for u in inner], self.heads)

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        u = self.norm1(x)
        key = feature_map("elu", matvec(self.K, u))
        query = feature_map("elu", matvec(self.Q, u))
        value = matvec(self.V, u)
        a = linear_attention(fingerprint, key, query, value, self.heads, self.eps)
        s = add(x, matvec(self.out, a))
        return add(s, self.ff(self.norm2(s)))


@dataclass(frozen=True)
class BertBlock:
    """LN(x + W_o a(x) + b), then LN(s + FF(s)); projections with biases, scores over sqrt(d_h)."""

    K: Matrix
    K_bias: Sequence[float]
    Q: Matrix
    Q_bias: Sequence[float]
    V: Matrix
    V_bias: Sequence[float]
    out: Matrix
    out_bias: Sequence[float]
    norm1: Norm
    ff: FeedForward
    norm2: Norm
    heads: int

    def fingerprint(self, xs: Inputs) -> list[float]:
        return [
            plain(u)
            for x in xs
            for u in (*affine(self.K, self.K_bias, x), *affine(self.V, self.V_bias, x))
        ]

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        scale = 1 / math.sqrt(len(self.K) // self.heads)
        key, value = affine(self.K, self.K_bias, x), affine(self.V, self.V_bias, x)
        query = affine(_scaled(self.Q, scale), [scale * b for b in self.Q_bias], x)
        a = softmax_attention(fingerprint, key, query, value, self.heads)
        s = self.norm1(add(x, affine(self.out, self.out_bias, a)))
        return self.norm2(add(s, self.ff(s)))


def _silu(a: Scalar) -> Scalar:
    return a / (exp(-a) + 1.0)


@dataclass(frozen=True)
class Mamba2Block:
    """x + W_o RMSNorm(y silu(z)), one group, expansion 1, without chunks: the recurrence itself.

    `in_proj` gives z (d), the convolution's input (d + 2N: x, B, C) and dt (H). The fingerprint is
    the state, d × N, and the last v - 1 inputs of the convolution, oldest first.
    """

    norm: RmsNorm
    in_proj: Matrix
    conv: Matrix  # one row of v taps a channel, the newest last
    conv_bias: Sequence[float]
    dt_bias: Sequence[float]
    A_log: Sequence[float]
    D: Sequence[float]
    gated_norm: RmsNorm
    out_proj: Matrix

    @property
    def width(self) -> int:
        return len(self.out_proj)

    @property
    def state(self) -> int:
        return (len(self.conv) - self.width) // 2

    def fingerprint(self, xs: Inputs) -> list[float]:
        d, N, c = self.width, self.state, len(self.conv)
        found = [0.0] * (d * N + (len(self.conv[0]) - 1) * c)
        for x in xs:
            new, window, _, _ = self._step(found, x)
            found = [plain(u) for u in (*new, *window)]
        return found

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        _, _, y, z = self._step(fingerprint, x)
        gated = [u * _silu(a) for u, a in zip(y, z, strict=True)]
        return add(x, matvec(self.out_proj, self.gated_norm(gated)))

    def _step(
        self, fingerprint: Vector, x: Vector
    ) -> tuple[list[Scalar], list[Scalar], list[Scalar], list[Scalar]]:
        """The next state, the next window, y and z."""
        d, N, c, H = self.width, self.state, len(self.conv), len(self.dt_bias)
        projected = matvec(self.in_proj, self.norm(x))
        z, new, dt = projected[:d], projected[d : d + c], projected[d + c :]
        window = [*fingerprint[d * N :], *new]
        mixed = [
            _silu(dot(taps, window[channel::c]) + bias)
            for channel, (taps, bias) in enumerate(zip(self.conv, self.conv_bias, strict=True))
        ]
        inner, B, C = mixed[:d], mixed[d : d + N], mixed[d + N :]
        steps = [log(exp(u + b) + 1.0) for u, b in zip(dt, self.dt_bias, strict=True)]
        decays = [exp(-math.exp(a) * u) for a, u in zip(self.A_log, steps, strict=True)]
        state: list[Scalar] = []
        y: list[Scalar] = []
        for j, u in enumerate(inner):
            head = j // (d // H)
            push = steps[head] * u
            row = [
                decays[head] * old + push * b
                for old, b in zip(fingerprint[j * N : (j + 1) * N], B, strict=True)
            ]
            state += row
            y.append(dot(C, row) + self.D[head] * u)
        return state, window[c:], y, z
