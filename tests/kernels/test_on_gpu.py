"""The kernels as a GPU runs them: the whole grid against the stacked models, and bit for bit.

The bar and its reason are in `stacked_truth.py`.
"""

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from stacked_truth import by_kernels, fresh_step, started, too_far

from ithbit.engine.spec import Protocol
from ithbit.families import TASKS
from ithbit.kernels.step import refusal
from ithbit.models.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

PROTOCOL = Protocol(clip_norm=0.5)


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    """Every task in turn."""
    return request.param


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("n_bits", [1, 8, 16, 31, 32, 33, 64, 128])
def test_a_step_is_that_of_the_stacked_models(task, family, n_bits, n_layers) -> None:
    spec = ModelSpec(task, family, n_bits, n_layers)
    assert refusal(spec) is None
    assert too_far(spec, count=40, capacity=48, n_logits=60) == {}


@pytest.mark.parametrize("n_bits", [8, 33, 64])
def test_the_paper_s_batches_and_the_rest_of_an_epoch(task, family, n_bits) -> None:
    """256 examples, and the 80 that are left of 50,000, in one capacity."""
    spec = ModelSpec(task, family, n_bits, n_layers=2)
    assert too_far(spec, count=256, capacity=256, n_logits=300) == {}
    assert too_far(spec, count=80, capacity=256) == {}


@pytest.mark.parametrize("n_bits", [8, 33, 64])
@pytest.mark.parametrize("count", [256, 80])
def test_the_same_step_twice_is_the_same_bits(task, family, n_bits, count) -> None:
    """In fresh memory, and in that of a larger batch."""
    start = started(ModelSpec(task, family, n_bits, n_layers=2), n_seeds=3)
    step = fresh_step(start, capacity=256)
    expected = by_kernels(start, count, PROTOCOL, step)
    assert by_kernels(start, count, PROTOCOL, fresh_step(start, 256)).equals(expected)
    by_kernels(start, 256, PROTOCOL, step)
    assert by_kernels(start, count, PROTOCOL, step).equals(expected)


@pytest.mark.parametrize("n_bits", [8, 33, 64])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_a_run_alone_and_in_a_stack_are_the_same_bits(task, family, n_bits, n_layers) -> None:
    start = started(ModelSpec(task, family, n_bits, n_layers), n_seeds=3)
    together = by_kernels(start, 256, PROTOCOL, fresh_step(start, 256))
    for k in range(3):
        alone = start.rows([k])
        found = by_kernels(alone, 256, PROTOCOL, fresh_step(alone, 256))
        assert found.equals(together.rows([k])), f"run {k}"
