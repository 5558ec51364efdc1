"""The clauses about later tokens, by replacing them: causal, overflow and train-eval.

Few cuts at every length come first: where a call is dear, the length matters more than the cut.
Then borders of chunks and one off on either side, then every cut at one length, then any.
"""

from collections.abc import Iterable
from functools import partial

import torch

from ithbit.contract.calling import Caller
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import apart
from ithbit.contract.findings import Finding
from ithbit.contract.inputs import FUTURES, VAST
from ithbit.contract.leaks import finding_of, read_first, search
from ithbit.contract.second_process import SecondProcess

LENGTHS = (
    *(2, 3, 5, 9, 17, 33, 48, 64, 65, 96, 100, 128, 129, 200, 256, 257, 300, 513, 1000, 1024),
    1025,
)
EVERY_CUT = (130, 128, 64, 32, 16, 8)  # every cut is tried at the first that the layer takes
# Lengths and first cuts: all from there on are tried of rows that take less than so many seconds.
_LONG, _QUICK = ((300, 1), (513, 300)), 0.001
_TRAINING = (*FUTURES[:3], FUTURES[6], FUTURES[8])  # with small and zero ones: gates may close
_REST = (0.65, 0.35)  # the share of time left from which on few cuts end; with a second process
_UP_TO = 8  # times as long as one row: a first call, of a few rows
AFTER_CALLS = "what it reads depends on the calls before"
_FAR = 512  # tokens from which on a few cuts are tried alone
_ANY = (8, 16)  # random lengths: where every earlier output had the same bits, and else
_ALONE = (17, 65)  # where rows are tried one by one
EVERY_NEAR = 65  # every cut is tried of it, in narrower dtypes and in training mode
_DENSE = (9, 17, 33, 64, 65, 100, 129, 200, 257, 300, 513)  # where borders are tried


def few_cuts(length: int) -> list[int]:
    """Both ends and the middle; the first end at odd lengths alone where they are long."""
    cuts = {1, length // 2, length // 2 + 1, length - 1}
    if length >= _FAR:
        cuts = {1, length // 2 + 1, length - 1} if length % 2 else {length // 2, length - 1}
    return sorted(cut for cut in cuts if 0 < cut < length)


def border_cuts(length: int) -> list[int]:
    """The ends, and the borders of chunks of usual sizes, one off on either side: at long lengths
    those of the larger chunks, since shorter inputs show the others."""
    sizes = [4, 8, 16, 32, 64, 128] if length <= 130 else [32, 64, 128, 256]
    if length > 300:
        sizes = [256, 512]
    borders = {size * k + off for size in sizes for k in (1, 2, 3) for off in (-1, 0, 1)}
    fixed = {10, 20, 48, 50, 96, 100, 192, 200, 300}
    ends = {1, 2, 3, length // 3, length // 2, length - length // 8, length - 2, length - 1}
    if length == 300:  # borders in tens
        borders = {size * k + off for size in (50, 60) for k in range(6) for off in (-1, 0, 1)}
        fixed, ends = {80, 160, 192, 240, 255, 256, 257}, {2, length - 2}
    if length > 300:
        fixed, ends = {300, 400}, {2, length - 2}
    return sorted(cut for cut in borders | ends | fixed if 0 < cut < length)


def nearby_cuts(length: int, done: list[int]) -> list[int]:
    """Every cut at 65 tokens; what that has shown is left out of longer inputs."""
    if length == EVERY_NEAR:
        return list(range(1, length))
    near = EVERY_NEAR - 1 if EVERY_NEAR in done else 0
    return [cut for cut in border_cuts(length) if cut >= near or length < near]


def check_causal(run: CheckRun, others: SecondProcess) -> None:
    """The clause causal, and overflow beside it; the first job of the others is `try_borders`."""
    for _ in range(2):
        with run.attempt("causal"):
            found = _few(run) or _kinds(run)
            if found is None:
                others.first()
            else:
                others.end()
                _note_leak(run, found)
        if run.caller.fresh or not run.after_calls:
            break
        others.begin_here()
        run.caller = run.caller.like(fresh=True)
    if "causal" not in run.results:
        if run.cuts:
            run.keep("causal", _note(run))
        else:
            run.skip("causal", "no length from 2 on is taken")
    if not run.leaks:
        run.keep("overflow", "later tokens 30 and 1000 times as large")
    run.skip("overflow", "later tokens matter anyway")


def _note_leak(run: CheckRun, found: Finding) -> None:
    run.report(found)
    run.after_calls = run.after_calls or found.clause != "causal"


def _note(run: CheckRun) -> str:
    return f"lengths {listed(run.lengths)}; {run.cuts} cuts"


def listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _look(
    run: CheckRun,
    place: str,
    length: int,
    cuts: list[int],
    caller: Caller | None = None,
    how: str = "",
) -> Finding | None:
    caller = caller or run.caller
    seen = search(run, caller, place, length, cuts)
    return finding_of(run, caller, "causal", seen, how) if seen else None


def _few(run: CheckRun) -> Finding | None:
    """Few cuts at every length."""
    for length in LENGTHS:
        if run.cuts and run.clock.left < _REST[run.in_two] * run.total:
            run.too_slow.add(length)
            continue
        cuts = few_cuts(length)
        first = None if run.mixes else partial(read_first, run, "few", length, cuts)
        if run.takes(length, trial=first) and (found := _look(run, "few", length, cuts)):
            return found
    return None


def try_borders(run: CheckRun) -> None:
    """Borders of chunks, every cut, and other weights."""
    with run.attempt("causal"):
        found = _borders(run) or _moved(run)
        if found is not None:
            _note_leak(run, found)


def _borders(run: CheckRun) -> Finding | None:
    for length in _DENSE:
        if run.clock.left < 0.45 * run.total or not run.takes(length):
            continue
        few = few_cuts(length)
        cuts = [cut for cut in border_cuts(length) if cut not in few]
        if run.mixes:
            cuts = cuts[:: max(1, len(cuts) // 8)]
        if cuts and (found := _look(run, "border", length, cuts)):
            return found
    full = longest_of(run, EVERY_CUT)
    if full and run.clock.left > 0.4 * run.total:
        cuts = list(range(1, full)) if not run.mixes else list(range(1, full, 9))
        if found := _look(run, "every", full, cuts):
            return found
    for length, first in _LONG:
        if run.clock.left < 0.4 * run.total or run.mixes or not run.takes(length):
            continue
        quick = run.taken[length] < _UP_TO * _QUICK and run.seconds_of(length) < _QUICK
        if quick and (found := _look(run, "every", length, list(range(first, length)))):
            return found
    return None


def _kinds(run: CheckRun) -> Finding | None:
    """Each kind of future, single rows, and vast tokens."""
    caller, small = run.caller, _small(run)
    cuts = [cut for cut in (1, 2, small // 4, small // 2, small - 2, small - 1) if 0 < cut < small]
    for kind in FUTURES:
        if seen := search(run, caller, "kind", small, cuts, [kind]):
            return finding_of(run, caller, "causal", seen, f", to tokens {kind[0]}")
    for length in run.lengths_taken(_ALONE):  # what is of all rows together is plain in one
        some = [(length + 1) // 2, length - 1]
        if seen := search(run, caller, "alone", length, some, FUTURES[3:4], rows=1):
            return finding_of(run, caller, "causal", seen, f", to tokens {FUTURES[3][0]}")
    if seen := search(run, caller, "vast", small, cuts, [VAST]):
        run.report(finding_of(run, caller, "overflow", seen, f", to tokens {VAST[0]}"))
    return None


def _small(run: CheckRun) -> int:
    return longest_of(run, (65, 64, 33, 32, 17, 16, 9, 8)) or run.short


def _moved(run: CheckRun) -> Finding | None:
    """Weights moved from their first values."""
    moved, small = run.caller.like(moved=True), _small(run)
    with run.attempt("gradient"):
        if moved(run.draw("moved", 2, small)).isfinite().all():
            for length in [small, *run.lengths_taken([257])]:
                if length > small and run.clock.left < 0.3 * run.total:
                    continue
                how = ", at weights moved from their first values"
                if found := _look(run, "moved", length, border_cuts(length), moved, how):
                    return found
    run.results.pop("gradient", None)
    return None


def check_any_cut(run: CheckRun) -> None:
    """Random lengths and cuts: so many, not so long, so that a seed tries the same."""
    if run.leaks or run.outcome_of("causal") != "kept":
        return
    g = torch.Generator().manual_seed(run.seed("any"))
    with run.attempt("causal"):
        for number in range(_ANY[not run.exact]):
            times = (1, 4, 8, 16)[number % 4]
            length = int(torch.randint(2, 40, (), generator=g)) * times
            cuts = sorted({int(k) for k in torch.randint(1, length, (12,), generator=g)})
            cuts = cuts[number % 2 :: 2] or cuts if length > 300 else cuts
            if run.clock.left < 0 or length > max(run.lengths) or not run.takes(length):
                continue
            if seen := search(run, run.caller, f"any {number}", length, cuts):
                found = finding_of(run, run.caller, "causal", seen)
                if found.clause == "causal":
                    run.results.pop("causal", None)
                return run.report(found)
        run.results.pop("causal", None)
        run.keep("causal", _note(run))
    return None


def longest_of(run: CheckRun, lengths: Iterable[int]) -> int | None:
    """The first of the lengths that the layer takes."""
    return next((length for length in lengths if run.takes(length)), None)


def check_training(run: CheckRun) -> None:
    """The clause train-eval: one row at a time first, then several, at a fixed random seed."""
    if run.leaks:
        return run.skip("train-eval", "later tokens matter anyway")
    with run.attempt("train-eval"):
        caller = run.caller.like(training=True)
        lengths = run.lengths_taken((17, 65, 64, 130, 300)) or [run.short]
        x = run.draw("training", 1, lengths[0])
        if float(apart(caller(x), caller(x)).max()) > run.near(caller(x)):
            caller = caller.like(fresh=True)
            if float(apart(caller(x), caller(x)).max()) > run.near(caller(x)):
                return run.skip("train-eval", "random in training mode at a fixed seed too")
        done: list[int] = []
        for length in lengths:
            several = nearby_cuts(length, done) if length in (17, 65) else few_cuts(length)
            for cuts, rows in ((few_cuts(length), 1), (several, None)):
                if run.clock.left < 0 or (length > 65 and rows == 1 and not run.mixes):
                    continue
                if rows is None and (run.mixes or caller.fresh):
                    continue
                seen = search(run, caller, "training", length, cuts, _TRAINING, rows=rows)
                if seen is not None:
                    how = ", in training mode"
                    run.report(finding_of(run, caller, "train-eval", seen, how))
                    return run.skip("train-eval", AFTER_CALLS)
            done.append(length)
        run.keep("train-eval", f"lengths {listed(done)}, at a fixed random seed")
    return None
