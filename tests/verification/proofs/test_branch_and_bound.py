"""Proofs agree with trying: least margins, verdicts, and weights that were damaged on purpose."""

import itertools
import json
import math

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.support.shipped import folders, read, solution

from ithbit.verification.proofs.branch_and_bound import search
from ithbit.verification.proofs.certificate import weights_of
from ithbit.verification.proofs.kinds import bounds_for
from ithbit.verification.proofs.two_layers import TwoLayers

RUNS = folders("rhi_n16_softmax-full_*")
FEW = [RUNS[0], RUNS[-1]]


def agrees(folder) -> None:
    """The proof's least margin is that of trying all inputs, which the record has."""
    run, weights = read(folder)
    tried = json.loads((folder / "verification.json").read_text())
    found = search(bounds_for(run.model, weights_of(weights)), seconds=60)
    assert tried["exhaustive"]
    assert tried["n_wrong"] == 0
    assert found.outcome == "proved"
    assert found.share_closed == 1
    assert tried["worst"]["margin"] - 0.05 < found.least_proved < tried["worst"]["margin"] + 1e-3
    assert abs(found.least_found - tried["worst"]["margin"]) < 0.02


@pytest.mark.parametrize("folder", FEW, ids=lambda f: f.name)
def test_a_proof_has_the_least_margin_of_all_inputs(folder) -> None:
    agrees(folder)


@pytest.mark.slow
@pytest.mark.parametrize("folder", RUNS, ids=lambda f: f.name)
def test_every_proof_has_the_least_margin_of_all_inputs(folder) -> None:
    agrees(folder)


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders("rhi_n*_softmax-full_*"), ids=lambda f: f.name)
def test_every_shipped_run_is_proved_close_to_the_least_margin_found(folder) -> None:
    run, weights = read(folder)
    record = json.loads((folder / "verification.json").read_text())
    found = search(bounds_for(run.model, weights_of(weights)), seconds=60)
    assert found.outcome == "proved"
    assert found.least_found - 0.05 < found.least_proved <= found.least_found
    assert found.least_proved < record["worst"]["margin"] + 0.02


def damaged(weights: bytes, name: str, at: int, step: float) -> bytes:
    params = {key: value.copy() for key, value in load(weights).items()}
    params[name].flat[at] += np.float32(step)
    return save(params)


DAMAGE = [
    ("head.bias", 0),
    ("head.weight", 3),
    ("embed", 9),
    ("positions.polynomial", 5),
    ("enter.norm.weight", 2),
    ("blocks.0.qkv.weight", 20),
    ("blocks.0.qkv.weight", 300),
    ("blocks.0.out.weight", 17),
    ("blocks.0.norm1.bias", 4),
    ("blocks.0.up.weight", 100),
    ("blocks.0.norm2.bias", 7),
]


def plain(run, weights: bytes):
    """A few thousand plain inputs with their margins by the numpy twin: bits, index, margin."""
    n = run.model.n_bits
    k = np.arange(n)
    strings = [k < cut for cut in range(n + 1)] + [k == j for j in range(n)]
    strings += [k % 2 == 0, k % 3 == 0]
    bits = np.array(strings + [~each for each in strings]).astype(np.int8)
    bits, index = np.repeat(bits, n, 0), np.tile(k + 1, len(bits))
    return bits, index, solution(run, weights).margins(bits, index)


def least_tried(run, weights: bytes) -> float:
    return float(plain(run, weights)[2].min())


def just_broken(run, weights: bytes, name: str, at: int) -> bytes:
    """One weight is moved until some input is wrong, and bisected back until only just so."""
    low, high = 0.0, 0.5
    while least_tried(run, damaged(weights, name, at, high)) > 0 and high < 1e4:
        low, high = high, 2 * high
    assert high < 1e4
    for _ in range(6):
        middle = (low + high) / 2
        if least_tried(run, damaged(weights, name, at, middle)) > 0:
            low = middle
        else:
            high = middle
    return damaged(weights, name, at, high)


CASES = [(3, *each) for each in DAMAGE] + [(k, *DAMAGE[k]) for k in (0, 6, 9)]


@pytest.mark.parametrize(("which", "name", "at"), CASES)
def test_weights_damaged_until_an_input_fails_are_never_proved(which, name, at) -> None:
    run, weights = read(RUNS[which])
    broken = just_broken(run, weights, name, at)
    found = search(bounds_for(run.model, weights_of(broken)), seconds=3)
    assert found.outcome != "proved"
    if found.outcome == "refuted":
        bits = np.array([[int(bit) for bit in found.bits]])
        assert solution(run, broken).margins(bits, np.array([found.index]))[0] < 1e-6


TWO = [
    ("lhi_n16_softmax-causal", "blocks.1.out.weight", 40),
    ("lhi_n16_softmax-full", "blocks.0.qkv.weight", 300),
    ("lhi_n16_linear-full", "blocks.1.up.weight", 100),
    ("lhi_n16_linear-causal", "embed", 3),
    ("rhi_n16_linear-full", "blocks.1.down.weight", 20),
]


@pytest.mark.parametrize(("cell", "name", "at"), TWO)
def test_no_set_with_a_wrong_input_is_closed_in_two_layers(cell, name, at, rng) -> None:
    """Sets around the worst input of weights that are only just broken: by forms, and by trying."""
    run, weights = read(folders(f"{cell}_*_s2-*")[0])
    broken = just_broken(run, weights, name, at)
    bits, index, margin = plain(run, broken)
    k = int(margin.argmin())
    assert margin[k] <= 0
    bounds = bounds_for(run.model, weights_of(broken))
    assert isinstance(bounds, TwoLayers)
    nodes = np.tile(bits[k], (6, 1)).astype(np.int8)
    others = np.delete(np.arange(16), index[k] - 1)
    for row, free in enumerate((0, 1, 2, 4, 6, 15)):
        nodes[row, rng.permutation(others)[:free]] = -1
    for few in (-1, 8):
        bounds.few = few
        found = bounds(np.full(6, index[k] - 1), nodes)
        assert (found.lower <= margin[k] + 1e-6).all()
    assert found.upper[0] < margin[k] + 1e-3  # and the input itself is known well


def test_a_search_goes_on_from_what_another_left(monkeypatch) -> None:
    run, weights = read(RUNS[0])
    bounds = bounds_for(run.model, weights_of(weights))
    first = search(bounds, seconds=1e-9)
    kept, bounds.slack = [], 1e-4
    monkeypatch.setattr("ithbit.verification.proofs.branch_and_bound._SPOKEN", -1.0)

    def interrupt(found) -> None:
        if found.nodes > first.nodes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(bounds, watch=interrupt, start=first, keep=kept.append)
    assert kept[0].nodes > first.nodes
    assert math.isclose(kept[0].leaves.share.sum(), 1)
    bounds.slack = 0.02
    whole, later = search(bounds), search(bounds, start=kept[0])
    assert later.outcome == "proved"
    assert later.seconds > kept[0].seconds
    assert later.nodes >= kept[0].nodes
    assert abs(later.least_found - whole.least_found) < 0.05


def test_a_search_may_end_at_any_time() -> None:
    run, weights = read(RUNS[0])
    bounds, seen = bounds_for(run.model, weights_of(weights)), []
    first = search(bounds, seconds=1e-9)
    assert (first.outcome, first.nodes) == ("open", 32)
    assert 0 <= first.share_closed < 1
    bounds.slack = 0.001
    found = search(bounds, watch=seen.append)
    assert found.outcome == "proved"
    assert all(a.least_proved <= b.least_proved + 1 for a, b in itertools.pairwise(seen))
    assert math.isclose(found.leaves.share.sum(), 1)
