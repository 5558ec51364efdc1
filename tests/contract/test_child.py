"""A check in a process of its own: whatever a layer does, there is a sentence."""

import os
import sys
from dataclasses import replace

import pytest
from tests.support.paths import ROOT, SUPPORT

from ithbit.contract.check import check_contract
from ithbit.contract.child import Limits, check_in_child
from ithbit.contract.findings import CheckSettings

FILE = SUPPORT / "wild_layers.py"
LIMITS = Limits(call=2.0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Spins", "it does not return when it reads an input"),
        ("ExitsAtOnce", "it ends its process (status 0) when it reads an input"),
        ("Allocates", "it uses more than"),
        ("Crashes", "its process was ended by SIGSEGV"),
    ],
)
def test_what_ends_or_blocks_a_process_is_a_sentence(name: str, sentence: str) -> None:
    limits = Limits(memory=1 << 30) if name == "Allocates" else LIMITS
    report = check_in_child(f"{FILE}:{name}", CheckSettings(seconds=1), limits)
    assert report.exit_code == 2
    assert sentence in report.cannot


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Sleeps", "SpinsInImport", "SpinsLater"])
def test_what_hangs_elsewhere_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPINS_IN_IMPORT", str(name == "SpinsInImport"))
    limits = replace(LIMITS, start=20.0, call=3.0)
    report = check_in_child(f"{FILE}:{name}", CheckSettings(seconds=2), limits)
    assert "it does not return" in report.cannot


def test_a_layer_that_keeps_its_contract_comes_back_with_its_report() -> None:
    report = check_in_child(f"{FILE}:Keeps", CheckSettings(seconds=0.5, seed=3))
    assert (report.exit_code, report.settings.seed) == (0, 3)
    assert report.coverage.cuts > 100


CAN_COPY = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
needs_a_copy = pytest.mark.skipif(not CAN_COPY, reason="needs two processors, and Linux")


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("wild_layers.py:Keeps", ""),
        ("wild_layers.py:LeaksInLongChunks", "causal"),
        ("broken_layers.py:BlockMean64", "causal"),
        ("broken_layers.py:OnlyBackward", "gradient"),
        ("broken_layers.py:LosesItsState", "carries"),
        ("broken_layers.py:StepClamps", "step"),
    ],
)
def test_two_processes_find_what_one_does(
    name: str, clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # these files import one another
    settings = CheckSettings(seconds=60, seed=3)
    both = check_in_child(f"{SUPPORT / name}", settings)
    alone = check_contract(f"{SUPPORT / name}", settings)
    assert both.results == alone.results
    assert both.coverage == alone.coverage
    assert both.remarks == alone.remarks
    assert not clause or clause in [each.clause for each in both.findings()]
    assert bool(clause) == bool(both.findings())


@needs_a_copy
@pytest.mark.parametrize(
    ("what", "sentence"),
    [("spins", "it does not return when it reads"), ("exits", "it exits (status 3)")],
)
def test_what_a_layer_does_in_the_second_process_is_a_sentence(
    what: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ON_COPY", what)
    report = check_in_child(f"{FILE}:InACopy", CheckSettings(seconds=2), LIMITS)
    assert sentence in report.cannot


@needs_a_copy
def test_a_second_process_that_crashes_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ON_COPY", "crashes")
    report = check_in_child(f"{FILE}:InACopy", CheckSettings(seconds=60, seed=3))
    alone = check_contract(f"{FILE}:Keeps", CheckSettings(seconds=60, seed=3))
    assert (report.results, report.coverage) == (alone.results, alone.coverage)
