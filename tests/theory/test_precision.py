"""Float runs: what they say, and that the stated lengths are not contradicted."""

from dataclasses import replace

import numpy as np
import pytest

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
    seen = observed(solution)
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
