"""From the token table to a group of examples, and from the last token to their logits.

What acts on each token by itself before the first mixing is computed outside, on the token table
(see `models/stacked.py`); `wide` has its rows, and its columns are the numbers that a block needs.
Here they are spread over the tokens of a group of examples, one lane per example. The memory starts
with the bits of the group, followed by the row of each lane's query token.
"""

import numpy as np

from ithbit.native.simd import (
    LANES,
    Bits,
    Floats,
    Indices,
    LayerArgs,
    Table,
    each,
    fma,
    get,
    more,
    part,
    put,
    sigmoid,
    splat,
    total,
)
from ithbit.native.tokenwise import linear, linear_back, linear_weights


@part
def load(bits: Bits, index: Indices, first: int, m: Floats) -> None:
    """Load the examples from the `first` on; beyond the last one, zeros with index 1."""
    count, n = bits.shape
    for lane in range(LANES):
        k = first + lane
        for j in range(n):
            m[j * LANES + lane] = bits[k, j] if k < count else 0
        m[n * LANES + lane] = 2 * n + (index[k] - 1 if k < count else 0)


@part
def spread(wide: Table, column: int, width: int, tokens: int, m: Floats, x: int) -> None:
    """x = columns of the table at the last `tokens` tokens of each example."""
    n, lhi = len(wide) // 3, len(wide) % 3
    for k in range(tokens):
        j, at = n + 1 - tokens + k, x + k * width
        if 0 <= j < n:
            bit = get(m, j)
            for c in range(width):
                low = wide[j, column + c]
                put(m, at + c, fma(bit, splat(wide[n + j, column + c] - low), splat(low)))
        elif j == n and lhi:
            for c in range(width):
                put(m, at + c, splat(wide[3 * n, column + c]))
        else:
            for lane in range(LANES):
                row = int(m[n * LANES + lane])
                for c in range(width):
                    m[(at + c) * LANES + lane] = wide[row, column + c]


@part
def collect(
    d_wide: Table, column: int, width: int, tokens: int, m: Floats, g: int, sums: int
) -> None:
    """The backward pass of `spread`. Bit tokens are summed in the memory, followed by separate sums
    over those that are 1; the others go to their rows."""
    n, lhi, columns = len(d_wide) // 3, len(d_wide) % 3, d_wide.shape[1]
    for k in range(tokens):
        j, at = n + 1 - tokens + k, g + k * width
        if 0 <= j < n:
            bit, target = get(m, j), sums + j * columns + column
            ones = target + n * columns
            for c in range(width):
                v = get(m, at + c)
                put(m, target + c, get(m, target + c) + v)
                put(m, ones + c, fma(bit, v, get(m, ones + c)))
        elif j == n and lhi:
            for c in range(width):
                d_wide[3 * n, column + c] += total(get(m, at + c))
        else:
            for lane in range(LANES):
                row = int(m[n * LANES + lane])
                for c in range(width):
                    d_wide[row, column + c] += m[(at + c) * LANES + lane]


@part
def take(
    layer: LayerArgs, table: Table, w: int, b: int, m: Floats, x: int, y: int, q: int, kv: int
) -> None:
    """What a layer mixes: q at the tokens whose output is wanted, kv at all of them.

    The first layer takes them, and x, from columns of the table; others map y by the weight w,
    whose first d rows give q, with the bias b or, if b < 0, none.
    """
    p, d, tokens, outputs = layer.p, layer.d, layer.tokens, layer.outputs
    width, mine = table.shape[1] - 2 * d, (tokens - outputs) * d
    if layer.first:
        spread(table, 0, d, outputs, m, x + mine)
        spread(table, d, d, outputs, m, q)
        spread(table, 2 * d, width, tokens, m, kv)
    else:
        linear(p, w, b, m, y + mine, d, q, d, outputs)
        linear(p, w + d * d, b + d if b >= 0 else b, m, y, d, kv, width, tokens)


@part
def take_back(
    layer: LayerArgs, d_table: Table, w: int, b: int, m: Floats, y: int, gx: int, gq: int, gkv: int,
    gy: int,
) -> None:  # fmt: skip
    """The backward pass of `take`: gy += the gradient of y."""
    p, gp, d, tokens, outputs = layer.p, layer.gp, layer.d, layer.tokens, layer.outputs
    width, mine = d_table.shape[1] - 2 * d, (tokens - outputs) * d
    if layer.first:
        sums = gp + len(p)
        collect(d_table, 0, d, outputs, m, gx + mine, sums)
        collect(d_table, d, d, outputs, m, gq, sums)
        collect(d_table, 2 * d, width, tokens, m, gkv, sums)
    else:
        linear_back(p, w, m, gq, d, gy + mine, d, outputs)
        linear_weights(gp, w, b, m, gq, d, y + mine, d, outputs)
        linear_back(p, w + d * d, m, gkv, width, gy, d, tokens)
        linear_weights(gp, w + d * d, b + d if b >= 0 else b, m, gkv, width, y, d, tokens)


@part
def finish(n: int, m: Floats, gp: int, grads: Floats, sums: int, d_wide: Table) -> None:
    """Sum over the lanes: the parameters' gradients, and what the table's bit tokens collected."""
    for i in range(len(grads)):
        grads[i] = total(get(m, gp + i))
    columns = d_wide.shape[1]
    for j in range(n):
        for c in range(columns):
            one = total(get(m, sums + (n + j) * columns + c))
            d_wide[j, c] = total(get(m, sums + j * columns + c)) - one
            d_wide[n + j, c] = one


@part
def head(
    p: Floats, gp: int, w: int, d: int, m: Floats, x: int, bits: Bits, index: Indices,
    first: int, logits: Floats, train: bool, gx: int,
) -> None:  # fmt: skip
    """The logits and, in training, the gradient of their mean loss, with that of x in gx."""
    count = len(index)
    z = each(p, w + d)
    for i in range(d):
        z = fma(each(p, w + i), get(m, x + i), z)
    put(m, gx, z)
    for lane in range(min(LANES, count - first)):
        logits[first + lane] = m[gx * LANES + lane]
    if train:
        put(m, gx, sigmoid(z))
        for lane in range(LANES):
            k, at = first + lane, gx * LANES + lane
            if k < count:
                m[at] = (m[at] - np.float32(bits[k, index[k] - 1])) / np.float32(count)
            else:
                m[at] = 0
        g = get(m, gx)
        more(m, gp + w + d, g)
        for i in range(d):
            more(m, gp + w + i, g * get(m, x + i))
            put(m, gx + i, g * each(p, w + i))
