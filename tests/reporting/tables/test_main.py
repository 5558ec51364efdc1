"""The paper's tables, from made-up runs that succeed as often as published."""

from pathlib import Path

from tests.support.synthetic_store import Plan, paper_plans, write_store

from ithbit.published import Variant
from ithbit.reporting.cells import Cells, gather
from ithbit.reporting.tables.main import TABLES
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import load_rows

PAPER_TABLES = ("main", "accuracy", "positions", "cost", "length-by-n", "length-by-family")


def test_published_tables_need_no_runs() -> None:
    for name in PAPER_TABLES:
        table = TABLES[name](Cells())
        assert table.rows
        for row in table.rows:
            assert len(row.labels) == len(table.heads)
            assert len(row.values) == len(table.columns)
            assert all(value.ours is None and value.published for value in row.values)


def test_main_has_23_rows_and_the_totals(paper_cells: Cells) -> None:
    table = TABLES["main"](paper_cells)
    assert [row.kind for row in table.rows] == ["row"] * 23 + ["total"] * 2
    constructive, stress = table.rows[-2:]
    assert [value.ours for value in constructive.values] == ["40/40", "40/40", "40/40", "38/40"]
    assert [value.published for value in constructive.values] == ["40", "40", "40", "38"]
    assert [value.ours for value in stress.values] == ["70/75", "51/75", "13/75", "0/75"]
    for row in table.rows[:-2]:
        for value in row.values:
            assert value.ours == f"{value.published}/5"
    assert any("the full variant's runs are counted" in note for note in table.notes)


def test_main_says_where_the_causal_twin_differs(tmp_path: Path) -> None:
    plans = [
        Plan(plan.run, False, 0.9, 500)
        if plan.run.model.family == "softmax-causal" and plan.run.seed < 2
        else plan
        for plan in paper_plans()
        if plan.run.model.task == "rhi" and plan.run.model.n_bits == 8
    ]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    table = TABLES["main"](cells)
    assert table.rows[0].values[0].ours == "5/5"
    assert any("the causal variant differs: RHI Softmax n=8 3/5)" in note for note in table.notes)


def test_seeds_that_one_twin_lacks_are_no_difference(tmp_path: Path) -> None:
    plans = [
        plan
        for plan in paper_plans()
        if plan.run.model == ModelSpec("lhi", "softmax-full", 8)
        or (plan.run.model == ModelSpec("lhi", "softmax-causal", 8) and plan.run.seed in (1, 3))
    ]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    assert not any("differs" in note for note in TABLES["main"](cells).notes)


def test_runs_that_end_when_first_perfect_are_told(tmp_path: Path) -> None:
    protocol = Protocol(stop_when_solved=True)
    runs = [RunSpec(ModelSpec("lhi", "gru", 64), seed, protocol) for seed in range(3)]
    runs.append(RunSpec(ModelSpec("lhi", "gru", 64), 3))
    plans = [Plan(run, True, 1.0, 50 + run.seed) for run in runs]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    cost = TABLES["cost"](cells)
    row = next(row for row in cost.rows if row.values[0].ours)
    assert [value.ours for value in row.values[:3:2]] == ["4/4*", "53*"]
    early = "runs that were set to stop when first perfect"
    assert f"epochs and seconds, not solved runs, leave out {early}" in cost.notes
    assert f"left out: {early}" in TABLES["length-by-n"](cells).notes
    sentence = (
        "3 of the runs were set to stop when first perfect, which changes neither successes nor "
        "accuracy"
    )
    assert sentence in TABLES["accuracy"](cells).notes


def test_the_numbers_of_runs_are_told_where_they_differ(tmp_path: Path) -> None:
    runs = [RunSpec(ModelSpec("lhi", "gru", 8), seed) for seed in range(3)]
    runs += [RunSpec(ModelSpec("lhi", "gru", 16), 0)]
    store = write_store(tmp_path, [Plan(run, True, 1.0, 50) for run in runs], with_history=False)
    assert "cells have 1 to 3 runs" in TABLES["accuracy"](gather(load_rows(store))).notes


def test_a_seed_of_two_settings_stands_in_two_rows(tmp_path: Path) -> None:
    model = ModelSpec("lhi", "gru", 8)
    runs = [RunSpec(model, 0, Protocol(max_epochs=epochs)) for epochs in (3, 4)]
    store = write_store(tmp_path, [Plan(run, True, 1.0, 3) for run in runs], with_history=False)
    rows = TABLES["main"](gather(load_rows(store), "any")).rows
    assert [row.labels[1] for row in rows] == ["GRU, epochs = 3", "GRU, epochs = 4"]
    assert [row.values[0].ours for row in rows] == ["1/1", "1/1"]


def test_incomplete_cells_are_marked(tmp_path: Path) -> None:
    plans = [p for p in paper_plans() if p.run.model == ModelSpec("rhi", "gru", 16, 2)]
    cells = gather(load_rows(write_store(tmp_path, plans[:4], with_history=False)))
    table = TABLES["main"](cells)
    row = next(r for r in table.rows if r.labels[:3] == ("RHI", "GRU", "2"))
    assert [value.ours for value in row.values] == [None, "3/4*", None, None]
    assert table.rows[-1].values[1].ours == "3/4*"
    assert "* fewer finished runs than the paper has for this cell" in table.notes
    assert "– no finished run: 98 of the paper's cells" in table.notes


def test_lengths_that_the_paper_does_not_have_are_not_marked(tmp_path: Path) -> None:
    runs = [Plan(RunSpec(ModelSpec("rhi", "gru", 4), seed), False, 0.6, 9) for seed in range(2)]
    cells = gather(load_rows(write_store(tmp_path, runs, with_history=False)))
    main, accuracy = TABLES["main"](cells), TABLES["accuracy"](cells)
    assert main.columns[0] == accuracy.columns[0] == "n=4"
    assert main.rows[-1].values[0].ours == "0/2"
    assert {row.values[0].ours for row in main.rows} == {None, "0/2"}
    assert {row.values[0].ours for row in accuracy.rows} == {None, "0.60±0.00"}
    for table in (main, accuracy):
        assert not any(note.startswith("*") for note in table.notes)


def test_more_than_five_seeds_count(tmp_path: Path) -> None:
    plans = [p for p in paper_plans(range(20)) if p.run.model == ModelSpec("rhi", "gru", 16, 2)]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    row = next(r for r in TABLES["main"](cells).rows if r.labels[1:3] == ("GRU", "2"))
    assert row.values[1].ours == "12/20"


def test_rows_and_lengths_beyond_the_paper_stand_apart(tmp_path: Path) -> None:
    runs = [
        Plan(RunSpec(ModelSpec("lhi", "gru", 128, 3), 0), True, 1.0, 9),
        Plan(RunSpec(ModelSpec("lhi", "gru", 8, 1), 0), True, 1.0, 9),
    ]
    cells = gather(load_rows(write_store(tmp_path, runs, with_history=False)))
    for name in ("main", "accuracy"):
        table = TABLES[name](cells)
        assert table.columns == ("n=8", "n=16", "n=32", "n=64", "n=128")
        extra = [row for row in table.rows if row.kind == "extra"]
        assert [row.labels[:3] for row in extra] == [("LHI", "GRU", "3")]
        assert extra[0].values[4].ours is not None
    totals = TABLES["main"](cells).rows[-2]
    assert [value.ours for value in totals.values] == ["1/1*", None, None, None, None]


def test_accuracy_has_27_rows_close_to_the_published(paper_cells: Cells) -> None:
    table = TABLES["accuracy"](paper_cells)
    assert len(table.rows) == 27
    row = next(r for r in table.rows if r.labels[:3] == ("RHI", "Full softmax", "1"))
    assert [value.ours for value in row.values] == ["1.00±0.00"] * 4
    assert row.labels[3] == "✓"
    assert table.notes[0].startswith("✓ constructive: the paper's theorems")


def test_positions_counts_the_ablations_seeds_alone(paper_cells: Cells) -> None:
    table = TABLES["positions"](paper_cells)
    runs = [row.values[0] for row in table.rows]
    assert [value.ours for value in runs] == [value.published for value in runs]
    successes = [row.values[1] for row in table.rows[:8]]
    assert [value.ours for value in successes] == [value.published for value in successes]
    assert table.notes[0].startswith("seeds 0, 1, 2;")


def test_cost_gives_medians_and_sizes(paper_cells: Cells) -> None:
    table = TABLES["cost"](paper_cells)
    assert len(table.rows) == 9
    gru = next(row for row in table.rows if row.labels[1] == "GRU")
    successes, parameters, epochs, train, evaluation = gru.values
    assert (successes.ours, parameters.ours) == ("5/5", "1777")
    runs = paper_cells.runs(Variant("lhi", "gru", 1), 64)
    assert epochs.ours == f"{sorted(runs['epochs'])[2]}"
    assert (train.ours, evaluation.ours) == ("0.250", "0.0120")


def test_sizes_that_disagree_are_both_shown(tmp_path: Path) -> None:
    model = ModelSpec("lhi", "gru", 64)
    runs = [Plan(RunSpec(model, seed), True, 1.0, 9, 1777 + seed) for seed in range(2)]
    cells = gather(load_rows(write_store(tmp_path, runs, with_history=False)))
    gru = next(row for row in TABLES["cost"](cells).rows if row.labels[1] == "GRU")
    assert gru.values[1].ours == "1777 or 1778"


def test_length_tables_count_solved_runs_alone(paper_cells: Cells) -> None:
    by_n = TABLES["length-by-n"](paper_cells)
    assert [row.values[0].ours for row in by_n.rows] == ["45/45", "45/45", "45/45", "43/45"]
    by_family = TABLES["length-by-family"](paper_cells)
    mamba = next(row for row in by_family.rows if row.labels[1] == "Mamba")
    assert mamba.values[0].ours == "4/5"
    runs = paper_cells.runs(Variant("lhi", "mamba2", 2), 64).filter(solved=True)
    mean = sum(runs["half_length_accuracy"]) / 4
    assert mamba.values[1].ours is not None
    assert mamba.values[1].ours.startswith(f"{mean:.3f}±")
