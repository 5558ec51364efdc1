"""Two blocks of attention on single inputs, sound in real arithmetic: for a set of few strings,
trying all of them is tighter than bounding the set, and faster.

All strings of a set are processed together. What a token holds after layer 1 depends on the free
bits it sees, so causal attention computes it once for many strings; its sums are separable over the
bits and are built bit by bit. Strings are counted with the first free bit lowest, so the rows of a
token that sees the first f of them repeat after 2^f strings.

Errors are Euclidean norms, one for a batch of rows. A map multiplies them by at most its spectral
norm, a LayerNorm by at most 1/σ: its derivative is a contraction divided by σ, and the deviation σ
is 1-Lipschitz in the root mean square. Attention averages values, so relative errors δ of its
weights move it by at most 2 δ / (1 - δ) times the largest value; linear attention's ε is the weight
of one more token, of value 0.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from flint import arb, ctx

from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, gelu_off, gelu_value, slack
from ithbit.verification.proofs.interface import Ints, NodeBounds
from ithbit.verification.proofs.token_balls import ENTRY, EPS, Params

_GELU_SLOPE = 1.13  # of GELU, at most 1.1290 at √2
_UP = 1 + slack(64)
_EXP = 2.0**-48
_EXP_LIMIT, _FINE = 576, 64  # e^-576 < 1e-250
_BITS = 9  # free bits that vary at once
_ROWS = 512  # at once, to fit the caches


class TokenRows(NamedTuple):
    """x (... dim) of norm at most `size`, each row within e of the truth: Euclidean norms."""

    x: FloatArray
    e: float
    size: float


class Map(NamedTuple):
    """An exact weight (in, out) and bias, and bounds on their norms."""

    weight: FloatArray
    bias: FloatArray | None
    norm: float  # spectral
    entries: float  # Frobenius
    shift: float


def mapping(weight: FloatArray, bias: FloatArray | None = None) -> Map:
    """The map of a weight (out, in). ‖W‖² = ‖WᵀW‖, whose 16th power is at most ‖(WᵀW)^16‖_F;
    rounding of the powers, relative to their norms, is far below 1e-9."""
    largest = float(np.abs(weight).max(initial=0)) or 1.0
    entries = float(np.linalg.norm(weight / largest)) * largest * _UP  # its squares may underflow
    unit = weight / (entries or 1.0)
    power = unit.T @ unit
    for _ in range(4):
        power = power @ power
    norm = entries * float(np.linalg.norm(power)) ** (1 / 32) * (1 + 1e-9)
    shift = 0.0 if bias is None else float(np.linalg.norm(bias)) * _UP
    return Map(np.ascontiguousarray(weight.T), bias, min(norm, entries), entries, shift)


def linear(rows: TokenRows, to: Map) -> TokenRows:
    x = rows.x @ to.weight
    off = slack(len(to.weight) + 4) * (to.entries * rows.size + to.shift)
    if to.bias is not None:
        x += to.bias
    size = to.norm * rows.size + to.shift + off
    return TokenRows(x, (to.norm * rows.e + off) * _UP + TINY, size * _UP + TINY)


def add(a: TokenRows, b: TokenRows) -> TokenRows:
    size = (a.size + b.size) * _UP
    return TokenRows(a.x + b.x, (a.e + b.e + slack(0) * size) * _UP, size)


def layer_norm(rows: TokenRows, gain: FloatArray, bias: FloatArray, eps: float) -> TokenRows:
    d = rows.x.shape[-1]
    off, root = slack(d), float(np.sqrt(d)) * _UP
    x = rows.x - (rows.x @ np.ones(d) / d)[..., None]
    e = (rows.e + 2 * off * rows.size) * _UP  # of x now
    deviation = np.sqrt(np.einsum("...d,...d->...", x, x) / d + eps)
    least = float(np.maximum(deviation.min() - e / root * _UP**2, np.sqrt(eps))) * (1 - off)
    x /= deviation[..., None]  # of norm √d at most
    x *= gain
    x += bias
    most = float(np.abs(gain).max())
    size = (root * most + float(np.linalg.norm(bias))) * _UP
    return TokenRows(x, (e / least * most + (off + slack(8)) * size) * _UP + TINY, size)


def gelu(rows: TokenRows) -> TokenRows:
    """GELU; |GELU(x)| <= |x|, up to what it may be off in each coordinate."""
    off = float(gelu_off(np.array(rows.size))) * rows.x.shape[-1] ** 0.5
    return TokenRows(
        gelu_value(rows.x), (_GELU_SLOPE * rows.e + off) * _UP, (rows.size + off) * _UP
    )


def averaged(x: FloatArray, total: FloatArray, off: float, e: float, size: float) -> TokenRows:
    """Averages x of values that are within e of the truth and of norm at most `size`, computed with
    weights that are right within a factor 1 ± off, or within 1e-250, and have the sums `total`."""
    if not (off < 0.5 and total.min() > 1e-200):  # where underflow matters, nothing is known
        return TokenRows(x, np.inf, np.inf)
    far = 2 * off / (1 - off) + ENTRY
    return TokenRows(x, (e + far * (size + e) + ENTRY) * _UP, size * (1 + far) * _UP)


class Points:
    """Margins of a two-layer model at single inputs."""

    def __init__(
        self, w: FloatArray, v: FloatArray, x: FloatArray, params: Params, spec: ModelSpec
    ) -> None:
        self.x, self.params = x, params  # these and w, v as in `TwoLayers`
        family = FAMILIES[spec.family]
        self.softmax, self.causal = family.kind == "softmax", family.causal
        self.eps = EPS[family.kind]
        self.heads, self.size = len(w), v.shape[-1]
        weighted = np.moveaxis(w[..., None] * v[:, None], 0, 2)  # query token head dim
        parts = [np.moveaxis(w, 0, 2), weighted.reshape(*weighted.shape[:2], -1)]
        self.sums = np.concatenate(parts, -1)  # query token (head, then head and dim)
        largest = np.linalg.norm(v, axis=-1).max(1)  # by heads
        self.most_v = float(np.linalg.norm(largest)) * _UP
        self.most_x = float(np.linalg.norm(x, axis=-1).max()) * _UP
        self.extra = 0.0 if self.softmax else LINEAR.denominator_eps
        self.maps = {
            name.removesuffix(".weight"): mapping(value, params.get(name[:-6] + "bias"))
            for name, value in params.items()
            if name.endswith(".weight") and value.ndim == 2
        }
        d, both = x.shape[-1], params["blocks.1.qkv.weight"]
        bias = params.get("blocks.1.qkv.bias", np.zeros(3 * d))
        self.q, self.k, self.v = (
            mapping(both[a : a + d], bias[a : a + d]) for a in range(0, 3 * d, d)
        )

    def __call__(self, index: int, bits: Ints) -> tuple[FloatArray, FloatArray]:
        """Bounds on the margin at all strings of a node, the first free bit varying fastest."""
        tables = self._first(index, bits)
        count, tokens = len(tables[-1][0]), len(tables)
        keys, values = (np.empty((count, tokens, self.x.shape[-1])) for _ in range(2))
        errors = []
        for group in _groups([len(rows) for rows, _ in tables]):
            rows, sums = (np.concatenate(each) for each in zip(*tables[group], strict=True))
            z, inner, key, value = self._through(rows, sums, tokens)
            errors.append([key.e, key.size, value.e, value.size])
            start = 0
            for t in range(*group.indices(tokens)):
                own = slice(start, start + len(tables[t][0]))
                start = own.stop
                for every, each in ((keys, key.x), (values, value.x)):
                    every.reshape(-1, own.stop - own.start, *every.shape[1:])[:, :, t] = each[own]
        ke, most_k, ve, most_v = (float(worst) for worst in np.max(errors, 0))
        z, inner = (TokenRows(each.x[-count:], each.e, each.size) for each in (z, inner))
        given = self._second(inner, TokenRows(keys, ke, most_k), TokenRows(values, ve, most_v))
        logit = linear(self._tail(add(z, given), "blocks.1."), self.maps["head"])
        margin = logit.x[:, 0] * (1.0 if bits[index] == 1 else -1.0)
        room = (logit.e + slack(0) * logit.size) * _UP
        return margin - room, margin + room

    def tried(
        self, index: int, bits: Ints, limits: FloatArray, functionals: FloatArray
    ) -> NodeBounds:
        """Bounds of one node from all its inputs."""
        n, free = len(bits), np.flatnonzero(bits < 0)
        inner = free[-_BITS:]  # few tokens see the last ones if attention is causal
        order = np.concatenate([inner, free[: len(free) - len(inner)]])
        strings = np.tile(bits, (1 << len(free), 1)).astype(np.int64)
        strings[:, order] = np.arange(len(strings))[:, None] >> np.arange(len(free)) & 1
        at = (2 * strings - 1.0) @ functionals.T  # exact
        held = np.all((limits[:, 0] <= at) & (at <= limits[:, 1]), 1)
        low, high = np.full(len(strings), np.inf), np.full(len(strings), -np.inf)
        for a in range(0, len(strings), 1 << len(inner)):
            own, node = slice(a, a + (1 << len(inner))), strings[a].copy()
            node[inner] = -1
            if held[own].any():
                low[own], high[own] = self(index, node)
        known = low <= high
        low = np.where(held, np.where(known, low, -np.inf), np.inf)
        high = np.where(held, np.where(known, high, np.inf), -np.inf)
        slope = 1.0 - 2 * strings[low.argmin()][None]  # points at the least of them
        weight = np.zeros((1, n + len(functionals)))
        ends, empty = (low.min(keepdims=True), high.max(keepdims=True)), ~held.any(keepdims=True)
        return NodeBounds(*ends, slope, weight, empty)

    def _first(self, index: int, bits: Ints) -> list[tuple[Ints, FloatArray]]:
        """For every token, its rows in the token table and the sums of its weights and weighted
        values, at all values of the free bits that it sees."""
        bits = bits.astype(np.int64)  # n may be more than a small type holds
        n, free = len(bits), np.flatnonzero(bits < 0)
        lhi = len(self.x) > 3 * n  # the query first, the end last
        fixed = [j + n * bits[j] for j in np.flatnonzero(bits >= 0)] + [2 * n + index]
        fixed += [3 * n] if lhi else []
        tokens = [2 * n + index, *range(n), 3 * n] if lhi else [*range(n), 2 * n + index]
        tables = []
        for t in tokens:
            is_free = t < n and bits[t] < 0
            asked = np.array([t, t + n] if is_free else [t + n * bits[t] if t < n else t])
            before, after = free[free < t], free[free > t]
            if self.causal:
                after = after[:0]
                if t != tokens[-1] and t >= n:  # the query of LHI
                    before = before[:0]
            own = self.sums[asked]  # query token part
            sums = own[:, fixed].sum(1, keepdims=True)
            if is_free:
                sums += own[[0, 1], asked][:, None]
            for j in (*before, *after):
                sums = np.concatenate([sums + own[:, None, j], sums + own[:, None, j + n]], 1)
            sums = sums.reshape(len(asked), -1, 1 << len(before), sums.shape[-1]).swapaxes(0, 1)
            rows = np.broadcast_to(asked[:, None], sums.shape[:3]).ravel()
            tables.append((rows, sums.reshape(len(rows), -1)))
        return tables

    def _through(
        self, rows: Ints, sums: FloatArray, tokens: int
    ) -> tuple[TokenRows, TokenRows, TokenRows, TokenRows]:
        """Tokens after layer 1, the input of layer 2's queries, and its keys and values; for linear
        attention, the features of the keys, with the error of the keys."""
        total = sums[:, : self.heads] + self.extra
        x = sums[:, self.heads :].reshape(len(sums), self.heads, -1) / total[..., None]
        e = slack(0) * self.most_v + ENTRY * self.x.shape[-1]
        mixed = averaged(x.reshape(len(x), -1), total, slack(4 * tokens), e, self.most_v)
        e = slack(0) * self.most_x + ENTRY * self.x.shape[-1]
        base = TokenRows(self.x[rows], e, self.most_x)
        z = self._tail(add(base, linear(mixed, self.maps["blocks.0.out"])), "blocks.0.")
        inner = z if self.softmax else self._norm(z, "blocks.1.norm1")
        key, value = linear(inner, self.k), linear(inner, self.v)
        if not self.softmax:
            key = TokenRows(_features(key.x), key.e, key.size)
        return z, inner, key, value

    def _second(self, inner: TokenRows, key: TokenRows, value: TokenRows) -> TokenRows:
        """What the attention of layer 2 adds to the last token."""
        q, (count, tokens, _) = linear(inner, self.q), key.x.shape
        k, v = (each.x.reshape(count, tokens, self.heads, -1) for each in (key, value))
        if self.softmax:
            asked = q.x.reshape(count, self.heads, -1)
            weight = np.einsum("sthd,shd->sht", k, asked) * self.size**-0.5
            weight = exp(weight - weight.max(-1, keepdims=True))
            far = q.size * key.e + q.e * key.size + q.e * key.e
            far = (far + 8 * slack(self.size) * q.size * key.size) * self.size**-0.5 * _UP
            off = 2 * (far + _EXP)  # e^x - 1 <= 2 x for x <= 1
        else:
            asked = _features(q.x).reshape(count, self.heads, -1)
            weight = np.einsum("sthd,shd->sht", k, asked)
            off = 4 * (key.e + q.e + 2 * _EXP) + slack(2 * self.size)
        total = weight.sum(-1) + self.extra
        x = np.einsum("sht,sthd->shd", weight, v) / total[..., None]
        mixed = averaged(
            x.reshape(count, -1),
            total,
            off + slack(4 * tokens),
            value.e * self.heads**0.5,  # each head has its own weights
            value.size * self.heads**0.5 * _UP,
        )
        return linear(mixed, self.maps["blocks.1.out"])

    def _norm(self, x: TokenRows, name: str) -> TokenRows:
        return layer_norm(x, self.params[f"{name}.weight"], self.params[f"{name}.bias"], self.eps)

    def _tail(self, x: TokenRows, block: str) -> TokenRows:
        """A block after attention and its residual sum."""
        if self.softmax:
            x = self._norm(x, f"{block}norm1")
        inner = x if self.softmax else self._norm(x, f"{block}norm2")
        hidden = gelu(linear(inner, self.maps[f"{block}up"]))
        x = add(x, linear(hidden, self.maps[f"{block}down"]))
        return self._norm(x, f"{block}norm2") if self.softmax else x


def _groups(rows: list[int]) -> Iterator[slice]:
    """Slices of neighbouring tokens with `_ROWS` rows or more together, the last perhaps fewer."""
    start, count = 0, 0
    for at, own in enumerate(rows):
        count += own
        if count >= _ROWS or at == len(rows) - 1:
            yield slice(start, at + 1)
            start, count = at + 1, 0


def _features(x: FloatArray) -> FloatArray:
    """ELU + 1, as exact as `exp`."""
    return np.where(x > 0, x + 1, exp(np.minimum(x, 0)))


def exp(x: FloatArray) -> FloatArray:
    """e^x for x <= 0 within a factor 1 ± `_EXP`, or within 1e-250: e^{-m/64} e^r, |r| <= 1/128.

    The table is rounded from arb balls; Horner's rule and the remainder are off by at most 2^-50.
    """
    x = np.maximum(x, -_EXP_LIMIT)
    m = np.rint(x * _FINE)
    r = x - m / _FINE  # exact
    value = np.full_like(r, 1 / 120)
    for factor in (1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        value *= r
        value += factor
    value *= _exp_table().take((-m).astype(np.int64), mode="clip")  # NaN stays NaN
    return value


@cache
def _exp_table() -> FloatArray:
    """One lookup per number, where the two tables of `theory` take two and a product."""
    with ctx.workprec(100):
        balls = [(-arb(m) / _FINE).exp() for m in range(_EXP_LIMIT * _FINE + 1)]
    return np.array([float(ball.mid()) for ball in balls])
