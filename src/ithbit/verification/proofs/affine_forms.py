"""Affine forms over sets of inputs, sound in real arithmetic: numpy float64 with error terms.

A `Form` holds vectors x = c + G ε + δ: symbols ε in [-1, 1] that all coordinates share, and an
error |δ| <= e for each coordinate by itself. The true real values always lie in the form: rounding
goes into e. This relies on the standard model of floating point, which holds for every order of
summation and with fused operations: a sum of k products has an error of at most (k + 1) u Σ|x y| to
first order, u = 2^-53. `slack` allows more than twice that, which also covers the operations around
the sum; `TINY` covers underflow. Square roots and quotients are those of IEEE 754, the GELU is a
table computed with arb balls plus a Taylor remainder, cube roots are checked after the fact.

Overflow gives infinity or NaN in c, G or e of a node, and everything computed from these is
infinite or NaN again. Such a coordinate has no bounds: `Form.bounds` gives -inf and inf. Nodes do
not see each other: no branch depends on the values of a whole batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from flint import arb, arb_series, ctx

from ithbit.errors import normalize
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.interface import Arrays

TINY = 1e-280
_U = 2.0**-52
_UP = 1 + 64 * _U  # more than any rounding of a few operations on numbers of one sign
_DOWN = 1 - 64 * _U

GELU_STEP, GELU_END = 128, 8  # the table has a point every 1/128 up to 8
_PIECES = 8  # into which a GELU's interval is cut
# φ(x)(2 - x²), the second derivative of GELU, is largest at 0 (0.79788…) and least at ±2
# (-0.10798…); the fifth, φ(x)(x⁵ - 11x³ + 18x), is at most 2.84… in size, at ±0.64….
_BEND_MAX, _BEND_MIN, _FIFTH = 0.79789, -0.10799, 3.0
_TAYLOR = _FIFTH / 120 / (2 * GELU_STEP) ** 5 * 1.001
_HARDLY = 1e-13
# A coordinate keeps its affine enclosure unless the interval is at most this share of it: with an
# interval it no longer depends on any bit, and bounds of later layers lose far more by that.
_NARROWER = 0.7
_TAIL = 1e-14  # x Φ(-x) < φ(x) at x >= 8


def slack(terms: int) -> float:
    """The most that a sum of that many products may be off, relative to the sum of their sizes."""
    return (terms + 16) * _U


@dataclass(frozen=True, eq=False)
class Form(Arrays):
    """Arrays: c (node, dim), G (node, dim, symbol), e (node, dim).

    An error that is NaN or negative bounds nothing, so it becomes infinite.
    """

    c: FloatArray
    G: FloatArray
    e: FloatArray

    def __post_init__(self) -> None:
        valid = self.e >= 0
        if not valid.all():
            normalize(self, e=np.where(valid, self.e, np.inf))

    def spread(self) -> FloatArray:
        """How far the symbols move each coordinate, rounded up."""
        return np.abs(self.G).sum(-1) * (1 + slack(self.G.shape[-1])) + TINY

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Least and greatest value of each coordinate, rounded outward; -inf and inf if unknown."""
        reach = (self.spread() + self.e) * _UP
        far = (np.abs(self.c) + reach) * (4 * _U) + TINY + reach
        known = far < np.inf  # neither NaN nor infinite, so c is finite too
        low, high = self.c - far, self.c + far
        if not known.all():
            low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
        return low, high


def linear(x: Form, weight: FloatArray, bias: FloatArray | None = None) -> Form:
    """weight x + bias, for exact weights (out, in)."""
    size, off = np.abs(weight), slack(weight.shape[1])
    c = x.c @ weight.T
    e = (x.e + off * (np.abs(x.c) + x.spread())) @ size.T * (_UP + off) + TINY
    if bias is not None:
        c = c + bias
        e = e + off * (np.abs(c) + 2 * np.abs(bias))
    return Form(c, np.matmul(weight, x.G), e)


def add(x: Form, y: Form) -> Form:
    """x + y, where the symbols of x come first among those of y."""
    k, G = x.G.shape[-1], y.G.copy()
    G[..., :k] += x.G
    c = x.c + y.c
    e = x.e + y.e + slack(0) * (np.abs(c) + x.spread() + y.spread()) + TINY
    return Form(c, G, e * _UP)


def with_own(x: Form, radius: FloatArray) -> Form:
    """The form with an additional symbol of that radius for each coordinate; where all radii of a
    coordinate are hardly more than rounding, they go into its error. A radius that is NaN or
    negative bounds nothing, so it becomes infinite."""
    radius = np.where(radius >= 0, radius, np.inf)
    is_large = ~(radius < _HARDLY).all(0)
    own = np.flatnonzero(is_large)
    more = np.zeros((*x.c.shape, len(own)))
    more[:, own, np.arange(len(own))] = radius[:, own]
    e = (x.e + np.where(is_large, 0, radius)) * _UP
    return Form(x.c, np.concatenate([x.G, more], -1), e)


def layer_norm(x: Form, gain: FloatArray, bias: FloatArray, eps: float, gram: float = 0.0) -> Form:
    """LayerNorm: the centred vector times an affine enclosure of its inverse deviation.

    The variance is an affine form plus |G ε|²/d, which lies between 0 and the mean of the squared
    radii. Where that mean is more than `gram` of the variance, it is also at most the sum of
    |products of generators|/d, which costs more.
    A coordinate whose plain interval is much narrower than its affine enclosure gets the interval.
    The remainder becomes a symbol of each coordinate's own.
    """
    d, off = x.c.shape[-1], slack(x.c.shape[-1] + x.G.shape[-1])
    c = x.c - x.c.mean(-1, keepdims=True)
    G = x.G - x.G.mean(-2, keepdims=True)
    given = np.abs(x.c) + x.spread() + x.e
    e = x.e + x.e.mean(-1, keepdims=True) + off * (given + given.mean(-1, keepdims=True)) + TINY
    e *= _UP
    r = Form(c, G, e).spread()
    size = np.abs(c) + r + e
    scale = (size * size).mean(-1) * _UP + eps  # of the sums below, for their rounding
    v0 = (c * c).mean(-1) + eps
    vG = 2 * np.matmul(c[:, None], G)[:, 0] / d
    square = (r * r).mean(-1) * (1 + 2 * off)
    rows = np.flatnonzero(square > gram * v0)
    products = np.abs(np.matmul(G[rows].swapaxes(-1, -2), G[rows])).sum((-1, -2)) / d
    square[rows] = np.minimum(square[rows], products * (1 + 2 * off))
    ve = square / 2 + ((2 * size * e).mean(-1) + off * 4 * scale) * _UP
    v0 = v0 + square / 2
    reach = (np.abs(vG).sum(-1) + ve) * (1 + off)
    far, near = size, np.maximum(np.abs(c) - r - e, 0)
    lo = np.maximum(v0 - reach, (near * near).mean(-1) + eps) - off * scale
    hi = np.minimum(v0 + reach, (far * far).mean(-1) + eps) + off * scale
    lo = np.maximum(lo, eps * _DOWN)
    hi = np.maximum(hi, lo * (1 + 1e-12))
    slope, s0, se = inverse_root(lo, hi)
    s0 = s0 + slope * v0
    sG = slope[:, None] * vG
    se = (se + np.abs(slope) * (ve + off * v0) + off * np.abs(s0)) * _UP
    rs = (np.abs(sG).sum(-1) * (1 + off) + se) * _UP
    out_c = c * s0[:, None]
    out_G = G * s0[:, None, None] + c[:, :, None] * sG[:, None]
    most = 1 / np.sqrt(lo) * _UP
    rest = r * rs[:, None] * _UP + TINY
    out_G = np.concatenate([out_G, (c * se[:, None])[..., None]], -1)
    out_e = e * np.maximum(most, np.abs(s0) + rs)[:, None]
    out_e = (out_e + off * size * (np.abs(s0) + rs)[:, None]) * _UP + TINY
    least = 1 / np.sqrt(hi) * _DOWN
    cap = np.sqrt(d - 1.0) * _UP  # no normalised coordinate is larger
    a, b = c - r - e, c + r + e
    room = size * (8 * _U)
    top = np.clip(np.where(b > 0, b * most[:, None], b * least[:, None]), -cap, cap)
    low = np.clip(np.where(a < 0, a * most[:, None], a * least[:, None]), -cap, cap)
    wide = ~(np.abs(out_G).sum(-1) + rest + out_e <= (top - low) / 2 / _NARROWER)
    out_c = np.where(wide, (top + low) / 2, out_c)
    rest = np.where(wide, (top - low) / 2 * _UP + room * most[:, None] + 8 * _U * cap, rest)
    out_e = np.where(wide, TINY, out_e)
    out_G[wide] = 0
    normal = with_own(Form(out_c, out_G, out_e), rest)
    c = normal.c * gain + bias
    sizes = (np.abs(normal.c) + normal.spread()) * np.abs(gain) + np.abs(bias)
    e = normal.e * np.abs(gain) + slack(0) * sizes
    return Form(c, normal.G * gain[:, None], e * _UP + TINY)


def inverse_root(lo: FloatArray, hi: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(a, b, r) with 1/√v within a v + b ± r on [lo, hi]: the chord's slope, and the middle.

    1/√v is convex, so v^-½ - a v is greatest at an end; over all v > 0 it is at least
    3/2 (-2a)^⅓, where its derivative vanishes.
    """
    root_lo, root_hi = np.sqrt(lo), np.sqrt(hi)
    a = -1 / (root_lo * root_hi * (root_lo + root_hi))
    above = np.maximum(1 / root_lo - a * lo, 1 / root_hi - a * hi) * _UP
    third = np.cbrt(-2 * a) * _DOWN
    third = np.where(third * third * third * (1 + 8 * _U) <= -2 * a, third, 0)
    below = np.minimum(1.5 * third * _DOWN, above)
    return a, (above + below) / 2, ((above - below) / 2 + above * 8 * _U) * _UP


def gelu(x: Form, own: bool = True, pieces: int = _PIECES) -> Form:
    """GELU of each coordinate: an affine part with its chord's slope, and a remainder.

    The remainder, a symbol of its own if `own`, is bounded on pieces: between two points that are
    h apart, a function differs from its chord by at most h²/8 times its second derivative.
    """
    low, high = x.bounds()
    width = np.maximum(high - low, 1e-9)
    at = low[..., None] + width[..., None] * np.linspace(0, 1, pieces + 1)
    at[..., -1] = np.maximum(at[..., -1], high)
    value = gelu_value(at)
    slope = (value[..., -1] - value[..., 0]) / width
    left = value - slope[..., None] * at
    off = gelu_off(np.abs(value)) + (np.abs(value) + np.abs(slope[..., None] * at)) * (4 * _U)
    piece = width / pieces * (1 + 1e-6) + (np.abs(low) + np.abs(high)) * (8 * _U)
    bend = piece * piece / 8 * _UP + TINY
    top = (left + off).max(-1) - bend * _BEND_MIN
    bottom = (left - off).min(-1) - bend * _BEND_MAX
    middle, radius = (top + bottom) / 2, (top - bottom) / 2
    sizes = np.abs(slope) * (np.abs(x.c) + x.spread()) + np.abs(middle) + radius
    e = (x.e * np.abs(slope) + slack(0) * sizes) * _UP + TINY
    flat = Form(slope * x.c + middle, x.G * slope[..., None], e)
    return with_own(flat, radius * _UP) if own else Form(flat.c, flat.G, (e + radius * _UP) * _UP)


def block_tail(
    x: Form,
    params: Mapping[str, FloatArray],
    block: str,
    softmax: bool,
    eps: float,
    brief: bool = False,
    gram: float = 0.0,
) -> Form:
    """A block after attention and its residual sum; if `brief`, the remainders of GELUs become one
    symbol per coordinate of the sum instead of one per hidden unit."""

    def norm(x: Form, name: str) -> Form:
        gain, bias = (params[f"{block}{name}.{each}"] for each in ("weight", "bias"))
        return layer_norm(x, gain, bias, eps, gram)

    up, down = (
        (params[f"{block}{name}.weight"], params[f"{block}{name}.bias"]) for name in ("up", "down")
    )
    if softmax:
        x = norm(x, "norm1")
    inner = x if softmax else norm(x, "norm2")
    hidden = gelu(linear(inner, *up), not brief, 4 if brief else 8)
    x = add(x, linear(hidden, *down))
    if brief:
        x = with_own(Form(x.c, x.G, np.zeros_like(x.e)), x.e)
    return norm(x, "norm2") if softmax else x


def in_cells(x: Form, function: Callable[[Form], Form], k: int, cells: int = 16) -> Form:
    """The function of a form that varies mostly along one line, bounded cell by cell on that line:
    a form with the first k symbols, all else in its error.

    Norms are most nonlinear where a vector is small. There a single affine form is loose; but the
    output of one layer of attention varies almost along a single direction, so a few cells along
    it are much tighter.

    With the line's direction p and G = p τᵀ + rest, σ = τ ε lies in one of the cells. There the
    function is a form in the cell's own symbol, ε and more; over all cells it is within a radius
    of a constant plus the chord's slope times σ plus the mean of the cells' generators times ε.
    """
    (count, d, symbols), up = x.G.shape, 1 + slack(8)
    p = axes_of(x.G)[..., -1]  # any vector is sound
    tau = np.matmul(p[:, None], x.G)[:, 0]
    along = p[:, :, None] * tau[:, None]
    rest = x.G - along
    off = slack(symbols) * (np.abs(x.G) + np.abs(along)).sum(-1)
    reach = np.abs(tau).sum(-1) * (1 + slack(symbols)) + TINY
    half = reach / cells * (1 + slack(cells))
    middle = reach[:, None] * ((2 * np.arange(cells) + 1) / cells - 1)  # row cell
    c = x.c[:, None] + p[:, None] * middle[..., None]
    wrong = (x.e + off)[:, None] + slack(0) * (np.abs(c) + reach[:, None, None] * 2)
    G = np.concatenate([(p * half[:, None])[..., None], rest], -1)
    G = np.broadcast_to(G[:, None], (count, cells, *G.shape[1:])).reshape(-1, d, symbols + 1)
    y = function(Form(c.reshape(-1, d), G, (wrong * up).reshape(-1, d)))
    size = y.c.shape[-1]
    yc, ye = (a.reshape(count, cells, size) for a in (y.c, y.e))
    yG = y.G.reshape(count, cells, size, -1)
    own = ye + np.abs(yG[..., k + 1 :]).sum(-1) * (1 + slack(yG.shape[-1]))
    step, moved = yG[..., 0], yG[..., 1 : k + 1]
    slope = (yc[:, -1] + step[:, -1] - yc[:, 0] + step[:, 0]) / (2 * reach[:, None])
    mean = moved.mean(1)
    bend = np.abs(step - (slope * half[:, None])[:, None])
    spread = own + bend + np.abs(moved - mean[:, None]).sum(-1)
    at = yc - slope[:, None] * middle[..., None]
    room = slack(k + 8) * (np.abs(yc) + np.abs(slope[:, None]) * reach[:, None, None] + spread)
    spread = (spread + room + slack(k + 8) * np.abs(moved).sum(-1)) * up
    top, bottom = (at + spread).max(1), (at - spread).min(1)
    G = slope[..., None] * tau[:, None, :k] + mean
    e = (top - bottom) / 2 + np.abs(slope) * np.abs(tau[:, k:]).sum(-1)[:, None]
    e = e + slack(k + 8) * (np.abs(top) + np.abs(bottom) + np.abs(slope) * reach[:, None])
    e = e + slack(k + 8) * np.abs(mean).sum(-1)
    return Form((top + bottom) / 2, G, e * up + TINY)


def axes_of(G: FloatArray) -> FloatArray:
    """Axes (... dim axis) along which the columns of G (... dim symbol) differ more and more, about
    orthonormal; nothing may depend on how well they are found."""
    gram = np.matmul(G, G.swapaxes(-1, -2))
    try:
        return np.linalg.eigh(np.where(np.abs(gram) < 1e150, gram, 0))[1]  # NaN would spread
    except np.linalg.LinAlgError:  # it did not converge
        return np.broadcast_to(np.eye(gram.shape[-1]), gram.shape)


def gelu_off(size: FloatArray) -> FloatArray:
    """How far values of GELU of that size may be off; beyond the table it is less."""
    return max(_TAIL, _TAYLOR) + 16 * _U * (size + 1 / GELU_STEP)


def gelu_value(x: FloatArray) -> FloatArray:
    """GELU at float points, by quartics around the table's points."""
    r = np.clip(x, -GELU_END, GELU_END)
    r *= GELU_STEP
    k = np.rint(r)
    r -= k  # exact: a difference of near multiples of a power of two
    k += GELU_END * GELU_STEP
    at = k.astype(np.int64)
    *terms, last = _gelu_table()
    value: FloatArray = last.take(at, mode="clip")  # NaN stays NaN
    for term in reversed(terms):
        value *= r
        value += term.take(at, mode="clip")
    beyond = np.abs(x) > GELU_END
    if beyond.any():
        value = np.where(beyond, np.maximum(x, 0.0), value)
    return value


@cache
def _gelu_table() -> FloatArray:
    """GELU and its first four Taylor terms (term, point) for steps of the table, each rounded from
    a ball."""
    with ctx.workprec(120):
        rows = []
        for k in range(-GELU_END * GELU_STEP, GELU_END * GELU_STEP + 1):
            x = arb_series([arb(k) / GELU_STEP, 1], prec=5)
            terms = x * (1 + (x / arb(2).sqrt()).erf()) / 2
            rows.append([float(terms[j].mid()) / GELU_STEP**j for j in range(5)])
    return np.ascontiguousarray(np.transpose(rows))
