"""Which n to try next, and which runs decide one: pure functions of what was seen so far.

A length is *solved* if at one learning rate at least `need` of the seeds stand, *failed* if no rate
can get there any more. The search doubles n while it is solved, halves it while nothing is, and
then takes geometric means until what is solved and what failed are within `factor`. On the way few
runs are enough to go on: the first seeds, and once a rate has solved a length that rate alone. Both
ends of the bracket are made sure of at last, the lower one first; if one is not what it seemed, the
search goes on from there. Where outcomes are not monotone in n, the largest solved length counts,
and the bracket ends at the first failed one above it; nothing is said of any other length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ithbit.errors import raise_problems

RATES = (1e-3, 3e-3, 1e-2)
MOST_N = 512

Try = tuple[float, int]  # learning rate, seed


@dataclass(frozen=True)
class Ask:
    """What is asked of every cell, checked on construction."""

    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    need: int = 4  # seeds that must stand, at one rate
    factor: float = 1.25
    start: int = 8
    most_n: int = MOST_N

    def __post_init__(self) -> None:
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
                f"the search starts at 1 or more and at most at most_n, got {self.start} and "
                f"{self.most_n}"
            )
        raise_problems("capacity", problems)


@dataclass(frozen=True)
class Judged:
    """What the runs of one length say: solved, failed, or None and which runs to train next.

    `rate` is the one at which most seeds stand.
    """

    solved: bool | None
    rate: float
    wanted: tuple[Try, ...] = ()


def judge(
    stands: Mapping[Try, bool],
    ask: Ask,
    favourite: float,
    sure: bool = True,
    trusted: bool = False,
) -> Judged:
    """Judge a length by the runs that have ended: whether each stands.

    Few runs decide. As many seeds as can refute a rate go first, at the favourite rate; the others
    follow if it is not lost by then, and the other rates only if it is. Unless it is to be `sure`,
    a length counts as solved when those first seeds all stand, and as failed when a `trusted`
    favourite is lost: enough to go on to other lengths.

    >>> ask = Ask(rates=(0.001, 0.01), seeds=(0, 1, 2), need=2)
    >>> judge({}, ask, 0.01).wanted
    ((0.01, 0), (0.01, 1))
    >>> judge({(0.01, 0): True, (0.01, 1): True}, ask, 0.01).solved
    True
    >>> judge({(0.01, 0): False, (0.01, 1): False}, ask, 0.01).wanted
    ((0.001, 0), (0.001, 1))
    """
    of = {
        rate: [stands[rate, seed] for seed in ask.seeds if (rate, seed) in stands]
        for rate in ask.rates
    }
    spare = len(ask.seeds) - ask.need
    best = max(ask.rates, key=lambda rate: (sum(of[rate]), rate == favourite))
    alive = [rate for rate in ask.rates if of[rate].count(False) <= spare]
    promising = best in alive and sum(of[best]) > spare and all(of[best])
    if sum(of[best]) >= ask.need or (promising and not sure):
        return Judged(True, best)
    if not alive or (trusted and not sure and favourite not in alive):
        return Judged(False, best)

    def untried(rate: float, seeds: Sequence[int]) -> list[Try]:
        return [(rate, seed) for seed in seeds if (rate, seed) not in stands]

    leading = [favourite] if favourite in alive else alive
    first = [each for rate in leading for each in untried(rate, ask.seeds[: spare + 1])]
    ahead = max(leading, key=lambda rate: (sum(of[rate]), -of[rate].count(False)))
    return Judged(None, best, tuple(first or untried(ahead, ask.seeds)))


@dataclass(frozen=True)
class Bracket:
    """Solved at `low`, failed at `high`. No `low`: nothing was solved; no `high`: nothing failed
    above it."""

    low: int | None
    high: int | None


def bracket(known: Mapping[int, bool]) -> Bracket:
    """The bracket that the lengths tried so far give.

    >>> bracket({8: True, 16: False, 11: True})
    Bracket(low=11, high=16)
    """
    low = max((n for n, solved in known.items() if solved), default=None)
    above = [n for n, solved in known.items() if not solved and n > (low or 0)]
    return Bracket(low, min(above, default=None))


def next_length(known: Mapping[int, bool], ask: Ask) -> int | None:
    """The length to try next, None if the bracket is as narrow as asked for, or cannot be
    narrower.

    >>> ask = Ask(start=8, most_n=64)
    >>> next_length({}, ask), next_length({8: True}, ask), next_length({8: True, 16: False}, ask)
    (8, 16, 11)
    """
    if not known:
        return ask.start
    found = bracket(known)
    if found.high is None:
        assert found.low is not None
        return min(2 * found.low, ask.most_n) if found.low < ask.most_n else None
    if found.low is None:
        return found.high // 2 or None
    if found.high <= max(ask.factor * found.low, found.low + 1):
        return None
    return min(max(round(math.sqrt(found.low * found.high)), found.low + 1), found.high - 1)


@dataclass(frozen=True)
class Tried:
    """One length that is settled: seeds that stand and seeds that were run at its best rate."""

    n: int
    solved: bool
    rate: float
    stand: int
    runs: int


@dataclass(frozen=True)
class Progress:
    """How far a search has come: the lengths settled, in their order, and the runs that are to tell
    more of the one being tried; None if the bracket is final."""

    tried: tuple[Tried, ...]
    trying: int | None = None
    wanted: tuple[Try, ...] = ()


def replay(look: Callable[[int], Mapping[Try, bool]], ask: Ask) -> Progress:
    """The search from its beginning, as far as the runs that have ended take it: `look` gives
    whether each of a length's stands."""
    known: dict[int, bool] = {}
    tried: dict[int, Tried] = {}
    favourite = ask.rates[len(ask.rates) // 2]
    sure: set[int] = set()  # lengths judged again, when they were ends of the bracket
    while True:
        n, at = next_length(known, ask), bracket(known)
        if n is None:
            unsure = [end for end in (at.low, at.high) if end is not None and end not in sure]
            if not unsure:
                return Progress(tuple(tried.values()))
            n = unsure[0]
        stands = look(n)
        found = judge(stands, ask, favourite, sure=n in known, trusted=any(known.values()))
        if found.solved is None:
            return Progress(tuple(tried.values()), n, found.wanted)
        there = [stands[found.rate, seed] for seed in ask.seeds if (found.rate, seed) in stands]
        tried[n] = Tried(n, found.solved, found.rate, sum(there), len(there))
        if n in known:
            sure.add(n)
        known[n] = found.solved
        if found.solved:
            favourite = found.rate
