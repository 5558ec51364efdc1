"""Positions at the embedding: what the families share, and launches for one that embeds separately.

Of the encodings, polynomial is part of the map of token features (`tile.load_embedding`); learned
and sinusoidal add a vector to the embedded token (`add_positions`); rotary rotates queries and
keys. Sinusoidal and rotary use a table of fixed numbers (`waves`). The gradient of the learned
vectors is that of the embedded tokens summed over examples (`learned_back`; families whose backward
pass runs over the kinds of tokens sum it there).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ithbit.kernels.plan import Plan
from ithbit.kernels.tile import (
    FEATURES,
    SIZES,
    dot,
    load_embedding,
    store_embedding,
    token_features,
)
from ithbit.models import positions

_ROWS = 32  # tokens of a tile


@triton.jit
def add_positions(rows, values, offset, waves, position, D: tl.constexpr, ENCODING: tl.constexpr):
    """Embedded tokens (row D) plus what their encoding adds at their positions (row)."""
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    if ENCODING == "learned":
        rows += tl.load(values + offset + at)
    if ENCODING == "sinusoidal":
        rows += tl.load(waves + at)
    return rows


@triton.jit
def _tile(tile, TOKENS: tl.constexpr, SEQUENCES: tl.constexpr, ROWS: tl.constexpr):
    """Sequence and position of a tile's tokens among SEQUENCES, and which of them exist."""
    row = tile * ROWS + tl.arange(0, ROWS)
    return row // TOKENS, row % TOKENS, row < SEQUENCES * TOKENS


@triton.jit(do_not_specialize=SIZES)
def _embed(
    values, keys, first, out, waves, offset, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, SEQUENCES: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, ENCODING: tl.constexpr, CUTS: tl.constexpr,
):  # fmt: skip
    """Embedded tokens, with one unused row before each sequence: seed sequence 1+token D."""
    TOKENS: tl.constexpr = N + 2 if LHI else N + 1
    seed = tl.program_id(1).to(tl.int64)
    values += seed * PARAMETERS
    sequence, position, live = _tile(tl.program_id(0), TOKENS, SEQUENCES, ROWS)
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    example = tl.load(first + seed) + sequence
    token = token_features(key, example, position, N, LHI, WORDS, CUTS)
    x = dot(token, load_embedding(values, offset, 0, D, ENCODING == "polynomial", False))
    x = add_positions(x, values, offset, waves, position, D, ENCODING)
    row = (seed * SEQUENCES + sequence) * (TOKENS + 1) + 1 + position
    tl.store(out + row[:, None] * D + tl.arange(0, D)[None, :], x, mask=live[:, None])


@triton.jit(do_not_specialize=SIZES)
def _embed_back(
    keys, first, grads, partials, offset, PROGRAMS, PARAMETERS,
    N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr, SEQUENCES: tl.constexpr,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, ENCODING: tl.constexpr,
    CUTS: tl.constexpr,
):  # fmt: skip
    """Shares of the map of token features; each program takes SEQUENCES sequences of `grads`."""
    TOKENS: tl.constexpr = N + 2 if LHI else N + 1
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = (seed * tl.num_programs(0) + program) * SEQUENCES
    key = tl.load(keys + seed).to(tl.uint64, bitcast=True)
    example = tl.load(first + seed) + program * SEQUENCES
    total = tl.zeros([FEATURES, D], tl.float32)
    for tile in range((SEQUENCES * TOKENS + ROWS - 1) // ROWS):
        sequence, position, live = _tile(tile, TOKENS, SEQUENCES, ROWS)
        token = token_features(key, example + sequence, position, N, LHI, WORDS, CUTS)
        row = (start + sequence) * TOKENS + position
        at = grads + row[:, None] * STRIDE + tl.arange(0, D)[None, :]
        total += dot(tl.trans(token), tl.load(at, mask=live[:, None], other=0.0))
    partial = partials + (seed * PROGRAMS + program) * PARAMETERS
    store_embedding(partial, total, offset, 0, D, ENCODING == "polynomial", False)


@triton.jit(do_not_specialize=SIZES)
def _learned_back(
    grads, count, partials, offset, PROGRAMS, SEQUENCES, PARAMETERS,
    TOKENS: tl.constexpr, PAD: tl.constexpr, STRIDE: tl.constexpr, EXAMPLES: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Shares of the learned positions; each program takes EXAMPLES sequences of `grads`."""
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token, d = tl.arange(0, PAD)[:, None], tl.arange(0, D)[None, :]
    total = tl.zeros([PAD, D], tl.float32)
    for i in range(EXAMPLES):
        example = program * EXAMPLES + i
        at = ((seed * SEQUENCES + example) * TOKENS + token) * STRIDE + d
        total += tl.load(grads + at, mask=(token < TOKENS) & (example < count), other=0.0)
    share = partials + (seed * PROGRAMS + program) * PARAMETERS + offset
    tl.store(share + token * D + d, total, mask=token < TOKENS)


def offset(plan: Plan) -> int:
    """Where the encoding's parameters start in a row; 0 if it has none."""
    return plan.offsets.get(f"positions.{plan.model.positions}", 0)


def waves(plan: Plan) -> Tensor:
    """The fixed numbers of sinusoidal (token, D) or rotary (cosine or sine, token, D) positions; a
    single 0 for other encodings."""
    return plan.constant("waves", _waves)


def _waves(plan: Plan) -> Tensor:
    model, tokens = plan.model, torch.arange(plan.n_tokens)
    table = torch.zeros(1)
    if model.positions == "sinusoidal":
        sine, cosine = positions.waves(tokens, model.d_model, torch.float32)
        table = torch.stack([sine, cosine], -1).flatten(-2)
    elif model.positions == "rotary":
        sine, cosine = positions.waves(tokens, model.d_head, torch.float32)
        pairs = torch.stack([cosine, sine]).repeat_interleave(2, -1)
        table = pairs.repeat(1, 1, model.n_heads)
    return table.contiguous().to(plan.device)


def embed(plan: Plan, values: Tensor, keys: Tensor, first: Tensor, out: Tensor, cuts: int) -> None:
    """Embed the tokens of examples first, first + 1 … into `out` (seed, sequence, 1+token, D)."""
    model, sequences = plan.model, out.shape[1]
    _embed[(triton.cdiv(sequences * plan.n_tokens, _ROWS), plan.n_seeds)](
        values, keys, first, out, waves(plan), offset(plan), plan.n_parameters,
        N=model.n_bits, LHI=int(plan.lhi), WORDS=plan.n_words, SEQUENCES=sequences, ROWS=_ROWS,
        D=model.d_model, ENCODING=model.positions, CUTS=cuts,
    )  # fmt: skip


def embed_back(
    plan: Plan, keys: Tensor, first: Tensor, grads: Tensor, partials: Tensor, n_programs: int
) -> None:
    """Shares of the map of token features, from the gradients of embedded tokens (seed, sequence,
    token, D), all of which count; the sequences are split evenly over `n_programs` programs."""
    model = plan.model
    _embed_back[(n_programs, plan.n_seeds)](
        keys, first, grads, partials, offset(plan), partials.shape[1], plan.n_parameters,
        N=model.n_bits, LHI=int(plan.lhi), WORDS=plan.n_words,
        SEQUENCES=grads.shape[1] // n_programs, STRIDE=grads.stride(2), ROWS=_ROWS,
        D=model.d_model, ENCODING=model.positions, CUTS=plan.cuts,
    )  # fmt: skip


def learned_back(plan: Plan, grads: Tensor, count: int, partials: Tensor) -> None:
    """Shares of the learned positions, from the gradients of embedded tokens (seed, sequence,
    token, D) of the first `count` sequences. Rows past the training length get none."""
    # At most as many programs as there are rows for their shares.
    each = triton.cdiv(plan.capacity, partials.shape[1])
    pad, d = triton.next_power_of_2(plan.n_tokens), plan.model.d_model
    _learned_back[(triton.cdiv(plan.capacity, each), plan.n_seeds)](
        grads, count, partials, offset(plan), partials.shape[1], grads.shape[1], plan.n_parameters,
        TOKENS=plan.n_tokens, PAD=pad, STRIDE=grads.stride(2), EXAMPLES=each, D=d,
        num_warps=4 if pad <= 256 else min(32, 4 * triton.cdiv(pad * d, 4096)),
    )  # fmt: skip
