"""GRU, all layers of a model: the twin of `models/gru.py`, gates in the order r, z, n."""

from typing import Any

import numpy as np

from ithbit.native.entry import entry
from ithbit.native.simd import apart, LANES, fma, get, part, put, sigmoid, splat, tanh
from ithbit.native.tokens import collect, finish, head, load, new_sums, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights, vectors

_ONE = np.float32(1)


@part
def recur(
    p: Any, hh: Any, bias: Any, d: Any, gates: Any, hidden: Any, h: Any, h0: Any, rzn: Any, g0: Any,
    candidate: Any, c0: Any, tokens: Any,
) -> None:  # fmt: skip
    """States after each token, from the gates' inputs; the state before the first is at h0."""
    apart()
    clear(h, h0, d)
    for t in range(tokens):
        before, here, gate = h0 + t * d, c0 + t * d, t * 3 * d
        linear(p, hh, bias, h, before, d, hidden, 0, 3 * d, 1)
        for i in range(d):
            r = sigmoid(get(gates, gate + i) + get(hidden, i))
            z = sigmoid(get(gates, gate + d + i) + get(hidden, d + i))
            c = get(hidden, 2 * d + i)
            n = tanh(fma(r, c, get(gates, gate + 2 * d + i)))
            put(rzn, g0 + gate + i, r)
            put(rzn, g0 + gate + d + i, z)
            put(rzn, g0 + gate + 2 * d + i, n)
            put(candidate, here + i, c)
            put(h, before + d + i, fma(z, get(h, before + i) - n, n))


@part
def recur_back(
    p: Any, gp: Any, hh: Any, bias: Any, d: Any, h: Any, h0: Any, rzn: Any, g0: Any, candidate: Any, c0: Any,
    g: Any, last_only: Any, carry: Any, g_hidden: Any, g_gates: Any, tokens: Any,
) -> None:  # fmt: skip
    """The gradient of the gates' inputs from g, that of the states, or of the last one alone."""
    apart()
    one = splat(_ONE)
    clear(carry, 0, d)
    for t in range(tokens - 1, -1, -1):
        if not last_only:
            add(carry, 0, g, t * d, d)
        elif t == tokens - 1:
            add(carry, 0, g, 0, d)
        gate = t * 3 * d
        for i in range(d):
            dh, r = get(carry, i), get(rzn, g0 + gate + i)
            z, n = get(rzn, g0 + gate + d + i), get(rzn, g0 + gate + 2 * d + i)
            dn = dh * (one - z) * (one - n * n)
            dr = dn * get(candidate, c0 + t * d + i) * r * (one - r)
            dz = dh * (get(h, h0 + t * d + i) - n) * z * (one - z)
            put(g_gates, gate + i, dr)
            put(g_gates, gate + d + i, dz)
            put(g_gates, gate + 2 * d + i, dn)
            put(g_hidden, gate + i, dr)
            put(g_hidden, gate + d + i, dz)
            put(g_hidden, gate + 2 * d + i, dn * r)
            put(carry, i, dh * z)
        linear_back(p, hh, g_hidden, gate, 3 * d, carry, 0, d, 1)
    linear_weights(gp, hh, bias, g_hidden, 0, 3 * d, h, h0, d, tokens)


@entry
def gru(
    values: Any, grads: Any, wide: Any, d_wide: Any, bits: Any, index: Any, logits: Any, at: Any,
    head_at: Any, sizes: Any, lhi: Any, causal: Any, train: Any,
) -> None:  # fmt: skip
    """Logits of every run's examples; to train, gradients too, which are to be zero before."""
    layers, d, n = len(at), sizes[0], bits.shape[2]
    T = n + 1 + lhi
    row = (T + 1) * d
    bit, query = vectors(n), np.empty(LANES, np.int64)
    h, rzn, candidate = vectors(layers * row), vectors(3 * layers * row), vectors(layers * row)
    gates, hidden, carry = vectors(3 * row), vectors(3 * d), vectors(d)
    g, g_hidden, g_gates = vectors(row), vectors(3 * row), vectors(3 * row)
    for run in range(len(values)):
        p, gp, table, d_table = values[run], grads[run], wide[run], d_wide[run]
        both, ones = new_sums(d_table, n)
        for first in range(0, bits.shape[1], LANES):
            load(bits[run], index[run], first, bit, query)
            spread(table, 0, 3 * d, n, lhi, T, bit, query, gates, 0)
            for layer in range(layers):
                here, (ih, hh, ih_bias, hh_bias) = layer * row, at[layer]
                if layer:
                    linear(p, ih, ih_bias, h, here - row + d, d, gates, 0, 3 * d, T)
                recur(p, hh, hh_bias, d, gates, hidden, h, here, rzn, 3 * here, candidate, here, T)
            last = layers * row - d
            head(p, gp, head_at, d, h, last, bits[run], index[run], first, logits[run], train, g)
            for layer in range(layers - 1, -1 if train else layers - 1, -1):
                here, (ih, hh, ih_bias, hh_bias) = layer * row, at[layer]
                recur_back(
                    p, gp, hh, hh_bias, d, h, here, rzn, 3 * here, candidate, here, g,
                    layer == layers - 1, carry, g_hidden, g_gates, T,
                )  # fmt: skip
                if layer:
                    clear(g, 0, row)
                    linear_back(p, ih, g_gates, 0, 3 * d, g, 0, d, T)
                    linear_weights(
                        gp, ih, ih_bias, g_gates, 0, 3 * d, h, here - row + d, d, T
                    )
                else:
                    collect(g_gates, 0, 0, 3 * d, n, lhi, T, bit, query, d_table, both, ones)
        if train:
            finish(n, both, ones, d_table)
