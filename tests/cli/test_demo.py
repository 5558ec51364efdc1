"""The demo says what it saw, and its exit status is 0 only if it saw all that it claims."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.support.paths import WEIGHTS

from ithbit.cli import demo
from ithbit.cli.demo import PROVED, REFUTED, SHIPPED, Claim, Demo
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.packed import opened, pack

TINY = [RunSpec(ModelSpec("rhi", "gru", 8), 0, Protocol(epoch_examples=256, max_epochs=1))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The demo with one run of one epoch, and a shorter proof."""
    (proved,) = (WEIGHTS / "uniform").glob("rhi_n16_softmax-full_*_s0-*")
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(proved, folder / "runs" / proved.name)
    shutil.copytree(opened(SHIPPED) / REFUTED, folder / "runs" / REFUTED)
    monkeypatch.setattr(demo, "SHIPPED", pack(folder / "runs", folder / "shipped.zip"))
    monkeypatch.setattr(demo, "PROVED", proved.name)
    monkeypatch.setattr(demo, "preset", lambda name: TINY)


@pytest.mark.usefixtures("short")
def test_a_claim_that_is_not_seen_is_marked_and_ends_with_1(ithbit, tmp_path: Path) -> None:
    """A stress test that was hardly trained is wrong, as claimed; no constructive one is right."""
    status, out, err = ithbit("demo", "--store", "mine", "--device", "cpu")
    assert (status, out.count("NOT SEEN")) == (1, 1), err
    assert "Seen: 3 of 4 claims" in out
    assert "bits 00…01, index 64: answers 0" in out
    assert "BlockMean: causal:" in out
    assert "right on all 1,048,576 inputs" in out
    assert {each.name for each in tmp_path.iterdir()} == {"mine"}
    assert (tmp_path / "mine" / "report.html").is_file()
    assert (tmp_path / "mine" / "model.html").is_file()
    # The pages are no runs: the store is read as before.
    assert ithbit("status", "--store", "mine")[1].startswith("1 done (1 run)")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is used")
def test_a_gpu_that_is_not_there_is_refused_at_once(ithbit) -> None:
    status, out, err = ithbit("demo", "--store", "mine", "--device", "cuda")
    assert (status, out) == (2, "")
    assert "device 'cuda' was asked for, but torch sees no CUDA GPU" in err


def test_what_is_shipped_are_runs_of_the_results() -> None:
    for name in (REFUTED, PROVED):
        for file in (opened(SHIPPED) / name).iterdir():
            assert file.read_bytes() == (WEIGHTS / "uniform" / name / file.name).read_bytes()
    assert (opened(SHIPPED) / PROVED / "proof.json").is_file()


def test_all_claims_must_be_seen() -> None:
    one = Claim("title", ("line",), True, "command")
    assert Demo((one, one), (), 1.0).all_seen
    assert not Demo((one, Claim("title", (), False, "command")), (), 1.0).all_seen
