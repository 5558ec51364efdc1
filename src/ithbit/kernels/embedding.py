"""Positions at the embedding: what the families share, and launches for one that embeds separately.

Of the encodings, polynomial is part of the map of token features (`tile.load_embedding`); learned
and sinusoidal add a vector to the embedded token (`embedded`); rotary rotates queries and
keys. Sinusoidal and rotary use a table of fixed numbers (`Plan.waves`). The gradient of the learned
vectors is that of the embedded tokens summed over examples (`embed_back`; families whose backward
pass runs over the kinds of tokens sum it there).
"""

import triton
import triton.language as tl
from torch import Tensor

from ithbit.kernels.draws import stream_of
from ithbit.kernels.plan import Launches, shared_out
from ithbit.kernels.tile import (
    FEATURES,
    SIZES,
    dot,
    load_embedding,
    rows_of,
    store_embedding,
    token_features,
)

_ROWS = 32  # tokens of a tile


@triton.jit
def embedded(
    features, values, offset, kind, waves, position,
    D: tl.constexpr, ENCODING: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Embedded tokens (row D), with what their encoding adds at their positions (row)."""
    rows = dot(features, load_embedding(values, offset, kind, D, ENCODING, TYPE))
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    if ENCODING == "learned":
        rows += tl.load(values + offset + at)
    if ENCODING == "sinusoidal":
        rows += tl.load(waves + at)
    return rows


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
    sequence, position, live = rows_of(tl.program_id(0), SEQUENCES, TOKENS, ROWS)
    key, start = stream_of(keys, first, seed)
    token = token_features(key, start + sequence, position, N, LHI, WORDS, CUTS)
    x = embedded(token, values, offset, 0, waves, position, D, ENCODING, False)
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
    key, example = stream_of(keys, first, seed)
    example += program * SEQUENCES
    total = tl.zeros([FEATURES, D], tl.float32)
    for tile in range((SEQUENCES * TOKENS + ROWS - 1) // ROWS):
        sequence, position, live = rows_of(tile, SEQUENCES, TOKENS, ROWS)
        token = token_features(key, example + sequence, position, N, LHI, WORDS, CUTS)
        row = (start + sequence) * TOKENS + position
        at = grads + row[:, None] * STRIDE + tl.arange(0, D)[None, :]
        total += dot(tl.trans(token), tl.load(at, mask=live[:, None], other=0.0))
    partial = partials + (seed * PROGRAMS + program) * PARAMETERS
    store_embedding(partial, total, offset, 0, D, ENCODING, False)


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


def embed(batch: Launches, out: Tensor) -> None:
    """Embed the tokens of a batch into `out` (seed, sequence, 1+token, D)."""
    plan, model, sequences = batch.plan, batch.plan.model, out.shape[1]
    _embed[batch.grid(triton.cdiv(sequences * plan.n_tokens, _ROWS))](
        batch.values, batch.keys, batch.first, out, plan.waves, plan.encoding, plan.n_parameters,
        **plan.draws, SEQUENCES=sequences, ROWS=_ROWS,
        D=model.d_model, ENCODING=model.positions, CUTS=batch.cuts,
    )  # fmt: skip


def embed_back(batch: Launches, grads: Tensor, partials: Tensor, n_programs: int) -> None:
    """Shares of the map of token features and of the learned positions, from the gradients of
    embedded tokens (seed, sequence, token, D). The map takes all sequences, split evenly over
    `n_programs` programs; positions past the training length get none."""
    plan, d, encoding = batch.plan, batch.plan.model.d_model, batch.plan.model.positions
    _embed_back[batch.grid(n_programs)](
        batch.keys, batch.first, grads, partials, plan.encoding, partials.shape[1],
        plan.n_parameters, **plan.draws,
        SEQUENCES=grads.shape[1] // n_programs, STRIDE=grads.stride(2), ROWS=_ROWS,
        D=d, ENCODING=encoding, CUTS=batch.cuts,
    )  # fmt: skip
    if encoding == "learned":
        # At most as many programs as there are rows for their shares.
        n_programs, each = shared_out(plan.capacity, partials.shape[1])
        pad = triton.next_power_of_2(plan.n_tokens)
        _learned_back[batch.grid(n_programs)](
            grads, batch.count, partials, plan.encoding, partials.shape[1], grads.shape[1],
            plan.n_parameters,
            TOKENS=plan.n_tokens, PAD=pad, STRIDE=grads.stride(2), EXAMPLES=each, D=d,
            num_warps=4 if pad <= 256 else min(32, 4 * triton.cdiv(pad * d, 4096)),
        )  # fmt: skip
