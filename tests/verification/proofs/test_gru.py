"""Proofs of GRUs: no bound is beaten, both codes agree, false certificates are refused."""

import hashlib
import itertools
import json
import sys
from functools import cache

import numpy as np
import pytest
from flint import arb
from safetensors.numpy import load, save
from tests.support import fuzz_gru
from tests.support.mutations import mutated
from tests.support.mutations_gru import MUTATIONS
from tests.support.shipped import completions, folders, read, solution

import ithbit
from ithbit.cli import main
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.records import PROVED, SECOND
from ithbit.theory.certificate_file import CertificateError, digest
from ithbit.theory.solution import TrainedSolution
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks import gru_balls
from ithbit.verification.checks.gru_balls import GruLeaves
from ithbit.verification.proofs.branch_and_bound import cases, search
from ithbit.verification.proofs.certificate import (
    confirmed_bytes,
    document,
    encoded,
    weights_of,
)
from ithbit.verification.proofs.gru import GruBounds
from ithbit.verification.proofs.interface import NoBoundsError, NodeBounds
from ithbit.verification.proofs.kinds import bounds_for, kind_of, second_check_for
from ithbit.verification.proofs.tanh_lines import sigmoid_line, tanh_line, tanh_value

N = 4
SPEC = ModelSpec("lhi", "gru", N)


def params_of(spec: ModelSpec, rng: np.random.Generator, size: float = 1.0) -> fuzz_gru.Params:
    found = {name: rng.normal(size=shape) * size for name, shape in shapes(spec).items()}
    return {name: np.float32(value).astype(float) for name, value in found.items()}


@cache
def weights(wrong: bool = False) -> bytes:
    """Weights of a construction in float32; wrong ones answer 1 always."""
    found = ithbit.construct("lhi", "gru", N, model="trained").weights
    params = {name: np.float32(value) for name, value in found.items()}
    if wrong:
        params["head.bias"] = params["head.bias"] + np.float32(100)
    return save(params)


def test_no_bound_of_random_and_extreme_models_is_beaten() -> None:
    counts = fuzz_gru.run(25, seed=0)
    assert not counts.violations
    assert counts.inputs > 8 * counts.models
    assert counts.unbounded < counts.nodes / 10
    assert counts.refused < counts.models / 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_no_bound_of_many_models_is_beaten(seed) -> None:
    assert not fuzz_gru.run(3000, seed).violations


LATE = {"all symbols squared are 1"}  # found after some seconds


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(m, id=m.name, marks=[pytest.mark.slow] * (m.name in LATE)) for m in MUTATIONS],
)
def test_a_mistake_in_the_bounds_or_the_check_is_found(mutation) -> None:
    with mutated(mutation):
        assert fuzz_gru.run(100, seed=3, stop=True).violations


@pytest.mark.parametrize("layers", [1, 2])
def test_bounds_hold_on_all_inputs_of_eight_bits(layers, rng) -> None:
    spec = ModelSpec("lhi", "gru", 8, layers, d_model=6)
    params = params_of(spec, rng, 0.7)
    twin, bounds, check = TrainedSolution(spec, params, ""), GruBounds(spec, params), None
    every = np.array(list(itertools.product((0, 1), repeat=8)))
    index, bits = cases(8)
    found = bounds(index, bits)
    check = GruLeaves(spec, params)
    for k, i in enumerate(index):
        own = every[every[:, i] == bits[k, i]]
        margins = twin.margins(own, np.full(len(own), i + 1))
        assert found.lower[k] <= margins.min() + 1e-5
        assert found.upper[k] >= margins.max() - 1e-5
        assert check.lower(int(i), bits[k].tolist()) <= margins.min() + 1e-5


def test_no_margin_of_trained_weights_is_beyond_the_bounds(rng) -> None:
    """Nodes with some of 16 bits free, where the bounds say something, and strings of them."""
    folder = next(iter(folders("lhi_n16_gru_*_s1-*")))
    run, data = read(folder)
    params, twin = weights_of(data), solution(run, data)
    bounds, check = bounds_for(run.model, params), GruLeaves(run.model, params)
    index = rng.integers(0, 16, 8)
    bits = rng.integers(0, 2, (8, 16)).astype(np.int8)
    for row, i, free in zip(bits, index, (0, 1, 2, 3, 4, 5, 6, 15), strict=True):
        at = rng.permutation(16)[:free]
        row[at[at != i]] = -1
    found = bounds(index, bits)
    assert (found.upper - found.lower)[:3].max() < 20
    for k, i in enumerate(index.tolist()):
        margins = twin.margins(completions(bits[k], 50, rng), np.full(50, i + 1))
        assert found.lower[k] - 1e-4 <= margins.min() <= margins.max() <= found.upper[k] + 1e-4
        assert check.lower(i, bits[k].tolist()) <= margins.min() + 1e-4


@pytest.mark.parametrize("size", [1e-30, 1.0, 100.0])
def test_lines_enclose_sigmoid_and_tanh(rng, size) -> None:
    low = rng.normal(size=400) * size
    high = low + rng.exponential(size=400) * size * 10.0 ** rng.uniform(-12, 1, 400)
    at = np.clip(low + (high - low) * rng.choice([0, 0.5, 1, 0.3], 400), low, high)
    for line, true in ((tanh_line, arb.tanh), (sigmoid_line, lambda x: 1 / (1 + (-x).exp()))):
        slope, middle, radius, least, most = line(low, high)
        for k in range(400):
            value = true(arb(at[k]))
            off = value - arb(slope[k]) * arb(at[k]) - arb(middle[k])
            assert not abs(off) > arb(radius[k])
            assert not value < arb(least[k])
            assert not value > arb(most[k])
    for x, value in zip(low.tolist(), tanh_value(low).tolist(), strict=True):
        assert abs(arb(x).tanh() - value) < 3e-15


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_bound_nothing(value, rng) -> None:
    params = params_of(SPEC, rng)
    for name in params:
        damaged = params | {name: params[name].copy()}
        damaged[name].flat[0] = value
        with pytest.raises(NoBoundsError, match="not finite"):
            bounds_for(SPEC, damaged)
        check = GruLeaves(SPEC, damaged)
        low = check.lower(1, [-1, 0, -1, 1])
        assert low == -np.inf or name.startswith(("blocks", "embed", "positions"))
        assert not low > 0


def test_what_has_bounds() -> None:
    assert kind_of(SPEC) is kind_of(ModelSpec("lhi", "gru", 256, 4))
    for spec in (
        ModelSpec("rhi", "gru", N),
        ModelSpec("lhi", "gru", 257),
        ModelSpec("lhi", "gru", 64, 4, d_model=512),
        ModelSpec("lhi", "gru", N, positions="learned"),
    ):
        assert kind_of(spec) is None or kind_of(spec) is not kind_of(SPEC)


@pytest.mark.parametrize("layers", [1, 2])
def test_both_implementations_agree(layers, rng, monkeypatch) -> None:
    spec = ModelSpec("lhi", "gru", 6, layers, d_model=4)
    params = params_of(spec, rng, 0.4)
    bounds, check = bounds_for(spec, params), second_check_for(spec, params)
    index = rng.integers(0, 6, 20)
    bits = rng.integers(-1, 2, (20, 6)).astype(np.int8)
    bits[np.arange(20), index] = 1
    found = bounds(index, bits)
    for k in range(20):
        low = check.lower(int(index[k]), bits[k].tolist())
        assert abs(low - found.lower[k]) < 0.05 * (found.upper[k] - found.lower[k]) + 1e-9
        fresh = GruLeaves(spec, params).lower(int(index[k]), bits[k].tolist())
        assert fresh == low  # whatever leaf came before
    monkeypatch.setattr(gru_balls, "_KEPT", 0)
    check.lower(1, [0, 1, 0, 1, 0, 1])
    assert check.lower(int(index[-1]), bits[-1].tolist()) == low
    assert len(check._path) == 1


def test_more_nodes_raise_a_bound_that_is_enough(rng) -> None:
    spec = ModelSpec("lhi", "gru", 6, d_model=4)
    p = params_of(spec, rng, 0.5)
    p["head.weight"] *= 0.1
    p["head.bias"][...] = 0
    p["blocks.0.ih.weight"] *= 3
    bounds = GruBounds(spec, p)
    # The answer to bits of 1 alone, which any bias makes right: nodes of those of 0 are closed.
    index, bits = cases(6)
    lower = bounds(index, bits).lower[1::2].min()
    p["head.bias"][...] = np.float32(-lower + 1e-3)
    ones = _Ones(GruBounds(spec, p))
    first, more = search(ones, 20), search(ones, 20, tighten=4.0)
    assert first.outcome == more.outcome == "proved"
    assert first.least_proved < 0.5 * first.least_found
    assert first.nodes < more.nodes <= 5 * first.nodes
    assert more.least_proved > first.least_proved
    assert search(ones, 20, tighten=1e3).least_proved >= 0.9 * more.least_found


class _Ones:
    """Bounds in which every string with a 0 at the index has the margin 100."""

    slack, functionals = np.inf, np.zeros((0, 6))

    def __init__(self, bounds) -> None:
        self.bounds, self.n, self.batch = bounds, bounds.n, bounds.batch

    def __call__(self, index, bits, limits=None):
        found = self.bounds(index, bits)
        zero = bits[np.arange(len(index)), index] == 0
        lower, upper = (np.where(zero, 100.0, each) for each in (found.lower, found.upper))
        return NodeBounds(lower, upper, found.slope, found.weight, found.empty)


def test_a_bit_that_is_fixed_next_is_free(rng) -> None:
    spec = ModelSpec("lhi", "gru", 6, d_model=4)
    check = GruLeaves(spec, params_of(spec, rng))
    assert check.branch(2, [1, -1, 0, -1, -1, 1]) in (1, 3, 4)
    assert check.branch(2, [1, 0, 0, 1, 1, 1]) is None


def test_a_wrong_input_is_wrong_in_the_check_too() -> None:
    right, wrong = (GruLeaves(SPEC, weights_of(weights(each))) for each in (False, True))
    assert wrong.is_wrong(2, [1, 1, 0, 1])
    assert not wrong.is_wrong(2, [1, 1, 1, 1])
    assert not right.is_wrong(2, [1, 1, 0, 1])
    found = search(bounds_for(SPEC, weights_of(weights(True))), 5)
    assert found.outcome == "refuted"


@cache
def honest() -> str:
    run, bounds = RunSpec(SPEC, 0), bounds_for(SPEC, weights_of(weights()))
    found = search(bounds, 20)
    assert found.outcome == "proved"
    return json.dumps(document(run, weights(), found.leaves, bounds.functionals))


def false() -> dict:
    """A certificate of the wrong weights: all that is stated follows, except for the bounds."""
    rows = [[i + 1, "*" * i + bit + "*" * (N - i - 1), 0.5] for i in range(N) for bit in "01"]
    sha = hashlib.sha256(weights(True)).hexdigest()
    return json.loads(honest()) | {"leaves": rows, "margin": 0.5, "weights_sha256": sha}


FORGED = {
    "a false bound": lambda content: None,
    "a tiny bound": lambda content: content.update(
        leaves=[[*row[:2], 1e-9] for row in content["leaves"]], margin=1e-9
    ),
    "a leaf that is left out": lambda content: content["leaves"].pop(0),
    "only right leaves": lambda content: content.update(leaves=content["leaves"][1::2]),
    "a leaf that is said to be empty": lambda content: content["leaves"][0].__setitem__(2, None),
    "another kind": lambda content: content.update(kind="one-layer"),
    "trust in nothing": lambda content: content.update(trusted=[]),
    "another task": lambda content: content["spec"]["model"].update(task="rhi"),
    "two layers": lambda content: content["spec"]["model"].update(n_layers=2),
    "another family": lambda content: content["spec"]["model"].update(family="mamba2"),
    "more bits": lambda content: content["spec"]["model"].update(n_bits=N + 1),
    "functionals": lambda content: content.update(functionals=[[4096, 0, 0, 0]]),
    "limits": lambda content: content.update(
        functionals=[[4096, 0, 0, 0]],
        leaves=[[*row, [[-4096, -4096]]] for row in content["leaves"]],
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_false_certificate_is_refused(kind, tmp_path, monkeypatch, capsys) -> None:
    content = false()
    FORGED[kind](content)
    data = encoded(content | {"digest": digest(content)})
    with pytest.raises(CertificateError) as caught:
        confirmed_bytes(data, weights(True), None)
    assert 8 < len(str(caught.value)) < 700
    (tmp_path / "proof.json").write_bytes(data)
    (tmp_path / "weights.safetensors").write_bytes(weights(True))
    monkeypatch.setattr(sys, "argv", ["ithbit", "check-certificate", str(tmp_path / "proof.json")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "is refused" in capsys.readouterr().err


def test_a_run_is_proved_and_its_certificate_holds(tmp_path) -> None:
    ithbit.construct("lhi", "gru", N, model="trained", out=tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    found = ithbit.verify(folder, prove=True, device="cpu", store=tmp_path)
    (one,) = found
    assert one.verdict == PROVED
    data = (folder / "proof.json").read_bytes()
    held = confirmed_bytes(data, (folder / "weights.safetensors").read_bytes(), None)
    assert held.checked == SECOND
    assert 1.9 < held.margin <= 2.1
    assert json.loads(data)["kind"] == "gru"
    # The same weights, one of them damaged: the certificate is for others.
    params = {k: v.copy() for k, v in load((folder / "weights.safetensors").read_bytes()).items()}
    params["head.bias"] += np.float32(1e-3)
    with pytest.raises(CertificateError, match="it is for other weights"):
        confirmed_bytes(data, save(params), None)
