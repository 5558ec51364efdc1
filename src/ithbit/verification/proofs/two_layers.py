"""Bounds for two blocks of softmax or linear attention, full or causal, for both tasks.

Slots: for every bit one token with 0 and one with 1 (the same twice if the bit is fixed), then the
query and, for LHI, the end; the answer is read at the last slot. Layer 1 mixes known tokens, so at
every slot it is the ratio of `attention.py`, with the slot's own bit fixed; its norms and
feed-forward part give forms whose symbols are the free bits and the functionals of `bands.py`, all
else in the error. Layer 2 is evaluated at the last slot: weights are exp(q (k - k_ref)), for a
reference token that no free bit decides, or φ(q) φ(k) for linear attention, as scalar forms; the
product with a value is bilinear; a free bit chooses between its two slots,
X = (X₀ + X₁)/2 + ε (X₁ - X₀)/2. Convex functions lie between their chord and a tangent. The rest is
as for one layer, with additional symbols for the remainders.
"""

import numpy as np
from flint import ctx

from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR
from ithbit.spec import ModelSpec
from ithbit.theory.certifiers.intervals import Interval
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import (
    TINY,
    Form,
    add,
    block_tail,
    in_cells,
    layer_norm,
    linear,
    slack,
    with_own,
)
from ithbit.verification.proofs.attention import (
    chosen,
    collapsed,
    convex,
    dot,
    of_bits,
    product,
    separable_ratio,
)
from ithbit.verification.proofs.bands import Bands, bands_of, everything, need_steps
from ithbit.verification.proofs.interface import Ints, NodeBounds
from ithbit.verification.proofs.one_layer import of_logit
from ithbit.verification.proofs.ratio_ends import scaled
from ithbit.verification.proofs.single_inputs import Points
from ithbit.verification.proofs.token_balls import (
    ENTRY,
    EPS,
    PRECISION,
    Params,
    floats,
    token_qkv_balls,
    weighed,
)
from ithbit.verification.proofs.token_parts import PARTS, parts_of, with_row

DENOMINATOR_EPS = LINEAR.denominator_eps
_UP = 1 + slack(8)
_UNKNOWN = 0.003  # mean radius of a slot after layer 1 above which cells are tried
_BETTER = 0.5  # of a slot's own radius, which cells have to come below
_ROWS = 8
_NEARLY = 4.0  # times its middle, the width of a margin's range up to which a token is cut
_GRAM = 0.01  # of a variance, above which its second order is worth the cost
FEW = {"softmax": 10, "linear": 12}  # free bits up to which all inputs of a node are tried


class TwoLayers:
    """Bounds on the margin of one trained model over sets of inputs."""

    batch = 16
    slack = np.inf

    def __init__(
        self,
        spec: ModelSpec,
        params: Params,
        functionals: FloatArray | None = None,
        gram: float = _GRAM,
    ) -> None:
        self.gram = gram  # see `layer_norm`, for all tokens of the first layer
        self.n, self.heads, self.size = spec.n_bits, spec.n_heads, spec.d_head
        self.head_of = np.repeat(np.arange(self.heads), self.size)
        self.lhi = spec.task == "lhi"
        kind = FAMILIES[spec.family].kind
        self.softmax, self.few, self.eps = kind == "softmax", FEW[kind], EPS[kind]
        self.params, n = params, self.n
        with ctx.workprec(PRECISION):
            rows, q, k, v = token_qkv_balls(params, spec)
            self.x = floats(rows)
            self.v = np.stack(np.split(floats(v), self.heads, 1))
            every = range(len(self.x))
            self.w = weighed(q, k, spec, dict.fromkeys(every, every)).swapaxes(0, 1).copy()
        place = np.concatenate(
            [np.tile(np.arange(n) + self.lhi, 2), np.full(n, 0 if self.lhi else n)]
        )
        if self.lhi:
            place = np.append(place, n + 1)
        if FAMILIES[spec.family].causal:
            self.w *= place <= place[:, None]
        self.points = Points(self.w, self.v, self.x, params, spec)
        # Searches get further by bits alone; earlier certificates have limits of functionals.
        self.functionals = np.zeros((0, n)) if functionals is None else functionals
        need_steps(self.functionals, "functionals")

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> NodeBounds:
        """Bounds of nodes, see `Bounds`."""
        limits = everything(self.functionals, len(index)) if limits is None else limits
        need_steps(limits, "limits")
        index = index.astype(np.int64)
        few = (bits < 0).sum(1) <= self.few
        with np.errstate(all="ignore"):
            if few.all():
                nodes = zip(index, bits, limits, strict=True)
                tried = [self.points.tried(*node, self.functionals) for node in nodes]
                return NodeBounds.joined(tried)
            if not few.any():
                return self._bound(index, bits, limits)
        parts = [self(index[at], bits[at], limits[at]) for at in (few, ~few)]
        back = np.argsort(np.concatenate([np.flatnonzero(few), np.flatnonzero(~few)]))
        return NodeBounds.joined(parts)[back]

    def _bound(self, index: Ints, bits: Ints, limits: FloatArray) -> NodeBounds:
        free = np.flatnonzero((bits < 0).any(0))
        bands = bands_of(self.functionals, limits, bits, free)
        shared = len(free) + bands.count
        n, j = self.n, np.arange(self.n)
        wide = bits.astype(np.int64)  # n may be more than a small type holds
        rows = [j + n * np.where(wide < 0, 0, wide), j + n * np.where(wide < 0, 1, wide)]
        rows.append(2 * n + index[:, None])
        if self.lhi:
            rows.append(np.full((len(index), 1), 3 * n))
        slots = np.concatenate(rows, 1).astype(np.int64)
        mixed = self._first(slots, free, bands)
        twice = np.zeros(slots.shape, bool)  # a fixed bit has one token in two slots
        twice[:, n : 2 * n] = bits >= 0
        once = np.flatnonzero(~twice)
        ends = np.arange(1, len(slots) + 1) * slots.shape[1] - 1
        keys = self._keys(mixed[once], shared)
        place = np.arange(slots.size).reshape(slots.shape)
        place[:, n : 2 * n] = np.where(bits >= 0, place[:, :n], place[:, n : 2 * n])
        keys = keys[np.searchsorted(once, place.ravel())]
        last = keys[ends] if self.softmax else self._tail(mixed[ends], "blocks.0.", brief=True)
        found = self._answered(
            self._second(keys, last, slots, bits, free, bands), index, bits, bands
        )
        if bands.count:
            return found
        count = slots.shape[1]
        # Where a bound is far below 0, parts do not help either, and bits have to be fixed.
        nearly = found.upper - found.lower < _NEARLY * (found.upper + found.lower)
        for node in np.flatnonzero(nearly & ~(found.lower > 0) & ~found.empty).tolist():
            tokens, one = slice(node * count, (node + 1) * count), slice(node, node + 1)
            sets, node_bands = (mixed[tokens], keys[tokens], last[one]), bands.only(node)
            lower, upper = self._in_parts(
                *sets, slots[one], index[one], bits[one], free, node_bands
            )
            found.lower[node] = max(found.lower[node], lower)
            found.upper[node] = min(found.upper[node], upper)
        return found

    def _answered(
        self, read: tuple[Form, FloatArray], index: Ints, bits: Ints, bands: Bands
    ) -> NodeBounds:
        """Bounds from what the answer is read from, after layer 2's attention, and how much every
        symbol matters; in parts where a bound has no sign."""
        y, matters = read
        found = of_logit(self._logit(y), matters, index, bits, bands.empty)
        rows = np.flatnonzero(~(found.lower > 0) & ~(found.upper < 0) & ~found.empty)
        if len(rows):
            again = (np.repeat(each[rows], PARTS, 0) for each in (matters, index, bits))
            parts = of_logit(self._logit(parts_of(y[rows])), *again)
            found.lower[rows] = np.maximum(found.lower[rows], parts.lower.reshape(-1, PARTS).min(1))
            found.upper[rows] = np.minimum(found.upper[rows], parts.upper.reshape(-1, PARTS).max(1))
        return found

    def _logit(self, y: Form) -> Form:
        p = self.params
        return linear(self._tail(y, "blocks.1."), p["head.weight"], p["head.bias"])

    def _in_parts(
        self,
        mixed: Form,
        keys: Form,
        last: Form,
        slots: Ints,
        index: Ints,
        bits: Ints,
        free: Ints,
        bands: Bands,
    ) -> tuple[float, float]:
        """Bounds of one node from all parts of the token that is least known after layer 1."""
        n = self.n
        slot = int(np.nan_to_num((keys.spread() + keys.e).mean(-1), nan=np.inf).argmax())
        # A fixed bit has one token in two slots.
        same = slot < 2 * n and bits[0, slot % n] >= 0
        parts = parts_of(mixed[[slot]])
        at = [slot % n, slot % n + n] if same else [slot]
        keys = with_row(keys, at, self._through(parts))
        ends = np.arange(1, PARTS + 1) * slots.shape[1] - 1
        if self.softmax:
            last = keys[ends]
        elif slot == slots.shape[1] - 1:
            last = self._tail(parts, "blocks.0.", brief=True)
        else:
            last = last[np.zeros(PARTS, np.int64)]
        slots, index, bits = (np.repeat(each, PARTS, 0) for each in (slots, index, bits))
        many = bands.repeated(PARTS)
        found = self._answered(self._second(keys, last, slots, bits, free, many), index, bits, many)
        return float(found.lower.min()), float(found.upper.max())

    def _first(self, slots: Ints, free: Ints, bands: Bands) -> Form:
        """Attention of layer 1 with its residual, at all slots: node by node, slot by slot."""
        n, (nodes, count) = self.n, slots.shape
        at, (zero, one, rest) = slots[:, :, None], np.split(slots, [n, 2 * n], 1)
        w0, w1 = self.w[:, at, zero[:, None]], self.w[:, at, one[:, None]]  # head node slot bit
        pairs = ((w0, zero), (w1, one))
        x0, x1 = (w[..., None] * self.v[:, rows][:, :, None] for w, rows in pairs)
        t = np.arange(2 * n)
        mine = self.w[:, slots, slots][..., : 2 * n]  # a bit's slot sees that bit as it is
        w0[:, :, t, t % n] = w1[:, :, t, t % n] = mine
        x0[:, :, t, t % n] = x1[:, :, t, t % n] = mine[..., None] * self.v[:, slots[:, : 2 * n]]
        wr = self.w[:, at, rest[:, None]]
        fixed, fixed_x = wr.sum(-1), np.matmul(wr, self.v[:, rest])
        fixed_sizes = np.matmul(wr, np.abs(self.v[:, rest]))
        if not self.softmax:
            fixed = fixed + DENOMINATOR_EPS
        parts = (np.swapaxes(a, 0, 1) for a in (w0, w1, x0, x1, fixed, fixed_x, fixed_sizes))
        w0, w1, x0, x1, fixed, fixed_x, fixed_sizes = parts  # node head slot …
        ratio = separable_ratio((w0, w1), (x0, x1), fixed, fixed_x, fixed_sizes, free, bands)

        def flat(each: FloatArray) -> FloatArray:
            """node head slot … dim -> (node slot) (head dim) …"""
            moved = np.moveaxis(each, 1, 2)  # node slot head … dim
            moved = np.moveaxis(moved, -1, 3)
            return moved.reshape(nodes * count, self.heads * self.size, *moved.shape[4:])

        own = flat(np.moveaxis(ratio.own(), -2, -1))  # row (head dim) axis, each head's its own
        own = own[..., None, :] * (self.head_of[:, None] == np.arange(self.heads))[..., None]
        own = own.reshape(*own.shape[:2], self.heads * self.size)
        G = np.concatenate([flat(ratio.G), own], -1)
        mixed = Form(flat(ratio.m), G, flat(ratio.e))
        out = linear(
            mixed, self.params["blocks.0.out.weight"], self.params.get("blocks.0.out.bias")
        )
        base = self.x[slots].reshape(nodes * count, -1)
        c = base + out.c
        e = (out.e + slack(0) * (np.abs(base) + np.abs(out.c)) + ENTRY) * _UP
        return Form(c, out.G, e)

    def _keys(self, mixed: Form, k: int) -> Form:
        """The input of layer 2's queries, keys and values, from the attention of layer 1; by cells
        where that is loose. The first k symbols are the free bits, then the functionals."""
        out = self._through(mixed, self.gram)
        own = np.abs(out.G[..., k:]).sum(-1).mean(-1)
        rows = np.flatnonzero(~(own < _UNKNOWN))
        if not len(rows) or out.G.shape[-1] - k < out.c.shape[-1]:
            return out
        chunks = [rows[a : a + _ROWS] for a in range(0, len(rows), _ROWS)]  # fit the caches
        parts = [in_cells(mixed[chunk], self._through, k) for chunk in chunks]
        near = Form.joined(parts)
        better = near.e.mean(-1) < _BETTER * own[rows]
        rows, d = rows[better], out.c.shape[-1]
        out.c[rows], out.e[rows] = near.c[better], 0
        out.G[rows] = 0
        out.G[rows, :, :k] = near.G[better]
        out.G[rows[:, None], np.arange(d), -1 - np.arange(d)] = near.e[better]
        return out

    def _through(self, x: Form, gram: float = np.inf) -> Form:
        """The rest of layer 1, up to the input of layer 2's queries, keys and values."""
        x = self._tail(x, "blocks.0.", True, gram)
        if self.softmax:
            return x
        gain, bias = self.params["blocks.1.norm1.weight"], self.params["blocks.1.norm1.bias"]
        return layer_norm(x, gain, bias, self.eps, gram)

    def _tail(self, x: Form, block: str, brief: bool = False, gram: float = 0.0) -> Form:
        return block_tail(x, self.params, block, self.softmax, self.eps, brief, gram)

    def _second(
        self, z: Form, last: Form, slots: Ints, bits: Ints, free: Ints, bands: Bands
    ) -> tuple[Form, FloatArray]:
        """Layer 2's attention with its residual at the last token: a form whose symbols begin with
        the free bits and the functionals, and how much each of these matters."""
        p, (nodes, count) = self.params, slots.shape
        k = len(free) + bands.count
        qkv = linear(z, p["blocks.1.qkv.weight"], p.get("blocks.1.qkv.bias"))
        shape = (nodes, count, 3, self.heads, self.size)
        c, e = (a.reshape(shape) for a in (qkv.c, qkv.e))
        G = qkv.G.reshape(*shape, -1)
        q = Form(c[:, -1:, 0], G[:, -1:, 0], e[:, -1:, 0])
        key = Form(c[:, :, 1], G[:, :, 1], e[:, :, 1])
        value = collapsed(Form(c[:, :, 2], G[:, :, 2], e[:, :, 2]), k)
        if self.softmax:
            weight, low, high = self._exponentials(q, key, slots, bits, k)
        else:
            weight = dot(convex(q, True), convex(key, True), k)
            low, high = weight.bounds()
            low = np.maximum(low, 0)
        mixed, matters = self._mixed(weight, low, high, value, bits, free, bands)
        out = linear(mixed, p["blocks.1.out.weight"], p.get("blocks.1.out.bias"))
        matters = matters + np.abs(last.G[..., :k]).sum(1)
        return _beside(last, out, k, self.softmax), matters

    def _exponentials(
        self, q: Form, key: Form, slots: Ints, bits: Ints, k: int
    ) -> tuple[Form, FloatArray, FloatArray]:
        """exp(q (k - k_ref) / √size) at every slot and head, and its bounds."""
        scale = self.size**-0.5
        guess = np.clip(np.nan_to_num((q.c * key.c).sum(-1)), -1e300, 1e300)  # node slot head
        settled = np.ones(slots.shape, bool)
        settled[:, : 2 * self.n] = np.tile(bits >= 0, 2)
        ref = np.where(settled[..., None], guess, -np.inf).argmax(1)  # node head
        node, head = np.arange(len(slots))[:, None], np.arange(self.heads)
        same = slots[..., None] == slots[node, ref][:, None]  # node slot head
        c0, G0, e0 = (a[node, ref, head][:, None] for a in (key.c, key.G, key.e))
        c, G = key.c - c0, key.G.copy()
        G[..., :k] -= G0[..., :k]  # the other symbols belong to one slot each
        own = np.zeros((*G.shape[:1], 1, *G.shape[2:-1], G.shape[-1] - k)) + G0[..., k:]
        G = np.concatenate([G, np.broadcast_to(own, (*G.shape[:-1], G.shape[-1] - k))], -1)
        sizes = np.abs(key.c) + np.abs(c0) + np.abs(key.G).sum(-1) + np.abs(G0).sum(-1)
        e = (key.e + e0 + slack(0) * sizes) * _UP
        score = dot(q, Form(c, G, e), k)
        score = Form(score.c * scale, score.G * scale, score.e * scale)
        off = slack(0) * (np.abs(score.c) + score.spread() + score.e)
        score = Form(score.c, score.G, (score.e + off) * _UP + TINY)
        score.c[same] = score.G[same] = score.e[same] = 0
        low, high = score.bounds()
        edges = Interval(low, high).exp()
        weight = convex(score, False)
        return weight, edges.lo, edges.hi

    def _mixed(
        self,
        weight: Form,
        low: FloatArray,
        high: FloatArray,
        value: Form,
        bits: Ints,
        free: Ints,
        bands: Bands,
    ) -> tuple[Form, FloatArray]:
        """Σ w v / Σ w over the tokens that the bits choose: node (head dim), and how much each free
        bit and functional matters."""
        n, nodes = self.n, len(bits)
        half = np.ones(weight.c.shape[1])
        half[: 2 * n] = 0.5
        share = weight.c * half[:, None]
        total = share.sum(1)
        m = (share[..., None] * value.c).sum(1) / total[..., None]  # node head dim
        off = np.abs(value.c) + np.abs(m)[:, None]
        centred = Form(value.c - m[:, None], value.G, value.e + slack(0) * off)
        N = chosen(product(weight, centred), n, free, bands)
        D = chosen(
            Form(weight.c[..., None], weight.G[..., None, :], weight.e[..., None]), n, free, bands
        )
        least, most = (a[..., 0] for a in D.bounds())
        parts = slack(2 * n + 8)
        least = np.maximum(least, of_bits(low, n, np.minimum) * (1 - parts))
        most = np.minimum(most, of_bits(high, n, np.maximum) * (1 + parts))
        if not self.softmax:
            least, most = (least + DENOMINATOR_EPS) * (1 - parts), (most + DENOMINATOR_EPS) * _UP
        least = np.where((least > 0) & (least <= most), least, np.nan)
        top, bottom = 1 / least, 1 / most
        middle, radius = (top + bottom) / 2, (top - bottom) / 2 + top * slack(0)
        # N/(D + eps) - m = (N - m D - m eps)/(D + eps), with 1/(D + eps) the middle and a number of
        # at most the radius, which is the same for all coordinates of a head.
        shift = 0 if self.softmax else -m * DENOMINATOR_EPS
        c, G = m + middle[..., None] * (N.c + shift), N.G * middle[..., None, None]
        vectors = np.concatenate([(N.c + shift)[..., None], N.G], -1)
        own, missed, size = scaled(vectors, N.e, radius)
        rest = N.e * middle[..., None] + missed
        off = slack(8) * (np.abs(m) + (size + np.abs(m) * DENOMINATOR_EPS) * top[..., None])
        out = Form(c, G, off * _UP + TINY)
        att = high / np.maximum(most, 1e-300)[:, None]
        far = np.abs(centred.c).sum(-1)
        matters = (att[..., None] * np.abs(value.G).sum(3)).sum((1, 2))
        moved = np.abs(weight.G[..., : len(free) + bands.count])
        matters += ((far / np.maximum(most, 1e-300)[:, None])[..., None] * moved).sum((1, 2))
        matters += np.abs(G[..., : len(free) + bands.count]).sum((1, 2))
        flat = (nodes, self.heads * self.size)
        own = own[..., None, :] * np.eye(self.heads)[:, None, :, None]
        both = np.concatenate([out.G.reshape(*flat, -1), own.reshape(*flat, -1)], -1)
        out = Form(out.c.reshape(flat), both, out.e.reshape(flat))
        return with_own(out, rest.reshape(flat) * _UP), matters


def _beside(last: Form, out: Form, k: int, shared: bool) -> Form:
    """The last token plus what attention adds to it. They share all symbols of the last token or
    only the first k; the last token's other symbols are then inserted after these."""
    if shared:
        return add(last, out)
    more = np.zeros((*out.c.shape, last.G.shape[-1] - k))
    both = np.concatenate([out.G[..., :k], more, out.G[..., k:]], -1)
    return add(last, Form(out.c, both, out.e))
