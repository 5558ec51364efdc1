"""Bounds of two layers of attention: no input beats them, and at single inputs they are exact."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flint import arb, ctx
from tests.support.shipped import completions, folders, read, solution
from tests.verification.proofs.test_affine_forms import NODES, D, contained, form, norm

from ithbit.verification.proofs import single_inputs
from ithbit.verification.proofs.affine_forms import Form, in_cells, layer_norm
from ithbit.verification.proofs.attention import chosen, convex, dot, product, separable_ratio
from ithbit.verification.proofs.bands import STEP, Bands, bands_of, everything
from ithbit.verification.proofs.certificate import weights_of
from ithbit.verification.proofs.kinds import bounds_for
from ithbit.verification.proofs.token_parts import parts_of, with_row
from ithbit.verification.proofs.two_layers import TwoLayers

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


@pytest.mark.parametrize("by_forms", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_input_of_a_node_beats_its_bounds(family, by_forms, rng) -> None:
    run, weights = read(folders(f"{family}_*_s1-*")[1])
    twin, n = solution(run, weights), run.model.n_bits
    bits = rng.integers(0, 2, (6, n)).astype(np.int8)
    index = rng.integers(0, n, 6)
    for k, free in enumerate((0, 0, 1, 2, 5, 9)):
        others = rng.permutation(np.delete(np.arange(n), index[k]))
        bits[k, others[:free]] = -1
    bounds = bounds_for(run.model, weights_of(weights))
    assert isinstance(bounds, TwoLayers)
    bounds.few = -1 if by_forms else 10
    found = bounds(index, bits)
    gaps = []
    for k in range(6):
        strings = completions(bits[k], 64, rng)
        margin = twin.margins(strings, np.full(len(strings), index[k] + 1))
        assert found.lower[k] <= margin.min() + 1e-6
        assert found.upper[k] >= margin.max() - 1e-6
        gaps.append(margin.min() - found.lower[k])
    if not by_forms:  # all inputs of the first four nodes are among the strings
        assert max(gaps[:4]) < 1e-3
    assert max(gaps[:2]) < 1e-3
    if "softmax" in family:
        assert gaps[2] < 1


def test_no_input_within_limits_beats_the_bounds(rng) -> None:
    """Bands around strings, narrow and wide, with many bits free; an empty one is seen."""
    run, weights = read(folders("lhi_n32_linear-full_*_s1-*")[0])
    twin, n = solution(run, weights), run.model.n_bits
    C = np.stack([np.ones(n), np.rint(np.linspace(-1, 1, n) / STEP) * STEP, np.arange(n) % 3 - 1.0])
    bounds = bounds_for(run.model, weights_of(weights), C)
    node = np.full(n, -1, np.int8)
    node[12:20] = rng.integers(0, 2, 8)
    strings = completions(node, 600, rng)
    at = (2.0 * strings - 1) @ C.T
    margin = twin.margins(strings, np.full(len(strings), 17))
    limits = everything(C, 5)
    for k, width in enumerate((1 / 4, 1 / 64, 1 / 4, 1 / 64)):
        middle = np.rint(at[k] / STEP) * STEP
        half = np.rint(width * np.abs(C).sum(1) / STEP) * STEP
        limits[k] = np.stack([middle - half, middle + half], -1)
    limits[4, 0, 0] = limits[4, 0, 1]  # all bits at one value, which those fixed are not
    found = bounds(np.full(5, 16), np.tile(node, (5, 1)), limits)
    assert found.lower[4] == np.inf
    for k in range(4):
        held = ((limits[k, :, 0] <= at) & (at <= limits[k, :, 1])).all(1)
        assert held[k]
        assert found.lower[k] <= margin[held].min() + 1e-6
        assert found.upper[k] >= margin[held].max() - 1e-6
    narrow, wide = found.lower[[1, 3]], found.lower[[0, 2]]
    assert (narrow > wide).all()


def test_generators_within_limits_are_split_soundly(rng) -> None:
    """g ε = p σ + r ε at strings of the band, and never outside what the symbols allow."""
    n, functionals = 8, np.rint(rng.normal(size=(2, 8)) / 4 / STEP) * STEP
    bits = np.full((NODES, n), -1)
    bits[:, 3] = 1
    strings = rng.choice([-1.0, 1.0], (NODES, n))
    strings[:, 3] = 1
    at = strings @ functionals.T
    limits = np.stack([at - 64 * STEP, at + 128 * STEP], -1)
    free = np.delete(np.arange(n), 3)
    bands = bands_of(functionals, limits, bits, free)
    assert not bands.empty.any()
    g = rng.normal(size=(NODES, 3, len(free)))
    p = bands.share(g)
    r, of_functionals = np.split(bands.generators(g, p), [len(free)], -1)
    true = (g * strings[:, None, free]).sum(-1)
    off = np.abs(true - bands.centre(p) - (r * strings[:, None, free]).sum(-1))
    assert (off <= np.abs(of_functionals).sum(-1) + 1e-9).all()
    assert (np.abs(r).sum(-1) < np.abs(g).sum(-1)).mean() > 0.5
    far = np.stack([at + 100, at + 200], -1)
    assert bands_of(functionals, far, bits, free).empty.all()


def test_norms_and_averages_of_single_inputs_cannot_be_beaten(rng) -> None:
    """Rows moved within their errors, of which some are reached but for a small factor."""
    gain, bias, root = rng.normal(size=D), rng.normal(size=D), np.sqrt(D)
    weight = rng.normal(size=(2 * D, D))
    x = rng.normal(size=(NODES, D))
    rows = single_inputs.TokenRows(x, 0.02, np.linalg.norm(x, axis=-1).max())
    to = single_inputs.mapping(weight, rng.normal(size=2 * D))
    functions = [
        (single_inputs.layer_norm(rows, gain, bias, 1e-5), lambda y: norm(y, gain, bias, 1e-5)),
        (single_inputs.linear(rows, to), lambda y: y @ weight.T + to.bias),
        (
            single_inputs.gelu(rows),
            lambda y: y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2,
        ),
    ]
    assert 1 <= to.norm / np.linalg.norm(weight, 2) < 1.1
    ways = np.concatenate([np.eye(D), rng.normal(size=(300, D)), np.linalg.svd(weight)[2]])
    tight = [0.0] * len(functions)
    for way in ways / np.linalg.norm(ways, axis=-1, keepdims=True):
        for k, (found, function) in enumerate(functions):
            far = np.linalg.norm(function(x + rows.e * way) - found.x, axis=-1) / found.e
            assert far.max() <= 1 + 1e-9
            tight[k] = max(tight[k], far.max())
            assert np.linalg.norm(found.x, axis=-1).max() <= found.size
    assert min(tight) > 0.3
    shares, value = np.exp(rng.normal(size=(NODES, D))), rng.normal(size=(D, 2))
    total, size = shares.sum(-1), np.linalg.norm(value, axis=-1).max()
    mixed = single_inputs.averaged(shares @ value / total[:, None], total, 0.02, 0.01, size)
    most = 0.0
    for _ in range(300):
        w = shares * (1 + 0.02 * rng.choice([-1, 1], shares.shape))
        true = w @ (value + 0.01 * np.array([0.6, -0.8])) / w.sum(-1, keepdims=True)
        far = np.linalg.norm(true - mixed.x, axis=-1).max() / mixed.e
        most = max(most, far)
        assert far <= 1
    assert most > 0.2
    assert (
        single_inputs.averaged(mixed.x, total, 1e-9, 0.01, size).e >= 0.01
    )  # all values moved alike
    assert single_inputs.averaged(mixed.x, total, 0.5, 0.01, root).e == np.inf
    assert single_inputs.averaged(mixed.x, 0 * total, 0.02, 0.01, root).e == np.inf


@pytest.mark.parametrize("family", ["lhi_n16_softmax-causal", "rhi_n16_linear-full"])
@pytest.mark.parametrize("off", ["query", "key", "value"])
def test_second_attention_holds_for_queries_keys_and_values_moved(family, off, rng) -> None:
    run, weights = read(folders(f"{family}_*_s0-*")[0])
    model, e = bounds_for(run.model, weights_of(weights)).points, 1e-4
    parts = {"query": (NODES, 16), "key": (NODES, 17, 16), "value": (NODES, 17, 16)}
    parts = {name: rng.normal(size=shape) for name, shape in parts.items()}

    def given(parts: dict[str, np.ndarray], e: float) -> single_inputs.TokenRows:
        query, key, value = (
            single_inputs.TokenRows(x, e if name == off else 0.0, np.linalg.norm(x, axis=-1).max())
            for name, x in parts.items()
        )
        features = key.x if model.softmax else single_inputs._features(key.x)
        return model._second(query, single_inputs.TokenRows(features, key.e, key.size), value)

    found, most = given(parts, e), 0.0
    for _ in range(20):
        way = rng.normal(size=parts[off].shape)
        way *= e / np.linalg.norm(way, axis=-1, keepdims=True)
        far = np.linalg.norm(given(parts | {off: parts[off] + way}, 0.0).x - found.x, axis=-1)
        most = max(most, far.max())
    assert 1e-4 * found.e < most <= found.e < 1


@pytest.mark.parametrize("family", [*FAMILIES, "rhi_n16_linear-causal"])
def test_all_strings_of_a_node_at_once_agree_with_forms_of_each_alone(family, rng) -> None:
    """Both are sound, so they overlap, and are narrow enough to tell the strings apart. Free bits
    lie first, last and side by side."""
    shipped = family if family in FAMILIES else "rhi_n16_linear-full"  # none of RHI is causal
    run, weights = read(folders(f"{shipped}_*_s1-*")[0])
    spec = replace(run.model, family=family.split("_")[-1])
    bounds, n = bounds_for(spec, weights_of(weights)), spec.n_bits
    for free in ([0, 3, 4, n - 1], [1], [], [n - 3, n - 2]):
        index = int(rng.choice(np.delete(np.arange(n), free)))
        bits = rng.integers(0, 2, n).astype(np.int8)
        bits[free] = -1
        strings = counted(bits)
        low, high = bounds.points(index, bits)
        with np.errstate(all="ignore"):
            alone = bounds._bound(
                np.full(len(strings), index), strings, everything(bounds.functionals, len(strings))
            )
        assert (low <= alone.upper).all()
        assert (alone.lower <= high).all()
        widest = np.concatenate([high - low, alone.upper - alone.lower]).max()
        assert widest < 1e-3
        assert len(free) < 2 or np.diff(np.sort(low)).min() > 2 * widest


def test_a_node_is_tried_in_parts_and_within_its_limits(rng, monkeypatch) -> None:
    run, weights = read(folders("lhi_n16_softmax-causal_*_s1-*")[0])
    model = bounds_for(run.model, weights_of(weights)).points
    bits = rng.integers(0, 2, 16).astype(np.int8)
    bits[[2, 5, 7, 11, 12]] = -1
    monkeypatch.setattr(single_inputs, "_BITS", 3)
    strings, C = counted(bits), np.rint(rng.normal(size=(1, 16)) / 4 / STEP) * STEP
    low, high = (np.concatenate(each) for each in zip(*(model(0, s) for s in strings), strict=True))
    at = ((2.0 * strings - 1) @ C.T)[:, 0]
    for top in (at.max(), at[np.argsort(low)[1]]):
        held = at <= top
        found = model.tried(0, bits, np.array([[-100, top]]), C)
        assert abs(found.lower[0] - low[held].min()) < 1e-6
        assert abs(found.upper[0] - high[held].max()) < 1e-6
        assert (found.slope[0] == 1 - 2 * strings[held][low[held].argmin()]).all()
    none = model.tried(0, bits, np.array([[-100, at.min() - STEP]]), C)
    assert (none.lower[0], none.upper[0]) == (np.inf, -np.inf)


def counted(bits: np.ndarray) -> np.ndarray:
    """All strings of a node, the first free bit counting fastest."""
    free = np.flatnonzero(bits < 0)
    strings = np.tile(bits, (1 << len(free), 1))
    strings[:, free] = np.arange(len(strings))[:, None] >> np.arange(len(free)) & 1
    return strings


@pytest.mark.parametrize("family", ["lhi_n16_softmax-causal", "rhi_n16_linear-full"])
def test_margins_of_single_inputs_hold_for_every_table_within_its_error(
    family, rng, monkeypatch
) -> None:
    """Tokens moved by as much as they may be off: the margin stays within the bounds."""
    run, weights = read(folders(f"{family}_*_s0-*")[0])
    bounds, bits = bounds_for(run.model, weights_of(weights)), rng.integers(0, 2, 16)
    bits[[1, 6, 7, 9, 15]] = -1
    with monkeypatch.context() as wide:
        wide.setattr(single_inputs, "ENTRY", 1e-6)
        low, high = bounds.points(3, bits)
    for _ in range(20):
        x = bounds.x + 1e-6 * rng.choice([-1, 1], bounds.x.shape)
        moved = single_inputs.Points(bounds.w, bounds.v, x, bounds.params, run.model)
        found = moved(3, bits)
        assert (low <= found[0]).all()
        assert (found[1] <= high).all()


def test_exponentials_of_single_inputs_are_as_exact_as_said(rng) -> None:
    x = np.concatenate([-(10.0 ** rng.uniform(-12, 2.5, 500)), [0.0, -1.0, -0.5]])
    found = single_inputs.exp(x)
    with ctx.workprec(200):
        for a, b in zip(x.tolist(), found.tolist(), strict=True):
            assert bool(abs(arb(b) / arb(a).exp() - 1) < 2.0**-48)
    assert single_inputs.exp(np.array([-1e4]))[0] < 1e-250


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
    c, G = rng.normal(size=(NODES, slots, 3)), rng.normal(size=(NODES, slots, 3, n))
    x = Form(c, G, 0.1 * rng.random((NODES, slots, 3)))
    x.G[:, [0, 2], :, 0] = x.G[:, [1, 3], :, 1] = 0  # a slot's own bit is as it is
    total = chosen(x, n, np.arange(n), free_bands(n))
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


def test_a_part_stands_at_every_place_of_its_token(rng) -> None:
    """A fixed bit has one token in two slots: both become the part, the others stay."""
    tokens = Form(rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 4)), rng.random((3, 2)))
    parts = parts_of(tokens[[1]])
    found = with_row(tokens, [0, 2], parts)
    assert len(found) == 3 * len(parts)
    for part in range(len(parts)):
        zero, one, two = (found[[3 * part + row]] for row in range(3))
        for own in (zero, two):
            assert np.array_equal(own.c, parts.c[[part]])
            assert np.array_equal(own.G, parts.G[[part]])
            assert np.array_equal(own.e, parts.e[[part]])
        assert np.array_equal(one.c, tokens.c[[1]])
        assert np.array_equal(one.G[..., :4], tokens.G[[1]])
        assert not one.G[..., 4:].any()
        assert np.array_equal(one.e, tokens.e[[1]])


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_ratios_of_known_tokens_cannot_be_beaten(rng, spread) -> None:
    """All choices of three bits; the affine part shares its symbols with them."""
    n = 3
    weight = np.exp(spread * rng.normal(size=(2, NODES, n)))
    value = rng.normal(size=(2, NODES, n, D))
    rest, rest_value = np.exp(rng.normal(size=NODES)), rng.normal(size=(NODES, D))
    weighted = weight[..., None] * value
    fixed = rest[:, None] * rest_value
    found = separable_ratio(
        tuple(weight), tuple(weighted), rest, fixed, np.abs(fixed), np.arange(n)
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
