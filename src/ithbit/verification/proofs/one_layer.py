"""Bounds for one block of softmax attention read at its last token, for RHI: BERT's block, in real
arithmetic and as float32 computes it.

At the last token, the query of i, attention is per head a ratio of sums that are separable over the
bits (`attention.py`). Where the denominator varies a lot, each coordinate's own range may be
narrower than its affine form: N/D is at most λ + max(F(λ), 0)/D_min with F(λ) = max (N - λ D),
which is separable too (Dinkelbach). The rest of the block is `forms.py`. Weights e^{s - max} and
values are rounded from arb balls, see `tokens.py`.
"""

from typing import NamedTuple

import numpy as np
from flint import ctx

from ithbit.layouts import SOFTMAX
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import (
    TINY,
    Form,
    add,
    block_tail,
    gelu,
    layer_norm,
    linear,
    slack,
    with_own,
)
from ithbit.verification.proofs.attention import separable_ratio
from ithbit.verification.proofs.interface import Ints, NodeBounds
from ithbit.verification.proofs.token_balls import (
    ENTRY,
    PRECISION,
    Params,
    exact,
    floats,
    part,
    token_qkv_balls,
    weighed,
)

_WIDE = 1.5  # greatest over least denominator above which ranges of ratios are tried
_STEPS = 6  # of Dinkelbach
# Of float32: unit roundoff, the errors of exp and erf, underflow. float64, in which all this is
# computed, rounds by far less than `_UP`.
_U = 2.0**-24
_EXP, _ERF, _UNDER = 4 * _U, 8 * _U, 1e-30
_OVER, _OVER_ROOT = 1e38, 1e18  # sums, and what norms square, may overflow beyond
_UP = 1 + 1e-6


class Tables(NamedTuple):
    """Every token (row, dim) after the first norm, and its query, key and value."""

    x: FloatArray
    q: FloatArray
    k: FloatArray
    v: FloatArray


class OneSoftmax:
    """Bounds on the margin of one trained model over sets of inputs; with tables, of the model that
    continues from these."""

    batch = 128
    slack = 0.02

    def __init__(self, spec: ModelSpec, params: Params, tables: Tables | None = None) -> None:
        n, d, heads = spec.n_bits, spec.d_model, spec.n_heads
        size = d // heads
        self.functionals = np.zeros((0, n))
        self.n, self.params = n, params
        with ctx.workprec(PRECISION):
            rows, q, k, v = map(exact, tables) if tables else token_qkv_balls(params, spec)
            # index head row: the bits' two rows, then the query's own
            seen = {t: (*range(2 * n), t) for t in range(2 * n, 3 * n)}
            self.w = weighed(q, k, spec, seen).copy()
            self.v = np.empty((heads, 3 * n, d))
            for h in range(heads):
                at = range(h * size, (h + 1) * size)
                out = exact(params["blocks.0.out.weight"][:, at]).transpose()
                self.v[h] = floats(part(v, columns=at) * out)
            self.base = floats(part(rows, rows=range(2 * n, 3 * n)))
        self.w_bit = np.stack([self.w[..., :n], self.w[..., n : 2 * n]], -1)  # index head bit value
        self.v_bit = np.stack([self.v[:, :n], self.v[:, n : 2 * n]], 2)  # head bit value dim
        self.wv_bit = self.w_bit[..., None] * self.v_bit

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> NodeBounds:
        """Bounds of nodes: index (node) from 0, bits (node, bit) in -1, 0, 1; the bit at the
        index is fixed and is the answer."""
        index = index.astype(np.int64)  # n may be more than a small type holds
        with np.errstate(all="ignore"):
            return of_logit(*self._logit(index, bits), index, bits)

    def _logit(self, index: Ints, bits: Ints) -> tuple[Form, FloatArray]:
        """The logit's form, and how much each free bit matters."""
        p = self.params
        x, matters = self.attention(index, bits)
        x = block_tail(x, p, "blocks.0.", True, SOFTMAX.norm_eps)
        return linear(x, p["head.weight"], p["head.bias"]), matters

    def attention(self, index: Ints, bits: Ints) -> tuple[Form, FloatArray]:
        """The last token after attention, before the first norm, as a form whose symbols begin with
        the free bits; and how much each of these moves it."""
        free = np.flatnonzero((bits < 0).any(0))
        head = np.arange(self.w.shape[1])[:, None]
        place = np.arange(self.n)
        i = index[:, None, None]
        zero, one = np.where(bits < 0, 0, bits)[:, None], np.where(bits < 0, 1, bits)[:, None]
        w0, w1 = self.w_bit[i, head, place, zero], self.w_bit[i, head, place, one]
        wv0, wv1 = self.wv_bit[i, head, place, zero], self.wv_bit[i, head, place, one]
        wq = self.w[index, :, -1]  # node head
        vq = self.v[:, 2 * self.n + index].swapaxes(0, 1)  # node head dim
        fixed = wq[..., None] * vq
        ratio = separable_ratio((w0, w1), (wv0, wv1), wq, fixed, np.abs(fixed), free)
        m, G, own, e = ratio.m, ratio.G, ratio.rest, ratio.e
        least, most = ratio.least, ratio.most
        a, h = np.nonzero(~(most <= _WIDE * least))  # also where the ratio is unknown
        if len(a):
            low, high = self._ranges(index[a], h, bits[a], least[a, h])
            affine = np.abs(G[a, h]).sum(1) + own[a, h] + e[a, h]
            narrow = ~((high - low).sum(-1) / 2 >= affine.sum(-1))
            a, h, low, high = a[narrow], h[narrow], low[narrow], high[narrow]
            m[a, h], own[a, h] = (high + low) / 2, (high - low) / 2
            e[a, h] = slack(0) * (np.abs(high) + np.abs(low)) + TINY
            G[a, h] = 0
        matters = ratio.moves.sum(1)
        bias = self.params["blocks.0.out.bias"]
        c = self.base[index] + m.sum(1) + bias
        parts = np.abs(self.base[index]) + np.abs(m).sum(1) + np.abs(bias) + np.abs(G).sum((1, 2))
        sums = slack(8 + m.shape[1])
        e = (e.sum(1) + sums * parts + 2 * ENTRY) * (1 + sums)
        own = own.sum(1) * (1 + sums)
        return with_own(Form(c, G.sum(1).swapaxes(-1, -2), e), own), matters

    def _ranges(
        self, index: Ints, head: Ints, bits: Ints, least: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The range of every coordinate of N/D, for single heads of nodes."""
        w, v = self.w_bit[index, head], self.v_bit[head]  # pair bit value; pair bit value dim
        wq, vq = self.w[index, head, -1], self.v[head, 2 * self.n + index]
        barred = np.stack([bits == 1, bits == 0], -1)[..., None]
        high = _greatest(w, v, barred, wq, vq, least)
        return -_greatest(w, -v, barred, wq, -vq, least), high


def of_logit(
    logit: Form, matters: FloatArray, index: Ints, bits: Ints, empty: Ints | None = None
) -> NodeBounds:
    """Bounds from the logit's form, whose symbols begin with the bits that are free anywhere; nodes
    that are known to be empty may be named."""
    empty = np.zeros(len(index), bool) if empty is None else empty
    free = np.flatnonzero((bits < 0).any(0))
    low, high = logit.bounds()
    answer = np.take_along_axis(bits, index[:, None], 1)[:, 0]
    sign = np.where(answer == 1, 1.0, -1.0)
    lower = np.where(answer == 1, low[:, 0], -high[:, 0])
    upper = np.where(answer == 1, high[:, 0], -low[:, 0])
    slope, weight = np.zeros(bits.shape), np.zeros(bits.shape)
    slope[:, free] = logit.G[:, 0, : len(free)] * sign[:, None]
    weight[:, free], rest = np.split(np.nan_to_num(matters, nan=1e9, posinf=1e9), [len(free)], 1)
    weight = np.concatenate([weight, rest], 1)
    slope = np.where(np.isnan(slope), 0, slope)
    return NodeBounds(lower, upper, slope, weight, empty)


def _greatest(
    w: FloatArray, v: FloatArray, barred: Ints, wq: FloatArray, vq: FloatArray, least: FloatArray
) -> FloatArray:
    """An upper bound on (Σ w v + wq vq) / (Σ w + wq) over the bits that are not barred; where the
    least denominator is unknown (NaN), the largest value."""
    count = slack(2 * w.shape[1])
    top = np.maximum(np.where(barred, -np.inf, v).max((1, 2)), vq)  # a mean is no larger
    at = np.minimum(np.where(barred, np.inf, v).min((1, 2)), vq)
    for step in range(_STEPS):
        gain = np.where(barred, -np.inf, w[..., None] * (v - at[:, None, None]))
        best = gain.argmax(2)[:, :, None]
        total = np.take_along_axis(gain, best, 2)[:, :, 0].sum(1) + wq[:, None] * (vq - at)
        if step < _STEPS - 1:
            weight = np.take_along_axis(w[..., None] + 0 * v, best, 2)[:, :, 0]
            at = at + total / (weight.sum(1) + wq[:, None])
    sizes = (w.max(2).sum(1) + wq)[:, None] * (np.abs(v).max((1, 2)) + np.abs(vq) + np.abs(at))
    off = count * sizes + (4 * ENTRY * (w.max(2).sum(1) + wq))[:, None] + w.shape[1] * TINY
    found = at + (np.maximum(total, 0) + off) / least[:, None] * (1 + count)
    known = np.isfinite(found)
    found, at = np.where(known, found, np.inf), np.where(known, at, 0)
    bound: FloatArray = np.minimum(top, found) + slack(0) * (np.abs(top) + np.abs(at)) + 2 * ENTRY
    return bound


def gamma(k: int) -> float:
    return k * _U / (1 - k * _U)


class Float32(OneSoftmax):
    """Bounds on the margin over nodes as float32 computes it.

    This is about the models of `models/` on the machine where the proof was made. They embed and
    norm each of the 3 n tokens once and compute its query, key and value. These tables are
    taken as torch computed them there, and bounds are those of real arithmetic on them. From there
    on every operation is in float32 with unit roundoff u = 2^-24, with sums in any order, with or
    without fused operations: a sum of k products is within γ_k Σ|x y| of the truth,
    γ_k = k u / (1 - k u), and square roots and quotients are within 1 ulp. Assumed, not proved: exp
    within 2 ulp and erf within 4 ulp, as vendors state for their libraries, and a variance within
    (2 d + 8) u σ √(mean x²) of the truth, as two passes over the values or Welford's update give
    it. Underflow is below `_UNDER`.

    The errors of every step are symbols of the forms like any other, so that each moves the logit
    as it really would, but the bound assumes the worst sign for every one of them.
    """

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
        self.far = np.where(seen & ~(sizes < _OVER), np.inf, self.far)
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
        e = (off + gamma(3 * n + 8))[..., None] * self.most_v * _UP  # node head dim
        e = e + _UNDER * (1 + self.most_v)
        size, e = ((part + e).reshape(len(index), -1) for part in (self.most_v, 0 * e))
        weight, bias = p["blocks.0.out.weight"], p["blocks.0.out.bias"]
        e = e @ np.abs(weight).T + _linear(size, weight, bias)
        return (e + gamma(1) * (_largest(x) + e)) * _UP


def _normed(x: Form, gain: FloatArray, bias: FloatArray) -> Form:
    """LayerNorm with its rounding, for values of at most `size` before and `normal` after it, and
    deviations of at least `least`."""
    d = x.c.shape[-1]
    size, least = _largest(x), _deviation(x)
    normal = _largest(layer_norm(x, np.ones(d), np.zeros(d), SOFTMAX.norm_eps))
    mean = size.mean(-1, keepdims=True)
    c = gamma(3) * (size + mean) + gamma(d + 1) * mean
    moved = gamma(2 * d + 8) * np.sqrt((size * size).mean(-1, keepdims=True))
    far = (c + normal * moved) / least[:, None] + gamma(6) * normal
    off = far * np.abs(gain) + gamma(3) * (normal * np.abs(gain) + np.abs(bias))
    off = np.where((size < _OVER_ROOT).all(-1, keepdims=True), off, np.inf)
    return with_own(layer_norm(x, gain, bias, SOFTMAX.norm_eps), off * _UP + _UNDER)


def _linear(size: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    """The rounding of weight x + bias for |x| <= size; infinite where it may overflow."""
    sizes = size @ np.abs(weight).T
    off = gamma(weight.shape[1] + 1) * sizes + gamma(1) * np.abs(bias)
    found: FloatArray = np.where(sizes + np.abs(bias) < _OVER, off * _UP + _UNDER, np.inf)
    return found


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
    e = x.e + slack(d + x.G.shape[-1]) * (np.abs(x.c) + x.spread()).max(-1, keepdims=True) * 2
    r = np.abs(G).sum(-1) + e + e.mean(-1, keepdims=True)
    near = np.maximum(np.abs(c) - r, 0)
    by_symbol = np.abs(np.matmul(c[:, None], G)[:, 0]).sum(-1) + 2 * (np.abs(c) * e).sum(-1)
    affine = ((c * c).sum(-1) - 2 * by_symbol) / d
    least = np.maximum(np.maximum(affine * (1 - 1e-9) - 1e-9, (near * near).mean(-1)), 0)
    return np.sqrt(least + SOFTMAX.norm_eps) / _UP
