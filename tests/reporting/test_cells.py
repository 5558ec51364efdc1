"""Which runs count."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.synthetic_store import Plan, paper_plans, write_run, write_store

from ithbit.errors import StoreError
from ithbit.published import Variant
from ithbit.reporting.cells import Cells, full_protocol_runs, gather, median, summary
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.verdict_counts import count_verdicts
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import load_rows

GRU = Variant("lhi", "gru", 1)
MODEL = ModelSpec("lhi", "gru", 64)


def plan(seed: int, protocol: Protocol = Protocol(), solved: bool = True, epochs: int = 9) -> Plan:
    return Plan(RunSpec(MODEL, seed, protocol), solved, 1.0 if solved else 0.7, epochs)


def counted(cells: Cells, variant: Variant, n_bits: int) -> tuple[int, int]:
    """Solved runs of a cell, and all of them."""
    found = cells.verdict_counts([variant], n_bits)
    return found.solved, found.runs


def test_counts_follow_the_published_ones(paper_cells: Cells) -> None:
    assert counted(paper_cells, GRU, 64) == (5, 5)
    assert counted(paper_cells, Variant("rhi", "mamba2", 4), 32) == (3, 5)
    assert paper_cells.runs(GRU, 32, "learned").height == 3
    assert counted(paper_cells, Variant("rhi", "linear-full", 4), 8) == (0, 0)
    assert paper_cells.lengths() == [8, 16, 32, 64]
    assert len(paper_cells.variants()) == 27


def test_an_early_stop_counts_for_success_and_not_for_epochs(tmp_path: Path) -> None:
    early = Protocol(stop_when_solved=True)
    write_store(tmp_path, [plan(0, epochs=30), plan(1, early, epochs=10)], with_history=False)
    cells = gather(load_rows(tmp_path))
    assert counted(cells, GRU, 64) == (2, 2)
    assert median(full_protocol_runs(cells.runs(GRU, 64)), "epochs") == 30.0


def test_of_two_runs_of_a_seed_the_whole_one_counts(tmp_path: Path) -> None:
    early = Protocol(stop_when_solved=True)
    write_store(tmp_path, [plan(0, early), plan(0, solved=False)], with_history=False)
    cells = gather(load_rows(tmp_path))
    assert counted(cells, GRU, 64) == (0, 1)
    assert cells.n_left_out == 1


def test_other_settings_stand_apart_or_are_left_out(tmp_path: Path) -> None:
    short = Protocol(max_epochs=3)
    write_store(tmp_path, [plan(0), plan(0, short, False)], with_history=False)
    assert counted(gather(load_rows(tmp_path), "paper"), GRU, 64) == (1, 1)
    both = gather(load_rows(tmp_path), "any")
    assert counted(both, GRU, 64) == (1, 1)
    assert counted(both, replace(GRU, differs=(("max_epochs", 3),)), 64) == (0, 1)
    assert gather(load_rows(tmp_path), "paper").notes() == [
        "left out: 1 finished run with other settings than the paper's, or set to stop when first "
        "perfect with a seed that a whole run has"
    ]
    assert "settings that are not the paper's are named" in both.notes()[0]


def test_nothing_to_count_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, plan(0), "failure")
    write_run(tmp_path, plan(1), "spec")
    with pytest.raises(StoreError, match=r"has finished \(1 failed, 1 unfinished, 0 set aside\)"):
        gather(load_rows(tmp_path))
    write_run(tmp_path, plan(2, Protocol(max_epochs=3)))
    with pytest.raises(StoreError, match=r"none of the 1 finished runs .* --settings any"):
        gather(load_rows(tmp_path), "paper")
    assert counted(gather(load_rows(tmp_path)), GRU, 64) == (0, 0)


# A value of each field that is neither the paper's nor refused.
OTHERS: dict[str, Any] = {
    "d_model": 8,
    "n_heads": 4,
    "d_ff": 8,
    "d_state": 4,
    "examples": "mixed",
} | {
    name: value * 2 if isinstance(value, int) else (value + 0.01) / 2
    for name, value in asdict(Protocol()).items()
    if name not in ("stop_when_solved", "examples")
}


@pytest.mark.parametrize("field", OTHERS)
def test_runs_that_differ_in_anything_but_the_seed_are_never_pooled(
    tmp_path: Path, field: str
) -> None:
    changed = {field: OTHERS[field]}
    usual = RunSpec(ModelSpec("lhi", "softmax-full", 8, 2), 0)
    of_model = field in ("d_model", "n_heads", "d_ff", "d_state")
    model = replace(usual.model, **changed) if of_model else usual.model
    protocol = usual.protocol if of_model else replace(usual.protocol, **changed)
    runs = [usual, RunSpec(model, 0, protocol), RunSpec(model, 1, protocol)]
    plans = [Plan(run, True, 1.0, 2) for run in runs]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)), "any")
    assert [runs["seed"].to_list() for runs in cells.by_cell.values()] == [[0], [0, 1]]
    labels = [cells.label(variant) for variant in cells.variants()]
    assert labels[0] == "Full softmax"
    assert labels[1].startswith("Full softmax, ")
    for name in TABLES:
        rows = [row for row in TABLES[name](cells).rows if row.kind == "extra"]
        assert all(value.published is None for row in rows for value in row.values)


def test_a_seed_counts_once_whatever_the_settings(tmp_path: Path) -> None:
    early = Protocol(max_epochs=3, stop_when_solved=True)
    plans = [plan(0, early), plan(0, Protocol(max_epochs=3), solved=False)]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)), "any")
    assert [(f.solved, f.runs) for f in map(count_verdicts, cells.by_cell.values())] == [(0, 1)]
    assert cells.notes()[-1].startswith("left out: 1 finished run set to stop when first perfect")


def test_what_all_runs_share_is_a_note_and_what_tells_them_apart_a_label(tmp_path: Path) -> None:
    shared = Protocol(max_epochs=3, batch_size=64)
    models = [replace(MODEL, d_model=width) for width in (8, 32)]
    plans = [Plan(RunSpec(model, 0, shared), True, 1.0, 2) for model in models]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)), "any")
    table = TABLES["main"](cells)
    assert [row.labels[1] for row in table.rows] == ["GRU, d = 8", "GRU, d = 32"]
    assert "all runs differ from the paper's settings in: batch = 64, epochs = 3" in table.notes
    assert not compare(cells).n_compared


def test_summaries(tmp_path: Path) -> None:
    cells = gather(load_rows(write_store(tmp_path, paper_plans()[:5], with_history=False)))
    runs = cells.of(cells.by_cell)
    found = summary(runs, "epochs")
    assert found is not None
    assert found.runs == 5
    assert found.mean == pytest.approx(sum(runs["epochs"]) / 5)
    # Sample standard deviation: divided by m - 1.
    squares = sum((value - found.mean) ** 2 for value in runs["epochs"])
    assert found.sd == pytest.approx((squares / 4) ** 0.5)
    one = summary(runs.head(1), "epochs")
    assert one is not None
    assert one.sd is None
    assert summary(runs.clear(), "epochs") is None
    assert summary(runs, "first_solved_epoch") is not None
    assert median(runs.clear(), "epochs") is None
    assert cells.of([]).is_empty()
