"""The margin of two layers of Mamba2 on LHI over a leaf: a second implementation for the check.

It shares no code with the bounds of the search. Every number is a ball, a float64 centre with a
radius that grows with every rounding; functions are tables of arb balls. Norms and maps are bounded
by the mean value theorem, with Jacobians over whole balls, instead of affine forms.

Both blocks sum S_t = e^(-a d_t) S_(t-1) + d_t k_t over the tokens t, where d_t > 0 and k_t depend
on the last few bits, the *window* (the latest bit is the lowest), and are in balls otherwise. For
given bits S_t grows with S_(t-1) and k_t: so its greatest value for given latest bits, the *state*,
follows from the greatest ones one token before. Places: query 0, bit j at j + 1, end n + 1; a token
that is no bit counts as bit 0. The model's equations are in docs/equations.md.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb, ctx

from ithbit.spec import ModelSpec
from ithbit.verification.checks import mamba2_axes
from ithbit.verification.checks.ball_arrays import TINY, Array, BallArray, U, between, image, point

_EPS = BallArray(np.array(1e-5), np.array(U * 1e-5))  # of the norms, in decimal
_TAPS = 3  # of the convolution


def _norm(x: BallArray, eps: BallArray = _EPS) -> tuple[BallArray, BallArray]:
    """x over its root mean square 1/s, and the Jacobian (I - x xᵀ s² / d) s over the ball."""
    d = x.c.shape[-1]
    nearest, farthest = np.maximum(np.abs(x.c) - x.r, 0), x.size
    low, high = ((each * each).mean(-1) for each in (nearest, farthest))
    low, high = low * (1 - 2 * d * U) + eps.ends[0], high * (1 + 2 * d * U) + eps.ends[1]
    low = np.maximum(low, eps.ends[0]) * (1 - U)
    s = between(1 / np.sqrt(high * (1 + U)) * (1 - U), 1 / np.sqrt(low) * (1 + U))
    share = BallArray(np.array(-1 / d), np.array(U))
    outer = x[..., :, None] * x[..., None, :] * (s * s * share)[..., None, None]
    return x * s[..., None], (outer + point(np.eye(d))) * s[..., None, None]


def _moved(J: BallArray, r: Array) -> Array:
    """How far a product with a matrix in a ball moves, at most, when its argument moves by r."""
    return (J.size @ r[..., None])[..., 0] * (1 + 2 * r.shape[-1] * U) + TINY


class TwoMamba2Layers:
    """The trained model in balls; `lower` bounds its margin over a set of inputs."""

    def __init__(self, spec: ModelSpec, params: Mapping[str, Array]) -> None:
        self.n, self.d, self.N, self.heads = spec.n_bits, spec.d_model, spec.d_state, spec.n_heads
        self.p = {name: point(value) for name, value in params.items()}
        self.head_of = np.repeat(np.arange(self.heads), self.d // self.heads)
        with ctx.workprec(90), np.errstate(all="ignore"):
            for layer in (0, 1):
                rates = [arb(float(x)).exp() for x in params[f"blocks.{layer}.a_log"]]
                near = np.array([(float(x.lower()), float(x.upper())) for x in rates])
                self.p[f"rate.{layer}"] = between(near[:, 0] * (1 - U), near[:, 1] * (1 + U))
        self.known: tuple[Any, tuple[float, float]] = (None, (-np.inf, np.inf))

    def lower(self, index: int, bits: list[int]) -> float:
        """A lower bound on the margin on all strings with these bits (-1 for a free one; index from
        0), or a number that is not finite."""
        return self._margin(index, bits)[0]

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        """Whether the margin is certainly at most 0 on all strings with these bits."""
        high = self._margin(index, bits)[1]
        return bool(np.isfinite(high) and high <= 0)

    def branch(self, index: int, bits: list[int]) -> int | None:
        """The free bit that is nearest to the index."""
        free = [j for j, bit in enumerate(bits) if bit < 0]
        return min(free, key=lambda j: abs(j - index)) if free else None

    def _margin(self, index: int, bits: list[int]) -> tuple[float, float]:
        if self.known[0] != (index, bits):
            with np.errstate(all="ignore"):
                self.known = (index, list(bits)), self._bounded(index, bits)
        return self.known[1]

    def _possible(self, bits: list[int], size: int) -> Array:
        """Which windows of that many bits are possible: place window."""
        none = (True, False)
        can = np.array([none] * size + [(bit != 1, bit != 0) for bit in bits] + [none])
        place, w = np.arange(self.n + 2)[:, None] + size - 1, np.arange(1 << size)
        return np.all([can[place - back, w >> back & 1] for back in range(size)], 0)

    def _embedded(self, index: int) -> BallArray:
        """Tokens: place value dim."""
        n, x = self.n, np.zeros((self.n + 2, 2, 8))
        x[1:-1, :, 0], x[1:-1, 1, 3] = 1, 1
        x[0, :, 1], x[0, :, 4], x[0, :, 5], x[-1, :, 2] = 1, index / n, (index / n) ** 2, 1
        place = np.arange(n + 2)[:, None] / (n + 1)
        x[..., 6], x[..., 7] = place, place**2
        both = [self.p[name].c for name in ("embed", "positions.polynomial")]
        return BallArray(x, U * x) @ point(np.concatenate(both, 1).T)

    def _inner(self, x: BallArray, layer: int) -> BallArray:
        """What a block maps its input to; only for points."""
        p = self.p
        return (_norm(x)[0] * p[f"blocks.{layer}.norm.weight"]) @ p[f"blocks.{layer}.in.weight"].T

    def _parts(self, m: BallArray, layer: int, size: int) -> list[BallArray]:
        """x, B, C and d of a block for windows of that many bits (place window channel), from what
        it maps tokens to, whose windows have two bits less."""
        d, N, p, W, fewer = self.d, self.N, self.p, np.arange(1 << size), m.c.shape[1]
        weight, bias = (p[f"blocks.{layer}.conv.{name}"] for name in ("weight", "bias"))
        total = point(np.zeros((len(m.c), len(W), d + 2 * N))) + bias
        for back in range(_TAPS):
            own = m[: len(m.c) - back, (W >> back) % fewer, d : 2 * d + 2 * N]
            sums = total[back:] + own * weight[_TAPS - 1 - back]
            total.c[back:], total.r[back:] = sums.c, sums.r
        conv = image("silu", total)
        steps = image("softplus", m[..., 2 * d + 2 * N :] + p[f"blocks.{layer}.dt_bias"])
        return [conv[..., :d], conv[..., d : d + N], conv[..., d + N :], steps[:, W % fewer]]

    def _sums(
        self, parts: list[BallArray], last: int, layer: int, head_of: Array, bits: list[int]
    ) -> BallArray:
        """The sums at the last places: place window channel. Channels have a head each; those of x
        may differ by the place and window of C, its first two axes, if these are not 1."""
        x, B, C, steps = parts
        C, d, a = C[len(C.c) - last :], steps[..., head_of], self.p[f"rate.{layer}"][head_of]
        minus = a * point(-1.0)
        decay, middle = image("exp", d * minus), image("exp", point(d.c) * minus)
        size = B.c.shape[1].bit_length() - 1
        windows, half = B.c.shape[1], B.c.shape[1] // 2
        possible, states = self._possible(bits, size), self._possible(bits, size - 1)
        ends, own = [], np.arange(windows)
        for sign in (-1.0, 1.0):
            best = np.zeros((last, windows, half, len(head_of)))  # by place and window of C, state
            out = np.zeros((last, windows, len(head_of)))
            for s in range(len(B.c)):
                first = max(s - len(B.c) + last, 0)  # of the places of C that are not before s
                k = (C[first:] @ B[s].T)[..., None] * x[first % len(x.c) :, :, s]
                top, M = sign * k.c + k.r + U * k.size, np.repeat(best[first:], 2, axis=2)
                (least, most), (slow, fast) = (
                    [np.maximum(end, 0) for end in each[s].ends] for each in (d, decay)
                )
                total = np.maximum(M * slow, M * fast) + np.maximum(least * top, most * top)
                total += 2 * U * (np.abs(M) + most * np.abs(top))
                # By the mean value theorem: the slope is k - a e^(-a d) S.
                if (d[s].r > 1e-9).any():
                    ends_of_slope = (top - M * (a.size * fast), top - M * (a.ends[0] * slow))
                    steep = np.maximum(*(np.abs(each) for each in ends_of_slope))
                    steep += 4 * U * (np.abs(M) * a.size + np.abs(top))
                    joint = M * middle[s].c + np.abs(M) * middle[s].r + d[s].c * top
                    joint += d[s].r * steep
                    joint += 2 * U * (np.abs(M) + most * np.abs(top) + d[s].r * steep)
                    total = np.minimum(total, joint)
                total += TINY
                if s >= len(B.c) - last:
                    out[first] = total[0, own, own]
                total = np.where(possible[s][:, None], total, -np.inf)
                new = np.maximum(total[:, :, :half], total[:, :, half:])
                best[first:] = np.where(states[s][:, None], new, 0)
            ends.append(out)
        return between(-ends[0], ends[1])

    def _bounded(self, index: int, bits: list[int]) -> tuple[float, float]:
        """The least and greatest margin."""
        d, p, heads, window = self.d, self.p, np.arange(self.heads), np.arange(32)
        x0 = self._embedded(index)
        inner = self._inner(x0, 0)
        parts = self._parts(inner, 0, 3)
        q, axes, r = self._first(parts, inner, x0, bits)
        token, inner = self._through(q, axes, r, x0[:, window[:8] & 1])
        # The second block, at the last token alone.
        x, *parts = self._parts(inner, 1, 5)
        gate, token = image("silu", inner[-1, window & 7, :d]), token[-1, window & 7]
        own = x[-1] * p["blocks.1.skip"][self.head_of]

        def following(weights: Array, head_of: Array) -> BallArray:
            """Linear functions of y, of one head each: window function channel."""
            by = point(weights).T
            sums = self._sums([x[None, None] @ by[:, None], *parts], 1, 1, head_of, bits)[0]
            return sums + (own[:, None] @ by)[:, 0]

        y = self._sums([x[None, None], *parts], 1, 1, self.head_of, bits)[0] + own
        # A norm forgets the scale: y is divided by its coordinate r that matters most, if that is
        # known well enough, and the norm is of (μ + t) gate with t = (y - μ r) / r.
        ratio, scale, mu = self._scale(y, gate)
        t = following(np.eye(d) - mu[..., None] * scale[:, None], self.head_of) * ratio[:, None]
        centre, J, K = self._logit(t, mu, gate, ratio, token)
        # The logit follows t by about `way`; any way is sound, if it is used as it is.
        way = J.c * gate.c
        by_head = way[:, None] * (self.head_of == heads[:, None])
        back = (by_head * mu[:, None]).sum(-1, keepdims=True) * scale[:, None]
        moved = following(by_head - back, heads).sum() * ratio + (point(way) * point(-t.c)).sum()
        size = np.abs(mu) + t.size
        off = 4 * d * U * (np.abs(way) * size).sum(-1)
        plain = (np.abs(way) * t.r).sum(-1) * (1 + 2 * d * U) + TINY
        low, high = np.fmax(moved.ends[0] - off, -plain), np.fmin(moved.ends[1] + off, plain)
        # What is left of J (q - its centre), where q = (μ + t) gate, and K (token - its centre).
        rest = J.r * np.abs(gate.c) * t.r + J.size * size * (gate.r + 8 * U * gate.size)
        rest = (rest + K.size * token.r).sum(-1) * (1 + 4 * d * U) + off + TINY
        below, above = (centre + BallArray(0 * rest, rest) + between(low, high)).ends
        cap = np.abs(p["leave.norm.weight"].c * p["head.weight"].c[0]).sum() * np.sqrt(d)
        cap = (cap + abs(p["head.bias"].c[0])) * (1 + 4 * d * U)  # no logit is larger
        below, above = np.fmax(below, -cap), np.fmin(above, cap)
        possible = self._possible(bits, 5)[-1]
        least, most = (below, above) if bits[index] else (-above, -below)
        return float(least[possible].min()), float(most[possible].max())

    def _scale(self, y: BallArray, gate: BallArray) -> tuple[BallArray, Array, Array]:
        """One over the coordinate that y is divided by (1 if none is known well), that coordinate
        one-hot, and about how those of its head follow it: by windows."""
        matters = np.where(y.r < 0.9 * np.abs(y.c), np.abs(y.c * gate.c), 0)
        k, each = matters.argmax(-1), np.arange(len(y.c))
        low, high = y[each, k].ends
        good = (matters[each, k] > 0) & (low * high > 0)
        ratio = between(1 / high - U / np.abs(high), 1 / low + U / np.abs(low))
        ratio = BallArray(np.where(good, ratio.c, 1), np.where(good, ratio.r, 0))
        scale = (np.arange(self.d) == k[:, None]) & good[:, None]
        mu = np.where(self.head_of == self.head_of[k][:, None], y.c / y.c[each, k][:, None], 0)
        mu = np.where(good[:, None] & np.isfinite(mu), mu, 0)
        return ratio, scale.astype(float), np.where(scale, 1.0, mu)

    def _first(
        self, parts: list[BallArray], inner: BallArray, x0: BallArray, bits: list[int]
    ) -> tuple[BallArray, BallArray, Array]:
        """What the first block's norm is of (place window channel), a ball plus axes times z, and
        how far z goes from 0 on either side."""
        (x, B, C, steps), d, p = parts, self.d, self.p
        gate = image("silu", inner[..., :d])
        out, weight = self._weights()
        used = np.r_[d : 2 * d + self.N, 2 * d + 2 * self.N : len(weight.c)]

        def effect(mean: Array) -> Array:
            normal, J = _norm(point(mean * gate.c))
            later = weight.c[used] @ _norm(x0 + normal @ out.T)[1].c
            return later @ (out.c @ J.c) * gate.c[..., None, :]

        steps = steps[..., self.head_of]
        decay = np.exp(-steps.c * self.p["rate.0"].c[self.head_of])
        centres, sizes = (x.c, B.c, C.c, steps.c, decay), [d // self.heads] * self.heads
        chosen = mamba2_axes.axes(centres, bits, self._possible(bits, 3), effect, sizes)
        value = np.arange(8) & 1
        F, A = (point(each[:, value]) for each in chosen)  # y is A F y, up to rounding
        along = [x[None, None] @ F.T[:, :, None], *parts[1:]]
        z = self._sums(along, len(x.c), 0, self.head_of, bits)
        own = x * p["blocks.0.skip"][self.head_of]
        z = z + (F @ own[..., None])[..., 0]
        # The sizes of all that y sums up.
        read = np.max(C.size, 1) @ np.max(B.size, 1).T
        most = np.tril(read) @ np.max(steps.size * x.size, 1) + np.max(own.size, 1)
        off = F.T @ A.T
        off = BallArray(off.c - np.eye(d), off.r + 4 * U * (1 + np.abs(off.c)))
        rest = (most[:, None, None] @ off.size)[..., 0, :] * (1 + 8 * (len(x.c) + d) * U) + TINY
        y = (A @ point(z.c)[..., None])[..., 0] + BallArray(0 * rest, rest)
        gates = gate[:, value]
        return y * gates, gates[..., None] * A, z.r

    def _weights(self) -> tuple[BallArray, BallArray]:
        """The first block's map out and the second's map in, with the gains of their norms."""
        p = self.p
        return (
            p["blocks.0.out.weight"] * p["blocks.0.gate_norm.weight"],
            p["blocks.1.in.weight"] * p["blocks.1.norm.weight"],
        )

    def _through(
        self, q: BallArray, axes: BallArray, z: Array, x: BallArray
    ) -> tuple[BallArray, BallArray]:
        """Tokens after the first block, x plus a map of the norm of q + axes z, and what the second
        block maps them to: around the centre of q, or as no normalised coordinate exceeds √d."""
        root, (out, weight) = np.sqrt(self.d) * (1 + 2 * self.d * U), self._weights()
        h = x + _norm(point(q.c))[0] @ out.T
        every = BallArray(q.c, (q.r + _moved(axes, z)) * (1 + U))
        J = out @ _norm(every)[1]
        most = np.abs(h.c - x.c) + x.r + root * out.size.sum(-1)
        r = np.fmin(h.r + _moved(J, q.r) + _moved(J @ axes, z), most)
        token = BallArray(h.c, r * (1 + U) + U * h.size)
        m, J = self._inner(h, 1), weight @ (_norm(token)[1] @ J)
        r = m.r + _moved(J, q.r) + _moved(J @ axes, z)
        r = np.fmin(r, np.abs(m.c) + root * weight.size.sum(-1))
        return token, BallArray(m.c, r * (1 + U) + U * m.size)

    def _logit(
        self, t: BallArray, mu: Array, gate: BallArray, ratio: BallArray, token: BallArray
    ) -> tuple[BallArray, BallArray, BallArray]:
        """The logit at the centres of q = (μ + t) gate and the token, and its gradient by both over
        their balls. The norm's epsilon is that of y gate, which is q / ratio."""
        p, sign = self.p, point(np.sign(ratio.c)[:, None])
        eps, at = ratio * ratio * _EPS, point((mu + t.c) * gate.c)
        q = (point(mu) + t) * gate
        q = BallArray(at.c, (np.abs(q.c - at.c) + q.r) * (1 + U) + U * np.abs(at.c))
        out = p["blocks.1.out.weight"] * p["blocks.1.gate_norm.weight"]
        read = p["leave.norm.weight"] * p["head.weight"][0]
        x = point(token.c) + _norm(at, eps)[0] * sign @ out.T
        centre = (_norm(x)[0] * read).sum() + p["head.bias"][0]
        J = out @ (_norm(q, eps)[1] * sign[..., None])
        around = BallArray(x.c, (x.r + _moved(J, q.r) + token.r) * (1 + U))
        K = read[None] @ _norm(around)[1]
        return centre, (K @ J)[..., 0, :], K[..., 0, :]
