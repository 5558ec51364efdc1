"""The paper's (n, d)-layers, exactly as Definitions 5, 6, 8 and 9 give them, and their size.

These are the layers of the theorems, not the trained blocks: one head, no scaling by sqrt(d), no
output projection, no normalisation. The query token is included in its own sum. One trained layer
is among them, the GRU as PyTorch computes it.

Letters: x_k, y_k input and output of token k; K, Q, V the three matrices; N the layer's MLP; phi
the feature map of linear attention or the readout of an SSM; h_k the state; AC the arithmetic
complexity of Definition 1. Arrays are `batch token dim`. The paper leaves "MLP" open; here it is
affine, ReLU, …, ReLU, affine with biases everywhere, so it has sum (in + 1) · out parameters.

Weights are kept as float64 numbers, each an exact dyadic rational. Every layer runs in float32 and
float64; a layer without exponentials also runs exactly, on object arrays of `Fraction`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ithbit.errors import SpecError

Array = NDArray[Any]  # float32, float64, or objects holding Fractions
FloatArray = NDArray[np.float64]
FeatureMap = Literal["elu+1", "relu+1"]

# The most numbers that one slice of a softmax attention matrix may hold: 64 MB of float64.
SLICE = 8_000_000


def matrix(values: Any, ndim: int = 2) -> FloatArray:
    """The numbers as a read-only array of finite float64 numbers."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != ndim or not np.isfinite(array).all():
        raise SpecError(f"weights must be finite arrays with {ndim} axes, got shape {array.shape}")
    array.setflags(write=False)
    return array


def like(weights: FloatArray, x: Array) -> Array:
    """The weights in the arithmetic of `x`: rounded to its float type, or exact as Fractions.

    >>> like(matrix([[0.5]]), np.array([Fraction(1)]))
    array([[Fraction(1, 2)]], dtype=object)
    """
    if x.dtype != object:
        return weights.astype(x.dtype)
    return np.vectorize(Fraction, otypes=[object])(weights)


@dataclass(frozen=True, eq=False)
class ReluNet:
    """An MLP: affine maps (W_j, b_j) with a ReLU between neighbours. *Exact* as a real function.

    >>> hat = ReluNet((matrix([[1], [1], [1]]), matrix([[1, -2, 1]])),
    ...               (matrix([1, 0, -1], 1), matrix([0], 1)))
    >>> hat(np.array([[-2.0], [0.0], [0.25]])).tolist()
    [[0.0], [1.0], [0.75]]
    >>> hat.n_parameters
    10
    """

    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]

    def __post_init__(self) -> None:
        outs = [len(bias) for bias in self.biases]
        shapes = [weight.shape for weight in self.weights]
        ins = [shape[1] for shape in shapes]
        if [shape[0] for shape in shapes] != outs or ins[1:] != outs[:-1] or not outs:
            raise SpecError(f"the affine maps of an MLP must chain, got weights of shape {shapes}")

    @property
    def d_in(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def d_out(self) -> int:
        return len(self.biases[-1])

    @property
    def n_parameters(self) -> int:
        """Learnable parameters, zeros included: sum (in + 1) · out."""
        return sum(weight.size + len(weight) for weight in self.weights)

    @property
    def operations(self) -> int:
        """Operations of the program that skips zero weights: an upper bound on AC, a minimum.

        One per multiplication by a weight other than ±1, per addition or negation, per ReLU (one
        comparison with a jump) and per output value.
        """
        total = self.d_out + sum(len(bias) for bias in self.biases[:-1])
        for weight, bias in zip(self.weights, self.biases, strict=True):
            for row, constant in zip(weight, bias, strict=True):
                used = row[row != 0]
                total += int(np.count_nonzero(np.abs(used) != 1))
                terms = len(used) + (constant != 0)
                negated = bool(len(used)) and bool((used == -1).all()) and constant == 0
                total += max(0, terms - 1) + negated
        return int(total)

    def __call__(self, x: Array) -> Array:
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if depth:
                x = np.maximum(x, 0)
            x = x @ like(weight, x).T + like(bias, x)
        return x


def features(name: FeatureMap, x: Array) -> Array:
    """The feature map phi of linear attention, coordinate by coordinate; positive everywhere.

    ELU + 1 is taken with alpha = 1: with alpha > 1 it is negative far to the left, and Definition 6
    requires phi > 0. Plain ReLU is zero there, so "ReLU instead of ELU" means ReLU + 1.

    >>> features("elu+1", np.array([-np.log(2.0), 0.0, 3.0])).tolist()
    [0.5, 1.0, 4.0]
    """
    if name == "relu+1":
        return np.maximum(x, 0) + 1
    if x.dtype == object:
        raise SpecError("ELU+1 needs exponentials and has no exact arithmetic; use float64")
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@dataclass(frozen=True)
class Trace:
    """What a layer did on a batch: its output, and the attention or the states behind it."""

    output: Array
    attention: Array | None = None  # batch query key; rows sum to 1
    states: Array | None = None  # batch token dim: h_k after token k


@dataclass(frozen=True, eq=False)
class Attention:
    """y_k = N(x_k + a_k), a_k an average of V x_l over l <= k if `causal`, else over all tokens."""

    causal: bool
    K: FloatArray
    Q: FloatArray
    V: FloatArray
    net: ReluNet

    def __post_init__(self) -> None:
        K, net = self.K, self.net
        shapes = {array.shape for array in (K, self.Q, self.V)} | {(net.d_out, net.d_in)}
        if len(shapes) > 1 or K.shape[0] != K.shape[1]:
            problem = f"K, Q, V and N must share one width, got shapes {sorted(shapes)}"
            raise SpecError(f"attention layer: {problem}")

    @property
    def d_in(self) -> int:
        return len(self.K)

    d_out = d_in

    @property
    def size(self) -> int:
        return int(3 * self.K.size + self.net.n_parameters)


@dataclass(frozen=True, eq=False)
class SoftmaxAttention(Attention):
    """Definition 5: a_k = sum_l V x_l e^{(K x_l)·(Q x_k)} / sum_l e^{…}, y_k = N(x_k + a_k).

    Size 3 d^2 + |N|. In floats the largest score of each row is subtracted first, which changes
    nothing in real arithmetic.
    """

    kind: ClassVar[str] = "softmax"

    def _attend(self, x: Array, start: int, stop: int) -> Array:
        """Attention weights of the queries start … stop − 1."""
        if x.dtype == object:
            raise SpecError("softmax needs exponentials and has no exact arithmetic; use float64")
        keys, queries = x @ like(self.K, x).T, x[:, start:stop] @ like(self.Q, x).T
        scores = queries @ keys.swapaxes(1, 2)
        if self.causal:
            later = np.arange(x.shape[1]) > np.arange(start, stop)[:, None]
            scores[:, later] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        return weights / weights.sum(axis=2, keepdims=True)

    def __call__(self, x: Array, last: bool = False) -> Array:
        batch, length, _ = x.shape
        values = x @ like(self.V, x).T
        step = max(1, SLICE // (batch * length))
        starts = [length - 1] if last else range(0, length, step)
        attended = [self._attend(x, start, min(start + step, length)) @ values for start in starts]
        return self.net(x[:, starts[0] :] + np.concatenate(attended, axis=1))

    def trace(self, x: Array) -> Trace:
        return Trace(self(x), attention=self._attend(x, 0, x.shape[1]))


@dataclass(frozen=True, eq=False)
class LinearAttention(Attention):
    """Definition 6: as softmax, with the weight phi(K x_l)·phi(Q x_k) in place of the exponential.

    Size 3 d^2 + |N| + AC(phi); computed on its own, phi costs 3 per coordinate: one comparison, one
    exponential or addition, one output.
    """

    feature: FeatureMap = "elu+1"
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature not in ("elu+1", "relu+1"):
            raise SpecError(f"the feature map must be elu+1 or relu+1, got {self.feature!r}")

    @property
    def size(self) -> int:
        return super().size + 3 * self.d_in

    def __call__(self, x: Array, last: bool = False) -> Array:
        first = x.shape[1] - 1 if last else 0
        keys = features(self.feature, x @ like(self.K, x).T)
        queries = features(self.feature, x[:, first:] @ like(self.Q, x).T)
        pairs = (x @ like(self.V, x).T)[..., :, None] * keys[..., None, :]
        running = self.causal and not last

        def total(terms: Array) -> Array:
            return np.cumsum(terms, axis=1) if running else terms.sum(axis=1, keepdims=True)

        numerator = (total(pairs) * queries[..., None, :]).sum(axis=-1)
        denominator = (total(keys) * queries).sum(axis=-1)
        return self.net(x[:, first:] + numerator / denominator[..., None])

    def trace(self, x: Array) -> Trace:
        keys = features(self.feature, x @ like(self.K, x).T)
        weights = features(self.feature, x @ like(self.Q, x).T) @ keys.swapaxes(1, 2)
        if self.causal:
            weights = np.tril(weights)
        return Trace(self(x), attention=weights / weights.sum(axis=2, keepdims=True))


def scan(x: Array, h: Array, step: Callable[[int, Array], Array]) -> Array:
    """h_1 … h_T from h_0 = h: `step` gives the state after token k, counted from 0."""
    states = np.empty((*x.shape[:2], h.shape[1]), x.dtype)
    for k in range(x.shape[1]):
        states[:, k] = h = step(k, h)
    return states


@dataclass(frozen=True, eq=False)
class Recurrent:
    """A state h_k after each token, and the output y_k = readout(x_k, h_k); h_k without readout."""

    @property
    def readout(self) -> ReluNet | None:
        return None

    def states(self, x: Array) -> Array:
        """h_1 … h_T."""
        raise NotImplementedError

    def __call__(self, x: Array, last: bool = False) -> Array:
        return self.trace(x, last).output

    def trace(self, x: Array, last: bool = False) -> Trace:
        first, states = x.shape[1] - 1 if last else 0, self.states(x)
        output = states[:, first:]
        if self.readout is not None:
            output = self.readout(np.concatenate([x[:, first:], output], axis=2))
        return Trace(output, states=states)


@dataclass(frozen=True, eq=False)
class Ssm(Recurrent):
    """Definition 8: h_k = A(x_k) h_{k-1} + B(x_k), y_k = phi(x_k, h_k), with A, B, phi as MLPs.

    `A` has d^2 outputs, read as a d × d matrix by rows; a constant A is an affine map with zero
    weights. Size d^2 + 2d + AC(A) + AC(B) + AC(phi), with each AC bounded by its MLP's program.
    """

    A: ReluNet
    B: ReluNet
    phi: ReluNet
    h0: FloatArray
    kind: ClassVar[str] = "ssm"

    def __post_init__(self) -> None:
        d = len(self.h0)
        got = [(net.d_in, net.d_out) for net in (self.A, self.B, self.phi)]
        if got != [(d, d * d), (d, d), (2 * d, d)]:
            raise SpecError(f"A, B, phi of an SSM must map d → d², d → d, 2d → d, got {got}")

    @property
    def d_in(self) -> int:
        return len(self.h0)

    d_out = d_in

    @property
    def size(self) -> int:
        d = self.d_in
        return d * d + 2 * d + self.A.operations + self.B.operations + self.phi.operations

    @property
    def readout(self) -> ReluNet:
        return self.phi

    def states(self, x: Array) -> Array:
        batch, length, d = x.shape
        A, B = self.A(x).reshape(batch, length, d, d), self.B(x)
        start = np.broadcast_to(like(self.h0, x), (batch, d))
        return scan(x, start, lambda k, h: (A[:, k] * h[:, None, :]).sum(axis=2) + B[:, k])


@dataclass(frozen=True, eq=False)
class Rnn(Recurrent):
    """Definition 9: h_0 = 0, h_k = N1(x_k, h_{k-1}), y_k = N2(x_k, h_k). Size d + |N1| + |N2|."""

    N1: ReluNet
    N2: ReluNet
    kind: ClassVar[str] = "rnn"

    def __post_init__(self) -> None:
        got = [(net.d_in, net.d_out) for net in (self.N1, self.N2)]
        d = self.N1.d_out
        if got != [(2 * d, d)] * 2:
            raise SpecError(f"N1, N2 of an RNN must both map 2d → d, got {got}")

    @property
    def d_in(self) -> int:
        return self.N1.d_out

    d_out = d_in

    @property
    def size(self) -> int:
        return self.d_in + self.N1.n_parameters + self.N2.n_parameters

    @property
    def readout(self) -> ReluNet:
        return self.N2

    def states(self, x: Array) -> Array:
        return scan(x, x[:, 0] * 0, lambda k, h: self.N1(np.concatenate([x[:, k], h], axis=1)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^{−x}), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


@dataclass(frozen=True, eq=False)
class Gru(Recurrent):
    """PyTorch's GRU layer: gates r, z and candidate n stacked in this order in every weight.

    r = sigmoid(W_r x + U_r h), z likewise, n = tanh(W_n x + r ∘ (U_n h)), h' = (1 − z) ∘ n + z ∘ h,
    each with both biases. Not one of the paper's layers; `size` is its number of parameters.
    """

    weight_ih: FloatArray  # (3 d, d_in)
    weight_hh: FloatArray  # (3 d, d)
    bias_ih: FloatArray  # (3 d,)
    bias_hh: FloatArray  # (3 d,)
    kind: ClassVar[str] = "gru"

    def __post_init__(self) -> None:
        rows, d = self.weight_hh.shape
        if rows != 3 * d or {len(self.weight_ih), len(self.bias_ih), len(self.bias_hh)} != {rows}:
            raise SpecError(f"a GRU of width {d} needs {3 * d} rows in each weight and bias")

    @property
    def d_in(self) -> int:
        return int(self.weight_ih.shape[1])

    @property
    def d_out(self) -> int:
        return int(self.weight_hh.shape[1])

    @property
    def size(self) -> int:
        return int(self.weight_ih.size + self.weight_hh.size + 2 * len(self.bias_ih))

    def states(self, x: Array) -> Array:
        if x.dtype == object:
            raise SpecError("a GRU needs exponentials and has no exact arithmetic; use float64")
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        W, U, b, c = (like(weight, x) for weight in weights)
        d, inputs = self.d_out, x @ W.T + b

        def step(k: int, h: Array) -> Array:
            given, recalled = inputs[:, k], h @ U.T + c
            gates = sigmoid(given[:, : 2 * d] + recalled[:, : 2 * d])
            r, z = gates[:, :d], gates[:, d:]
            candidate = np.tanh(given[:, 2 * d :] + r * recalled[:, 2 * d :])
            return candidate + z * (h - candidate)

        return scan(x, np.zeros((len(x), d), x.dtype), step)
