"""Two records of the same weights, as of a GPU and of this machine: every pair of verdicts."""

from itertools import product
from typing import get_args

import pytest

from ithbit.store.records import BOUNDED, PROVED, SECOND, Case, Proof, Verdict, Verification
from ithbit.store.records import VerificationRecord as Record
from ithbit.verification.record_merging import merge_records, merge_with_stored

RIGHT, OPEN, WRONG, UNSETTLED = "right on all inputs", "not refuted", "refuted", "unsettled"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# What both say together: was, now -> verdict. Where nothing is wrong, the better evidence.
WITH_WRONG = {
    (WRONG, WRONG): WRONG,
    (WRONG, UNSETTLED): UNSETTLED,
    (UNSETTLED, WRONG): WRONG,
    (UNSETTLED, UNSETTLED): UNSETTLED,
    **{(was, now): UNSETTLED for was in (WRONG, UNSETTLED) for now in (RIGHT, OPEN)},
    **{(was, now): now for was in (PROVED, BOUNDED, RIGHT, OPEN) for now in (WRONG, UNSETTLED)},
}


def record(verdict: Verdict, budget: int, count: bool, margin: float, every: bool) -> Record:
    """A record of 3 bits; if `every`, all 24 inputs were tried, as for *right on all inputs*."""
    wrong = verdict in (WRONG, UNSETTLED)
    worst = Case("011", 2, -margin if wrong else margin)
    stage = {"name": "search", "tried": 9, "wrong": int(wrong), "seconds": 0.1}
    found = Verification(
        verdict, every, 3, 24, 24 if every else 9, int(wrong), 0, {2: 1} if wrong else {}, worst,
        worst if verdict == WRONG else None, 0.1, "search", [stage],
    )  # fmt: skip
    if verdict in (PROVED, BOUNDED):
        outcome, checked = ("proved", SECOND) if verdict == PROVED else ("bounded", "")
        found = found.with_proof(Proof(outcome, least_margin=0.1, checked=checked))
        assert found.verdict == (RIGHT if every and verdict == BOUNDED else verdict)
    return Record("0", "a run", "0" * 64, "float32", budget, 0, found, {}, count)


def records(verdict: Verdict) -> list[Record]:
    tried = [verdict == RIGHT] if verdict in (RIGHT, OPEN) else [False, True]
    ways = product((100, 300), (False, True), (1e-7, 0.5), tried)
    return [record(verdict, *way) for way in ways]


@pytest.mark.parametrize("now", [RIGHT, OPEN, WRONG, UNSETTLED])
@pytest.mark.parametrize("was", VERDICTS)
def test_every_pair(was: Verdict, now: Verdict) -> None:
    for before, fresh in product(records(was), records(now)):
        both = merge_records(before, fresh).found
        assert both.sentence()
        expected = WITH_WRONG.get((was, now))
        if expected is None:
            exhaustive = before.found.exhaustive or fresh.found.exhaustive
            assert both.exhaustive == exhaustive
            expected = PROVED if was == PROVED else RIGHT if exhaustive else was
        assert both.verdict == expected
        assert (both.counterexample is not None) == (both.verdict == WRONG)
        assert both.proof == before.found.proof
        if both.verdict in (WRONG, UNSETTLED):
            assert both.worst.margin is not None
            assert both.worst.margin < 0  # what to ask for again


def test_once_wrong_never_right() -> None:
    """Whatever comes after, in any order."""
    for verdicts in product((RIGHT, OPEN, WRONG, UNSETTLED), repeat=4):
        so_far = records(verdicts[0])[0]
        for verdict, way in zip(verdicts[1:], (7, 2, 5), strict=True):
            so_far = merge_records(so_far, records(verdict)[way % len(records(verdict))])
        once = {WRONG, UNSETTLED} & set(verdicts)
        assert (so_far.found.verdict in (WRONG, UNSETTLED)) == bool(once)


@pytest.mark.parametrize("now", VERDICTS)
@pytest.mark.parametrize("there", VERDICTS)
def test_what_another_process_stored_meanwhile(there, now) -> None:
    class Stored:
        """A run whose folder has this record."""

        def __init__(self, record: Record) -> None:
            self.read_verification = lambda: record

    for record, mine in product(records(there)[::3], records(now)[::3]):
        both = merge_with_stored(Stored(record), None, mine).found
        is_wrong = {there, now} & {WRONG, UNSETTLED}
        assert (both.verdict in (WRONG, UNSETTLED)) == bool(is_wrong)
        if not is_wrong and PROVED in (there, now) and now != BOUNDED:  # its certificate is there
            assert both.verdict == PROVED
        assert both.sentence()
