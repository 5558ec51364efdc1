"""The summary table is derived, equals the paper's, and single verdicts say why."""

import pytest
from tests.support.deepening import deepened, widened
from tests.support.families import PAPER_FAMILIES

from ithbit import verdict
from ithbit.errors import SpecError
from ithbit.families import FAMILIES, TASKS
from ithbit.theory.architecture import architecture
from ithbit.theory.bounds import NoBoundError, bound
from ithbit.theory.constructions import CONSTRUCTIONS, construct
from ithbit.theory.precision import smallest_margin
from ithbit.theory.summary_table import table
from ithbit.theory.verdicts import hidden_units, known_result


def test_the_derived_table_is_the_papers():
    derived = {(entry.family, entry.task): entry.min_layers for entry in table(8)}
    stated = {
        (FAMILIES[name].formal, task): FAMILIES[name].min_layers[task]
        for name in PAPER_FAMILIES
        for task in TASKS
    }
    assert derived == stated


def test_entries_stand_on_certificates_and_bounds():
    for entry in table(8):
        if entry.min_layers is None:
            assert entry.certificate is None
            stars = [route.n_star for route in entry.by_depth]
            assert stars == sorted(stars)
            assert len(stars) == 4
            assert "so L = Ω" in entry.growth
            assert entry.theorem == "Theorem 12a"
        else:
            assert entry.certificate.certified
            assert entry.certificate.margin > 0
            assert entry.certificate.solution.depth == entry.min_layers
            assert (entry.fewer is None) == (entry.min_layers == 1)


def test_past_n_star_of_every_one_layer_bound_the_separation_is_literal():
    """At one n beyond all n*: k layers possible, k - 1 layers impossible, at the same sizes."""
    sizes = {"width": 2, "ff": 5}
    for entry in verdict(n=8, **sizes):
        if entry.min_layers != 2:
            continue
        n = entry.fewer.n_star + 1
        assert verdict(entry.task, entry.family, 1, n, **sizes).answer == "impossible"
        assert verdict(entry.task, entry.family, 1, n - 1, **sizes).answer == "open"
        assert verdict(entry.task, entry.family, 2, n, **sizes).answer == "possible"


@pytest.mark.parametrize(
    ("task", "family", "layers", "n", "sizes", "answer", "because"),
    [
        ("rhi", "softmax-full", 1, 8, {}, "possible", "1 layer of width 2"),
        ("rhi", "softmax-causal", 3, 8, {}, "possible", "and 2 identity layers, certified"),
        ("rhi", "softmax-full", 1, 8, {"width": 1}, "open", "needs width 2"),
        ("lhi", "rnn", 1, 8, {"ff": 3}, "open", "no bound is known either"),
        ("lhi", "rnn", 1, 8, {"ff": 0}, "impossible", "past n* = 1;"),
        ("rhi", "rnn", 1, 488, {}, "impossible", "past n* = 487; proved here"),
        (
            "rhi",
            "rnn",
            1,
            487,
            {},
            "open",
            "impossible past n* = 487 (Theorem 12a), not ruled out at n = 487",
        ),
        ("rhi", "linear-full", 1, 5000, {}, "impossible", "past n* = 4,616"),
        ("rhi", "linear-full", 2, 8, {}, "possible", "2 layers of width 1"),
        ("rhi", "linear-causal", 4, 64, {}, "open", "no construction is known at this depth"),
        ("lhi", "ssm", 1, 4617, {}, "impossible", "past n* = 4,616"),
        ("lhi", "softmax-causal", 1, 64, {}, "open", "not ruled out at n = 64"),
    ],
)
def test_single_verdicts(task, family, layers, n, sizes, answer, because):
    found = verdict(task, family, layers, n, **sizes)
    assert found.answer == answer
    assert because in found.because
    assert (found.certificate is not None) == (answer == "possible")
    assert (found.theorem is not None) == (answer != "open" and "ff" not in sizes)


@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda entry: f"{entry.task} {entry.family}")
def test_identity_layers_change_no_margin(entry):
    solution = construct(entry.task, entry.family, 4)
    deeper = deepened(solution, entry.depth + 2)
    assert deeper.depth == entry.depth + 2
    before, after = smallest_margin(solution), smallest_margin(deeper)
    assert after == pytest.approx(before, rel=1e-12)
    assert hidden_units(deeper) == max(hidden_units(solution), 2 * solution.width)


def test_no_entry_has_both_a_construction_and_a_bound():
    for entry in CONSTRUCTIONS:
        solution = construct(entry.task, entry.family, 8)
        for extra in (0, 1):
            units = max(hidden_units(solution), 2 * solution.width * extra)
            sizes = {"width": solution.width, "hidden": units}
            arch = architecture(entry.family, n_layers=entry.depth + extra, **sizes)
            assert known_result(entry.task, arch).answer == "possible"
            with pytest.raises(NoBoundError):
                bound(entry.task, arch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rhi", "rnn", 1, 0), "n must be at least 1, got 0"),
        (("rhi", "rnn", 0, 8), "layers must be at least 1, got 0"),
        (("rhi", "gru", 1, 8), "formal counterpart is 'rnn'"),
        (("rhi", "lstm", 1, 8), "unknown family 'lstm'"),
        (("mid", "rnn", 1, 8), "unknown task 'mid'"),
    ],
)
def test_bad_questions_are_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        verdict(*arguments)


@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda entry: f"{entry.task} {entry.family}")
def test_wider_layers_do_as_well(entry):
    """A verdict at width 16 stands on weights of width 1 or 2: padded, they have the same margin.

    Linear attention must repeat its key: a key of 0 would add phi(0)^2 = 1 to every weight.
    """
    variant = {"ssm": "time-invariant"}.get(entry.family, entry.default)
    small = construct(entry.task, entry.family, 4, variant)
    assert smallest_margin(widened(small, 3)) == pytest.approx(smallest_margin(small), rel=1e-12)


def test_the_table_marks_every_number_that_rests_on_a_cited_constant():
    trained = table(8, model="trained")
    shown = {(entry.family, entry.task): entry.why for entry in trained}
    assert shown["mamba2", "lhi"].endswith("impossible past n* = 186*")
    assert all(("*" in entry.why.replace("n*", "")) == _cites(entry) for entry in trained)
    assert "conditional on how the block is built" in str(trained)
    assert "conditional" not in str(table(8))


def test_the_table_says_that_formal_weights_have_sizes_of_their_own():
    """With --ff 0 it shows two layers where the verdict at that size is open."""
    said = " ".join(str(table(8, hidden=0)).split())
    assert "n* is for width 16, hidden 0. The weights have sizes of their own" in said
    assert verdict("lhi", "softmax-full", layers=2, n=8, ff=0).answer == "open"
    assert "sizes of their own" not in str(table(8, model="trained"))


def _cites(entry):
    return any(route.cited for route in entry.bounds)
