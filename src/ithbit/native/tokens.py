"""From the token table to a group of examples, and from the last token to their logits.

What acts on each token by itself before the first mixing is computed on the token table, outside
(see `models/stream.py`); `wide` has its rows, and its columns are numbers that a block wants. Here
they are spread over the tokens of a group of examples, a lane an example. `bit` has the bits of
the group as vectors, `query` the row of each lane's query token.
"""

from typing import Any

import numpy as np
from numba import njit

from ithbit.native.simd import apart, LANES, fma, get, part, put, sigmoid, splat, total, zero

_ONE = np.float32(1)


@part
def load(bits: Any, index: Any, first: Any, bit: Any, query: Any) -> None:
    """The examples from the `first` on; beyond the last one zeros with index 1."""
    apart()
    count, n = bits.shape
    for lane in range(LANES):
        k = first + lane
        query[lane] = 2 * n + (index[k] - 1 if k < count else 0)
        for j in range(n):
            bit[j * LANES + lane] = bits[k, j] if k < count else 0


@part
def spread(
    wide: Any, column: Any, width: Any, n: Any, lhi: Any, tokens: Any, bit: Any, query: Any,
    x: Any, x0: Any,
) -> None:  # fmt: skip
    """Columns of the table at the last so many tokens of each example."""
    apart()
    every = n + 1 + lhi
    for k in range(tokens):
        t, at = every - tokens + k, x0 + k * width
        j = t - lhi
        if 0 <= j < n:
            here = get(bit, j)
            for c in range(width):
                low = wide[j, column + c]
                put(x, at + c, fma(here, splat(wide[n + j, column + c] - low), splat(low)))
        elif j == n and lhi:
            for c in range(width):
                put(x, at + c, splat(wide[3 * n, column + c]))
        else:
            for lane in range(LANES):
                for c in range(width):
                    x[(at + c) * LANES + lane] = wide[query[lane], column + c]


@part
def collect(
    g: Any, g0: Any, column: Any, width: Any, n: Any, lhi: Any, tokens: Any, bit: Any, query: Any,
    d_wide: Any, both: Any, ones: Any,
) -> None:  # fmt: skip
    """The way back of `spread`; bit tokens go to `both`, and those that are 1 to `ones` too."""
    apart()
    every, columns = n + 1 + lhi, d_wide.shape[1]
    for k in range(tokens):
        t, at = every - tokens + k, g0 + k * width
        j = t - lhi
        if 0 <= j < n:
            here, there = get(bit, j), j * columns + column
            for c in range(width):
                v = get(g, at + c)
                put(both, there + c, get(both, there + c) + v)
                put(ones, there + c, fma(here, v, get(ones, there + c)))
        elif j == n and lhi:
            for c in range(width):
                d_wide[3 * n, column + c] += total(get(g, at + c))
        else:
            for lane in range(LANES):
                for c in range(width):
                    d_wide[query[lane], column + c] += g[(at + c) * LANES + lane]


@part
def finish(n: Any, both: Any, ones: Any, d_wide: Any) -> None:
    """Put what was collected at bit tokens into the table's gradient."""
    apart()
    columns = d_wide.shape[1]
    for j in range(n):
        for c in range(columns):
            one = total(get(ones, j * columns + c))
            d_wide[j, c] = total(get(both, j * columns + c)) - one
            d_wide[n + j, c] = one


@part
def head(
    p: Any, gp: Any, w: Any, d: Any, x: Any, x0: Any, bits: Any, index: Any, first: Any,
    logits: Any, train: Any, gx: Any,
) -> None:  # fmt: skip
    """The logits; to train, the gradient of their mean loss: in gx that of x."""
    apart()
    count = len(index)
    z = splat(p[w + d])
    for i in range(d):
        z = fma(splat(p[w + i]), get(x, x0 + i), z)
    put(gx, 0, z)
    for lane in range(min(LANES, count - first)):
        logits[first + lane] = gx[lane]
    if train:
        put(gx, 0, sigmoid(z))
        for lane in range(LANES):
            k = first + lane
            if k < count:
                gx[lane] = (gx[lane] - np.float32(bits[k, index[k] - 1])) / np.float32(count)
            else:
                gx[lane] = 0
        g = get(gx, 0)
        gp[w + d] += total(g)
        for i in range(d):
            gp[w + i] += total(g * get(x, x0 + i))
            put(gx, i, g * splat(p[w + i]))


@njit
def new_sums(d_wide: Any, n: Any) -> Any:
    """Zeros for `collect`."""
    room = np.zeros((2, n * d_wide.shape[1] * LANES), np.float32)
    return room[0], room[1]
