"""The counts against torch's own counter of products, and by hand where the two must differ."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ithbit.bench.work import step_bytes, step_flops, table_rows
from ithbit.families import FAMILIES
from ithbit.models.classifier import init, logits, stack
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

BATCH = 6


def counted(spec: ModelSpec) -> int:
    """Operations of the products that the stacked model's forward pass takes."""
    params = stack([init(spec, 0)])
    table = token_table(spec.task, spec.n_bits)
    examples = draw_examples(stream_keys([0]), spec.n_bits, 0, BATCH)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits(params, spec, table, examples)
    return counter.get_total_flops()


@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("family", "gathered"), [("softmax-full", 4), ("gru", 3)])
def test_the_products_of_the_models_are_counted(task, family, layers, gathered) -> None:
    spec = ModelSpec(task, family, n_bits=5, n_layers=layers)
    d, tokens = spec.d_model, n_tokens(task, 5)
    more = BATCH * 5 * gathered * d  # the query's row is picked by a product with a one-hot
    if family == "softmax-full" and task == "lhi" and layers == 1:
        more -= BATCH * 5 * 2 * d  # and not that of the end
    if family == "softmax-full" and layers > 1:
        more += BATCH * (tokens - 1) * d * d  # queries of tokens that are not read
    less = BATCH * d  # the head is a sum, not a product
    assert counted(spec) == step_flops(spec, BATCH) // 3 + 2 * (more - less)


def test_a_mask_leaves_half_of_the_pairs() -> None:
    full, causal = (
        step_flops(ModelSpec("rhi", family, n_bits=7, n_layers=2), BATCH)
        for family in ("softmax-full", "softmax-causal")
    )
    tokens = 8
    spared = BATCH * tokens * (tokens - 1) // 2  # pairs of the first of two blocks
    assert full - causal == 3 * 2 * spared * 2 * 16
    one = [ModelSpec("rhi", family, n_bits=7) for family in ("softmax-full", "softmax-causal")]
    assert step_flops(one[0], BATCH) == step_flops(one[1], BATCH)


@pytest.mark.parametrize(
    ("family", "first", "last"),
    [
        # n = 1, LHI, one example: 4 rows of the table, 3 tokens, width 2, one head, m = 4, N = 3.
        # first of two blocks: q, k, v on 4 rows; sums made and read at 3 tokens; out and FFN at 3.
        # last: k, v at 3 tokens, q at 1; 3 pairs twice; out and FFN at 1.
        ("linear-full", 4 * 12 + 3 * (2 * 4 + 2) + 3 * 20, 3 * 8 + 4 + 3 * 4 + 20),
        # 6 pairs under the mask
        ("linear-causal", 4 * 12 + 6 * 4 + 3 * 20, 3 * 8 + 4 + 3 * 4 + 20),
        # in: 2 + (2 + 6 + 1) outputs on 4 rows; convolution of 8 channels at 3 tokens; out.
        (
            "mamba2",
            4 * 2 * (2 + 9) + 3 * 3 * 8 + 6 * 5 + 3 * 4,
            4 + 3 * 2 * 9 + 3 * (3 * 5 + 3) + 3 * 5 + 4,
        ),
    ],
)
def test_by_hand(family: str, first: int, last: int) -> None:
    spec = ModelSpec("lhi", family, 1, 2, d_model=2, n_heads=1, d_ff=4, d_state=3)
    around = 4 * 2 * 8 + 2  # embedding and positions of the table, and the head
    assert step_flops(spec, 1) == 3 * 2 * (around + first + last)
    # table in, three tokens out and in again, one out; numbers of four bytes, forth and back
    assert step_bytes(spec, 1) == 2 * 4 * 2 * (4 + 3 + 3 + 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_work_grows_with_all_that_it_is_for(family: str) -> None:
    small = ModelSpec("lhi", family, n_bits=4, n_layers=2)
    for larger in (
        ModelSpec("lhi", family, n_bits=5, n_layers=2),
        ModelSpec("lhi", family, n_bits=4, n_layers=3),
        ModelSpec("lhi", family, n_bits=4, n_layers=2, d_model=32),
    ):
        assert step_flops(larger, BATCH) > step_flops(small, BATCH)
        assert step_bytes(larger, BATCH) > step_bytes(small, BATCH)


def test_the_table_has_as_many_rows_as_the_models_use() -> None:
    for task in ("rhi", "lhi"):
        spec = ModelSpec(task, "gru", n_bits=9)
        assert table_rows(spec) == len(token_table(task, 9).features)
