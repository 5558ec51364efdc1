"""docs/everywhere.md: its numbers are those of the results, and the refutations are real."""

import json
from pathlib import Path

import polars as pl
import pytest
from tests.support.families import PAPER_FAMILIES
from tests.support.paths import RESULTS, ROOT, WEIGHTS

import ithbit
from ithbit.families import FAMILIES

PAGE = (ROOT / "docs" / "everywhere.md").read_text(encoding="utf-8")
KINDS = ("uniform", "mixed", "blocks")


@pytest.fixture(scope="module")
def runs() -> dict[str, pl.DataFrame]:
    """The runs of each kind of examples; the one-layer twin of full softmax is left out."""
    twin = (pl.col("task") == "rhi") & (pl.col("family") == "softmax-causal")
    return {
        kind: pl.read_csv(RESULTS / "everywhere" / kind / "runs.csv").filter(~twin)
        for kind in KINDS
    }


def test_the_table_has_the_counts_of_the_results(runs: dict[str, pl.DataFrame]) -> None:
    lines = PAGE.split("| successes (of these refuted) |")[1].split("\n\n")[0].splitlines()[2:]
    totals = [0] * 12
    for line in lines[:-1]:
        label, *shown, epochs = (cell.strip() for cell in line.strip("|").split("|"))
        task, rest = label.lower().split(" ", 1)
        name, depth = rest.split(", l = ")
        (family,) = (f for f in FAMILIES if FAMILIES[f].label.lower() == name)
        found, medians = [], []
        for n in (32, 64):
            for kind in KINDS:
                cell = runs[kind].filter(task=task, family=family, n_layers=int(depth), n_bits=n)
                assert len(cell) == 20
                solved = cell.filter("solved")
                refuted = solved.filter(verification="refuted")
                assert set(solved["verification"]) <= {"refuted", "not refuted"}
                found.append((len(solved), len(refuted)))
                medians.append(cell["first_solved_epoch"].median())
        assert shown == [f"{solved} ({refuted})" for solved, refuted in found], label
        assert epochs == ", ".join(f"{value:g}" for value in medians[3:]), label
        totals = [a + b for a, b in zip(totals, sum(found, ()), strict=True)]
    pairs = [f"{totals[k]} ({totals[k + 1]})" for k in range(0, 12, 2)]
    assert [cell.strip() for cell in lines[-1].strip("|").split("|")][1:7] == pairs
    assert len(lines) == 9


def test_at_16_bits_every_success_is_right_on_all_inputs(runs: dict[str, pl.DataFrame]) -> None:
    for kind in KINDS:
        cell = runs[kind].filter(n_bits=16)
        assert set(cell["verification"]) == {"right on all inputs"}
        assert len(cell) == 40


def test_what_wrong_answers_have_in_common(runs: dict[str, pl.DataFrame]) -> None:
    common = json.loads((RESULTS / "everywhere" / "cells.json").read_text())["common"]
    for kind in KINDS:
        refuted = runs[kind].filter(pl.col("solved"), verification="refuted")
        ends = refuted.filter(pl.col("seed") < 5, final_accuracy=1.0)
        assert common[kind]["runs"] == len(ends)
        counts = common[kind]["counts"]
        structured, densities = (counts[key]["all"] for key in ("structured", "densities"))
        shares = [f"{100 * wrong / tried:.3g}" for wrong, tried in (structured, densities)]
        wrong, tried = counts["uniform"]["all"]
        line = f"| {len(ends)} {kind} runs | {' | '.join(shares)} | {wrong} of {tried:,} |"
        assert line in PAGE
    lost = sum(
        len(runs[kind].filter(pl.col("solved"), pl.col("final_accuracy") < 1.0)) for kind in KINDS
    )
    assert lost == 6


def shipped(kind: str) -> list[Path]:
    return sorted(path.parent for path in (WEIGHTS / kind).glob("*/result.json"))


def test_the_weights_that_ship_are_those_of_the_rows(runs: dict[str, pl.DataFrame]) -> None:
    for kind in KINDS:
        rows = runs[kind].filter(pl.col("seed") < 5, pl.col("n_bits") >= 16)
        assert {path.name for path in shipped(kind)} == set(rows["folder"])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_refutation_is_one_in_the_library_too(family: str) -> None:
    """The counterexample on record, answered wrong by the library's own code with the weights."""
    for folder in shipped("uniform"):
        record = folder / "verification.json"
        found = json.loads(record.read_text()) if record.exists() else {}
        if f"_{family}_" in folder.name and found.get("verdict") == "refuted":
            case = found["counterexample"]
            logit = ithbit.load(folder)(case["bits"], case["index"]).item()
            assert (logit > 0) != (case["bits"][case["index"] - 1] == "1")
            assert abs(logit) == pytest.approx(-case["margin"], abs=1e-2)
            return
    pytest.fail(f"no refuted run of {family} ships")
