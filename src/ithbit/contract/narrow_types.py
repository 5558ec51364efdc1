"""The clauses float32 and bfloat16: causal in narrower types too, and under `torch.autocast`; and
no mixing of examples there."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ithbit.contract.calling import Caller
from ithbit.contract.causality import AFTER_CALLS, EVERY_NEAR, few_cuts, listed, nearby_cuts
from ithbit.contract.checking import CheckRun
from ithbit.contract.inputs import FUTURES
from ithbit.contract.leaks import finding_of, search
from ithbit.contract.repeats import other_rows
from ithbit.contract.watching import CannotCheckError
from ithbit.models.user_code import FAILURES

_LENGTHS = (17, 65, 64, 130, 257, 1025)
_BORDERS = (17, 65, 130)  # where borders are tried
_AUTOCAST = (17, 65, 300)
_UNDER = ", under torch.autocast"


def check_dtypes(run: CheckRun) -> None:
    """If the widest dtype gives the same bits, so must these."""
    for dtype, clause in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        if run.caller.dtype == dtype:
            run.keep(clause, "checked in it throughout")
        elif run.leaks:
            run.skip(clause, "later tokens matter anyway")
        elif torch.finfo(dtype).eps < torch.finfo(run.caller.dtype).eps:
            run.skip(clause, f"checked in {run.settings.dtype} only")
        else:
            with run.attempt(clause):
                _dtype(run, run.caller.like(dtype=dtype), clause)
    if not run.leaks and run.caller.dtype in (torch.float64, torch.float32):
        _autocast(run)


def _dtype(run: CheckRun, caller: Caller, clause: str) -> None:
    caller(run.draw("dtype", 1, run.short))
    _try(run, caller, clause, clause, _LENGTHS, f", in {clause}")


def _autocast(run: CheckRun) -> None:
    """As training in mixed precision calls it: float32 outside, bfloat16 where torch takes it."""
    caller = run.caller.like(dtype=torch.float32, autocast=True)
    if run.is_broken("bfloat16"):
        return
    try:
        caller(run.draw("dtype", 1, run.short))
        _try(run, caller, "bfloat16", "autocast", _AUTOCAST, _UNDER)
    except CannotCheckError:
        raise
    except FAILURES:  # it is not made for mixed precision
        return


def _try(
    run: CheckRun, caller: Caller, clause: str, place: str, lengths: Sequence[int], how: str
) -> None:
    """Whether other examples matter there, and later tokens."""
    mixes = run.mixes or other_rows(run, caller, how)
    exact, done = run.exact, list[int]()
    for length in lengths:
        if not run.takes(length) or (run.clock.left < 0 and len(done) > 1):
            continue
        cuts = nearby_cuts(length, done) if length in _BORDERS else few_cuts(length)[1:]
        if mixes:
            cuts = cuts[:: max(1, len(cuts) // 6)]
        kinds = FUTURES[:3] + (() if length == EVERY_NEAR else FUTURES[12:])
        seen = search(
            run, caller, place, length, cuts, kinds, rows=1 if mixes else None, exact=exact
        )
        done.append(length)
        if seen is not None:
            run.report(finding_of(run, caller, clause, seen, how))
            return run.skip(clause, AFTER_CALLS)
    note = f"lengths {listed(done)}"
    had = run.results.get(clause)
    if had is not None and how == _UNDER:
        run.results[clause] = replace(had, note=f"{had.note}; {note}{_UNDER}")
    else:
        run.keep(clause, note)
    return None
