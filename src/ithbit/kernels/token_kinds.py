"""The few kinds of tokens before the first mixing, which the backward pass goes over.

There a token is one of two bits at its position, or the end token, always the same; only the query
differs from example to example. For a given token, the backward pass from the mixing to the
embedding is linear in the gradients. So a family first sums these over the examples, by position
and bit, and then computes the rest for two rows per position and one per query, not for every token
of every example: an exact saving. Sums are (bit, token, number): the place of a kind is (bit,
token, valid), that of a query (example, token, valid).
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import draw_index
from ithbit.kernels.plan import LaunchPlan
from ithbit.kernels.tile import (
    FEATURES,
    feature_columns,
    put,
)


@triton.jit
def added(sums, x, bit):
    """Sums for bit 0 and for bit 1 (8 rows per warp each), with the rows of x added by their bit.
    Row numbers are taken modulo the number of sum rows, so that each thread adds up its own."""
    ROWS: tl.constexpr = sums[0].shape[0]
    apart = ()
    for i in tl.static_range(2):
        mine = x * (bit if i else 1.0 - bit)
        mine = tl.sum(tl.reshape(mine, [x.shape[0] // ROWS, ROWS, x.shape[1]]), 0)
        apart += (sums[i] + mine,)  # type: ignore[assignment]
    return apart


@triton.jit
def store_sums(pointer, sums, live, STRIDE, TOKENS):
    """Store a token's sums for bit 0 and for bit 1."""
    for i in tl.static_range(2):
        at = pointer + i * (TOKENS * STRIDE) + tl.arange(0, sums[i].shape[1])
        tl.store(at, tl.sum(sums[i], 0).to(tl.float32), mask=live)


def tiles(plan: LaunchPlan, rows: int) -> int:
    """How many tiles of `rows` rows the kinds and the queries fill."""
    return triton.cdiv(2 * (plan.n_tokens - 1), rows) + triton.cdiv(plan.capacity, rows)


@triton.jit
def in_kinds(tile, N, LHI, ROWS: tl.constexpr):
    """Whether a tile is one of kinds; tiles of queries come after them."""
    return tile < (2 * (N + LHI) + ROWS - 1) // ROWS


@triton.jit
def place_of(tile, count, N, LHI, ROWS: tl.constexpr):
    """The place of a tile's rows."""
    kind, kinds = tile * ROWS + tl.arange(0, ROWS), 2 * (N + LHI)
    query = kind - (kinds + ROWS - 1) // ROWS * ROWS
    of_kinds = in_kinds(tile, N, LHI, ROWS)
    row = tl.where(of_kinds, kind % 2, query)
    token = tl.where(of_kinds, tl.minimum(LHI + kind // 2, N + LHI), (1 - LHI) * N)
    valid = tl.where(of_kinds, kind < kinds, query < count)
    return row, token, valid


@triton.jit
def features_of(key, first, place, N, LHI, WORDS):
    """The features of kinds and queries: row FEATURES."""
    query = draw_index(key, first + place[0], N, WORDS).to(tl.float32) / N
    return feature_columns(place[1], place[0].to(tl.float32), query, N, LHI, FEATURES)


@triton.jit
def store_positions(share, grad, tile, N, LHI, D: tl.constexpr, ROWS: tl.constexpr):
    """Store the share of the learned positions: a tile of queries has a single position, a tile of
    kinds two rows per position."""
    d = tl.arange(0, D)
    if in_kinds(tile, N, LHI, ROWS):
        PAIRS: tl.constexpr = ROWS // 2
        i = tile * PAIRS + tl.arange(0, PAIRS)[:, None]
        total = tl.sum(tl.reshape(grad, [PAIRS, 2, D]), 1)
        tl.store(share + (LHI + i) * D + d[None, :], total, mask=i < N + LHI)
    else:
        # Whether this program's previous tile was one of queries too.
        again = 1 - in_kinds(tile - tl.num_programs(0), N, LHI, ROWS).to(tl.int32)
        put(share + (1 - LHI) * N * D + d, tl.sum(grad, 0), again)
