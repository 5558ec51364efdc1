"""Which runs count."""

from pathlib import Path

import pytest
from synthetic_store import Plan, paper_plans, write_run, write_store

from ithbit.engine.spec import Protocol, RunSpec
from ithbit.errors import StoreError
from ithbit.models.spec import ModelSpec
from ithbit.report.cells import Cells, gather, median, summary, together
from ithbit.report.published import Variant
from ithbit.report.rows import load_rows

GRU = Variant("lhi", "gru", 1)
MODEL = ModelSpec("lhi", "gru", 64)


def plan(seed: int, protocol: Protocol = Protocol(), solved: bool = True, epochs: int = 9) -> Plan:
    return Plan(RunSpec(MODEL, seed, protocol), solved, 1.0 if solved else 0.7, epochs)


def test_counts_follow_the_published_ones(paper_cells: Cells) -> None:
    assert paper_cells.count(GRU, 64) == (5, 5)
    assert paper_cells.count(Variant("rhi", "mamba2", 4), 32) == (3, 5)
    assert paper_cells.count(Variant("lhi", "gru", 1), 32, "learned")[1] == 3
    assert paper_cells.count(Variant("rhi", "linear-full", 4), 8) == (0, 0)
    assert paper_cells.lengths() == [8, 16, 32, 64]
    assert len(paper_cells.variants()) == 27


def test_an_early_stop_counts_for_success_and_not_for_epochs(tmp_path: Path) -> None:
    early = Protocol(stop_when_solved=True)
    write_store(tmp_path, [plan(0, epochs=30), plan(1, early, epochs=10)], with_history=False)
    cells = gather(load_rows(tmp_path))
    assert cells.count(GRU, 64) == (2, 2)
    assert median(cells.runs(GRU, 64, whole=True), "epochs") == 30.0


def test_of_two_runs_of_a_seed_the_whole_one_counts(tmp_path: Path) -> None:
    early = Protocol(stop_when_solved=True)
    write_store(tmp_path, [plan(0, early), plan(0, solved=False)], with_history=False)
    cells = gather(load_rows(tmp_path))
    assert cells.count(GRU, 64) == (0, 1)
    assert cells.n_left_out == 1


def test_other_settings_count_only_when_asked_for(tmp_path: Path) -> None:
    short = Protocol(max_epochs=3)
    write_store(tmp_path, [plan(0), plan(0, short, False)], with_history=False)
    assert gather(load_rows(tmp_path)).count(GRU, 64) == (1, 1)
    assert gather(load_rows(tmp_path), "any").count(GRU, 64) == (1, 2)
    assert gather(load_rows(tmp_path)).notes() == [
        "1 finished runs with other settings than the paper's, or with a seed that another run "
        "has, are left out"
    ]
    assert "not the paper's protocol" in gather(load_rows(tmp_path), "any").notes()[0]


def test_nothing_to_count_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, plan(0), "failure")
    write_run(tmp_path, plan(1), "spec")
    with pytest.raises(StoreError, match=r"has finished \(1 failed, 1 unfinished, 0 set aside\)"):
        gather(load_rows(tmp_path))
    write_run(tmp_path, plan(2, Protocol(max_epochs=3)))
    with pytest.raises(StoreError, match=r"none of the 1 finished runs .* --settings any"):
        gather(load_rows(tmp_path))
    assert gather(load_rows(tmp_path), "any").count(GRU, 64) == (1, 1)


def test_summaries(tmp_path: Path) -> None:
    cells = gather(load_rows(write_store(tmp_path, paper_plans()[:5], with_history=False)))
    runs = together([None, *cells.by_cell.values()])
    found = summary(runs, "epochs")
    assert runs is not None
    assert found is not None
    assert found.runs == 5
    assert found.mean == pytest.approx(sum(runs["epochs"]) / 5)
    # Sample standard deviation: divided by m - 1.
    squares = sum((value - found.mean) ** 2 for value in runs["epochs"])
    assert found.sd == pytest.approx((squares / 4) ** 0.5)
    one = summary(runs.head(1), "epochs")
    assert one is not None
    assert one.sd is None
    assert summary(None, "epochs") is None
    assert summary(runs, "first_solved_epoch") is not None
    assert median(None, "epochs") is None
    assert together([None]) is None
