"""Explicit weights in the trained blocks: right, certified, the same in torch and libraries."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import ithbit
from ithbit import verdict
from ithbit.errors import SpecError
from ithbit.models import classifier
from ithbit.reference import models as reference
from ithbit.reference import weights as reference_weights
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import all_inputs
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.theory.certificate import METHODS, certify
from ithbit.theory.certificate_file import (
    CertificateError,
    check_certificate,
    digest,
    document,
    write_certificate,
)
from ithbit.theory.certifiers.every_n import trained_every_n, window_linear, window_mamba2
from ithbit.theory.constructions import TRAINED, construct_trained
from ithbit.theory.explain import explain
from ithbit.theory.precision import smallest_margin
from ithbit.theory.solution import TrainedSolution
from ithbit.theory.summary_table import table
from ithbit.theory.trained_blocks import shapes

ENTRIES = [pytest.param(entry, id=f"{entry.task}-{entry.family}") for entry in TRAINED]
# Certificates cover both masks at once; where runs do not matter, one of them will do.
ONE_MASK = [
    each
    for each in ENTRIES
    if each.id not in ("rhi-softmax-full", "lhi-softmax-full", "lhi-linear-full")
]
FLOOR = {  # what the certified margins must reach, by task and kind
    ("rhi", "softmax"): 1.9,
    ("lhi", "softmax"): 1.95,
    ("rhi", "linear"): 1.4,
    ("lhi", "linear"): 2.0,
    ("lhi", "mamba2"): 1.6,
    ("lhi", "gru"): 1.99,
}


def floor_of(entry) -> float:
    return FLOOR[entry.task, entry.family.partition("-")[0]]


def least(entry, n):
    """The construction at the least width for which it works."""
    spec = ModelSpec(entry.task, entry.family, n, entry.depth, entry.least_width)
    heads = min(2, entry.least_width // entry.least_head) if spec.d_model % 2 == 0 else 1
    return entry.build(replace(spec, n_heads=heads, d_ff=entry.least_ff, d_state=1))


def sized(entry, n):
    """The experiments' width and the least one."""
    return construct_trained(entry.task, entry.family, n), least(entry, n)


def in_torch(solution, bits, index):
    params = {name: torch.tensor(np.array(v))[None] for name, v in solution.weights.items()}
    table = token_table(solution.task, solution.n_bits, dtype=torch.float64)
    examples = Examples(torch.tensor(bits)[None], torch.tensor(index)[None])
    with torch.no_grad():
        return classifier.logits(params, solution.spec, table, examples)[0].numpy()


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_input_is_answered_and_the_certificate_is_below(entry):
    for n in (1, 2, 6):
        for solution in sized(entry, n):
            true = smallest_margin(solution)
            bound = certify(solution).margin
            assert floor_of(entry) < bound <= true + 1e-9
            if solution.variant == "angle":
                assert bound > true - 1e-9


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", ENTRIES)
def test_certificates_are_below_all_inputs_up_to_twelve(entry):
    for n in range(3, 13):
        solution = construct_trained(entry.task, entry.family, n)
        true = np.inf
        for bits, index in all_inputs(n, 8192):
            answer = bits[np.arange(len(bits)), index - 1].astype(float)
            true = min(true, (in_torch(solution, bits, index) * (2 * answer - 1)).min())
        bound = METHODS[_method(entry)].bound(solution).margin
        assert floor_of(entry) < bound <= true + 1e-9
        assert solution.variant != "angle" or bound > 0.8 * true


@pytest.mark.parametrize("n", [8, 64, 1024, 4096])
@pytest.mark.parametrize("entry", ONE_MASK)
def test_margins_are_certified_at_length(entry, n):
    bound = METHODS[_method(entry)].bound(construct_trained(entry.task, entry.family, n))
    assert bound.margin >= floor_of(entry)


def _method(entry) -> str:
    kind = entry.family.partition("-")[0]
    return {"softmax": "angle", "gru": "latch"}.get(kind, f"{kind} window")


@pytest.mark.parametrize("entry", ONE_MASK)
def test_the_margin_for_every_n_is_below_the_certified_ones(entry):
    for solution_of, width, heads in (
        (lambda n: construct_trained(entry.task, entry.family, n), 16, 2),
        (lambda n: least(entry, n), entry.least_width, least(entry, 1).spec.n_heads),
    ):
        always = trained_every_n(entry.task, entry.family, width, heads).margin
        assert always >= floor_of(entry)
        for n in (1, 2, 3, 6, 11, 90):
            assert METHODS[_method(entry)].bound(solution_of(n)).margin >= always


def test_the_windows_bounds_grow_with_n():
    lengths = [*range(1, 60), *(10**k for k in range(2, 13))]
    for bound in (
        lambda n: window_linear("rhi", 16, 8, n),
        lambda n: window_linear("lhi", 6, 3, n),
        lambda n: window_mamba2(16, n),
    ):
        values = [float(bound(n)) for n in lengths]
        assert values == sorted(values)


@pytest.mark.parametrize("entry", ENTRIES)
def test_names_and_shapes_are_those_of_the_models(entry):
    for solution in sized(entry, 3):
        ours = {name: value.shape for name, value in solution.weights.items()}
        theirs = classifier.init(solution.spec, seed=0)
        assert ours == shapes(solution.spec) == {k: tuple(v.shape) for k, v in theirs.items()}


@pytest.mark.parametrize("entry", ENTRIES)
def test_logits_agree_in_numpy_in_torch_and_in_the_library(entry):
    pytest.importorskip("transformers")
    for n, solution in ((5, construct_trained(entry.task, entry.family, 5)), (4, least(entry, 4))):
        bits, index = next(all_inputs(n))
        ours = in_torch(solution, bits, index)
        np.testing.assert_allclose(solution.logits(bits, index), ours, atol=1e-9, rtol=0)
        module = reference.build(solution.spec).double()
        params = {name: torch.tensor(np.array(v)) for name, v in solution.weights.items()}
        reference_weights.load(module, solution.spec, params)
        with torch.no_grad():
            theirs = module(torch.tensor(bits), torch.tensor(index)).numpy()
        np.testing.assert_allclose(theirs, ours, atol=1e-9, rtol=0)


def changed(solution, name, place, value) -> TrainedSolution:
    weights = {key: np.array(array) for key, array in solution.weights.items()}
    weights[name][place] = value
    return replace(solution, weights=weights)


def bound_or_none(solution) -> float | None:
    try:
        return certify(solution).margin
    except SpecError:
        return None


@pytest.mark.parametrize("entry", ONE_MASK)
def test_a_broken_weight_never_certifies_more_than_is_true(entry):
    """One weight at a time, zeros and others, made larger, smaller or opposite."""
    good = least(entry, 2)
    rng = np.random.default_rng(0)
    refused = 0
    for name, value in good.weights.items():
        places = [tuple(p) for p in np.argwhere(value != 0)]
        places = [places[k] for k in rng.permutation(len(places))[:4]]
        zeros = np.argwhere(value == 0)
        places += [tuple(zeros[rng.integers(len(zeros))])] if len(zeros) else []
        for place in places:
            for new in (value[place] * 1.01, -value[place], value[place] + 1e-3):
                bad = changed(good, name, place, new)
                bound = bound_or_none(bad)
                refused += bound is None or bound <= 0
                if bound is not None:
                    assert bound <= smallest_margin(bad) + 1e-9, (name, place, new)
    assert refused > 20


@pytest.mark.parametrize("entry", ENTRIES)
def test_weights_that_are_wrong_do_not_certify(entry):
    good = construct_trained(entry.task, entry.family, 6)
    turned = replace(good, weights=good.weights | {"head.weight": -good.weights["head.weight"]})
    assert bound_or_none(turned) is None
    with pytest.raises(SpecError, match="no argument applies to these weights"):
        certify(turned)


def test_a_blunt_pointer_is_not_certified():
    good = construct_trained("rhi", "softmax-full", 6)
    weights = {name: np.array(value) for name, value in good.weights.items()}
    weights["blocks.0.qkv.weight"][:16] /= 30
    blunt = replace(good, weights=weights)
    assert certify(blunt).margin <= smallest_margin(blunt) < 0


def test_files_verify_again_and_changes_are_refused(tmp_path):
    for entry in TRAINED:
        certificate = certify(least(entry, 4))
        path = tmp_path / "certificate.json"
        write_certificate(certificate, path)
        again = check_certificate(path)
        assert again.summary() == certificate.summary()
        assert isinstance(again.solution, TrainedSolution)
    content = document(certificate)
    for change, reason in (
        ({"margin": content["margin"] * 1.1}, "margin is stated"),
        ({"n": 5}, "do not match the spec"),
        ({"spec": content["spec"] | {"d_model": 8}}, "must have shape"),
        ({"method": "boxes"}, "boxes is about formal layers"),
        ({"weights": {"embed": content["weights"]["embed"]}}, "layers, but 1 array"),
    ):
        bad = content | change
        bad["digest"] = digest(bad)
        path.write_text(json.dumps(bad))
        with pytest.raises(CertificateError, match=reason):
            check_certificate(path)


def test_layers_above_those_needed_pass_their_input_on():
    for entry in TRAINED:
        base, deep = (
            construct_trained(entry.task, entry.family, 5, layers=entry.depth + extra)
            for extra in (0, 2)
        )
        true = smallest_margin(deep)
        assert true == pytest.approx(smallest_margin(base), abs=1e-6)
        assert floor_of(entry) < certify(deep).margin <= true + 1e-9


def test_weights_load_as_models_and_as_a_run(tmp_path):
    pytest.importorskip("transformers")
    for task, family in (("rhi", "softmax-full"), ("lhi", "linear-causal"), ("lhi", "mamba2")):
        solution = ithbit.construct(task, family, 4, model="trained", out=tmp_path)
        bits, index = next(all_inputs(4))
        ours = solution.logits(bits, index)
        for library in (True, False):
            model = ithbit.load(solution, dtype="float64", library=library)
            with torch.no_grad():
                found = model(torch.tensor(bits), torch.tensor(index)).numpy()
            np.testing.assert_allclose(found, ours, atol=1e-9, rtol=0)
    verified = ithbit.verify(all_runs=True, store=tmp_path, device="cpu")
    assert [each.verdict for each in verified] == ["right on all inputs"] * 3


def test_what_is_too_small_or_unknown_is_said():
    with pytest.raises(SpecError, match="need 6 coordinates of width"):
        construct_trained("lhi", "softmax-full", 4, d_model=4)
    with pytest.raises(SpecError, match="need 6 feed-forward units"):
        construct_trained("lhi", "linear-full", 4, d_ff=4)
    with pytest.raises(SpecError, match="need 2 layers"):
        construct_trained("lhi", "mamba2", 4, layers=1)
    with pytest.raises(SpecError, match="no construction is known for rhi by gru as it is trained"):
        construct_trained("rhi", "gru", 4)
    with pytest.raises(SpecError, match="n must be at least 1"):
        construct_trained("lhi", "gru", 0)
    spec = ModelSpec("rhi", "gru", n_bits=2, d_model=1)
    with pytest.raises(SpecError, match="the parameter 'embed' is missing"):
        TrainedSolution(spec, {}, "none")


def test_verdicts_for_what_is_trained():
    found = verdict("lhi", "softmax-causal", 3, 64, model="trained")
    assert found.answer == "possible"
    assert "at least 1.975 for every n" in found.because
    assert verdict("rhi", "gru", 1, 7, model="trained", width=1).answer == "impossible"
    assert verdict("rhi", "gru", 1, 6, model="trained", width=1).answer == "open"
    narrow = verdict("lhi", "softmax-full", 2, 8, model="trained", width=4)
    assert "need 6 coordinates" in narrow.because
    least = {(e.task, e.family): e.min_layers for e in table(4, model="trained")}
    assert least["rhi", "softmax-full"] == least["lhi", "gru"] == 1
    assert least["lhi", "mamba2"] == least["rhi", "linear-full"] == 2
    assert least["rhi", "mamba2"] is None


@pytest.mark.parametrize("entry", ENTRIES)
def test_explanations_show_the_answer(entry):
    for bits, index in (((1, 0, 1, 1), 2), ((0, 0, 1, 0), 3)):
        run = explain(construct_trained(entry.task, entry.family, 4), bits, index)
        assert run.answer == bits[index - 1]
        assert len(run.steps) == entry.depth
        assert run.steps[0].story
