"""The training step of Mamba2: its launches, from the token features to the shares of the gradient.

Forward, a block is two launches: the work on each token separately (`token_rows.py`), with the
output of the block before, and the mixing of tokens (`mix.py`). The last mixing includes the loss
and its own backward pass; backward, a block is the same two launches. The convolution shifts rows,
which cannot be done in registers, so it sits between the two. Exact savings: the last block mixes
only into the last token (`last_block.py`), so its gates have gradients only there and its Cs only
in the last three; all other mixing goes through states, with token-by-token matrices of at most 16
tokens, which stay in registers and are recomputed in the backward pass; and the backward pass from
the first mixing to the embedding goes over the few kinds of tokens (`token_kinds.py`,
`first_block.py`).
"""

import triton
from torch import Tensor

from ithbit.kernels import embedding, token_kinds
from ithbit.kernels.mamba2 import first_block, last_block, mix, token_rows
from ithbit.kernels.mamba2.tile import TAPS, Shape
from ithbit.kernels.plan import Plan
from ithbit.kernels.tile import CHUNK, alone, chunks_of

_ROWS, ROW_WARPS = 64, 4  # of a tile of a launch on rows
_BACK_ROWS, BACK_WARPS = 32, 1  # the same, backward
_TALLIED, TALLY_WARPS = 64, 1  # examples of a tile of `tally`
_KIND_ROWS, KIND_WARPS = 16, 2  # of a tile of kinds of tokens, as few as a product takes
MIX_WARPS = 1  # per sequence: small products then need no barriers
FINISH_WARPS = 2  # of the last block's mixing with 64 rows of bits; twice as many with 128
# Registers per thread. A multiprocessor has four register files of 16384, and a warp uses one of
# them: 168 leave room for three warps in each, more than that for two. These kernels wait more than
# they issue. A mixing kernel gains more from the third warp, with which a stack of five runs fits
# at once, than the spills cost; kernels on rows spill more and do better with two.
MIX_REGISTERS, ROW_REGISTERS = 168, 255
_REGISTERS = 65536 // 32  # the most that all warps of a program can have together, per lane
# Most shares of a run's gradient; programs take several tiles if there are more.
MAX_PROGRAMS = 256
# The same for one-warp programs on rows: those of five runs fit on the machine at once.
MAX_BACK_PROGRAMS = 211
_MIN_ROWS = 64  # bits of a tile of the last block's mixing


def shape(plan: Plan) -> Shape:
    """What the kernels of a plan's model are compiled for."""
    model, at, start = plan.model, plan.offsets, plan.block(0)
    span = max(8, triton.next_power_of_2(model.n_bits))
    group = max(1, _MIN_ROWS // span)
    conv = model.d_model + 2 * model.d_state
    single, chunks = alone(plan.n_tokens), chunks_of(plan.n_tokens)
    back_tiles = triton.cdiv(plan.capacity * plan.n_tokens, _BACK_ROWS)
    kind_tiles, all_tiles = token_kinds.tiles(plan, _KIND_ROWS)
    return Shape(
        N=model.n_bits,
        LHI=int(plan.lhi),
        WORDS=plan.n_words,
        TOKENS=plan.n_tokens,
        FIRST=1 if plan.lhi else 0,
        TAIL=min(TAPS.value, plan.n_tokens),
        ALONE=single,
        CHUNKS=chunks,
        CHUNKS_WIDE=triton.next_power_of_2(chunks),
        STARTS=chunks + single,
        CAPACITY=plan.capacity,
        SPAN=span,
        GROUP=group,
        TILES=triton.cdiv(triton.cdiv(plan.capacity, group), MAX_PROGRAMS),
        ROWS=_ROWS,
        BACK_ROWS=_BACK_ROWS,
        BACK_TILES=triton.cdiv(back_tiles, MAX_BACK_PROGRAMS),
        TALLIED=_TALLIED,
        KIND_ROWS=_KIND_ROWS,
        KIND_TILES=kind_tiles,
        KIND_TURNS=triton.cdiv(all_tiles, MAX_PROGRAMS),
        D=model.d_model,
        STATE=model.d_state,
        HEADS=model.n_heads,
        CONV_DIM=conv,
        WIDTH=model.d_model + conv,
        WIDE=triton.next_power_of_2(model.d_model + conv),
        STEPS=triton.next_power_of_2(3 * model.n_heads),
        POSITIONS=embedding.offset(plan),
        ENCODING=model.positions,
        IN=at["blocks.0.in.weight"] - start,
        CONV=at["blocks.0.conv.weight"] - start,
        CONV_BIAS=at["blocks.0.conv.bias"] - start,
        DT_BIAS=at["blocks.0.dt_bias"] - start,
        A_LOG=at["blocks.0.a_log"] - start,
        SKIP=at["blocks.0.skip"] - start,
        GATE_NORM=at["blocks.0.gate_norm.weight"] - start,
        OUT=at["blocks.0.out.weight"] - start,
    )


def _grids(plan: Plan, of: Shape) -> tuple[int, int, int]:
    """Programs per run that store shares: of the last block's mixing, of a launch on rows, and of
    the one on kinds of tokens."""
    mixing = triton.cdiv(plan.capacity, of.GROUP * of.TILES)
    rows = triton.cdiv(plan.capacity * plan.n_tokens, of.BACK_ROWS * of.BACK_TILES)
    return mixing, rows, triton.cdiv(token_kinds.tiles(plan, of.KIND_ROWS)[1], of.KIND_TURNS)


def programs(plan: Plan) -> int:
    """Rows of shares per run; a kernel with fewer programs leaves the rest of its columns zero."""
    return max(_grids(plan, shape(plan)))


def shares(plan: Plan, name: str) -> int:
    """In how many of those rows a parameter has shares: as many as the kernel that stores them has
    programs."""
    mixing, rows, tokens = _grids(plan, shape(plan))
    last = f"blocks.{plan.model.n_layers - 1}."
    after_mixing = name.endswith((".gate_norm.weight", ".out.weight"))
    if name.startswith(("leave.", "head.")) or (after_mixing and name.startswith(last)):
        return mixing
    if name.startswith("blocks.0.") and not after_mixing:
        return tokens
    return rows if name.startswith("blocks.") else tokens


def _rows(plan: Plan, name: str, columns: int) -> Tensor:
    """Working memory for some numbers of every token."""
    return plan.buffer(name, plan.capacity, plan.n_tokens, columns)


def _stream(plan: Plan, layer: int) -> Tensor:
    """The input of a layer; the first, which has no layer before it, gets its own."""
    return _rows(plan, f"stream {max(layer, 0)}", plan.model.d_model)


def _raw(plan: Plan, layer: int, of: Shape) -> Tensor:
    return _rows(plan, f"raw {max(layer, 0)}", of.WIDTH)


def _steps(plan: Plan, layer: int, of: Shape) -> Tensor:
    return _rows(plan, f"steps {layer}", 2 * of.HEADS)


def _mixed(plan: Plan, layer: int, of: Shape) -> Tensor:
    return _rows(plan, f"mixed {max(layer, 0)}", of.D)


def _inputs(plan: Plan, layer: int, of: Shape) -> Tensor:
    return _rows(plan, f"inputs {layer}", 2 * of.CONV_DIM)


def _sums(plan: Plan, layer: int, of: Shape) -> Tensor:
    return plan.buffer(f"sums {layer}", plan.capacity, of.HEADS, 2, of.CHUNKS * CHUNK.value)


def _states(plan: Plan, layer: int, of: Shape) -> Tensor:
    return plan.buffer(f"states {layer}", plan.capacity, of.STARTS, of.STATE, of.D)


def _slopes(plan: Plan, layer: int, of: Shape) -> Tensor:
    # Two, used in turn: while a layer's are read, those of the gate below are written.
    return _rows(plan, f"slopes {layer % 2}", of.WIDTH)


def _warps(warps: int, of: Shape) -> int:
    """Warps of a mixing launch, from the number for the fewest rows."""
    return warps * (of.GROUP * of.SPAN // _MIN_ROWS)


def _to_last(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, cuts: int, of: Shape
) -> None:
    """Forward up to the last block's projections."""
    for layer in range(plan.model.n_layers):
        if layer > 0:
            mix.mix[(plan.capacity, plan.n_seeds)](
                values, count, _raw(plan, layer - 1, of), _steps(plan, layer - 1, of),
                _inputs(plan, layer - 1, of), _sums(plan, layer - 1, of),
                _states(plan, layer - 1, of), _mixed(plan, layer - 1, of),
                plan.n_parameters, plan.block(layer - 1),
                K=of, num_warps=MIX_WARPS, num_stages=1, maxnreg=MIX_REGISTERS,
            )  # fmt: skip
        token_rows.project[(triton.cdiv(plan.capacity * plan.n_tokens, of.ROWS), plan.n_seeds)](
            values, keys, first, count, embedding.waves(plan), _rows(plan, "bits", 1),
            _stream(plan, layer - 1), _raw(plan, layer - 1, of), _mixed(plan, layer - 1, of),
            _stream(plan, layer), _raw(plan, layer, of), _steps(plan, layer, of),
            plan.n_parameters, plan.block(max(layer - 1, 0)), plan.block(layer),
            BOTTOM=layer == 0, CUTS=cuts if layer == 0 else 0, K=of, num_warps=ROW_WARPS,
            num_stages=1,
        )  # fmt: skip


def _finish(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, results: Tensor,
    partials: Tensor, train: bool, of: Shape,
) -> None:  # fmt: skip
    """The last block's mixing, the head, and in training the backward pass through both."""
    layer = plan.model.n_layers - 1
    last_block.finish[(_grids(plan, of)[0], plan.n_seeds)](
        values, keys, first, count, _stream(plan, layer),
        _raw(plan, layer, of), _steps(plan, layer, of), _slopes(plan, layer, of),
        _rows(plan, "d_steps", 3 * of.HEADS), _rows(plan, "gradients", of.D), results, partials,
        programs(plan), plan.n_parameters, plan.block(layer),
        TRAIN=train, CUTS=plan.cuts if train else 0, K=of, num_warps=_warps(FINISH_WARPS, of),
        num_stages=1, maxnreg=min(MIX_REGISTERS, _REGISTERS // _warps(FINISH_WARPS, of)),
    )  # fmt: skip


def _tokens_back(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, partials: Tensor, of: Shape
) -> None:  # fmt: skip
    """The backward pass from the bottom block's mixing to the embedding."""
    slopes, d_steps = _slopes(plan, 0, of), _rows(plan, "d_steps", 3 * of.HEADS)
    grads = _rows(plan, "gradients", of.D)
    sums = (
        plan.buffer("slope sums", TAPS.value, 2, of.TOKENS, of.WIDTH),
        plan.buffer("step sums", 2, of.TOKENS, 3 * of.HEADS),
        plan.buffer("gradient sums", 2, of.TOKENS, of.D),
    )
    top = plan.model.n_layers == 1
    parts = triton.cdiv(of.WIDTH, first_block.COLUMNS.value) + 1
    first_block.tally[(of.TOKENS * parts, plan.n_seeds)](
        count, _rows(plan, "bits", 1), slopes, d_steps, grads, *sums,
        TOP=top, K=of, num_warps=TALLY_WARPS, num_stages=1,
    )  # fmt: skip
    first_block.tokens_back[(_grids(plan, of)[2], plan.n_seeds)](
        values, keys, first, count, embedding.waves(plan), slopes, d_steps, grads, *sums,
        partials, programs(plan), plan.n_parameters, plan.block(0),
        TOP=top, K=of, num_warps=KIND_WARPS, num_stages=1, maxnreg=ROW_REGISTERS,
    )  # fmt: skip


def backward(
    plan: Plan,
    values: Tensor,
    keys: Tensor,
    first: Tensor,
    count: int,
    losses: Tensor,
    partials: Tensor,
) -> None:
    """Losses and shares of the gradient of a step."""
    of = shape(plan)
    rows = _grids(plan, of)[1]
    _to_last(plan, values, keys, first, count, plan.cuts, of)
    _finish(plan, values, keys, first, count, losses, partials, True, of)
    for layer in reversed(range(1, plan.model.n_layers)):
        token_rows.project_back[(rows, plan.n_seeds)](
            values, count, _stream(plan, layer), _raw(plan, layer, of), _slopes(plan, layer, of),
            _rows(plan, "d_steps", 3 * of.HEADS), _rows(plan, "gradients", of.D),
            _raw(plan, layer - 1, of), _mixed(plan, layer - 1, of), _slopes(plan, layer - 1, of),
            _rows(plan, "d_mixed", of.D), partials, programs(plan), plan.n_parameters,
            plan.block(layer - 1), plan.block(layer), TOP=layer == plan.model.n_layers - 1, K=of,
            num_warps=BACK_WARPS, num_stages=1, maxnreg=ROW_REGISTERS,
        )  # fmt: skip
        mix.mix_back[(plan.capacity, plan.n_seeds)](
            values, count, _steps(plan, layer - 1, of), _inputs(plan, layer - 1, of),
            _sums(plan, layer - 1, of), _states(plan, layer - 1, of), _rows(plan, "d_mixed", of.D),
            _slopes(plan, layer - 1, of), _rows(plan, "d_steps", 3 * of.HEADS),
            plan.n_parameters, plan.block(layer - 1),
            K=of, num_warps=MIX_WARPS, num_stages=1, maxnreg=MIX_REGISTERS,
        )  # fmt: skip
    _tokens_back(plan, values, keys, first, count, partials, of)


def forward(
    plan: Plan, values: Tensor, keys: Tensor, first: Tensor, count: int, logits: Tensor
) -> None:
    """Logits of a step's examples."""
    of = shape(plan)
    _to_last(plan, values, keys, first, count, False, of)
    _finish(plan, values, keys, first, count, logits, values, False, of)
