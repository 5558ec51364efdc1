"""The clause carries, a warning: places that nothing of the past gets across.

The tokens before a cut are replaced, and the last output that changes is noted. A layer that
forgets, or looks through a window, moves that output along with the cut; where state is lost, it
stays in one place for many cuts.
"""

import torch
from torch import Tensor

from ithbit.contract.causality import longest_of
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import apart
from ithbit.contract.findings import Finding
from ithbit.contract.leaks import late_rows

_HELD = 8  # neighbouring cuts whose effect ends at one output
# Cuts that are looked at first, from the third on: two of them are among any `_HELD` neighbours,
# also of ten cuts.
_APART, _FROM = 4, 2
_DRAWS = 6
_OVERTIME = 1.0  # seconds that may be spent on what was seen, when time is over
_SPENT = 0.3  # of the time, after which no longer inputs are tried
_EVERY = (130, 128, 64, 32, 16)
_LONGER = ((257, 247, 257), (513, 503, 513), (1025, 1015, 1025))  # length and cuts, for one border


def check_carries(run: CheckRun) -> None:
    """Every cut at one length, then the cuts around larger chunks."""
    if run.leaks or run.mixes or run.is_random:
        mixed = "examples depend on each other" if run.mixes else "random in evaluation mode"
        return run.skip("carries", "later tokens matter anyway" if run.leaks else mixed)
    full = longest_of(run, _EVERY)
    places = [(full, 1, full)] if full else []
    done: list[str] = []
    with run.attempt("carries"):
        for length, start, stop in [*places, *_LONGER]:
            if not run.takes(length) or (done and run.clock.spent > _SPENT * run.clock.seconds):
                continue
            walls = _walls(run, length, list(range(start, stop)))
            done.append(f"cuts {start} to {stop - 1} of {length}")
            if walls:
                return run.report(_finding(run, length, walls, start))
        run.keep("carries", "; ".join(done))
    return None


def _walls(run: CheckRun, length: int, cuts: list[int]) -> list[int]:
    """Outputs (from 0) at which the effect of the past ends for many cuts, in every draw and for
    some entry of the output."""
    if not _held(_last(run, 0, length, cuts[_FROM::_APART]), length, _HELD // _APART):
        return []
    walls: set[tuple[int, int]] | None = None  # output and entry
    for draw in range(_DRAWS):
        if run.clock.left < -_OVERTIME:
            return []
        found = _held(_last(run, draw, length, cuts), length, _HELD, cuts)
        walls = found if walls is None else walls & found
        if not walls:
            return []
    return sorted({output for output, _ in walls or ()})


def _last(run: CheckRun, draw: int, length: int, cuts: list[int]) -> Tensor:
    """The last output (from 0) that changes when the past before each cut does, by entry."""
    x, y = run.draw(f"carries {draw}", 2, length)
    base, last = None, []
    for part in late_rows(length, torch.tensor(cuts)).split(run.rows(length)):
        copies = x.expand(len(part), -1, -1)
        if base is None or len(base) != len(part):
            base = run.caller(copies)
        changed = apart(run.caller(torch.where(part[..., None], copies, y)), base) > 0
        changed = changed.flatten(2) & part[..., None]
        index = torch.arange(length)[:, None].expand_as(changed)
        last.append(torch.where(changed, index, -1).amax(1))
    return torch.cat(last)


def _held(
    last: Tensor, length: int, least: int, cuts: list[int] | None = None
) -> set[tuple[int, int]]:
    """Outputs, by entry, that stay the last for so many neighbouring cuts at least; with `cuts`, up
    to the output itself, or nearly: windows that move on in blocks stay behind."""
    found: set[tuple[int, int]] = set()
    for entry, channel in enumerate(last.unbind(1)):
        for value in set(channel.tolist()) - {length - 1, -1}:
            held = (channel == value).nonzero().flatten()
            if len(held) < least or int(held[-1] - held[0]) != len(held) - 1:
                continue
            if cuts is None or cuts[int(held[-1])] > value + 1 - _HELD:
                found.add((int(value), entry))
    return found


def _finding(run: CheckRun, length: int, walls: list[int], start: int) -> Finding:
    at = walls[0] + 1
    more = f"; the same after token {walls[1] + 1}" if len(walls) > 1 else ""
    first = max(start, at - _HELD)
    code = [
        *run.caller.run_lines(length),
        f"g = torch.Generator().manual_seed({run.seed('carries 0', 2, length)})",
        "x, y = torch.randn(2, T, D, generator=g, dtype=torch.float64)",
        f"for cut in range({first}, {min(at + 3, length)}):",
        "    past = torch.cat([y[:cut], x[cut:]])",
        "    changed = (run(x[None]) != run(past[None]))[0].flatten(1)",
        '    print("cut", cut, "last output that changes, by entry:",',
        "          [int(c.nonzero().max()) + 1 if c.any() else 0 for c in changed.T])",
    ]
    return Finding(
        "carries",
        f"tokens before token {at + 1} of {length} change no output from there on, or not all "
        f"entries of it{more}: state is lost there, unless chunks are meant",
        length, at + 1, None, code="\n".join(code),
    )  # fmt: skip
