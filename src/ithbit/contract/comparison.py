"""When two outputs that should be equal differ by more than rounding.

Two ways, and neither needs a tolerance chosen by hand.

*Same shape.* A model runs twice on inputs of one shape that differ in nothing but their later
tokens. Nearly every causal implementation then gives the same bits before the cut. Where it does
not (FFTs, cumulative sums, a stabiliser over all tokens), rounding draws anew already if the later
tokens are moved by a thousandth of themselves (2^-10), while a leak shrinks a thousand times. So a
change is a leak if it is more than `FLOOR` units of the largest output, and more than `SURE` times
the response to such a move; or more than `GROSS` of the largest output, for what does not shrink
(a hash of the bits, an argmax).

*Other shapes.* A prefix, a smaller batch, step by step: other sums in another order. What rounding
may do there is estimated from the model itself: its response to a relative move of 2^-20, scaled
to the unit of its arithmetic, times `MARGIN`. Arithmetic as coarse as bfloat16 cannot follow such
a move: there it is one unit, and the margin `COARSE_MARGIN`.

NaN never decides by itself and never counts as equal: an output that is finite in one run alone is
reported apart from leaks, and what is finite in neither was not compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

JITTER = (
    2.0**-10
)  # the relative move of later tokens by which rounding is distinguished from a leak
SMALL_STEP = 2.0**-20  # the relative move that measures the condition of a model
SURE, GROSS, FLOOR, MARGIN = 30.0, 1e-3, 4.0, 1e3
COARSE, COARSE_MARGIN = 2.0**-10, 4.0  # the unit of float16: from there on arithmetic is coarse
Run = Callable[[Tensor], Tensor]  # (row, token, …) to (row, token, …)
Jitter = Callable[[Tensor, float], Tensor]  # inputs moved by so much of themselves


def unit_of(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number: the unit of rounding.

    >>> unit_of(torch.float32) == 2**-23
    True
    """
    return float(torch.finfo(dtype).eps)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """|one - other| in float64: infinite where one alone is finite, NaN where neither is."""
    one, other = one.double(), other.double()
    change = (one - other).abs()
    change = torch.where(one.isfinite() ^ other.isfinite(), torch.inf, change)
    return torch.where(one.isfinite() | other.isfinite(), change, torch.nan)


def largest(values: Tensor) -> Tensor:
    """The largest finite size in each row, at least the smallest positive number."""
    finite = torch.where(values.isfinite(), values.double().abs(), 0.0)
    return finite.flatten(1).amax(1).clamp(min=1e-300)


def is_leak(change: float, jitter: float, scale: float, unit: float) -> bool:
    """Whether outputs before a cut that change by `change` read what comes after it; `jitter` is
    their change if later tokens move by `JITTER` of themselves, `scale` the largest output.

    >>> is_leak(8e-16, 0.0, 1.0, 2**-52), is_leak(1e-13, 1e-16, 1.0, 2**-52)
    (False, True)
    >>> is_leak(1e-6, 5e-7, 1.0, 2**-23)  # rounding in float32, drawn anew
    False
    """
    if not change > FLOOR * unit * scale:
        return False
    return change > SURE * jitter or change > GROSS * scale


def is_gross_alone(change: float, jitter: float) -> bool:
    """Whether a leak was called by its size alone: a sign that flips by rounding looks the same
    once, so such a finding should be seen again at another input."""
    return not change > SURE * jitter


def move_of(unit: float) -> float:
    """The relative move of later tokens that draws rounding anew; numbers of so coarse a unit can
    follow it."""
    return max(JITTER, 2 * unit)


def small_step(unit: float) -> float:
    """The relative move by which rounding in another shape is estimated.

    >>> small_step(2**-52) == SMALL_STEP, small_step(2**-7) == 2**-7
    (True, True)
    """
    return SMALL_STEP if unit < COARSE else unit


def tolerance(response: Tensor | float, scale: Tensor | float, unit: float) -> Tensor:
    """How far two computations of the same thing in another shape may be apart, where `response` is
    the change by a relative move of the inputs by `small_step(unit)`, `scale` the size of outputs.

    >>> float(tolerance(0.0, 1.0, 2**-7))  # bfloat16
    0.03125
    """
    moved = torch.as_tensor(response, dtype=torch.float64)
    size = torch.as_tensor(scale, dtype=torch.float64)
    margin = MARGIN if unit < COARSE else COARSE_MARGIN
    return margin * unit * (moved / small_step(unit) + size)


def jittered(values: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Every number moved up or down by `size` of itself."""
    ways = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    return values * (1 + size * ways.to(values))


@dataclass(frozen=True)
class Effect:
    """Later tokens that change an earlier output, in one row of a comparison."""

    row: int
    cut: int  # tokens from here on (from 0) were replaced
    output: int  # the first output (from 0) that changes by more than rounding
    change: float  # the largest change, infinite if an output is finite in one run alone
    jitter: float  # the response to the small move of later tokens
    scale: float  # the largest output

    @property
    def size(self) -> float:
        """The change as a part of the largest output."""
        return self.change / self.scale

    @property
    def noise(self) -> float:
        """The response to the small move as a part of the largest output."""
        return self.jitter / self.scale

    @property
    def is_finite(self) -> bool:
        """If not, this is no leak: it may be an overflow of large tokens alone."""
        return self.change < torch.inf


@dataclass(frozen=True)
class FutureEffects:
    """All effects of other futures; `exact` if every earlier output had the same bits, `compared`
    the rows of which any earlier output is finite."""

    effects: tuple[Effect, ...]
    exact: bool
    compared: int


def effects_of_future(
    run: Run,
    inputs: Tensor,
    cuts: Sequence[int],
    futures: Tensor,
    *,
    jitter: Jitter | None,
    unit: float,
    exact: bool = False,
    examined: int = 4,
    base: Tensor | None = None,
    moves: int = 2,
) -> FutureEffects:
    """The earlier outputs that change when row r of `inputs` is replaced by row r of `futures` from
    token cuts[r] on, by more than rounding.

    Both have shape (row, token, …) and need not be numbers with a fraction: token ids do, but then
    there is no `jitter` and rounding counts as 64 units. `exact` says that the same comparison gave
    the same bits in a wider precision, so that any other bit here is a leak. Of the rows that
    change, the `examined` worst are compared with so many `moves`. `base` is run(inputs), if it is
    there.
    """
    n_tokens = inputs.shape[1]
    cut = torch.as_tensor(cuts, device=inputs.device)
    late = torch.arange(n_tokens, device=inputs.device) >= cut[:, None]  # (row, token)
    over_inputs = late.reshape(*late.shape, *[1] * (inputs.dim() - 2))
    mixed = torch.where(over_inputs, futures, inputs)
    base = run(inputs) if base is None else base
    out = run(mixed)
    earlier = ~late.reshape(*late.shape, *[1] * (base.dim() - 2)).to(base.device)
    change = torch.where(earlier, apart(base, out), 0.0)
    known = (earlier & ~change.isnan()).flatten(1).any(1)
    change = change.nan_to_num(nan=0.0, posinf=torch.inf)
    if not change.any():
        return FutureEffects((), True, int(known.sum()))
    finite = torch.where(change.isinf(), 0.0, change)
    sizes, scale = finite.flatten(1).amax(1), torch.maximum(largest(base), largest(out))
    floor = torch.zeros_like(scale) if exact else FLOOR * unit * scale
    over = int((sizes > floor).sum())
    effects = []
    if over:
        rows = torch.where(sizes > floor, sizes / scale, 0.0).topk(min(examined, over)).indices
        if jitter is None:
            noise = 64 * unit * scale[rows] / SURE
        else:
            noise = _noise(run, (inputs, mixed), over_inputs, earlier, rows, jitter, unit, moves)
        for row, small in zip(rows.tolist(), noise.tolist(), strict=True):
            size, top = float(sizes[row]), float(scale[row])
            if exact or is_leak(size, small, top, unit):
                alone = is_gross_alone(size, small)
                least = size / 2 if alone else max(SURE * small, float(floor[row]))
                least = 0.0 if exact else least
                seen = (finite[row].flatten(1).amax(1) > least).nonzero()
                effects.append(Effect(row, int(cut[row]), int(seen[0, 0]), size, small, top))
    leaking = {effect.row for effect in effects}
    for row in (change.isinf().flatten(1).any(1)).nonzero().flatten().tolist():
        if row not in leaking:
            seen = change[row].isinf().flatten(1).any(1).nonzero()
            top = float(scale[row])
            effects.append(Effect(row, int(cut[row]), int(seen[0, 0]), torch.inf, 0.0, top))
    effects.sort(key=lambda effect: effect.row)
    return FutureEffects(tuple(effects), False, int(known.sum()))


def _noise(
    run: Run,
    both: tuple[Tensor, Tensor],
    late: Tensor,
    earlier: Tensor,
    rows: Tensor,
    jitter: Jitter,
    unit: float,
    moves: int,
) -> Tensor:
    """How much earlier outputs of some rows change if later tokens move a little, around both
    inputs."""
    size = move_of(unit)
    late, earlier = late[rows.to(late.device)], earlier[rows]
    noise = torch.zeros(len(rows), dtype=torch.float64, device=earlier.device)
    for values in both:
        some = values[rows.to(values.device)]
        at = run(some)
        for _ in range(moves):
            again = run(torch.where(late, jitter(some, size), some))
            moved = torch.where(earlier, apart(again, at), 0.0)
            noise = noise.maximum(moved.nan_to_num(0.0, 0.0, 0.0).flatten(1).amax(1))
    return noise
