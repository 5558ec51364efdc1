"""Certificates: what holds is confirmed without torch, and what was damaged is refused."""

import ast
import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.support.shipped import completions, folders, read, solution

import ithbit
from ithbit.store.records import SECOND
from ithbit.theory.certificate_file import CertificateError, digest
from ithbit.verification.checks import one_layer_balls
from ithbit.verification.checks.interface import confirm_leaf
from ithbit.verification.checks.one_layer_balls import OneLayer
from ithbit.verification.proofs.bands import STEP, everything, reached
from ithbit.verification.proofs.branch_and_bound import cases, search
from ithbit.verification.proofs.certificate import (
    check_proof,
    confirmed,
    document,
    read_leaves,
    stated,
    weights_of,
    write,
)
from ithbit.verification.proofs.interface import Leaves
from ithbit.verification.proofs.kinds import bounds_for
from ithbit.verification.proofs.leaf_checks import need_bounds

FOLDER = folders("rhi_n16_softmax-full_*_s1-*")[0]


@pytest.fixture(scope="module")
def proved():
    """A run's weights and its certificate as it is read."""
    run, weights = read(FOLDER)
    bounds = bounds_for(run.model, weights_of(weights))
    bounds.slack = 1.0
    return weights, document(run, weights, search(bounds).leaves, bounds.functionals)


def sealed(content: dict) -> dict:
    """With the digest that fits, as a forger would."""
    return content | {"digest": digest(content)}


def test_what_was_proved_is_confirmed(proved) -> None:
    weights, content = proved
    found = confirmed(json.loads(json.dumps(content)), weights)
    assert found.margin == content["margin"] > 11
    assert "right on all 1,048,576 inputs, margin at least 1" in found.sentence()
    assert found.checked == SECOND


@pytest.mark.parametrize("which", [0, 7, -1])
def test_a_leaf_removed_is_seen(proved, which) -> None:
    weights, content = proved
    leaves = list(content["leaves"])
    index = leaves.pop(which)[0]
    with pytest.raises(CertificateError, match=f"no leaf covers the inputs .* index {index}"):
        confirmed(sealed(content | {"leaves": leaves}), weights)


def test_a_bit_set_free_or_turned_is_seen(proved) -> None:
    """The leaves still cover all inputs when one is widened, but then its bound is too high."""
    weights, content = proved
    leaves = sorted(content["leaves"], key=lambda leaf: -leaf[2])
    i, text, bound = leaves[0]
    case = [leaf for leaf in leaves if (leaf[0], leaf[1][i - 1]) == (i, text[i - 1])]
    assert len(case) > 1
    wide = [i, "*" * (i - 1) + text[i - 1] + "*" * (16 - i), bound]
    with pytest.raises(CertificateError, match="is stated to have a margin of at least"):
        confirmed(sealed(content | {"leaves": [wide, *leaves[1:]]}), weights)
    j = next(k for k in range(16) if text[k] in "01" and k != i - 1)
    turned = [i, text[:j] + "10"[int(text[j])] + text[j + 1 :], bound]
    with pytest.raises(CertificateError, match="no leaf covers"):
        confirmed(sealed(content | {"leaves": [turned, *leaves[1:]]}), weights)


def test_a_bound_raised_is_seen(proved) -> None:
    weights, content = proved
    leaves = [list(leaf) for leaf in content["leaves"]]
    leaves[3][2] += 0.01
    forged = sealed(content | {"leaves": leaves})
    with pytest.raises(CertificateError, match="is stated to have a margin of at least"):
        confirmed(forged, weights)
    run, _ = read(FOLDER)
    with pytest.raises(CertificateError, match="is stated to have a margin of at least"):
        need_bounds(bounds_for(run.model, weights_of(weights)), read_leaves(forged, 16)[0])
    with pytest.raises(CertificateError, match="margin is not what follows"):
        confirmed(sealed(content | {"margin": content["margin"] + 1}), weights)


def test_a_check_shows_how_far_it_is(proved, tmp_path, monkeypatch, capsys) -> None:
    """On a terminal; elsewhere it prints nothing. One leaf is wrong, so that it ends early."""
    weights, content = proved
    (tmp_path / "weights.safetensors").write_bytes(weights)
    leaves = [list(leaf) for leaf in content["leaves"]]
    leaves[3][2] += 0.01
    write(tmp_path / "proof.json", sealed(content | {"leaves": leaves}))
    for terminal in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with pytest.raises(CertificateError, match="is stated to have a margin of at least"):
            ithbit.check_certificate(tmp_path / "proof.json", progress=True)
        said = capsys.readouterr()
        assert (said.out, "checking leaves" in said.err) == ("", bool(terminal))


def test_a_weight_changed_is_seen(proved) -> None:
    """By the digest; and by the bounds, where the digest is made to fit."""
    weights, content = proved
    params = load(weights)
    params["head.bias"] = params["head.bias"] + np.float32(0.5)
    other = save(params)
    with pytest.raises(CertificateError, match="other weights"):
        confirmed(content, other)
    forged = sealed(content | {"weights_sha256": hashlib.sha256(other).hexdigest()})
    with pytest.raises(CertificateError, match="but the weights give"):
        confirmed(forged, other)
    run, _ = read(FOLDER)
    with pytest.raises(CertificateError, match="but the weights give"):
        need_bounds(bounds_for(run.model, weights_of(other)), read_leaves(forged, 16)[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"leaves": []}, "no leaves"),
        ({"leaves": [[1, "1" * 16, 2.0, 3]]}, "is not a leaf"),
        ({"leaves": [[17, "1" * 16, 2.0]]}, "is not a leaf"),
        ({"leaves": [[1, "*" * 16, 2.0]]}, "is not a leaf"),
        ({"leaves": [[1, "1" * 16, 0.0]]}, "is not a leaf"),
        ({"leaves": [[1, "1" * 16, float("nan")]]}, "is not a leaf"),
        ({"inputs": 1}, "inputs is not what follows"),
        ({"spec": {}}, "cannot be read"),
        ({"more": 1}, "states more than a proof does: 'more'"),
        ({"digest": "sha256:0"}, "was changed"),
    ],
)
def test_anything_else_changed_is_seen(proved, change, said) -> None:
    weights, content = proved
    with pytest.raises(CertificateError, match=said):
        confirmed(content | change, weights)


def test_the_command_checks_a_file_without_torch(proved, tmp_path) -> None:
    weights, content = proved
    (tmp_path / "weights.safetensors").write_bytes(weights)
    file = tmp_path / "proof.json"
    write(file, content)
    assert json.loads(file.read_text()) == content
    code = (
        "import sys; from ithbit.cli import main; sys.argv = ['ithbit', 'check-certificate', "
        f"{str(file)!r}]\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("holds: rhi_n16_softmax-full_L1d16h2_polynomial_s1 is right on")
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(CertificateError, match="needs its weights next to it"):
        ithbit.check_certificate(file)


@pytest.fixture(scope="module")
def banded():
    """Weights of two layers and leaves of which some have limits: all but a few bits are fixed."""
    run, weights = read(folders("lhi_n32_softmax-causal_*_s4-*")[0])
    bounds = bounds_for(run.model, weights_of(weights), np.ones((1, 32)))
    index, bits = np.array([4]), np.array([[0, 1] * 16], np.int8)
    bits[0, 19:31] = -1
    whole = everything(bounds.functionals, 1)
    ends = reached(bounds.functionals, whole, bits)[0, 0]
    middle = np.rint(ends.mean() / STEP) * STEP
    limits = np.concatenate([whole, whole, whole])
    limits[0, 0, 1] = limits[1, 0, 0] = middle
    limits[1, 0, 1] = limits[2, 0, 0] = ends[1] + 4 * STEP  # beyond, no string is
    bits, index = np.repeat(bits, 3, 0), np.repeat(index, 3)
    lower = bounds(index, bits, limits).lower
    assert (lower[:2] > 0).all()
    assert lower[2] == np.inf
    return run, weights, Leaves(index, bits, limits, lower), bounds.functionals


def test_leaves_with_limits_are_written_read_and_bounded_again(banded) -> None:
    run, weights, leaves, functionals = banded
    content = json.loads(json.dumps(document(run, weights, leaves, functionals)))
    again, read_functionals = read_leaves(content, 32)
    order = np.lexsort((again.limits[:, 0, 0], again.index))
    assert (again.limits[order] == leaves.limits).all()
    assert (read_functionals == functionals).all()
    bounds = bounds_for(run.model, weights_of(weights), functionals)
    need_bounds(bounds, again)
    with pytest.raises(CertificateError, match="no leaf covers"):  # the other cases
        confirmed(content, weights)
    again.lower[np.isfinite(again.lower)] += 0.1
    with pytest.raises(CertificateError, match="but the weights give"):
        need_bounds(bounds, again)
    again.lower[:] = np.inf  # no input is in them, it says
    with pytest.raises(CertificateError, match="but the weights give"):
        need_bounds(bounds, again)


@pytest.mark.parametrize("rows", [[[0.5] * 32], [[1]], [[5000] * 32], "no", [["a"] * 32]])
def test_functionals_are_whole_steps(banded, rows) -> None:
    content = document(*banded) | {"functionals": rows}
    with pytest.raises(CertificateError, match="not rows of 32 whole steps"):
        confirmed(sealed(content), banded[1])


def test_a_proof_of_one_layer_has_no_functionals(proved) -> None:
    weights, content = proved
    more = sealed(content | {"functionals": [[1] * 16]})
    with pytest.raises(
        CertificateError,
        match="a proof of one layer of softmax attention on rhi has no functionals",
    ):
        confirmed(more, weights)


def test_weights_that_cannot_be_bounded_are_refused(tmp_path) -> None:
    run, weights = read(folders("lhi_n16_linear-full_*_s1-*")[0])
    params = dict(load(weights))
    params["blocks.0.norm1.weight"] = params["blocks.0.norm1.weight"] * np.float32(1e30)
    index, bits = cases(16)
    none = np.zeros((0, 16))
    leaves = Leaves(index, bits, everything(none, 32), np.ones(32))
    content = document(run, save(params), leaves, none)
    (tmp_path / "weights.safetensors").write_bytes(save(params))
    with pytest.raises(CertificateError, match=r"is refused: the .* are too large"):
        check_proof(tmp_path / "proof.json", content)


def test_nor_those_of_one_layer(proved, tmp_path) -> None:
    weights, content = proved
    params = {name: value.copy() for name, value in load(weights).items()}
    params["blocks.0.qkv.bias"][0] = 1e30
    large = save(params)
    (tmp_path / "weights.safetensors").write_bytes(large)
    named = sealed(content | {"weights_sha256": hashlib.sha256(large).hexdigest()})
    with pytest.raises(CertificateError, match="is refused: the weights are too large"):
        check_proof(tmp_path / "proof.json", named)


@pytest.mark.parametrize("module", sorted(Path(one_layer_balls.__file__).parent.glob("*.py")))
def test_a_second_implementation_shares_no_bounds_with_the_search(module) -> None:
    """It imports nothing of the project but the specification, what a family is, a type, and other
    checks."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    ours = {name for name in names if name and name.startswith(("ithbit", "."))}
    ours = {name for name in ours if not name.startswith("ithbit.verification.checks")}
    assert ours <= {"ithbit.spec", "ithbit.families", "ithbit.theory.layers"}


@pytest.mark.parametrize("n", [16, 64])
def test_the_check_bounds_sets_below_every_margin(n, rng) -> None:
    """Where it confirms a bound, no input is below; it confirms one close to the least margin, and
    none above it."""
    run, weights = read(folders(f"rhi_n{n}_softmax-full_*_s2-*")[0])
    model, twin = OneLayer(run.model, weights_of(weights)), solution(run, weights)
    for free in (0, 2, n // 4):
        bits = rng.integers(0, 2, n).astype(np.int8)
        i = int(rng.integers(n))
        far = np.array(sorted(np.delete(np.arange(n), i), key=lambda j: -abs(j - i)))
        bits[far[:free]] = -1
        strings = completions(bits, 64, rng)
        least = twin.margins(strings, np.full(64, i + 1)).min()
        assert confirm_leaf(model, i, bits.tolist(), least - 0.05) >= least - 0.05
        assert confirm_leaf(model, i, bits.tolist(), least + 1e-5) < least + 1e-5


def test_the_second_code_cuts_a_leaf_that_it_bounds_too_low(rng) -> None:
    run, weights = read(folders("rhi_n16_softmax-full_*_s0-*")[0])
    model = OneLayer(run.model, weights_of(weights))
    bits = rng.integers(0, 2, 16).tolist()
    bits[4:7] = [-1, -1, -1]  # beside the index
    strings = [[*bits[:4], *three, *bits[7:]] for three in itertools.product((0, 1), repeat=3)]
    least = min(float(model.lower(3, each).lower()) for each in strings)
    assert float(model.lower(3, bits).upper()) < least - 1e-3
    assert confirm_leaf(model, 3, bits, least - 1e-9) >= least - 1e-9
    assert confirm_leaf(model, 3, bits, least - 1e-9, cuts=2) < least - 1e-9
    assert confirm_leaf(model, 3, bits, least + 1e-9) < least + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders("rhi_n*_softmax-full_*"), ids=lambda f: f.name)
def test_every_proof_of_one_layer_is_confirmed_by_the_second_code(folder) -> None:
    run, weights = read(folder)
    leaves = search(bounds_for(run.model, weights_of(weights))).leaves
    none = np.zeros((0, run.model.n_bits))
    assert confirmed(document(run, weights, leaves, none), weights).leaves == len(leaves)


def test_bounds_are_stated_rounded_down() -> None:
    for bound in (12.345678, 0.1, 9.99999999, 1e-7, 123456.7, 0.30000000000000004):
        assert 0 < bound - stated(bound) * (1 - 1e-9) < bound * 2e-4
        assert stated(bound) <= bound
    with pytest.raises(CertificateError, match="proves nothing"):
        stated(0.0)
