"""Accuracies at other lengths, of a run that was made up."""

import csv
import runpy

import pytest
import torch
from tests.support.paths import ROOT

from ithbit.engine.evaluate import shifted_accuracy
from ithbit.models.classifier import init, logits
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Result
from ithbit.tasks.tokens import token_table

SCRIPT = ROOT / "experiments" / "length_transfer.py"
RUN = RunSpec(ModelSpec("lhi", "gru", 8), seed=3)


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def main(script):
    return script["main"]


def test_each_run_is_evaluated_by_both_ways(script, main, tmp_path, capsys) -> None:
    # Weights of one: an untrained model hardly looks at its query.
    noise = torch.Generator().manual_seed(0)
    start = init(RUN.model, seed=0)
    weights = {k: v + torch.randn(v.shape, generator=noise) for k, v in start.items()}
    weights["head.bias"] = torch.zeros_like(weights["head.bias"])
    folder = RunFolder(tmp_path / "runs", RUN)
    folder.create()
    accuracies, times = (0.5, None, 0.5, 0.7, 0.5, 0.5, 1.0, 0.1), ("then", "now")
    folder.finish(Result(RUN, 1777, 500, "epochs", *accuracies, *times, {}), weights)
    table = tmp_path / "out.csv"
    assert main(["--store", str(tmp_path / "runs"), "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["query_by"] for row in rows] == ["instance", "training"]
    stack = {name: value.unsqueeze(0) for name, value in weights.items()}
    for row, ask in zip(rows, (logits, script["by_training_length"]), strict=True):
        half, double = shifted_accuracy(stack, RUN.model, Protocol(), [3], logits=ask)
        assert half is not None
        assert (float(row["half"]), float(row["double"])) == (half[0], double[0])
    assert rows[0]["half"] != rows[1]["half"]
    assert "lhi gru L=1 n=8" in capsys.readouterr().out


@pytest.mark.parametrize("n", [4, 8, 16])
def test_the_query_counts_in_units_of_the_training_length(script, monkeypatch, n) -> None:
    by_training_length = script["by_training_length"]
    monkeypatch.setitem(by_training_length.__globals__, "logits", lambda *given: given[2])
    found = by_training_length({}, RUN.model, token_table("lhi", n), None)
    place = torch.arange(n, dtype=torch.float64) / 8
    assert torch.equal(found.features[2 * n : 3 * n, 4], place.float())
    assert torch.equal(found.features[2 * n : 3 * n, 5], (place**2).float())


def test_a_store_without_such_runs_is_said(main, tmp_path, capsys) -> None:
    assert main(["--store", str(tmp_path)]) == 2
    assert "no finished run of a constructive configuration" in capsys.readouterr().err
