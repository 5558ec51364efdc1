"""The training step of Mamba2: a launch a layer forward, one for the last layer both ways with the
loss, a launch a layer backward.

A program takes whole sequences through a whole block. The convolution shifts rows, which registers
cannot, so projections go through memory that the program itself reads back after a barrier; the
gradients come the other way likewise. The backward pass reads the projections and the mixed rows
that the forward pass left, and computes the token-by-token matrices again. Exact savings: the last
layer asks for the last token alone, and bits are padded to a power of two without the other tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from ithbit.kernels.mamba2_mix import mix, mix_back
from ithbit.kernels.mamba2_tile import (
    Shape,
    add,
    add_out,
    add_project,
    add_vector,
    convolve,
    enter,
    features,
    gate_norm,
    is_last,
    load_rows,
    load_skip,
    main_place,
    out,
    out_back,
    project,
    project_back,
    rms,
    rms_back,
    side_place,
    sigmoid,
    store_rows,
    store_slopes,
)
from ithbit.kernels.plan import Plan
from ithbit.kernels.tile import (
    cross_entropy,
    dot,
    draw_bit,
    draw_index,
    load_embedding,
    load_vector,
    store_embedding,
)

WARPS = 4  # up to 64 bits; twice as many above
MAX_PROGRAMS = 128  # shares of a run's gradient; a program takes several tiles to keep to it


@triton.jit
def _of_seed(pointer, COLUMNS: tl.constexpr, K: tl.constexpr):
    """The part of a buffer (seed, example, token, COLUMNS) that is this program's seed's."""
    return pointer + tl.program_id(1).to(tl.int64) * (K.CAPACITY * K.TOKENS * COLUMNS)


@triton.jit
def _convolved(raw, block, place, K: tl.constexpr):
    """x, B and C before the silu."""
    x = convolve(raw, block, place, 0, K.D, K)
    b = convolve(raw, block, place, K.D, K.STATE, K)
    return x, b, convolve(raw, block, place, K.D + K.STATE, K.STATE, K)


@triton.jit
def _silu(before):
    x, b, c = before
    return x * sigmoid(x), b * sigmoid(b), c * sigmoid(c)


@triton.jit
def _block(
    values, keys, first, count, stream, raw, steps, mixed, after, AT, EMBED: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """A block forward: `stream` to `after`, leaving `raw`, `steps` and `mixed`."""
    seed = tl.program_id(1)
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    start = tl.load(first + seed)
    values += seed * K.PARAMETERS
    block = values + AT
    stream, after = _of_seed(stream, K.D, K), _of_seed(after, K.D, K)
    raw, steps = _of_seed(raw, K.WIDTH, K), _of_seed(steps, K.HEADS, K)
    mixed = _of_seed(mixed, K.D, K)
    for turn in tl.range(0, K.TILES, num_stages=1):
        tile = tl.program_id(0) * K.TILES + turn
        main, side = main_place(tile, count, K), side_place(tile, count, K)
        main_x = enter(key, start, values, stream, main, EMBED, K)
        side_x = enter(key, start, values, stream, side, EMBED, K)
        project(main_x, block, raw, steps, main, K)
        project(side_x, block, raw, steps, side, K)
        tl.debug_barrier()
        main_in = _silu(_convolved(raw, block, main, K))
        side_in = _silu(_convolved(raw, block, side, K))
        main_y, side_y = mix(block, steps, main, side, main_in, side_in, True, K)
        store_rows(mixed, main, main_y, K.D, K.D, K)
        store_rows(mixed, side, side_y, K.D, K.D, K)
        gate = load_rows(raw, main, K.D, K.WIDTH, K)
        _, normal, _ = gate_norm(main_y, main_in[0], gate, block, K)
        store_rows(after, main, out(main_x, normal, block, K), K.D, K.D, K)
        gate = load_rows(raw, side, K.D, K.WIDTH, K)
        _, normal, _ = gate_norm(side_y, side_in[0], gate, block, K)
        store_rows(after, side, out(side_x, normal, block, K), K.D, K.D, K)


@triton.jit
def _input_back(
    key, start, values, share, block, at, grads, main, side, main_x, side_x, main_d, side_d,
    main_ds, side_ds, raw, slopes, again, EMBED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The rest of a block's way back, from `slopes` to the gradient of its input."""
    main_d, main_shares = project_back(main_x, main_d, main_ds, raw, slopes, block, main, K)
    side_d, side_shares = project_back(side_x, side_d, side_ds, raw, slopes, block, side, K)
    add_project(share + at, main_shares, side_shares, again, K)
    if EMBED:
        grad = dot(tl.trans(features(key, start, main, K)), main_d)
        grad += dot(tl.trans(features(key, start, side, K)), side_d)
        if K.TILES > 1:
            before = load_embedding(share, K.POSITIONS, 0, K.D, True, False)
            grad += tl.where(again, before, 0.0)
        store_embedding(share, grad, K.POSITIONS, 0, K.D, True, False)
    else:
        store_rows(grads, main, main_d, K.D, K.D, K)
        store_rows(grads, side, side_d, K.D, K.D, K)


@triton.jit
def _last_block(
    values, keys, first, count, stream, raw, steps, slopes, grads, results, partials, AT,
    EMBED: tl.constexpr, TRAIN: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The last block at the last token, and the logits to `results`; or, to train, the losses
    there, the shares of the gradients from the head down to this block, and its input's."""
    seed = tl.program_id(1)
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    start = tl.load(first + seed)
    values += seed * K.PARAMETERS
    block = values + AT
    stream, grads = _of_seed(stream, K.D, K), _of_seed(grads, K.D, K)
    raw, steps = _of_seed(raw, K.WIDTH, K), _of_seed(steps, K.HEADS, K)
    slopes = _of_seed(slopes, K.WIDTH, K)
    program = seed.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    share = partials + program * K.PARAMETERS
    for turn in tl.range(0, K.TILES, num_stages=1):
        tile = tl.program_id(0) * K.TILES + turn
        again = turn > 0
        main, side = main_place(tile, count, K), side_place(tile, count, K)
        main_x = enter(key, start, values, stream, main, EMBED, K)
        side_x = enter(key, start, values, stream, side, EMBED, K)
        tl.debug_barrier()
        project(main_x, block, raw, steps, main, K)
        project(side_x, block, raw, steps, side, K)
        tl.debug_barrier()
        main_before, side_before = _convolved(raw, block, main, K), _convolved(raw, block, side, K)
        main_in, side_in = _silu(main_before), _silu(side_before)
        _, y = mix(block, steps, main, side, main_in, side_in, False, K)
        gate = load_rows(raw, side, K.D, K.WIDTH, K)
        y, gated, gated_inverse = gate_norm(y, side_in[0], gate, block, K)
        normal, inverse = rms(out(side_x, gated, block, K), K.D)
        gain, head = load_vector(values + K.LEAVE, K.D), load_vector(values + K.HEAD, K.D)
        logit = tl.sum(normal * gain * head, 1) + tl.load(values + K.HEAD + K.D)
        example, _, valid = side
        valid = valid & is_last(K)
        result = results + seed * K.CAPACITY + example
        if TRAIN:
            asked = draw_index(key, start + example, K.N, K.WORDS)
            answer = draw_bit(key, start + example, asked, K.WORDS)
            loss, slope = cross_entropy(logit, answer)
            tl.store(result, loss, mask=valid)
            slope = tl.where(valid, slope / count, 0.0)[:, None]
            add_vector(share + K.LEAVE, tl.sum(slope * head * normal, 0), again, K.D)
            add_vector(share + K.HEAD, tl.sum(slope * gain * normal, 0), again, K.D)
            bias = share + K.HEAD + K.D + tl.arange(0, 1)
            add(bias, tl.sum(slope, 0), tl.arange(0, 1) == 0, again)
            side_d = rms_back(slope * head * gain, normal, inverse, K.D)
            d_y, d_gate, shares = out_back(
                side_d, y, side_in[0], gate, gated, gated_inverse, block, K
            )
            add_out(share + AT, shares[0], shares[1], shares[2], again, K)
            none = tl.full([K.ROWS, K.D], 0, tl.float32)
            d_main, d_side, main_ds, side_ds = mix_back(
                block, steps, main, side, main_in, side_in, none, d_y, False, K
            )
            d_side = (d_side[0] + d_y * load_skip(block, K), d_side[1], d_side[2])
            store_slopes(slopes, main, none, main_before, d_main, K)
            store_slopes(slopes, side, d_gate, side_before, d_side, K)
            tl.debug_barrier()
            _input_back(
                key, start, values, share, block, AT, grads, main, side, main_x, side_x,
                none, side_d, main_ds, side_ds, raw, slopes, again, EMBED, K,
            )  # fmt: skip
        else:
            tl.store(result, logit, mask=valid)


@triton.jit
def _block_back(
    values, keys, first, count, stream, raw, steps, mixed, slopes, grads, partials, AT,
    EMBED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A block backward: `grads` from that of its output to that of its input, and the shares."""
    seed = tl.program_id(1)
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    start = tl.load(first + seed)
    values += seed * K.PARAMETERS
    block = values + AT
    stream, grads, mixed = _of_seed(stream, K.D, K), _of_seed(grads, K.D, K), _of_seed(mixed, K.D, K)
    raw, steps = _of_seed(raw, K.WIDTH, K), _of_seed(steps, K.HEADS, K)
    slopes = _of_seed(slopes, K.WIDTH, K)
    program = seed.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    share = partials + program * K.PARAMETERS
    for turn in tl.range(0, K.TILES, num_stages=1):
        tile = tl.program_id(0) * K.TILES + turn
        again = turn > 0
        main, side = main_place(tile, count, K), side_place(tile, count, K)
        main_before, side_before = _convolved(raw, block, main, K), _convolved(raw, block, side, K)
        main_in, side_in = _silu(main_before), _silu(side_before)
        main_d, side_d = load_rows(grads, main, K.D, K.D, K), load_rows(grads, side, K.D, K.D, K)
        y, gate = load_rows(mixed, main, K.D, K.D, K), load_rows(raw, main, K.D, K.WIDTH, K)
        y, normal, inverse = gate_norm(y, main_in[0], gate, block, K)
        main_dy, main_gate, main_shares = out_back(
            main_d, y, main_in[0], gate, normal, inverse, block, K
        )
        y, gate = load_rows(mixed, side, K.D, K.D, K), load_rows(raw, side, K.D, K.WIDTH, K)
        y, normal, inverse = gate_norm(y, side_in[0], gate, block, K)
        side_dy, side_gate, side_shares = out_back(
            side_d, y, side_in[0], gate, normal, inverse, block, K
        )
        add_out(
            share + AT, main_shares[0] + side_shares[0], main_shares[1] + side_shares[1],
            main_shares[2] + side_shares[2], again, K,
        )  # fmt: skip
        d_main, d_side, main_ds, side_ds = mix_back(
            block, steps, main, side, main_in, side_in, main_dy, side_dy, True, K
        )
        d_main = (d_main[0] + main_dy * load_skip(block, K), d_main[1], d_main[2])
        d_side = (d_side[0] + side_dy * load_skip(block, K), d_side[1], d_side[2])
        store_slopes(slopes, main, main_gate, main_before, d_main, K)
        store_slopes(slopes, side, side_gate, side_before, d_side, K)
        tl.debug_barrier()
        main_x = enter(key, start, values, stream, main, EMBED, K)
        side_x = enter(key, start, values, stream, side, EMBED, K)
        _input_back(
            key, start, values, share, block, AT, grads, main, side, main_x, side_x,
            main_d, side_d, main_ds, side_ds, raw, slopes, again, EMBED, K,
        )  # fmt: skip


def shape(plan: Plan) -> Shape:
    """What the kernels of a plan's model are compiled for."""
    model, at, start = plan.model, plan.offsets, plan.block(0)
    span = max(8, triton.next_power_of_2(model.n_bits))
    rows = max(64, span)
    conv = model.d_model + 2 * model.d_state
    return Shape(
        N=model.n_bits,
        LHI=plan.lhi,
        WORDS=plan.n_words,
        TOKENS=plan.n_tokens,
        FIRST=1 if plan.lhi else 0,
        SPAN=span,
        ROWS=rows,
        GROUP=rows // span,
        TILES=triton.cdiv(triton.cdiv(plan.capacity, rows // span), MAX_PROGRAMS),
        D=model.d_model,
        STATE=model.d_state,
        HEADS=model.n_heads,
        CONV_DIM=conv,
        WIDTH=model.d_model + conv,
        WIDE=triton.next_power_of_2(model.d_model + conv),
        STEPS=max(16, triton.next_power_of_2(2 * model.n_heads)),
        PARAMETERS=plan.n_parameters,
        CAPACITY=plan.capacity,
        POSITIONS=at["positions.polynomial"],
        LEAVE=at["leave.norm.weight"],
        HEAD=at["head.weight"],
        IN=at["blocks.0.in.weight"] - start,
        CONV=at["blocks.0.conv.weight"] - start,
        CONV_BIAS=at["blocks.0.conv.bias"] - start,
        DT_BIAS=at["blocks.0.dt_bias"] - start,
        A_LOG=at["blocks.0.a_log"] - start,
        SKIP=at["blocks.0.skip"] - start,
        GATE_NORM=at["blocks.0.gate_norm.weight"] - start,
        OUT=at["blocks.0.out.weight"] - start,
    )


def programs(plan: Plan) -> int:
    """Programs a run of each kernel here."""
    of = shape(plan)
    return triton.cdiv(plan.capacity, of.GROUP * of.TILES)


def _rows(plan: Plan, name: str, columns: int) -> Tensor:
    """Working memory for `columns` numbers of every token."""
    return plan.buffer(name, plan.capacity, plan.n_tokens, columns)


def _stream(plan: Plan, layer: int) -> Tensor:
    """The input of a layer; the first embeds its own, and is given another's memory unread."""
    return _rows(plan, f"stream {max(layer, 1)}", plan.model.d_model)


def _projected(plan: Plan, layer: int, of: Shape) -> tuple[Tensor, Tensor]:
    return _rows(plan, f"raw {layer}", of.WIDTH), _rows(plan, f"steps {layer}", of.HEADS)


def _up_to_last(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, of: Shape
) -> None:
    """Every block but the last."""
    for layer in range(plan.model.n_layers - 1):
        _block[(programs(plan), plan.n_seeds)](
            values, keys, first, count, _stream(plan, layer), *_projected(plan, layer, of),
            _rows(plan, f"mixed {layer}", of.D), _stream(plan, layer + 1), plan.block(layer),
            EMBED=layer == 0, K=of, num_warps=_warps(of),
        )  # fmt: skip


def _finish(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, results: Tensor,
    partials: Tensor, train: bool, of: Shape,
) -> None:  # fmt: skip
    """The last block and the head."""
    layer = plan.model.n_layers - 1
    _last_block[(programs(plan), plan.n_seeds)](
        values, keys, first, count, _stream(plan, layer), *_projected(plan, layer, of),
        _rows(plan, "slopes", of.WIDTH), _rows(plan, "gradients", of.D), results, partials,
        plan.block(layer), EMBED=layer == 0, TRAIN=train, K=of, num_warps=_warps(of),
    )  # fmt: skip


def _warps(of: Shape) -> int:
    return WARPS if of.ROWS <= 64 else 2 * WARPS


def backward(
    plan: Plan,
    values: Tensor,
    keys: Tensor,
    first: Tensor,
    count: int,
    losses: Tensor,
    partials: Tensor,
) -> None:
    of = shape(plan)
    _up_to_last(plan, values, keys, first, count, of)
    _finish(plan, values, keys, first, count, losses, partials, True, of)
    for layer in reversed(range(plan.model.n_layers - 1)):
        _block_back[(programs(plan), plan.n_seeds)](
            values, keys, first, count, _stream(plan, layer), *_projected(plan, layer, of),
            _rows(plan, f"mixed {layer}", of.D), _rows(plan, "slopes", of.WIDTH),
            _rows(plan, "gradients", of.D), partials, plan.block(layer),
            EMBED=layer == 0, K=of, num_warps=_warps(of),
        )  # fmt: skip


def forward(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, logits: Tensor
) -> None:
    of = shape(plan)
    _up_to_last(plan, values, keys, first, count, of)
    _finish(plan, values, keys, first, count, logits, values, False, of)
