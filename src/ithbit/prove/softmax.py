"""Bounds for one block of softmax attention read at its last token, for RHI: BERT's block.

At the last token, the query of i, attention is per head a ratio of sums that are separable over the
bits (`ratios.py`). Where the denominator varies a lot, each coordinate's own range may be narrower
than its affine form: N/D is at most λ + max(F(λ), 0)/D_min with F(λ) = max (N - λ D), which is
separable too (Dinkelbach). The rest of the block is `forms.py`. Weights e^{s - max} and values are
rounded from arb balls, see `tokens.py`.
"""

from typing import NamedTuple

import numpy as np
from flint import arb, ctx

from ithbit.prove.bounded import Bounded, Ints
from ithbit.prove.forms import TINY, Form, block_tail, linear, slack, with_own
from ithbit.prove.ratios import separable_ratio
from ithbit.prove.tokens import (
    ENTRY,
    PRECISION,
    Params,
    asked,
    exact,
    exponentials,
    floats,
    part,
)
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import BERT_EPS

_WIDE = 1.5  # greatest over least denominator above which ranges of ratios are tried
_STEPS = 6  # of Dinkelbach


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
        self.n, self.params = n, {name: np.asarray(p, np.float64) for name, p in params.items()}
        p = self.params
        with ctx.workprec(PRECISION):
            rows, q, k, v = map(exact, tables) if tables else asked(p, spec)
            scale = arb(size).rsqrt()
            # index head row: the bits' two rows, then the query's own
            self.w = np.empty((n, heads, 2 * n + 1))
            self.v = np.empty((heads, 3 * n, d))
            for h in range(heads):
                at = range(h * size, (h + 1) * size)
                qh, kh, vh = (part(each, columns=at) for each in (q, k, v))
                score = part(qh, rows=range(2 * n, 3 * n)) * kh.transpose() * scale
                for i in range(n):
                    row = [score[i, j] for j in (*range(2 * n), 2 * n + i)]
                    self.w[i, h] = exponentials(row)
                out = p["blocks.0.out.weight"][:, h * size : (h + 1) * size]
                self.v[h] = floats(vh * exact(out).transpose())
            self.base = floats(part(rows, rows=range(2 * n, 3 * n)))
        self.w_bit = np.stack([self.w[..., :n], self.w[..., n : 2 * n]], -1)  # index head bit value
        self.v_bit = np.stack([self.v[:, :n], self.v[:, n : 2 * n]], 2)  # head bit value dim
        self.wv_bit = self.w_bit[..., None] * self.v_bit

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> Bounded:
        """Bounds of nodes: index (node) from 0, bits (node, bit) in -1, 0, 1; the bit at the
        index is fixed and is the answer."""
        with np.errstate(all="ignore"):
            return of_logit(*self._logit(index, bits), index, bits)

    def _logit(self, index: Ints, bits: Ints) -> tuple[Form, FloatArray]:
        """The logit's form, and how much each free bit matters."""
        p = self.params
        x, matters = self.attention(index, bits)
        x = block_tail(x, p, "blocks.0.", True, BERT_EPS)
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
        ratio = separable_ratio((w0, w1), (wv0, wv1), wq, fixed, free)
        m, G, own, e = ratio.m, ratio.G, ratio.rest, ratio.e
        least, most = ratio.least, ratio.most
        a, h = np.nonzero(most > _WIDE * least)
        if len(a):
            low, high = self._ranges(index[a], h, bits[a], least[a, h])
            affine = np.abs(G[a, h]).sum(1) + own[a, h] + e[a, h]
            narrow = (high - low).sum(-1) / 2 < affine.sum(-1)
            a, h, low, high = a[narrow], h[narrow], low[narrow], high[narrow]
            m[a, h], own[a, h] = (high + low) / 2, (high - low) / 2
            e[a, h] = slack(0) * (np.abs(high) + np.abs(low)) + TINY
            G[a, h] = 0
        matters = ratio.moves.sum(1)
        bias = self.params["blocks.0.out.bias"]
        c = self.base[index] + m.sum(1) + bias
        parts = np.abs(self.base[index]) + np.abs(m).sum(1) + np.abs(bias) + np.abs(G).sum((1, 2))
        e = (e.sum(1) + slack(8) * parts + 2 * ENTRY) * (1 + slack(8))
        own = own.sum(1) * (1 + slack(8))
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


def of_logit(logit: Form, matters: FloatArray, index: Ints, bits: Ints) -> Bounded:
    """Bounds from the logit's form, whose symbols begin with the bits that are free anywhere."""
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
    lower = np.where(np.isnan(lower), -np.inf, lower)
    return Bounded(lower, np.where(np.isnan(upper), np.inf, upper), slope, weight)


def _greatest(
    w: FloatArray, v: FloatArray, barred: Ints, wq: FloatArray, vq: FloatArray, least: FloatArray
) -> FloatArray:
    """An upper bound on (Σ w v + wq vq) / (Σ w + wq) over the bits that are not barred."""
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
    bound: FloatArray = np.minimum(top, found) + slack(0) * (np.abs(top) + np.abs(at)) + 2 * ENTRY
    return bound
