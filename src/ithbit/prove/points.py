"""Two blocks of attention on single inputs, sound in real arithmetic: where a set has few strings,
trying all of them says more than bounds of the set, and is faster.

Rows of numbers carry one error each, which bounds how far any of their coordinates may be off. A
LayerNorm grows it by at most (1 + √d) / σ, since the deviation is 1-Lipschitz; attention
averages values, so that relative errors δ of its weights move it by 2 δ / (1 - δ) of the largest.
"""

from typing import NamedTuple

import numpy as np

from ithbit.prove.bounded import Bounded, Ints
from ithbit.prove.forms import TINY, gelu_at, slack
from ithbit.prove.tokens import ENTRY, Params
from ithbit.theory.certifiers.arithmetic.intervals import EXP_LIMIT, FINE, exp_tables
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import DENOMINATOR_EPS

_GELU_SLOPE = 1.13  # of GELU, at most 1.1290 at √2
_UP = 1 + slack(64)
_EXP = 2.0**-48
_AT_ONCE = 64  # inputs, which fit the caches


class Rows(NamedTuple):
    """x (... dim), each coordinate within e of the truth."""

    x: FloatArray
    e: FloatArray

    def size(self) -> FloatArray:
        return np.abs(self.x) + self.e


def linear(rows: Rows, weight: FloatArray, bias: FloatArray | None = None) -> Rows:
    """weight x + bias, for exact weights (out, in)."""
    off = slack(weight.shape[1])
    x = rows.x @ weight.T
    e = (rows.e + off * rows.size()) @ np.abs(weight).T
    if bias is not None:
        x = x + bias
        e = e + slack(4) * np.abs(bias)
    return Rows(x, e * _UP + TINY)


def add(a: Rows, b: Rows) -> Rows:
    return Rows(a.x + b.x, (a.e + b.e + slack(0) * (a.size() + b.size())) * _UP)


def layer_norm(rows: Rows, gain: FloatArray, bias: FloatArray, eps: float) -> Rows:
    off = slack(rows.x.shape[-1])
    c = rows.x - rows.x.mean(-1, keepdims=True)
    e = rows.e + off * np.abs(rows.x)
    e = (e + e.mean(-1, keepdims=True)) * _UP  # of c
    deviation = np.sqrt((c * c).mean(-1, keepdims=True) + eps)
    far = np.sqrt((e * e).mean(-1, keepdims=True)) * _UP + off * deviation  # of the deviation
    least = np.maximum(deviation - far, np.sqrt(eps)) * (1 - off)
    x = c / deviation
    e = (e + np.abs(x) * far) / least + off * np.abs(x)
    e = e * np.abs(gain) + slack(8) * (np.abs(x * gain) + np.abs(bias))
    return Rows(x * gain + bias, e * _UP + TINY)


def gelu(rows: Rows) -> Rows:
    value, off = gelu_at(rows.x)
    return Rows(value, (_GELU_SLOPE * rows.e + off) * _UP)


def average(weight: FloatArray, off: FloatArray, value: Rows) -> Rows:
    """Σ w v / Σ w for weights (... query token) within a factor 1 ± off (... query), or 1e-250, and
    values (... token dim). With relative errors δ each share w / Σ w moves by 2 δ / (1 - δ)."""
    tokens = weight.shape[-1]
    total = weight.sum(-1)
    share = weight / total[..., None]
    off = off + slack(2 * tokens)
    known = (off < 0.5) & (total > 1e-200)  # no underflow that counts
    far = 2 * off / np.where(known, 1 - off, 1)
    x = np.matmul(share, value.x)
    e = np.matmul(share, value.e) * 2 + far[..., None] * np.matmul(share, value.size())
    e = e + ENTRY * value.size().max(-2)[..., None, :]
    return Rows(x, np.where(known[..., None], e * _UP + tokens * TINY, np.inf))


class Points:
    """Margins of a two-layer model at single inputs."""

    def __init__(
        self, w: FloatArray, v: FloatArray, x: FloatArray, params: Params, softmax: bool, eps: float
    ) -> None:
        self.w, self.v, self.x, self.params = w, v, x, params  # as in `TwoLayers`
        self.softmax, self.eps = softmax, eps

    def __call__(self, rows: Ints, answer: int) -> tuple[FloatArray, FloatArray]:
        """Bounds of the margin of inputs, given as rows (input, token) of the table of tokens."""
        p, flat = self.params, (*rows.shape, self.x.shape[-1])
        weight, value = self.w[:, rows[:, :, None], rows[:, None]], self.v[:, rows]
        off = np.full(weight.shape[:-1], slack(4))
        mixed = average(weight, off, Rows(value, slack(0) * np.abs(value) + ENTRY))
        mixed = self._damped(mixed, weight, off)
        x, e = (np.moveaxis(each, 0, 2).reshape(flat) for each in mixed)
        out = linear(Rows(x, e), p["blocks.0.out.weight"], p.get("blocks.0.out.bias"))
        x = self.x[rows]
        z = self._tail(add(Rows(x, slack(0) * np.abs(x) + ENTRY), out), "blocks.0.")
        inner = z if self.softmax else self._norm(z, "blocks.1.norm1")
        last = add(Rows(z.x[:, -1], z.e[:, -1]), self._second(inner))
        logit = linear(self._tail(last, "blocks.1."), p["head.weight"], p["head.bias"])
        margin = logit.x[:, 0] * (1.0 if answer == 1 else -1.0)
        room = logit.e[:, 0] * _UP + slack(0) * np.abs(margin)
        return margin - room, margin + room

    def tried(self, index: int, bits: Ints, limits: FloatArray, functionals: FloatArray) -> Bounded:
        """Bounds of one node by all its inputs."""
        n, free = len(bits), np.flatnonzero(bits < 0)
        strings = np.tile(bits, (1 << len(free), 1)).astype(np.int64)
        strings[:, free] = np.arange(len(strings))[:, None] >> np.arange(len(free)) & 1
        at = (2 * strings - 1.0) @ functionals.T  # exact
        strings = strings[((limits[:, 0] <= at) & (at <= limits[:, 1])).all(1)]
        tokens = [strings * n + np.arange(n), np.full((len(strings), 1), 2 * n + index)]
        if len(self.x) > 3 * n:  # LHI: the query first, the end last
            tokens = [tokens[1], tokens[0], np.full((len(strings), 1), 3 * n)]
        rows, starts = np.concatenate(tokens, 1), range(0, len(strings), _AT_ONCE)
        found = [self(rows[a : a + _AT_ONCE], bits[index]) for a in starts]
        weight = np.zeros((1, n + len(functionals)))
        if not found:
            return Bounded(np.array([np.inf]), np.array([-np.inf]), np.zeros((1, n)), weight)
        low, high = (np.concatenate(each) for each in zip(*found, strict=True))
        low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        slope = 1.0 - 2 * strings[low.argmin()][None]  # points at the least of them
        return Bounded(low.min(keepdims=True), high.max(keepdims=True), slope, weight)

    def _second(self, inner: Rows) -> Rows:
        """What attention of layer 2 gives the last token."""
        p, heads, size = self.params, len(self.w), self.v.shape[-1]
        qkv = linear(inner, p["blocks.1.qkv.weight"], p.get("blocks.1.qkv.bias"))
        inputs, tokens, _ = qkv.x.shape
        x, e = (
            each.reshape(inputs, tokens, 3, heads, size).transpose(2, 0, 3, 1, 4) for each in qkv
        )
        q, qe = x[0][:, :, -1:], e[0][:, :, -1:]  # input head query dim
        k, ke = x[1], e[1]  # input head token dim
        if self.softmax:
            score = (q * k).sum(-1) * size**-0.5
            far = np.abs(q) * ke + np.abs(k) * qe + ke * qe + slack(size) * np.abs(q * k)
            score -= score.max(-1, keepdims=True)
            off = (far.sum(-1) * size**-0.5 * _UP + slack(0) * np.abs(score)).max(-1)
            weight = exp(score)
            off = 2 * (off + _EXP)  # e^x - 1 <= 2 x for x <= 1
        else:
            weight = (_features(q) * _features(k)).sum(-1)
            off = 4 * (ke.max((-1, -2)) + qe.max((-1, -2)) + 2 * _EXP) + slack(2 * size)
        weight, off = weight[:, :, None], np.where(off < 0.5, off, 1.0)[:, :, None]
        mixed = self._damped(average(weight, off, Rows(x[2], e[2])), weight, off)
        x, e = (each.reshape(inputs, heads * size) for each in mixed)
        return linear(Rows(x, e), p["blocks.1.out.weight"], p.get("blocks.1.out.bias"))

    def _damped(self, mixed: Rows, weight: FloatArray, off: FloatArray) -> Rows:
        """The average with linear attention's ε in its denominator."""
        if self.softmax:
            return mixed
        total = weight.sum(-1)
        far = slack(weight.shape[-1]) + 2 * off * DENOMINATOR_EPS / total
        x = mixed.x * (total / (total + DENOMINATOR_EPS))[..., None]
        return Rows(x, (mixed.e + far[..., None] * mixed.size()) * _UP)

    def _norm(self, x: Rows, name: str) -> Rows:
        return layer_norm(x, self.params[f"{name}.weight"], self.params[f"{name}.bias"], self.eps)

    def _tail(self, x: Rows, block: str) -> Rows:
        """A block after attention and its residual sum."""
        p = self.params
        if self.softmax:
            x = self._norm(x, f"{block}norm1")
        inner = x if self.softmax else self._norm(x, f"{block}norm2")
        hidden = gelu(linear(inner, p[f"{block}up.weight"], p[f"{block}up.bias"]))
        x = add(x, linear(hidden, p[f"{block}down.weight"], p[f"{block}down.bias"]))
        return self._norm(x, f"{block}norm2") if self.softmax else x


def _features(x: FloatArray) -> FloatArray:
    """ELU + 1, as exact as `exp`."""
    return np.where(x > 0, x + 1, exp(np.minimum(x, 0)))


def exp(x: FloatArray) -> FloatArray:
    """e^x for x <= 0 within a factor 1 ± `_EXP`, or 1e-250: e^j e^{m/64} e^r, |r| <= 1/128.

    Tables are rounded from arb balls; Horner's rule and the remainder are off by at most 2^-51.
    """
    whole, fine = exp_tables()
    x = np.maximum(x, -EXP_LIMIT)
    j = np.rint(x)
    rest = x - j  # exact, as is the next
    m = np.rint(rest * FINE)
    r = rest - m / FINE
    p = np.full_like(r, 1 / 720)
    for factor in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        p = p * r + factor
    value: FloatArray = whole.hi[j.astype(int) + EXP_LIMIT] * fine.hi[m.astype(int) + FINE // 2] * p
    return value
