"""A bound that is NaN, inverted or infinite on the wrong side is no bound, by its type."""

import numpy as np
import pytest
from flint import arb
from tests.support.exact import Exact
from tests.support.fuzz import model

from ithbit.spec import ModelSpec
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.two_layers_balls import TwoAttentionLayers
from ithbit.verification.proofs.affine_forms import Form, gelu, gelu_value, layer_norm, with_own
from ithbit.verification.proofs.attention import separable_ratio
from ithbit.verification.proofs.bands import STEP, bands_of, everything
from ithbit.verification.proofs.interface import NoBoundsError, NodeBounds
from ithbit.verification.proofs.kinds import bounds_for, kind_of
from ithbit.verification.proofs.one_layer import OneSoftmax, _deviation, _linear, _normed
from ithbit.verification.proofs.single_inputs import mapping
from ithbit.verification.proofs.token_balls import exact, floats

NAN, INF = np.nan, np.inf


def test_bounds_of_nodes_are_normalised() -> None:
    lower = np.array([1, NAN, 1, 2, INF, -INF, -INF, 5, NAN])
    upper = np.array([2, 1, NAN, 1, INF, -INF, 3, 4, NAN])
    hints, empty = np.zeros((9, 2)), np.arange(9) >= 7
    found = NodeBounds(lower, upper, hints, hints, empty)
    assert found.lower.tolist() == [1, -INF, -INF, -INF, -INF, -INF, -INF, INF, INF]
    assert found.upper.tolist() == [2, INF, INF, INF, INF, INF, 3, -INF, -INF]


@pytest.mark.parametrize("e", [-1e-300, -1.0, NAN, INF])
@pytest.mark.parametrize("own", [False, True])
def test_a_form_with_an_error_that_is_none_has_no_bounds(e, own) -> None:
    c, G, error = np.zeros((2, 1)), np.ones((2, 1, 1)), np.array([[e], [0.5]])
    x = with_own(Form(c, G, 0 * c), error) if own else Form(c, G, error)
    low, high = x.bounds()
    assert (low[0, 0], high[0, 0]) == (-INF, INF)
    assert -1.5 - 1e-9 < low[1, 0] <= -1.5 < 1.5 <= high[1, 0] < 1.5 + 1e-9


@pytest.mark.parametrize("c", [NAN, INF, -INF, 1e308])
def test_a_form_that_overflowed_has_no_bounds(c) -> None:
    x = Form(
        np.array([[c, 1.0]]), np.full((1, 2, 1), 1e308 if c == 1e308 else 1.0), np.zeros((1, 2))
    )
    with np.errstate(all="ignore"):
        outs = [x, layer_norm(x, np.ones(2), np.zeros(2), 1e-12), gelu(x)]
        for out in outs[:1] if c == 1e308 else outs:
            low, high = out.bounds()
            assert (low[0, 0], high[0, 0]) == (-INF, INF)


def test_a_gelu_beside_an_unknown_one_is_right() -> None:
    x = np.array([20.0, NAN, -20.0, 0.5])
    with np.errstate(all="ignore"):
        value = gelu_value(x)
        form = gelu(Form(x[:, None], np.ones((4, 1, 1)), np.zeros((4, 1))))
    assert value[0] == 20
    assert np.isnan(value[1])
    assert value[2] == 0
    low, high = form.bounds()
    assert (low[1, 0], high[1, 0]) == (-INF, INF)
    assert 18.9 < low[0, 0] <= 19 < 21 <= high[0, 0] < 21.1


def test_ratios_without_a_positive_denominator_are_unknown() -> None:
    weight, value = np.array([[1e-285], [1.0]]), np.ones((2, 1, 1))
    pair = weight[..., None] * value
    zero = np.zeros((2, 1))
    found = separable_ratio((weight, weight), (pair, pair), zero[:, 0], zero, zero, np.arange(1))
    assert np.isnan(found.e[0])
    assert np.isnan(found.rest[0])
    assert np.isnan(found.least[0])
    assert found.e[1, 0] < 1e-12


def test_rounding_of_other_tokens_counts_where_they_cancel() -> None:
    """Two tokens whose weighted values cancel leave their rounding, not that of their sum."""
    w, x = np.ones((1, 1)), np.zeros((1, 1, 1))
    fixed, cancelled, sizes = np.full(1, 2.0), np.full((1, 1), 1e-9), np.full((1, 1), 1e6)
    found = separable_ratio((w, w), (x, x), fixed, cancelled, sizes, np.arange(1))
    assert found.e[0, 0] > 1e6 * 2.0**-53 / 3


def test_empty_bands_are_decided_in_whole_steps() -> None:
    """A band that a string reaches at its very end is not empty; one step further, it is."""
    functionals = np.array([[1.0, -0.5, STEP], [0.25, 1.0, 3 * STEP]])
    bits, free = np.full((4, 3), -1), np.arange(3)
    most = np.abs(functionals[0]).sum()
    limits = everything(functionals, 4)
    limits[0, 0] = most, most + 1
    limits[1, 0] = most + STEP, most + 1
    limits[2, 0] = -most, -most
    limits[3, :, 0] = most, np.abs(functionals[1]).sum()  # each is reached, but not both
    found = bands_of(functionals, limits, bits, free)
    assert found.empty.tolist() == [False, True, False, True]


@pytest.mark.parametrize("wrong", [NAN, INF, 0.3 * STEP, 2.0**40])
def test_functionals_and_limits_are_whole_steps(wrong) -> None:
    spec, params = _two()
    functionals = np.ones((1, 2))
    functionals[0, 0] = wrong
    with pytest.raises(NoBoundsError, match="functionals are not whole steps"):
        bounds_for(spec, params, functionals)
    bounds = bounds_for(spec, params, np.ones((1, 2)))
    limits = everything(bounds.functionals, 1)
    limits[0, 0, 0] = wrong
    with pytest.raises(NoBoundsError, match="limits are not whole steps"):
        bounds(np.array([0]), np.array([[1, -1]], np.int8), limits)


def _two() -> tuple[ModelSpec, dict[str, np.ndarray]]:
    spec = ModelSpec("rhi", "linear-full", 2, 2, d_model=2, n_heads=1, d_ff=1)
    rng = np.random.default_rng(0)
    return spec, {name: rng.normal(size=shape) for name, shape in shapes(spec).items()}


def test_norms_of_tiny_maps_are_no_smaller_than_they_are() -> None:
    """Squares of these entries underflow."""
    weight = np.array([[1e-170, 0], [0, 3e-171]])
    assert 1e-170 <= mapping(weight).norm < 1.2e-170
    assert mapping(np.zeros((2, 2))).norm == 0


def test_values_that_underflow_could_hide_behind_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="too large for the error terms"):
        floats(exact(np.array([[1e60, 1.0]])))


def test_indices_beyond_a_byte_are_bounded() -> None:
    n = 130
    spec = ModelSpec("rhi", "softmax-full", n, 1, d_model=2, n_heads=1, d_ff=1)
    rng = np.random.default_rng(1)
    params = {name: rng.normal(size=shape) for name, shape in shapes(spec).items()}
    bounds, bits = OneSoftmax(spec, params), rng.integers(0, 2, (2, n)).astype(np.int8)
    index = np.array([129, 3], np.uint8)
    found = bounds(index, bits)
    for k in range(2):
        true = Exact(spec, params).margin(int(index[k]), bits[k].tolist())
        assert bool(arb(found.lower[k]) <= true)
        assert bool(true <= arb(found.upper[k]))
        assert found.upper[k] - found.lower[k] < 1e-6


@pytest.mark.parametrize(
    "family", [pytest.param("softmax-causal", marks=pytest.mark.slow), "linear-full"]
)
def test_so_are_those_of_two_layers(family) -> None:
    """By the search, at one string and with all bits free, and by the second implementation."""
    n = 130
    spec = ModelSpec("lhi", family, n, 2, d_model=2, n_heads=1, d_ff=1)
    rng = np.random.default_rng(1)
    params = {name: rng.normal(size=shape) for name, shape in shapes(spec).items()}
    bits = rng.integers(0, 2, n).astype(np.int8)
    true = Exact(spec, params).margin(129, bits.tolist())
    free = np.full(n, -1, np.int8)
    free[129] = bits[129]
    found = bounds_for(spec, params)(np.array([129, 129]), np.stack([bits, free]))
    check = TwoAttentionLayers(spec, params)
    ends = [check._ends(129, each.tolist()) for each in (bits, free)]
    for low, high in [*zip(found.lower, found.upper, strict=True), *ends]:
        assert bool(arb(low) <= true)
        assert bool(true <= arb(high))
    assert ends[0][1] - ends[0][0] < 1e-6
    assert found.upper[0] - found.lower[0] < 1e-6


@pytest.mark.parametrize("number", range(8))
def test_weights_that_are_not_finite_have_no_bounds(number) -> None:
    spec, params, _ = model(np.random.default_rng(number), "infinite")
    with pytest.raises(NoBoundsError, match="not finite"):
        bounds_for(spec, params)


def test_deviations_in_float32_are_not_made_of_rounding() -> None:
    """Equal numbers have no deviation, however large they are."""
    c = np.full((60, 3), 10.0 ** np.linspace(0, 17, 60)[:, None] + 0.1)
    least = _deviation(Form(c, np.zeros((60, 3, 0)), np.zeros((60, 3))))
    assert (least <= 1e-6).all()


def test_float32_has_no_bounds_where_it_may_overflow() -> None:
    """Squares in norms, and sums of products."""
    x = Form(np.array([[1e19, -1e19], [1.0, -1.0]]), np.zeros((2, 2, 0)), np.zeros((2, 2)))
    with np.errstate(all="ignore"):
        low, high = _normed(x, np.ones(2), np.zeros(2)).bounds()
    assert (low[0, 0], high[0, 0]) == (-INF, INF)
    assert 0.9 < low[1, 0] <= 1 <= high[1, 0] < 1.1
    off = _linear(np.array([[1e20], [1.0]]), np.array([[1e20]]), np.zeros(1))
    assert off[0, 0] == INF
    assert off[1, 0] < 1e14


def test_a_layer_of_the_user_has_no_bounds_whatever_its_name() -> None:
    spec = ModelSpec("rhi", "softmax.py:Mine", 4, code="0123456789ab")
    assert kind_of(spec) is None
    with pytest.raises(NoBoundsError, match="there are no bounds"):
        bounds_for(spec, {})
