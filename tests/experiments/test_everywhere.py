"""Which successes stand: the table and what wrong answers have in common, from tiny stores."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.one_stack import train
from tests.support.paths import ROOT

from ithbit.engine.device import choose_device
from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.verification.run_verification import verify_run

SCRIPT = ROOT / "experiments" / "everywhere.py"
FIGURE = SCRIPT.with_name("everywhere_figure.py")
EASY = Protocol(
    batch_size=32, epoch_examples=112, held_out_examples=80, max_epochs=20, learning_rate=2e-3
)


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """A uniform run that solves its one bit, one spoilt afterwards, and a mixed one."""
    model = ModelSpec("lhi", "gru", n_bits=1)
    runs = [RunSpec(model, seed, EASY) for seed in (0, 1)]
    mixed = RunSpec(model, 0, replace(EASY, examples="mixed"))
    device = choose_device("cpu")
    for store, some in ((tmp_path / "uniform", runs), (tmp_path / "mixed", [mixed])):
        for result in train(some, store, device):
            assert result.solved
    path = RunFolder(tmp_path / "uniform", runs[1]).path / "weights.safetensors"
    weights = load_file(path)
    save_file(weights | {"head.weight": torch.zeros_like(weights["head.weight"])}, path)
    return [tmp_path / "uniform", tmp_path / "mixed"]


def test_cells_are_counted_and_wrong_answers_sorted(stores, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "found.json"
    arguments = [str(SCRIPT), *map(str, stores), "--device", "cpu", "--json", str(out)]
    for _ in range(2):  # the second reads the records
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(SCRIPT), run_name="__main__")
        text = capsys.readouterr().out
        assert "| LHI gru L=1 n=1 | uniform | 2 | 2 | 1 | 0 | 1 | 0 |" in text
        assert "| LHI gru L=1 n=1 | mixed | 1 | 1 | 0 | 0 | 1 | 0 |" in text
        assert "| **all** | mixed | 1 | 1 |" in text
        assert "Refuted runs trained on uniform examples that end perfect: 1\n" in text
        assert "trained on mixed examples" not in text
    data = json.loads(out.read_text())
    assert [cell["refuted"] for cell in data["cells"]] == [1, 0]
    wrong, tried = data["common"]["uniform"]["counts"]["uniform"]["all"]
    assert 0 < wrong < tried == 16_384  # one answer for both bits


def test_a_success_that_cannot_be_tried_is_no_run_without_success(stores, capsys) -> None:
    script = runpy.run_path(str(SCRIPT))
    (path,) = stores[1].glob("*/weights.safetensors")
    path.write_bytes(b"damaged")
    cells, _ = script["verify_all"](stores, choose_device("cpu"), 64, again=False)
    assert (
        "set aside: the weights of lhi_n1_gru_L1d16h2_polynomial_s0 are" in capsys.readouterr().err
    )
    counts = {kind: (cell.runs, cell.solved) for (_, kind), cell in cells.items()}
    assert counts == {"uniform": (2, 2)}


def test_the_figure_calls_nothing_refuted_that_was_not_tried(tmp_path) -> None:
    script = runpy.run_path(str(FIGURE))
    verdicts = ["refuted", "proved on all inputs", "unsettled", "not refuted", None, None]
    solved = [True, True, True, True, False, None]
    cell = {"task": "lhi", "family": "gru", "n_layers": 1, "n_bits": 64}

    def write(*more: bool) -> None:
        rows = pl.DataFrame({"verification": [*verdicts, *[None] * len(more)]}).with_columns(
            *(pl.lit(value).alias(name) for name, value in cell.items()),
            solved=pl.Series([*solved, *more]),
        )
        for kind in script["KINDS"]:
            (tmp_path / kind).mkdir(exist_ok=True)
            rows.write_csv(tmp_path / kind / "runs.csv")

    write()
    found = script["counts"](tmp_path)
    assert set(found.select("runs", "solved", "stands").iter_rows()) == {(5, 4, 3)}
    write(True)
    with pytest.raises(StoreError, match="3 solved runs have no verdict"):
        script["counts"](tmp_path)


def test_every_verdict_is_counted_by_its_own_name(stores) -> None:
    script = runpy.run_path(str(SCRIPT))
    folder = next(path.parent for path in stores[1].glob("*/spec.json"))
    found = verify_run(folder, choose_device("cpu"))
    counted = {"refuted": "refuted", "not refuted": "not_refuted", "unsettled": "unsettled"}
    counted |= {"right on all inputs": "right", "proved on all inputs": "proved"}
    for verdict, name in counted.items():
        cell = script["Cell"]()
        script["_count"](cell, replace(found, verdict=verdict))
        assert {each for each in counted.values() if getattr(cell, each)} == {name}
    cell = script["Cell"]()
    script["_count"](cell, replace(found, verdict="bounded (unchecked)"))
    assert (cell.not_refuted, cell.proved) == (1, 0)
