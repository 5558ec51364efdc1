"""The ends of ratios of sums that the second implementation of two layers uses, against all strings
in fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.support.fuzz_ratio_ends import DIMS, KINDS, compare, draw, ratios

from ithbit.verification.checks import affine_sets
from ithbit.verification.checks.two_layers_balls import TwoAttentionLayers


@pytest.mark.parametrize("bits", [1, 3, 6])
@pytest.mark.parametrize("seed", range(12))
def test_ends_are_those_of_all_strings(seed, bits) -> None:
    """No string beats them, and one comes within rounding of each."""
    rng = np.random.default_rng([seed, bits])
    case = draw(rng, bits)
    sums = case.sums()
    low, high = affine_sets.ratio_ends(sums, case.start())
    for dim in range(DIMS):
        for side in (1, -1):
            every = ratios(*case.exact(dim, side))
            assert Fraction(low[0, dim]) <= min(every)
            assert max(every) <= Fraction(high[0, dim])
        size = float(max(abs(case.v[..., dim]).max(), abs(case.fixed_v[:, dim]).max()))
        assert float(min(every)) - low[0, dim] <= 1e-11 * size + 1e-22
        assert high[0, dim] - float(max(every)) <= 1e-11 * size + 1e-22


def test_no_kind_of_weights_beats_them() -> None:
    violations: list[str] = []
    for number in range(300):
        compare(np.random.default_rng([17, number]), violations.append)
    assert not violations
    assert {str(np.random.default_rng([17, k]).choice(KINDS)) for k in range(300)} == set(KINDS)


def test_what_is_not_known_has_no_ends() -> None:
    case = draw(np.random.default_rng(0), 3)
    sums, start = case.sums(), case.start()
    for wrong in (np.nan, np.inf):
        w = sums.w.copy()
        w[0, 0, 1] = wrong
        with np.errstate(all="ignore"):
            low, high = affine_sets.ratio_ends(replace(sums, w=w), start)
        assert not (np.isfinite(low) | np.isfinite(high)).any()


def _one_slot_model(w: np.ndarray, v: np.ndarray) -> TwoAttentionLayers:
    model = object.__new__(TwoAttentionLayers)
    model.n, model.heads, model.softmax, model.extra = 3, 1, True, 0.0
    model.w, model.v = [w], [v]
    return model


def test_a_token_that_sees_light_tokens_alone_is_known() -> None:
    """Three bits whose ones weigh 10^12 times what their zeros weigh, all of nearly one value: the
    set of the query's token is as narrow as the values, not three times as wide or more."""
    w = np.ones((9, 9))
    w[:, 3:6] = 1e12
    v = np.linspace(-1, 1, 9)[:, None]
    slots, free = np.array([0, 1, 2, 3, 4, 5, 6]), np.arange(3)
    found = _one_slot_model(w, v)._first(slots, free, np.array([6]))
    # At the query: all bits 0 give the mean of v[0:3] and v[6]; else between those of ones.
    exact = []
    for string in np.ndindex(2, 2, 2):
        at = [j + 3 * b for j, b in enumerate(string)] + [6]
        weights = [Fraction(x) for x in w[6, at].tolist()]
        terms = sum(a * Fraction(b) for a, b in zip(weights, v[at, 0].tolist(), strict=True))
        exact.append(float(terms / sum(weights)))
    low, high = found.c[6, 0] - found.radius[6, 0], found.c[6, 0] + found.radius[6, 0]
    assert low <= min(exact)
    assert max(exact) <= high
    assert high - low <= (max(exact) - min(exact)) * (1 + 1e-9)


def test_weights_of_one_size_keep_their_form() -> None:
    """A form knows which bits move it; there is no search for ends then."""
    rng = np.random.default_rng(3)
    w, v = rng.uniform(1, 1.2, (9, 9)), rng.normal(size=(9, 2))
    slots, free = np.arange(7), np.arange(3)
    found = _one_slot_model(w, v)._first(slots, free, np.array([6]))
    moved, rest = np.abs(found.G[6, :, :3]), np.abs(found.G[6, :, 3:])
    assert (moved.sum(-1) > rest.sum(-1)).all()
