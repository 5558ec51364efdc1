"""What is proved at one n and at every n: no contradiction as n grows, and commands that run."""

import re
import shlex
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from ithbit import bound as stated_bound
from ithbit import verdict
from ithbit.cli import app
from ithbit.errors import SpecError
from ithbit.families import TASKS
from ithbit.theory.architecture import FORMAL_FAMILIES, TRAINED_FAMILIES, architecture
from ithbit.theory.bounds import NoBoundError, all_routes, bound
from ithbit.theory.bounds.counting import Stage, log2_cells, n_star
from ithbit.theory.bounds.stages import MOST_LAYERS
from ithbit.theory.certificate import certify
from ithbit.theory.constructions import CONSTRUCTIONS, LONGEST, construct, construct_trained
from ithbit.theory.summary_table import table
from ithbit.theory.verdicts import CERTIFIED_N, hidden_units

LENGTHS = (1, 9, CERTIFIED_N + 1, 10_000, 10_001, 14_268, 10**6, 10**9, 10**12)
DEPTHS = (1, 2, 3, MOST_LAYERS, MOST_LAYERS + 1, 10**6)
PAIRS = [(task, family) for task in TASKS for family in FORMAL_FAMILIES]
SIZES = ({}, {"width": 1, "ff": 3}, {"width": 10**12, "ff": 10**12})


def commands(text):
    """The whole commands that a text recommends."""
    found = re.findall(r"`ithbit ([^`…]+)`", " ".join(text.split()))
    return [command for command in found if len(command.split()) > 1]


def succeeds(command):
    result = CliRunner().invoke(app, shlex.split(command))
    return result.exit_code == 0


@pytest.mark.parametrize(("task", "family"), PAIRS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_answers_never_contradict_each_other_as_n_grows(task, family, sizes):
    for depth in DEPTHS:
        found = [verdict(task, family, depth, n, **sizes) for n in LENGTHS]
        changes = set(pairwise(each.answer for each in found))
        assert {pair for pair in changes if pair[0] != pair[1]} <= {("open", "impossible")}
        for n, each in zip(LENGTHS, found, strict=True):
            assert (each.certificate is not None) == (each.answer == "possible" and n <= 9)
            assert (each.every_n is not None) == (each.answer == "possible")
            assert str(each)
            assert each.to_json()["answer"] == each.answer


@pytest.mark.parametrize(("task", "family"), [(t, f) for t in TASKS for f in TRAINED_FAMILIES])
@pytest.mark.parametrize("sizes", [{}, {"width": 10**5, "ff": 10**5}, {"width": 2, "heads": 1}])
def test_answers_of_trained_blocks_never_contradict_each_other(task, family, sizes):
    lengths = (9, CERTIFIED_N + 1, 10**12)
    for depth in (1, 2, 10**6):
        found = [verdict(task, family, depth, n, model="trained", **sizes) for n in lengths]
        changes = set(pairwise(each.answer for each in found))
        assert {pair for pair in changes if pair[0] != pair[1]} <= {("open", "impossible")}
        for each in found:
            assert (each.every_n is not None) == (each.answer == "possible")
            assert str(each)
    told = str(verdict(task, family, 2, 9, model="trained", **sizes))
    assert all(succeeds(command) for command in commands(told))


def test_commands_for_trained_blocks_past_the_reach_of_certificates_run():
    for family in ("softmax-full", "mamba2"):
        told = str(verdict("lhi", family, 3, 10**12, model="trained", heads=1))
        assert "is computed for n up to 14,267 only" in told
        assert [succeeds(command) for command in commands(told)] == [True]


def test_the_table_of_trained_blocks_holds_at_every_n():
    small, large = (table(n, model="trained") for n in (9, 10**12))
    assert [entry.min_layers for entry in small] == [entry.min_layers for entry in large]
    assert all(entry.min_layers is None or "for every n" in entry.why for entry in large)


def test_what_is_possible_for_every_n_is_said_for_every_n():
    """It was open from 10,001 on, and the command it gave was refused."""
    for n in (10_000, 10_001, 10**12):
        found = verdict("rhi", "softmax-full", 1, n)
        assert found.answer == "possible"
        assert "proved by closed form: the margin is at least 1.858 for every n" in found.because
    assert "is computed for n up to 10,000 only" in str(verdict("rhi", "softmax-full", 1, 10**5))
    assert "`ithbit certify rhi softmax-full --variant parabola --n 10000` certifies" in str(
        verdict("rhi", "softmax-full", 1, 10_000)
    )


def test_every_command_that_a_verdict_recommends_runs():
    found = set()
    for task, family in PAIRS:
        for depth in (1, 2):
            found |= set(commands(str(verdict(task, family, depth, 9))))
    assert len(found) == len(CONSTRUCTIONS)
    for task, family in (("rhi", "softmax-full"), ("lhi", "ssm")):
        found |= set(commands(str(verdict(task, family, 2, 10**12))))
    assert len(found) == len(CONSTRUCTIONS) + 2
    assert [command for command in sorted(found) if not succeeds(command)] == []


@pytest.mark.parametrize("layers", [1, 2, 10**6])
def test_every_command_that_stands_in_for_a_bound_runs(layers):
    for task, family in PAIRS:
        said = ""
        try:
            stated_bound(task, family, layers=layers)
        except (NoBoundError, SpecError) as reason:
            said = str(reason)
        assert all(succeeds(command) for command in commands(said))
        if "at most" in said:
            assert f"for at most {MOST_LAYERS} layers, got 1,000,000; take fewer" in said
            assert said in verdict(task, family, layers, 8).because
        else:
            assert not said or commands(said)


@pytest.mark.slow
@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda entry: f"{entry.task} {entry.family}")
def test_certificates_reach_as_far_as_they_say(entry):
    longest = certify(construct(entry.task, entry.family, 8)).longest
    assert certify(construct(entry.task, entry.family, longest)).certified
    assert not succeeds(f"certify {entry.task} {entry.family} --n {longest + 1}")


@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda entry: f"{entry.task} {entry.family}")
def test_the_sizes_of_a_construction_do_not_depend_on_n(entry):
    def sizes(n):
        solution = construct(entry.task, entry.family, n)
        return solution.depth, solution.width, hidden_units(solution)

    assert len({sizes(n) for n in (1, 2, 3, 8, 64, 1000)}) == 1
    assert sizes(1)[0] == entry.depth


def test_the_table_holds_at_every_n():
    small, large = table(9), table(10**12)
    assert [entry.min_layers for entry in small] == [entry.min_layers for entry in large]
    assert [entry.layers_text for entry in small] == [entry.layers_text for entry in large]
    for entry in large:
        assert entry.certificate is None
        assert entry.min_layers is None or "for every n" in entry.why


@pytest.mark.parametrize("model", ["formal", "trained"])
def test_bounds_of_any_size_are_numbers_or_a_sentence(model):
    families = FORMAL_FAMILIES if model == "formal" else TRAINED_FAMILIES
    for family in families:
        for sizes in ({"width": 10**12, "hidden": 10**12}, {"state": 10**12}, {"hidden": 1}):
            for feature in ("elu", "relu"):
                arch = architecture(family, model, n_layers=3, heads=1, feature=feature, **sizes)
                for task in TASKS:
                    stars = [route.n_star for route in all_routes(task, arch)]
                    assert stars == sorted(stars)
                    assert all(star >= 1 for star in stars)


def test_deep_bounds_with_degrees_that_no_float_holds():
    deep = architecture("linear-causal", n_layers=MOST_LAYERS, feature="relu", heads=16)
    assert bound("rhi", deep).n_star > 10**9


def test_sizes_have_a_limit():
    with pytest.raises(
        SpecError, match="width must be at most 1,000,000,000,000, got 1000000000001"
    ):
        architecture("rnn", width=10**12 + 1)
    with pytest.raises(SpecError, match="layers must be at most 1,000,000,000,000, got 10"):
        verdict("lhi", "rnn", 10**13, 8)


def test_large_counts_are_bounds_of_what_they_count():
    """Past the dimensions that are added up term by term, the sum is bounded from above."""
    for p in (10**6, 10**6 + 1):
        for hyperplanes in (p + 1, 2 * p - 1, 2 * p + 1, 3 * p, 10 * p):
            exact, found = log2_cells(hyperplanes, 10**6), log2_cells(hyperplanes, p)
            assert exact <= found <= exact + 10
    assert log2_cells(10**40, 10**20) < 10**22
    assert n_star((Stage("readout", parameters=10**12, tests=1),)) == 10**12


def test_weights_are_built_up_to_a_length():
    for build, family in ((construct, "rnn"), (construct_trained, "gru")):
        with pytest.raises(SpecError, match=f"at most {LONGEST:,} where weights are built, got 10"):
            build("lhi", family, 10**8)
    with pytest.raises(SpecError, match=r"up to 4,000,000 numbers, got about .*; take fewer"):
        construct_trained("lhi", "gru", 8, layers=10**6)
