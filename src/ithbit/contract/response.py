"""Whether the derivative describes how a layer's outputs change, as the causal rank assumes.

Autograd's Jacobian of a layer that rounds is 0 although its outputs change, that of a detached part
is 0 whatever the part does, and that of a straight-through estimator belongs to another function.
So inputs 1, …, k - 1 are actually changed, and the changes of outputs k, k + 1, … are compared with
the derivative. *Observed*, at random points: an observed difference is a fact, but differences may
go unobserved.

* For a small step, the change must match the Jacobian, for a sample of the outputs. Agreement on
  one side is enough, so a kink, as in a ReLU, is not a fault.
* Along the straight line to other inputs, and as far the other way: repeatedly halving the
  intervals in which outputs bend most makes the change of a continuous output vanish but keeps a
  jump whole. The shortest interval is 2^-42 of the line, so an output that amplifies a change by
  10^5 and more, as a chaotic recurrence does, is taken for one that jumps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.contract.jacobian import rows_of

_GRID = 64  # intervals of the line
_FOLLOWED = 64  # outputs whose interval is halved: those that bend most
_COMPARED = 128  # outputs whose change is compared with the derivative
_FLOOR = 1e-5  # of the greatest change: smaller ones drown in the curvature of the others


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Sharpness:
    """Tolerances for a dtype; sizes are relative."""

    step: float
    agree: float  # allowed difference of a change from the Jacobian's
    noise: float  # of a change, relative to the size of the outputs
    halvings: int
    jump: float  # relative to the size of the outputs


# float32 must tolerate kernels that multiply with ten bits, which jump by 1e-3.
_FLOAT64 = _Sharpness(1e-6, 1e-2, 1e-11, 36, 1e-8)
_FLOAT32 = _Sharpness(5e-2, 0.5, 5e-3, 12, 2e-2)


@dataclass(frozen=True)
class Response:
    """How outputs k, k + 1, … were observed to respond when inputs 1, …, k - 1 changed."""

    moves: bool  # some of them changed
    strays: bool  # some changed differently from what the Jacobian says, on both sides
    jumps: bool  # some are not continuous


@torch.no_grad()
def response(layer: Function, x: Tensor, other: Tensor, k: int) -> Response:
    """Change the first k - 1 tokens of x (token, width) towards `other`.

    >>> x, other = torch.randn(2, 4, 1, dtype=torch.float64, generator=torch.manual_seed(0))
    >>> response(torch.nn.Identity(), x, other, k=3)
    Response(moves=False, strays=False, jumps=False)
    """
    sharp = _FLOAT64 if x.dtype == torch.float64 else _FLOAT32
    away = torch.zeros_like(x)
    away[: k - 1] = (other - x)[: k - 1]

    def at(t: Tensor) -> Tensor:
        moved = x + t.to(x)[:, None, None] * away
        return layer(moved)[:, k - 1 :].flatten(1).double().cpu()

    grid = torch.linspace(-1, 1, _GRID + 1, dtype=torch.float64)
    along = at(grid)
    if not along.isfinite().all():  # outside the layer's domain
        return Response(False, False, False)
    size = float(along.abs().max())
    moves = bool(((along - along[0]).abs().amax(0) > sharp.noise * size).any())
    step = sharp.step / float(away.norm())
    which = torch.randperm(along.shape[1], generator=torch.Generator().manual_seed(k))[:_COMPARED]
    before, here, after = at(torch.tensor([-step, 0.0, step], dtype=torch.float64))[:, which]
    strays = _strays(before, here, after, _slope(layer, x, away, k, which), sharp, size)
    return Response(moves, strays, _jumps(at, grid, along, sharp, size))


def _slope(layer: Function, x: Tensor, away: Tensor, k: int, which: Tensor) -> Tensor:
    """How fast some of the outputs from k on change along `away`, according to the derivative."""
    later = x[k - 1 :]
    looks = torch.zeros(len(which), later.numel(), dtype=x.dtype, device=x.device)
    looks[torch.arange(len(which)), which] = 1.0
    with torch.enable_grad():
        rows = rows_of(
            layer,
            x[: k - 1],
            later.expand(len(which), -1, -1),
            looks.view(len(which), *later.shape),
        )
    unit = away[: k - 1].double().flatten().cpu()
    return rows @ (unit / unit.norm())


def _strays(
    before: Tensor, here: Tensor, after: Tensor, expected: Tensor, sharp: _Sharpness, size: float
) -> bool:
    """Whether an output's rate of change is not as expected: forward, back and on average."""
    back, forward = (here - before) / sharp.step, (after - here) / sharp.step
    found = torch.stack([back, forward, (back + forward) / 2])
    both = found.abs() + expected.abs()
    allowed = sharp.agree * both + _FLOOR * both.max() + sharp.noise * size / sharp.step
    return bool(((found - expected).abs() > allowed).all(0).any())


def _jumps(
    at: Callable[[Tensor], Tensor], grid: Tensor, along: Tensor, sharp: _Sharpness, size: float
) -> bool:
    """Whether an output keeps its change no matter how short the interval becomes."""
    change = along.diff(dim=0)
    sides = torch.cat([change[1:2], change, change[-2:-1]])  # the ends have one neighbour twice
    bend, most = (2 * change - sides[:-2] - sides[2:]).abs().max(0)
    which = bend.topk(min(_FOLLOWED, len(bend))).indices
    start = most[which]
    low, high = grid[start], grid[start + 1]
    out_low, out_high = along[start, which], along[start + 1, which]
    for _ in range(sharp.halvings):
        middle = (low + high) / 2
        out = at(middle).gather(1, which[:, None])[:, 0]
        first = (out - out_low).abs() >= (out_high - out).abs()
        low, out_low = torch.where(first, low, middle), torch.where(first, out_low, out)
        high, out_high = torch.where(first, middle, high), torch.where(first, out, out_high)
    return bool(((out_high - out_low).abs() > sharp.jump * size).any())
