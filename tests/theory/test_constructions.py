"""Every construction on every input for small n, its size, and where sketches need care."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ithbit.errors import SpecError
from ithbit.families import FAMILIES
from ithbit.tasks.indexing import all_inputs
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.constructions.linear_heavy import FOUND, INDEX
from ithbit.theory.constructions.softmax_focus import cosine_scale
from ithbit.theory.gadgets import hat
from ithbit.theory.layers import matrix
from ithbit.theory.precision import float_runs, smallest_margin
from ithbit.theory.solution import Embedding

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]


def expected_margin(variant: str, n: int) -> float:
    """The exact minimum of the margin, to six digits."""
    return {
        "parabola": 1.997778 if n == 1 else 1.997926,
        "scalar": n + 4,
        "heavy": 1 - 2 / (100 * n + 1),
    }.get(variant, 1.0)


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_every_input_is_answered_in_both_float_types(task, family, variant):
    for n in range(1, 11):
        solution = construct(task, family, n, variant)
        for dtype in (np.float32, np.float64):
            found = smallest_margin(solution, dtype)
            if variant == "cosine":
                assert 0.46 < found <= 0.5
            else:
                assert found == pytest.approx(expected_margin(variant, n), abs=2e-6)


@pytest.mark.parametrize(
    ("family", "variant"),
    [("ssm", "selective"), ("ssm", "time-invariant"), ("rnn", "scalar"), ("rnn", "pair")],
)
def test_recurrent_constructions_are_exact_in_rationals(family, variant):
    for n in (1, 3, 5):
        found = smallest_margin(construct("lhi", family, n, variant), object)
        assert found == expected_margin(variant, n)


@pytest.mark.parametrize(
    ("task", "family", "variant", "sizes", "width"),
    [
        ("rhi", "softmax-full", "parabola", (24,), 2),
        ("rhi", "softmax-causal", "cosine", (44,), 3),
        ("rhi", "linear-full", "marker", (16, 10), 1),
        ("lhi", "softmax-full", "marker", (13, 7), 1),
        ("lhi", "linear-causal", "marker", (16, 10), 1),
        ("lhi", "ssm", "selective", (20, 9), 1),
        ("lhi", "rnn", "scalar", (27,), 1),
        ("lhi", "rnn", "pair", (55,), 2),
        ("lhi", "gru", "latch", (81,), 3),
    ],
)
def test_sizes_do_not_depend_on_n(task, family, variant, sizes, width):
    for n in (1, 7, 300):
        solution = construct(task, family, n, variant)
        assert (solution.sizes, solution.width) == (sizes, width)


def test_the_table_has_the_positive_entries_of_the_paper():
    table = {(entry.task, entry.family): entry.depth for entry in CONSTRUCTIONS}
    for family in FAMILIES.values():
        for task, least in family.min_layers.items():
            assert table.pop((task, family.formal), None) == least
    assert not table
    for entry in CONSTRUCTIONS:
        for variant in entry.variants:
            assert construct(entry.task, entry.family, 3, variant).depth == entry.depth


def test_weights_free_of_n_are_free_of_n():
    for family, variant in (("softmax-full", "parabola"), ("rnn", "pair"), ("ssm", "selective")):
        task = "rhi" if variant == "parabola" else "lhi"
        small, large = (construct(task, family, n, variant) for n in (2, 50))
        for a, b in zip(small.layers, large.layers, strict=True):
            for name in ("K", "Q", "V"):
                if hasattr(a, name):
                    assert (getattr(a, name) == getattr(b, name)).all()
            for name in ("net", "N1", "N2", "A", "B", "phi"):
                if hasattr(a, name):
                    pairs = zip(getattr(a, name).weights, getattr(b, name).weights, strict=True)
                    assert all((x == y).all() for x, y in pairs)


def test_the_gru_weights_solve_lhi_in_torch():
    torch = pytest.importorskip("torch")
    for n, dtype in ((6, torch.float32), (6, torch.float64), (8, torch.float32)):
        solution = construct("lhi", "gru", n)
        layer = solution.layers[0]
        gru = torch.nn.GRU(4, 3, batch_first=True, dtype=dtype)
        with torch.no_grad():
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(gru, f"{name}_l0").copy_(torch.tensor(np.array(getattr(layer, name))))
            for bits, index in all_inputs(n):
                x = torch.tensor(solution.embedding(bits, index)).to(dtype)
                last = gru(x)[0][:, -1].numpy()
                answer = bits[np.arange(len(bits)), index - 1]
                assert ((last[:, 2] > 0) == (answer == 1)).all()
                assert np.abs(last[:, 2]).min() > 0.999
                ours = layer(x.numpy())[:, -1]
                np.testing.assert_allclose(
                    ours, last, atol=2e-3 if dtype == torch.float32 else 1e-9
                )


def test_too_small_a_scale_is_wrong():
    good = construct("rhi", "softmax-full", 6)
    weak = replace(good, layers=(replace(good.layers[0], Q=matrix([[0, -2], [2, 0]])),))
    assert smallest_margin(weak) == pytest.approx(-3.8956, abs=1e-4)


def test_too_wide_a_hat_is_wrong():
    good = construct("lhi", "softmax-full", 6)
    wide = replace(good, layers=(replace(good.layers[0], net=hat(1.5)), good.layers[1]))
    assert smallest_margin(wide) == pytest.approx(-1.00074, abs=1e-5)


def test_a_query_in_the_linear_layer_underflows_in_float32():
    good = construct("lhi", "linear-full", 128)
    bad = replace(good, layers=(replace(good.layers[0], Q=matrix([[1]])), good.layers[1]))
    bits, index = np.ones((1, 128), np.uint8), np.array([128])
    with np.errstate(all="ignore"):
        assert np.isnan(bad.margins(bits, index, np.float32)).all()
    assert bad.margins(bits, index, np.float64)[0] > 1


def test_cosine_keys_tie_with_the_index_token_itself():
    solution = construct("rhi", "softmax-full", 5, "cosine")
    _, (trace,) = solution.trace([1, 0, 1, 1, 0], 3)
    np.testing.assert_allclose(trace.attention[0, -1, [2, 5]], 0.5, atol=1e-3)


@pytest.mark.parametrize(
    ("m", "gap"), [(6, 4.0e-2), (44, 1.6e-4), (333, 3.9e-5), (710, 1.8e-9), (103993, 1.8e-10)]
)
def test_cosines_of_integers_come_close_to_one(m, gap):
    # 2 sin^2(m / 2) = 1 − cos m without cancellation.
    assert 2 * math.sin(m / 2) ** 2 == pytest.approx(gap, rel=0.05)


def test_the_cosine_scale_jumps_at_710_and_float32_gives_way():
    assert cosine_scale(720) / cosine_scale(700) > 1e4
    before, after = (float_runs(construct("rhi", "softmax-full", n, "cosine")) for n in (700, 720))
    assert (before[0].wrong, before[1].wrong, after[1].wrong) == (0, 0, 0)
    assert after[0].wrong > 0


def test_float32_gives_way_on_the_parabola_where_float64_does_not():
    assert [run.wrong for run in float_runs(construct("rhi", "softmax-full", 1200))] == [0, 0]
    single, double = float_runs(construct("rhi", "softmax-full", 2048))
    assert single.wrong > 0
    assert double.wrong == 0


def test_adding_the_found_index_onto_the_stored_one_fakes_a_marker_at_odd_n():
    swapped = np.arange(5)
    swapped[[INDEX, FOUND]] = FOUND, INDEX
    for n in (3, 4, 5, 6):
        good = construct("rhi", "linear-full", n, "heavy")
        first, net = good.layers[0], good.layers[0].net
        marks = replace(net, weights=(net.weights[0][:, swapped], *net.weights[1:]))
        careless = replace(first, V=first.V[swapped], net=marks)
        solves = smallest_margin(replace(good, layers=(careless, good.layers[1]))) > 0
        assert solves == (n % 2 == 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rhi", "rnn", 4), "no construction is known for rhi by rnn.*ithbit verdict rhi rnn"),
        (("rhi", "linear-causal", 4), "no construction is known for rhi by linear-causal"),
        (("rhi", "gru", 4), "formal counterpart is 'rnn'"),
        (("lhi", "mamba2", 4), "formal counterpart is 'ssm'"),
        (("lhi", "lstm", 4), "unknown formal family 'lstm'; choose one of softmax-full"),
        (("left", "rnn", 4), "unknown task 'left'"),
        (("lhi", "rnn", 0), "n must be at least 1, got 0"),
        (("lhi", "rnn", 4, "fast"), "no variant 'fast'; choose one of scalar, pair"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(arguments, message):
    with pytest.raises(SpecError, match=message):
        construct(*arguments)


def test_a_solution_is_checked_as_a_whole():
    good = construct("lhi", "rnn", 3)
    with pytest.raises(SpecError, match="embedding has 3 positions for n = 4"):
        replace(good, n_bits=4)
    with pytest.raises(SpecError, match="is not a layer of 'ssm'"):
        replace(good, family="ssm")
    with pytest.raises(SpecError, match="A must be 2 × 1"):
        replace(good, output=matrix([[0, 1], [1, 0]]))
    with pytest.raises(SpecError, match="LHI needs an end token"):
        replace(good, task="rhi")
    with pytest.raises(SpecError, match="at least one layer"):
        replace(good, layers=())
    with pytest.raises(SpecError, match="needs a bit table of shape"):
        Embedding(good.embedding.index, good.embedding.bit[:2], good.embedding.end)
