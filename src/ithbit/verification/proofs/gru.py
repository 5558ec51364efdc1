"""Bounds for GRUs on LHI: zonotopes through the recurrence, in real arithmetic.

After each token a layer's state is c + G ε, with symbols ε in [-1, 1] that all coordinates share:
one for each free bit read so far, and one per coordinate for what each step left over. None is
dropped, so that the recurrence turns and shrinks errors as it does states. With y the state and the
layer's input (for the first layer the bit, as a symbol),

    r = σ(R y + …),  z = σ(Z y + …),  v = X y + … + r (N y + …),  n = tanh v,  h' = n + z (h - n),

σ and tanh are lines with an error (`tanh_lines.py`). A product of two forms is its linear part and
what equal symbols give: ε² is 1 for a bit, and in [0, 1] for others, of which half is taken. What
is left is an error. The generators of every form are a matrix times those of y, one matrix per node
and step, so that sums over symbols are products of matrices. States of a GRU lie in [-1, 1],
whatever its weights: a coordinate that is wider, or not known, becomes that interval.

Rounding is treated as in `affine_forms.py`; each step adds it to what is left over. With finite
float32 weights nothing before the head overflows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flint import ctx

from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.affine_forms import TINY, slack
from ithbit.verification.proofs.interface import Ints, NodeBounds
from ithbit.verification.proofs.tanh_lines import sigmoid_line, tanh_line
from ithbit.verification.proofs.token_balls import (
    ENTRY,
    PRECISION,
    Params,
    embedded,
    floats,
    mapped,
    part,
)

Line = Callable[[FloatArray, FloatArray], tuple[FloatArray, ...]]

_UP = 1 + 1e-12  # more than the rounding of a few dozen operations on numbers of one sign
_NUMBERS = 1_000_000  # generators of a batch's states, about


class _Weights(NamedTuple):
    """A layer's weights R, Z, N and X (dim, of y) for one token, their biases (node, dim) or (dim),
    and how far these are off."""

    matrices: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    off: tuple[FloatArray, ...]


class _Set(NamedTuple):
    """Vectors c + G ε: c (node, dim) and G (node, dim, symbol)."""

    c: FloatArray
    G: FloatArray


class GruBounds:
    """Margin of a GRU on LHI over nodes; see `interface.MarginBounds`.

    Each token adds a column to all generators for its bit, 0 if it has none, and one for each
    coordinate of each layer.
    """

    slack = np.inf

    def __init__(self, spec: ModelSpec, params: Params) -> None:
        self.n, self.d, self.layers = spec.n_bits, spec.d_model, spec.n_layers
        n, d = self.n, self.d
        self.functionals, self.params = np.zeros((0, n)), params
        self.columns = 1 + d * self.layers
        self.batch = int(np.clip(_NUMBERS // (self.columns * (n + 2) * d), 1, 128))
        with ctx.workprec(PRECISION):
            rows = embedded(params, "lhi", n)
            rows = mapped(rows, params["blocks.0.ih.weight"], params["blocks.0.ih.bias"])
            zeros, ones = part(rows, range(n)), part(rows, range(n, 2 * n))
            values = (zeros, ones, (zeros + ones) / 2)
            self.bits = np.stack([floats(each) for each in values])  # 0, 1 or free; place; gate
            self.halves = floats((ones - zeros) / 2)
            self.query = floats(part(rows, range(2 * n, 3 * n)))
            self.end = floats(part(rows, range(3 * n, 3 * n + 1)))

    def __call__(self, index: Ints, bits: Ints, limits: FloatArray | None = None) -> NodeBounds:
        with np.errstate(all="ignore"):
            return self._bounds(np.asarray(index), np.asarray(bits))

    def _bounds(self, index: Ints, bits: Ints) -> NodeBounds:
        n, d, count = self.n, self.d, len(index)
        free = bits < 0
        states = [_Set(np.zeros((count, d)), np.zeros((count, d, 0)))] * self.layers
        causes = _Causes(count, n + 2, self.columns)
        for t in range(n + 2):
            if 1 <= t <= n:
                gates = self.bits[np.where(free[:, t - 1], 2, bits[:, t - 1]), t - 1]
                half, is_free = self.halves[t - 1], free[:, t - 1]
            else:
                gates = self.query[index] if t == 0 else self.end[np.zeros(count, int)]
                half, is_free = np.zeros(3 * d), np.zeros(count, bool)
            states = self._token(states, gates, half, is_free)
            causes.add(states)
        last, weight, bias = states[-1], self.params["head.weight"][0], self.params["head.bias"]
        moves = np.matmul(weight, last.G)
        sign = np.where(bits[np.arange(count), index] > 0, 1.0, -1.0)
        size = np.abs(last.c) + np.abs(last.G).sum(-1)
        centre = (last.c @ weight + bias) * sign
        off = slack(moves.shape[-1] + d) * (size @ np.abs(weight) + np.abs(bias))
        reach = (np.abs(moves).sum(-1) + off) * _UP + TINY
        slope = moves[:, :: self.columns][:, 1 : n + 1] * sign[:, None]
        blame = causes.of(np.abs(moves))[:, 1 : n + 1]
        none = np.zeros(count, bool)
        return NodeBounds(centre - reach, centre + reach, slope, blame, none)

    def _token(
        self, states: list[_Set], gates: FloatArray, half: FloatArray, is_free: Ints
    ) -> list[_Set]:
        """The states of all layers after a token: gates (node, 3 dim) of the first from its input,
        and how they move with the bit (3 dim), where it is free."""
        d, count, columns = self.d, len(gates), states[0].G.shape[-1] + 1
        symbol = np.zeros((count, 1, columns))
        symbol[:, 0, -1] = is_free
        given, into, bias = _Set(np.zeros((count, 1)), symbol), half[:, None], gates
        off = slack(0) * (np.abs(gates) + np.abs(half)) + 2 * ENTRY
        new: list[_Set] = []
        for layer, state in enumerate(states):
            name = f"blocks.{layer}."
            if layer > 0:
                given, into = new[-1], self.params[f"{name}ih.weight"]
                bias = self.params[f"{name}ih.bias"]
                off = np.zeros(3 * d)
            y = _Set(
                np.concatenate([state.c, given.c], -1),
                np.concatenate([_padded(state.G, given.G.shape[-1]), given.G], -2),
            )
            new.append(_step(_weights(self.params, name, into, bias, off), y, self.columns))
        return [_Set(each.c, _padded(each.G, new[-1].G.shape[-1])) for each in new]


def _weights(
    params: Params, name: str, into: FloatArray, bias: FloatArray, off: FloatArray
) -> _Weights:
    """A layer's weights, from those of its input and their biases."""
    hidden = np.split(params[f"{name}hh.weight"], 3)
    own = np.split(params[f"{name}hh.bias"], 3)
    r, z, x = np.split(into, 3)
    given, wrong = np.split(bias, 3, axis=-1), np.split(off, 3, axis=-1)
    for k in range(2):  # one sum with the state's bias
        wrong[k] = wrong[k] + slack(0) * (np.abs(given[k]) + np.abs(own[k]))
    parts = (hidden[0], r), (hidden[1], z), (hidden[2], 0 * x), (0 * hidden[2], x)
    return _Weights(
        tuple(np.concatenate(each, -1) for each in parts),
        (given[0] + own[0], given[1] + own[1], own[2], given[2]),
        (wrong[0], wrong[1], np.zeros_like(own[2]), wrong[2]),
    )


def _padded(G: FloatArray, columns: int) -> FloatArray:
    more = columns - G.shape[-1]
    return np.concatenate([G, np.zeros((*G.shape[:-1], more))], -1) if more else G


def _times(matrix: FloatArray, vectors: FloatArray) -> FloatArray:
    """matrix (dim, of y), one or one per node, times vectors (node, of y)."""
    return np.matmul(matrix, vectors[..., None])[..., 0]


def _step(w: _Weights, y: _Set, columns: int) -> _Set:
    """A layer's next state, from its weights and y: its state and input. Of so many columns of
    generators, the first belongs to a bit.

    A form is a centre, a matrix times the generators of y, and an error, which contains rounding:
    `off` times the sizes of all that is added up.
    """
    R, Z, N, X = w.matrices
    d, G = len(R), y.G
    off = slack(G.shape[-1] + 2 * G.shape[-2] + 8)
    spread = np.abs(G).sum(-1) * (1 + off)
    size = np.abs(y.c) + spread
    of_bits = G[..., ::columns]
    equal = np.matmul(G, G.swapaxes(-1, -2)) + np.matmul(of_bits, of_bits.swapaxes(-1, -2))

    def affine(k: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Centre, error and spread of the k-th weights times y plus bias."""
        matrix, bias = w.matrices[k], w.biases[k]
        sizes = np.matmul(size, np.abs(matrix).T) + np.abs(bias)
        error = (off * sizes + w.off[k]) * _UP + TINY
        return np.matmul(y.c, matrix.T) + bias, error, spread_of(matrix, np.abs(matrix))

    def spread_of(matrix: FloatArray, sizes: FloatArray) -> FloatArray:
        """How far symbols move matrix y, rounded up; its entries are sums of terms of `sizes`."""
        found = np.abs(np.matmul(matrix, G)).sum(-1) * (1 + off)
        return (found + off * _times(sizes, spread)) * _UP + TINY

    def product(
        a: FloatArray, b: FloatArray, size_b: FloatArray, of_a: FloatArray, of_b: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Centre and error of a product of the symbols' parts, with matrices a and b and their
        spreads: what equal symbols give, for all but bits half of it, and the rest."""
        same = (np.matmul(a, equal) * b).sum(-1) / 2
        wrong = off * _times(np.abs(a), spread) * _times(size_b, spread)
        return same, (np.maximum(of_a * of_b * _UP - np.abs(same), 0) + 3 * wrong) * _UP

    r, r_off, r_spread = affine(0)
    z, z_off, z_spread = affine(1)
    u, u_off, u_spread = affine(2)
    x, x_off, x_spread = affine(3)
    r_slope, r, r_off, r_low, r_high = _on_line(sigmoid_line, *_ends(r, r_spread + r_off), r, r_off)
    z_slope, z, z_off, z_low, _ = _on_line(sigmoid_line, *_ends(z, z_spread + z_off), z, z_off)
    same, rest = product(R, N, np.abs(N), r_spread, u_spread)
    same, rest = r_slope * same, r_slope * rest
    # v = x + r u; its interval is that of the form and that of its parts
    v = x + r * u + same
    v_off = (
        np.abs(r) * u_off + (np.abs(u) + u_spread) * r_off + (r_slope * r_spread + r_off) * u_off
    )
    v_off = v_off + rest + x_off + off * (np.abs(x) + np.abs(r * u) + np.abs(same))
    v_off = v_off * _UP + TINY
    by_r = (u * r_slope)[..., None]
    of_v = r[..., None] * N + by_r * R + X
    sizes = np.abs(r[..., None] * N) + np.abs(by_r * R) + np.abs(X)
    low, high = _ends(v, spread_of(of_v, sizes) + v_off)
    u_low, u_high = _ends(u, u_spread + u_off)
    x_low, x_high = _ends(x, x_spread + x_off)
    below = np.minimum(r_low * u_low, r_high * u_low)
    above = np.maximum(r_low * u_high, r_high * u_high)
    room = slack(0) * (np.abs(below) + np.abs(above) + np.abs(x_low) + np.abs(x_high)) + TINY
    low, high = np.maximum(low, x_low + below - room), np.minimum(high, x_high + above + room)
    n_slope, n, n_off, _, _ = _on_line(tanh_line, low, high, v, v_off)
    # h' = n + z D with D = h - n, where an error of n enters 1 - z times
    slope = n_slope[..., None]
    of_d = np.eye(d, G.shape[-2]) - slope * of_v
    D, d_sizes = y.c[:, :d] - n, np.eye(d, G.shape[-2]) + slope * sizes
    d_spread = spread_of(of_d, d_sizes)
    same, rest = product(Z, of_d, d_sizes, z_spread, d_spread)
    same, rest = z_slope * same, z_slope * rest
    c = n + z * D + same
    error = z_off * (np.abs(D) + d_spread) + n_off * (1 - z_low) + rest
    error = error + off * (np.abs(n) + np.abs(z) * (np.abs(n) + np.abs(y.c[:, :d])) + np.abs(same))
    by_z, stay = (D * z_slope)[..., None], z[..., None]
    leave = (1 - z)[..., None] * slope
    matrix = leave * of_v + stay * np.eye(d, G.shape[-2]) + by_z * Z
    by_z = ((np.abs(n) + np.abs(y.c[:, :d])) * z_slope)[..., None]
    sizes = (1 + np.abs(stay)) * (slope * sizes + np.eye(d, G.shape[-2])) + by_z * np.abs(Z)
    error = (error + off * _times(sizes, spread)) * _UP + TINY
    new = np.matmul(matrix, G)
    known = np.abs(new).sum(-1) + error < 1  # not if NaN
    c, error = np.where(known, c, 0.0), np.where(known, error, 1.0)
    if not known.all():
        new = np.where(known[..., None], new, 0.0)
    return _Set(c, np.concatenate([new, error[..., None] * np.eye(d)], -1))


def _ends(centre: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The interval, rounded outward."""
    reach = (reach + slack(0) * np.abs(centre)) * _UP + TINY
    return centre - reach, centre + reach


def _on_line(
    line: Line, low: FloatArray, high: FloatArray, c: FloatArray, error: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """A function of a form within [low, high]: slope, centre, error, and the function's range."""
    slope, middle, radius, least, most = line(low, high)
    moved = np.where(slope > 0, slope * c, 0.0)
    error = np.where(slope > 0, slope * error, 0.0) + radius
    error = error + slack(0) * (np.abs(moved) + np.abs(middle))
    return slope, moved + middle, error * _UP + TINY, least, most


class _Causes:
    """Which bits cause what steps leave over: hints for branching, which prove nothing.

    What a token leaves over is caused by the symbols of the states before it, by how much they move
    these, and by its own bit; what a symbol of an earlier token's remainder causes, by what caused
    that.
    """

    def __init__(self, count: int, tokens: int, columns: int) -> None:
        self.columns = columns
        self.shares = np.zeros((count, tokens, tokens))  # of what a token leaves over, by token
        self.before = np.zeros((count, 0))
        self.seen = 0

    def add(self, states: list[_Set]) -> None:
        """The states after the next token."""
        sizes = sum(np.abs(state.G).sum(1) for state in states)
        assert isinstance(sizes, np.ndarray)
        found = self.of(self.before)
        found[:, self.seen] = sizes[:, self.seen * self.columns]
        self.shares[:, self.seen] = found / (found.sum(-1, keepdims=True) + TINY)
        self.before, self.seen = sizes, self.seen + 1

    def of(self, sizes: FloatArray) -> FloatArray:
        """Causes (node, token) of sizes (node, symbol)."""
        groups = sizes.reshape(len(sizes), -1, self.columns)
        bits, rest = groups[..., 0], groups[..., 1:].sum(-1)
        found: FloatArray = np.matmul(rest[:, None], self.shares[:, : rest.shape[1]])[:, 0]
        found[:, : bits.shape[1]] += bits
        return found
