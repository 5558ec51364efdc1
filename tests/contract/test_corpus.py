"""The check on layers of which it is known whether they keep the contract, and whether the Python
it prints shows what it says."""

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from tests.support.broken_layers import BROKEN, OnlyUnderAutocast
from tests.support.correct_layers import (
    CORRECT,
    ChunkLocal,
    FourierInEighths,
    FourierInSteps,
    FourierSign,
    MinusTenThousand,
    SelectiveProduct,
)

from ithbit.contract.check import check_contract
from ithbit.contract.findings import CheckSettings, Finding

# What some layers of the corpus are made to do, which is warned of and breaks nothing.
WARNED = {ChunkLocal: {"carries"}, MinusTenThousand: {"overflow"}}
DEAR = {SelectiveProduct}  # a matrix for every pair of tokens: the slow suite alone
# From here on, faults of narrow types and of batches.
FIRST_NARROW = BROKEN.index((OnlyUnderAutocast, "bfloat16"))
EASY = 0.35  # seconds: the default suite tries less, the slow one everything
ENOUGH = CheckSettings(seconds=2)


def _named(value: Any) -> str:
    return getattr(value, "__name__", str(value))


def _keeps(make: Any, settings: CheckSettings) -> None:
    report = check_contract(make, settings)
    assert report.exit_code == 0, report.text()
    warned = {finding.clause for finding in report.findings("warning")}
    assert warned <= WARNED.get(make, set()), report.text()
    assert report.outcome("causal") == "kept"


def printed(finding: Finding, make: Any) -> str:
    """What the code of a finding prints, run by itself; what has no file is given by its name."""
    given = {_named(make): make} if f"# {_named(make)}: the factory" in finding.code else {}
    out = io.StringIO()
    with redirect_stdout(out), torch.random.fork_rng():
        exec(compile(finding.code, "<code>", "exec"), given)
    return out.getvalue().strip()


def _is_found(make: Any, clause: str, settings: CheckSettings) -> None:
    report = check_contract(make, settings)
    findings = {finding.clause: finding for finding in report.findings()}
    assert clause in findings, report.text()
    shown = printed(findings[clause], make)
    if clause == "input":
        assert shown.endswith("False")
    elif clause not in ("carries", "state", "overflow"):
        size = float(shown.split()[-1])
        assert size > 0, shown
    else:
        assert shown


@pytest.mark.parametrize("make", [each for each in CORRECT if each not in DEAR], ids=_named)
def test_a_correct_layer_keeps_its_contract(make: Any) -> None:
    _keeps(make, CheckSettings(seconds=EASY))


@pytest.mark.parametrize("seed", [3, 7, 9, 11])
def test_rounding_by_large_later_tokens_is_no_leak(seed: int) -> None:
    """In a sum over all tokens it grows with the largest one, here until outputs go to the next of
    their steps."""
    report = check_contract(FourierInSteps, CheckSettings(seconds=EASY, seed=seed))
    assert report.outcome("causal") == "kept", report.text()


@pytest.mark.parametrize("seed", [0, 3, 4, 5, 12])
@pytest.mark.parametrize("make", [FourierInEighths, FourierSign], ids=_named)
def test_a_step_that_rounding_flips_is_no_leak_in_bfloat16(make: Any, seed: int) -> None:
    """In float64 no number lies so near the middle of two steps that its bits differ."""
    report = check_contract(make, CheckSettings(seconds=EASY, seed=seed))
    assert report.exit_code == 0, report.text()


@pytest.mark.parametrize(
    ("make", "clause"), [*BROKEN[:FIRST_NARROW:3], *BROKEN[FIRST_NARROW:]], ids=_named
)
def test_a_broken_layer_is_found_and_its_code_shows_it(make: Any, clause: str) -> None:
    _is_found(make, clause, ENOUGH)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "clause"), BROKEN, ids=_named)
def test_every_broken_layer_is_found_in_two_seconds(make: Any, clause: str) -> None:
    _is_found(make, clause, ENOUGH)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("make", CORRECT, ids=_named)
def test_no_seed_accuses_a_correct_layer(make: Any, seed: int) -> None:
    _keeps(make, CheckSettings(seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("make", "clause"), BROKEN, ids=_named)
def test_any_seed_finds_a_broken_layer(make: Any, clause: str, seed: int) -> None:
    _is_found(make, clause, CheckSettings(seed=seed))


def test_a_seed_replays_exactly() -> None:
    make, _ = BROKEN[0]
    one, other = (check_contract(make, CheckSettings(seconds=6, seed=5)) for _ in range(2))
    assert one.findings() == other.findings() != []
    assert check_contract(make, CheckSettings(seconds=6, seed=6)).findings() != one.findings()


def test_an_allowed_clause_is_a_warning() -> None:
    make = dict((clause, make) for make, clause in BROKEN)["length"]
    settings = CheckSettings(seconds=1, allow=("length",))
    report = check_contract(make, settings)
    assert (report.exit_code, report.outcome("length")) == (0, "warning")


def test_one_faulty_comparison_would_be_noticed() -> None:
    """The corpus can fail: a correct layer does not pass as broken."""
    with pytest.raises(AssertionError):
        _is_found(CORRECT[0], "causal", CheckSettings(seconds=0.2))
    with pytest.raises(AssertionError):
        _keeps(BROKEN[0][0], CheckSettings(seconds=0.2))
