"""The data file holds together: its arithmetic is that of the paper's own totals and sentences."""

import json
import math
from importlib.resources import files

from ithbit.families import FAMILIES, TASKS, group
from ithbit.published import LENGTHS, Variant, published

PAPER = published()
TABLES = json.loads(files("ithbit").joinpath("published.json").read_text())["tables"]
MAIN = TABLES["tab:expected-outcomes-and-results"]


def test_rows_are_as_many_as_the_paper_has() -> None:
    assert len(PAPER.successes) == 23
    assert len(PAPER.accuracy) == 27
    assert len(PAPER.positions) == 10
    assert len(PAPER.cost) == len(PAPER.length_by_family) == len(PAPER.positions_variants) == 9
    assert len(PAPER.length_by_n) == 4
    assert len(TABLES["tab:main-results"]["rows"]) == 6
    assert len(PAPER.settings) == 33


def test_totals_are_the_sums_of_their_columns() -> None:
    for name, totals in MAIN["totals"].items():
        rows = [row for row in PAPER.successes if row.group == name]
        assert 5 * len(rows) == MAIN["runs_per_total"][name]
        assert [sum(row.successes[n_bits] for row in rows) for n_bits in LENGTHS] == totals
    assert MAIN["totals"] == {"constructive": [40, 40, 40, 38], "stress test": [70, 51, 13, 0]}
    assert MAIN["runs_per_total"] == {"constructive": 40, "stress test": 75}


def test_every_table_by_length_has_the_papers_lengths() -> None:
    for name in ("tab:expected-outcomes-and-results", "tab:supp-max-accuracy"):
        assert tuple(TABLES[name]["n_bits"]) == LENGTHS
    assert TABLES["tab:supp-ood-n64-family"]["n_bits"] == TABLES["tab:supp-cost-n64"]["n_bits"]


def test_constructive_runs_succeed_as_stated() -> None:
    assert MAIN["stated"]["constructive"] == [successes := 158, runs := 160]
    assert sum(MAIN["totals"]["constructive"]) == successes
    assert runs == 4 * MAIN["runs_per_total"]["constructive"]


def test_groups_and_theory_are_those_of_the_families() -> None:
    for row in TABLES["tab:main-results"]["rows"]:
        assert {task: row[task] for task in TASKS} == FAMILIES[row["family"]].min_layers
    for success in PAPER.successes:
        for family in success.families:
            assert success.group == group(success.task, family, success.n_layers)
    for row in TABLES["tab:supp-max-accuracy"]["rows"]:
        assert row["group"] == group(row["task"], row["family"], row["n_layers"])


def test_merged_rows_cover_the_variants_once() -> None:
    merged = [variant for row in PAPER.successes for variant in row.variants]
    assert len(set(merged)) == len(merged) == 27
    assert set(merged) == set(PAPER.accuracy)
    assert sum(variant.task == "rhi" for variant in merged) == 16
    for row in PAPER.successes:
        if len(row.families) == 2:
            assert row.n_layers == 1
            assert not FAMILIES[row.families[0]].causal
            assert FAMILIES[row.families[1]].causal


def test_ablation_has_240_runs_and_54_of_them_in_the_main_sweep() -> None:
    assert sum(row.runs for row in PAPER.positions) == 240
    by_encoding = {(row.positions, row.n_bits): row for row in PAPER.positions}
    for n_bits in (32, 64):
        for name in ("none", "learned", "sinusoidal", "polynomial"):
            assert by_encoding[name, n_bits].runs == 27 == 9 * len(PAPER.positions_seeds)
        assert by_encoding["rotary", n_bits].runs == 12
    assert sum(row.runs for row in PAPER.positions if row.positions == "polynomial") == 54
    assert set(PAPER.positions_variants) <= set(PAPER.accuracy)


def test_one_polynomial_run_misses_and_explains_both_its_means() -> None:
    missed = 0.5910
    row = next(r for r in PAPER.positions if r.positions == "polynomial" and r.n_bits == 64)
    assert row.successes == 26
    assert round((26 + missed) / 27, 4) == row.accuracy
    cell = PAPER.accuracy[Variant("lhi", "softmax-full", 2)][64]
    assert round((4 + missed) / 5, 2) == cell.mean
    # Only the sample standard deviation rounds to the printed 0.18; the population's is 0.16.
    assert round((1 - missed) / math.sqrt(5), 2) == cell.sd


def test_cost_and_length_tables_count_the_same_successes() -> None:
    main = {v: row.successes[64] for row in PAPER.successes for v in row.variants}
    assert list(PAPER.cost) == list(PAPER.length_by_family)
    for variant, cost in PAPER.cost.items():
        assert cost.successes == PAPER.length_by_family[variant].successes == main[variant]
    assert [row.successes for row in PAPER.length_by_n.values()] == [45, 45, 45, 43]
    assert sum(row.successes for row in PAPER.length_by_family.values()) == 43


def test_length_by_n_is_the_mean_of_length_by_family() -> None:
    pooled, rows = PAPER.length_by_n[64], PAPER.length_by_family.values()
    for side in ("half", "double"):
        total = sum(row.successes * getattr(row, side).mean for row in rows)
        # Each printed mean is half a unit of its third place off at most.
        assert abs(total / pooled.successes - getattr(pooled, side).mean) <= 0.001


def test_full_success_means_accuracy_one() -> None:
    for row in PAPER.successes:
        for n_bits, successes in row.successes.items():
            for variant in row.variants:
                cell = PAPER.accuracy[variant][n_bits]
                assert cell.half_unit == 0.005
                if successes == 5:
                    assert (cell.mean, cell.sd) == (1.0, 0.0)
                else:
                    assert cell.mean >= successes / 5


def test_settings_name_the_tasks_sizes() -> None:
    assert PAPER.settings["Max. epochs"] == 500
    assert PAPER.settings["Model width"] == 16
    assert {row.task for row in PAPER.successes} == set(TASKS)
