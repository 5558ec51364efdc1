"""Agreement where there is agreement, disagreement where it was put, and missing called missing."""

import dataclasses
from pathlib import Path

import pytest
from synthetic_store import Plan, paper_plans, positions_plans, write_store

from ithbit.errors import SpecError
from ithbit.report.cells import Cells, gather
from ithbit.report.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    TOO_FEW,
    Agreement,
    Comparison,
    Kind,
)
from ithbit.report.comparison.compare import compare
from ithbit.report.standing import Standing
from ithbit.report.tables.main import TABLES
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.frame import load_rows


def kinds(agreement: Agreement) -> dict[str, Kind]:
    return {kind.name: kind for kind in agreement.kinds}


def compared(store: Path, plans: list[Plan]) -> Agreement:
    return compare(gather(load_rows(write_store(store, plans, with_history=False))))


def test_runs_like_the_published_ones_agree(paper_cells: Cells) -> None:
    agreement = compare(paper_cells)
    counts = {name: len(kind.comparisons) for name, kind in kinds(agreement).items()}
    assert counts == {
        "successes": 92,
        "successes together": 1,
        "accuracy": 108,
        "epochs": 9,
        "encodings": 10,
        "length shift": 26,
        "parameters": 9,
    }
    assert agreement.complete
    assert all(kind.count(DIFFERS) == 0 for kind in agreement.kinds if kind.name != "length shift")


def test_a_seed_that_fails_leaves_nothing_incomplete(tmp_path: Path) -> None:
    plans = paper_plans() + positions_plans()
    at = next(
        k
        for k, plan in enumerate(plans)
        if plan.solved and plan.run.model == ModelSpec("lhi", "gru", 64)
    )
    plans[at] = dataclasses.replace(plans[at], solved=False, accuracy=0.9, epochs=500)
    agreement = compared(tmp_path, plans)
    assert agreement.complete
    cells = gather(load_rows(tmp_path))
    assert not any("fewer finished" in note for note in TABLES["length-by-n"](cells).notes)


def test_differences_are_found_with_their_runs(differing_store: Path) -> None:
    agreement = compare(gather(load_rows(differing_store)))
    assert not agreement.agrees
    found = kinds(agreement)
    assert found["parameters"].count(DIFFERS) == 1
    assert found["epochs"].count(DIFFERS) == 1
    assert found["accuracy"].count(DIFFERS) == 4
    assert found["successes together"].count(DIFFERS) == 1
    # Five runs against five: no single cell can differ after Holm's correction over 92.
    assert found["successes"].count(DIFFERS) == 0
    assert min(c.p_value or 1 for c in found["successes"].comparisons) < 0.008
    largest = agreement.largest()
    assert len(largest) == 5
    assert all(item.verdict == DIFFERS for item in largest)
    parameters = next(c for c in largest if c.kind == "parameters")
    assert (parameters.ours, parameters.published) == ("6000", "6577")
    assert parameters.cell == "LHI Causal linear L=2 n=64"
    assert len(parameters.runs) == 5
    assert all(run.startswith("lhi_n64_linear-causal_L2") for run in parameters.runs)
    assert agreement.verdict().startswith("Disagreement: 7 of ")


def test_more_seeds_let_a_single_cell_differ(tmp_path: Path) -> None:
    model = ModelSpec("rhi", "gru", 8)
    agreement = compared(
        tmp_path, [Plan(RunSpec(model, seed), False, 0.9, 500) for seed in range(40)]
    )
    cell = next(c for c in kinds(agreement)["successes"].comparisons if c.verdict == DIFFERS)
    assert (cell.ours, cell.published) == ("0/40", "5/5")
    assert cell.adjusted is not None
    assert cell.adjusted == cell.p_value  # one cell tested: nothing to correct for


def test_missing_is_called_missing(tmp_path: Path) -> None:
    plans = [p for p in paper_plans() if p.run.model.family == "gru"]
    agreement = compared(tmp_path, plans)
    successes = kinds(agreement)["successes"]
    assert successes.count(MISSING) == 92 - 20
    assert successes.count(AGREES) == 20
    assert kinds(agreement)["encodings"].count(MISSING) == 8
    assert not agreement.complete
    assert "Of 255 in all, " in agreement.verdict()
    assert " are missing" in agreement.verdict()


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    agreement = compared(tmp_path, [p for p in paper_plans() if p.run.seed == 0])
    found = kinds(agreement)
    assert found["accuracy"].count(TOO_FEW) == 108
    assert found["epochs"].count(TOO_FEW) == 9
    assert found["successes"].count(AGREES) == 92
    assert found["successes"].n_incomplete == 92
    assert found["successes together"].n_incomplete == 1
    assert found["accuracy"].n_incomplete == 0
    assert agreement.n_incomplete == sum(kind.n_incomplete for kind in agreement.kinds)
    assert "108" not in agreement.verdict().split("Of 255")[0]


def test_pooled_cells_wait_for_all_their_configurations(tmp_path: Path) -> None:
    plans = [p for p in positions_plans() if p.run.model.family == "gru"]
    agreement = compared(tmp_path, plans)
    encodings = kinds(agreement)["encodings"]
    assert encodings.count(TOO_FEW) == 6
    assert encodings.count(MISSING) == 4  # rotary, and polynomial
    assert encodings.smallest is None
    assert agreement.n_compared == 0
    assert agreement.verdict() == (
        "Nothing to compare yet. Of 255 in all, 249 are missing and 6 have too few runs to judge."
    )


def agreement_of(cells: tuple[Comparison, ...]) -> Agreement:
    return Agreement(0.05, (Kind("a", "by hand", cells),), Standing(0, 0, {}), ())


def test_the_headline_says_how_much_was_compared() -> None:
    agreeing = Comparison("a", "one", "1", "1", AGREES)
    absent = Comparison("a", "two", "–", "1", MISSING)
    few = Comparison("a", "three", "1", "1", TOO_FEW)
    heads = {
        (agreeing,): "✓ Agrees with the published numbers",
        (agreeing, absent, few): "✓ Agrees with the published numbers where compared: 1 of 3",
        (absent, few): "Not compared with the published numbers",
    }
    for cells, headline in heads.items():
        assert agreement_of(cells).headline() == headline


def test_no_cell_of_the_papers(tmp_path: Path) -> None:
    agreement = compared(tmp_path, [Plan(RunSpec(ModelSpec("rhi", "gru", 128), 0), True, 1.0, 9)])
    assert agreement.n_compared == 0
    assert agreement.verdict() == "Nothing to compare: all 255 comparisons are missing."
    assert agreement.agrees


def test_alpha_is_shared_among_the_kinds_that_test(tmp_path: Path, paper_cells: Cells) -> None:
    strict, lax = compare(paper_cells, 0.01), compare(paper_cells, 0.5)
    for narrow, wide in zip(lax.comparisons, strict.comparisons, strict=True):
        if narrow.interval is not None and wide.interval is not None:
            assert wide.interval[0] <= narrow.interval[0]
            assert wide.interval[1] >= narrow.interval[1]
    with pytest.raises(SpecError, match=r"alpha must lie between 0 and 1, got 0.0; 0.05 is usual"):
        compare(paper_cells, 0.0)


def test_epochs_are_compared_as_a_ratio(paper_cells: Cells) -> None:
    for cell in kinds(compare(paper_cells))["epochs"].comparisons:
        assert cell.interval is not None
        ratio = float(cell.ours) / float(cell.published)
        assert cell.interval[0] < ratio < cell.interval[1]
        assert cell.interval[0] > 0


def test_largest_puts_what_differs_first() -> None:
    cells = (
        Comparison("a", "one", "1", "2", AGREES, p_value=0.001),
        Comparison("a", "two", "1", "2", DIFFERS, p_value=0.01),
        Comparison("a", "three", "1", "2", AGREES, p_value=0.3),
        Comparison("a", "four", "1", "2", DIFFERS),
    )
    agreement = agreement_of(cells)
    assert [c.cell for c in agreement.largest()] == ["four", "two", "one"]
    assert [c.cell for c in agreement.largest(1)] == ["four"]
    assert agreement.verdict() == "Disagreement: 2 of 4 comparisons differ."
    assert agreement.headline() == "✗ Differs from the published numbers"
