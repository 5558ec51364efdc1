"""Examples drawn in place by the kernels against those of the plain stream, bit for bit."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

import triton
import triton.language as tl
from tests.support.every_token import token_rows
from tests.support.stacked_truth import DEVICE

from ithbit.kernels.gru.tokens import draw, features, turned
from ithbit.kernels.tile import token_features
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import CUTS, draw_examples, stream_keys, words_per_example
from ithbit.tasks.tokens import token_table

COUNT = 3
FIRST = 1_000_000_007


@triton.jit(do_not_specialize=["N", "LHI", "WORDS"])
def _tokens(keys, out, first, N, LHI, WORDS, CUTS: tl.constexpr, ROWS: tl.constexpr):
    """Six features of each token, as attention and Mamba2 draw them: example token 16."""
    TOKENS = N + 1 + LHI
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key = tl.load(keys).to(tl.uint64, bitcast=True)
    features = token_features(key, first + row // TOKENS, row % TOKENS, N, LHI, WORDS, CUTS)
    tl.store(out + row[:, None] * 16 + tl.arange(0, 16)[None, :], features)


@triton.jit
def _tokens_gru(
    keys, out, first, N: tl.constexpr, LHI: tl.constexpr, WORDS: tl.constexpr,
    CUTS: tl.constexpr, ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """The same, as the GRU draws them, a row an example; from the last on if BACK."""
    row = tl.arange(0, ROWS)
    key = tl.load(keys).to(tl.uint64, bitcast=True)
    query, low, high = draw(key, first + row, N, WORDS, CUTS)
    for step in range(N + 1 + LHI):
        t = N + LHI - step if BACK else step
        if N > 128:
            low = turned(low, t - LHI, 63 if BACK else 0, key, first + row, N, WORDS, CUTS)
            high = low
        found = features(t, query, low, high, N, LHI)
        at = (row * (N + 1 + LHI) + t)[:, None] * 16 + tl.arange(0, 8)[None, :]
        tl.store(out + at, found)


def drawn(task: str, n: int, kind: str, how: str) -> torch.Tensor:
    """The six features of a token that a kernel draws: example token feature."""
    lhi, tokens = int(task == "lhi"), n_tokens(task, n)
    keys, words = stream_keys([7], DEVICE), words_per_example(n)
    mixed, rows = CUTS[kind], 32
    tiles = triton.cdiv(4 * tokens, rows)
    out = torch.zeros(tiles * rows * 16, device=DEVICE)
    if how == "by token":
        _tokens[(tiles,)](keys, out, FIRST, n, lhi, words, CUTS=mixed, ROWS=rows)
    else:
        _tokens_gru[(1,)](
            keys, out, FIRST, N=n, LHI=lhi, WORDS=words, CUTS=mixed, ROWS=4, BACK=how == "back"
        )
    return out.view(-1, 16)[: COUNT * tokens, :6].view(COUNT, tokens, 6)


CASES = [
    *(("by token", task, n) for task in ("rhi", "lhi") for n in (1, 2, 7, 63, 64, 65, 127, 128)),
    *(("by word", *case) for case in (("rhi", 1), ("lhi", 64), ("rhi", 65), ("lhi", 128))),
    ("by word", "lhi", 192),
    ("back", "rhi", 129),
    ("by token", "rhi", 512),
]


@pytest.mark.parametrize(("how", "task", "n"), CASES)
@pytest.mark.parametrize("kind", ["uniform", "mixed", "blocks"])
def test_the_kernels_draw_the_same_tokens(kind, how, task, n) -> None:
    examples = draw_examples(stream_keys([7], DEVICE), n, FIRST, COUNT, kind)
    rows = token_rows(task, examples.bits[0], examples.index[0])
    expected = token_table(task, n, device=DEVICE).features[rows]
    found = drawn(task, n, kind, how)
    assert torch.equal(found[..., :4], expected[..., :4])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
