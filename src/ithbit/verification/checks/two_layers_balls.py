"""The margin of two blocks of attention over a leaf: a second implementation for the check.

It shares no code with the search. docs/equations.md has the model. Tokens before the first mixing,
with their queries, keys, values and weights, are arb balls (python-flint), rounded to floats once.
From there on they are sets of vectors (`affine_sets.py`), one for each token of a leaf: every free
bit has two tokens, of which it chooses one; a fixed bit has one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx, fmpq

from ithbit.families import FAMILIES
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.checks.affine_sets import (
    ENTRY,
    LEAST,
    NARROWER,
    TINY,
    UP,
    TokenSet,
    chosen,
    cut,
    dot,
    exps,
    features,
    gelu,
    hull,
    interval,
    linear,
    narrowed,
    normed,
    off_by,
    plus,
    turned,
)

PRECISION = 192
PARTS = 16  # of the set of a token
WIDE = 0.002  # of the size of tokens: narrower ones are not cut
CLOSE = 0.02  # of a bound: where its ends are that close, no token is cut

Balls = Any  # flint.arb_mat, which has no type stubs


def _tokens(spec: ModelSpec, p: Mapping[str, Balls]) -> Balls:
    """The embedded tokens: bit 0 at every place, bit 1, every query and, for LHI, the end."""
    n, lhi = spec.n_bits, spec.task == "lhi"
    length = n + 2 if lhi else n + 1
    rows = [([1, 0, 0, bit, 0, 0], j + lhi) for bit in (0, 1) for j in range(n)]
    for i in range(n):
        rows.append(([0, 1, 0, 0, fmpq(i, n), fmpq(i * i, n * n)], 0 if lhi else n))
    if lhi:
        rows.append(([0, 0, 1, 0, 0, 0], n + 1))
    places = [fmpq(t, length - 1) for _, t in rows]
    x = arb_mat([features for features, _ in rows]) * p["embed"].transpose()
    x += arb_mat([[t, t * t] for t in places]) * p["positions.polynomial"].transpose()
    if "enter.type" in p:
        x += arb_mat([[1]] * len(rows)) * p["enter.type"]
    return x


def _normed_balls(x: Balls, gain: Balls, bias: Balls, eps: fmpq) -> Balls:
    rows = []
    for row in x.tolist():
        mean = sum(row, arb(0)) / len(row)
        row = [each - mean for each in row]
        scale = (sum((each * each for each in row), arb(0)) / len(row) + eps).rsqrt()
        rows.append([y * scale * gain[0, k] + bias[0, k] for k, y in enumerate(row)])
    return arb_mat(rows)


def _axes(g: FloatArray) -> FloatArray:
    """For each slot the directions along which vectors g (slot, dim, vector) are longest, as rows.
    Nothing depends on how well they are found."""
    g = np.nan_to_num(g, posinf=0.0, neginf=0.0)
    g = g / (np.abs(g).max((1, 2), keepdims=True, initial=0.0) + TINY)
    try:
        return np.linalg.eigh(np.matmul(g, g.swapaxes(1, 2)))[1].swapaxes(1, 2)
    except np.linalg.LinAlgError:  # it did not converge
        return np.broadcast_to(np.eye(g.shape[1]), (len(g), g.shape[1], g.shape[1]))


def _scaled(P: FloatArray, g: FloatArray, most: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Generators and errors of δ g ε for any |δ| <= most (slot, 1) and vectors g (slot, dim,
    vector). Along axes P of g it is P' (P g) and (1 - P' P) g with the transpose P'."""
    size = np.abs(g).sum(-1, keepdims=True)
    back, one, off = P.swapaxes(1, 2), np.eye(g.shape[1]), off_by(g.shape[1] + g.shape[2])
    along = np.abs(np.matmul(P, g)).sum(-1, keepdims=True) + off * np.matmul(np.abs(P), size)
    missed = np.abs(one - back @ P) + off * (one + np.abs(back) @ np.abs(P))
    own = back * (along[..., 0] * most * UP)[:, None]
    return own, np.matmul(missed, size)[..., 0] * most * UP


def _phi(x: Any) -> Any:
    return x + 1 if x > 0 else x.exp() if x <= 0 else x.exp().union(x + 1)


def _floats(balls: Any, positive: bool = False) -> FloatArray:
    """Rounded: off by at most 2^-52 of their size, and `ENTRY` unless they are positive."""
    for ball in (each for row in balls for each in row):
        if not (ball.rel_accuracy_bits() > 60 if positive else ball.rad() < ENTRY / 2):
            raise ArithmeticError("the weights are too large for the precision of the balls")
    found = np.array([[float(ball.mid()) for ball in row] for row in balls])
    if not (np.abs(found) < (1e40 if positive else 1e20)).all():  # what underflow hides is < TINY
        raise ArithmeticError("the weights are too large to be bounded")
    return found


class TwoAttentionLayers:
    """One trained model; `lower` bounds its margin over a leaf."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, FloatArray]) -> None:
        family, d = FAMILIES[spec.family], spec.d_model
        self.n, self.heads, self.lhi = spec.n_bits, spec.n_heads, spec.task == "lhi"
        self.softmax, self.p = family.kind == "softmax", params
        self.eps, self.extra = (1e-12, 0.0) if self.softmax else (1e-5, 1e-6)
        n, size = self.n, d // spec.n_heads
        with ctx.workprec(PRECISION):
            p = {name: arb_mat(np.atleast_2d(value).tolist()) for name, value in params.items()}
            eps = fmpq(1, 10**12) if self.softmax else fmpq(1, 10**5)
            x, name = _tokens(spec, p), "enter.norm" if self.softmax else "blocks.0.norm1"
            normal = _normed_balls(x, p[f"{name}.weight"], p[f"{name}.bias"], eps)
            qkv = (normal * p["blocks.0.qkv.weight"].transpose()).tolist()
            if self.softmax:
                bias = p["blocks.0.qkv.bias"].tolist()[0]
                qkv = [[y + b for y, b in zip(row, bias, strict=True)] for row in qkv]
            self.x = _floats((normal if self.softmax else x).tolist())
            place = [j + self.lhi for j in (*range(n), *range(n))]
            place += [0 if self.lhi else n] * n + [n + 1] * self.lhi
            seen = [[not family.causal or s <= t for s in place] for t in place]
            self.w, self.v = [], []  # head: (token, token) and (token, size)
            for h in range(self.heads):
                q, k, v = (
                    [row[a + h * size : a + (h + 1) * size] for row in qkv] for a in (0, d, 2 * d)
                )
                if not self.softmax:
                    q, k = ([[_phi(y) for y in row] for row in rows] for rows in (q, k))
                scores = (arb_mat(q) * arb_mat(k).transpose()).tolist()
                self.w.append(self._weights(scores, seen, arb(size).rsqrt()))
                self.v.append(_floats(v))

    def _weights(self, scores: Any, seen: list[list[bool]], scale: Any) -> FloatArray:
        """What every token weighs for every other, up to a factor for each query; 0 if unseen."""
        found = np.zeros((len(scores), len(scores)))
        for t, (row, see) in enumerate(zip(scores, seen, strict=True)):
            if self.softmax:
                top = arb(max(float(s.mid()) for s, yes in zip(row, see, strict=True) if yes))
                row = [
                    ((s - top) * scale).exp() if yes else s for s, yes in zip(row, see, strict=True)
                ]
            at = np.flatnonzero(see)
            found[t, at] = _floats([[row[u] for u in at]], positive=True)[0]
        return found

    def lower(self, index: int, bits: list[int]) -> float:
        """A lower bound on the margin on all strings with these bits, or a number not finite."""
        return self._ends(index, bits)[0]

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        """Whether the margin is certainly at most 0 on all strings with these bits."""
        return self._ends(index, bits)[1] <= 0

    def branch(self, index: int, bits: list[int]) -> int | None:
        """The free bit that moves the answer most, as far as bounds show."""
        free = [j for j, bit in enumerate(bits) if bit < 0]
        if not free:
            return None
        with np.errstate(all="ignore"):
            x = self._rest(self._after_first(index, bits), "blocks.0.")
            matters = self._second_sum(x, len(free))[1]
            matters = np.nan_to_num(matters, nan=0.0, posinf=1e300)
        return free[int(matters.argmax())]

    def _ends(self, index: int, bits: list[int]) -> tuple[float, float]:
        """Bounds of the margin on all strings with these bits. Where they are far apart, each wide
        token after layer 1 is bounded in parts; if that is of no use, the widest is cut into parts,
        and what holds for all of them holds."""
        free = sum(bit < 0 for bit in bits)
        with np.errstate(all="ignore"):
            x = self._after_first(index, bits)
            y = self._rest(x, "blocks.0.")
            low, high = self._margin(y, free, bits[index])
            if free and not high - low < CLOSE * abs(low):
                hulls = self._hulls(x, y)
                sets, last = (self._parts(x, y), False) if hulls is None else ([hulls], True)
                parts = [self._margin(part, free, bits[index], last) for part in sets]
                low = max(low, min(each[0] for each in parts))
                high = min(high, max(each[1] for each in parts))
        return low, high

    def _margin(self, x: TokenSet, free: int, bit: int, last: bool = True) -> tuple[float, float]:
        """Bounds of the margin from all tokens after layer 1. Where they are far apart, and if
        `last`, the last token's set after layer 2's attention is cut into parts."""
        y, _ = self._second_sum(x, free)
        low, high = self._logits(y)
        if last and free and not high - low < CLOSE * abs(low):
            ends = self._logits(cut(y, PARTS))
            low, high = max(low, ends[0]), min(high, ends[1])
        return (low, high) if bit else (-high, -low)

    def _logits(self, x: TokenSet) -> tuple[float, float]:
        """Bounds of the logit from sets that cover the last token's after layer 2's attention."""
        y = self._rest(x, "blocks.1.", True)
        low, high = hull(linear(y, self.p["head.weight"], self.p["head.bias"]))
        known = np.isfinite(low[0]) and np.isfinite(high[0])
        return (float(low[0]), float(high[0])) if known else (-np.inf, np.inf)

    def _after_first(self, index: int, bits: list[int]) -> TokenSet:
        """All slots after layer 1's attention, with its residual sum; the answer is read at the
        last. The first symbols are the free bits."""
        n = self.n
        free = np.array([j for j in range(n) if bits[j] < 0], np.int64)
        fixed = [j + n * bits[j] for j in range(n) if bits[j] >= 0] + [2 * n + index]
        fixed += [3 * n] * self.lhi
        slots = np.array([*free, *(free + n), *fixed])
        mixed = self._first(slots, free, np.array(fixed))
        return self._sum(self.x[slots], mixed, "blocks.0.")

    def _hulls(self, x: TokenSet, y: TokenSet) -> TokenSet | None:
        """y, what the rest of layer 1 makes of x, with the hulls of the parts of each wide token's
        set as far as they are narrower; None if that is of no use for the widest."""
        c, G, e = y.c.copy(), y.G.copy(), y.e.copy()
        width, size = np.nan_to_num(y.radius.mean(-1), nan=np.inf), np.abs(c).mean()
        tokens = (-width).argsort()
        for token in tokens:
            parts = cut(x[[token]], PARTS)
            middle, half = interval(*hull(self._rest(parts, "blocks.0.")))
            better = half < NARROWER * y.radius[token]
            if not (better.any() and width[token] > WIDE * size):
                return None if token == tokens[0] else TokenSet(c, G, e)
            c[token, better], e[token, better], G[token, better] = middle[better], half[better], 0.0
        return TokenSet(c, G, e)

    def _parts(self, x: TokenSet, y: TokenSet) -> Iterator[TokenSet]:
        """Sets that cover y, what the rest of layer 1 makes of x. The token of the widest set is
        cut along its longest direction, since norms of small vectors are far from affine: whatever
        the bits, it is in one of its parts."""
        token = int(np.nan_to_num(y.radius.mean(-1), nan=np.inf).argmax())
        parts = self._rest(cut(x[[token]], PARTS), "blocks.0.")
        more = parts.G.shape[-1] - y.G.shape[-1]
        padded = np.concatenate([y.G, np.zeros((*y.G.shape[:-1], more))], -1)
        for part in range(PARTS):
            c, G, e = y.c.copy(), padded.copy(), y.e.copy()
            c[token], G[token], e[token] = parts.c[part], parts.G[part], parts.e[part]
            yield TokenSet(c, G, e)

    def _second_sum(self, x: TokenSet, free: int) -> tuple[TokenSet, FloatArray]:
        """The last token after layer 2's attention, with its residual sum, from all tokens after
        layer 1; and how much every free bit matters."""
        p, d = self.p, x.c.shape[1]
        inner = x if self.softmax else self._norm(x, "blocks.1.norm1")
        weight = p["blocks.1.qkv.weight"]
        bias = p["blocks.1.qkv.bias"] if self.softmax else np.zeros(3 * d)
        q = linear(inner[-1:], weight[:d], bias[:d])
        k, v = (linear(inner, weight[a : a + d], bias[a : a + d]) for a in (d, 2 * d))
        k, v = (each.without(free) for each in (k, v))  # theirs are not the last token's
        q, k, v = (each.heads(self.heads) for each in (q, k, v))
        mixed, matters = self._second(q, k, v, free)
        return self._sum(x[-1:], mixed.with_symbols(), "blocks.1."), matters

    def _norm(self, x: TokenSet, name: str) -> TokenSet:
        return normed(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"], self.eps)

    def _sum(self, x: Any, mixed: TokenSet, block: str) -> TokenSet:
        """What a block's attention gives, added to tokens x: floats of balls, or a set."""
        p = self.p
        given = linear(mixed, p[f"{block}out.weight"], p.get(f"{block}out.bias"))
        if not isinstance(x, TokenSet):
            none = np.zeros((*x.shape, 0))
            x = TokenSet(x, none, np.abs(x) * 2.0**-52 + ENTRY)
        return plus(x, given)

    def _rest(self, x: TokenSet, block: str, last: bool = False) -> TokenSet:
        """The rest of a block after its attention. For the last token, errors become symbols."""
        p = self.p
        x = self._norm(x, f"{block}norm1").with_symbols() if self.softmax else x
        inner = x if self.softmax else self._norm(x, f"{block}norm2").with_symbols()
        hidden = linear(inner, p[f"{block}up.weight"], p[f"{block}up.bias"])
        a, b, r = gelu(hidden)
        e = np.abs(a) * hidden.e + r + off_by(2) * (np.abs(a) * hidden.size + np.abs(b))
        units = TokenSet(a * hidden.c + b, hidden.G * a[..., None], e * UP + TINY)
        units = units.with_symbols() if last else units
        x = plus(x, linear(units, p[f"{block}down.weight"], p[f"{block}down.bias"]))
        x = x.with_symbols()
        return self._norm(x, f"{block}norm2").with_symbols() if self.softmax else x

    def _first(self, slots: Any, free: Any, fixed: Any) -> TokenSet:
        """What layer 1's attention gives every slot: a ratio N/D of sums over known numbers. With
        m = N/D at ε = 0, it is m + (N - m D)/D, and N - m D = g ε. Where weights differ by much,
        the exact ends along the axes of g may be far closer. A head's remainders are symbols too,
        after those of the bits."""
        n, k = self.n, len(free)
        off, own, parts = off_by(3 * n), np.arange(k), []
        for w, v in zip(self.w, self.v, strict=True):
            w0, w1, wf = (w[slots[:, None], at] for at in (free, free + n, fixed))
            v0, v1, vf = v[free], v[free + n], v[fixed]
            both = np.tile(own, 2)
            w0[np.arange(2 * k), both] = w1[np.arange(2 * k), both] = 0  # its bit is fixed there
            mine = np.zeros(len(slots))
            mine[: 2 * k] = w[slots[: 2 * k], slots[: 2 * k]]
            fixed_w = wf.sum(1) + mine + self.extra
            least = (np.minimum(w0, w1).sum(1) + fixed_w) * (1 - off) - TINY
            most = (np.maximum(w0, w1).sum(1) + fixed_w) * (1 + off) + TINY
            least = np.where(least > LEAST, least, np.nan)[:, None, None]
            D, sums = ((w0 + w1).sum(1) / 2 + fixed_w)[:, None], (w0 + w1).sum(1) + fixed_w
            fixed_N = wf @ vf + mine[:, None] * v[slots]
            fixed_sizes = wf @ np.abs(vf) + mine[:, None] * np.abs(v[slots])
            m = ((w0 @ v0 + w1 @ v1) / 2 + fixed_N) / D
            sizes = w0 @ np.abs(v0) + w1 @ np.abs(v1) + fixed_sizes
            g = w1[:, None] * (v1.T - m[..., None]) - w0[:, None] * (v0.T - m[..., None])
            top, bottom = 1 / least, 1 / most[:, None, None]
            wrong = off * (sizes + 2 * np.abs(m) * sums[:, None]) + 4 * ENTRY * sums[:, None]
            axes = _axes(g)
            rest, e = _scaled(axes, g, (top - bottom)[..., 0] / 4 * (1 + off))
            e = e + 2 * wrong * top[..., 0] + off_by(2) * np.abs(m) + TINY * top[..., 0]
            G = np.concatenate([g * ((top + bottom) / 4), rest], -1)
            found = TokenSet(m, G, e * UP)
            # A range is at least bottom / top as wide as the form, so most slots need none.
            at = np.flatnonzero((bottom < NARROWER * top)[:, 0, 0])
            if len(at):
                fixed_part = fixed_N[at], fixed_sizes[at], fixed_w[at]
                pairs = np.stack([w0[at], w1[at]]), np.stack([v0, v1])
                most = np.abs(np.concatenate([v0, v1, vf])).max(0) * UP + ENTRY
                along = turned(axes[at], *pairs, fixed_part, 3 * n)
                found = narrowed(found, at, along, most, k)
            parts.append(found)
        d = self.v[0].shape[1]
        G = np.zeros((len(slots), self.heads * d, k + self.heads * d))
        for h, part in enumerate(parts):  # each has symbols of its own after those of the bits
            dims = slice(h * d, (h + 1) * d)
            G[:, dims, :k], G[:, dims, k:][..., dims] = part.G[..., :k], part.G[..., k:]
        c, e = (np.concatenate(each, 1) for each in zip(*((y.c, y.e) for y in parts), strict=True))
        return TokenSet(c, G, e)

    def _second(
        self, q: TokenSet, k: TokenSet, v: TokenSet, free: int
    ) -> tuple[TokenSet, FloatArray]:
        """What layer 2's attention gives the last token, and how much every free bit matters."""
        if self.softmax:
            # All scores may lose a common amount: here q times the key of largest score.
            scores = np.nan_to_num((q.c * k.c).sum(-1), nan=-1e300)
            at = scores.argmax(0), np.arange(self.heads)
            wrong = k.e + off_by(2) * (k.size + k.size[at])
            k = TokenSet(k.c - k.c[at], k.G - k.G[at], wrong)
            score, root = dot(q, k), self.p["head.weight"].shape[1] // self.heads
            scale = 1 / np.sqrt(root)
            e = (score.e + off_by(4) * score.size) * scale * UP
            weight, low, high = exps(TokenSet(score.c * scale, score.G * scale, e))
        else:
            weight = dot(features(q), features(k))
            low, high = weight.c - weight.radius, (weight.c + weight.radius) * UP + TINY
            low = np.maximum(low - 2.0**-50 * weight.size, 0.0)
        off = off_by(3 * len(v.c))
        share = weight.c.copy()
        share[: 2 * free] /= 2
        m = (share[..., None] * v.c).sum(0) / share.sum(0)[:, None]
        centred = TokenSet(v.c - m, v.G, v.e + off_by(2) * (v.size + np.abs(m)))
        w, wG, we, wr = (y[:, :, None] for y in (weight.c, weight.G, weight.e, weight.radius))
        e = np.abs(w) * centred.e + np.abs(centred.c) * we + wr * centred.radius
        e = e + off_by(4) * weight.size[..., None] * centred.size
        N = TokenSet(w * centred.c, w[..., None] * v.G + centred.c[..., None] * wG, e * UP)
        N, matters = chosen(N, free, off)
        ends = (
            np.minimum(low[:free], low[free : 2 * free]).sum(0) + low[2 * free :].sum(0),
            np.maximum(high[:free], high[free : 2 * free]).sum(0) + high[2 * free :].sum(0),
        )
        D, _ = chosen(TokenSet(w, wG, we), free, off)
        reach = D.radius[:, 0] + off * D.size[:, 0]
        least = np.maximum(ends[0] * (1 - off), D.c[:, 0] - reach) + self.extra * (1 - off)
        most = np.minimum(ends[1] * (1 + off), D.c[:, 0] + reach) + self.extra * (1 + off)
        least = np.where((least > LEAST) & (least <= most), least, np.nan)[:, None]
        top, bottom = 1 / least, 1 / most[:, None]
        middle, radius = (top + bottom) / 2, (top - bottom) / 2 + off_by(4) * top
        # (N + m D)/(D + extra) = m + (N - m extra)/(D + extra)
        N = TokenSet(N.c - m * self.extra, N.G, N.e + off_by(2) * (N.size + np.abs(m) * self.extra))
        # 1/D is the middle and a number of at most the radius, times which N keeps its directions.
        e = N.e * (middle + radius) + off_by(4) * (np.abs(m) + N.size * top)
        flat, heads = (1, m.size), self.heads
        own = np.concatenate([N.c[..., None], N.G], -1) * radius[..., None]
        more = own[:, :, None] * np.eye(heads)[:, None, :, None]
        G = np.concatenate([N.G * middle[..., None], more.reshape(*m.shape, -1)], -1)
        G = G.reshape(*flat, G.shape[-1])
        out = TokenSet((m + N.c * middle).reshape(flat), G, (e * UP + TINY).reshape(flat))
        pays = high / most
        moves = (pays[..., None, None] * np.abs(v.G)).sum((0, 1, 2))[:free]
        return out, moves + (matters * middle[..., None]).sum((0, 1))
