"""GRU, a layer of a model: the twin of `models/gru.py`, gates in the order r, z, n."""

from typing import Any

import numpy as np

from ithbit.layouts import GRU
from ithbit.native.entry import Parts, drive, entry, group
from ithbit.native.simd import Floats, LayerArgs, fma, get, part, put, sigmoid, splat, tanh
from ithbit.native.tokens import collect, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_ONE = np.float32(1)
_IH, _HH, _IH_BIAS, _HH_BIAS = GRU.places("ih.weight", "hh.weight", "ih.bias", "hh.bias")


@part
def recur(
    layer: LayerArgs, m: Floats, gates: int, hidden: int, h: int, rzn: int, candidate: int
) -> None:
    """States after each token, from the gates' inputs; the state before the first is at h."""
    p, d, hh, bias = layer.p, layer.d, layer.at[_HH], layer.at[_HH_BIAS]
    clear(m, h, d)
    for t in range(layer.tokens):
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
            # Not n + z (h - n), which loses a tiny h.
            put(m, before + d + i, fma(z, get(m, before + i), (splat(_ONE) - z) * n))


@part
def recur_back(
    layer: LayerArgs, m: Floats, h: int, rzn: int, candidate: int, g: int, carry: int,
    g_hidden: int, g_gates: int,
) -> None:  # fmt: skip
    """The gradient of the gates' inputs from g, that of the states or of only the last one."""
    p, d, tokens, hh, bias = layer.p, layer.d, layer.tokens, layer.at[_HH], layer.at[_HH_BIAS]
    one = splat(_ONE)
    clear(m, carry, d)
    for t in range(tokens - 1, -1, -1):
        own = t - tokens + layer.outputs
        if own >= 0:
            add(m, carry, g + own * d, d)
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
    linear_weights(layer.gp, hh, bias, m, g_hidden, 3 * d, h, d, tokens)


def parts(T: int, outputs: int, d: int, heads: int, inner: int) -> Parts:
    """See `entry`; in the order in which both passes take them. What a layer reads has a row of
    zeros before it: the state with which the layer below it starts."""
    row = (T + 1) * d
    return (row, 3 * row, row), (row, row, *[3 * row] * 3, 3 * d, d)


@group
def forward(layer: Any, table: Any, m: Any) -> int:
    """See `group`."""
    d, T, ih, ih_bias = layer.d, layer.tokens, layer.at[_IH], layer.at[_IH_BIAS]
    (x, rzn, candidate), (_, _, gates, _, _, hidden, _, _) = layer.kept, layer.used
    if layer.first:
        spread(table, 0, 3 * d, T, m, gates)
    else:
        linear(layer.p, ih, ih_bias, m, x + d, d, gates, 3 * d, T)
    recur(layer, m, gates, hidden, layer.above, rzn, candidate)
    return layer.above + T * d


@group
def backward(layer: Any, d_table: Any, m: Any, g: int, gx: int) -> None:
    """See `group`."""
    p, gp, d, T = layer.p, layer.gp, layer.d, layer.tokens
    ih, ih_bias = layer.at[_IH], layer.at[_IH_BIAS]
    (x, rzn, candidate), (_, _, _, g_gates, g_hidden, _, carry, _) = layer.kept, layer.used
    recur_back(layer, m, layer.above, rzn, candidate, g, carry, g_hidden, g_gates)
    if layer.first:
        collect(d_table, 0, 3 * d, T, m, g_gates, gp + len(p))
    else:
        clear(m, gx, T * d)
        linear_back(p, ih, m, g_gates, 3 * d, gx, d, T)
        linear_weights(gp, ih, ih_bias, m, g_gates, 3 * d, x + d, d, T)


@entry(parts)
def run(data: Any, layout: Any, m: Any) -> None:
    """See `entry`."""
    drive(forward, backward, data, layout, m)
