"""The page docs/survey.md has the findings and the counts of results/contract/survey.csv."""

import re

import pytest
from experiments.contract_survey import SURVEY, read, summary, table, write
from tests.support.paths import ROOT

from ithbit.contract.clauses import CLAUSE_NAMES

PAGE = (ROOT / "docs" / "survey.md").read_text(encoding="utf-8")
ROWS = read(SURVEY)


def test_the_table_is_that_of_the_results() -> None:
    shown = [line for line in PAGE.splitlines() if re.match(r"\| \d+\.\d+\.\d+ \|", line)]
    assert shown == table(ROWS)[2:]
    assert len(shown) > 10


def test_the_counts_are_those_of_the_results() -> None:
    n_checked, n_keeps, cannot = summary(ROWS)
    kinds = {row["kind"] for row in ROWS}
    assert len(kinds) == n_checked + len(cannot)
    words = " ".join(PAGE.split())
    assert f"{n_checked} of {len(kinds)} model types were checked" in words
    assert f"{n_keeps} of them broke nothing" in words
    for kind in cannot:
        assert f"`{kind}`" in PAGE, kind


def test_every_finding_was_seen_alone() -> None:
    for row in ROWS:
        assert row["clause"] in ("", *CLAUSE_NAMES)
        if row["clause"] and row["size"] not in ("", "inf"):
            assert float(row["alone"]) == pytest.approx(float(row["size"]), rel=0.1), row


def test_rows_are_written_as_they_are_read(tmp_path) -> None:
    file = tmp_path / "folder" / "survey.csv"
    write(file, ROWS)
    assert read(file) == ROWS
