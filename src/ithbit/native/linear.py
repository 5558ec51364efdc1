"""Linear attention, all blocks of a model: the twin of `models/linear_attention.py`.

The state of a head is S, the sum of keys times values, and Z, the sum of keys. Full attention reads
the state after all tokens, causal attention after each. The backward pass has the same shape: a
second state sums queries times gradients, starting from the last token.
"""

from typing import Any

import numpy as np

from ithbit.native.entry import drive, entry, group
from ithbit.native.feed_forward import feed_forward, feed_forward_back
from ithbit.native.fours import fma4, put4, zero4
from ithbit.native.norms import norm, norm_back
from ithbit.native.simd import Floats, exp, fma, get, largest, part, put, splat, zero
from ithbit.native.tokens import collect, head, spread
from ithbit.native.tokenwise import add, clear, linear, linear_back, linear_weights

_ONE, _EPS = np.float32(1), np.float32(1e-6)


@part
def _features(m: Floats, x: int, slope: int, d: int, step: int, tokens: int) -> None:
    """ELU + 1 in place for the first d of `step` numbers per token, its derivative at `slope`."""
    for t in range(tokens):
        for i in range(d):
            v = get(m, x + t * step + i)
            e = exp(zero() - largest(zero() - v, zero()))
            put(m, slope + t * d + i, e)
            put(m, x + t * step + i, e + largest(v, zero()))


@part
def _features_back(m: Floats, g: int, slope: int, d: int, step: int, tokens: int) -> None:
    for t in range(tokens):
        for i in range(d):
            put(m, g + t * step + i, get(m, g + t * step + i) * get(m, slope + t * d + i))


@part
def _grow(m: Floats, state: int, size: int, a: int, b: int, z: int) -> None:
    """S += a b^T, Z += a z, for one head; z is 1 if its place is below 0."""
    at = state
    for f in range(size):
        v = get(m, a + f)
        for e in range(size):
            put(m, at + e, fma(v, get(m, b + e), get(m, at + e)))
        more = v * get(m, z) if z >= 0 else v
        put(m, at + size, get(m, at + size) + more)
        at += size + 1


@part
def _left(m: Floats, state: int, size: int, a: int, y: int) -> None:
    """y = a S."""
    for e in range(0, size, 4):
        sums = zero4()
        for f in range(size):
            sums = fma4(get(m, a + f), m, state + f * (size + 1) + e, sums)
        put4(m, y + e, sums)


@part
def _right(m: Floats, state: int, size: int, b: int, z: int, y: int) -> None:
    """y = S b + Z z."""
    at = state
    for f in range(size):
        v = get(m, at + size)
        if z >= 0:
            v = v * get(m, z)
        for e in range(size):
            v = fma(get(m, at + e), get(m, b + e), v)
        put(m, y + f, v)
        at += size + 1


@part
def _key(m: Floats, state: int, kv: int, d: int, heads: int) -> None:
    """Add a token to the state."""
    size = d // heads
    for h in range(heads):
        _grow(m, state + h * size * (size + 1), size, kv + h * size, kv + d + h * size, -1)


@part
def _query(m: Floats, state: int, q: int, mixed: int, below: int, d: int, heads: int) -> None:
    """What a query reads from the state; the inverses of the denominators are kept."""
    size = d // heads
    for h in range(heads):
        here, at = h * size, state + h * size * (size + 1)
        _left(m, at, size, q + here, mixed + here)
        whole = splat(_EPS)
        for f in range(size):
            whole = fma(get(m, q + here + f), get(m, at + f * (size + 1) + size), whole)
        share = splat(_ONE) / whole
        put(m, below + h, share)
        for f in range(here, here + size):
            put(m, mixed + f, get(m, mixed + f) * share)


@part
def mix(
    m: Floats, state: int, q: int, kv: int, mixed: int, below: int, tokens: int, queries: int,
    d: int, heads: int, causal: bool,
) -> None:  # fmt: skip
    """What the last `queries` tokens see."""
    each = causal and queries > 1
    clear(m, state, d * (d // heads + 1))
    for t in range(tokens):
        _key(m, state, kv + t * 2 * d, d, heads)
        if each:
            _query(m, state, q + t * d, mixed + t * d, below + t * heads, d, heads)
    for a in range(0 if each else queries):
        _query(m, state, q + a * d, mixed + a * d, below + a * heads, d, heads)


@part
def _query_back(
    m: Floats, state: int, mixed: int, below: int, g: int, gz: int, gq: int, d: int, heads: int
) -> None:
    """The gradient of a query; g becomes that of its numerators, gz that of its denominators."""
    size = d // heads
    for h in range(heads):
        share, slope = get(m, below + h), zero()
        for f in range(h * size, (h + 1) * size):
            v = get(m, g + f) * share
            slope = slope - v * get(m, mixed + f)
            put(m, g + f, v)
        put(m, gz + h, slope)
        _right(m, state + h * size * (size + 1), size, g + h * size, gz + h, gq + h * size)


@part
def _key_back(m: Floats, state: int, kv: int, gkv: int, d: int, heads: int) -> None:
    """The gradients of a key and its value."""
    size = d // heads
    for h in range(heads):
        at, here = state + h * size * (size + 1), h * size
        _right(m, at, size, kv + d + here, -1, gkv + here)
        _left(m, at, size, kv + here, gkv + d + here)


@part
def mix_back(
    m: Floats, state: int, q: int, kv: int, mixed: int, below: int, g: int, gz: int, gq: int,
    gkv: int, tokens: int, queries: int, d: int, heads: int, causal: bool,
) -> None:  # fmt: skip
    """The gradients of queries, keys and values from g, that of what was mixed."""
    size, each = d // heads, causal and queries > 1
    clear(m, state, d * (size + 1))
    for t in range(tokens):
        _key(m, state, kv + t * 2 * d, d, heads)
        if each:
            here, at = t * d, t * heads
            _query_back(m, state, mixed + here, below + at, g + here, gz + at, gq + here, d, heads)
    for a in range(0 if each else queries):
        here, at = a * d, a * heads
        _query_back(m, state, mixed + here, below + at, g + here, gz + at, gq + here, d, heads)
    clear(m, state, d * (size + 1))
    for a in range(queries - 1, -1, -1):
        for h in range(heads):
            here = a * d + h * size
            _grow(m, state + h * size * (size + 1), size, q + here, g + here, gz + a * heads + h)
        if each:
            _key_back(m, state, kv + a * 2 * d, gkv + a * 2 * d, d, heads)
    for t in range(0 if each else tokens):
        _key_back(m, state, kv + t * 2 * d, gkv + t * 2 * d, d, heads)


def parts(layers: int, T: int, d: int, heads: int, up_to: int, *_: int) -> tuple[int, ...]:
    """The sizes of the parts of the memory, in the order in which `_linear_attention` takes
    them."""
    row, wider = T * d, T * up_to
    kept = ((layers + 1) * row, layers * row, 2 * layers * row, *[layers * row] * 7)
    kept += (layers * T * heads, *[layers * T] * 2, *[layers * wider] * 2)
    return (*kept, *[row] * 6, 2 * row, wider, T * heads, d * (d // heads + 1))


@group
def _linear_attention(run: Any, how: Any, first: int, m: Any) -> None:
    """See `group`."""
    p, table, d_table, bits, index, logits = run
    at, head_at, sizes, lhi, causal, train, places = how
    layers, d, heads, up_to, n = len(at), sizes[0], sizes[1], sizes[2], bits.shape[1]
    T = n + 1 + lhi
    row, wider = T * d, T * up_to
    # Kept for every layer:
    x, q, kv, mixed, slope_q, slope_k, z1, y1, z2, y2 = places[:10]
    below, scale1, scale2, h, slope = places[10:15]
    # Temporary:
    y, g, gx, gy, gm, gq, gkv, gh, gz, state, gp = places[15:]
    sums = gp + len(p)
    for layer in range(layers):
        asked = 1 if layer == layers - 1 else T
        here, mine, hidden, scales = layer * row, (T - asked) * d, layer * wider, layer * T
        norm1, _, qkv, out, norm2, _, up, _, down, _ = at[layer]
        x_, q_, kv_, mixed_ = x + here, q + here, kv + 2 * here, mixed + here
        if layer:
            norm(p, norm1, norm1 + d, False, m, x_, d, y1 + here, z1 + here, scale1 + scales, T)
            linear(p, qkv, -1, m, y1 + here + mine, d, q_, d, asked)
            linear(p, qkv + d * d, -1, m, y1 + here, d, kv_, 2 * d, T)
            _features(m, q_, slope_q + here, d, d, asked)
            _features(m, kv_, slope_k + here, d, 2 * d, T)
        else:
            spread(table, 0, d, asked, m, x_ + mine)
            spread(table, d, d, asked, m, q_)
            spread(table, 2 * d, 2 * d, T, m, kv_)
        mix(m, state, q_, kv_, mixed_, below + scales * heads, T, asked, d, heads, causal)
        linear(p, out, -1, m, mixed_, d, y, d, asked)
        add(m, y, x_ + mine, asked * d)
        norm(p, norm2, norm2 + d, False, m, y, d, y2 + here, z2 + here, scale2 + scales, asked)
        feed_forward(
            p, up, down, d, up_to, m, y2 + here, h + hidden, slope + hidden, x_ + row, asked
        )
        add(m, x_ + row, y, asked * d)
    head(p, gp, head_at, d, m, x + layers * row, bits, index, first, logits, train, g)
    for layer in range(layers - 1, -1 if train else layers - 1, -1):
        asked = 1 if layer == layers - 1 else T
        here, mine, hidden, scales = layer * row, (T - asked) * d, layer * wider, layer * T
        norm1, _, qkv, out, norm2, _, up, _, down, _ = at[layer]
        q_, kv_, mixed_, some = q + here, kv + 2 * here, mixed + here, asked * d
        clear(m, gy, some)
        feed_forward_back(
            p, gp, up, down, d, up_to, m, y2 + here, h + hidden, slope + hidden, g, gh, gy, asked
        )
        clear(m, gx, row)
        add(m, gx + mine, g, some)
        norm_back(p, gp, norm2, norm2 + d, m, gy, d, z2 + here, scale2 + scales, gx + mine, asked)
        clear(m, gm, some)
        linear_back(p, out, m, gx + mine, d, gm, d, asked)
        linear_weights(gp, out, -1, m, gx + mine, d, mixed_, d, asked)
        mix_back(
            m, state, q_, kv_, mixed_, below + scales * heads, gm, gz, gq, gkv, T, asked, d, heads,
            causal,
        )  # fmt: skip
        if layer:
            _features_back(m, gq, slope_q + here, d, d, asked)
            _features_back(m, gkv, slope_k + here, d, 2 * d, T)
            clear(m, gy, row)
            linear_back(p, qkv, m, gq, d, gy + mine, d, asked)
            linear_weights(gp, qkv, -1, m, gq, d, y1 + here + mine, d, asked)
            linear_back(p, qkv + d * d, m, gkv, 2 * d, gy, d, T)
            linear_weights(gp, qkv + d * d, -1, m, gkv, 2 * d, y1 + here, d, T)
            norm_back(p, gp, norm1, norm1 + d, m, gy, d, z1 + here, scale1 + scales, gx, T)
            g, gx = gx, g
        else:
            collect(d_table, 0, d, asked, m, gx + mine, sums)
            collect(d_table, d, d, asked, m, gq, sums)
            collect(d_table, 2 * d, 2 * d, T, m, gkv, sums)


@entry(parts)
def run(data: Any, how: Any, m: Any) -> None:
    """See `entry`."""
    drive(_linear_attention, data, how, m)
