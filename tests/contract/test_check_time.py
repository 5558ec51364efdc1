"""How much a check tries: the same for a seed, and less of a slow layer, which the report says."""

import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.broken_layers import BlockMean64
from tests.support.correct_layers import FourierInSteps, RunningMean
from tests.support.paths import SUPPORT
from torch import nn

from ithbit.contract import child_process
from ithbit.contract.check import check_contract
from ithbit.contract.checking import CheckRun
from ithbit.contract.child import check_in_child
from ithbit.contract.findings import CheckSettings


class SlowFrom200(nn.Module):
    """So much processor time for a call of 200 tokens and more, whatever its rows."""

    def __init__(self, width: int, seconds: float = 0.16) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        until = time.process_time() + self.seconds
        while x.shape[1] >= 200 and time.process_time() < until:
            pass
        return x.cumsum(1)


def test_a_slow_layer_is_told_which_lengths_were_not_tried() -> None:
    report = check_contract(SlowFrom200, CheckSettings(seconds=1))
    (remark,) = [each for each in report.remarks if each.startswith("too slow")]
    assert remark.endswith(": these were not tried")
    listed = remark.removeprefix("too slow for lengths ").removesuffix(": these were not tried")
    untried = [int(each) for each in listed.split(", ")]
    assert {256, 257, 300, 513, 1024, 1025} <= set(untried)
    assert not set(untried) & set(report.coverage.lengths)
    assert max(report.coverage.lengths) == 200
    assert report.exit_code == 0


def test_a_quick_layer_is_told_nothing_of_lengths() -> None:
    report = check_contract(lambda width: SlowFrom200(width, 0.0))
    assert report.remarks == ()
    assert {2, 256, 513, 1000, 1024, 1025} <= set(report.coverage.lengths)


def test_a_seed_tries_the_same() -> None:
    one, other = (check_contract(RunningMean, CheckSettings(seed=4)) for _ in range(2))
    assert one.results == other.results
    assert one.coverage == other.coverage
    assert one.remarks == other.remarks == ()


def test_a_seed_tries_the_same_however_many_rows_go_into_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = check_contract(BlockMean64, CheckSettings(seed=4))
    monkeypatch.setattr(CheckRun, "rows", lambda run, length: 2)
    other = check_contract(BlockMean64, CheckSettings(seed=4))
    assert one.findings() == other.findings() != []


class FromNumPy(nn.Module):
    """Weights that torch's seed does not fix, and a leak."""

    def __init__(self, width: int) -> None:
        super().__init__()
        weight = np.random.standard_normal(width) + random.random()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x):
        return (x * self.weight).flip(1)


def test_a_seed_fixes_weights_from_everywhere() -> None:
    one, other = (check_contract(FromNumPy, CheckSettings(seed=4)) for _ in range(2))
    assert one.findings() == other.findings() != []


@pytest.mark.parametrize("seed", [0, 3, 40, 41])
def test_a_step_that_rounding_reaches_is_no_leak(seed: int) -> None:
    """With large later tokens a Fourier transform rounds more, and a number moves to the next
    step."""
    report = check_contract(FourierInSteps, CheckSettings(seed=seed))
    assert report.exit_code == 0, report.text()


def test_the_process_started_ahead_is_the_one_that_checks() -> None:
    child_process.start_ahead()
    (ahead,) = child_process._AHEAD
    report = check_in_child(f"{SUPPORT / 'wild_layers.py'}:Keeps", CheckSettings(seconds=0.3))
    assert report.exit_code == 0
    assert child_process._AHEAD == []
    assert ahead.process.returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_started_ahead_imports_torch_before_it_is_told_what_to_check() -> None:
    child_process.start_ahead()
    try:
        (ahead,) = child_process._AHEAD
        maps, until = Path(f"/proc/{ahead.process.pid}/maps"), time.monotonic() + 120
        while "libtorch" not in maps.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        assert "libtorch" in maps.read_text()
    finally:
        child_process.end_ahead()


def test_a_process_started_ahead_in_vain_is_ended() -> None:
    child_process.start_ahead()
    (ahead,) = child_process._AHEAD
    child_process.end_ahead()
    assert ahead.process.returncode is not None
    assert child_process._AHEAD == []


def test_a_process_whose_parent_is_gone_ends() -> None:
    child_process.start_ahead()
    (ahead,) = child_process._AHEAD
    assert ahead.process.stdin is not None
    ahead.process.stdin.close()
    assert ahead.process.wait(120) == 0
    child_process.end_ahead()
