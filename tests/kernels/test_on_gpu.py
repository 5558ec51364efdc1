"""The kernels as a GPU runs them: the whole grid against the stacked models, and bit for bit.

The bar and its reason are in `stacked_truth.py`.
"""

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from tests.support.stacked_truth import by_kernels, fresh_step, started, too_far

from ithbit.families import TASKS
from ithbit.kernels.step import refusal
from ithbit.spec import ModelSpec, Protocol

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

PROTOCOL = Protocol(clip_norm=0.5)
CAPACITY, REST = 256, 80  # a batch of the paper, and what is left of its 50,000 examples


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    """Every task in turn."""
    return request.param


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("n_bits", [1, 8, 16, 31, 32, 33, 64, 128])
def test_a_step_is_that_of_the_stacked_models(task, family, n_bits, n_layers) -> None:
    """The last batch of the paper's epochs, in the capacity of the others."""
    spec = ModelSpec(task, family, n_bits, n_layers)
    assert refusal(spec) is None
    assert too_far(spec, REST, CAPACITY, n_logits=CAPACITY + 44) == {}


# Narrow models, long sequences, and both: width, bits and layers.
SIZES = [(4, 33, 3), (8, 16, 2), (4, 512, 2), (8, 200, 2), (16, 256, 2), (32, 512, 2), (64, 512, 1)]


@pytest.mark.parametrize("examples", ["uniform", "mixed"])
@pytest.mark.parametrize(("width", "n_bits", "n_layers"), SIZES)
def test_so_is_one_of_other_sizes(family, width, n_bits, n_layers, examples) -> None:
    task = "lhi" if (width, n_bits) in ((8, 16), (16, 256)) else "rhi"
    spec = ModelSpec(task, family, n_bits, n_layers, d_model=width)
    assert refusal(spec) is None
    assert too_far(spec, REST, CAPACITY, n_logits=REST, examples=examples) == {}


@pytest.mark.parametrize(("width", "n_bits"), [(4, 64), (8, 130)])
def test_a_narrow_run_alone_and_in_a_stack_are_the_same_bits(family, width, n_bits) -> None:
    start = started(ModelSpec("rhi", family, n_bits, n_layers=2, d_model=width), n_seeds=3)
    together = by_kernels(start, CAPACITY, PROTOCOL, fresh_step(start, CAPACITY))
    alone = start.rows([1])
    found = by_kernels(alone, CAPACITY, PROTOCOL, fresh_step(alone, CAPACITY))
    assert found.equals(together.rows([1]))


@pytest.mark.parametrize("n_bits", [8, 33, 64])
def test_so_is_a_whole_batch(task, family, n_bits) -> None:
    assert too_far(ModelSpec(task, family, n_bits, n_layers=2), CAPACITY, CAPACITY) == {}


@pytest.mark.parametrize("n_bits", [8, 33, 64])
@pytest.mark.parametrize("count", [CAPACITY, REST])
def test_the_same_step_twice_is_the_same_bits(task, family, n_bits, count) -> None:
    """In fresh memory, and in that of a larger batch."""
    start = started(ModelSpec(task, family, n_bits, n_layers=2), n_seeds=3)
    step = fresh_step(start, CAPACITY)
    expected = by_kernels(start, count, PROTOCOL, step)
    assert by_kernels(start, count, PROTOCOL, fresh_step(start, CAPACITY)).equals(expected)
    by_kernels(start, CAPACITY, PROTOCOL, step)
    assert by_kernels(start, count, PROTOCOL, step).equals(expected)


@pytest.mark.parametrize("n_bits", [8, 33, 64])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_a_run_alone_and_in_a_stack_are_the_same_bits(task, family, n_bits, n_layers) -> None:
    start = started(ModelSpec(task, family, n_bits, n_layers), n_seeds=3)
    together = by_kernels(start, CAPACITY, PROTOCOL, fresh_step(start, CAPACITY))
    for k in range(3):
        alone = start.rows([k])
        found = by_kernels(alone, CAPACITY, PROTOCOL, fresh_step(alone, CAPACITY))
        assert found.equals(together.rows([k])), f"run {k}"
