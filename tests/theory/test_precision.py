"""Float runs: what they say, and that the stated lengths are not contradicted."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from ithbit.theory.certificate import certify
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.precision import float_runs, observed, safe_n, spot_inputs

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_runs_within_the_stated_lengths_are_right(task, family, variant):
    solution = construct(task, family, 700, variant)
    for run in float_runs(solution):
        assert safe_n(solution, run.dtype).right >= 700
        assert (run.wrong, run.margin > 0) == (0, True)


@pytest.mark.parametrize(
    ("task", "family", "variant", "n"),
    [
        ("rhi", "softmax-full", "parabola", 2048),
        ("rhi", "softmax-causal", "cosine", 720),
        ("lhi", "rnn", "scalar", 4096),
    ],
)
def test_float32_goes_wrong_past_them_and_float64_does_not(task, family, variant, n):
    solution = construct(task, family, n, variant)
    single, double = float_runs(solution)
    assert single.wrong > 0
    assert double.wrong == 0
    assert safe_n(solution, "float32").wrong <= n
    assert "inputs run were wrong" in single.sentence()


def test_what_was_observed_is_labelled():
    solution = construct("rhi", "softmax-full", 8)
    seen = observed(solution, True)
    assert seen["kind"] == "observed, not certified"
    assert seen["float32"]["right_up_to_n"] == 1424
    assert seen["float64"]["wrong_from_n"] is None


def test_margins_that_are_not_finite_are_never_right() -> None:
    solution = construct("lhi", "rnn", 3)
    huge = replace(solution, output=np.asarray(solution.output) * 1e300)
    bits, index = spot_inputs(huge)
    with np.errstate(all="ignore"):
        assert np.isinf(huge.margins(bits, index, np.float32)).any()
    found, whole = float_runs(huge)
    assert found.wrong == found.inputs
    assert whole.wrong == 0  # in float64 nothing overflows


def test_other_weights_of_the_same_name_have_no_stated_length() -> None:
    """At 1e-46, no float32 run is right, though the margin of the weights is certified."""
    solution = construct("lhi", "rnn", 3)
    tiny = certify(replace(solution, output=np.asarray(solution.output) * 1e-46))
    assert tiny.certified
    seen = tiny.to_json()["float_execution"]["float32"]
    assert (seen["wrong"], seen["right_up_to_n"]) == (seen["inputs_run"], None)
    printed = Console(width=200)
    with printed.capture() as captured:
        printed.print(*tiny.render())
    assert "inputs run were wrong (observed)" in captured.get()
    assert certify(solution).to_json()["float_execution"]["float32"]["right_up_to_n"] == 2880
