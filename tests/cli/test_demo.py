"""The table of the demo."""

from pathlib import Path

from ithbit.api.training import Results
from ithbit.cli.demo import Successes
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.records import Failure


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
