"""Bounds of one softmax layer: no input beats them, and at single inputs they are exact."""

import dataclasses

import numpy as np
import pytest
from flint import arb, ctx, fmpq
from tests.support.shipped import completions, folders, read, solution

import ithbit
from ithbit.spec import ModelSpec
from ithbit.verification.proofs.branch_and_bound import search
from ithbit.verification.proofs.certificate import weights_of
from ithbit.verification.proofs.interface import NoBoundsError
from ithbit.verification.proofs.kinds import bounds_for

RUNS = [folders(f"rhi_n{n}_softmax-full_*_s{s}-*")[k] for n, s, k in ((16, 2, 0), (64, 3, 1))]


def logit_in_balls(spec: ModelSpec, params, bits, index: int):
    """The whole model on one input, in arb balls and by the book."""
    p = {name: [[arb(float(x)) for x in row] for row in np.atleast_2d(v)]
         for name, v in params.items()}  # fmt: skip
    n, d, size = spec.n_bits, spec.d_model, spec.d_head

    def dot(a, b):
        return sum((x * y for x, y in zip(a, b, strict=True)), arb(0))

    def affine(name, x):
        out = [dot(row, x) for row in p[f"{name}.weight"]]
        return [a + b for a, b in zip(out, p[f"{name}.bias"][0], strict=True)]

    def normed(name, x):
        mean = sum(x, arb(0)) / d
        x = [v - mean for v in x]
        scale = (dot(x, x) / d + arb(1e-12)).sqrt()
        rows = zip(x, p[f"{name}.weight"][0], p[f"{name}.bias"][0], strict=True)
        return [v / scale * g + b for v, g, b in rows]

    tokens = [[1, 0, 0, int(b), 0, 0] for b in bits]
    part = fmpq(index - 1, n)
    tokens.append([0, 1, 0, 0, part, part * part])
    xs = []
    for t, features in enumerate(tokens):
        place = [arb(fmpq(t, n)), arb(fmpq(t, n) ** 2)]
        own = zip(p["embed"], p["positions.polynomial"], p["enter.type"][0], strict=True)
        x = [dot(e, map(arb, features)) + dot(q, place) + kind for e, q, kind in own]
        xs.append(normed("enter.norm", x))
    qkv = [affine("blocks.0.qkv", x) for x in xs]
    mixed = []
    for h in range(spec.n_heads):
        at = slice(h * size, (h + 1) * size)
        q = qkv[-1][:d][at]
        weights = [(dot(q, row[d : 2 * d][at]) / arb(size).sqrt()).exp() for row in qkv]
        total = sum(weights, arb(0))
        values = [row[2 * d :][at] for row in qkv]
        mixed += [dot(weights, column) / total for column in zip(*values, strict=True)]
    x = [a + b for a, b in zip(xs[-1], affine("blocks.0.out", mixed), strict=True)]
    x = normed("blocks.0.norm1", x)
    up = affine("blocks.0.up", x)
    hidden = [v * (1 + (v / arb(2).sqrt()).erf()) / 2 for v in up]
    x = [a + b for a, b in zip(x, affine("blocks.0.down", hidden), strict=True)]
    return dot(p["head.weight"][0], normed("blocks.0.norm2", x)) + p["head.bias"][0][0]


@pytest.mark.parametrize("folder", RUNS, ids=lambda f: f.name)
def test_single_inputs_are_bounded_around_the_real_margin(folder, rng) -> None:
    run, weights = read(folder)
    params, n = weights_of(weights), run.model.n_bits
    bits = rng.integers(0, 2, (4, n)).astype(np.int8)
    bits[0], bits[1] = 0, 1
    index = np.array([0, n - 1, n // 2, 1])
    found = bounds_for(run.model, params)(index, bits)
    assert (found.upper - found.lower < 1e-6).all()
    with ctx.workprec(256):
        for k in range(4):
            logit = logit_in_balls(run.model, params, bits[k], int(index[k]) + 1)
            true = logit if bits[k, index[k]] else -logit
            assert bool(arb(found.lower[k]) <= true)
            assert bool(true <= arb(found.upper[k]))


@pytest.mark.parametrize("folder", RUNS, ids=lambda f: f.name)
def test_no_input_of_a_node_beats_its_bounds(folder, rng) -> None:
    """From nearly free nodes, whose bounds are loose, to two free bits, all of whose inputs are
    tried and where the bounds are tight."""
    run, weights = read(folder)
    twin, n = solution(run, weights), run.model.n_bits
    bounds = bounds_for(run.model, weights_of(weights))
    gaps = []
    for free in (n - 1, n - 1, n - 3, n // 2, n // 4, 4, 2, 2, 2, 2):
        node = rng.integers(0, 2, n).astype(np.int8)
        i = int(rng.integers(n))
        others = rng.permutation(np.delete(np.arange(n), i))
        if free > n // 4:  # what is fixed lies around the index: there it matters
            others = np.array(sorted(others, key=lambda j: -abs(j - i)))
        node[others[:free]] = -1
        found = bounds(np.array([i]), node[None])
        strings = completions(node, 64, rng)
        margin = twin.margins(strings, np.full(len(strings), i + 1))
        assert found.lower[0] <= margin.min() + 1e-6
        assert found.upper[0] >= margin.max() - 1e-6
        gaps.append(margin.min() - found.lower[0])
    assert max(gaps[-4:]) < 0.2
    assert min(gaps) < 1e-3


def test_a_bit_that_a_denominator_stands_on_is_fixed_next_and_rounding_is_no_bound(rng) -> None:
    """Weights that fall by 20 orders of magnitude at one free bit, as some trained heads have it:
    m is that bit's value to the last digit, so the form says nothing but rounding."""
    run, weights = read(RUNS[0])
    bounds, (i, j) = bounds_for(run.model, weights_of(weights)), (3, 10)
    bounds.w[i, 0, :], bounds.w_bit[i, 0] = 1e-27, 1e-27
    bounds.w_bit[i, 0, :, 1] *= rng.uniform(0.5, 2, 16)
    bounds.w_bit[i, 0, j, 0] = 1e-6
    bounds.wv_bit = bounds.w_bit[..., None] * bounds.v_bit
    node = rng.integers(0, 2, 16).astype(np.int8)
    node[[j, 12, 13]] = -1
    x, _ = bounds.attention(np.array([i]), node[None])
    low, high = x.bounds()
    assert (high - low).max() < 2 * np.abs(bounds.v).max(1).sum(0).max()
    for string in completions(node, 64, rng):
        exact = bounds.attention(np.array([i]), string[None])[0].c
        assert (low - 1e-9 <= exact).all()
        assert (exact <= high + 1e-9).all()
    assert bounds(np.array([i]), node[None]).weight[0].argmax() == j


def test_another_certifier_agrees_on_a_construction() -> None:
    """Explicit weights, whose least margin an argument of theory/ knows."""
    made = ithbit.construct("rhi", "softmax-full", n=12, model="trained")
    known = ithbit.certify(made).margin
    bounds = bounds_for(made.spec, made.weights)
    bounds.slack = 1e-4
    found = search(bounds)
    assert found.outcome == "proved"
    assert known - 2e-4 < found.least_proved <= known + 1e-9
    assert abs(found.least_found - known) < 1e-9


def test_models_without_bounds_are_refused() -> None:
    run, weights = read(RUNS[0])
    params = dict(weights_of(weights))
    with pytest.raises(NoBoundsError, match="no bounds for rhi with 2 layers of gru"):
        bounds_for(ModelSpec("rhi", "gru", n_bits=4, n_layers=2), params)
    with pytest.raises(NoBoundsError, match=r"no bounds for .* and rotary"):
        bounds_for(dataclasses.replace(run.model, positions="rotary"), params)
    with pytest.raises(NoBoundsError, match="do not fit"):
        bounds_for(dataclasses.replace(run.model, d_ff=32), params)
    params["head.bias"] = np.array([np.nan])
    with pytest.raises(NoBoundsError, match="not finite"):
        bounds_for(run.model, params)
