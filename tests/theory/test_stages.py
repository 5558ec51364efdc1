"""The stage lists of the trained blocks, counted by a program from the blocks themselves.

`decisions` runs every decision on numbers that write down their system of equations. Its logits are
those of `ithbit.models`, for all indices with one fingerprint; what it counts is what
`ithbit.theory.bounds.stages` states.
"""

import inspect
import sys
from dataclasses import fields
from functools import cache
from types import ModuleType

import pytest
import torch.nn.functional as F
from tests.support.decisions import mamba2, models, trained
from tests.support.decisions.system import NotAllowedError, System, value_of

from ithbit.spec import ModelSpec
from ithbit.theory.architecture import Architecture, architecture
from ithbit.theory.bounds.counting import Stage
from ithbit.theory.bounds.stages import stages

Case = tuple[str, str, str, int, int, int, int, int]  # task family activation L d H w N

GRID: list[Case] = [
    *(("rhi", "gru", "gelu", L, d, 1, 1, 1) for L, d in ((1, 1), (1, 3), (2, 2), (3, 2), (4, 1))),
    *(
        (task, family, activation, 1, d, H, w, 1)
        for task, family in (
            ("lhi", "softmax-full"),
            ("lhi", "softmax-causal"),
            ("lhi", "linear-full"),
            ("lhi", "linear-causal"),
            ("rhi", "linear-full"),
            ("rhi", "linear-causal"),
        )
        for activation in ("gelu", "relu")
        for d, H, w in ((2, 1, 1), (4, 2, 3), (3, 3, 2))
    ),
    *(
        ("rhi", "linear-causal", activation, L, d, H, w, 1)
        for activation in ("gelu", "relu")
        for L, d, H, w in ((2, 2, 1, 3), (2, 4, 2, 1), (3, 2, 2, 2))
    ),
    *(("lhi", "mamba2", "gelu", 1, d, H, 1, N) for d, H, N in ((2, 1, 1), (4, 2, 3), (3, 3, 2))),
    *(
        ("rhi", "mamba2", "gelu", L, d, H, 1, N)
        for L, d, H, N in ((1, 2, 1, 3), (1, 4, 2, 2), (2, 2, 1, 2), (2, 4, 2, 1), (3, 2, 2, 1))
    ),
]


def described(case: Case) -> tuple[ModelSpec, Architecture]:
    """The model and what the theory calls it."""
    task, family, activation, L, d, H, w, N = case
    spec = ModelSpec(task, family, 5, n_layers=L, d_model=d, n_heads=H, d_ff=w, d_state=N)
    sizes = {"n_layers": L, "width": d, "heads": H, "hidden": w, "state": N}
    return spec, architecture(family, "trained", activation=activation, **sizes)


@cache
def model(case: Case) -> models.Run:
    spec, _ = described(case)
    with pytest.MonkeyPatch.context() as patch:
        if case[2] == "relu":  # a block as the stage list has it; ours are trained with GELU
            patch.setattr(F, "gelu", F.relu)
        return models.run(spec, case[2])


@cache
def counted(case: Case) -> dict[str, Stage]:
    """Every stage as the program counts it, by name."""
    _, arch = described(case)
    return {stage.what: models.counted(model(case), stage) for stage in stages(case[0], arch)}


def differences(case: Case, stated: tuple[Stage, ...] | None) -> list[str]:
    """Where a stage list is not what is counted.

    Only the variables that no test needs may be stated beyond the count: with ReLU from layer 2 on,
    the d outputs of the layer whose hidden units are tested.
    """
    found = []
    names = [stage.what for stage in stated or ()]
    if names != list(counted(case)):
        return [f"stages {names}"]
    for stage in stated or ():
        exact = counted(case)[stage.what]
        unneeded = case[4] if stage.what.endswith("ReLU") and stage.kind == "K" else 0
        for number in fields(Stage)[1:]:
            more = getattr(stage, number.name) - getattr(exact, number.name)
            if more != (unneeded if number.name == "implicit" else 0):
                found.append(f"{stage.what}: {number.name} {more:+}")
    return found


@pytest.mark.parametrize("case", GRID, ids=lambda case: "-".join(map(str, case)))
def test_the_program_has_the_logits_of_the_model(case):
    readout = list(counted(case).values())[-1]
    found = models.systems(model(case), readout, trained.Signs())
    assert [value_of(value) for _, value in found] == pytest.approx(
        model(case).logits, rel=1e-9, abs=1e-10
    )


@pytest.mark.parametrize("case", GRID, ids=lambda case: "-".join(map(str, case)))
def test_the_stage_list_is_what_the_program_counts(case):
    _, arch = described(case)
    assert not differences(case, stages(case[0], arch))


def changed(old: str, new: str) -> ModuleType:
    """The module of the stage lists with one piece of its source replaced."""
    source = inspect.getsource(sys.modules[stages.__module__])
    assert source.count(old) == 1, old
    module = ModuleType("changed_stages")
    exec(compile(source.replace(old, new), "changed_stages", "exec"), module.__dict__)
    return module


GRU = ("rhi", "gru", "gelu", 2, 2, 1, 1, 1)
GRU_ONE = ("rhi", "gru", "gelu", 1, 3, 1, 1, 1)
BERT = ("lhi", "softmax-full", "gelu", 1, 4, 2, 3, 1)
BERT_RELU = ("lhi", "softmax-full", "relu", 1, 4, 2, 3, 1)
LINEAR = ("rhi", "linear-causal", "gelu", 2, 4, 2, 1, 1)
LINEAR_RELU = ("rhi", "linear-causal", "relu", 2, 4, 2, 1, 1)
LINEAR_THREE = ("rhi", "linear-causal", "gelu", 3, 2, 2, 2, 1)
MAMBA = ("rhi", "mamba2", "gelu", 2, 4, 2, 1, 1)
MAMBA_ONE = ("rhi", "mamba2", "gelu", 1, 4, 2, 1, 2)
MAMBA_LHI = ("lhi", "mamba2", "gelu", 1, 4, 2, 1, 3)

MUTATIONS = {
    "a variable of each GRU unit": (GRU, "implicit=3 * d * L", "implicit=2 * d * L"),
    "the candidate's exponential": (GRU, "t - 2 * d,", "t - 3 * d,"),
    "the gates' exponentials": (GRU, "chain=3 * d * L * t", "chain=2 * d * L * t"),
    "the shared exponentials": (GRU_ONE, "shared_chain=2 * d", "shared_chain=d"),
    "a degree": (GRU, "degree=2,", "degree=1,"),
    "a layer's state": (GRU, "parameters=L * d,", "parameters=d,"),
    "the variable of LayerNorm's root": (BERT, "norms * (d + 1) + w", "norms * d + w"),
    "one of two LayerNorms": (BERT, "else (2, _TWO_NORMS)", "else (1, _TWO_NORMS)"),
    "the denominators of the heads": (BERT, "4, H + norms", "4, norms"),
    "the sum rho of a head": (
        BERT,
        'Stage("readout", d + H, 1, 4, H',
        'Stage("readout", d + 1, 1, 4, H',
    ),
    "the density beside Phi": (BERT, "2 * w, chain_degree=2", "w, chain_degree=2"),
    "the chain degree of GELU": (BERT, "2 * w, chain_degree=2", "2 * w, chain_degree=1"),
    "a degree for each head": (BERT_RELU, "tests, 4 * H))", "tests, 4))"),
    "tests of two nested roots": (BERT_RELU, "_TWO_NORMS = 3, 5", "_TWO_NORMS = 3, 3"),
    "tests of one root": (LINEAR_RELU, "tests = w + (layer - 1) * H", "tests = w"),
    "a head's denominators": (LINEAR, "5 * d + H + 2", "5 * d + 1 + 2"),
    "the sum before the second LayerNorm": (LINEAR, "H + 2 * d + 1,", "H + d + 1,"),
    "a root of LayerNorm": (LINEAR, "5 * d + H + 2", "5 * d + H + 1"),
    "the key of a later layer": (LINEAR, "later + 3 * d + 1", "later + 2 * d + 1"),
    "the exponentials of the queries": (LINEAR, "2 * d * roots", "d * roots"),
    "the hidden units": (LINEAR, "m + extra * done, chain", "m, chain"),
    "the tests of denominators": (LINEAR_THREE, "2 * d + (layer - 2) * H", "2 * d"),
    "the sum z": (LINEAR, "gelu = arch", "p1 = p1 - d; gelu = arch"),
    "the convolution's partial sums": (MAMBA, "L * d * N + (L - 1) * c,", "L * d * N,"),
    "the exponentials of softplus": (MAMBA, "(c + d + 3 * H)", "(c + d + 2 * H)"),
    "the gate's exponential": (MAMBA, "(c + d + 3 * H)", "(c + 3 * H)"),
    "the last RMSNorm": (MAMBA, "2 * H + 2) + 1,", "2 * H + 2),"),
    "the residual sum": (MAMBA, "(5 * d + 2 * c", "(4 * d + 2 * c"),
    "a degree of y": (MAMBA, "degree=4,", "degree=3,"),
    "tests after two RMSNorms": (MAMBA_ONE, '"readout", d * N, _TWO_NORMS', '"readout", d * N, 3'),
    "the decay of a head": (MAMBA_LHI, "arch.width + arch.heads", "arch.width + 1"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_stage_list_that_leaves_something_out_is_found(what):
    case, old, new = MUTATIONS[what]
    task, (_, arch) = case[0], described(case)
    assert not differences(case, stages(task, arch))
    assert differences(case, changed(old, new).stages(task, arch))


PROGRAM_MUTATIONS = {
    "the residual of attention": (
        LINEAR,
        'add(x, matvec(w["out.weight"], a))',
        'matvec(w["out.weight"], a)',
    ),
    "the residual of the feed-forward part": (
        LINEAR,
        "add(x, feed_forward(s, normal, w, model.activation, signs))",
        "feed_forward(s, normal, w, model.activation, signs)",
    ),
    "the root of LayerNorm": (LINEAR, "rho = s.rsqrt(mean_square(inner) + eps)", "rho = 1.0"),
    "the token's own key": (LINEAR, "dot(z, q) + own + eps", "dot(z, q) + eps"),
    "the reset gate": (GRU, "s.keep(a * (1.0 + e) + b, 1.0 + e)", "s.keep(a + b)"),
    "the old state": (GRU, "s.keep(a * e + old, 1.0 + e)", "s.keep(a * e, 1.0 + e)"),
    "the gate of Mamba2": (
        MAMBA,
        "s.keep(a * b) for a, b in zip(y, gate",
        "s.keep(a) for a, b in zip(y, gate",
    ),
    "the skip of Mamba2": (MAMBA, 'dot(row, C) + u * w["skip"][j // per]', "dot(row, C)"),
    "the convolution's bias": (MAMBA, "old + u * tap + b", "old + u * tap"),
    "BERT's second LayerNorm": (BERT, 't = layer_norm(s, t, w, "norm2", BERT_EPS)', "pass"),
}


@pytest.mark.parametrize("what", PROGRAM_MUTATIONS)
def test_a_program_that_is_not_the_block_is_found(what, monkeypatch):
    case, old, new = PROGRAM_MUTATIONS[what]
    whole = mamba2 if case[1] == "mamba2" else trained
    source = inspect.getsource(whole)
    assert source.count(old) == 1, old
    other = ModuleType(whole.__name__)
    exec(compile(source.replace(old, new), "changed_program", "exec"), other.__dict__)
    readout, expected = list(counted(case).values())[-1], model(case)
    monkeypatch.setattr(models, whole.__name__.rpartition(".")[2], other)
    found = [value_of(v) for _, v in models.systems(expected, readout, trained.Signs())]
    assert found != pytest.approx(expected.logits, rel=1e-6, abs=1e-8)


def test_a_system_refuses_what_the_theorem_does_not_allow():
    s = System()
    x, y = s.fingerprint([0.5, -2.0])
    for refused in (
        lambda: s.keep(1.0, x),  # vanishes somewhere
        lambda: s.rsqrt(x * y),
        lambda: s.rsqrt(x * x),  # 0 at x = 0
        lambda: s.log(x + 1.0),
        lambda: s.exp(x * x),  # not affine
        lambda: s.exp(s.exp(x)),  # nor is an exponential
    ):
        with pytest.raises(NotAllowedError):
            refused()
    assert s.rsqrt(x * x + 1.0).value == pytest.approx(1.25**-0.5)
    assert not s.tests
    s.inverse(x + 1.0)
    assert len(s.tests) == 1  # positive here, but not everywhere


def test_a_system_counts_each_exponential_once_and_measures_degrees():
    s = System()
    x, y = s.fingerprint([0.5, -2.0])
    for u in (s.exp(x + y), s.exp(x + y + 3.0), s.exp(-1.0 * x)):
        s.test(u * x)
    assert len(s.chain) == 2
    assert (s.degree, s.measured_degree()) == (2, 2)
    s.test(x * x * x + y * x * (-1.0 * x) + 0.0 * (x * x * x * x))
    assert (s.degree, s.measured_degree()) == (4, 3)


PAPER: list[Case] = [
    *(("rhi", "gru", "gelu", L, 16, 2, 64, 16) for L in (1, 2, 3, 4)),
    *(("lhi", family, "gelu", 1, 16, 2, 64, 16) for family in ("softmax-full", "linear-full")),
    *(
        ("rhi", "linear-causal", activation, L, 16, 2, 64, 16)
        for activation in ("gelu", "relu")
        for L in (1, 2, 3, 4)
    ),
    ("lhi", "mamba2", "gelu", 1, 16, 2, 64, 16),
    *(("rhi", "mamba2", "gelu", L, 16, 2, 64, 16) for L in (1, 2, 3, 4)),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", PAPER, ids=lambda case: "-".join(map(str, case)))
def test_the_stage_lists_at_the_sizes_of_the_paper(case):
    _, arch = described(case)
    assert not differences(case, stages(case[0], arch))
