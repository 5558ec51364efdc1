"""Agreement where there is agreement, disagreement where it was put, and missing called missing."""

import dataclasses
from pathlib import Path

import polars as pl
import pytest
from tests.support.paths import RESULTS
from tests.support.synthetic_store import Plan, paper_plans, positions_plans, write_store

from ithbit.errors import SpecError
from ithbit.published import published
from ithbit.reporting.cells import Cells, gather
from ithbit.reporting.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    TOO_FEW,
    Agreement,
    Comparison,
    Joint,
    Kind,
    _line,
    beyond,
)
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.comparison.statistics import fisher_exact, fisher_limits
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.verdict_counts import VerdictCounts
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
        "successes one way": 3,
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
    one_way = {c.cell: c.verdict for c in found["successes one way"].comparisons}
    assert [*one_way.values()] == [DIFFERS, DIFFERS, AGREES]  # all, constructive, stress tests
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
    assert agreement.verdict().startswith("Disagreement: 9 of ")


def test_more_seeds_let_a_single_cell_differ(tmp_path: Path) -> None:
    model = ModelSpec("rhi", "gru", 8)
    agreement = compared(
        tmp_path, [Plan(RunSpec(model, seed), False, 0.9, 500) for seed in range(40)]
    )
    cell = next(c for c in kinds(agreement)["successes"].comparisons if c.verdict == DIFFERS)
    assert (cell.ours, cell.published) == ("0/40", "5/5")
    assert cell.adjusted is not None
    assert cell.adjusted == cell.p_value  # one cell tested: nothing to correct for


def with_seed_0_failing(rows: pl.DataFrame) -> pl.DataFrame:
    """Seeds 0 to 4, with seed 0 made to fail in every cell that was published as 5/5."""
    full = [
        {"task": v.task, "family": v.family, "n_layers": v.n_layers, "n_bits": n, "seed": 0}
        for row in published().successes
        for v in row.variants
        for n, count in row.successes.items()
        if count == 5
    ]
    keys = ["task", "family", "n_layers", "n_bits", "seed"]
    spoilt = pl.struct(keys).is_in(full) & (pl.col("positions") == "polynomial")
    rows = rows.filter(pl.col("seed") < 5).with_columns(spoilt=spoilt & pl.col("solved"))
    return rows.with_columns(
        solved=pl.col("solved") & ~pl.col("spoilt"),
        max_accuracy=pl.when("spoilt").then(0.9).otherwise("max_accuracy"),
    )


def test_a_seed_that_fails_everywhere_is_seen_in_our_runs() -> None:
    records = load_rows(RESULTS / "paper")
    rows = with_seed_0_failing(records.rows)
    assert rows["spoilt"].sum() == 56
    agreement = compare(gather(dataclasses.replace(records, rows=rows.drop("spoilt"))))
    found = kinds(agreement)
    # No single cell sees it, nor does the test against differences in any direction.
    assert found["successes"].count(DIFFERS) == 0
    (together,) = found["successes together"].comparisons
    assert together.p_value == pytest.approx(0.83, abs=0.005)
    every, constructive, stress = agreement.joint
    assert not agreement.agrees
    assert every.comparison.verdict == constructive.comparison.verdict == DIFFERS
    assert every.comparison.p_value == pytest.approx(4.92e-7, rel=0.01)
    assert stress.comparison.p_value == pytest.approx(0.034, abs=0.001)
    assert "fewer than expected" in every.sentence()
    assert "no evidence" in stress.sentence()


def test_a_seed_that_fails_everywhere_and_nothing_else(tmp_path: Path) -> None:
    """Where all other runs are as published, the probability is that of 52 fair coins and the
    undecided cells."""
    plans = [
        dataclasses.replace(plan, solved=False, accuracy=0.9, epochs=500)
        if plan.run.seed == 0 and plan.run.model in published_as_five()
        else plan
        for plan in paper_plans()
    ]
    agreement = compared(tmp_path, plans)
    assert not agreement.agrees
    every = agreement.joint[0].comparison
    assert every.p_value is not None
    assert 1e-11 < every.p_value < 1e-8


def published_as_five() -> set[ModelSpec]:
    return {
        ModelSpec(v.task, v.family, n, v.n_layers)
        for row in published().successes
        for v in row.variants
        for n, count in row.successes.items()
        if count == 5
    }


def test_every_comparison_says_what_would_differ(paper_cells: Cells, tmp_path: Path) -> None:
    agreement = compare(paper_cells)
    assert all(c.detects for c in agreement.comparisons)
    # Five runs against five: nothing that could happen in one cell would differ.
    assert {c.detects for c in kinds(agreement)["successes"].comparisons} == {"no count"}
    assert "successes, one cell by itself: no count of ours would differ." in str(agreement)
    models = [ModelSpec("lhi", "softmax-full", 8), *[ModelSpec("rhi", "gru", n) for n in (8, 16)]]
    plans = [
        Plan(RunSpec(model, seed), seed > 0, 1.0 if seed else 0.9, 100)
        for model in models
        for seed in range(20)
    ]
    agreement = compared(tmp_path, plans)
    cells = {c.cell: c for c in kinds(agreement)["successes"].comparisons}
    for cell in cells.values():
        if cell.verdict != MISSING:
            # What is said to differ does, and the next count does not.
            runs, theirs = 20, tuple(map(int, cell.published.split("/")))
            few, many = fisher_limits(runs, theirs, 0.05 / 4 / 3)
            differ = [k for k in range(21) if fisher_exact((k, 20), theirs) <= 0.05 / 4 / 3]
            assert cell.detects == beyond((few, many), runs)
            assert differ == [
                k
                for k in range(21)
                if (few is not None and k <= few) or (many is not None and k >= many)
            ]
    assert "would differ: " in _line(cells["LHI Full softmax L=1 n=8"])


def test_counts_that_are_far_apart_are_not_called_agreement() -> None:
    """19/20 against 0/5 among 92 cells: no evidence at the corrected level, and it says so."""
    power = beyond(fisher_limits(20, (0, 5), 0.05 / 7 / 92), 20)
    assert power == "20/20"
    cell = Comparison("successes", "a cell", "19/20", "0/5", AGREES, p_value=1e-4, detects=power)
    assert _line(cell) == (
        "no evidence successes: a cell: ours 19/20, published 0/5; p = 0.0001; would differ: 20/20"
    )
    text = str(agreement_of((cell,)))
    assert "agree" not in text.lower().replace("furthest from agreement", "")


def test_missing_is_called_missing(tmp_path: Path) -> None:
    plans = [p for p in paper_plans() if p.run.model.family == "gru"]
    agreement = compared(tmp_path, plans)
    successes = kinds(agreement)["successes"]
    assert successes.count(MISSING) == 92 - 20
    assert successes.count(AGREES) == 20
    assert kinds(agreement)["encodings"].count(MISSING) == 8
    assert not agreement.complete
    assert "Of 258 in all, " in agreement.verdict()
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
    assert "108" not in agreement.verdict().split("Of 258")[0]


def test_pooled_cells_wait_for_all_their_configurations(tmp_path: Path) -> None:
    plans = [p for p in positions_plans() if p.run.model.family == "gru"]
    agreement = compared(tmp_path, plans)
    encodings = kinds(agreement)["encodings"]
    assert encodings.count(TOO_FEW) == 6
    assert encodings.count(MISSING) == 4  # rotary, and polynomial
    assert encodings.smallest is None
    assert agreement.n_compared == 0
    assert agreement.verdict() == (
        "Nothing to compare yet. Of 258 in all, 252 are missing and 6 have too few runs to judge."
    )


def agreement_of(cells: tuple[Comparison, ...]) -> Agreement:
    return Agreement(0.05, (Kind("a", "by hand", cells),), VerdictCounts(0, 0, {}), ())


def test_the_headline_says_how_much_was_compared() -> None:
    agreeing = Comparison("a", "one", "1", "1", AGREES)
    absent = Comparison("a", "two", "–", "1", MISSING)
    few = Comparison("a", "three", "1", "1", TOO_FEW)
    heads = {
        (agreeing,): "✓ No evidence of a difference from the published numbers",
        (agreeing, absent, few): (
            "✓ No evidence of a difference from the published numbers where compared: 1 of 3"
        ),
        (absent, few): "Not compared with the published numbers",
    }
    for cells, headline in heads.items():
        assert agreement_of(cells).headline() == headline


def test_no_cell_of_the_papers(tmp_path: Path) -> None:
    agreement = compared(tmp_path, [Plan(RunSpec(ModelSpec("rhi", "gru", 128), 0), True, 1.0, 9)])
    assert agreement.n_compared == 0
    assert agreement.verdict() == "Nothing to compare: all 258 comparisons are missing."
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


def test_two_runs_far_apart_leave_an_interval_without_end(tmp_path: Path) -> None:
    """A level of 0.05 over several kinds and cells: the upper end is beyond the largest float."""
    plans = [
        dataclasses.replace(plan, epochs=2 if plan.run.seed else 480)
        for plan in paper_plans(range(2))
        if plan.run.model.n_bits == 64
    ]
    agreement = compared(tmp_path, plans)
    wide = [c for c in kinds(agreement)["epochs"].comparisons if c.interval]
    assert wide
    assert all(c.interval_text == "0.000 to any number" for c in wide)
    assert all((c.verdict, c.detects) == (AGREES, "no factor") for c in wide)
    assert all(c.to_json()["interval"][1] is None for c in wide)


@pytest.mark.parametrize(("alpha", "said"), [(0.05, "5%"), (0.004, "0.4%"), (0.025, "2.5%")])
def test_the_chance_of_a_false_alarm_is_not_rounded_down(paper_cells, alpha, said) -> None:
    text = " ".join(str(compare(paper_cells, alpha)).split())
    assert f"called different at most {said} of the time, as far as runs are independent" in text


def test_a_small_p_that_is_no_evidence_says_why() -> None:
    """Three tests share one level: p = 0.006 is 0.018 after the correction."""
    found = Comparison("successes one way", "all 92 cells", "400/460", "410/460", AGREES)
    small = dataclasses.replace(found, p_value=0.006, adjusted=0.018, detects="399 or fewer")
    said = Joint(small, 405.0, 0.003, 0.999).sentence()
    assert "p = 0.006, 0.018 corrected: no evidence;" in said
    large = dataclasses.replace(found, p_value=0.43, adjusted=1.0)
    assert "p = 0.43: no evidence;" in Joint(large, 405.0, 0.2, 0.8).sentence()
