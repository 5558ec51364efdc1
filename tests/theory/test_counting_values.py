"""The counting theorem for V values: Lemma 1 against brute force, borders in whole numbers."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from random import Random

import numpy as np
import pytest

import ithbit
from ithbit.theory.architecture import architecture
from ithbit.theory.bounds.accuracy import accuracy_bound
from ithbit.theory.bounds.borders import excluded
from ithbit.theory.bounds.counting import Stage, cells, log2_winners, n_star
from ithbit.theory.bounds.stages import stages


def solved(rows, right):
    """The solution of a square linear system in fractions, or None if it is singular."""
    a = [[*map(Fraction, row), Fraction(b)] for row, b in zip(rows, right, strict=True)]
    size = len(a)
    for k in range(size):
        pivot = next((i for i in range(k, size) if a[i][k]), None)
        if pivot is None:
            return None
        a[k], a[pivot] = a[pivot], a[k]
        a[k] = [x / a[k][k] for x in a[k]]
        for i in range(size):
            if i != k:
                a[i] = [x - a[i][k] * y for x, y in zip(a[i], a[k], strict=True)]
    return [row[-1] for row in a]


def winners(slopes, offsets):
    """All vectors of strict winners of units of affine functions on R^p, for general position.

    Every cell of an arrangement whose normals span R^p has a vertex, and the cells at a vertex are
    found by moving a little off the hyperplanes that meet there."""
    p, found = len(slopes[0][0]), set()
    planes = [
        ([x - y for x, y in zip(unit[v], unit[w], strict=True)], off[w] - off[v])
        for unit, off in zip(slopes, offsets, strict=True)
        for v, w in combinations(range(len(unit)), 2)
    ]
    small = Fraction(1, 10**12)
    for chosen in combinations(planes, p):
        for signs in product((-1, 1), repeat=p):
            shifted = [b + sign * small for (_, b), sign in zip(chosen, signs, strict=True)]
            theta = solved([row for row, _ in chosen], shifted)
            if theta is None:
                continue
            vector = []
            for unit, off in zip(slopes, offsets, strict=True):
                values = [
                    sum(x * y for x, y in zip(row, theta, strict=True)) + b
                    for row, b in zip(unit, off, strict=True)
                ]
                vector.append(values.index(max(values)))
            found.add(tuple(vector))
    return found


@pytest.mark.parametrize(("p", "n", "V"), [(1, 2, 3), (1, 3, 4), (2, 2, 3), (2, 3, 3), (3, 3, 2)])
def test_lemma_1_against_every_cell_of_an_arrangement(p, n, V):
    random, bound, most = Random(1), cells(n, p, V), 0
    for draw in range(6):
        if draw % 2:  # tangents of a paraboloid: each of the V functions wins somewhere
            points = [
                [[random.randint(-99, 99) for _ in range(p)] for _ in range(V)] for _ in [0] * n
            ]
            slopes = [[[2 * x for x in point] for point in unit] for unit in points]
            offsets = [[-sum(x * x for x in point) for point in unit] for unit in points]
        else:
            slopes = [
                [[random.randint(-50, 50) for _ in range(p)] for _ in range(V)] for _ in [0] * n
            ]
            offsets = [[random.randint(-50, 50) for _ in range(V)] for _ in range(n)]
        count = len(winners(slopes, offsets))
        assert count <= bound
        most = max(most, count)
    assert most > bound // 2


def test_lemma_1_is_attained_on_a_line():
    slopes = [[[k] for k in range(3)] for _ in range(4)]
    offsets = [[-(k * k) - 7 * q * k for k in range(3)] for q in range(4)]
    assert len(winners(slopes, offsets)) == cells(4, 1, 3) == 1 + 4 * 2


@pytest.mark.parametrize("V", [3, 16, 4096, 10**9])
@pytest.mark.parametrize(("n", "p"), [(7, 2), (40, 16), (400, 300), (600, 540), (300, 299)])
def test_doubles_and_whole_numbers_agree(n, p, V):
    exact = sum(math.comb(n, r) * (V - 1) ** r for r in range(p + 1))
    assert cells(n, p, V) == exact
    by_doubles = log2_winners(n, p, V)
    assert -1e-6 < by_doubles - math.log2(exact) < 1.001


def by_whole_numbers(stage_list, n):
    """Whether V^n exceeds the number of answers, for affine stages; the definition once more."""
    count = 1
    for stage in stage_list:
        u, units = stage.values - 1, n * stage.tests
        count *= sum(math.comb(units, r) * u**r for r in range(min(stage.parameters, units) + 1))
    return count < stage_list[-1].values ** n


AFFINE = [("rnn", {}), ("ssm", {"transition": "constant"}), ("ssm", {}), ("linear-causal", {})]
STUDIED = {  # width 16, hidden 64, one layer: n* at V = 2, 16, 256, 4,096 and 65,536
    ("rnn", ""): (487, 111, 58, 42, 34),
    ("ssm", "constant"): (264, 64, 37, 28, 25),
    ("ssm", ""): (264, 64, 37, 28, 25),
    ("linear-causal", ""): (4616, 1134, 644, 501, 435),
}


@pytest.mark.parametrize(("family", "sizes"), AFFINE)
def test_n_star_is_exact_and_falls_with_the_number_of_values(family, sizes):
    arch = architecture(family, **sizes)
    found = []
    for V in (2, 16, 256, 4096, 65_536):
        counted = stages("rhi", arch, V)
        star = n_star(counted)
        if star < 1_000:
            assert not by_whole_numbers(counted, star)
            assert by_whole_numbers(counted, star + 1)
        found.append(star)
    assert tuple(found) == STUDIED[family, sizes.get("transition", "")]


@pytest.mark.parametrize("V", [3, 10, 4096])
def test_borders_at_awkward_sizes(V):
    for hidden, p in ((1, 1), (3, 7), (2, 300)):
        counted = (Stage("a", p, hidden), Stage("b", p, 1, values=V))
        star = n_star(counted)
        assert not excluded(counted, star, "bezout")
        assert excluded(counted, star + 1, "bezout")
        assert not by_whole_numbers(counted, star)
        assert by_whole_numbers(counted, star + 1)
    assert n_star((Stage("b", 700, 1, values=V),)) == 700


@pytest.mark.parametrize("family", ["rnn", "ssm", "linear-causal", "softmax-full"])
def test_more_values_never_weaken_a_bound(family):
    task = "lhi" if family == "softmax-full" else "rhi"
    depths = (1,) if task == "lhi" else (1, 2, 3)
    for n_layers in depths:
        for heads in (1, 2):
            arch = architecture(family, n_layers=n_layers, heads=heads, feature="relu")
            stars = [n_star(stages(task, arch, V)) for V in (2, 3, 5, 16, 4096, 10**6, 10**9)]
            assert stars == sorted(stars, reverse=True)


def test_affine_layers_hold_one_value_for_each_number():
    for family, task, V, star in [
        ("ssm", "rhi", 4096, 16),
        ("rnn", "rhi", 4096, 16),
        ("rnn", "rhi", 5, 4),  # only four differences of logits
        ("linear-causal", "rhi", 4096, 16 * 17),
        ("linear-causal", "rhi", 2, 32),
        ("softmax-full", "lhi", 3, 3),
        ("ssm", "lhi", 3, 2 * 17),
    ]:
        assert ithbit.bound(task, family, ff=0, values=V).n_star == star, family


def test_accuracy_is_the_formula_and_an_upper_bound():
    for V, n, p in ((2, 60, 5), (3, 40, 4), (16, 30, 6)):
        one = (Stage("readout", p, 1, values=V),)
        vectors = cells(n, p, V)
        tail, exact = Fraction(0), Fraction(0)
        for k in range(n, 0, -1):
            tail += math.comb(n, k) * Fraction(V - 1) ** (n - k) / Fraction(V) ** n
            exact += min(Fraction(1), vectors * tail)
        exact /= n
        found = accuracy_bound(one, n)
        assert exact <= found < exact + Fraction(2, n)


@pytest.mark.parametrize(("n", "V"), [(10, 2), (16, 2), (6, 8), (4, 16)])
def test_no_affine_class_on_a_line_is_more_accurate_than_the_bound(n, V):
    """The best of all answer vectors for each of the V^n tables, on average."""
    points = np.arange(-1.0, 3 * n * V)[:, None, None] + 0.5
    k, q = np.arange(V), np.arange(n)[:, None]
    vectors = np.unique((2 * k * points - k * (k + 2 * q * V)).argmax(2), axis=0)
    assert len(vectors) == cells(n, 1, V) == 1 + n * (V - 1)
    right = np.zeros((len(vectors), *(V,) * n), np.int8)
    for place in range(n):
        shape = [len(vectors), *(V if axis == place else 1 for axis in range(n))]
        right += (vectors[:, place, None] == k).reshape(shape)
    best = right.max(0).mean() / n
    assert 1 / V < best <= accuracy_bound((Stage("readout", 1, 1, values=V),), n) < 1


@pytest.mark.parametrize(
    ("family", "width", "accuracies"),
    [
        ("rnn", 16, (0.751, 0.461, 0.274, 0.165, 0.098)),
        ("ssm", 16, (0.579, 0.346, 0.208, 0.124, 0.074)),
        ("softmax-full", 16, (0.61, 0.365, 0.217, 0.129, 0.077)),
        ("softmax-full", 64, (1, 0.957, 0.598, 0.359, 0.214)),
    ],
)
def test_accuracies_of_the_tables(family, width, accuracies):
    for n, most in zip((64, 128, 256, 512, 1024), accuracies, strict=True):
        found = ithbit.bound("mqar", family, width=width, values=4096, n=n).accuracy
        assert (1 if found is None else found) <= most + 5e-4


def test_accuracy_falls_to_chance():
    counted = stages("rhi", architecture("rnn"), 16)
    found = [accuracy_bound(counted, 10**k) for k in range(1, 13)]
    assert found == sorted(found, reverse=True)
    assert 1 / 16 < found[-1] < 0.0626


def test_a_stage_with_pairs_counts_every_two_values():
    two = Stage("readout", 3, 1, degree=2)
    assert (two.signs(7), replace(two, values=5).signs(7)) == (7, 7 * 10)
    assert not replace(two, values=5).winners
    assert replace(two, degree=1, values=5).winners
