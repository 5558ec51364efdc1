"""The table of the demo."""

from pathlib import Path

import pytest
import torch

from ithbit.api.training import Results
from ithbit.cli.demo import Successes
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.records import Failure

TINY = [RunSpec(ModelSpec("rhi", "gru", 8), 0, Protocol(epoch_examples=256, max_epochs=1))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with one run of one epoch."""
    monkeypatch.setattr("ithbit.cli.demo.preset", lambda name: TINY)


@pytest.mark.usefixtures("short")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is used")
def test_the_device_is_chosen_as_for_training(ithbit) -> None:
    status, _, err = ithbit("demo", "--store", "mine")
    assert status == 0
    assert "CPU, one thread per process (no CUDA GPU found)" in err
    assert "as asked" not in err
    assert "(as asked)" in ithbit("demo", "--store", "mine", "--device", "cpu")[2]
    status, _, err = ithbit("demo", "--store", "mine", "--device", "cuda")
    assert status == 2
    assert "device 'cuda' was asked for, but torch sees no CUDA GPU" in err


@pytest.mark.usefixtures("short")
def test_the_page_is_in_the_store(ithbit, tmp_path: Path) -> None:
    status, out, _ = ithbit("demo", "--store", "mine", "--device", "cpu")
    assert status == 0
    assert "Report: mine/report.html" in out
    assert (tmp_path / "mine" / "report.html").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    assert ithbit("demo", "--store", "mine", "--report", "page.html", "--device", "cpu")[0] == 0
    assert (tmp_path / "page.html").exists()
    # The page is no run: the store is read as before.
    assert ithbit("status", "--store", "mine")[1].startswith("1 done (1 run)")


def test_what_could_not_be_run_is_not_counted() -> None:
    errors = {"gru": ["the loss is not finite in epoch 2: nan", "lost"], "mamba2": ["lost", "lost"]}
    found = [
        Failure(RunSpec(ModelSpec("rhi", family, 8), seed), error, "", 1)
        for family, both in errors.items()
        for seed, error in enumerate(both)
    ]
    text = str(Successes(Results(found, Path("runs")), Path("page.html"), 1.0))
    gru, mamba2 = (line for line in text.splitlines() if "stress test" in line and "│" in line)
    assert "0/1" in gru
    assert "0/" not in mamba2
    assert "Runs that could not be run are not counted: lost" in text
