"""The generic certifier and its parts: never above the truth, and tight where it should be."""

from itertools import product

import numpy as np
import pytest

from ithbit.theory.certificate_file import solution_from_json, weights_to_json
from ithbit.theory.certifiers.attention import Terms, attend
from ithbit.theory.certifiers.boxes import certify_boxes, output_range
from ithbit.theory.certifiers.cases import embed
from ithbit.theory.certifiers.intervals import Interval
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.gadgets import hat
from ithbit.theory.layers import ReluNet, SoftmaxAttention, matrix
from ithbit.theory.precision import smallest_margin
from ithbit.theory.solution import Embedding, Solution

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]
# What the rounding of a float enumeration may hide.
ROUNDING = 1e-9


def damaged(solution: Solution, rng: np.random.Generator, strength: float) -> Solution:
    """The solution with about a third of its numbers changed."""

    def hit(value):
        if isinstance(value, list):
            return [hit(part) for part in value]
        if isinstance(value, dict):
            return {key: hit(part) for key, part in value.items()}
        if isinstance(value, float) and rng.random() < 0.3:
            return value * (1 + strength * rng.normal()) + 0.1 * strength * rng.normal()
        return value

    return solution_from_json(
        {
            "task": solution.task,
            "family": solution.family,
            "n": solution.n_bits,
            "theorem": "none",
            "variant": "damaged",
            "weights": hit(weights_to_json(solution)),
        }
    )


def check_damages(task: str, family: str, variant: str, count: int, seed: int) -> int:
    """Certify damaged weights; returns how many true solutions the certifier failed to see."""
    rng = np.random.default_rng(seed)
    missed = 0
    for _ in range(count):
        good = construct(task, family, int(rng.integers(2, 6)), variant)
        solution = damaged(good, rng, 10.0 ** rng.uniform(-6, 0))
        with np.errstate(all="ignore"):
            truth = smallest_margin(solution)
        bound = certify_boxes(solution).margin
        assert bound <= truth + ROUNDING * max(1.0, abs(truth))
        missed += truth > ROUNDING and bound <= 0
    return missed


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_the_bound_never_exceeds_the_minimum_of_damaged_weights(task, family, variant):
    assert check_damages(task, family, variant, count=12, seed=1) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_the_bound_never_exceeds_the_minimum_of_many_damaged_weights(task, family, variant):
    assert check_damages(task, family, variant, count=300, seed=2) <= 15


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_the_bound_is_tight_on_the_constructions(task, family, variant):
    for n in (1, 2, 7):
        solution = construct(task, family, n, variant)
        truth = smallest_margin(solution)
        assert truth - 4e-8 <= certify_boxes(solution).margin <= truth + 1e-12


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_thirty_two_bits_are_certified(task, family, variant):
    assert certify_boxes(construct(task, family, 32, variant)).margin > 0.49


def test_blocks_of_cases_do_not_change_the_bound(monkeypatch):
    solutions = [construct("lhi", "linear-full", 6), construct("rhi", "softmax-full", 6)]
    whole = [certify_boxes(solution) for solution in solutions]
    monkeypatch.setattr("ithbit.theory.certifiers.boxes._BLOCK", 500)
    assert [certify_boxes(solution) for solution in solutions] == whole


def test_weights_that_overflow_certify_nothing():
    good = construct("lhi", "rnn", 3)
    content = weights_to_json(good)
    content["layers"][0]["N1"]["weights"][1][0] = [1e300] * 5
    wild = solution_from_json(
        {
            "task": "lhi",
            "family": "rnn",
            "n": 3,
            "theorem": "none",
            "variant": "wild",
            "weights": content,
        }
    )
    assert not certify_boxes(wild).margin > 0


@pytest.mark.parametrize(
    ("family", "deviation"), [("softmax-full", 0.005340008), ("linear-full", 0.026536576)]
)
def test_attention_boxes_find_the_largest_error_of_the_index(family, deviation):
    solution = construct("lhi", family, 64)
    cases = embed(solution, np.array([1, 1]), np.array([0, 1]))
    sums = attend(solution.layers[0], cases, last=False)
    tokens = cases.gather(np.array([[0], [1]]), np.arange(solution.n_tokens))
    error = sums.hi[..., 0] - tokens.hi.reshape(2, -1) + 1
    assert error[:, 2:].max() == pytest.approx(deviation, abs=2e-9)


def test_the_fractional_program_finds_the_least_average():
    rng = np.random.default_rng(0)
    for _ in range(60):
        tokens = int(rng.integers(1, 6))
        weight = np.exp(rng.normal(size=(1, tokens, 2)) * 3)
        value = rng.normal(size=(1, tokens, 2))
        possible = rng.random((1, tokens, 2)) < 0.7
        possible[0, 0, 0] = True
        choices = [
            [(w, v) for w, v, ok in zip(*token, strict=True) if ok] or [(0.0, 0.0)]
            for token in zip(weight[0], value[0], possible[0], strict=True)
        ]
        averages = [
            sum(w * v for w, v in choice) / sum(w for w, _ in choice)
            for choice in product(*choices)
        ]
        terms = Terms(Interval.point(weight), possible, np.zeros(1))
        hull = Interval(np.array([-9.0]), np.array([9.0]))
        got = terms.range(Interval.point(value), hull)
        assert got.lo[0] <= min(averages) + 1e-12
        assert got.lo[0] == pytest.approx(min(averages), abs=1e-9)
        assert got.hi[0] == pytest.approx(max(averages), abs=1e-9)


def test_the_fractional_program_covers_interval_weights_values_and_the_rest():
    rng = np.random.default_rng(1)
    for _ in range(40):
        low = np.exp(rng.normal(size=(1, 4, 2)))
        weight = Interval(low, low * (1 + rng.random(low.shape)))
        start = rng.normal(size=low.shape)
        value = Interval(start, start + rng.random(low.shape))
        terms = Terms(weight, np.ones(low.shape, bool), np.array([0.3]))
        floor = np.array([-5.0])
        bound = terms.least(value, floor)[0]
        for _ in range(200):
            bit = rng.integers(0, 2, 4)
            share = rng.random((2, 4))
            w = (weight.lo + share[0, :, None] * (weight.hi - weight.lo))[0, np.arange(4), bit]
            v = (value.lo + share[1, :, None] * (value.hi - value.lo))[0, np.arange(4), bit]
            rest = rng.random() * 0.3
            average = (w @ v + rest * -5.0) / (w.sum() + rest)
            assert bound <= average + 1e-12


def test_ranges_of_relu_nets_contain_samples():
    rng = np.random.default_rng(2)
    for _ in range(30):
        net = ReluNet(
            tuple(matrix(rng.normal(size=shape)) for shape in ((5, 3), (4, 5), (2, 4))),
            tuple(matrix(rng.normal(size=size), 1) for size in (5, 4, 2)),
        )
        low = rng.normal(size=(6, 3))
        box = Interval(low, low + rng.random((6, 3)))
        then = (matrix(rng.normal(size=(1, 2))),)
        plain, after = output_range(net, box), output_range(net, box, then)
        for _ in range(100):
            x = box.lo + rng.random(low.shape) * (box.hi - box.lo)
            y = net(x)
            assert ((plain.lo <= y + 1e-12) & (y <= plain.hi + 1e-12)).all()
            z = y @ then[0].T
            assert ((after.lo <= z + 1e-12) & (z <= after.hi + 1e-12)).all()


def test_decided_neurons_lose_nothing():
    box = Interval(np.array([[2.0], [0.0], [-0.25]]), np.array([[30.0], [0.1], [0.0]]))
    got = output_range(hat(0.5), box)
    assert (got.lo[0, 0], got.hi[0, 0]) == (0.0, 0.0)
    assert got.lo[1, 0] == pytest.approx(0.8, abs=1e-15)
    assert got.hi[1, 0] == 1.0
    assert (got.lo[2, 0], got.hi[2, 0]) == (0.5, 1.0)


def test_numbers_near_the_largest_float_are_bounded_like_any_others():
    """Twice such a number is infinite, so that its token's weight was lost with its midpoint."""
    one = SoftmaxAttention(
        False,
        matrix([[1.0]]),
        matrix([[-1e-308]]),
        matrix([[1e-308]]),
        ReluNet((matrix([[1.0]]),), (matrix([-1.1], 1),)),
    )
    bits = matrix([[[8e307], [1.5e308]]], 3)
    output = matrix([[0.0], [-1.0]])
    embedding = Embedding(matrix([[1.0]]), bits, None)
    solution = Solution("rhi", "softmax-full", 1, (one,), embedding, output, "own")
    truth = smallest_margin(solution)
    assert truth < -0.17
    assert certify_boxes(solution).margin <= truth + ROUNDING
    wide = Interval(np.array([1.5e308]), np.array([1.7e308]))
    assert 1.5e308 < wide.middle[0] < 1.7e308
