"""A check in a process of its own: whatever a layer does, there is a sentence."""

from dataclasses import replace

import pytest
from tests.support.paths import SUPPORT

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
