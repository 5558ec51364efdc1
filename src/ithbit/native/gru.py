"""GRU, all layers of a model: the twin of `models/gru.py`, gates in the order r, z, n."""

from typing import Any

import numpy as np

from ithbit.native.entry import drive, entry, group
from ithbit.native.simd import Floats, fma, get, part, put, sigmoid, splat, tanh
from ithbit.native.tokens import collect, head, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_ONE = np.float32(1)


@part
def recur(
    p: Floats, hh: int, bias: int, d: int, m: Floats, gates: int, hidden: int, h: int, rzn: int,
    candidate: int, tokens: int,
) -> None:  # fmt: skip
    """States after each token, from the gates' inputs; the state before the first is at h."""
    clear(m, h, d)
    for t in range(tokens):
        before, gate = h + t * d, t * 3 * d
        linear(p, hh, bias, m, before, d, hidden, 3 * d, 1)
        for i in range(d):
            at, out = gates + gate + i, rzn + gate + i
            r = sigmoid(get(m, at) + get(m, hidden + i))
            z = sigmoid(get(m, at + d) + get(m, hidden + d + i))
            c = get(m, hidden + 2 * d + i)
            n = tanh(fma(r, c, get(m, at + 2 * d)))
            put(m, out, r)
            put(m, out + d, z)
            put(m, out + 2 * d, n)
            put(m, candidate + t * d + i, c)
            put(m, before + d + i, fma(z, get(m, before + i) - n, n))


@part
def recur_back(
    p: Floats, gp: int, hh: int, bias: int, d: int, m: Floats, h: int, rzn: int, candidate: int,
    g: int, last_only: bool, carry: int, g_hidden: int, g_gates: int, tokens: int,
) -> None:  # fmt: skip
    """The gradient of the gates' inputs from g, that of the states or of only the last one."""
    one = splat(_ONE)
    clear(m, carry, d)
    for t in range(tokens - 1, -1, -1):
        if not last_only:
            add(m, carry, g + t * d, d)
        elif t == tokens - 1:
            add(m, carry, g, d)
        gate = t * 3 * d
        for i in range(d):
            at = rzn + gate + i
            dh, r, z, n = get(m, carry + i), get(m, at), get(m, at + d), get(m, at + 2 * d)
            dn = dh * (one - z) * (one - n * n)
            dr = dn * get(m, candidate + t * d + i) * r * (one - r)
            dz = dh * (get(m, h + t * d + i) - n) * z * (one - z)
            at = g_gates + gate + i
            put(m, at, dr)
            put(m, at + d, dz)
            put(m, at + 2 * d, dn)
            at = g_hidden + gate + i
            put(m, at, dr)
            put(m, at + d, dz)
            put(m, at + 2 * d, dn * r)
            put(m, carry + i, dh * z)
        linear_back(p, hh, m, g_hidden + gate, 3 * d, carry, d, 1)
    linear_weights(gp, hh, bias, m, g_hidden, 3 * d, h, d, tokens)


def parts(layers: int, T: int, d: int, *_: int) -> tuple[int, ...]:
    """The sizes of the parts of the memory, in the order in which `_gru` takes them."""
    row = (T + 1) * d
    return layers * row, 3 * layers * row, layers * row, *[3 * row] * 3, row, 3 * d, d


@group
def _gru(run: Any, how: Any, first: int, m: Any) -> None:
    """See `group`."""
    p, table, d_table, bits, index, logits = run
    at, head_at, sizes, lhi, _, train, places = how
    layers, d, n = len(at), sizes[0], bits.shape[1]
    T = n + 1 + lhi
    row = (T + 1) * d
    h, rzn, candidate, gates, g_gates, g_hidden, g, hidden, carry, gp = places
    sums = gp + len(p)
    spread(table, 0, 3 * d, T, m, gates)
    for layer in range(layers):
        here, (ih, hh, ih_bias, hh_bias) = layer * row, at[layer]
        if layer:
            linear(p, ih, ih_bias, m, h + here - row + d, d, gates, 3 * d, T)
        recur(p, hh, hh_bias, d, m, gates, hidden, h + here, rzn + 3 * here, candidate + here, T)
    head(p, gp, head_at, d, m, h + layers * row - d, bits, index, first, logits, train, g)
    for layer in range(layers - 1, -1 if train else layers - 1, -1):
        here, (ih, hh, ih_bias, hh_bias) = layer * row, at[layer]
        recur_back(
            p, gp, hh, hh_bias, d, m, h + here, rzn + 3 * here, candidate + here, g,
            layer == layers - 1, carry, g_hidden, g_gates, T,
        )  # fmt: skip
        if layer:
            clear(m, g, row)
            linear_back(p, ih, m, g_gates, 3 * d, g, d, T)
            linear_weights(gp, ih, ih_bias, m, g_gates, 3 * d, h + here - row + d, d, T)
        else:
            collect(d_table, 0, 3 * d, T, m, g_gates, sums)


@entry(parts)
def run(data: Any, how: Any, m: Any) -> None:
    """See `entry`."""
    drive(_gru, data, how, m)
