"""Mamba2's state-space sum on one tile, in the dual form, and its gradients.

Rows, letters and the token-by-token matrices as in `mamba2_tile.py` and `models/mamba2.py`: y_t is
the sum over s <= t of exp(total_t - total_s) (C_t . B_s) dt_s x_s, with sums taken in double. Main
and side rows make four blocks of pairs, of which RHI lacks one: its bits see no query.
"""

import triton
import triton.language as tl

from ithbit.kernels.mamba2_tile import SIDE, SLOTS, is_last, row_number
from ithbit.kernels.tile import dot


@triton.jit
def load_steps(steps, block, h, place, K: tl.constexpr):
    """dt of head h, 0 where not valid, and its slope by what the softplus is taken of."""
    at = steps + row_number(place, K) * K.HEADS + h
    z = tl.load(at, mask=place[2], other=0.0) + tl.load(block + K.DT_BIAS + h)
    small = tl.exp(-tl.abs(z))
    whole = 1.0 + small
    # log(1 + small), exact for a small `small` too.
    rest = tl.where(whole == 1.0, 1.0, whole - 1.0)
    log = tl.where(whole == 1.0, small, tl.log(whole) * (small / rest))
    dt = tl.maximum(z, 0.0) + log
    return tl.where(place[2], dt, 0.0), tl.where(z >= 0, 1.0, small) / whole


@triton.jit
def split(total):
    """A double as the sum of two fp32: a difference of two such is as exact as itself."""
    high = total.to(tl.float32)
    return high, (total - high.to(tl.float64)).to(tl.float32)


@triton.jit
def totals(main_dt, side_dt, a, K: tl.constexpr):
    """Sums of dt A up to each token, from 0 at the first token of LHI: main rows and side rows."""
    steps = tl.reshape(main_dt.to(tl.float64) * a, [K.GROUP, K.SPAN])
    main = split(tl.reshape(tl.cumsum(steps, 1), [K.ROWS]))
    s, g = tl.arange(0, SIDE)[:, None], tl.arange(0, K.GROUP)[None, :]
    whole = tl.sum(tl.where(s % SLOTS == g, tl.sum(steps, 1)[None, :], 0.0), 1)
    last = is_last(K)
    return main, split(tl.where(last, whole + side_dt.to(tl.float64) * a, 0.0))


@triton.jit
def decay(total_t, total_s, seen):
    """exp(total_t - total_s) where token t sees s, else 0; masked first, as it may overflow."""
    high = total_t[0][:, None] - total_s[0][None, :]
    low = total_t[1][:, None] - total_s[1][None, :]
    return tl.exp(tl.where(seen, high + low, float("-inf")))


@triton.jit
def main_sees_main(K: tl.constexpr):
    t, s = tl.arange(0, K.ROWS)[:, None], tl.arange(0, K.ROWS)[None, :]
    return (s <= t) & (t // K.SPAN == s // K.SPAN)


@triton.jit
def main_sees_side(K: tl.constexpr):
    """LHI alone: bits see their query."""
    return tl.arange(0, K.ROWS)[:, None] // K.SPAN == tl.arange(0, SIDE)[None, :]


@triton.jit
def side_sees_main(K: tl.constexpr):
    t, s = tl.arange(0, SIDE)[:, None], tl.arange(0, K.ROWS)[None, :]
    return is_last(K)[:, None] & (t % SLOTS == s // K.SPAN)


@triton.jit
def side_sees_side(K: tl.constexpr):
    """A token sees itself, and in LHI the end its query."""
    t, s = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    return ((t == s) | (t == s + SLOTS)) if K.LHI else t == s


@triton.jit
def head_columns(h, K: tl.constexpr):
    """1 in the columns of head h, else 0: 1 D."""
    return tl.where(tl.arange(0, K.D)[None, :] // (K.D // K.HEADS) == h, 1.0, 0.0)


@triton.jit
def mix(
    block, steps, main_at, side_at, main, side, ALL: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """The state-space sum at main rows (if ALL; else 0) and side rows, from x, B, C of both."""
    main_x, main_b, main_c = main
    side_x, side_b, side_c = side
    side_main, side_side = dot(side_c, tl.trans(main_b)), dot(side_c, tl.trans(side_b))
    main_y, side_y = tl.full([K.ROWS, K.D], 0, tl.float32), tl.full([SIDE, K.D], 0, tl.float32)
    if ALL:
        main_main = dot(main_c, tl.trans(main_b))
        if K.LHI:
            main_side = dot(main_c, tl.trans(side_b))
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        main_dt, _ = load_steps(steps, block, h, main_at, K)
        side_dt, _ = load_steps(steps, block, h, side_at, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        main_total, side_total = totals(main_dt, side_dt, a, K)
        columns = head_columns(h, K)
        main_v, side_v = main_x * main_dt[:, None] * columns, side_x * side_dt[:, None] * columns
        side_y += dot(side_main * decay(side_total, main_total, side_sees_main(K)), main_v)
        side_y += dot(side_side * decay(side_total, side_total, side_sees_side(K)), side_v)
        if ALL:
            main_y += dot(main_main * decay(main_total, main_total, main_sees_main(K)), main_v)
            if K.LHI:
                seen = decay(main_total, side_total, main_sees_side(K))
                main_y += dot(main_side * seen, side_v)
    return main_y, side_y


@triton.jit
def mix_back(
    block, steps, main_at, side_at, main, side, main_dy, side_dy, ALL: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """Gradients of main and side x, B, C, and of what dt's softplus is taken of with its shares.

    The last two are row STEPS: column h the gradient of head h's step before the softplus, column
    HEADS + h that of its a_log. Without ALL the main rows' outputs went unused.
    """
    main_x, main_b, main_c = main
    side_x, side_b, side_c = side
    side_main, side_side = dot(side_c, tl.trans(main_b)), dot(side_c, tl.trans(side_b))
    main_dx, side_dx = tl.full([K.ROWS, K.D], 0, tl.float32), tl.full([SIDE, K.D], 0, tl.float32)
    main_ds, side_ds = tl.full([K.ROWS, K.STEPS], 0, tl.float32), tl.full([SIDE, K.STEPS], 0, tl.float32)
    d_side_main = tl.full([SIDE, K.ROWS], 0, tl.float32)
    d_side_side = tl.full([SIDE, SIDE], 0, tl.float32)
    if ALL:
        main_main = dot(main_c, tl.trans(main_b))
        d_main_main = tl.full([K.ROWS, K.ROWS], 0, tl.float32)
        if K.LHI:
            main_side = dot(main_c, tl.trans(side_b))
            d_main_side = tl.full([K.ROWS, SIDE], 0, tl.float32)
    column = tl.arange(0, K.STEPS)[None, :]
    s = tl.arange(0, SIDE)
    own = s[:, None] == s[None, :]
    last = is_last(K)
    slot_of_main = (tl.arange(0, K.ROWS)[:, None] // K.SPAN == s[None, :] % SLOTS) & last[None, :]
    HEADS: tl.constexpr = K.HEADS
    for h in tl.static_range(HEADS):
        main_dt, main_slope = load_steps(steps, block, h, main_at, K)
        side_dt, side_slope = load_steps(steps, block, h, side_at, K)
        a = -tl.exp(tl.load(block + K.A_LOG + h))
        main_total, side_total = totals(main_dt, side_dt, a, K)
        columns = head_columns(h, K)
        main_v, side_v = main_x * main_dt[:, None] * columns, side_x * side_dt[:, None] * columns
        # For each pair of row kinds: the gradient of the weights, times the decay that of the
        # scores; times the scores that of the exponents, whose sums are those of the totals.
        seen = decay(side_total, main_total, side_sees_main(K))
        d_weight = dot(side_dy, tl.trans(main_v)) * seen
        main_dv = dot(tl.trans(side_main * seen), side_dy)
        d_side_main += d_weight
        d_weight *= side_main
        main_d = -tl.sum(d_weight, 0)
        side_d = tl.sum(d_weight, 1)
        seen = decay(side_total, side_total, side_sees_side(K))
        d_weight = dot(side_dy, tl.trans(side_v)) * seen
        side_dv = dot(tl.trans(side_side * seen), side_dy)
        d_side_side += d_weight
        # A token's weight for itself has exponent 0, whatever its total.
        side_d += tl.sum(tl.where(own, 0.0, d_weight * side_side), 1)
        if ALL:
            seen = decay(main_total, main_total, main_sees_main(K))
            d_weight = dot(main_dy, tl.trans(main_v)) * seen
            main_dv += dot(tl.trans(main_main * seen), main_dy)
            d_main_main += d_weight
            d_weight *= main_main
            main_d += tl.sum(d_weight, 1) - tl.sum(d_weight, 0)
            if K.LHI:
                seen = decay(main_total, side_total, main_sees_side(K))
                d_weight = dot(main_dy, tl.trans(side_v)) * seen
                side_dv += dot(tl.trans(main_side * seen), main_dy)
                d_main_side += d_weight
                main_d += tl.sum(d_weight * main_side, 1)
        # A step is in the totals of its own and all later tokens of its sequence.
        main_d = tl.reshape(main_d.to(tl.float64), [K.GROUP, K.SPAN])
        main_d = tl.reshape(tl.cumsum(main_d, 1, reverse=True).to(tl.float32), [K.ROWS])
        main_d += tl.sum(tl.where(slot_of_main, side_d[None, :], 0.0), 1)
        main_d = tl.where(main_at[2], main_d, 0.0)
        side_d = tl.where(last & side_at[2], side_d, 0.0)
        main_dv *= columns
        side_dv *= columns
        main_dx += main_dv * main_dt[:, None]
        side_dx += side_dv * side_dt[:, None]
        main_z = (main_d * a + tl.sum(main_dv * main_x, 1)) * main_slope
        side_z = (side_d * a + tl.sum(side_dv * side_x, 1)) * side_slope
        main_z = tl.where(main_at[2], main_z, 0.0)
        main_ds = tl.where(column == h, main_z[:, None], main_ds)
        side_ds = tl.where(column == h, side_z[:, None], side_ds)
        main_ds = tl.where(column == K.HEADS + h, (main_d * main_dt * a)[:, None], main_ds)
        side_ds = tl.where(column == K.HEADS + h, (side_d * side_dt * a)[:, None], side_ds)
    main_db = dot(tl.trans(d_side_main), side_c)
    side_db = dot(tl.trans(d_side_side), side_c)
    side_dc = dot(d_side_main, main_b) + dot(d_side_side, side_b)
    main_dc = tl.full([K.ROWS, K.STATE], 0, tl.float32)
    if ALL:
        main_db += dot(tl.trans(d_main_main), main_c)
        main_dc += dot(d_main_main, main_b)
        if K.LHI:
            side_db += dot(tl.trans(d_main_side), main_c)
            main_dc += dot(d_main_side, side_b)
    return (main_dx, main_db, main_dc), (side_dx, side_db, side_dc), main_ds, side_ds
