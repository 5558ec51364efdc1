"""Two layers of Mamba2: no bound of either implementation is beaten; a trained run is proved."""

import copy
import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.support import fuzz_mamba2
from tests.support.fuzz_mamba2 import strings
from tests.support.fuzz_mamba2_parts import run_parts
from tests.support.mutations import mutated
from tests.support.mutations_mamba2 import LATE, MAMBA2_MUTATIONS

from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.records import SECOND
from ithbit.theory.certificate_file import CertificateError, digest
from ithbit.theory.solution import TrainedSolution
from ithbit.verification.proofs import certificate
from ithbit.verification.proofs.branch_and_bound import cases, search
from ithbit.verification.proofs.interface import NoBoundsError
from ithbit.verification.proofs.kinds import bounds_for, kind_of, second_check_for
from ithbit.verification.proofs.leaf_checks import checked_leaves


def test_no_bound_of_random_and_extreme_models_is_beaten() -> None:
    counts = fuzz_mamba2.run(26, seed=0)
    assert not counts.violations
    assert counts.inputs > 150
    assert counts.unbounded < counts.nodes / 10
    assert counts.refused < 5


def test_no_operation_leaves_what_it_states() -> None:
    assert not Counter(run_parts(60, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_no_bound_of_many_models_is_beaten(seed) -> None:
    assert not fuzz_mamba2.run(1500, seed).violations
    assert not Counter(run_parts(2000, seed))


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, id=m.name, marks=[pytest.mark.slow] * (m.name in LATE))
        for m in MAMBA2_MUTATIONS
    ],
)
def test_a_mistake_in_either_implementation_is_found(mutation) -> None:
    with mutated(mutation):
        assert next(run_parts(40, seed=3), "") or fuzz_mamba2.run(300, 3, stop=True).violations


# Weights trained with consistency until the bounds closed.
RUN = RunSpec(ModelSpec("lhi", "mamba2", 8, 2), 0)
WEIGHTS = (Path(__file__).parent / "mamba2_n8.safetensors").read_bytes()


@pytest.fixture(scope="module")
def proved():
    """The certificate of a trained run, and what the search found."""
    params = certificate.weights_of(WEIGHTS)
    found = search(bounds_for(RUN.model, params), 120)
    check = second_check_for(RUN.model, params)
    leaves = checked_leaves(check, found.leaves, kind_of(RUN.model).close)
    assert leaves is not None
    return found, certificate.document(RUN, WEIGHTS, leaves, np.zeros((0, 8)))


def margins(params) -> np.ndarray:
    """Of all inputs."""
    strings = np.arange(256)[:, None] >> np.arange(8) & 1
    solution = TrainedSolution(RUN.model, params, "")
    return np.array([solution.margins(strings, np.full(256, i + 1)) for i in range(8)])


def test_a_trained_run_is_proved_and_its_bound_is_close(proved) -> None:
    found, content = proved
    held = certificate.confirmed(json.loads(json.dumps(content)), WEIGHTS)
    assert held.checked == SECOND
    least = margins(certificate.weights_of(WEIGHTS)).min()
    assert 0.9 * least < held.margin <= least
    assert held.margin <= found.least_found


def test_search_and_check_agree_on_sets_and_single_inputs() -> None:
    params = certificate.weights_of(WEIGHTS)
    bounds, check = bounds_for(RUN.model, params), second_check_for(RUN.model, params)
    true, rng = margins(params), np.random.default_rng(0)
    for free in (0, 0, 2, 5):
        index, bits = int(rng.integers(8)), rng.integers(0, 2, 8)
        bits[rng.permutation(np.delete(np.arange(8), index))[:free]] = -1
        found = bounds(np.array([index]), bits[None])
        low = check.lower(index, bits.tolist())
        own = true[index, strings(bits.tolist()) @ (1 << np.arange(8))]
        assert max(low, found.lower[0]) <= own.min() + 1e-9
        assert own.max() - 1e-9 <= found.upper[0]
        if not free:
            assert abs(low - own[0]) < 1e-5
            assert abs(found.lower[0] - own[0]) < 1e-6
            assert not check.is_wrong(index, bits.tolist())


def _raised(content, weights):
    """A bound above a margin that some input has."""
    i, text, low = content["leaves"][3]
    content["leaves"][3] = [i, text, certificate.stated(low + 1)]
    return content, weights


def _left_out(content, weights):
    return content | {"leaves": content["leaves"][1:]}, weights


def _wrong_head(content, weights):
    params = load(weights)
    params["head.weight"] = -params["head.weight"]
    return content, save(params)


def _damaged(content, weights):
    params = {name: value.copy() for name, value in load(weights).items()}
    params["blocks.1.in.weight"][-1] += 1
    return content, save(params)


def _other_heads(content, weights):
    content["spec"]["model"]["n_heads"] = 4
    return content, weights


@pytest.mark.parametrize("forge", [_raised, _left_out, _wrong_head, _damaged, _other_heads])
def test_a_forged_certificate_is_refused(proved, forge) -> None:
    content, weights = forge(copy.deepcopy(proved[1]), WEIGHTS)
    content["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    bounds = [row[2] for row in content["leaves"]]
    content = content | {"margin": min(bounds)}
    with pytest.raises(CertificateError):
        certificate.confirmed(content | {"digest": digest(content)}, weights)


def test_an_input_that_is_wrong_refutes() -> None:
    params = certificate.weights_of(WEIGHTS)
    params = params | {"head.weight": -params["head.weight"], "head.bias": -params["head.bias"]}
    found = search(bounds_for(RUN.model, params), 60)
    assert found.outcome == "refuted"
    check = second_check_for(RUN.model, params)
    assert check.is_wrong(found.index - 1, [int(bit) for bit in found.bits])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_weights_that_are_not_finite_or_huge_prove_nothing(value) -> None:
    for name in ("blocks.0.a_log", "blocks.1.conv.weight", "blocks.1.dt_bias", "embed"):
        params = {k: v.copy() for k, v in certificate.weights_of(WEIGHTS).items()}
        params[name].flat[0] = value
        try:
            bounds, check = bounds_for(RUN.model, params), second_check_for(RUN.model, params)
        except (NoBoundsError, ArithmeticError):
            continue
        index, bits = cases(8)
        found, true = bounds(index[:2], bits[:2]), margins(params)[0]
        for k in (0, 1):  # the bit at the first index, which is the lowest of a string's number
            least = true[k::2].min()
            for low in (found.lower[k], check.lower(0, bits[k].tolist())):
                assert not (np.isfinite(least) and low > least + 1e-6 * (1 + abs(least)))


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_a_certificate_whose_axes_overflow_is_refused(proved) -> None:
    """Their squares are infinite, and numpy's eigenvalues of such numbers do not converge."""
    params = {name: value.copy() for name, value in load(WEIGHTS).items()}
    params["blocks.0.norm.weight"][...] = 3e38
    weights, content = save(params), copy.deepcopy(proved[1])
    content["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    with pytest.raises(CertificateError):
        certificate.confirmed(content | {"digest": digest(content)}, weights)


def test_other_tasks_and_depths_have_no_bounds() -> None:
    for task, layers in (("rhi", 2), ("lhi", 1), ("lhi", 3)):
        kind = kind_of(ModelSpec(task, "mamba2", 8, layers))
        assert kind is None
    assert kind_of(RUN.model).name == "mamba2"
