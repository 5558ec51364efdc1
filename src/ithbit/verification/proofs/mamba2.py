"""Bounds for two blocks of Mamba2 on LHI.

Places: the query at 0, bit j at j + 1, the end at n + 1. Before the first mixing a token has two
values, one for each value of its bit, and after the convolution eight, one for each *window*: the
bits at t - 2, t - 1 and t. The first block adds to token t a function of

    y_t = sum over s <= t of decay_{s+1} … decay_t (C_t . B_s) dt_s x_s + D x_t,

whose range over all strings is found coordinate by coordinate for each window, exactly but for
rounding (`mamba2_sums.py`). The norms and maps that follow are affine forms in the coordinates of
y_t. In the second block a token's x, B and C depend on five bits, exactly, and on all others by
their radius. Only the last token is needed. Its y is bounded in three steps, for each of the
sixteen windows of C:

1. Each coordinate of y. A norm forgets how large its argument is, so y is divided by the coordinate
   ρ that matters most, if that is known not to be 0: the norm of y is that of y / ρ, with an
   epsilon divided by ρ², times the sign of ρ.
2. t = (y - μ ρ) / ρ, where μ is about y / ρ; its numerator is a sum of the same kind. The rest of
   the model is an affine form in t.
3. The linear function of t that the margin follows, head by head, again a sum of the same kind.
"""

from collections.abc import Mapping

import numpy as np
from flint import arb, ctx

from ithbit.layouts import MAMBA2
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, Form, add, inverse_root, linear, slack
from ithbit.verification.proofs.boxes import Box, between, plus, silu, softplus, times
from ithbit.verification.proofs.interface import Ints, NodeBounds
from ithbit.verification.proofs.mamba2_sums import LastSums, first_sums, spreads, windows
from ithbit.verification.proofs.mamba2_tokens import token_tables
from ithbit.verification.proofs.token_balls import PRECISION, relative_floats

_UP = 1 + slack(8)
_DOWN = 1 - slack(8)
_ENTRY = 2e-8  # times a relative error of 2^-52 it is more than the absolute one of `floats`
_RANGE = 1e-10  # of second moments, at most, in a choice of axes
_NARROWER = 0.7  # of its affine enclosure is the interval that a coordinate gets instead, at most
_KNOWN = 0.9  # radius of a number that others are divided by, relative to it, at most
_ENDS = np.arange(0, 32, 2)  # windows of the last token


class Mamba2Bounds:
    """Bounds on the margin of one trained model over sets of inputs."""

    batch = 2
    slack = np.inf

    def __init__(self, spec: ModelSpec, params: Mapping[str, FloatArray]) -> None:
        self.n, self.d, self.N, self.heads = spec.n_bits, spec.d_model, spec.d_state, spec.n_heads
        self.params = params
        self.functionals = np.zeros((0, self.n))
        self.head_of = np.repeat(np.arange(self.heads), self.d // self.heads)
        self.tokens = token_tables(params, spec)
        with ctx.workprec(PRECISION):
            rate = [arb(x).exp() for x in params["blocks.1.a_log"].tolist()]
            self.rate = np.array(relative_floats(rate))

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> NodeBounds:
        """Bounds of nodes, see `MarginBounds`; there are no functionals to limit."""
        index = index.astype(np.int64)
        with np.errstate(all="ignore"):
            where = np.flatnonzero(windows(bits, 3))
            token, inner = self._first(index, bits, where)
            logit, parts = self._second(token, inner, bits, where)
            return self._margins(logit, parts, index, bits)

    def _first(self, index: Ints, bits: Ints, where: Ints) -> tuple[Form, Form]:
        """Tokens after the first block, and what the second makes of each by itself: a row for
        each node, place and window of `where`, in which they are numbered together."""
        d, N, tokens, p = self.d, self.N, self.tokens, self.params
        nodes, places = len(index), self.n + 2
        place = np.arange(places)
        conv = tokens.conv[tokens.triple[index]]  # node place window channel
        x, B, C = conv[..., :d], conv[..., d : d + N], conv[..., d + N :]
        row = np.empty((nodes, places, 2), np.int64)  # of the token table: node place bit
        row[:] = place[:, None] - 1 + np.array([0, self.n])
        row[:, 0], row[:, -1] = 2 * self.n + index[:, None], 3 * self.n
        dt, decay = (each[row][..., self.head_of] for each in (tokens.dt, tokens.decay))
        xd = x * np.tile(dt, (1, 1, 4, 1))
        scores = np.einsum("ntwk,nsvk->ntwsv", C, B, optimize=True)
        # Bounded are functions z = F y of the channels of each head, where y is about A z.
        F, A = self._axes(*spreads(scores, xd, decay, bits), row)
        along = np.matmul(xd[:, None, None], F.swapaxes(-1, -2)[:, :, :, None])
        low, high = first_sums(scores, along, decay, bits)
        bit = np.arange(8) & 1
        F, A = F[:, :, bit], A[:, :, bit]
        skip = p["blocks.0.skip"][self.head_of] * x
        own = np.matmul(F, skip[..., None])[..., 0]
        # The sum of the sizes of all summands of y: a decay is off by 2^-52 of at most 1, and each
        # product and each step of the sum by as much of all, and so for z.
        most = np.einsum("ntwk,nsk->ntws", _size(C), _size(B).max(2), optimize=True)
        most *= place <= place[:, None, None]
        sizes = np.matmul(most.reshape(nodes, -1, places), _size(xd).max(2)).reshape(x.shape)
        sizes = (sizes + np.abs(skip) + _ENTRY) * _UP
        off = slack(4 * places + 2 * N + 2 * d + 64) * _UP
        off = off * np.matmul(np.abs(F), sizes[..., None])[..., 0] + TINY
        low, high, sizes, F, A = (
            each.reshape(-1, *each.shape[3:])[where]
            for each in (low + own - off, high + own + off, sizes, F, A)
        )
        row = np.tile(row, (1, 1, 4)).ravel()[where]
        z, gate = between(low, high), tokens.gate[row]
        # y = A z + (1 - A F) y, the last for rounding.
        rest = np.abs(np.eye(d) - np.matmul(A, F))
        rest += slack(d + 2) * (np.matmul(np.abs(A), np.abs(F)) + np.eye(d))
        rest = np.matmul(rest, sizes[..., None])[..., 0] * _UP
        c, G = np.matmul(A, z.c[..., None])[..., 0], A * z.r[:, None]
        size = np.matmul(np.abs(A), z.size[..., None])[..., 0]
        e = (rest + slack(d) * size) * np.abs(gate) + slack(4) * (size + rest) * _size(gate)
        q = Form(c * gate, G * gate[..., None], e * _UP + TINY)
        out = linear(rms_norm(q, p["blocks.0.gate_norm.weight"]), p["blocks.0.out.weight"])
        base = tokens.x[row]
        e = (out.e + slack(0) * (_size(base) + np.abs(out.c))) * _UP
        token = Form(out.c + base, out.G, e)
        return token, linear(rms_norm(token, p["blocks.1.norm.weight"]), p["blocks.1.in.weight"])

    def _axes(
        self, mean: FloatArray, moments: FloatArray, row: Ints
    ) -> tuple[FloatArray, FloatArray]:
        """Functions of y that are about uncorrelated, and whose effects on the second block's x, B
        and steps are about orthogonal; and the inverse: node place bit (function, channel). Any
        functions are sound whose inverse is about right."""
        d, p = self.d, self.params
        gate = self.tokens.gate[row]

        def jacobian(x: FloatArray) -> FloatArray:
            square = ((x * x).mean(-1) + MAMBA2.norm_eps)[..., None, None]
            outer = x[..., :, None] * x[..., None, :]
            return (np.eye(d) - outer / (d * square)) / np.sqrt(square)

        q = mean * gate
        out = p["blocks.0.out.weight"] * p["blocks.0.gate_norm.weight"]
        scale = np.sqrt((q * q).mean(-1, keepdims=True) + MAMBA2.norm_eps)
        h = self.tokens.x[row] + q / scale @ out.T
        used = np.ones(len(p["blocks.1.in.weight"]), bool)
        used[:d] = used[2 * d + self.N : 2 * d + 2 * self.N] = False
        inner = (p["blocks.1.in.weight"] * p["blocks.1.norm.weight"])[used]
        J = inner @ jacobian(h) @ (out @ jacobian(q)) * gate[..., None, :]
        F, A = np.zeros((2, *J.shape[:3], d, d))
        for first in range(0, d, d // self.heads):
            own = slice(first, first + d // self.heads)
            some = moments[..., own, own]
            some = np.where(np.isfinite(some), some, 0)
            value, axes = np.linalg.eigh(some)
            root = np.sqrt(np.maximum(value, _RANGE * value[..., -1:]) + TINY)[..., None, :]
            half = (axes * root)[:, :, None]
            effect = J[..., own] @ half
            effect = np.matmul(effect.swapaxes(-1, -2), effect)
            turn = np.linalg.eigh(np.where(np.isfinite(effect), effect, 0))[1]
            F[..., own, own] = turn.swapaxes(-1, -2) @ (axes / root)[:, :, None].swapaxes(-1, -2)
            A[..., own, own] = half @ turn
        size = np.abs(F).max(-1, keepdims=True)
        F, A = F / size, A * size.swapaxes(-1, -2)
        good = (np.isfinite(F) & np.isfinite(A)).all((-1, -2), keepdims=True)
        return np.where(good, F, np.eye(d)), np.where(good, A, np.eye(d))

    def _second(
        self, token: Form, inner: Form, bits: Ints, where: Ints
    ) -> tuple[Form, tuple[Ints, Ints, Box, Box]]:
        """The logit for every possible window of the last token, whose first symbols are those of
        t, with its node, its window, t, and the range of what follows t in the logit."""
        d, N, nodes, places = self.d, self.N, len(bits), self.n + 2
        low, high = np.zeros((2, nodes * places * 8, inner.c.shape[-1]))
        low[where], high[where] = inner.bounds()
        low, high = (each.reshape(nodes, places, 8, -1) for each in (low, high))
        bias = self.params["blocks.1.dt_bias"]
        steps = between(low[..., 2 * d + 2 * N :], high[..., 2 * d + 2 * N :])
        conv = self._convolved(low[..., d : 2 * d + 2 * N], high[..., d : 2 * d + 2 * N])
        x, B, C = (conv.at((..., slice(*a))) for a in ((0, d), (d, d + N), (d + N, d + 2 * N)))
        C = C.at((slice(None), -1, _ENDS))
        sums = LastSums(softplus(plus(steps, Box(bias, 0 * bias))), self.rate, C, B, x, bits)
        skip = self.params["blocks.1.skip"][self.head_of]
        own = times(x.at((slice(None), -1, _ENDS)), Box(skip, 0 * skip))  # node end channel
        y = plus(sums.of_channels(self.head_of), own)
        gate = silu(*(each[:, -1, _ENDS & 7, :d] for each in (low, high)))
        scale, rate, mu = self._scale(y, gate)
        z = self._of_y(sums, own, np.eye(d) - mu[..., None] * scale[:, :, None], self.head_of)
        t = times(z, rate.at((..., None)))
        # From here on a row for every end that is possible.
        node, end = np.nonzero(windows(bits, 5)[:, -1, _ENDS])
        row = np.cumsum(np.bincount(where, minlength=nodes * places * 8)) - 1
        row = row.reshape(nodes, places, 8)[:, -1][node, _ENDS[end] & 7]
        t, gate, rate = (each.at((node, end)) for each in (t, gate, rate))
        logit = self._tail(token[row], t, gate, rate, mu[node, end])
        # The logit moves with t by G_p ε_p = way_p (t_p - its centre), up to rounding.
        way = logit.G[:, 0, :d] / np.where(t.r > 0, t.r, 1)
        way = np.where(np.isfinite(way), way, 0)  # any way is sound, if it is used as it is
        ways = np.zeros((nodes, len(_ENDS), self.heads, d))
        ways[node, end] = way[:, None] * (self.head_of == np.arange(self.heads)[:, None])
        ways -= (ways * mu[:, :, None]).sum(-1, keepdims=True) * scale[:, :, None]
        total = self._of_y(sums, own, ways, np.arange(self.heads)).at((node, end))
        total = times(Box(total.c.sum(-1), total.r.sum(-1) * _UP), rate)
        sizes = np.abs(way) * (np.abs(mu[node, end]) + t.size)
        off = slack(4 * d + 16) * (sizes.sum(-1) + total.size) + TINY
        moved = Box(total.c - (way * t.c).sum(-1), total.r + off)
        return logit, (node, end, t, moved)

    def _margins(
        self, logit: Form, parts: tuple[Ints, Ints, Box, Box], index: Ints, bits: Ints
    ) -> NodeBounds:
        """Bounds of the nodes from the logits of their ends."""
        (node, end, _, moved), d = parts, self.d
        c, e, G = logit.c[:, 0], logit.e[:, 0], logit.G[:, 0]
        rest = np.abs(G[:, d:]).sum(-1) * (1 + slack(G.shape[-1])) + e
        plain = np.abs(G[:, :d]).sum(-1) * (1 + slack(d)) + TINY
        down, up = np.fmax(-plain, moved.c - moved.r), np.fmin(plain, moved.c + moved.r)
        room = (rest + slack(8) * (np.abs(c) + plain)) * _UP + TINY
        least, most = c + down - room, c + up + room
        one = bits[np.arange(len(bits)), index][node] == 1
        found = np.full((2, len(bits), len(_ENDS)), np.inf)
        found[0, node, end] = np.where(one, least, -most)
        found[1, node, end] = np.where(one, -most, least)
        lower, upper = found.min(-1)  # NaN stays NaN
        near = 1 / (1.0 + np.abs(np.arange(self.n) - index[:, None]))
        return NodeBounds(lower, -upper, 0 * near, near, np.zeros(len(bits), bool))

    def _convolved(self, low: FloatArray, high: FloatArray) -> Box:
        """What the second block's convolution gives, for windows of five bits."""
        weight, bias = self.params["blocks.1.conv.weight"], self.params["blocks.1.conv.bias"]
        m, places, window = between(low, high), low.shape[1], np.arange(32)
        c = np.broadcast_to(bias, (*low.shape[:2], 32, low.shape[-1])).copy()
        e, size = np.zeros_like(c), np.abs(c)
        for tap in range(MAMBA2.taps):
            back = MAMBA2.taps - 1 - tap
            own = m.at((slice(None), slice(0, places - back)))
            own = own.at((slice(None), slice(None), window >> back & 7))
            c[:, back:] += weight[tap] * own.c
            e[:, back:] += np.abs(weight[tap]) * own.r
            size[:, back:] += np.abs(weight[tap] * own.c)
        e = (e + slack(8) * size) * _UP + TINY
        return silu(c - e, c + e)

    def _scale(self, y: Box, gate: Box) -> tuple[FloatArray, Box, FloatArray]:
        """What y is divided by: the coordinate that matters most (one-hot: node end channel), if it
        is known well enough, else 1; a box of one over it; and about how the coordinates of its
        head follow it."""
        matters = np.where(y.r < _KNOWN * np.abs(y.c), np.abs(y.c * gate.c), 0)
        k = matters.argmax(-1)[..., None]
        known = np.take_along_axis(matters, k, -1) > 0
        c, r = (np.take_along_axis(each, k, -1) for each in y)
        scale = known & (np.arange(self.d) == k)
        mu = np.where(known & (self.head_of == self.head_of[k]), y.c / c, 0.0)
        mu = np.where(scale, 1.0, np.where(np.isfinite(mu), mu, 0))
        low, high = c - r - slack(2) * np.abs(c), c + r + slack(2) * np.abs(c)
        out, into = np.where(c > 0, _DOWN, _UP), np.where(c > 0, _UP, _DOWN)
        inverse = between(1 / high * out, 1 / low * into)
        rate = Box(np.where(known, inverse.c, 1.0), np.where(known, inverse.r, 0.0))
        return scale.astype(float), rate.at((..., 0)), mu

    def _of_y(self, sums: LastSums, own: Box, weights: FloatArray, head_of: Ints) -> Box:
        """Linear functions of y, of one head each: weights node end function channel."""
        off = slack(self.d + 4)
        c = np.einsum("njp,njfp->njf", own.c, weights)
        r = np.einsum("njp,njfp->njf", own.r + off * np.abs(own.c), np.abs(weights))
        return plus(sums.of_functions(weights, head_of), Box(c, r * (1 + off) + TINY))

    def _tail(self, token: Form, t: Box, gate: Box, rate: Box, mu: FloatArray) -> Form:
        """The logit as a form: first the symbols of t, then those of the gate's part, then those of
        the token. The norm is of (μ + t) gate, which is y gate times `rate`."""
        p, (rows, d) = self.params, t.c.shape
        symbols, sign, at = token.G.shape[-1], np.sign(rate.c)[:, None], mu + t.c
        G = np.zeros((rows, d, 2 * d + symbols))
        G[..., :d] = _diagonal(t.r * gate.c * sign)
        G[..., d : 2 * d] = _diagonal((np.abs(at) + t.r) * gate.r * _UP)
        e = slack(8) * (np.abs(mu) + t.size) * gate.size + TINY
        small, large = np.abs(rate.c) - rate.r, rate.size
        eps = between(
            MAMBA2.norm_eps * small * small * _DOWN, MAMBA2.norm_eps * large * large * _UP
        )
        gain = p["blocks.1.gate_norm.weight"]
        out = linear(rms_norm(Form(at * gate.c * sign, G, e), gain, eps), p["blocks.1.out.weight"])
        shared = np.zeros((rows, d, out.G.shape[-1]))
        shared[..., 2 * d : 2 * d + symbols] = token.G
        x = add(Form(token.c, shared, token.e), out)
        return linear(rms_norm(x, p["leave.norm.weight"]), p["head.weight"], p["head.bias"])


def rms_norm(x: Form, gain: FloatArray, epsilon: Box | None = None) -> Form:
    """The vector times an affine enclosure of its inverse root mean square, which gives one more
    symbol, then the gain. The epsilon, one for each row, is that of the model unless given.

    The mean square is an affine form plus |G ε|²/d, which lies between 0 and a bound. A coordinate
    whose plain interval is much narrower than its affine enclosure gets the interval.
    """
    eps, give = (MAMBA2.norm_eps, 0.0) if epsilon is None else epsilon
    (rows, d, symbols), off = x.G.shape, slack(x.c.shape[-1] + x.G.shape[-1])
    c, G, e, r = x.c, x.G, x.e, x.spread()
    size = np.abs(c) + r + e
    scale = (size * size).mean(-1) * _UP + eps + give  # of the sums below, for their rounding
    vG = 2 * np.matmul(c[:, None], G)[:, 0] / d
    products = np.abs(np.matmul(G.swapaxes(-1, -2), G)).sum((-1, -2)) / d
    square = np.minimum((r * r).mean(-1), products) * (1 + 4 * off) + TINY
    v0 = (c * c).mean(-1) + eps + square / 2
    ve = square / 2 + give + ((2 * size * e).mean(-1) + off * 4 * scale) * _UP
    reach = (np.abs(vG).sum(-1) + ve) * (1 + off)
    near = np.maximum(np.abs(c) - r - e, 0)
    lo = np.maximum(v0 - reach, (near * near).mean(-1) + eps - give) - off * scale
    hi = np.minimum(v0 + reach, (size * size).mean(-1) + eps + give) + off * scale
    lo = np.maximum(lo, (eps - give) * _DOWN)
    hi = np.maximum(hi, lo * (1 + 1e-12))
    slope, s0, se = inverse_root(lo, hi)
    s0 = s0 + slope * v0
    sG = slope[:, None] * vG
    se = (se + np.abs(slope) * (ve + off * v0) + off * np.abs(s0)) * _UP
    rs = (np.abs(sG).sum(-1) * (1 + off) + se) * _UP
    most, least = 1 / np.sqrt(lo) * _UP, 1 / np.sqrt(hi) * _DOWN
    out_c = c * s0[:, None]
    out_G = np.empty((rows, d, symbols + 1))
    out_G[..., :-1] = G * s0[:, None, None] + c[:, :, None] * sG[:, None]
    out_G[..., -1] = c * se[:, None]
    out_e = e * np.maximum(most, np.abs(s0) + rs)[:, None] + r * rs[:, None]
    out_e = (out_e + off * size * (np.abs(s0) + rs)[:, None]) * _UP + TINY
    a, b, cap = c - r - e, c + r + e, np.sqrt(float(d)) * _UP  # no normalised one is larger
    top = np.clip(np.where(b > 0, b * most[:, None], b * least[:, None]), -cap, cap)
    low = np.clip(np.where(a < 0, a * most[:, None], a * least[:, None]), -cap, cap)
    reach = (top - low) / 2 + slack(0) * (size * most[:, None] + cap)
    wide = ~(np.abs(out_G).sum(-1) + out_e <= reach / _NARROWER)
    out_c, out_e = np.where(wide, (top + low) / 2, out_c), np.where(wide, reach * _UP, out_e)
    out_G[wide] = 0
    sizes = (np.abs(out_c) + np.abs(out_G).sum(-1)) * np.abs(gain)
    e = (out_e * np.abs(gain) + slack(0) * sizes) * _UP + TINY
    return Form(out_c * gain, out_G * gain[:, None], e)


def _diagonal(radius: FloatArray) -> FloatArray:
    """A symbol for each coordinate: row dim symbol."""
    return radius[..., None] * np.eye(radius.shape[-1])


def _size(x: FloatArray) -> FloatArray:
    """The size of floats of `floats`: a relative error of it covers their absolute one."""
    return np.abs(x) + _ENTRY
