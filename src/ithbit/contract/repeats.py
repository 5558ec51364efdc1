"""Clauses about one call and the next: the input is left alone, the same input gives the same
output, and neither earlier calls nor the other examples of a batch matter."""

import torch
from torch import Tensor

from ithbit.contract.calling import Caller, reseeds
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import (
    FLOOR,
    apart,
    is_leak,
    jittered,
    small_step,
    tolerance,
    unit_of,
)
from ithbit.contract.findings import Finding
from ithbit.contract.watching import CannotCheckError
from ithbit.models.user_code import FAILURES

_BATCH, _MANY = 4, 33


def check_repeats(run: CheckRun) -> None:
    """The clauses input, deterministic, stateless and batch."""
    caller = run.caller
    x = run.draw("first", 3, run.short)
    if (what := reseeds(caller, x)) is not None:
        raise CannotCheckError(f"it sets {what} in its forward: a layer must leave it alone")
    run.caller = caller.like()  # as new
    _input(run, x)
    _deterministic(run, x)
    if not run.is_random:
        _stateless(run, x)
    if run.is_seeded:
        _batch(run)


def _largest(change: Tensor) -> float:
    """The largest change; what is finite in neither does not count."""
    return float(torch.where(change.isnan(), 0.0, change).max())


def _input(run: CheckRun, x: Tensor) -> None:
    for mode in (False, True):
        caller = run.caller.like(training=mode)
        given = caller.converted(x)
        before = given.clone()
        with torch.no_grad():
            caller.raw(caller.module(run.short), given)
        if not torch.equal(given, before):
            break
    else:
        return run.keep("input", f"inputs of {run.short} tokens, in both modes")
    code = [
        *caller.lines(run.short),
        f"x = {_drawn_text(run, 'first', 3)}.to({run.caller.device!r}, {run.caller.dtype})",
        "before = x.clone()",
        "with torch.no_grad():",
        f"    {run.caller.call}",
        'print("the input is as it was:", torch.equal(x, before))',
    ]
    size = float((given - before).abs().max() / before.abs().max())
    run.report(
        Finding(
            "input",
            "it changes its input in place: whoever holds that tensor holds other numbers",
            run.short, size=size, code="\n".join(code),
        )
    )  # fmt: skip
    return None


def _drawn_text(run: CheckRun, place: str, rows: int, n_tokens: int | None = None) -> str:
    n_tokens = n_tokens or run.short
    seed = run.seed(place, rows, n_tokens)
    return (
        f"torch.randn({rows}, {n_tokens}, {run.width}, dtype=torch.float64, "
        f"generator=torch.Generator().manual_seed({seed}))"
    )


def _deterministic(run: CheckRun, x: Tensor) -> None:
    """Fresh layers, so that nothing is kept between the calls."""
    length, outs = run.short, []
    for seed in (7, *range(7, 27)):
        caller = run.caller.like()
        with torch.no_grad():
            module = caller.module(length)
            out = caller.raw(module, caller.converted(x), seed)
            outs.append(out.to("cpu", torch.float64, copy=True))
    near = run.near(outs[0])
    again, *others = (_largest(apart(outs[0], out)) for out in outs[1:])
    by_seed = max(others)
    if max(by_seed, again) <= near:
        run.keep("deterministic", "repeated calls with other random seeds")
        return
    run.is_random, run.is_seeded = True, again <= near
    why = " with another random seed" if again <= near else " each time"
    scale = float(outs[0].abs().max())
    code = [
        *run.caller.run_lines(length, seed=None),
        f"x = {_drawn_text(run, 'first', 3)}",
        'print("two calls differ by", float((run(x) - run(x)).abs().max()))',
    ]
    run.report(
        Finding(
            "deterministic",
            f"the same input gives other outputs{why}, in evaluation mode: they differ by "
            f"{max(by_seed, again) / scale:.1e} of the largest",
            length, size=max(by_seed, again) / scale, noise=near / scale, code="\n".join(code),
        )
    )  # fmt: skip


def _stateless(run: CheckRun, x: Tensor) -> None:
    length = run.short
    other = run.draw("second", 3, length)
    lengths = [length for length in (300, 65) if run.short == 17 and run.takes(length)]
    long = run.draw("long", 2, lengths[0] if lengths else run.short)
    histories: list[tuple[str, list[Tensor], Tensor]] = [
        ("another input", [other], x),
        ("longer inputs", [long, long], x),
        ("many inputs", [other[:1]] * 8 + [other] * 4, x),
        ("the same input", [x, x], x),
        *([("a shorter input", [x], long)] if lengths else []),
    ]
    new = {id(x): run.caller.like()(x)}
    differs: tuple[str, float, float] | None = None
    for what, history, last in histories:
        used = run.caller.like()
        try:
            for each in history:
                out = used(each)
                new.setdefault(id(history[0]), out)
            if id(last) not in new:
                new[id(last)] = run.caller.like()(last)
            change = _largest(apart(new[id(last)], used(last)))
        except CannotCheckError:
            raise
        except FAILURES:
            continue
        if change > run.near(new[id(last)]):
            scale = float(new[id(last)].abs().max())
            differs = what, change / scale, run.near(new[id(last)]) / scale
            break
    if differs is None:
        if _overwrites(run, x, other):
            return None
        return run.keep("stateless", "outputs after other inputs")
    what, size, near = differs
    shown, long_text = _drawn_text(run, "first", 3), _drawn_text(run, "long", 2, long.shape[1])
    before = {
        "another input": f"run({_drawn_text(run, 'second', 3)})",
        "longer inputs": f"[run({long_text}) for k in range(2)]",
        "many inputs": f"y = {_drawn_text(run, 'second', 3)}\n"
        "for k in range(12):\n    run(y[:1] if k < 8 else y)",
        "the same input": "[run(x) for k in range(2)]",
        "a shorter input": f"run({shown})",
    }[what]
    code = [
        *run.caller.run_lines(length),
        f"x = {long_text if what == 'a shorter input' else shown}",
        *(["import copy", "fresh = copy.deepcopy(layer)"]),
        before,
        "used = run(x)",
        "layer = fresh",
        'print("after other calls the output differs by", float((run(x) - used).abs().max()))',
    ]
    run.report(
        Finding(
            "stateless",
            f"what an input gives depends on the calls before: after {what} it differs by "
            f"{size:.1e} of the largest output",
            length, size=size, noise=near, code="\n".join(code),
        )
    )  # fmt: skip
    run.caller = run.caller.like(fresh=True)
    return None


def _overwrites(run: CheckRun, x: Tensor, other: Tensor) -> bool:
    """Whether the next call changes what an earlier one gave, as where a buffer is given out."""
    caller = run.caller.like()
    with torch.no_grad():
        out = caller.raw(caller.module(run.short), caller.converted(x))
        kept = out.clone()
        caller.raw(caller.module(run.short), caller.converted(other))
    change = _largest(apart(out, kept))
    if not change:
        return False
    size = change / max(float(kept.abs().max()), 1e-300)
    to = f".to({caller.device!r}, {caller.dtype})"
    code = [
        *caller.lines(run.short),
        f"x = {_drawn_text(run, 'first', 3)}{to}",
        "with torch.no_grad():",
        f"    first = {caller.call}",
        "    kept = first.clone()",
        f"    x = {_drawn_text(run, 'second', 3)}{to}",
        f"    {caller.call}",
        'print("the next call changes this output by", float((first - kept).abs().max()))',
    ]
    run.report(
        Finding(
            "stateless",
            "the next call writes over the output of an earlier one: it is the same memory",
            run.short, size=size, code="\n".join(code),
        )
    )  # fmt: skip
    return True


def _batch(run: CheckRun) -> None:
    """Other rows replaced, in one shape; then each row alone."""
    caller, g = run.caller, torch.Generator().manual_seed(run.seed("batch jitter"))
    unit = max(run.unit, unit_of(caller.dtype))
    lengths = [run.short, *run.lengths_taken([3, 65, 64])][:3]
    for length in lengths:
        x, y = run.draw("rows", _BATCH, length), run.draw("other rows", _BATCH, length)
        whole = caller(x)
        scale = float(torch.where(whole.isfinite(), whole.abs(), 0.0).max())
        for row in range(_BATCH):
            others = (torch.arange(_BATCH) != row)[:, None, None]
            times = _times(row)
            change = _largest(apart(caller(torch.where(others, times * y, x))[row], whole[row]))
            if 4 * unit * scale < change and (change < torch.inf or times == 1):
                moved = caller(torch.where(others, jittered(x, 2.0**-10, g), x))
                noise = _largest(apart(moved[row], whole[row]))
                if is_leak(change, noise, scale, unit):
                    run.mixes = True
                    _report_batch(run, length, row, change / scale, noise / scale, alone=False)
                    return
        if run.is_random:
            continue
        coarse = max(unit, run.coarse)
        moved = caller(jittered(x, small_step(coarse), g))
        response = apart(moved, whole).nan_to_num(0.0, 0.0, 0.0)
        allowed = float(tolerance(float(response.max()), scale, coarse))
        for rows in (slice(0, 1), slice(_BATCH - 1, _BATCH), slice(1, 3)):
            change = _largest(apart(caller(x[rows]), whole[rows]))
            if change > allowed:
                run.mixes = True
                first = rows.start
                _report_batch(run, length, first, change / scale, allowed / scale, alone=True)
                return
    if _far_rows(run):
        return None
    run.keep("batch", f"other rows replaced, and rows alone, at lengths {lengths}")


def other_rows(run: CheckRun, caller: Caller, how: str) -> bool:
    """The clause batch in a narrower type, where rows have the same bits in the widest: for two
    rows, the others are replaced in one shape. Whether they matter."""
    length = run.short
    if run.mixes or run.is_random or run.outcome_of("batch") != "kept":
        return False
    for row in (0, 1):
        others = (torch.arange(_BATCH) != row)[:, None, None]
        x, y = run.draw("rows", _BATCH, length), run.draw("other rows", _BATCH, length)
        mixed, (change, scale) = torch.where(others, _times(row) * y, x), (0.0, 1.0)
        for wide in (run.caller, caller):
            whole = wide(x)
            change = _largest(apart(wide(mixed)[row], whole[row]))
            scale = float(torch.where(whole.isfinite(), whole.abs(), 0.0).max())
            if change and wide is run.caller:
                return False
        # A few units may differ: how many rows an expert gets may decide how its sums are taken.
        if FLOOR * caller.unit * scale < change < torch.inf:
            _report_batch(
                run, length, row, change / scale, 0.0, alone=False, caller=caller, how=how
            )
            return True
    return False


def _times(row: int) -> int:
    """How large the other rows are: at every other row, larger than any ordinary input."""
    return 30 if row % 2 else 1


def _far_rows(run: CheckRun) -> bool:
    """Many rows: the first, one in the middle and the last, while all others are replaced."""
    x, y = run.draw("rows", _MANY, run.short), run.draw("other rows", _MANY, run.short)
    whole = run.caller(x)
    scale = float(torch.where(whole.isfinite(), whole.abs(), 0.0).max())
    for row in (0, _MANY // 2, _MANY - 1):
        others = (torch.arange(_MANY) != row)[:, None, None]
        change = _largest(apart(run.caller(torch.where(others, y, x))[row], whole[row]))
        if change > run.near(whole):
            run.mixes = True
            near = run.near(whole) / scale
            _report_batch(run, run.short, row, change / scale, near, alone=False, rows=_MANY)
            return True
    return False


def check_at_last(run: CheckRun) -> None:
    """The clause stateless once more, after all the calls of the check."""
    if run.outcome_of("stateless") != "kept" or run.is_random:
        return
    x = run.draw("first", 3, run.short)
    first, last = run.caller.like()(x), run.caller(x)
    change, near = _largest(apart(first, last)), run.near(first)
    if change > near:
        scale = float(first.abs().max())
        code = [
            *run.caller.run_lines(run.short),
            f"x = {_drawn_text(run, 'first', 3)}",
            "first = run(x)",
            "for k in range(2000):",
            "    run(x)",
            'print("after many calls the output differs by", float((run(x) - first).abs().max()))',
        ]
        run.report(
            Finding(
                "stateless",
                f"what an input gives depends on the calls before: after all those of this check "
                f"it differs by {change / scale:.1e} of the largest output",
                run.short, size=change / scale, noise=near / scale, code="\n".join(code),
            )
        )  # fmt: skip


def _report_batch(
    run: CheckRun,
    length: int,
    row: int,
    size: float,
    noise: float,
    alone: bool,
    rows: int = _BATCH,
    caller: Caller | None = None,
    how: str = "",
) -> None:
    x = _drawn_text(run, "rows", rows, length)
    y = _drawn_text(run, "other rows", rows, length)
    if alone:
        rest = [
            f"x = {x}",
            f"rows = slice({row}, {row + (2 if row == 1 else 1)})",
            "a, b = run(x)[rows], run(x[rows])",
        ]
        what = "alone, its output differs by"
    else:
        times = f"{_times(row)} * " if _times(row) > 1 and rows == _BATCH else ""
        rest = [
            f"row, x = {row}, {x}",
            f"y = {times}{y}",
            "y[row] = x[row]  # the other rows are replaced",
            "a, b = run(x)[row], run(y)[row]",
        ]
        what = "with other examples beside it, its output differs by"
    code = [
        *(caller or run.caller).run_lines(length),
        *rest,
        f'print("{what}", float((a - b).abs().max()))',
    ]
    why = (
        f"alone, or in a smaller batch, it gives other outputs than in a batch of {_BATCH}"
        if alone
        else f"the output of example {row + 1} changes when the other {rows - 1} do"
    )
    run.report(
        Finding(
            "batch", f"{why}{how}: by {size:.1e} of the largest output", length, size=size,
            noise=noise, code="\n".join(code),
        )
    )  # fmt: skip
