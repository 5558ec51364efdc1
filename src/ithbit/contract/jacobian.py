"""Rows of a layer's Jacobian, and which of its singular values are more than rounding.

A *row* is the derivative, with respect to the past, of one random combination of the outputs after
it: one backward pass. All rows share the same past, and each has its own random continuation, so
with a spare row left over they see everything that any continuation sees.

A computed row is the true one plus a rounding error, A = J + E. By Weyl's inequality singular value
i of A is within |E| of that of J, so a value above |E| belongs to the layer, and one below it
cannot be distinguished from 0. E is not known. It is estimated by recomputing a sample of the rows
in ways that change only rounding, or no more than rounding does:

* the outputs are weighted by another number, which is divided out: no effect in exact arithmetic;
* weights and inputs are moved by one unit in the last place: no computation can be more accurate;
* the copies are at other places in a batch of another size, so other code may compute them;
* forward mode computes the same numbers in the opposite order, where the layer supports it.

The largest of these differences, and at least a unit in the last place of every number, is the
noise. Columns are divided by their noise: this does not change the rank, keeps a memory that has
faded to 1e-20 as sharp as its computation was, and lifts no rounding above the noise.

A value counts if it is above `_SURE` times the noise. The others are taken to be 0 only if there is
a gap: no value within `_GAP` of the noise, nor so close to it that one more gap as wide as those
among the counted values would reach below it. A spectrum that fades into the noise has at least the
counted rank, and no claim is made about the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ithbit.models.user_code import FAILURES

_BATCH = 128  # rows at once
_SPARE = 8  # rows beyond the rank
_SAMPLE = 48  # rows to recompute
_AGAIN = 2  # how often
_SURE = 8.0  # errors common to all computations, such as those of constants, do not show up
_GAP = 1e3
_NOISE = 2.0


@dataclass(frozen=True)
class Spectrum:
    """Singular values in units of the noise, largest first, of rows with `columns` numbers each.

    They are computed from the columns divided by their noise.
    """

    values: tuple[float, ...]
    columns: int

    @property
    def rank(self) -> int:
        """How many values are above the noise: at least this many directions count."""
        return sum(value > _SURE for value in self.values)

    @property
    def settled(self) -> bool:
        """Whether a gap, or the number of columns, shows that the rank is no greater."""
        rank = self.rank
        if rank == self.columns:
            return True
        if any(value > _NOISE for value in self.values[rank:]):
            return False
        counted = self.values[:rank]
        gaps = sorted(a / b for a, b in pairwise(counted)) or [1.0]
        widest = gaps[-1] * gaps[-2 if len(gaps) > 1 else -1]
        return not rank or counted[-1] > _SURE * max(_GAP, widest)


@dataclass(frozen=True)
class Point:
    """A layer, and a past (token, width) at which to differentiate it.

    `weights` take the place of the layer's own. The layer itself is never copied: one that keeps a
    tensor of its last call cannot be.
    """

    layer: nn.Module
    past: Tensor
    seed: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.layer, dict(self.weights), (x,))
        return out

    def spectrum(self, k: int, n_later: int, expected: int) -> Spectrum | None:
        """The singular values at k, with `n_later` tokens from k on; None if not finite.

        Rows are added until there are spare ones; `expected` is a first guess of the rank.
        """
        past = self.past[: k - 1]
        generator = torch.Generator().manual_seed(self.seed + 1000 * k)
        most = past.numel() + _SPARE
        n_rows = min(most, max(expected + _SPARE, 4 * _SPARE))
        later = looks = past.new_empty(0, n_later, past.shape[1])
        rows = torch.empty(0, past.numel(), dtype=torch.float64)
        while True:
            shape = (n_rows - len(rows), *later.shape[1:])
            drawn = torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(past)
            rows = torch.cat([rows, rows_of(self, past, *drawn)])
            later, looks = torch.cat([later, drawn[0]]), torch.cat([looks, drawn[1]])
            if not rows.isfinite().all():
                return None
            if n_rows == most or not _independent(rows, torch.finfo(past.dtype).eps ** 0.5):
                found = self._measured(past, later, looks, rows, generator)
                if found is None or n_rows == most or found.rank + _SPARE <= n_rows:
                    return found
            n_rows = min(most, n_rows + max(n_rows // 2, past.shape[1]))

    def _measured(
        self, past: Tensor, later: Tensor, looks: Tensor, rows: Tensor, generator: torch.Generator
    ) -> Spectrum | None:
        n_rows, n_columns = rows.shape
        unit = torch.finfo(past.dtype).eps
        sample = torch.linspace(0, n_rows - 1, min(_SAMPLE, n_rows)).long()
        errors = [
            self._again(past, later[sample], looks[sample], generator) - rows[sample]
            for _ in range(_AGAIN)
        ]
        last_place = unit * rows.square().mean(0).sqrt()
        column = torch.stack([e.square().mean(0).sqrt() for e in errors]).amax(0)
        column = column.maximum(last_place)
        if not column.isfinite().all():
            return None
        if column.max() == 0:
            return Spectrum((), n_columns)
        column = column.maximum(1e-60 * column.max())
        share = (n_rows / len(sample)) ** 0.5
        norm = max(float(torch.linalg.matrix_norm(e / column, 2)) for e in errors)
        noise = max(share * norm, n_rows**0.5 + n_columns**0.5)
        noise *= self._forward(past, later[sample], looks[sample], rows[sample], column, norm)
        values = _singular_values(rows / column)
        noise = max(noise, _SURE * torch.finfo(torch.float64).eps * float(values[0]))
        return Spectrum(tuple((values / noise).tolist()), n_columns)

    def _again(
        self, past: Tensor, later: Tensor, looks: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The same rows, computed with different rounding."""
        own = dict(self.layer.named_parameters()) | dict(self.weights)
        near = {name: _jittered(value, generator) for name, value in own.items()}
        weight = 1 + torch.rand(len(looks), generator=generator, dtype=torch.float64)
        weighted = looks * weight.to(looks)[:, None, None]
        found = rows_of(
            replace(self, weights=near),
            _jittered(past, generator),
            _jittered(later, generator).flip(0),
            weighted.flip(0),
        )
        return found.flip(0) / weight[:, None]

    def _forward(
        self,
        past: Tensor,
        later: Tensor,
        looks: Tensor,
        rows: Tensor,
        column: Tensor,
        norm: float,
    ) -> float:
        """The factor by which forward mode differs from the rows more than recomputed rows do."""
        generator = torch.Generator().manual_seed(self.seed)
        along = torch.randn(rows.shape, generator=generator, dtype=torch.float64) / column
        tangent = along.view(len(rows), *past.shape).to(past)
        start = torch.cat([past.expand(len(later), -1, -1), later], 1)
        try:
            with forward_ad.dual_level(), torch.no_grad():
                x = forward_ad.make_dual(start, torch.cat([tangent, torch.zeros_like(later)], 1))
                change = forward_ad.unpack_dual(self(x)).tangent
        except FAILURES:
            return 1.0
        if change is None or not change.isfinite().all():
            return 1.0
        forward = (change[:, len(past) :] * looks).double().flatten(1).sum(1).cpu()
        apart = (forward - (rows * along).sum(1)).norm()
        return max(1.0, float(apart) / (norm * len(rows) ** 0.5))


def rows_of(
    layer: Callable[[Tensor], Tensor], past: Tensor, later: Tensor, looks: Tensor
) -> Tensor:
    """The derivative with respect to the past of the outputs after it, weighted by `looks`.

    `past` is token, width; `later` and `looks` are row, token, width.
    """
    found = []
    for start in range(0, len(later), _BATCH):
        tail, look = later[start : start + _BATCH], looks[start : start + _BATCH]
        copies = past.expand(len(tail), -1, -1).clone().requires_grad_()
        out = layer(torch.cat([copies, tail], 1))[:, len(past) :]
        # A layer that ignores its input, or treats it as a constant, has no backward graph.
        if not out.requires_grad:
            return torch.zeros(len(later), past.numel(), dtype=torch.float64)
        (grad,) = torch.autograd.grad(out, copies, look, materialize_grads=True)
        found.append(grad.flatten(1).double().cpu())
    return torch.cat(found)


def _jittered(value: Tensor, generator: torch.Generator) -> Tensor:
    """Every number moved by one unit in the last place, up, down or not at all."""
    way = torch.randint(-1, 2, value.shape, generator=generator).to(value)
    return value.detach() * (1 + torch.finfo(value.dtype).eps * way)


def _independent(rows: Tensor, far: float) -> bool:
    """Whether each row is so far from the span of the others that it cannot be due to rounding."""
    values = _singular_values(rows)
    return bool(values[-1] > far * values[0])


def _singular_values(matrix: Tensor) -> Tensor:
    """As `svdvals`, via a QR decomposition: three times as fast unless the matrix is square."""
    tall = matrix if len(matrix) > matrix.shape[1] else matrix.mT
    return torch.linalg.svdvals(torch.linalg.qr(tall, mode="r").R)
