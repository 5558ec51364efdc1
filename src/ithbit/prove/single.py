"""A lower bound on the margin as float32 computes it, over sets of inputs: one softmax block.

This is about the plain models of `models/` on the machine where the proof was made. They embed and
norm each of the 3 n tokens once and compute its query, key and value. These tables are taken as
torch computed them there, and bounds are those of real arithmetic on them. From there on every
operation is in float32 with unit roundoff u = 2^-24, with sums in any order, with or without fused
operations: a sum of k products is within γ_k Σ|x y| of the truth, γ_k = k u / (1 - k u), and square
roots and quotients are within 1 ulp. Assumed, not proved: exp within 2 ulp and erf within 4 ulp, as
vendors state for their libraries, and a variance within (2 d + 8) u σ √(mean x²) of the truth, as
two passes over the values or Welford's update give it. Underflow is below `_UNDER`.

The errors of every step are symbols of the forms like any other, so that each moves the logit as
it really would, but the bound assumes the worst sign for every one of them.
"""

import numpy as np

from ithbit.prove.bounded import Ints
from ithbit.prove.forms import Form, add, gelu, layer_norm, linear, with_own
from ithbit.prove.softmax import OneSoftmax, Tables
from ithbit.prove.tokens import Params
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import BERT_EPS

_U = 2.0**-24
_EXP, _ERF, _UNDER = 4 * _U, 8 * _U, 1e-30
_UP = 1 + 1e-6  # float64, in which all this is computed, rounds by far less


def gamma(k: int) -> float:
    return k * _U / (1 - k * _U)


class Float32(OneSoftmax):
    """Bounds on the margin over nodes as float32 computes it."""

    slack = 3.0

    def __init__(self, spec: ModelSpec, params: Params, tables: Tables) -> None:
        super().__init__(spec, params, tables)
        n, size = spec.n_bits, spec.d_head
        split = (each.reshape(len(each), spec.n_heads, -1) for each in tables[1:])
        q, k, v = (np.moveaxis(each, 1, 0) for each in split)  # head token dim
        q, k = q[:, 2 * n :], k.swapaxes(-1, -2)
        score, sizes = (np.matmul(a, b) * size**-0.5 for a, b in ((q, k), (np.abs(q), np.abs(k))))
        seen = np.ones((n, 3 * n), bool)
        seen[:, 2 * n :] = np.eye(n, dtype=bool)
        score = np.where(seen, score, -np.inf)  # head index token
        below = score.max(-1, keepdims=True) - score
        far = gamma(size + 2) * sizes + 2 * _U * np.where(seen, below, 0)
        self.far = (np.expm1(far) + _EXP) * seen * _UP  # of each weight, relative
        self.share = np.exp(-below)
        self.most_v = np.abs(v).max(1)  # head dim: the largest

    def _logit(self, index: Ints, bits: Ints) -> tuple[Form, FloatArray]:
        def of(name: str) -> tuple[FloatArray, FloatArray]:
            return self.params[f"{name}.weight"], self.params[f"{name}.bias"]

        x, matters = self.attention(index, bits)
        x = with_own(x, self._rounding(index, bits, x))
        x = _normed(x, *of("blocks.0.norm1"))
        hidden = _mapped(x, *of("blocks.0.up"))
        units = with_own(gelu(hidden), (2.3 * _U + _ERF + gamma(4)) * _largest(hidden) * _UP)
        x = add(x, _mapped(units, *of("blocks.0.down")))
        x = with_own(x, gamma(1) * _largest(x) * _UP)
        x = _normed(x, *of("blocks.0.norm2"))
        return _mapped(x, *of("head")), matters

    def _rounding(self, index: Ints, bits: Ints, x: Form) -> FloatArray:
        """How far the last token may be off after attention and its residual sum."""
        p, n = self.params, self.n
        zero, one = (bits != 1)[:, None], (bits != 0)[:, None]
        share, far = (np.moveaxis(each[:, index], 1, 0) for each in (self.share, self.far))
        w0, w1 = share[..., :n] * zero, share[..., n : 2 * n] * one  # node head bit
        query = share[..., 2 * n :]  # 0 except for the token itself
        least = np.where((bits >= 0)[:, None], w0 + w1, np.minimum(w0, w1)).sum(-1) + query.sum(-1)
        a, b = far[..., :n] * zero, far[..., n : 2 * n] * one
        mean = (np.maximum(w0 * a, w1 * b).sum(-1) + (query * far[..., 2 * n :]).sum(-1)) / least
        most = np.maximum(np.maximum(a, b).max(-1), far[..., 2 * n :].max(-1))
        off = np.minimum(mean, most)  # relative errors of weights: weighted mean or largest
        off = np.where(most < 0.5, 2 * off / (1 - np.minimum(most, 0.5)), np.inf)
        e = (off + gamma(3 * n + 8))[..., None] * self.most_v * _UP + _UNDER  # node head dim
        size, e = ((part + e).reshape(len(index), -1) for part in (self.most_v, 0 * e))
        weight, bias = p["blocks.0.out.weight"], p["blocks.0.out.bias"]
        e = e @ np.abs(weight).T + _linear(size, weight, bias)
        return (e + gamma(1) * (_largest(x) + e)) * _UP


def _normed(x: Form, gain: FloatArray, bias: FloatArray) -> Form:
    """LayerNorm with its rounding, for values of at most `size` before and `normal` after it, and
    deviations of at least `least`."""
    d = x.c.shape[-1]
    size, least = _largest(x), _deviation(x)
    normal = _largest(layer_norm(x, np.ones(d), np.zeros(d), BERT_EPS))
    mean = size.mean(-1, keepdims=True)
    c = gamma(3) * (size + mean) + gamma(d + 1) * mean
    moved = gamma(2 * d + 8) * np.sqrt((size * size).mean(-1, keepdims=True))
    far = (c + normal * moved) / least[:, None] + gamma(6) * normal
    off = far * np.abs(gain) + gamma(3) * (normal * np.abs(gain) + np.abs(bias))
    return with_own(layer_norm(x, gain, bias, BERT_EPS), off * _UP + _UNDER)


def _linear(size: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """The rounding of weight x + bias for |x| <= size."""
    off: FloatArray = gamma(weight.shape[1] + 1) * (size @ np.abs(weight).T) + gamma(1) * np.abs(
        bias
    )
    return off * _UP + _UNDER


def _mapped(x: Form, weight: FloatArray, bias: FloatArray) -> Form:
    """weight x + bias with its rounding."""
    return with_own(linear(x, weight, bias), _linear(_largest(x), weight, bias))


def _largest(x: Form) -> FloatArray:
    low, high = x.bounds()
    return np.maximum(np.abs(low), np.abs(high)) * _UP


def _deviation(x: Form) -> FloatArray:
    """The least √(variance + ε) over a form."""
    d = x.c.shape[-1]
    c, G = x.c - x.c.mean(-1, keepdims=True), x.G - x.G.mean(-2, keepdims=True)
    r = np.abs(G).sum(-1) + x.e + x.e.mean(-1, keepdims=True)
    near = np.maximum(np.abs(c) - r, 0)
    by_symbol = np.abs(np.matmul(c[:, None], G)[:, 0]).sum(-1) + 2 * (np.abs(c) * x.e).sum(-1)
    affine = ((c * c).sum(-1) - 2 * by_symbol) / d
    least = np.maximum(np.maximum(affine * (1 - 1e-9) - 1e-9, (near * near).mean(-1)), 0)
    return np.sqrt(least + BERT_EPS) / _UP
