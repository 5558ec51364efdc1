"""Reports: what they conclude, print and give as JSON, and what they refuse."""

import json
import math

import pytest

from ithbit import IthbitError
from ithbit.contract.clauses import CLAUSE_NAMES
from ithbit.contract.findings import (
    CheckSettings,
    ClauseResult,
    ContractReport,
    Coverage,
    Finding,
    report_from_json,
)

LEAK = Finding("causal", "output 3 of 9 changes", 9, 3, 5, 0.5, 0.0, "import torch\nprint(1)")
OVERFLOW = Finding("overflow", "output 1 is infinite", 9, 1, 2, math.inf, 0.0)
KEPT = ClauseResult("batch", "kept", note="batches of 3")
COVERED = Coverage((2, 1025), 12, 3)


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (ContractReport("a", (KEPT,)), 0),
        (ContractReport("a", (KEPT, ClauseResult("overflow", "warning", OVERFLOW))), 0),
        (ContractReport("a", (ClauseResult("causal", "broken", LEAK),)), 1),
        (ContractReport("a", (KEPT,), cannot="it exits"), 2),
    ],
)
def test_the_exit_code_says_how_it_went(report: ContractReport, code: int) -> None:
    assert report.exit_code == code


def test_json_is_strict_and_comes_back() -> None:
    results = (
        ClauseResult("overflow", "warning", OVERFLOW),
        KEPT,
        ClauseResult("causal", "broken", LEAK),
    )
    report = ContractReport("a", results, COVERED, CheckSettings(seed=7, allow=("batch",)), 1.5)
    text = json.dumps(report.to_json(), allow_nan=False)
    back = report_from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    assert [each.clause for each in back.results] == ["causal", "batch", "overflow"]
    assert back.findings("broken") == [LEAK]


def test_a_report_never_says_is_causal() -> None:
    kept = [ClauseResult(name, "kept") for name in CLAUSE_NAMES]
    text = ContractReport("Mine", tuple(kept), COVERED).text()
    assert "is causal" not in text
    assert "no leak seen at lengths 2 to 1025, 12 cuts, 3 kinds of future" in text


def test_names_and_reasons_cannot_make_up_lines() -> None:
    text = ContractReport("a\nkept: all", cannot="b\x1b[31m\nMine keeps").text()
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "given",
    [
        {"allow": ("causality",)},
        {"dtype": "int8"},
        {"seconds": 0},
        {"seconds": math.nan},
        {"width": 0},
        {"seed": -1},
        {"width": "16"},
    ],
)
def test_settings_are_checked(given: dict[str, object]) -> None:
    with pytest.raises(IthbitError):
        CheckSettings(**given)
