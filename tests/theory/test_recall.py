"""Recall tasks: bounds, free tables by brute force, explicit weights, and broken ones."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from flint import arb, ctx
from tests.support.recall_inputs import embed, every_input, least_margin, successors

import ithbit
from ithbit.errors import SpecError
from ithbit.theory.bounds import NoBoundError
from ithbit.theory.bounds.borders import log2_count
from ithbit.theory.bounds.stages import stages
from ithbit.theory.layers import matrix
from ithbit.theory.recall.certificate import build_recall, certify_recall
from ithbit.theory.recall.copying import copying
from ithbit.theory.recall.induction_head import induction_head
from ithbit.theory.recall.tasks import RECALL_ONLY, recall, values_held
from ithbit.theory.recall.verdicts import recall_verdict

BOUNDS = [  # width 16 and 64 hidden units, unless given; V = 4,096 for mqar
    ("mqar", "rnn", {}, 42),
    ("mqar", "rnn", {"layers": 2}, 115),
    ("mqar", "rnn", {"layers": 4}, 360),
    ("mqar", "ssm", {}, 28),
    ("mqar", "ssm", {"layers": 2}, 118),
    ("mqar", "ssm", {"transition": "constant", "layers": 2}, 72),
    ("mqar", "softmax-full", {}, 30),
    ("mqar", "softmax-causal", {"width": 32}, 60),
    ("mqar", "softmax-causal", {"width": 64}, 119),
    ("mqar", "softmax-causal", {"width": 128}, 237),
    ("mqar", "linear-causal", {}, 30),
    ("mqar", "softmax-full", {"model": "trained", "activation": "relu"}, 69),
    (
        "mqar",
        "softmax-full",
        {"model": "trained", "activation": "relu", "width": 64, "ff": 256},
        265,
    ),
    ("mqar", "mamba2", {"model": "trained"}, 665),
    ("mqar", "gru", {"model": "trained"}, 3_928),
    ("mqar", "gru", {"model": "trained", "layers": 2}, 183_282),
    ("mqar", "gru", {"model": "trained", "width": 4}, 58),
    ("rhi", "linear-causal", {"values": 4096}, 501),
    ("rhi", "linear-causal", {"values": 4096, "layers": 2, "feature": "relu"}, 2_365),
    ("induction", "softmax-full", {}, 281),
    ("induction", "ssm", {"transition": "constant"}, 264),
    ("induction-growing", "rnn", {}, 74),
    ("induction-growing", "ssm", {}, 49),
]


@pytest.mark.parametrize(("task", "family", "sizes", "star"), BOUNDS)
def test_bounds(task, family, sizes, star):
    assert ithbit.bound(task, family, **sizes).n_star == star


def test_one_layer_of_linear_attention_has_two_bounds():
    found = ithbit.bound("induction-growing", "linear-causal", all_routes=True)
    stars = [route.n_star for route in found.routes if route.real_arithmetic]
    assert stars == [52, 588]


@pytest.mark.parametrize("K", [2, 3, 4])
def test_every_rooted_tree_is_a_table(K):
    """n^(n-1) tables with 2n - 2 tokens before the query, all symbols among them."""
    tables = set()
    for prefix in product(range(K), repeat=2 * K - 2):
        if len(set(prefix)) == K:
            text = [*prefix]
            last = [max(i for i, s in enumerate(text) if s == q) for q in range(K)]
            tables.add(tuple([*text, q][i + 1] for q, i in enumerate(last)))
    assert len(tables) == K ** (K - 1)


@pytest.mark.parametrize(("K", "e"), [(3, 1), (4, 1), (4, 2), (5, 1)])
def test_trees_with_the_last_pairs_fixed(K, e):
    """What a convolution sees is held fixed: (e + 1) n^(n-2-e) tables are left, not n^(n-2)."""
    end = [token for child in range(1, e + 1) for token in (child, 0)]
    found = set()
    for start in product(range(K), repeat=2 * K - 2 - 2 * e):
        if len({*start, *end}) == K:
            text = [*start, *end]
            last = [max(i for i, s in enumerate(text) if s == q) for q in range(K)]
            found.add(tuple([*text, q][i + 1] for q, i in enumerate(last)))
    assert K ** (K - 2) > len(found) >= (e + 1) * K ** (K - 2 - e) if e < K - 2 else found
    bits = 352 * 32 - 2 * 48 * 32  # the state of Mamba2 less its convolution's window
    held = ithbit.bound("induction-growing", "mamba2", model="trained", all_routes=True).routes
    star = next(route.n_star for route in held if not route.real_arithmetic)
    assert (star - 3) * np.log2(star) <= bits < (star - 2) * np.log2(star + 1)


def test_what_a_state_holds():
    for bits, values in ((512, 3), (512, 4096), (10**6, 10**9), (7, 2)):
        held = values_held(bits, values)
        assert values**held <= 2**bits < values ** (held + 1)
    found = ithbit.bound("mqar", "rnn", all_routes=True).routes
    assert [r.n_star for r in found if not r.real_arithmetic] == [512 // 12]


@pytest.mark.parametrize("family", ["rnn", "ssm", "linear-causal", "softmax-full"])
def test_copying_is_possible_and_has_no_bound(family):
    with pytest.raises(NoBoundError, match="possible; 1 layer of width"):
        ithbit.bound("copy", family)
    assert ithbit.verdict("copy", family, n=10**9).answer == "possible"


WEIGHTS = [
    ("mqar", 2, "softmax-causal", 2),
    ("mqar", 3, "softmax-full", 2),
    ("induction", 3, "softmax-causal", 2),
    ("induction", 3, "softmax-full", 2),
    ("induction-growing", None, "softmax-causal", 3),
    ("copy", 2, "ssm", 5),
    ("copy", 3, "rnn", 3),
    ("copy", 3, "softmax-causal", 3),
    ("copy", 2, "linear-causal", 4),
    ("copy", 2, "linear-full", 3),
]


@pytest.mark.parametrize(("task", "values", "family", "n"), WEIGHTS)
def test_weights_are_right_on_all_inputs(task, values, family, n):
    solution = build_recall(recall(task, values), family, n)
    proved = certify_recall(solution)
    assert proved.certified
    assert proved.margin <= least_margin(solution) * (1 + 1e-12)
    for tokens, answer, allowed in every_input(solution):
        x = embed(solution, tokens)[None]
        for layer in solution.layers:
            x = layer(x)
        logits = x[0, -1] @ solution.output.T
        assert max(allowed, key=logits.__getitem__) == answer


@pytest.mark.parametrize(("family", "margin"), [("rnn", 1), ("ssm", 2)])
def test_induction_over_a_fixed_alphabet_in_one_recurrent_layer(family, margin):
    for values, n in ((3, 2), (5, 1)):
        solution = successors(recall("induction", values), family, n)
        assert least_margin(solution) >= margin * (1 - 1e-12)
        known = ithbit.verdict("induction", family, width=solution.width, values=values)
        assert known.answer == "possible"
    assert ithbit.verdict("induction", family, width=11).answer == "open"


def changed(array, place, value):
    new = np.array(array)
    new[place] = value
    return matrix(new, new.ndim)


def broken():
    """Weights with one number changed, and what is wrong with them."""
    head = induction_head(recall("induction", 3), "softmax-causal", 2)
    first, second = head.layers
    yield (
        "matches anything",
        replace(head, layers=(first, replace(second, Q=changed(second.Q, (0, 3), 0)))),
    )
    yield (
        "looks at itself",
        replace(head, layers=(replace(first, Q=changed(first.Q, (0, 2), 0)), second)),
    )
    yield (
        "prefers the first",
        replace(head, layers=(first, replace(second, Q=changed(second.Q, (2, 2), -9)))),
    )
    yield (
        "reads nothing",
        replace(head, layers=(first, replace(second, V=changed(second.V, (2, 3), 0)))),
    )
    yield "two answers swapped", replace(head, output=matrix(head.output[[1, 0, 2]]))
    yield (
        "a token misplaced",
        replace(head, embedding=changed(head.embedding, (1, 1), head.embedding[2, 1])),
    )
    copy = copying(recall("copy", 3), "ssm", 3)
    yield "forgets to subtract", replace(copy, again=changed(copy.again, (1, 2, 0), 0))
    yield "another scale", replace(copy, again=changed(copy.again, (2, 1, 1), 9.0))


@pytest.mark.parametrize(("what", "solution"), list(broken()), ids=lambda value: str(value)[:20])
def test_broken_weights_are_refused(what, solution):
    """As the proof sees it, and on the inputs themselves."""
    assert least_margin(solution) <= 0, what
    with pytest.raises(SpecError, match="are refused"):
        certify_recall(solution)


def test_scales_that_are_too_small_are_not_certified():
    task = recall("mqar", 16)
    for scales in ((1, 1, 1), (20, 5, 20), (20, 5000, 1), (3, 5000, 20)):
        found = induction_head(task, "softmax-full", 32, given=scales)
        assert not certify_recall(found).certified
    assert certify_recall(induction_head(task, "softmax-full", 32)).certified


@pytest.mark.parametrize("n", [1, 2, 3, 1_000, 10**12])
@pytest.mark.parametrize("values", [2, 3, 10**9])
def test_an_induction_head_has_a_margin_of_3_8_at_every_size(n, values):
    arch = ithbit.theory.architecture.architecture("softmax-causal", n_layers=2)
    for name in ("mqar", "induction"):
        if (name, values) != ("induction", 2):
            assert recall_verdict(recall(name, values), arch, n).certified >= 3 / 8


def test_copying_runs_at_length_300():
    solution = copying(recall("copy", 4), "ssm", 300)
    tokens = np.random.default_rng(0).integers(1, 5, (4, 300))
    done = 150
    inputs = np.concatenate([tokens, np.zeros((4, 1), int), tokens[:, :done]], axis=1)
    x = np.stack([embed(solution, tuple(row)) for row in inputs.tolist()])
    (layer,) = solution.layers
    output = np.vectorize(Fraction, otypes=[object])(solution.output)
    logits = layer(np.vectorize(Fraction, otypes=[object])(x))[:, -1] @ output.T
    assert (logits.argmax(1) + 1 == tokens[:, done]).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: recall("mqar", 1), "values for mqar must be at least 2"),
        (lambda: recall("induction", 2), "values for induction must be at least 3"),
        (lambda: recall("mqar", 10**9 + 1), "values for mqar must be at most 1,000,000,000"),
        (lambda: recall("copy", 2.5), "values for copy must be a whole number"),
        (lambda: recall("induction-growing", 5), "as many values as symbols"),
        (lambda: recall("parity"), "unknown task 'parity'; choose one of"),
        (lambda: ithbit.certify("mqar", "softmax-full", n=0), "n must be at least 1"),
        (lambda: ithbit.certify("mqar", "softmax-full", n=10**9), "weights are built up to"),
        (lambda: ithbit.certify("copy", "rnn", n=2000), "only up to n = 510"),
        (lambda: ithbit.certify("rhi", "softmax-full", n=4, values=5), "values are for"),
        (lambda: ithbit.certify("mqar", "softmax-full", n=4, out="x"), "out cannot be given"),
        (lambda: ithbit.certify("mqar", "ssm", n=4), "for softmax attention"),
        (lambda: ithbit.verdict(values=5), "--values needs a task"),
        (lambda: ithbit.verdict("induction-growing", "rnn", n=1), "at least 2 symbols"),
        (lambda: ithbit.bound("mqar", "rnn", bits=0), "a number has at least 1 bit"),
    ],
)
def test_a_sentence_for_every_mistake(call, sentence):
    with pytest.raises(SpecError, match=sentence):
        call()


@pytest.mark.parametrize(("layers", "size"), [(2, 16), (3, 16), (64, 10**12), (500, 10**12)])
def test_borders_of_growing_alphabets_in_balls(layers, size):
    """Also at the largest sizes, where numbers far past the border leave the range of doubles."""
    found = ithbit.bound("induction-growing", "linear-causal", layers=layers, width=size, ff=size)
    *hidden, last = stages("rhi", found.arch, 3)
    room = found.n_star // 10**9
    for n, excluded in ((found.n_star - room, False), (found.n_star + room + 1, True)):
        with ctx.workprec(1024):
            count = log2_count((*hidden, replace(last, values=n)), n, "bezout")
            assert (count < (n - 1) * arb(n).log() / arb.const_log2()) is excluded


def test_the_table_agrees_with_verdicts():
    table = ithbit.verdict(n=4).recall
    assert {entry[-1].task.name for entry in table} == set(RECALL_ONLY)
    least = {}
    for entry in table:
        task, family = entry[-1].task.name, entry[-1].arch.family
        assert all(each.answer == "impossible" for each in entry[:-1])
        for depth, each in enumerate(entry, 1):
            if each.n_star is not None:
                assert ithbit.verdict(task, family, depth, each.n_star + 1).answer == "impossible"
                assert ithbit.verdict(task, family, depth, each.n_star).answer == "open"
        if entry[-1].answer == "possible":
            least[task, family] = len(entry)
    assert {least[task, "softmax-causal"] for task in RECALL_ONLY[:3]} == {2}
    assert {least["copy", family] for _, family in least} == {1}
    assert least["induction", "rnn"] == least["induction", "ssm"] == 1
    assert all(("mqar", family) not in least for family in ("rnn", "ssm", "linear-causal"))


def test_complexity_says_what_follows():
    found = ithbit.complexity("rnn", task="mqar", values=4096)
    assert "n* = 42" in found.holds[0]
    assert "n <= 16" in found.holds[1]
    assert "n = 42" in found.holds[2]
    assert ithbit.complexity("rnn").holds == ()
