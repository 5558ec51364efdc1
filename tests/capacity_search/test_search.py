"""The search by made-up outcomes: what it claims was run, and the bracket is as narrow as asked."""

import itertools
import random
from collections.abc import Callable

import pytest

from ithbit.capacity_search.search import (
    Bracket,
    LengthResult,
    SearchSettings,
    Try,
    bracket,
    judge,
    next_length,
    replay,
)
from ithbit.errors import SpecError

ASK = SearchSettings(most_n=256)
Truth = Callable[[int, float, int], bool]  # length, rate, seed: whether the run succeeds


def searched(
    truth: Truth, ask: SearchSettings = ASK
) -> tuple[tuple[LengthResult, ...], dict[int, dict[Try, bool]]]:
    """Run what is wanted until nothing is; the end, and all runs."""
    ended: dict[int, dict[Try, bool]] = {}
    for _ in range(10_000):
        tried, trying, wanted = replay(lambda n: ended.get(n, {}), ask)
        if trying is None:
            return tried, ended
        assert wanted
        for rate, seed in wanted:
            assert (rate, seed) not in ended.get(trying, {})  # nothing is run twice
            ended.setdefault(trying, {})[rate, seed] = truth(trying, rate, seed)
    raise AssertionError("the search does not end")


def up_to(limit: int) -> Truth:
    return lambda n, rate, seed: n <= limit


def chance(seed: int) -> Truth:
    """Runs stand with a chance that falls with n, or at random: nothing is monotone."""
    draw = random.Random(seed)
    scale, wild = draw.choice((2, 10, 60, 400)), draw.random() < 0.3
    drawn: dict[tuple[int, float, int], bool] = {}

    def truth(n: int, rate: float, number: int) -> bool:
        odds = 0.7 if wild else scale / (scale + n) * draw.random() * 2
        return drawn.setdefault((n, rate, number), draw.random() < odds)

    return truth


def check(
    tried: tuple[LengthResult, ...], ended: dict[int, dict[Try, bool]], ask: SearchSettings
) -> Bracket:
    """What must hold of every end, by the runs alone."""
    ends = bracket({each.n: each.solved for each in tried})
    low, high = ends.low, ends.high
    assert {each.n for each in tried} <= set(ended)
    assert max(ended) <= ask.most_n
    if low is not None:
        assert any(
            sum(ended[low].get((rate, seed), False) for seed in ask.seeds) >= ask.need
            for rate in ask.rates
        )
    if high is not None:
        for rate in ask.rates:  # at every rate so many fell that the rest could not make it good
            fell = sum(not ended[high].get((rate, seed), True) for seed in ask.seeds)
            assert fell > len(ask.seeds) - ask.need
        assert low is None or low < high <= max(ask.factor * low, low + 1)
        assert low is not None or high == 1
    else:
        assert low == ask.most_n
    return ends


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 11, 12, 33, 100, 255, 256, 10_000])
def test_a_sharp_limit_is_within_the_bracket(limit) -> None:
    found, ended = searched(up_to(limit))
    ends = check(found, ended, ASK)
    assert (ends.low or 0) <= limit
    assert ends.high is None or limit < ends.high


@pytest.mark.parametrize(
    "ask",
    [
        ASK,
        SearchSettings(need=5),
        SearchSettings(rates=(0.1,), seeds=(3,), need=1, most_n=9),
        SearchSettings(factor=2, start=1, most_n=256),
    ],
)
def test_whatever_the_outcomes_it_ends_and_claims_what_was_run(ask) -> None:
    for seed in range(100):
        check(*searched(chance(seed), ask), ask)


def test_few_runs_decide() -> None:
    """On the way two seeds a length; five at the lower end, six at the upper one."""
    _, ended = searched(up_to(40))
    assert {n: len(runs) for n, runs in ended.items()} == {
        **{8: 2, 16: 2, 32: 2, 64: 2},
        **{38: 5, 45: 6},
    }


def test_a_lower_end_that_does_not_hold_is_left_for_a_shorter_length() -> None:
    """The first two seeds stand up to 64, the others up to 20 alone."""
    found, ended = searched(lambda n, rate, seed: n <= (64 if seed < 2 else 20))
    ends = check(found, ended, ASK)
    assert ends.low is not None
    assert ends.low <= 20 < (ends.high or 0)


def test_the_best_rate_counts() -> None:
    tried, _ = searched(lambda n, rate, seed: n <= {0.001: 4, 0.003: 10, 0.01: 60}[rate])
    low = bracket({each.n: each.solved for each in tried}).low
    assert low is not None
    assert 48 <= low <= 60
    assert {each.n: each.rate for each in tried}[low] == 0.01


def test_no_shorter_length_is_tried_before_all_rates_had_their_turn_at_the_first() -> None:
    _, ended = searched(lambda n, rate, seed: rate == 0.01 and n <= 60)
    assert min(ended) == ASK.start


def test_a_solved_length_above_a_failed_one_counts() -> None:
    assert bracket({8: True, 16: False, 32: True, 64: False}) == Bracket(32, 64)
    assert next_length({8: True, 16: False, 32: True, 40: False}, ASK) is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_in_which_order_runs_end_changes_no_verdict(order) -> None:
    """Of runs that were all wanted at once, those that have ended never decide against the rest."""
    ask = SearchSettings(rates=(0.1, 0.2), seeds=(0, 1, 2), need=2)
    outcomes = [((0.1, 0), False), ((0.1, 1), False), ((0.2, 0), True), ((0.2, 1), True)]
    seen: dict[Try, bool] = {}
    for at in order:
        assert judge(seen, ask, 0.1).solved in (None, True)
        seen |= dict([outcomes[at]])
    assert judge(seen, ask, 0.1).solved is True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates": ()}, "give every learning rate once, and at least one, got []"),
        ({"seeds": (1, 1)}, "give every seed once, and at least one, got [1, 1]"),
        ({"need": 6}, "need must be from 1 to the number of seeds, got 6"),
        ({"factor": 1.0}, "the factor must be above 1, got 1"),
        ({"start": 9, "most_n": 8}, "got start = 9 and most_n = 8"),
    ],
)
def test_what_cannot_be_asked_is_refused(given, said) -> None:
    with pytest.raises(SpecError) as error:
        SearchSettings(**given)
    assert said in str(error.value)
