"""The end of a step: gradients summed over programs in a fixed order, clipping and AdamW.

Every program of a family's kernels writes its share of the gradient, a partial sum, to its own row,
so that the order of the sum does not depend on which program ran first. Two launches: the norm of a
run's whole gradient is needed before any parameter changes.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import SIZES

BLOCK = 64  # parameters per program
ROWS = 64  # shares read at a time


@triton.jit(do_not_specialize=["count", "PARAMETERS"])
def sum_shares(
    partials, shares, grads, squares, losses, loss_sum, steps, first, count,
    PARAMETERS, CAPACITY,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, LOSSES: tl.constexpr,
):  # fmt: skip
    """Sum each parameter's shares; the first program of a run also counts the step and its loss."""
    block, seed = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < PARAMETERS
    row = tl.arange(0, ROWS)
    start = partials + seed.to(tl.int64) * PROGRAMS * PARAMETERS
    total = tl.zeros([BLOCK], tl.float32)
    most = tl.load(shares + block)
    for at in range(0, PROGRAMS, ROWS):
        if at < most:
            where = start + (at + row)[:, None] * PARAMETERS + column[None, :]
            live = ((at + row) < PROGRAMS)[:, None] & inside[None, :]
            total += tl.sum(tl.load(where, mask=live, other=0.0), 0)
    tl.store(grads + seed * PARAMETERS + column, total, mask=inside)
    tl.store(squares + seed * tl.num_programs(0) + block, tl.sum(total * total, 0))
    if block == 0:
        example = tl.arange(0, LOSSES)
        loss = tl.load(losses + seed * CAPACITY + example, mask=example < count, other=0.0)
        tl.store(loss_sum + seed, tl.load(loss_sum + seed) + tl.sum(loss.to(tl.float64), 0))
        tl.store(steps + seed, tl.load(steps + seed) + 1)
        tl.store(first + seed, tl.load(first + seed) + count)


@triton.jit(do_not_specialize=SIZES)
def adamw(
    values, mean, square, grads, squares, steps, rate,
    PARAMETERS, BLOCKS,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    EPS: tl.constexpr, DECAY: tl.constexpr, CLIP: tl.constexpr,
    BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One step of `torch.optim.AdamW` after `clip_grad_norm_`, for a block of a run's row."""
    block, seed = tl.program_id(0), tl.program_id(1)
    part = tl.arange(0, MAX_BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(squares + seed * BLOCKS + part, mask=part < BLOCKS, other=0.0), 0)
    )
    scale = tl.minimum(CLIP / (norm + 1e-6), 1.0)
    # Double precision for a run's few scalars, which are Python floats in torch.optim.
    step = tl.load(steps + seed).to(tl.float64)
    learning_rate = tl.load(rate + seed)
    step_size = (learning_rate / (1.0 - tl.exp(step * LOG_BETA1))).to(tl.float32)
    root = tl.sqrt(1.0 - tl.exp(step * LOG_BETA2)).to(tl.float32)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < PARAMETERS
    at = seed * PARAMETERS + column
    grad = tl.load(grads + at, mask=inside, other=0.0) * scale
    m = tl.load(mean + at, mask=inside, other=0.0)
    v = tl.load(square + at, mask=inside, other=0.0)
    value = tl.load(values + at, mask=inside, other=0.0)
    if DECAY != 0.0:
        value *= (1.0 - learning_rate * DECAY).to(tl.float32)
    m += (1.0 - BETA1) * (grad - m)
    v = v * BETA2 + grad * grad * (1.0 - BETA2)
    value -= step_size * (m / (tl.sqrt_rn(v) / root + EPS))
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(values + at, value, mask=inside)
