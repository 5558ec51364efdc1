"""The search for later tokens that an output reads: at which lengths, cuts and kinds of future,
and how a finding is made small and written as Python."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ithbit.contract.calling import Caller
from ithbit.contract.checking import CheckRun
from ithbit.contract.comparison import (
    SURE,
    Effect,
    apart,
    effects_of_future,
    is_gross_alone,
    is_leak,
    jittered,
    move_of,
    unit_of,
)
from ithbit.contract.findings import Finding
from ithbit.contract.inputs import BASES, FUTURES, Drawing

_CONFIRMED, _SHARE = 48, 0.125  # other inputs, and the share of them that confirms a leak by size
_CLEAR = 1 / 12  # that share, of a change that small moves do not make
_MOVES = 8  # small moves of later tokens around each input, where a wider type has the same bits
_FLIPPED = 2  # other inputs at which small moves do the same: the layer has steps
_UNSTEADY = 8  # rows that move by a few units
_REDRAWN = 16  # small moves of later tokens
# Times the response to small moves: more than a step or two; and more than the same steps.
_STEPS, _SAME = 4.0, 1.5
_NARROWED = 48  # later tokens that are changed one by one
_FIRST = 8  # first inputs for the cuts at one length: outputs of these are computed once


@dataclass(frozen=True)
class Observed:
    """A leak as it was seen in one row of a batch."""

    drawing: Drawing
    effect: Effect
    batch: tuple[Drawing, ...] = ()  # all rows, where one row alone does not show it

    @property
    def rows(self) -> tuple[Drawing, ...]:
        return self.batch or (self.drawing,)


def search(
    run: CheckRun,
    caller: Caller,
    place: str,
    length: int,
    cuts: Sequence[int],
    kinds: Sequence[tuple[str, str]] | None = None,
    *,
    rows: int | None = None,
    exact: bool = False,
) -> Observed | None:
    """Replace what follows each cut, in another row for each; the first leak that is confirmed.

    An output that is finite in one run alone is reported as overflow. `exact` says that the layer
    gave the same bits in a wider precision.
    """
    rows = rows or run.rows(length)
    unit = max(caller.unit, run.unit)
    for start in range(0, len(cuts), rows):
        if start and run.clock.left < 0:
            break
        some = cuts[start : start + rows]
        drawings = [
            _drawing(run, place, length, cut, start + k, kinds) for k, cut in enumerate(some)
        ]
        found = _compared(run, caller, drawings, unit, exact)
        if caller.dtype == run.caller.dtype and not (caller.training or caller.moved):
            run.lengths.add(length)
            run.cuts += len(some)
            run.futures |= {each.kind for each in drawings}
        for effect in found:
            seen = Observed(drawings[effect.row], effect, tuple(drawings))
            if not effect.is_finite:
                run.report(overflow_finding(run, caller, seen))
            elif _is_confirmed(run, caller, seen, unit, exact):
                return seen
    return None


def read_first(run: CheckRun, place: str, length: int, cuts: Sequence[int]) -> None:
    """Have the layer read the inputs of a search, whose outputs are kept for it."""
    drawings = [_drawing(run, place, length, cut, k, None) for k, cut in enumerate(cuts)]
    _read(run.caller, drawings)


def _drawing(
    run: CheckRun,
    place: str,
    length: int,
    cut: int,
    number: int,
    kinds: Sequence[tuple[str, str]] | None,
) -> Drawing:
    """The same for a seed, a place and a number, however many rows go into one call."""
    chosen = kinds or FUTURES
    kind, future = chosen[(number + number // _FIRST + cut) % len(chosen)]
    # Every other input is ordinary: a leak may need one, or hide in one.
    row = number % _FIRST
    base = BASES[0 if row % 2 == 0 else row // 2 % len(BASES)]
    first, second = run.seed("x", place, length, row), run.seed(place, length, number)
    return Drawing(length, run.width, cut, first, second, base[1], future, kind)


def _compared(
    run: CheckRun,
    caller: Caller,
    drawings: list[Drawing],
    unit: float,
    exact: bool,
    examined: int = 4,
) -> tuple[Effect, ...]:
    g = torch.Generator().manual_seed(run.seed("jitter"))
    x, base = _read(caller, drawings)
    y = torch.stack([each.other(row) for each, row in zip(drawings, x, strict=True)])
    found = effects_of_future(
        caller,
        x,
        [drawing.cut for drawing in drawings],
        y,
        jitter=lambda values, size: jittered(values, size, g),
        unit=unit,
        exact=exact,
        base=base,
        examined=examined,
        moves=_MOVES if exact else 2,
    )
    if caller.dtype == run.caller.dtype:
        run.exact = run.exact and found.exact
    return found.effects


def _read(caller: Caller, drawings: list[Drawing]) -> tuple[Tensor, Tensor]:
    """The inputs, and what the layer gives for them."""
    key = tuple((each.length, each.base_seed, each.base) for each in drawings)
    if key not in caller.kept or caller.fresh:
        if len(caller.kept) >= _FIRST:
            caller.kept.clear()
        x = torch.stack([drawing.x() for drawing in drawings])
        caller.kept[key] = x, caller(x)
    return caller.kept[key]


def _is_confirmed(run: CheckRun, caller: Caller, seen: Observed, unit: float, exact: bool) -> bool:
    """Rounding may flip a sign or move a number to the next step, once in many inputs. So what
    does not shrink with the change, or changes as much when earlier tokens move by a rounding, must
    be seen at one output for a share of other inputs. Where a wider precision gives the same bits,
    because steps hide its rounding or because there is none, a step is what small moves of later
    tokens flip as well."""
    change, times = seen.effect.change, _SAME if exact else 0.0
    is_clear = exact and change > _STEPS * _redrawn(run, caller, seen, unit)
    share, n_flipped = _CLEAR if is_clear else _SHARE, 0
    by_size_alone = exact or is_gross_alone(change, seen.effect.jitter)
    if not by_size_alone and change > SURE * _unsteadiness(run, caller, seen, unit):
        return True
    drawing, rows = seen.drawing, run.rows(seen.drawing.length)
    outputs: Counter[int] = Counter()
    changed: Counter[int] = Counter()
    for start in range(0, _CONFIRMED, rows):
        again = [
            replace(drawing, base_seed=run.seed("again", k), future_seed=run.seed("other", k))
            for k in range(start, min(start + rows, _CONFIRMED))
        ]
        effects = _compared(run, caller, again, unit, exact, len(again))
        changed.update(each.output for each in effects if each.is_finite)
        clear = [each for each in effects if each.change > times * each.jitter]
        outputs.update(each.output for each in clear if each.is_finite)
        n_flipped += len(effects) - len(clear)
    if is_clear and n_flipped < _FLIPPED:  # nothing says that it has steps; few inputs may show it
        return True
    return any(
        count >= _CONFIRMED * share and 2 * count >= changed[output]
        for output, count in outputs.items()
    )


def _redrawn(run: CheckRun, caller: Caller, seen: Observed, unit: float) -> float:
    """How much earlier outputs change if later tokens move a little, in many ways."""
    cut, x = seen.drawing.cut, seen.drawing.x()
    g = torch.Generator().manual_seed(run.seed("redrawn"))
    rows = 1 if run.mixes else _UNSTEADY
    most = 0.0
    for row in (x, _replaced(seen.drawing, x)):
        same = row.expand(rows, -1, -1)
        at = caller(same)[:, :cut]
        for _ in range(_REDRAWN // rows):
            late = jittered(same[:, cut:], move_of(unit), g)
            change = apart(caller(torch.cat([same[:, :cut], late], 1))[:, :cut], at)
            most = max(most, float(change.nan_to_num(0.0, 0.0, 0.0).max()))
    return most


def _unsteadiness(run: CheckRun, caller: Caller, seen: Observed, unit: float) -> float:
    """How much earlier outputs change if earlier tokens move by a few units of the largest token:
    of float32 at least, since what is rounded to steps does not show the precision before them."""
    unit = max(unit, unit_of(torch.float32))
    drawing = seen.drawing
    x = drawing.x()
    y = _replaced(drawing, x)
    g = torch.Generator().manual_seed(run.seed("unsteady"))
    most = 0.0
    step = 4 * unit * float(torch.stack([x, y]).abs().max())
    for row in (x, y):
        same = row.expand(1 if run.mixes else _UNSTEADY, -1, -1)
        earlier = same[:, : drawing.cut]
        ways = torch.randint(0, 2, earlier.shape, generator=g) * 2 - 1
        moved = torch.cat([earlier + step * ways, same[:, drawing.cut :]], 1)
        change = apart(caller(moved), caller(same))[:, : drawing.cut]
        most = max(most, float(change.nan_to_num(0.0, 0.0, 0.0).max()))
    return most


def finding_of(
    run: CheckRun, caller: Caller, clause: str, seen: Observed, how: str = ""
) -> Finding:
    """A leak as a finding, narrowed to one row, and one later token, where these are enough."""
    seen = _smaller(run, caller, seen)
    if not seen.batch:
        seen = _narrowed(run, caller, seen)
    drawing, effect = seen.drawing, seen.effect
    if not caller.fresh and _change(caller, seen) and not _change(caller.like(), seen):
        return _after_calls(run, caller, seen)
    first, length = effect.output + 1, drawing.length
    if drawing.later is not None:
        later, changed = drawing.later + 1, f"token {drawing.later + 1} does"
    else:
        later, changed = drawing.cut + 1, f"tokens {drawing.cut + 1} to {length} do"
        changed = f"token {length} does" if drawing.cut + 1 == length else changed
    noise = f"; rounding gives {effect.noise:.1e}" if effect.noise else ""
    batch = f", in a batch of {len(seen.batch)}" if seen.batch else ""
    sentence = (
        f"output {first} of {length} changes when {changed}{how}{batch}: the largest change of an "
        f"earlier output is {effect.size:.1e} of the largest output{noise}"
    )
    return Finding(
        clause, sentence, length, first, later, effect.size, effect.noise,
        _code(caller, seen, later),
    )  # fmt: skip


def _change(caller: Caller, seen: Observed) -> float:
    """The largest change of an earlier output, as the Python of a finding sees it."""
    xs = [each.x() for each in seen.rows]
    ys = [_replaced(each, x) for each, x in zip(seen.rows, xs, strict=True)]
    row, cut = seen.effect.row, seen.drawing.cut
    base, out = (caller(torch.stack(each))[row, :cut] for each in (xs, ys))
    return float(apart(base, out).nan_to_num(0.0, 0.0, 0.0).max())


def _replaced(drawing: Drawing, x: Tensor) -> Tensor:
    return torch.cat([x[: drawing.cut], drawing.other(x)[drawing.cut :]])


def _after_calls(run: CheckRun, caller: Caller, seen: Observed) -> Finding:
    """A leak that a new layer does not have: what it reads depends on the calls before."""
    drawing, effect = seen.drawing, seen.effect
    lengths = sorted(length for length in run.taken if length <= drawing.length)
    built, shown = caller.run_lines(drawing.length), _code(caller, seen, drawing.cut + 1)
    before = [
        f"for n in {lengths}:",
        "    run(torch.zeros(1, n, D, dtype=torch.float64))",
    ]
    code = "\n".join([*built, *before, *shown.splitlines()[len("\n".join(built).splitlines()) :]])
    return Finding(
        "stateless",
        f"output {effect.output + 1} of {drawing.length} changes when later tokens do, but after "
        f"other calls only: by {effect.size:.1e} of the largest output, in a new layer not at all",
        drawing.length, effect.output + 1, drawing.cut + 1, effect.size, effect.noise, code,
    )  # fmt: skip


def overflow_finding(run: CheckRun, caller: Caller, seen: Observed) -> Finding:
    """An earlier output that is finite with one future alone."""
    drawing, first = seen.drawing, seen.effect.output + 1
    sentence = (
        f"output {first} of {drawing.length} is infinite or NaN with one future and finite with "
        f"another: tokens {drawing.cut + 1} to {drawing.length} {drawing.kind}"
    )
    return Finding(
        "overflow", sentence, drawing.length, first, drawing.cut + 1, None, None,
        _code(caller, Observed(drawing, seen.effect), drawing.cut + 1),
    )  # fmt: skip


def _smaller(run: CheckRun, caller: Caller, seen: Observed) -> Observed:
    """The same in a batch of one, if it shows there; else in one of equal rows."""
    for rows in (1, 2, len(seen.rows)):
        effects = _effects(run, caller, [seen.drawing] * rows)
        if effects:
            batch = (seen.drawing,) * rows if rows > 1 else ()
            return Observed(seen.drawing, effects[-1], batch)
    return seen if len(seen.batch) > 1 else replace(seen, batch=())


def _effects(run: CheckRun, caller: Caller, drawings: list[Drawing]) -> list[Effect]:
    was = run.exact
    unit = max(caller.unit, run.unit)
    found = _compared(run, caller, drawings, unit, False)
    run.exact = was
    return [each for each in found if each.is_finite]


def _narrowed(run: CheckRun, caller: Caller, seen: Observed) -> Observed:
    """The nearest later token that alone changes the first output, if there is one."""
    drawing, effect = seen.drawing, seen.effect
    tokens = [t for t in range(drawing.cut, drawing.length)]
    tokens = sorted({*tokens[:_NARROWED], *tokens[-4:]})
    x = drawing.x()
    rows = run.rows(drawing.length)
    unit = max(caller.unit, run.unit)
    for start in range(0, len(tokens), rows):
        if run.clock.left < 0:
            return seen
        some = [replace(drawing, later=t) for t in tokens[start : start + rows]]
        base = caller(x.expand(len(some), -1, -1))
        out = caller(torch.stack([each.other(x) for each in some]))
        for row, each in enumerate(some):
            change = apart(base[row], out[row])[: drawing.cut].flatten(1).amax(1)
            scale = max(float(base[row].abs().max()), float(out[row].abs().max()))
            large = is_leak(float(change[effect.output]), effect.jitter, scale, unit)
            if large and float(change[effect.output]) < torch.inf:
                alone = _effects(run, caller, [each])
                if alone and alone[0].output <= effect.output:
                    return Observed(each, alone[0])
    return seen


def _code(caller: Caller, seen: Observed, later: int) -> str:
    """Python that shows a leak alone."""
    drawing = seen.drawing
    who = f"token {later}" if drawing.later is not None else f"tokens {later} to {drawing.length}"
    row, x, y = "0", "x[None]", "y[None]"
    drawn: tuple[str, ...] = drawing.lines()
    if seen.batch and len(set(seen.batch)) == 1:
        row = str(seen.effect.row)
        x, y = (f"{each}.repeat({len(seen.batch)}, 1, 1)" for each in "xy")
    elif seen.batch:
        row, x, y = str(seen.effect.row), "torch.stack(xs)", "torch.stack(ys)"
        drawn = _batch_lines(seen)
    return "\n".join(
        (
            *caller.run_lines(drawing.length),
            *drawn,
            f"a, b = run({x})[{row}, :cut], run({y})[{row}, :cut]",
            f'print("{who} changed: outputs 1 to", cut, "change by", float((a - b).abs().max()))',
        )
    )


def _batch_lines(seen: Observed) -> tuple[str, ...]:
    """Python that draws all rows of a batch, and what replaces their later tokens."""
    rows = ((d.cut, d.base_seed, d.future_seed, d.base, d.future) for d in seen.batch)
    return (
        "rows = [",
        *(f"    {each}," for each in rows),
        "]",
        "xs, ys = [], []",
        "for cut, first, second, base, future in rows:",
        "    g = torch.Generator().manual_seed(first)",
        "    x = eval(base)",
        "    g = torch.Generator().manual_seed(second)",
        "    y = eval(future)",
        "    xs.append(x)",
        "    ys.append(torch.cat([x[:cut], y[cut:]]))",
        f"cut = rows[{seen.effect.row}][0]",
    )


def late_rows(length: int, cuts: Tensor) -> Tensor:
    """Which tokens come after each cut; (row, token)."""
    return torch.arange(length) >= cuts[:, None]
