"""A run laid open: it ends at the right answer and shows the index at its bit."""

import numpy as np
import pytest

from ithbit.errors import SpecError
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.explain import LONGEST, STORIES, explain, number

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_every_construction_has_a_story_and_ends_at_its_answer(task, family, variant):
    for index, answer in ((1, 1), (2, 0), (4, 1)):
        run = explain(construct(task, family, 4, variant), [1, 0, 0, 1], index)
        assert run.answer == answer
        assert len(run.steps) == len(STORIES[variant]) == run.solution.depth
        assert run.labels[run.asked] == f"bit {index} = {answer}"
        assert all(step.story for step in run.steps)


def test_the_index_is_seen_to_travel():
    run = explain(construct("lhi", "softmax-causal", 5), [1, 0, 1, 1, 0], 3)
    first, second = run.steps
    assert (first.attention[1:].argmax(axis=1) == 0).all()
    np.testing.assert_allclose(first.sums[3], 0, atol=0.01)
    assert np.flatnonzero(first.outputs).tolist() == [run.asked]
    np.testing.assert_allclose(second.attention[-1], 1 / 7)


def test_states_are_shown_for_recurrent_layers():
    run = explain(construct("lhi", "rnn", 4), [1, 0, 1, 1], 3)
    assert run.steps[0].states[:, 0].tolist() == [3, 3, 3, 15, 15, 15]
    assert run.steps[0].attention is None


def test_what_cannot_be_shown_is_refused():
    solution = construct("lhi", "rnn", 3)
    with pytest.raises(SpecError, match="these weights are for n = 3, got 2 bits"):
        explain(solution, [0, 1], 1)
    with pytest.raises(SpecError, match=r"index must be in 1\.\.3, got 4"):
        explain(solution, [0, 1, 1], 4)
    with pytest.raises(SpecError, match=f"at most {LONGEST} bits, got 40"):
        explain(construct("lhi", "rnn", 40), [0] * 40, 1)


def test_numbers_are_short():
    assert [number(value) for value in (-0.00001, 2.5, -1e7)] == ["0", "2.5", "−1e+07"]
