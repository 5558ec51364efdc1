"""Certificates: what holds is confirmed without torch, and what was damaged is refused."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load, save
from shipped import folders, read

import ithbit
from ithbit.prove.bounded import bounds_for
from ithbit.prove.certificate import (
    Leaves,
    confirmed,
    document,
    stated,
    uncovered,
    weights_of,
    write,
)
from ithbit.prove.search import search
from ithbit.theory.certificate_file import CertificateError, digest

FOLDER = folders("rhi_n16_softmax-full_*_s1-*")[0]


@pytest.fixture(scope="module")
def proved():
    """A run's weights and its certificate as it is read."""
    run, weights = read(FOLDER)
    bounds = bounds_for(run.model, weights_of(weights))
    found = search(bounds, slack=1.0)
    at = found.leaves
    leaves = Leaves(at.index, at.bits, at.limits, at.lower, bounds.functionals)
    content = document(run, weights, leaves)
    return weights, content


def sealed(content: dict) -> dict:
    """With the digest that fits, as a forger would."""
    return content | {"digest": digest(content)}


def test_what_was_proved_is_confirmed(proved) -> None:
    weights, content = proved
    found = confirmed(json.loads(json.dumps(content)), weights)
    assert found.margin == content["margin"] > 11
    assert "right on all 1,048,576 inputs, margin at least 1" in found.sentence()


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
    with pytest.raises(CertificateError, match="is stated to have a margin of at least"):
        confirmed(sealed(content | {"leaves": leaves}), weights)
    with pytest.raises(CertificateError, match="margin is not what follows"):
        confirmed(sealed(content | {"margin": content["margin"] + 1}), weights)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"leaves": []}, "no leaves"),
        ({"leaves": [[1, "1" * 16, 2.0, 3]]}, "is no leaf"),
        ({"leaves": [[17, "1" * 16, 2.0]]}, "is no leaf"),
        ({"leaves": [[1, "*" * 16, 2.0]]}, "is no leaf"),
        ({"leaves": [[1, "1" * 16, 0.0]]}, "is no leaf"),
        ({"leaves": [[1, "1" * 16, float("nan")]]}, "is no leaf"),
        ({"inputs": 1}, "inputs is not what follows"),
        ({"spec": {}}, "cannot be read"),
        ({"more": 1}, "was changed"),
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
    with pytest.raises(CertificateError, match="must lie beside it"):
        ithbit.check_certificate(file)


def test_covers_are_found_whatever_the_leaves_look_like(rng) -> None:
    """Overlapping leaves too; the first hole found is one."""
    for _ in range(200):
        leaves = rng.integers(-1, 2, (int(rng.integers(1, 12)), 4)).astype(np.int8)
        leaves[:, 2] = 1
        strings = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(np.int8)
        strings = strings[strings[:, 2] == 1]
        held = ((leaves < 0) | (leaves == strings[:, None])).all(2).any(1)
        hole = uncovered(leaves, np.zeros((len(leaves), 0, 2)), 2, 1, np.zeros((0, 2)))
        assert (hole is None) == held.all()
        if hole is not None:
            assert not held[((hole < 0) | (hole == strings)).all(1)].any()


def test_bounds_are_stated_rounded_down() -> None:
    for bound in (12.345678, 0.1, 9.99999999, 1e-7, 123456.7, 0.30000000000000004):
        assert 0 < bound - stated(bound) * (1 - 1e-9) < bound * 2e-4
        assert stated(bound) <= bound
    with pytest.raises(CertificateError, match="proves nothing"):
        stated(0.0)
