"""The named sweeps are the paper's."""

from collections import Counter

import pytest

from ithbit.errors import SpecError
from ithbit.spec import Protocol
from ithbit.sweeps.presets import PRESETS, longer, paper, positions, preset, smoke


def test_the_paper_s_sweep() -> None:
    runs = paper()
    assert len(runs) == len(set(runs)) == 540
    assert {run.protocol for run in runs} == {Protocol()}
    assert {run.model.positions for run in runs} == {"polynomial"}
    assert Counter(run.model.n_bits for run in runs) == {8: 135, 16: 135, 32: 135, 64: 135}
    assert Counter(run.seed for run in runs) == dict.fromkeys(range(5), 108)
    variants = {(run.model.task, run.model.family, run.model.n_layers) for run in runs}
    assert Counter(task for task, _, _ in variants) == {"rhi": 16, "lhi": 11}


def test_groups_are_those_of_the_paper_s_accuracy_table() -> None:
    """45 constructive runs a length: full and causal attention of one layer counted apart."""
    at_8 = [run for run in paper() if run.model.n_bits == 8]
    assert Counter(run.group for run in at_8) == {"constructive": 45, "stress test": 90}
    constructive = {
        (run.model.task, run.model.family, run.model.n_layers)
        for run in at_8
        if run.group == "constructive"
    }
    assert constructive == {
        ("rhi", "softmax-full", 1),
        ("rhi", "softmax-causal", 1),
        ("rhi", "linear-full", 2),
        ("lhi", "gru", 1),
        ("lhi", "mamba2", 2),
        ("lhi", "softmax-full", 2),
        ("lhi", "softmax-causal", 2),
        ("lhi", "linear-full", 2),
        ("lhi", "linear-causal", 2),
    }


def test_merged_as_in_the_main_table() -> None:
    """One layer of full and of causal attention are one row there: 23 configurations, 40 and 75."""

    def row(run):
        family = run.model.family
        if run.model.n_layers == 1:
            family = family.removesuffix("-full").removesuffix("-causal")
        return run.model.task, family, run.model.n_layers, run.group

    rows = {row(run) for run in paper()}
    assert len(rows) == 23
    assert Counter(group for *_, group in rows) == {"constructive": 8, "stress test": 15}


def test_the_ablation_of_positions() -> None:
    runs = positions()
    assert len(runs) == len(set(runs)) == 240
    assert len(set(runs) & set(paper())) == 54
    assert {run.group for run in runs} == {"constructive"}
    rotary = {run.model.family for run in runs if run.model.positions == "rotary"}
    assert rotary == {"softmax-full", "softmax-causal"}
    assert Counter(run.model.positions for run in runs) == {
        "none": 54,
        "learned": 54,
        "sinusoidal": 54,
        "polynomial": 54,
        "rotary": 24,
    }
    assert {run.model.n_bits for run in runs} == {32, 64}
    assert {run.seed for run in runs} == {0, 1, 2}


def test_smoke_has_every_family() -> None:
    assert len({run.model.family for run in smoke()}) == 6


def test_longer_goes_on_where_the_paper_ends() -> None:
    assert len(longer()) == 9 * 2 * 5
    assert min(run.model.n_bits for run in longer()) > max(run.model.n_bits for run in paper())


@pytest.mark.parametrize("name", PRESETS)
def test_ids_and_names_are_unique(name) -> None:
    runs = preset(name)
    assert len({run.run_id for run in runs}) == len(runs)
    assert len({run.name for run in runs}) == len(runs)


def test_an_unknown_preset() -> None:
    with pytest.raises(SpecError, match="unknown sweep 'papers'; choose one of paper, positions"):
        preset("papers")
