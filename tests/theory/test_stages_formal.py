"""The stage lists of the paper's layers, counted from the programs that `layers` is held to."""

import inspect
import sys
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from types import ModuleType

import numpy as np
import pytest
from tests.support.completions.formal import (
    LinearLayer,
    Mlp,
    RnnLayer,
    SelectiveSsmLayer,
    SoftmaxLayer,
    SsmLayer,
    feature_map,
)
from tests.support.completions.scalar import dot, exp, matvec
from tests.support.decisions import formal
from tests.support.decisions.system import System, value_of
from tests.support.decisions.trained import EVERY_OUTCOME, Signs, split

from ithbit.theory.architecture import Architecture, architecture
from ithbit.theory.bounds.counting import Stage
from ithbit.theory.bounds.stages import stages

N_BITS = 4

CASES: list[tuple[str, Architecture]] = [
    *(
        ("rhi", architecture(family, n_layers=L, width=d, hidden=w, transition=transition))
        for family, transition in (("rnn", "affine"), ("ssm", "affine"), ("ssm", "constant"))
        for L, d, w in ((1, 1, 2), (1, 3, 2), (2, 2, 3), (3, 2, 1))
    ),
    *(("rhi", architecture("ssm", width=d, hidden=0)) for d in (1, 3)),
    *(
        (
            "rhi",
            architecture("linear-causal", n_layers=L, width=d, heads=H, hidden=w, feature=feature),
        )
        for feature in ("elu", "relu")
        for L, d, H, w in (
            (1, 2, 1, 3),
            (1, 4, 2, 1),
            (1, 3, 3, 0),
            (2, 2, 1, 2),
            (2, 2, 2, 1),
            (2, 2, 1, 0),
            (3, 1, 1, 2),
            (3, 2, 2, 1),
        )
    ),
    *(
        ("lhi", architecture(family, width=d, heads=H, hidden=w))
        for family in ("softmax-full", "linear-causal")
        for d, H, w in ((2, 1, 2), (4, 2, 3), (3, 3, 1), (4, 2, 0))
    ),
    *(
        ("lhi", architecture("ssm", width=d, hidden=w, transition=transition))
        for d, w, transition in ((2, 3, "affine"), (3, 1, "constant"), (2, 0, "affine"))
    ),
]


def _name(task, arch):
    sizes = (arch.n_layers, arch.width, arch.heads, arch.hidden)
    return "-".join(map(str, (task, arch.family, arch.feature, arch.transition, *sizes)))


def draw(seed, *shape):
    return (np.random.default_rng([seed, *shape]).normal(size=shape)).tolist()


def mlp(seed, inputs, w, outputs):
    if not w:
        return Mlp((draw(seed, outputs, inputs),), (draw(seed + 1, outputs),))
    weights = draw(seed, w, inputs), draw(seed + 1, outputs, w)
    return Mlp(weights, (draw(seed + 2, w), draw(seed + 3, outputs)))


def layer_of(arch, k):
    """A random layer of the architecture."""
    d, w, seed = arch.width, arch.hidden, 100 * k
    if arch.kind == "rnn":
        return RnnLayer(d, mlp(seed, 2 * d, w, d), mlp(seed + 10, 2 * d, w, d))
    if arch.kind == "ssm":
        phi, h0 = mlp(seed, 2 * d, w, d), draw(seed + 20, d)
        if arch.transition == "constant":
            return SsmLayer(draw(seed + 30, d, d), draw(seed + 40, d, d), phi, h0)
        A, A_bias = draw(seed + 30, d, d, d), draw(seed + 31, d, d)
        return SelectiveSsmLayer(A, A_bias, draw(seed + 40, d, d), draw(seed + 41, d), phi, h0)
    matrices = [draw(seed + 50 + j, d, d) for j in range(3)]
    net = mlp(seed, d, w, d)
    if arch.kind == "softmax":
        return SoftmaxLayer(*matrices, net, arch.heads)
    return LinearLayer(*matrices, net, arch.feature, arch.heads)


def outputs(layer, tokens):
    """The layer's output at every token."""
    if isinstance(layer, LinearLayer):
        size = len(tokens[0]) // layer.heads
        none = [0.0] * (len(tokens[0]) * (size + 1))
    else:
        none = layer.fingerprint([])
    kept = [none, *(layer.fingerprint(tokens[:k]) for k in range(1, len(tokens)))]
    return [layer.completion(state, x) for state, x in zip(kept, tokens, strict=True)]


@cache
def stack(task, arch):
    """Layers, readout, tokens before and after the index, every index, and the logits."""
    d = arch.width
    layers = [layer_of(arch, k) for k in range(1, arch.n_layers + 1)]
    readout = draw(7, d), draw(8, 1)[0]
    bits, indices, end = draw(1, N_BITS, d), draw(2, N_BITS, d), draw(3, d)
    logits = []
    for x in indices:
        tokens = [*bits, x] if task == "rhi" else [x, *bits, end]
        for layer in layers:
            tokens = outputs(layer, tokens)
        logits.append(dot(tokens[-1], readout[0]) + readout[1])
    return layers, readout, bits, indices, end, logits


def rhi(arch, stage, signs):
    layers, readout, bits, indices, _, _ = stack("rhi", arch)
    states, tokens = [], bits
    for layer in layers:
        states.append(layer.fingerprint(tokens))
        tokens = outputs(layer, tokens)
    for x in indices:
        s = System()
        if arch.kind != "linear":
            value = formal.recurrent_rhi(s, layers, readout, x, states, stage.what, signs)
        elif arch.n_layers == 1 and not arch.hidden:
            value = formal.linear_affine_rhi(s, layers[0], readout, x, states[0])
        else:
            smooth = arch.feature == "elu" and arch.n_layers > 1 and "layer 1," not in stage.what
            decide = formal.linear_elu_rhi if smooth else formal.linear_polynomial_rhi
            value = decide(s, layers, readout, x, states, stage.what, signs)
        yield s, value_of(value)


def lhi(arch, stage, signs):
    (layer,), readout, bits, indices, end, _ = stack("lhi", arch)
    if arch.kind == "ssm":
        d = arch.width
        after = [0.0] * d
        moves = np.eye(d)
        for u in (*bits, end):
            columns = [layer._state(list(e), u) for e in np.eye(d)]
            b = layer._state([0.0] * d, u)
            A = np.array(columns).T - np.array(b)[:, None]
            moves, after = A @ moves, (A @ np.array(after) + b).tolist()
        for x in indices:
            s, start = System(), layer._state(layer.h0, x)
            rest = moves.tolist(), after
            yield (
                s,
                value_of(formal.ssm_lhi(s, layer, readout, end, start, rest, stage.what, signs)),
            )
        return
    H = arch.heads
    q = matvec(layer.Q, end)

    def terms(x):
        k, v = matvec(layer.K, x), matvec(layer.V, x)
        if arch.kind == "linear":
            k, query = feature_map(arch.feature, k), feature_map(arch.feature, q)
            weights = [dot(a, b) for a, b in zip(split(query, H), split(k, H), strict=True)]
        else:
            weights = [exp(dot(a, b)) for a, b in zip(split(q, H), split(k, H), strict=True)]
        mixed = [u * f for part, f in zip(split(v, H), weights, strict=True) for u in part]
        return np.array(mixed), np.array(weights)

    rest = [sum(each).tolist() for each in zip(*(terms(u) for u in (*bits, end)), strict=True)]
    for x in indices:
        s, index = System(), [each.tolist() for each in terms(x)]
        value = formal.attention_lhi(s, layer.net, readout, end, index, rest, stage.what, signs)
        yield s, value_of(value)


def systems(task, arch, stage, signs, n_indices=N_BITS):
    """The system of one stage at each index, and what its last test decides."""
    return list(islice((rhi if task == "rhi" else lhi)(arch, stage, signs), n_indices))


@pytest.mark.parametrize("case", range(len(CASES)), ids=[_name(*case) for case in CASES])
def test_the_program_has_the_logits_of_the_layers(case):
    task, arch = CASES[case]
    found = [value for _, value in systems(task, arch, stages(task, arch)[-1], Signs())]
    assert found == pytest.approx(stack(task, arch)[-1], rel=1e-8, abs=1e-9)


def differences(task, arch, stated):
    """Where a stage list is not what is counted."""
    different = []
    for stage in stated:
        found = [s for signs in EVERY_OUTCOME for s, _ in systems(task, arch, stage, signs, 1)]
        counted = replace(
            stage,
            parameters=max(len(s.parameters) for s in found),
            tests=max(len(s.tests) for s in found),
            degree=max(s.measured_degree() for s in found),
            implicit=max(len(s.implicit) for s in found),
            chain=max(len(s.chain) for s in found),
            shared_chain=0,
            chain_degree=max(s.chain_degree for s in found),
        )
        if counted.implicit and not counted.chain:
            # Degree 4 is stated; w zeta^2 phi has it only if phi is no constant.
            assert counted.degree <= 4
            counted = replace(counted, degree=4)
        different += [
            f"{stage.what}: {number.name}"
            for number in fields(Stage)[1:]
            if getattr(stage, number.name) != getattr(counted, number.name)
        ]
    return different


@pytest.mark.parametrize("case", range(len(CASES)), ids=[_name(*case) for case in CASES])
def test_the_stage_list_is_what_the_program_counts(case):
    task, arch = CASES[case]
    assert not differences(task, arch, stages(task, arch))


ELU = architecture("linear-causal", n_layers=3, width=2, heads=2, hidden=1)
RELU = architecture("linear-causal", n_layers=2, width=2, heads=2, hidden=1, feature="relu")
MUTATIONS = {
    "a later degree": ("rhi", RELU, "H * (1 + delta + total)", "H * (1 + delta)"),
    "feature signs": ("rhi", RELU, "(layer - 1) * p1, 2 * d, delta", "(layer - 1) * p1, d, delta"),
    "a layer's sums": ("rhi", RELU, "layer * p1, w, degrees", "p1, w, degrees"),
    "inverse denominators": (
        *("rhi", ELU, '{"implicit": done * (d + H) * j, "chain"', '{"implicit": done * d, "chain"'),
    ),
    "this layer's denominators": ("rhi", ELU, "own = H if H > 1 else 0", "own = 0"),
    "exponentials": ("rhi", ELU, "2 * d * done * j}", "d * done}"),
    "tests of denominators": ("rhi", ELU, "2 * d + tests", "2 * d"),
    "the degree of a quotient": ("rhi", ELU, "tests, 4, **before", "tests, 3, **before"),
    "the degree of an SSM": (
        *("rhi", architecture("ssm", n_layers=2, width=2, hidden=1)),
        *("1, degree(L, t)", "1, 1"),
    ),
    "the matrix of an SSM": (
        *("lhi", architecture("ssm", width=2, hidden=1)),
        *("else d * d + d", "else 2 * d"),
    ),
    "a denominator of a head": (
        *("lhi", architecture("softmax-full", width=4, heads=2, hidden=1)),
        *('Stage("hidden", d + H', 'Stage("hidden", d + 1'),
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_stage_list_that_leaves_something_out_is_found(what):
    task, arch, old, new = MUTATIONS[what]
    source = inspect.getsource(sys.modules[stages.__module__])
    assert source.count(old) == 1, old
    module = ModuleType("changed_stages")
    exec(compile(source.replace(old, new), "changed_stages", "exec"), module.__dict__)
    assert not differences(task, arch, stages(task, arch))
    assert differences(task, arch, module.stages(task, arch))


@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("family", ["rnn", "ssm"])
def test_affine_layers_add_up_bits_and_index(family, n_layers, task):
    """One number is the fingerprint: the logit is f(bits) + g(index)."""
    sizes = {"n_layers": n_layers, "width": 2, "hidden": 0, "transition": "constant"}
    arch = architecture(family, **sizes)
    (stage,) = stages(task, arch)
    assert (stage.parameters, stage.tests, stage.kind) == (1, 1, "A")
    layers, _, _, indices, end, _ = stack(task, arch)

    def logit(bits, x):
        tokens = [*bits, x] if task == "rhi" else [x, *bits, end]
        for layer in layers:
            tokens = outputs(layer, tokens)
        return tokens[-1][0]

    strings = [draw(seed, 3, 2) for seed in (11, 12)]
    steps = [[logit(bits, x) - logit(bits, indices[0]) for x in indices] for bits in strings]
    assert steps[0] == pytest.approx(steps[1])
    assert max(map(abs, steps[0])) > 1e-3
