"""For all tests of the kernels."""

import pytest
import torch


@pytest.fixture(autouse=True)
def wide_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter AdamW goes over many parameters at a time, for each program takes
    milliseconds there; not in tests of its own, which ask for `blocks_of_its_own`."""
    if not torch.cuda.is_available() and "blocks_of_its_own" not in request.fixturenames:
        from ithbit.kernels import optimiser

        monkeypatch.setattr(optimiser, "BLOCK", 2048)


@pytest.fixture
def blocks_of_its_own() -> None:
    """The optimiser's programs as on a GPU."""
