"""The clause length: a prefix gives what it gives in the whole.

Sums are taken in another order there, so rounding is estimated from the layer itself: from how far
its outputs move when its inputs do, and from the precision in which it computes.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ithbit.contract.calling import Caller
from ithbit.contract.causality import longest_of
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import apart, jittered, small_step, tolerance, unit_of
from ithbit.contract.findings import Finding
from ithbit.contract.watching import CannotCheckError
from ithbit.models.user_code import FAILURES, error_text

PREFIXES = (*(1, 2, 3, 7, 16, 17, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 200, 255, 256),)
_LONG_PREFIXES = (17, 256, 257, 300, 512, 513, 1024)
_JUMPS = 24  # moves of the inputs, of which half or fewer reach another step
_FEWEST = 8  # prefixes that are tried even if time is over
_WHOLE, _LONG = (257, 256, 130, 128, 64, 32, 16), (1025, 1024, 513, 512)


@dataclass(frozen=True)
class Allowed:
    """How far outputs of the same tokens in another shape may be apart, by token."""

    caller: Caller
    x: Tensor
    seed: int
    unit: float
    whole: Tensor  # the outputs of x
    scale: Tensor  # the largest output so far, by token

    @cached_property
    def by_token(self) -> Tensor:
        """What rounding may do to the outputs, from two small moves of x."""
        g = torch.Generator().manual_seed(self.seed)
        response = torch.zeros(self.x.shape[1], dtype=torch.float64)
        for _ in range(2):
            moved = apart(self.caller(jittered(self.x, small_step(self.unit), g)), self.whole)
            response = response.maximum(largest_by_token(moved.nan_to_num(0.0, 0.0, 0.0)))
        return tolerance(response.cummax(0).values, self.scale, self.unit)

    def exceeded(self, change: Tensor) -> list[int]:
        """Tokens (from 0) whose outputs are too far apart. The moves are made only if the outputs
        differ by more than is allowed where no output responds to them."""
        scale = self.scale[: len(change)]
        if not (change > tolerance(torch.zeros_like(scale), scale, self.unit)).any():
            return []
        over: list[int] = (change > self.by_token[: len(change)]).nonzero().flatten().tolist()
        return over


def allowed_at(run: CheckRun, caller: Caller, x: Tensor) -> Allowed:
    """The outputs of x, and what rounding may do to them."""
    whole = caller(x)
    finite = torch.where(whole.isfinite(), whole.abs(), 0.0)
    scale = largest_by_token(finite).cummax(0).values
    unit = max(run.unit, run.coarse, unit_of(caller.dtype))
    return Allowed(caller, x, run.seed("small step"), unit, whole, scale)


def largest_by_token(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).amax(1)


def check_length(run: CheckRun) -> None:
    """A prefix gives what it gives in the whole."""
    if run.is_random:
        return run.skip("length", "random in evaluation mode")
    if run.leaks:
        return run.skip("length", "later tokens matter anyway")
    with run.attempt("length"):
        first = longest_of(run, _WHOLE)
        if first is None:
            return run.skip("length", "no usual length is taken")
        rows, notes = 1 if run.mixes else 2, list[str]()
        # Short prefixes of two rows, then a few of one long row.
        long = longest_of(run, _LONG)
        for whole, prefixes, n_rows in ((first, PREFIXES, rows), (long, _LONG_PREFIXES, 1)):
            if whole is None or (notes and run.clock.left < 0):
                continue
            done: list[int] = []
            for draw in ("prefix", "prefix again"):
                x = run.draw(draw, n_rows, whole)
                finding = _prefixes(run, x, prefixes, done, draw)
                if finding is None:
                    break
                if draw == "prefix again":  # the second input shows it too
                    return run.report(finding)
            shown = ", ".join(map(str, sorted(set(done))))
            notes += [f"prefixes of {shown} of {whole} tokens"] if done else []
        if not notes:
            return run.skip("length", f"nothing shorter than {first} tokens is taken")
        run.keep("length", "; ".join(notes))
    return None


def _prefixes(
    run: CheckRun, x: Tensor, prefixes: tuple[int, ...], done: list[int], draw: str
) -> Finding | None:
    rows, whole = x.shape[:2]
    made = whole if run.caller.subject.by_length else None
    expected = allowed_at(run, run.caller, x)
    for k in prefixes:
        if k >= whole or (run.clock.left < 0 and len(done) >= _FEWEST):
            continue
        try:
            part = run.caller(x[:, :k], made)
        except CannotCheckError:
            raise
        except FAILURES as error:
            run.refused.setdefault(k, error_text(error))
            continue
        done.append(k)
        change = largest_by_token(
            apart(part, expected.whole[:, :k]).nan_to_num(0.0, torch.inf, 0.0)
        )
        over = expected.exceeded(change)
        if over and _jumps(run, x, change, over[0]):
            continue
        if over:
            token = over[0]
            scale = float(expected.scale[k - 1])
            size, noise = (float(each[token]) / scale for each in (change, expected.by_token))
            code = [
                *run.caller.run_lines(whole),
                f"g = torch.Generator().manual_seed({run.seed(draw, rows, whole)})",
                f"x = torch.randn({rows}, T, D, generator=g, dtype=torch.float64)",
                f"a, b = run(x)[:, :{k}], run(x[:, :{k}])",
                f'print("the first {k} outputs change by", float((a - b).abs().max()))',
            ]
            return Finding(
                "length",
                f"output {token + 1} of {k} tokens differs from that of the same tokens at the "
                f"start of {whole}: by {size:.1e} of the largest output; rounding allows "
                f"{noise:.1e}",
                k, token + 1, k + 1, size, noise, "\n".join(code),
            )  # fmt: skip
    return None


def _jumps(run: CheckRun, x: Tensor, change: Tensor, token: int) -> bool:
    """Whether an output lies where rounding moves it to another step: moves of its inputs by a few
    units of float32 change it as much, and moves sixteen times as large no more."""
    g = torch.Generator().manual_seed(run.seed("jump"))
    base, most = run.caller(x), []
    for size in (2.0**-21, 2.0**-17):
        moved = [apart(run.caller(jittered(x, size, g)), base)[:, token] for _ in range(_JUMPS)]
        most.append(float(torch.stack(moved).nan_to_num(0.0, 0.0, 0.0).max()))
    return float(change[token]) <= 2 * most[0] and most[1] < 4 * most[0]
