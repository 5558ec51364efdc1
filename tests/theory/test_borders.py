"""n* is exact at the border, by whole numbers, and has an answer at every size."""

from math import floor

import pytest
from tests.support import slow_borders as slow
from tests.theory.test_bounds import TABLE

from ithbit.errors import IthbitError
from ithbit.theory.architecture import FORMAL_FAMILIES, TRAINED_FAMILIES, architecture
from ithbit.theory.bounds import all_routes
from ithbit.theory.bounds.borders import excluded
from ithbit.theory.bounds.cited import vc_with_exponentials
from ithbit.theory.bounds.counting import Stage, n_star
from ithbit.theory.bounds.stages import stages


def is_border(stage_list, polynomial):
    """n* is not excluded and n* + 1 is, in whole numbers and in balls."""
    star = n_star(stage_list, polynomial)
    for check in (slow.excluded, excluded):
        assert not check(stage_list, star, polynomial)
        assert check(stage_list, star + 1, polynomial)
        assert check(stage_list, 3 * star + 7, polynomial)


@pytest.mark.parametrize("polynomial", ["bezout", "warren"])
def test_the_table_is_exact_at_its_borders(polynomial):
    for task, family, sizes, numbers in TABLE:
        for n_layers in range(1, len(numbers) + 1):
            is_border(stages(task, architecture(family, n_layers=n_layers, **sizes)), polynomial)


# Borders that lie within rounding error of a double.
CLOSE = [
    ("linear-causal", {"heads": 2, "n_layers": 8, "width": 22, "hidden": 2, "activation": "relu"}),
    ("linear-causal", {"heads": 2, "n_layers": 5, "width": 20, "hidden": 200}),
    ("mamba2", {"heads": 3, "n_layers": 8, "width": 18, "state": 5}),
    ("mamba2", {"heads": 1, "n_layers": 3, "width": 171, "state": 5}),
    ("gru", {"n_layers": 8, "width": 165}),
    ("gru", {"n_layers": 8, "width": 135}),
]


@pytest.mark.parametrize(("family", "sizes"), CLOSE)
def test_borders_that_doubles_cannot_tell(family, sizes):
    is_border(stages("rhi", architecture(family, "trained", **sizes)), "bezout")


@pytest.mark.parametrize("degree", [1, 2, 3, 16])
@pytest.mark.parametrize("parameters", [1, 2, 5, 300])
@pytest.mark.parametrize("tests", [1, 2, 7])
def test_small_stages_are_exact_at_their_borders(parameters, tests, degree):
    for polynomial in ("bezout", "warren"):
        is_border((Stage("a", parameters, tests, degree),), polynomial)
        is_border((Stage("a", 2, 3), Stage("b", parameters, tests, degree)), polynomial)
    is_border((Stage("k", parameters, tests, degree, 1, 1, 2, 2),), "bezout")


def test_n_star_grows_with_every_number_of_a_stage():
    base = {"parameters": 3, "tests": 2, "degree": 2, "implicit": 2, "chain": 1, "shared_chain": 1}
    least = n_star((Stage("k", **base, chain_degree=1),))
    for name in base:
        assert n_star((Stage("k", **base | {name: base[name] + 1}, chain_degree=1),)) > least
    assert n_star((Stage("k", **base, chain_degree=2),)) > least


def test_the_cited_theorem_is_rounded_in_whole_numbers():
    for p, t, q in ((16, 3345, 48), (1, 5, 4), (7, 10**9, 3), (10**5, 10**9, 10**6)):
        u = p * (q + 1)
        forms = []
        for first, x, factor in (
            (t * t * p * p, 9 * p, 19 * t * t * p),
            (u * u + 11 * u * t, 9 * u, 11 * u),
        ):
            low, high = (factor * bound >> slow.SCALE for bound in slow.log2_bounds(x))
            assert low == high
            forms.append(first + low)
        assert vc_with_exponentials(p, t, q) == min(forms)
    assert floor(slow.log2_bounds(9)[0] / 2**slow.SCALE * 10**6) == 3169925


EXTREME = [
    {"width": 10**6},
    {"width": 10**12, "heads": 10**12},
    {"width": 10**12, "hidden": 10**12, "state": 10**12, "heads": 10**6, "n_layers": 7},
    {"n_layers": 10**6},
    {"width": 1, "heads": 1, "state": 10**12},
    {"width": 1, "heads": 1, "hidden": 10**12},
    {"conv": 10**12},
]


@pytest.mark.parametrize("sizes", EXTREME)
def test_every_size_has_a_number_or_a_sentence(sizes):
    numbers = 0
    for model, families in (("formal", FORMAL_FAMILIES), ("trained", TRAINED_FAMILIES)):
        for family in families:
            for task in ("rhi", "lhi"):
                try:
                    routes = all_routes(task, architecture(family, model, **sizes))
                except IthbitError:
                    continue  # a sentence
                assert all(type(route.n_star) is int and route.n_star >= 0 for route in routes)
                numbers += len(routes)
    assert numbers or sizes == {"n_layers": 10**6}
