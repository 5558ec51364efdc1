"""`bound` and `verdict` give one answer and cite the paper only for what its theorems are about."""

import re
import shlex
from itertools import product

import pytest
from typer.testing import CliRunner

from ithbit import bound, certify, verdict
from ithbit.cli import app
from ithbit.errors import SpecError
from ithbit.families import TASKS
from ithbit.theory.architecture import FORMAL_FAMILIES, TRAINED_FAMILIES, architecture
from ithbit.theory.bounds import NoBoundError
from ithbit.theory.constructions import CONSTRUCTIONS, TRAINED
from ithbit.theory.summary_table import table
from ithbit.theory.verdicts import known_result

FAMILIES = [("formal", name) for name in FORMAL_FAMILIES]
FAMILIES += [("trained", name) for name in TRAINED_FAMILIES]
PAIRS = [(task, model, family) for task in TASKS for model, family in FAMILIES]
SIZES = [
    {"layers": layers, "width": width, "heads": heads, "ff": ff}
    for layers, width, heads, ff in product(
        (1, 2, 3), (1, 2, 4, 6, 16), (1, 2), (0, 1, 2, 3, 6, 64)
    )
    if width % heads == 0
]
LENGTHS = (1, 2, 5000, 10**30)

_ATTENTION = ("softmax-full", "softmax-causal", "linear-full", "linear-causal")
# What each theorem of the paper is about: task, families (or their trained counterparts), layers.
ABOUT = {
    "Theorem 12a": ("rhi", ("linear-causal", "ssm", "rnn"), range(1, 10**9)),
    "Theorem 12a with Remark 7": ("rhi", ("linear-full",), range(1, 2)),
    "Theorem 12b": ("rhi", ("linear-full",), range(2, 10**9)),
    "Theorem 12c": ("rhi", ("softmax-full", "softmax-causal"), range(1, 10**9)),
    "Theorem 14a": ("lhi", ("rnn",), range(1, 10**9)),
    "Theorem 14b": ("lhi", (*_ATTENTION, "ssm"), range(1, 2)),
    "Theorem 14c": ("lhi", (*_ATTENTION, "ssm"), range(2, 10**9)),
}
FORMAL = {"gru": "rnn", "mamba2": "ssm"}


def check_citations(text: str, task: str, model: str, family: str, layers: int) -> int:
    """How many theorems a text cites; each must be about this task, family and depth."""
    cited = re.findall(r"(beside )?(Theorem \d+\w*(?: with Remark 7)?)", text)
    for beside, theorem in cited:
        if "Anthony" in text and theorem.startswith("Theorem 8"):
            continue
        about_task, families, depths = ABOUT[theorem]
        assert task == about_task, text
        assert FORMAL.get(family, family) in families, text
        assert layers in depths, text
        assert bool(beside) == (model == "trained"), text
    return len(cited)


@pytest.mark.parametrize(("task", "model", "family"), PAIRS)
def test_bound_and_verdict_agree_and_cite_what_applies(task, model, family):
    cited = 0
    for sizes in SIZES:
        if model == "trained" and sizes["ff"] == 0:
            continue
        try:
            found = bound(task, family, model=model, **sizes)
        except NoBoundError as none:
            stated = re.search(r"\): (possible|open); ", str(none)).group(1)
            found = None
            cited += check_citations(str(none), task, model, family, sizes["layers"])
        for n in LENGTHS:
            said = verdict(task, family, n=n, model=model, **sizes)
            if found is None:
                assert said.answer == stated, sizes
            else:
                assert said.answer == ("impossible" if n > found.n_star else "open"), sizes
                assert said.n_star == found.n_star
            cited += check_citations(
                f"{said.theorem or ''} {said.because}", task, model, family, sizes["layers"]
            )
            assert said.answer != "possible" or said.theorem
    assert cited > 10


@pytest.mark.parametrize(
    ("task", "family", "sizes", "answer"),
    [
        ("rhi", "softmax-full", {"width": 1}, "open"),
        ("rhi", "softmax-full", {"ff": 0}, "open"),
        ("rhi", "linear-full", {"layers": 2, "width": 1, "ff": 2}, "open"),
        ("rhi", "linear-full", {"layers": 2, "width": 1, "ff": 3}, "possible"),
        ("rhi", "softmax-full", {"heads": 16}, "open"),
        ("rhi", "softmax-full", {"heads": 8}, "possible"),
        ("lhi", "softmax-full", {"layers": 2, "model": "trained", "width": 4}, "open"),
        ("lhi", "linear-causal", {"layers": 2, "model": "trained", "ff": 5}, "open"),
        ("lhi", "mamba2", {"layers": 2, "model": "trained", "state": 1, "width": 6}, "possible"),
        ("lhi", "mamba2", {"layers": 2, "model": "trained", "width": 850_000}, "open"),
    ],
)
def test_the_command_that_bound_suggests_is_about_the_same_sizes(task, family, sizes, answer):
    with pytest.raises(NoBoundError, match=f": {answer}; ") as none:
        bound(task, family, **sizes)
    (command,) = re.findall(r"`ithbit (verdict [^`]+)`", str(none.value))
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    given = {"n_layers" if key == "layers" else key: value for key, value in sizes.items()}
    given["hidden"] = given.pop("ff", 64)
    assert architecture(family, **given).sizes in lines[0]
    assert lines[1].split()[0] == answer


@pytest.mark.parametrize(
    ("task", "family", "n", "sizes"),
    [
        ("lhi", "rnn", 2, {"ff": 0}),
        ("lhi", "rnn", 2, {"ff": 0, "layers": 3}),
        ("rhi", "softmax-full", 64, {"model": "trained", "width": 1, "heads": 1, "layers": 7}),
        ("lhi", "linear-causal", 64, {"model": "trained", "width": 1, "heads": 1, "layers": 2}),
    ],
)
def test_what_the_paper_does_not_have_is_not_ascribed_to_it(task, family, n, sizes):
    found = verdict(task, family, n=n, **sizes)
    assert (found.answer, found.theorem) == ("impossible", None)
    assert "impossible (no theorem of the paper)" in str(found)


def test_tables_and_certificates_cite_what_applies():
    for model in ("formal", "trained"):
        for entry in table(4, model=model):
            depth = entry.min_layers or 1
            assert check_citations(entry.theorem, entry.task, model, entry.family, depth) == 1
    for model, entries in (("formal", CONSTRUCTIONS), ("trained", TRAINED)):
        for entry in entries:
            certificate = certify(entry.task, entry.family, n=2, model=model)
            stated = certificate.solution.theorem
            assert check_citations(stated, entry.task, model, entry.family, entry.depth) == 1


def test_a_kernel_or_activation_without_weights_is_open():
    relu = architecture("linear-full", n_layers=2, feature="relu")
    assert "ELU+1" in known_result("rhi", relu).missing
    units = architecture("linear-full", "trained", n_layers=2, activation="relu")
    assert "GELU" in known_result("lhi", units).missing
    with pytest.raises(NoBoundError, match="open; the construction of Theorem 12b here is for"):
        bound("rhi", "linear-full", layers=2, feature="relu")
    # BERT's weights have no feed-forward part and Mamba2's convolution is the identity.
    assert known_result("rhi", architecture("softmax-full", "trained", activation="relu")).weights
    assert known_result("lhi", architecture("mamba2", "trained", n_layers=2, conv=4)).weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, "heads must divide the width, got 3 and 16"),
        ({"task": "rhi", "family": "softmax-full", "heads": 3}, "heads must divide the width"),
        ({"state": 3}, "only Mamba2, which is trained, has a state"),
        ({"model": "trained", "state": 0}, "state must be at least 1"),
        ({"model": "trained", "ff": 5, "n": 4}, "need 6 feed-forward units"),
        ({"model": "trained", "ff": 0}, "ff must be at least 1"),
    ],
)
def test_sizes_are_honoured_or_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        verdict(**arguments)


def test_the_table_takes_heads_feed_forward_and_state():
    def stars(**sizes):
        found = verdict(n=2, **sizes)
        return {
            (e.task, e.family): (e.fewer or (*e.by_depth, None)[0]).n_star
            for e in found
            if e.fewer or e.by_depth
        }

    plain, two = stars(), stars(heads=2)
    assert plain["lhi", "softmax-full"] == 281
    assert two["lhi", "softmax-full"] == bound("lhi", "softmax-full", heads=2).n_star > 281
    trained = stars(model="trained", ff=8, state=2)
    assert trained["rhi", "mamba2"] == bound("rhi", "mamba2", model="trained", state=2).n_star
    assert trained["lhi", "softmax-full"] == (
        bound("lhi", "softmax-full", model="trained", ff=8).n_star
    )
