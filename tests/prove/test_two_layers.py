"""Bounds of two layers of attention: no input beats them, and at single inputs they are exact."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from shipped import completions, folders, read, solution
from test_forms import NODES, D, contained, form, norm

from ithbit.prove.bands import STEP, Bands, bands_of, everything
from ithbit.prove.bounded import bounds_for
from ithbit.prove.cells import in_cells
from ithbit.prove.certificate import weights_of
from ithbit.prove.forms import Form, layer_norm
from ithbit.prove.products import convex, dot, product
from ithbit.prove.ratios import separable_ratio
from ithbit.prove.two_layers import TwoLayers, _chosen

FAMILIES = [
    "lhi_n16_softmax-full",
    "lhi_n16_softmax-causal",
    "lhi_n16_linear-full",
    "lhi_n16_linear-causal",
    "rhi_n16_linear-full",
]


def free_bands(n: int) -> Bands:
    """No functionals."""
    bits = np.full((NODES, n), -1)
    return bands_of(np.zeros((0, n)), np.zeros((NODES, 0, 2)), bits, np.arange(n))


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

    near, few = in_cells(given, function, 2), in_cells(given, function, 2, cells=2)
    shared = Form(given.c, given.G[..., :2], given.e)
    third = given.G[..., 2]

    def values(x):
        return norm(x + third * np.sign(rng.normal(size=(NODES, 1))), gain, bias, 0.01)

    assert contained(shared, near, values, rng) > -1e-9
    assert contained(shared, few, values, rng) > -1e-9
    low, high = function(given).bounds()
    assert np.median(near.e) < 0.9 * np.median((high - low) / 2)


def test_cells_of_a_parabola_are_as_wide_as_it_bends(rng) -> None:
    """A function that is known in every cell up to its bend, so that nothing else can hide it."""

    def function(x: Form) -> Form:  # the square of the first coordinate, chord by chord
        low, high = x.c[:, 0] - np.abs(x.G[:, 0]).sum(-1), x.c[:, 0] + np.abs(x.G[:, 0]).sum(-1)
        bend = (high - low) ** 2 / 8
        square = low * low + (low + high) * (x.c[:, 0] - low) - bend
        G = (low + high)[:, None] * x.G[:, 0]
        return Form(square[:, None], G[:, None], bend[:, None] + 1e-12)

    given = Form(np.zeros((NODES, 1)), np.full((NODES, 1, 1), 3.0), np.zeros((NODES, 1)))
    for cells in (1, 2, 16):
        near = in_cells(given, function, 1, cells)
        room = contained(given, near, lambda x: x * x, rng, 400)
        assert -1e-9 < room < 0.2
        assert (near.e < 9 + 1e-6).all()


def test_what_a_bit_chooses_cannot_be_beaten(rng) -> None:
    """Two bits, free, and one token more; slots with generators of their own."""
    n, slots = 2, 5
    x = Form(rng.normal(size=(NODES, slots, 3)), rng.normal(size=(NODES, slots, 3, n)), 0)
    x = Form(x.c, x.G, 0.1 * rng.random((NODES, slots, 3)))
    x.G[:, [0, 2], :, 0] = x.G[:, [1, 3], :, 1] = 0  # a slot's own bit is as it is
    total = _chosen(x, n, np.arange(n), free_bands(n))
    tight = np.inf
    for eps in itertools.product((-1, 1), repeat=n):
        slot = [0 if eps[0] < 0 else 2, 1 if eps[1] < 0 else 3, 4]
        exact = (x.c[:, slot] + x.G[:, slot] @ np.array(eps)).sum(1)
        for sign in (-1, 1):
            true = exact + sign * x.e[:, slot].sum(1)
            room = total.e - np.abs(true - total.c - total.G @ np.array(eps))
            assert (room > -1e-12).all()
            tight = min(tight, room.min())
    assert tight < 0.1


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_ratios_of_known_tokens_cannot_be_beaten(rng, spread) -> None:
    """All choices of three bits; the affine part shares its symbols with them."""
    n = 3
    weight = np.exp(spread * rng.normal(size=(2, NODES, n)))
    value = rng.normal(size=(2, NODES, n, D))
    rest, rest_value = np.exp(rng.normal(size=NODES)), rng.normal(size=(NODES, D))
    weighted = weight[..., None] * value
    found = separable_ratio(
        tuple(weight), tuple(weighted), rest, rest[:, None] * rest_value, np.arange(n)
    )
    beaten = []
    for eps in itertools.product((0, 1), repeat=n):
        chosen, at = list(eps), np.arange(n)
        total = weight[chosen, :, at].sum(0) + rest
        true = (weighted[chosen, :, at].sum(0) + rest[:, None] * rest_value) / total[:, None]
        assert (found.least <= total).all()
        assert (total <= found.most).all()
        affine = found.m + np.einsum("njd,j->nd", found.G, 2 * np.array(eps) - 1)
        beaten.append(np.abs(true - affine) / (found.rest + found.e))
    assert 0.4 < np.max(beaten) <= 1


@pytest.mark.parametrize("softmax", [True, False])
def test_ratios_of_forms_cannot_be_beaten(rng, softmax) -> None:
    """Weights and values that are known, where a second layer knows forms."""
    model = SimpleNamespace(n=2, heads=1, size=3, softmax=softmax)
    w, v = np.exp(rng.normal(size=(NODES, 5, 1))), rng.normal(size=(NODES, 5, 1, 3))
    forms = [Form(a, np.zeros((*a.shape, 2)), np.zeros_like(a)) for a in (w, v)]
    bits = np.full((NODES, 2), -1)
    bands = free_bands(2)
    out, _ = TwoLayers._mixed(model, forms[0], w, w, forms[1], bits, np.arange(2), bands)
    beaten = []
    for eps in itertools.product((-1, 1), repeat=2):
        slot = [0 if eps[0] < 0 else 2, 1 if eps[1] < 0 else 3, 4]
        total = w[:, slot].sum(1) + (0 if softmax else 1e-6)
        true = (w[:, slot] * v[:, slot, 0]).sum(1) / total
        far = np.abs(true - out.c - out.G[..., :2] @ np.array(eps))
        beaten.append(far / (np.abs(out.G[..., 2:]).sum(-1) + out.e))
    assert 0.4 < np.max(beaten) <= 1


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
