"""Mamba2's bottom block backward, from the mixing to the embedding: over the kinds of tokens.

The gradients are summed over the examples by position and bit (`tally`), and the rest is computed
for kinds and queries (`tokens_back`): see `token_kinds.py`.

The convolution passes a token on to those up to TAPS - 1 ahead of it, so the slopes of a token are
summed by the bit of each token that they go back to: their tallies are (seed, token ahead, bit,
token, number).
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import stream_of
from ithbit.kernels.embedding import embedded
from ithbit.kernels.mamba2.tile import (
    TAPS,
    load_rows,
    of_seed,
    rms,
    row_number,
    share_of_program,
)
from ithbit.kernels.mamba2.token_rows import input_back, load_in, load_steps
from ithbit.kernels.tile import (
    SIZES,
    dot,
    load_vector,
    put_where,
    store_embedding,
)
from ithbit.kernels.token_kinds import (
    added,
    features_of,
    in_kinds,
    place_of,
    store_positions,
    store_sums,
)

COLUMNS = tl.constexpr(16)  # of the slopes that a program sums


@triton.jit
def _counts(token, c, TOP: tl.constexpr, K: tl.constexpr):
    """Which projected columns of a token have slopes: gates and Cs of the TOP block have them only
    at the last token."""
    live = (token < K.TOKENS) & (c < K.WIDTH)
    if TOP:
        live &= (token == K.TOKENS - 1) | ((c >= K.D) & (c < 2 * K.D + K.STATE))
    return live


@triton.jit
def _examples(at, token, count, K: tl.constexpr):
    """The place of a token of some examples."""
    example = at + tl.arange(0, K.TALLIED)
    return example, tl.full([K.TALLIED], 0, tl.int32) + token, example < count


@triton.jit
def _load_bits(bits, place, BEHIND: tl.constexpr, K: tl.constexpr):
    """The bits of the tokens BEHIND positions before these, 0 if there is none: row 1."""
    at = bits + row_number(place, K) - BEHIND
    return tl.load(at, mask=place[2] & (place[1] >= BEHIND), other=0.0)[:, None]


@triton.jit
def _tally_columns(bits, slopes, sums, token, part, count, TOP: tl.constexpr, K: tl.constexpr):
    """Sum COLUMNS of a token's slopes, by the bit of the token and of each one before it."""
    c = part * COLUMNS + tl.arange(0, COLUMNS)
    none = tl.full([8, COLUMNS], 0.0, tl.float32)
    by_bit = ()
    for _ in tl.static_range(TAPS):
        by_bit += ((none, none),)  # type: ignore[assignment]
    for at in range(0, K.CAPACITY, K.TALLIED):
        place = _examples(at, token, count, K)
        wanted = place[2][:, None] & _counts(token, c, TOP, K)[None, :]
        row = (row_number(place, K).to(tl.int64) * K.WIDTH)[:, None] + c[None, :]
        slope = tl.load(slopes + row, mask=wanted, other=0.0)
        so_far = by_bit
        by_bit = ()
        for ahead in tl.static_range(TAPS):
            bit = _load_bits(bits, place, ahead, K)
            by_bit += (added(so_far[ahead], slope, bit),)  # type: ignore[assignment]
    for ahead in tl.static_range(TAPS):
        to = sums + (2 * ahead * K.TOKENS + token) * K.WIDTH + part * COLUMNS
        store_sums(to, by_bit[ahead], c < K.WIDTH, K.WIDTH, K.TOKENS)


@triton.jit
def _tally_aside(
    bits, d_steps, grads, step_sums, grad_sums, token, count, TOP: tl.constexpr, K: tl.constexpr
):
    """Sum a token's gradients other than its slopes, by its bit."""
    s = tl.arange(0, K.STEPS)
    none = tl.full([8, K.STEPS], 0.0, tl.float64)
    d_step, none_of_grad = (none, none), tl.full([8, K.D], 0.0, tl.float32)
    grad = none_of_grad, none_of_grad
    for at in range(0, K.CAPACITY, K.TALLIED):
        place = _examples(at, token, count, K)
        row = (row_number(place, K).to(tl.int64) * (3 * K.HEADS))[:, None] + s[None, :]
        wanted = place[2][:, None] & (s < 3 * K.HEADS)[None, :]
        steps = tl.load(d_steps + row, mask=wanted, other=0.0)
        # The top block was computed only at the last token.
        has_grad = place[2] & (token == K.TOKENS - 1) if TOP else place[2]
        rows = load_rows(grads, (place[0], place[1], has_grad), K.D, K.D, K)
        bit = _load_bits(bits, place, 0, K)
        d_step = added(d_step, steps.to(tl.float64), bit)
        grad = added(grad, rows, bit)
    to = step_sums + token * (3 * K.HEADS)
    store_sums(to, d_step, s < 3 * K.HEADS, 3 * K.HEADS, K.TOKENS)
    store_sums(grad_sums + token * K.D, grad, tl.arange(0, K.D) < K.D, K.D, K.TOKENS)


@triton.jit(do_not_specialize=SIZES)
def tally(
    count, bits, slopes, d_steps, grads, slope_sums, step_sums, grad_sums,
    TOP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The gradients at one token of all examples, summed by bits: `slopes` by those of the token
    and of the tokens before it that the convolution brought here, the others by the token's own."""
    PARTS: tl.constexpr = (K.WIDTH + COLUMNS - 1) // COLUMNS + 1
    token, part, seed = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS, tl.program_id(1)
    KINDS: tl.constexpr = 2 * K.TOKENS
    bits = of_seed(bits, 1, K)
    if part < PARTS - 1:
        sums = slope_sums + seed * (TAPS * KINDS * K.WIDTH)
        _tally_columns(bits, of_seed(slopes, K.WIDTH, K), sums, token, part, count, TOP, K)
    else:
        d_steps, grads = of_seed(d_steps, 3 * K.HEADS, K), of_seed(grads, K.D, K)
        step_sums += seed * (KINDS * 3 * K.HEADS)
        grad_sums += seed * (KINDS * K.D)
        _tally_aside(bits, d_steps, grads, step_sums, grad_sums, token, count, TOP, K)


@triton.jit
def _load_taps(conv, ahead: tl.constexpr, c, K: tl.constexpr):
    """What the convolution multiplies columns by, for tokens that far `ahead`; it skips the gate,
    which goes to its own token unchanged."""
    inside = (c >= K.D) & (c < K.WIDTH)
    tap = tl.load(conv + (TAPS - 1 - ahead) * K.CONV_DIM + c - K.D, mask=inside, other=0.0)
    return tl.where(c < K.D, 1.0, tap) if ahead == 0 else tap


@triton.jit
def _columns_back(gained, weight, later, block, share, again, K: tl.constexpr):
    """Gradient of the `gained` rows through all projected columns, from the slopes of the tokens
    ahead (`later`), and the shares of the projection and of the convolution.

    The convolution's input is not needed: the shares of its taps are sums over the gradient of the
    projection, which is computed for each tap.
    """
    c, down = tl.arange(0, K.WIDE), tl.arange(0, K.WIDE)[:, None]
    conv, to = block + K.CONV, share + K.CONV
    inside = (c >= K.D) & (c < K.WIDTH)
    d_raw, d_weight = later[0] * 0.0, weight * 0.0
    d_taps = ()
    for ahead in tl.static_range(TAPS):
        d_product = dot(tl.trans(later[ahead]), gained)
        d_taps += (tl.sum(d_product * weight, 1),)  # type: ignore[assignment]
        d_weight += d_product * _load_taps(conv, ahead, down, K)
        d_raw += later[ahead] * _load_taps(conv, ahead, c[None, :], K)
    d_gained = dot(d_raw, weight)
    to_weight = share + K.IN + down * K.D + tl.arange(0, K.D)[None, :]
    put_where(down < K.WIDTH, to_weight, d_weight, again)
    for ahead in tl.static_range(TAPS):
        at = to + (TAPS - 1 - ahead) * K.CONV_DIM + c - K.D
        put_where(inside, at, d_taps[ahead], again)
    put_where(inside, share + K.CONV_BIAS + c - K.D, tl.sum(later[0], 0), again)
    return d_gained


@triton.jit(do_not_specialize=SIZES)
def tokens_back(
    values, keys, first, count, waves, slopes, d_steps, grads, slope_sums, step_sums, grad_sums,
    partials, PROGRAMS, PARAMETERS, AT, TOP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Shares of the embedding and of the bottom block up to its mixing: tiles of what `tally` left,
    two rows per position, then tiles of queries, one row per example."""
    seed = tl.program_id(1)
    values += seed * PARAMETERS
    block = values + AT
    share = share_of_program(partials, PROGRAMS, PARAMETERS)
    key, start = stream_of(keys, first, seed)
    KINDS: tl.constexpr = 2 * K.TOKENS
    for turn in tl.range(0, K.KIND_TURNS, num_stages=1, disable_licm=True):
        tl.debug_barrier()  # what the previous tile added is read again
        tile = tl.program_id(0) + turn * tl.num_programs(0)
        place = place_of(tile, count, K.N, K.LHI, K.KIND_ROWS)
        row, token, valid = place
        of_kinds = in_kinds(tile, K.N, K.LHI, K.KIND_ROWS)
        if of_kinds:
            d_raw = slope_sums + seed * (TAPS * KINDS * K.WIDTH)
            d_step = step_sums + seed * (KINDS * 3 * K.HEADS)
            d_out = grad_sums + seed * (KINDS * K.D)
        else:
            d_raw, d_step = of_seed(slopes, K.WIDTH, K), of_seed(d_steps, 3 * K.HEADS, K)
            d_out = of_seed(grads, K.D, K)
        LAG = tl.where(of_kinds, KINDS * K.WIDTH, 0)
        # All loads before any store: no load is moved ahead of a store.
        c = tl.arange(0, K.WIDE)[None, :]
        later = ()
        for ahead in tl.static_range(TAPS):
            wanted = valid[:, None] & _counts((token + ahead)[:, None], c, TOP, K)
            at = (row_number(place, K) + ahead).to(tl.int64)[:, None] * K.WIDTH + c
            later += (  # type: ignore[assignment]
                tl.load(d_raw + ahead * LAG + at, mask=wanted, other=0.0),
            )
        steps = load_steps(d_step, place, K)
        has_grad = valid & (token == K.TOKENS - 1) if TOP else valid
        grad = load_rows(d_out, (row, token, has_grad), K.D, K.D, K)
        weight, gain = load_in(block, K), load_vector(block, K.D)
        features = features_of(key, start, place, K.N, K.LHI, K.WORDS)
        ENCODING: tl.constexpr = K.ENCODING
        x = embedded(features, values, K.POSITIONS, 0, waves, token, K.D, ENCODING, False)
        normal, inverse = rms(x, K.D)
        gained = normal * gain
        d_gained = _columns_back(gained, weight, later, block, share + AT, turn, K)
        grad += input_back(
            d_gained, gained, normal, inverse, gain, steps, block, share + AT, turn, K
        )  # fmt: skip
        d_map = dot(tl.trans(features), grad)
        store_embedding(share, d_map, K.POSITIONS, 0, K.D, ENCODING, False, turn)
        if ENCODING == "learned":
            store_positions(share + K.POSITIONS, grad, tile, K.N, K.LHI, K.D, K.KIND_ROWS)
