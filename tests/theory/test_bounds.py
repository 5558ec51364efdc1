"""n* of every family: the reference table, small widths, and what each number rests on."""

import math
import re

import pytest

from ithbit.errors import IthbitError, SpecError
from ithbit.theory.architecture import architecture
from ithbit.theory.bounds import PAPER_LENGTHS, NoBoundError, all_routes, bound, growth
from ithbit.theory.bounds.cited import vc_with_exponentials, vc_without_exponentials
from ithbit.theory.bounds.counting import n_star
from ithbit.theory.bounds.stages import stages
from ithbit.theory.verdicts import why_no_bound

# Width 16, hidden 64, two heads where trained: counting with (P) if there are polynomial stages.
TABLE = [
    ("rhi", "rnn", {}, (487, 1_482, 2_989, 5_022)),
    ("rhi", "ssm", {"transition": "constant"}, (264, 775, 1_530, 2_534)),
    ("rhi", "ssm", {}, (264, 935, 1_904, 3_204)),
    ("rhi", "linear-causal", {"feature": "relu"}, (4_616, 21_012, 50_427, 94_941)),
    ("rhi", "linear-causal", {}, (4_616, 303_737_823, 3_033_258_770, 13_947_140_905)),
    ("rhi", "linear-full", {}, (4_616,)),
    ("rhi", "gru", {"model": "trained"}, (46_832, 2_198_770, 14_718_860, 52_944_660)),
    (
        "rhi",
        "linear-causal",
        {"model": "trained", "activation": "relu"},
        (4_047, 85_629_293, 851_934_622, 3_913_334_111),
    ),
    (
        "rhi",
        "linear-causal",
        {"model": "trained"},
        (170_246_521, 3_612_052_585, 22_344_943_038, 83_676_738_938),
    ),
    (
        "rhi",
        "mamba2",
        {"model": "trained"},
        (2_589, 769_612_540, 7_319_684_558, 30_089_437_911),
    ),
    ("lhi", "softmax-full", {}, (281,)),
    ("lhi", "softmax-causal", {}, (281,)),
    ("lhi", "linear-full", {}, (281,)),
    ("lhi", "linear-causal", {}, (281,)),
    ("lhi", "linear-causal", {"heads": 2}, (394,)),
    ("lhi", "ssm", {}, (4_616,)),
    ("lhi", "ssm", {"transition": "constant"}, (264,)),
    ("lhi", "linear-causal", {"model": "trained", "activation": "relu"}, (507,)),
    ("lhi", "linear-causal", {"model": "trained"}, (2_692_640,)),
    ("lhi", "softmax-causal", {"model": "trained", "activation": "relu"}, (522,)),
    ("lhi", "softmax-full", {"model": "trained"}, (2_694_498,)),
    ("lhi", "mamba2", {"model": "trained"}, (186,)),
]


def routes(task, family, **sizes):
    found = all_routes(task, architecture(family, **sizes))
    return {
        route.name.split()[-1] if "counting" in route.name else route.name: route.n_star
        for route in found
    }


@pytest.mark.parametrize(("task", "family", "sizes", "expected"), TABLE)
def test_the_table_of_n_star(task, family, sizes, expected):
    for n_layers, number in enumerate(expected, start=1):
        counting = [
            route
            for route in all_routes(task, architecture(family, n_layers=n_layers, **sizes))
            if route.name.startswith("counting")
        ]
        cited = [route.n_star for route in counting if route.cited]
        assert (cited or [counting[0].n_star]) == [number]


@pytest.mark.parametrize(
    ("task", "family", "sizes", "warren", "bezout"),
    [
        ("rhi", "linear-causal", {"model": "trained", "activation": "relu"}, 4_047, 4_512),
        ("rhi", "mamba2", {"model": "trained"}, 2_589, 2_874),
        ("rhi", "linear-causal", {"feature": "relu", "n_layers": 4}, 94_941, 111_018),
        ("rhi", "ssm", {"n_layers": 4}, 3_204, 3_353),
        ("rhi", "ssm", {"n_layers": 2}, 935, 923),
        ("lhi", "softmax-causal", {"model": "trained", "activation": "relu"}, 522, 572),
        ("lhi", "linear-causal", {"model": "trained", "activation": "relu"}, 507, 557),
        ("lhi", "linear-causal", {"heads": 2}, 394, 383),
        ("lhi", "mamba2", {"model": "trained"}, 186, 202),
        ("rhi", "mamba2", {"model": "trained", "width": 2, "state": 2, "heads": 1}, 43, 44),
    ],
)
def test_polynomial_stages_with_and_without_the_cited_constant(task, family, sizes, warren, bezout):
    found = routes(task, family, **sizes)
    assert (found["(P)"], found["(P')"]) == (warren, bezout)
    assert bound(task, architecture(family, **sizes)).n_star == min(warren, bezout)


@pytest.mark.parametrize(
    ("task", "family", "sizes", "number"),
    [
        ("rhi", "gru", {"model": "trained", "width": 1}, 6),
        ("rhi", "gru", {"model": "trained", "width": 2}, 80),
        ("lhi", "softmax-full", {"width": 2}, 45),
        ("lhi", "linear-full", {"width": 4, "hidden": 16}, 66),
        ("rhi", "linear-causal", {"width": 1}, 19),
        ("rhi", "rnn", {"width": 2, "hidden": 8}, 41),
    ],
)
def test_small_widths(task, family, sizes, number):
    assert bound(task, architecture(family, **sizes)).n_star == number


@pytest.mark.parametrize(
    ("task", "family", "sizes", "number"),
    [
        ("rhi", "ssm", {"width": 5}, 5),
        ("rhi", "ssm", {"width": 5, "transition": "constant"}, 1),
        ("rhi", "ssm", {"width": 5, "transition": "constant", "n_layers": 3}, 1),
        ("rhi", "rnn", {"width": 5, "n_layers": 2}, 1),
        ("lhi", "rnn", {"width": 5}, 1),
        ("rhi", "linear-causal", {"width": 7}, 14),
        ("rhi", "linear-full", {"width": 300}, 600),
        ("lhi", "softmax-causal", {"width": 9}, 2),
        ("lhi", "linear-full", {"width": 9}, 2),
        ("lhi", "ssm", {"width": 9}, 10),
    ],
)
def test_affine_readouts(task, family, sizes, number):
    route = bound(task, architecture(family, hidden=0, **sizes))
    assert (route.n_star, route.status) == (number, "proved")


@pytest.mark.parametrize(
    ("task", "family", "sizes", "number"),
    [
        ("rhi", "rnn", {}, 796_864),
        ("rhi", "ssm", {"transition": "constant"}, 464_064),
        ("lhi", "softmax-full", {}, 288_660),
        ("rhi", "linear-causal", {}, 6_931_648),
    ],
)
def test_anthony_bartlett_without_exponentials(task, family, sizes, number):
    assert routes(task, family, **sizes)["Anthony–Bartlett 8.4"] == number


@pytest.mark.parametrize(
    ("family", "sizes", "about"),
    [
        ("gru", {"model": "trained"}, 3.0e7),
        ("gru", {"model": "trained", "n_layers": 4}, 2.0e9),
        ("linear-causal", {"n_layers": 2}, 2.8e9),
        ("linear-causal", {"n_layers": 4}, 4.1e10),
    ],
)
def test_anthony_bartlett_with_exponentials(family, sizes, about):
    found = routes("rhi", family, **sizes)["Anthony–Bartlett 8.14"]
    assert found == pytest.approx(about, rel=0.03)


def test_the_form_with_q_exponentials_implies_the_form_without():
    # With q = t - 1 the second form of Theorem 8.14 must not exceed the first: this tells the
    # coefficient 1 of its square from a misremembered 4.
    for p in (1, 2, 5, 16, 64, 256, 1024, 4096):
        for t in (2, 3, 5, 10, 50, 200, 1000, 5000):
            u = p * t
            second = u * u + 11 * u * (t + math.log2(9 * u))
            assert second <= t * t * p * (p + 19 * math.log2(9 * p))
            assert vc_with_exponentials(p, t, t - 1) == math.floor(second)
    assert vc_without_exponentials(2, 3) == 40


@pytest.mark.parametrize(
    ("family", "n_layers", "bits"),
    [
        ("gru", 1, 512),
        ("gru", 3, 1_536),
        ("linear-causal", 1, 4_608),
        ("mamba2", 1, 8_194),
        ("mamba2", 2, 2 * 8_192 + 96 * 32 + 2),
    ],
)
def test_state_of_float32_numbers(family, n_layers, bits):
    found = all_routes("rhi", architecture(family, "trained", n_layers=n_layers))
    (route,) = [route for route in found if not route.real_arithmetic]
    assert route.n_star == bits
    assert "recurrent, deterministic evaluation" in route.rests_on
    assert bound("rhi", architecture(family, "trained", n_layers=n_layers)).real_arithmetic


def test_every_number_says_what_it_rests_on():
    formal = bound("rhi", architecture("linear-causal", n_layers=2))
    assert formal.rests_on == ("proved here: the counting theorem (K), from Khovanskii's theorem")
    mamba = bound("rhi", architecture("mamba2", "trained"))
    assert mamba.status == "conditional"
    assert mamba.rests_on.startswith("conditional on one RMSNorm over the inner width")
    assert "Anthony–Bartlett, Theorem 8.3" in mamba.rests_on
    linear = bound("lhi", architecture("linear-full", "trained"))
    assert "exact erf GELU" in linear.rests_on
    assert "not a clamp" in linear.rests_on
    assert bound("rhi", architecture("gru", "trained")).status == "proved"
    cited = bound("rhi", architecture("ssm", n_layers=4))
    assert (cited.n_star, cited.status) == (3_204, "cited")


def test_no_trained_configuration_of_the_paper_is_in_a_proved_impossible_range():
    for task, family, layers in (
        *(("rhi", family, layers) for family in ("gru", "mamba2") for layers in (1, 2, 3, 4)),
        *(("rhi", "linear-causal", layers) for layers in (1, 2, 3, 4)),
        ("rhi", "linear-full", 1),
        *(("lhi", f, 1) for f in ("softmax-full", "linear-full", "mamba2")),
    ):
        route = bound(task, architecture(family, "trained", n_layers=layers))
        assert route.n_star >= max(PAPER_LENGTHS)


@pytest.mark.parametrize(
    ("task", "family", "sizes", "message"),
    [
        (
            "rhi",
            "softmax-full",
            {},
            r"possible; for every n by 1 layer of width 2 .*\(Theorem 12c\)",
        ),
        ("rhi", "softmax-causal", {"n_layers": 3}, r"Theorem 12c"),
        (
            "rhi",
            "linear-full",
            {"n_layers": 2},
            r"possible; for every n by 2 layers of width 1 .*Theorem 12b",
        ),
        ("lhi", "rnn", {}, r"Theorem 14a"),
        (
            "lhi",
            "ssm",
            {"n_layers": 2},
            r"possible; for every n by 2 layers of width 1 .*Theorem 14c",
        ),
        (
            "lhi",
            "gru",
            {"model": "trained"},
            r"possible; for every n by 1 layer .*beside Theorem 14a",
        ),
        ("rhi", "softmax-full", {"model": "trained"}, r"possible; .*beside Theorem 12c"),
        (
            "lhi",
            "mamba2",
            {"model": "trained", "n_layers": 2},
            r"possible; for every n by 2 layers",
        ),
    ],
)
def test_where_there_is_no_bound_the_reason_is_given(task, family, sizes, message):
    arch = architecture(family, **sizes)
    with pytest.raises(NoBoundError):
        bound(task, arch)
    assert re.search(message, why_no_bound(task, arch))


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        (
            "rnn",
            {"n_layers": 0, "width": 0},
            r"layers must be at least 1.*width must be at least 1",
        ),
        ("linear-causal", {"heads": 3}, "heads must divide the width, got 3 and 16"),
        ("linear-causal", {"heads": 0}, "heads must be at least 1"),
        ("transformer", {}, "unknown family 'transformer', choose one of softmax-full"),
        ("gru", {}, "formal counterpart is 'rnn'"),
        ("mamba2", {}, "formal counterpart is 'ssm'"),
        ("rnn", {"model": "trained"}, "trained counterpart is 'gru'"),
        ("linear-full", {"model": "trained", "hidden": 0}, "ff must be at least 1"),
        ("rnn", {"hidden": -1}, "ff must be at least 0"),
        ("linear-full", {"feature": "tanh"}, "unknown feature 'tanh', choose one of elu, relu"),
    ],
)
def test_impossible_sizes_are_refused(family, sizes, message):
    with pytest.raises(SpecError, match=message):
        architecture(family, **sizes)


def test_an_unknown_task_and_numbers_without_bits_are_refused():
    with pytest.raises(IthbitError, match="unknown task 'mhi'"):
        bound("mhi", architecture("rnn"))
    with pytest.raises(SpecError, match="at least 1 bit, got 0"):
        all_routes("rhi", architecture("rnn"), bits=0)


@pytest.mark.parametrize(
    ("family", "sizes", "power"),
    [
        ("rnn", {}, 2),
        ("ssm", {}, 2),
        ("linear-causal", {"feature": "relu"}, 3),
        ("linear-causal", {}, 5),
        ("gru", {"model": "trained"}, 4),
        ("mamba2", {"model": "trained"}, 4),
        ("linear-causal", {"model": "trained"}, 5),
    ],
)
def test_growth_with_depth(family, sizes, power):
    """n*(4L) / n*(L) is about 4^power, up to the logarithm, by the counting theorem."""
    shallow, deep = (
        n_star(stages("rhi", architecture(family, n_layers=n, **sizes))) for n in (64, 256)
    )
    law = growth(architecture(family, **sizes))
    assert f"O(L{'⁰¹²³⁴⁵'[power]}" in law
    exponent = math.log(deep / shallow, 4)
    assert power - 0.3 < exponent < power + 0.3
