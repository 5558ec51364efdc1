"""Bounds of two layers of attention: no input beats them, and at single inputs they are exact."""

import numpy as np
import pytest
from shipped import completions, folders, read, solution
from test_forms import NODES, D, contained, form, norm

from ithbit.prove.bounded import bounds_for
from ithbit.prove.cells import in_cells
from ithbit.prove.certificate import weights_of
from ithbit.prove.forms import Form, layer_norm
from ithbit.prove.products import convex, dot, product

FAMILIES = [
    "lhi_n16_softmax-full",
    "lhi_n16_softmax-causal",
    "lhi_n16_linear-full",
    "lhi_n16_linear-causal",
    "rhi_n16_linear-full",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_input_of_a_node_beats_its_bounds(family, rng) -> None:
    run, weights = read(folders(f"{family}_*_s1-*")[1])
    twin, n = solution(run, weights), run.model.n_bits
    bits = rng.integers(0, 2, (6, n)).astype(np.int8)
    index = rng.integers(0, n, 6)
    for k, free in enumerate((0, 0, 1, 2, 5, 9)):
        others = rng.permutation(np.delete(np.arange(n), index[k]))
        bits[k, others[:free]] = -1
    found = bounds_for(run.model, weights_of(weights))(index, bits)
    gaps = []
    for k in range(6):
        strings = completions(bits[k], 64, rng)
        margin = twin.margins(strings, np.full(len(strings), index[k] + 1))
        assert found.lower[k] <= margin.min() + 1e-6
        assert found.upper[k] >= margin.max() - 1e-6
        gaps.append(margin.min() - found.lower[k])
    assert max(gaps[:2]) < 1e-4
    if "softmax" in family:
        assert gaps[2] < 1


def test_nodes_are_closed_and_those_of_a_turned_model_refuted(rng) -> None:
    run, weights = read(folders("lhi_n16_softmax-causal_*_s0-*")[1])
    params, n = dict(weights_of(weights)), run.model.n_bits
    bits = rng.integers(0, 2, (3, n)).astype(np.int8)
    bits[:, [1, 9, 14]] = -1
    index = np.array([0, 4, 7])
    assert (bounds_for(run.model, params)(index, bits).lower > 0).all()
    params["head.weight"], params["head.bias"] = -params["head.weight"], -params["head.bias"]
    assert (bounds_for(run.model, params)(index, bits).upper < 0).all()


def test_cells_cannot_be_beaten_and_say_more_than_one_form(rng) -> None:
    """Vectors that pass near 0 along one line, where their norm turns around."""
    line = rng.normal(size=(NODES, D))
    given = Form(0.05 * rng.normal(size=(NODES, D)), line[..., None] * [1, 0.3, 0.1], 0 * line)
    given.G[...] += 1e-3 * rng.normal(size=given.G.shape)
    gain, bias = rng.normal(size=D), rng.normal(size=D)

    def function(x: Form) -> Form:
        return layer_norm(x, gain, bias, 0.01)

    near = in_cells(given, function, 2)
    shared = Form(given.c, given.G[..., :2], given.e)
    third = given.G[..., 2]

    def values(x):
        return norm(x + third * np.sign(rng.normal(size=(NODES, 1))), gain, bias, 0.01)

    assert contained(shared, near, values, rng) > -1e-9
    low, high = function(given).bounds()
    assert np.median(near.e) < 0.9 * np.median((high - low) / 2)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("size", [1e-4, 0.3, 3.0])
def test_convex_functions_cannot_be_beaten(rng, features, size) -> None:
    x = form(rng, size)

    def function(v):
        return np.where(v > 0, v + 1, np.exp(np.minimum(v, 0))) if features else np.exp(v)

    out = convex(x, features)
    assert contained(x, out, function, rng) > -1e-12
    point = convex(Form(x.c, x.G[..., :0], x.e), features)
    assert (point.e < 1e-10).all()


def test_products_cannot_be_beaten(rng) -> None:
    a, b = form(rng), form(rng)
    scalar, vector = dot(a, b, a.G.shape[-1]), product(Form(a.c[:, 0], a.G[:, 0], a.e[:, 0]), b)
    for attempt in range(200):
        eps = rng.uniform(-1, 1, (NODES, a.G.shape[-1], 1))
        eps = np.sign(eps) if attempt % 2 else eps
        x, y = (f.c + (f.G @ eps)[..., 0] for f in (a, b))
        for form_of, true in ((scalar, (x * y).sum(-1)), (vector, x[:, :1] * y)):
            affine = form_of.c + np.einsum("n...s,ns->n...", form_of.G, eps[..., 0])
            assert (np.abs(true - affine) <= form_of.e * (1 + 1e-9) + 1e-12).all()
