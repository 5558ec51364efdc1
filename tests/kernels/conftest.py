"""Kernels are interpreted where there is no GPU, and quickly."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def quick() -> None:
    pytest.importorskip("triton", reason="the kernels need triton")
    if not torch.cuda.is_available():
        from quick_interpreter import quicken

        quicken()
