"""The table of models that the properties run over, and the one gate to the reference libraries."""

from itertools import product

import pytest
import torch

from ithbit.families import FAMILIES, TASKS
from ithbit.models import classifier
from ithbit.models.spec import ModelSpec
from ithbit.models.stacked import Params


def _cases() -> list[ModelSpec]:
    """Both tasks, six families, several depths, every encoding, lengths from 1, odd sizes."""
    paper = [
        ModelSpec(task, family, n_bits=n, n_layers=layers)
        for (task, family), (n, layers) in product(
            product(TASKS, FAMILIES), ((5, 1), (6, 2), (1, 3))
        )
    ]
    sizes = [
        ModelSpec(task, family, n_bits=7, n_layers=2, d_model=12, n_heads=3, d_ff=20, d_state=5)
        for task, family in product(TASKS, FAMILIES)
    ]
    long = [ModelSpec("rhi", family, n_bits=65, n_layers=2) for family in FAMILIES]
    encodings = [
        ModelSpec("lhi", family, n_bits=4, n_layers=2, positions=positions)
        for family, positions in product(FAMILIES, ("none", "learned", "sinusoidal", "rotary"))
        if positions != "rotary" or family.startswith("softmax")
    ]
    return paper + sizes + long + encodings


def _label(spec: ModelSpec) -> str:
    size = f"n{spec.n_bits}-L{spec.n_layers}-d{spec.d_model}"
    return f"{spec.task}-{spec.family}-{size}-{spec.positions}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests out that start a Slurm, unless the mark is named."""
    if "slurm" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("slurm")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The models are small: more threads only wait for each other, and may sum in other orders."""
    torch.set_num_threads(1)


@pytest.fixture(params=_cases(), ids=_label)
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    """Every model of the table in turn."""
    return request.param


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Every family in turn."""
    return request.param


@pytest.fixture
def library() -> None:
    """Skips a test where the libraries of the reference are not installed."""
    pytest.importorskip(
        "transformers", reason="the reference needs transformers (ithbit[reference])"
    )


@pytest.fixture
def cuda() -> None:
    """Skips a test where there is no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def moved():
    """Parameters of one seed away from initialisation, where no bias is 0 and no gain is 1."""

    def draw(spec: ModelSpec, seed: int = 0, dtype: torch.dtype = torch.float64) -> Params:
        generator = torch.Generator().manual_seed(1000 + seed)
        return {
            name: (
                value * torch.empty_like(value).uniform_(0.5, 2.0, generator=generator)
                + 0.2 * torch.empty_like(value).normal_(generator=generator)
            ).to(dtype)
            for name, value in classifier.init(spec, seed).items()
        }

    return draw
