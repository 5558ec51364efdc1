"""What the record of a run says of machine and code."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from ithbit.engine.device import choose_device, describe_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the code is no checkout")
def test_the_commit_is_that_of_the_checkout() -> None:
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = describe_environment(choose_device("cpu"))["commit"]
    assert found in (head, head + "+")


def test_the_kernels_compiler_is_named() -> None:
    pytest.importorskip("triton")
    assert describe_environment(choose_device("cpu"))["triton"] == version("triton")
