"""Logits, losses, every gradient and one AdamW step of the kernels against the stacked models.

The bar and its reason are in `stacked_truth.py`. On a machine without a GPU the kernels run under
Triton's interpreter: few examples of few bits, every family, task and kind of layer all the same;
`test_on_gpu.py` has the whole grid.
"""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from tests.support.families import PAPER_FAMILIES
from tests.support.stacked_truth import (
    TOLERANCE,
    by_kernels,
    by_models,
    fresh_step,
    started,
    too_far,
)

from ithbit.kernels.attention import softmax_mix
from ithbit.kernels.attention import step as attention
from ithbit.kernels.gru import step as gru
from ithbit.kernels.step import refusal
from ithbit.spec import ModelSpec, Protocol

# Each family with both tasks, one layer (the first and the last at once) and two; one bit, fewer
# and more than a chunk or a tile hold.
SHAPES = [("lhi", 1, 1), ("rhi", 1, 33), ("rhi", 2, 8)]
ADDED = ("none", "learned", "sinusoidal")  # encodings beside polynomial, which the others have
VARIANTS = [
    *(
        ModelSpec(task, family, n, layers)
        for family in PAPER_FAMILIES
        for task, layers, n in SHAPES
    ),
    *(ModelSpec("lhi", family, 16, 2) for family in ("softmax-full", "linear-full")),
    *(ModelSpec("lhi", family, 31, 2) for family in PAPER_FAMILIES if not family.endswith("-full")),
]
LEFT = [  # one to three tokens after chunks of 16, with the cases above
    *(ModelSpec("rhi", family, n, 2) for family in ("linear-causal", "mamba2") for n in (17, 18)),
    *(ModelSpec("rhi", "linear-full", n, 2) for n in (16, 18)),
]
OTHERS = [  # a layer neither first nor last; another width
    *(ModelSpec("lhi", family, 1, n_layers=3) for family in ("linear-causal", "gru", "mamba2")),
    ModelSpec("rhi", "gru", 2, d_model=32),
    ModelSpec("rhi", "softmax-causal", 2, n_layers=2, d_model=32),
]


def label(spec: ModelSpec) -> str:
    """For a test's name."""
    return f"{spec.task}-{spec.family}-n{spec.n_bits}-L{spec.n_layers}-d{spec.d_model}"


@pytest.mark.parametrize("spec", VARIANTS + LEFT + OTHERS, ids=label)
def test_a_step_is_that_of_the_stacked_models(spec) -> None:
    assert refusal(spec) is None
    if spec.n_bits > 8:  # slow: one run
        assert too_far(spec, 2, capacity=2, n_seeds=1) == {}
    else:  # quicker: with a batch below the capacity, and logits in two launches
        n_seeds = 1 if spec.n_bits == 8 else 2
        assert too_far(spec, 2, capacity=3, n_logits=4, n_seeds=n_seeds) == {}


NARROW = [  # sums shorter than a product takes, heads of two numbers, less than a slice or a part
    *(ModelSpec("rhi", family, 2, n_layers=2, d_model=4) for family in PAPER_FAMILIES),
    *(ModelSpec("lhi", family, 2, d_model=8) for family in PAPER_FAMILIES),
    ModelSpec("rhi", "mamba2", 2, n_layers=2, d_model=8, n_heads=4, d_state=4),
    ModelSpec("rhi", "linear-full", 1, n_layers=2, d_model=8, d_ff=4, n_heads=8),
    ModelSpec("rhi", "softmax-full", 2, n_layers=2, d_model=4, positions="rotary"),
    ModelSpec("lhi", "mamba2", 1, d_model=4, positions="learned"),
    ModelSpec("rhi", "gru", 1, d_model=4, positions="learned"),
]


@pytest.mark.parametrize("spec", NARROW, ids=label)
def test_a_step_of_a_narrow_model(spec) -> None:
    assert refusal(spec) is None
    assert too_far(spec, 2, capacity=2, n_logits=2, n_seeds=1) == {}


@pytest.mark.parametrize(("family", "width"), [("softmax-full", 4), ("linear-causal", 8)])
def test_the_last_token_reads_a_long_sequence_in_parts(family, width, monkeypatch) -> None:
    """As one of more than 128 bits."""
    monkeypatch.setattr(attention, "_READ_WHOLE", 8)
    monkeypatch.setattr(attention, "_READ_NUMBERS", 1)
    assert too_far(ModelSpec("lhi", family, 17, d_model=width), 2, capacity=3, n_seeds=1) == {}


LONG = [  # more than two words of bits; a narrow model's chunks
    ModelSpec("rhi", "linear-causal", 17, n_layers=3, d_model=4),
    *(ModelSpec("rhi", family, 130, n_layers=2, d_model=4) for family in PAPER_FAMILIES),
    ModelSpec("lhi", "gru", 192, d_model=8),
    ModelSpec("lhi", "softmax-full", 140, d_model=32, n_heads=4),
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", LONG, ids=label)
def test_a_step_on_long_sequences(spec) -> None:
    assert refusal(spec) is None
    assert too_far(spec, 2, capacity=2, n_seeds=1, examples="mixed") == {}


OTHER_EXAMPLES = [  # each family that draws in its own way; two words of bits
    *(ModelSpec("lhi", family, 5) for family in ("softmax-causal", "mamba2")),
    *(ModelSpec("rhi", "gru", n) for n in (5, 66)),
    ModelSpec("rhi", "gru", 3, positions="learned"),
]


@pytest.mark.parametrize("spec", OTHER_EXAMPLES, ids=label)
def test_a_step_on_blocks(spec) -> None:
    """And logits, which are of uniform ones."""
    assert too_far(spec, 3, capacity=3, n_logits=2, n_seeds=1, examples="blocks") == {}


@pytest.mark.parametrize("family", ["softmax-full", "softmax-causal"])
def test_a_sequence_that_several_programs_mix(family, monkeypatch) -> None:
    """As those of more than 78 bits are."""
    monkeypatch.setattr(attention, "_LANE_NUMBERS", 1)
    assert (
        too_far(ModelSpec("lhi", family, softmax_mix.SLOTS.value, n_layers=2), 1, 2, n_seeds=1)
        == {}
    )


ENCODED = [
    *((family, encoding) for family in ("gru", "mamba2", "linear-causal") for encoding in ADDED),
    ("softmax-full", "learned"),
    ("softmax-full", "rotary"),
    ("softmax-causal", "rotary"),
]


@pytest.mark.parametrize(("family", "encoding"), ENCODED)
def test_every_encoding(family, encoding) -> None:
    spec = ModelSpec("lhi", family, n_bits=3, n_layers=2, positions=encoding)
    assert refusal(spec) is None
    assert too_far(spec, 2, capacity=3, n_seeds=1) == {}


@pytest.mark.usefixtures("blocks_of_its_own")
@pytest.mark.parametrize(
    "changes",
    [{"weight_decay": 0.1}, {"beta1": 0.8}, {"beta2": 0.99}, {"eps": 0.01}, {"clip_norm": 1e9}],
    ids=str,
)
def test_each_setting_of_the_optimiser_is_followed(changes) -> None:
    """And seen: the step of other settings is beyond the bar."""
    start = started(ModelSpec("lhi", "gru", 1))
    other = by_models(start, 2, torch.float64)
    truth = by_models(start, 2, torch.float64, replace(other.protocol, **changes))
    taken = by_kernels(start, 2, truth.protocol, fresh_step(start, 2))
    assert max(taken.distances(truth).values()) <= TOLERANCE
    assert taken.distances(other)["weights"] > 10 * TOLERANCE


@pytest.mark.usefixtures("blocks_of_its_own")
def test_a_step_of_several_programs() -> None:
    """Eight sequences each: the second has one example, the third none."""
    assert too_far(ModelSpec("lhi", "gru", 1), 9, capacity=20) == {}


@pytest.mark.parametrize("family", ["softmax-full", "linear-causal"])
def test_several_tiles_of_one_program_add_up(family, monkeypatch) -> None:
    """As at the paper's batch size: few programs, so that each goes over many rows backwards."""
    monkeypatch.setattr(attention, "_PROJECT_PROGRAMS", 1)
    monkeypatch.setattr(attention, "_BACK_PROGRAMS", 1)
    spec = ModelSpec("lhi", family, 8, n_layers=2)
    step = fresh_step(started(spec), capacity=7)
    assert attention._back_tiles(step.plan)[1] > 1
    assert attention._project_tiles(step.plan)[1] > 1
    assert attention._kind_tiles(step.plan)[1] > 1
    assert too_far(spec, 7, capacity=7, n_seeds=1) == {}


@pytest.mark.parametrize(("task", "family"), [("rhi", "softmax-full"), ("lhi", "linear-causal")])
def test_so_do_those_of_kinds_and_queries(task, family, monkeypatch) -> None:
    """In a block that is both the first and the last; and tiles of examples that are summed."""
    monkeypatch.setattr(attention, "_PROJECT_PROGRAMS", 2)
    monkeypatch.setattr(attention, "_TALLIED", 16)
    spec = ModelSpec(task, family, 9, positions="learned")
    assert attention._kind_tiles(fresh_step(started(spec), capacity=35).plan)[1] > 1
    assert too_far(spec, 33, capacity=35, n_seeds=1) == {}


def test_so_do_those_of_a_later_recurrence(monkeypatch) -> None:
    monkeypatch.setattr(gru, "_ROW_PROGRAMS", 1)
    spec = ModelSpec("rhi", "gru", 2, n_layers=2)
    assert gru._row_tiles(fresh_step(started(spec), capacity=9).plan) == (1, 3)
    assert too_far(spec, 9, capacity=9) == {}


@pytest.mark.parametrize(
    ("family", "n_bits"), [("softmax-full", 1), ("linear-full", 1), ("gru", 2), ("mamba2", 9)]
)
def test_no_share_lies_where_none_is_summed(family, n_bits) -> None:
    start = started(ModelSpec("rhi", family, n_bits, n_layers=2), n_seeds=1)
    step = fresh_step(start, capacity=18)
    by_kernels(start, 18, Protocol(), step)
    plan, shares = step.plan, step.family.shares
    assert step.partials.shape[1] > shares(plan, "head.weight")
    for name, size in plan.sizes.items():
        mine = step.partials[:, :, plan.offsets[name] : plan.offsets[name] + size]
        rows = shares(plan, name)
        assert mine[:, :rows].any() == (name != "leave.unused_word"), name
        assert not mine[:, rows:].any(), name


@pytest.mark.parametrize("family", ["softmax-causal", "gru", "mamba2"])
def test_a_run_depends_on_its_seed_alone(family) -> None:
    """Bit for bit: in a stack and alone, in fresh memory and in that of a larger batch. With
    learned positions, whose shares are stored by some tiles and added up by others."""
    start = started(ModelSpec("lhi", family, 1, n_layers=2, positions="learned"))
    protocol, used = Protocol(clip_norm=0.5), fresh_step(start, capacity=2)
    larger = by_kernels(start, 2, protocol, used)
    alone = start.rows([1])
    expected = by_kernels(alone, 1, protocol, fresh_step(alone, 2))
    assert by_kernels(start, 1, protocol, used).rows([1]).equals(expected)
    assert not larger.rows([1]).equals(expected)
