"""What the record of a run says of machine and code."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from ithbit.engine import device
from ithbit.engine.device import choose_device, describe_environment


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the code is no checkout")
def test_the_commit_is_that_of_the_checkout() -> None:
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = describe_environment(choose_device("cpu"))["commit"]
    assert found in (head, head + "+")


def test_a_plus_is_for_sources_that_differ(tmp_path: Path, monkeypatch) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *author, *words], capture_output=True, check=True)

    source = tmp_path / "src" / "ithbit" / "engine" / "device.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(device, "__file__", str(source))
    (tmp_path / "notes.txt").write_text("mine")
    found = device._commit()
    assert found is not None
    assert len(found) == 40
    source.write_text("changed")
    assert device._commit() == found + "+"


def test_the_kernels_compiler_is_named() -> None:
    pytest.importorskip("triton")
    assert describe_environment(choose_device("cpu"))["triton"] == version("triton")
