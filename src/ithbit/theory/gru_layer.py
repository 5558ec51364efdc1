"""The GRU layer as PyTorch computes it: a trained family, not one of the paper's formal layers.

Letters: r, z the reset and update gates, n the candidate, W the input and U the recurrent weights.
"""

from dataclasses import dataclass

import numpy as np

from ithbit.errors import SpecError
from ithbit.theory.layers import Array, FloatArray, Trace, like


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^{−x}), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def gru_states(x: Array, W: Array, U: Array, b: Array, c: Array) -> Array:
    """h_1 … h_T from h_0 = 0, with input weights W, b and recurrent weights U, c."""
    d = U.shape[1]
    inputs = x @ W.T + b
    h = np.zeros((len(x), d), x.dtype)
    states = np.empty((*x.shape[:2], d), x.dtype)
    for k in range(x.shape[1]):
        given, recalled = inputs[:, k], h @ U.T + c
        gates = sigmoid(given[:, : 2 * d] + recalled[:, : 2 * d])
        r, z = gates[:, :d], gates[:, d:]
        candidate = np.tanh(given[:, 2 * d :] + r * recalled[:, 2 * d :])
        h = candidate + z * (h - candidate)
        states[:, k] = h
    return states


@dataclass(frozen=True, eq=False)
class Gru:
    """PyTorch's GRU layer: gates r, z and candidate n stacked in this order in every weight.

    r = sigmoid(W_r x + U_r h), z likewise, n = tanh(W_n x + r ∘ (U_n h)), h' = (1 − z) ∘ n + z ∘ h,
    each with both biases. Not one of the paper's layers; `size` is its number of parameters.
    """

    weight_ih: FloatArray  # (3 d, d_in)
    weight_hh: FloatArray  # (3 d, d)
    bias_ih: FloatArray  # (3 d,)
    bias_hh: FloatArray  # (3 d,)
    kind: str = "gru"

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
        """h_1 … h_T, from h_0 = 0."""
        if x.dtype == object:
            raise SpecError("a GRU needs exponentials and has no exact arithmetic; use float64")
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return gru_states(x, *(like(weight, x) for weight in weights))

    def __call__(self, x: Array, last: bool = False) -> Array:
        return self.states(x)[:, -1:] if last else self.states(x)

    def trace(self, x: Array) -> Trace:
        states = self.states(x)
        return Trace(states, states=states)
