"""Which n to try next, and which runs settle it: pure functions of the outcomes so far.

A length is *solved* if at least `need` seeds succeed at one learning rate, and *failed* if no rate
can get there any more. The search doubles n while it is solved, halves it while nothing is, and
then takes geometric means until the solved and the failed length are within `factor`. On the way a
few runs are enough to go on: the first seeds, and, once a rate has solved a length, that rate only.
At the end both ends of the bracket are judged in full, the lower one first; if one does not hold,
the search continues from there. If outcomes are not monotone in n, the largest solved one counts,
and the bracket ends at the first failed one above it; nothing is claimed about any other length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ithbit.errors import check_numbers, raise_problems

RATES = (1e-3, 3e-3, 1e-2)
MOST_N = 512

Try = tuple[float, int]  # learning rate, seed


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search, checked on construction."""

    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    need: int = 4  # seeds that must succeed, at one rate
    factor: float = 1.25
    start: int = 8
    most_n: int = MOST_N

    def __post_init__(self) -> None:
        check_numbers("capacity", self)
        problems = [
            f"give every {name} once, and at least one, got {list(values)}"
            for name, values in (("learning rate", self.rates), ("seed", self.seeds))
            if not values or len(set(values)) != len(values)
        ]
        if not 1 <= self.need <= max(1, len(self.seeds)):
            problems.append(f"need must be from 1 to the number of seeds, got {self.need}")
        if not 1 < self.factor < math.inf:
            problems.append(f"the factor must be above 1, got {self.factor:g}")
        if not 1 <= self.start <= self.most_n:
            problems.append(
                f"start must be from 1 to most_n, got start = {self.start} and most_n = "
                f"{self.most_n}"
            )
        raise_problems("capacity", problems)


@dataclass(frozen=True)
class LengthJudgement:
    """The judgement of one length: solved, failed, or None with the runs to train next.

    `rate` is the learning rate at which most seeds succeed.
    """

    solved: bool | None
    rate: float
    wanted: tuple[Try, ...] = ()


def judge(
    succeeded: Mapping[Try, bool],
    ask: SearchSettings,
    favourite: float,
    sure: bool = True,
    trusted: bool = False,
) -> LengthJudgement:
    """Judge a length by its runs that have ended; `succeeded` says whether each of them did.

    Few runs decide. At the favourite rate, just enough seeds to rule it out go first; the others
    follow if it is still possible, and other rates only if it is ruled out. Unless `sure` is set, a
    length counts as solved when those first seeds all succeed, and as failed when a `trusted`
    favourite is ruled out: enough to go on to other lengths.

    >>> ask = SearchSettings(rates=(0.001, 0.01), seeds=(0, 1, 2), need=2)
    >>> judge({}, ask, 0.01).wanted
    ((0.01, 0), (0.01, 1))
    >>> judge({(0.01, 0): True, (0.01, 1): True}, ask, 0.01).solved
    True
    >>> judge({(0.01, 0): False, (0.01, 1): False}, ask, 0.01).wanted
    ((0.001, 0), (0.001, 1))
    """
    of = {
        rate: [succeeded[rate, seed] for seed in ask.seeds if (rate, seed) in succeeded]
        for rate in ask.rates
    }
    spare = len(ask.seeds) - ask.need
    best = max(ask.rates, key=lambda rate: (sum(of[rate]), rate == favourite))
    alive = [rate for rate in ask.rates if of[rate].count(False) <= spare]
    promising = best in alive and sum(of[best]) > spare and all(of[best])
    if sum(of[best]) >= ask.need or (promising and not sure):
        return LengthJudgement(True, best)
    if not alive or (trusted and not sure and favourite not in alive):
        return LengthJudgement(False, best)

    def untried(rate: float, seeds: Sequence[int]) -> list[Try]:
        return [(rate, seed) for seed in seeds if (rate, seed) not in succeeded]

    leading = [favourite] if favourite in alive else alive
    first = [each for rate in leading for each in untried(rate, ask.seeds[: spare + 1])]
    ahead = max(leading, key=lambda rate: (sum(of[rate]), -of[rate].count(False)))
    return LengthJudgement(None, best, tuple(first or untried(ahead, ask.seeds)))


@dataclass(frozen=True)
class Bracket:
    """Solved at `low` (None: nowhere), failed at `high` (None: nowhere above `low`)."""

    low: int | None
    high: int | None


def bracket(results: Mapping[int, bool]) -> Bracket:
    """The bracket given by the lengths tried so far.

    >>> bracket({8: True, 16: False, 11: True})
    Bracket(low=11, high=16)
    """
    low = max((n for n, solved in results.items() if solved), default=None)
    above = [n for n, solved in results.items() if not solved and n > (low or 0)]
    return Bracket(low, min(above, default=None))


def next_length(results: Mapping[int, bool], ask: SearchSettings) -> int | None:
    """The length to try next; None if the bracket is narrow enough or cannot be narrowed.

    >>> ask = SearchSettings(start=8, most_n=64)
    >>> next_length({}, ask), next_length({8: True}, ask), next_length({8: True, 16: False}, ask)
    (8, 16, 11)
    """
    if not results:
        return ask.start
    ends = bracket(results)
    if ends.high is None:
        assert ends.low is not None
        return min(2 * ends.low, ask.most_n) if ends.low < ask.most_n else None
    if ends.low is None:
        return ends.high // 2 or None
    if ends.high <= max(ask.factor * ends.low, ends.low + 1):
        return None
    return min(max(round(math.sqrt(ends.low * ends.high)), ends.low + 1), ends.high - 1)


@dataclass(frozen=True)
class LengthResult:
    """A settled length: how many seeds succeeded and how many were run at its best rate."""

    n: int
    solved: bool
    rate: float
    stand: int
    runs: int


def replay(
    look: Callable[[int], Mapping[Try, bool]], ask: SearchSettings
) -> tuple[tuple[LengthResult, ...], int | None, tuple[Try, ...]]:
    """Replay the search from the start as far as ended runs take it; `look` says for each ended
    run of a length whether it succeeded. Gives the lengths settled, in order, the one being tried
    (None if the bracket is final) and the runs it needs next."""
    results: dict[int, bool] = {}
    settled: dict[int, LengthResult] = {}
    favourite = ask.rates[len(ask.rates) // 2]
    sure: set[int] = set()  # lengths judged again as ends of the bracket
    while True:
        n, at = next_length(results, ask), bracket(results)
        if n is None:
            unsure = [end for end in (at.low, at.high) if end is not None and end not in sure]
            if not unsure:
                return tuple(settled.values()), None, ()
            n = unsure[0]
        succeeded = look(n)
        judgement = judge(
            succeeded, ask, favourite, sure=n in results, trusted=any(results.values())
        )
        if judgement.solved is None:
            return tuple(settled.values()), n, judgement.wanted
        outcomes = [
            succeeded[judgement.rate, seed]
            for seed in ask.seeds
            if (judgement.rate, seed) in succeeded
        ]
        settled[n] = LengthResult(n, judgement.solved, judgement.rate, sum(outcomes), len(outcomes))
        if n in results:
            sure.add(n)
        results[n] = judgement.solved
        if judgement.solved:
            favourite = judgement.rate
