"""What the first block of Mamba2 on LHI computes of single tokens and of three neighbours, from arb
balls: tables from which the bounds of every node are made.

A *window* is the bits at t - 2, t - 1 and t, the latest the lowest; whatever is no bit counts as 0.
Rows of tokens are those of the token table: bit 0 at each place, bit 1, each query, the end.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, ctx

from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.interface import Ints
from ithbit.verification.proofs.token_balls import (
    PRECISION,
    embedded,
    floats,
    mapped,
    relative_floats,
)


class TokenTables(NamedTuple):
    """Floats that are right to 2^-52, see `floats`."""

    x: FloatArray  # row dim: before the block
    gate: FloatArray  # row dim, after SiLU
    dt: FloatArray  # row head
    decay: FloatArray  # row head
    conv: FloatArray  # triple channel: x, B and C after SiLU
    triple: Ints  # index place window: which three tokens they are


def token_tables(params: Mapping[str, FloatArray], spec: ModelSpec) -> TokenTables:
    """The tables of a model. Raises `ArithmeticError` if its weights are too large for them."""
    n, d, channels = spec.n_bits, spec.d_model, spec.d_model + 2 * spec.d_state
    with ctx.workprec(PRECISION):
        x = embedded(params, "lhi", n)
        gain = [arb(g) for g in params["blocks.0.norm.weight"].tolist()]
        inner = arb_mat([_normed(row, gain) for row in x.tolist()])
        rows = mapped(inner, params["blocks.0.in.weight"]).tolist()
        gate = arb_mat([[_silu(v) for v in row[:d]] for row in rows])
        bias = [arb(b) for b in params["blocks.0.dt_bias"].tolist()]
        steps = [
            [_softplus(v + b) for v, b in zip(row[d + channels :], bias, strict=True)]
            for row in rows
        ]
        rate = [arb(a).exp() for a in params["blocks.0.a_log"].tolist()]
        decay = [
            relative_floats([(-v * a).exp() for v, a in zip(row, rate, strict=True)])
            for row in steps
        ]
        triple, triples = _neighbours(n)
        taps = [[arb(v) for v in row] for row in params["blocks.0.conv.weight"].tolist()]
        shift = [arb(v) for v in params["blocks.0.conv.bias"].tolist()]
        conv = []
        for each in triples.tolist():
            own = shift
            for tap, row in zip(taps, each, strict=True):
                if row >= 0:  # zeros before the first token
                    given = rows[row][d : d + channels]
                    own = [o + w * v for o, w, v in zip(own, tap, given, strict=True)]
            conv.append([_silu(v) for v in own])
        tables = floats(x), floats(gate), floats(arb_mat(steps))
        return TokenTables(*tables, np.array(decay), floats(arb_mat(conv)), triple)


def _neighbours(n: int) -> tuple[Ints, Ints]:
    """Which of the different triples of tokens each index, place and window has; and the triples,
    as rows of tokens, -1 before the first."""
    place = np.arange(-2, n + 2)
    row = np.empty((n, n + 4, 2), np.int64)  # index place bit
    for bit in (0, 1):
        row[:, :, bit] = np.where(place < 0, -1, place - 1 + bit * n)
    row[:, 2] = 2 * n + np.arange(n)[:, None]
    row[:, -1] = 3 * n
    window, at = np.arange(8), np.arange(n + 2)[:, None]
    every = np.stack([row[:, at + 2 - back, window >> back & 1] for back in (2, 1, 0)], -1)
    triples, which = np.unique(every.reshape(-1, 3), axis=0, return_inverse=True)
    return which.reshape(every.shape[:-1]), triples


def _normed(row: list[Any], gain: list[Any]) -> list[Any]:
    square = sum((v * v for v in row), arb(0)) / len(row)
    scale = (square + arb(1) / 10**5).rsqrt()
    return [v * scale * g for v, g in zip(row, gain, strict=True)]


def _silu(x: Any) -> Any:
    return x / (1 + (-x).exp())


def _softplus(x: Any) -> Any:
    return x + (-x).exp().log1p() if x > 0 else x.exp().log1p()
