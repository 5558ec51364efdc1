"""Rows of a layer's Jacobian, and which of its singular values are more than rounding.

A *row* is the derivative of one random combination of the outputs after the past with respect to
the past: one backward pass. Every row has a random continuation of its own, all have the same past,
so with a spare row left over they see all that any continuation sees.

A computed row is the true one and an error of rounding, A = J + E. By Weyl's inequality singular
value i of A is within |E| of that of J, so a value above |E| is one of the layer's, and one below
it cannot be told from 0. E is not known. It is estimated by computing a sample of the rows again in
ways that change nothing but rounding, or no more than rounding does:

* the outputs are weighted by another number, which is divided out: exact arithmetic would not tell;
* weights and inputs are moved by a unit in the last place, to which no computation is owed better;
* the copies stand at other places of a batch of another size, so other code may serve them;
* forward mode computes the same numbers in the other order, where the layer knows it.

The greatest of these differences, and no less than a unit in the last place of every number,
is the noise. Columns are divided by their noise: that changes no rank, it leaves a memory that has
faded to 1e-20 as sharp as its computation was, and lifts no rounding above the noise.

A value counts from `_SURE` times the noise on. That the others are 0 is believed only if there is
a gap: no value within `_GAP` of the noise, nor so near to it that one more gap as wide as those
among the values that count would reach below it. A spectrum that fades into the noise has at least
the rank counted, and nothing is said of the rest.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ithbit.models.layer_source import FAILURES

_BATCH = 128  # rows at once
_SPARE = 8  # rows more than the rank
_SAMPLE = 48  # rows computed again
_AGAIN = 2  # times
_SURE = 8.0  # errors common to all computations, such as those of constants, are not seen to differ
_GAP = 1e3
_NOISE = 2.0


@dataclass(frozen=True)
class Spectrum:
    """Singular values in units of the noise, greatest first, of rows with `columns` numbers each.

    The values are of the columns divided by their noise.
    """

    values: tuple[float, ...]
    columns: int

    @property
    def rank(self) -> int:
        """How many values stand out of the noise: at least so many directions count."""
        return sum(value > _SURE for value in self.values)

    @property
    def settled(self) -> bool:
        """Whether a gap, or that there are no more columns, says that the rank is no greater."""
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
    """A layer, and a past at which to look at it: token, width."""

    layer: nn.Module
    past: Tensor
    seed: int

    def spectrum(self, k: int, n_later: int, expected: int) -> Spectrum | None:
        """The singular values at k, with `n_later` tokens from k on; None if not finite.

        Rows are added until some are spare; `expected` is the rank to start with.
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
            rows = torch.cat([rows, rows_of(self.layer, past, *drawn)])
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
        """The same rows, computed with other roundings."""
        layer = copy.deepcopy(self.layer)
        with torch.no_grad():
            for value in layer.parameters():
                value.copy_(_jittered(value, generator))
        weight = 1 + torch.rand(len(looks), generator=generator, dtype=torch.float64)
        weighted = looks * weight.to(looks)[:, None, None]
        found = rows_of(
            layer, _jittered(past, generator), _jittered(later, generator).flip(0), weighted.flip(0)
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
        """By what factor forward mode differs more from the rows than they do among themselves."""
        generator = torch.Generator().manual_seed(self.seed)
        along = torch.randn(rows.shape, generator=generator, dtype=torch.float64) / column
        tangent = along.view(len(rows), *past.shape).to(past)
        start = torch.cat([past.expand(len(later), -1, -1), later], 1)
        try:
            with forward_ad.dual_level(), torch.no_grad():
                x = forward_ad.make_dual(start, torch.cat([tangent, torch.zeros_like(later)], 1))
                change = forward_ad.unpack_dual(self.layer(x)).tangent
        except FAILURES:
            return 1.0
        if change is None or not change.isfinite().all():
            return 1.0
        forward = (change[:, len(past) :] * looks).double().flatten(1).sum(1).cpu()
        apart = (forward - (rows * along).sum(1)).norm()
        return max(1.0, float(apart) / (norm * len(rows) ** 0.5))


def rows_of(layer: nn.Module, past: Tensor, later: Tensor, looks: Tensor) -> Tensor:
    """The derivative in the past of the outputs after it, weighted by `looks`: a row each.

    `past` is token, width; `later` and `looks` are row, token, width.
    """
    found = []
    for start in range(0, len(later), _BATCH):
        tail, look = later[start : start + _BATCH], looks[start : start + _BATCH]
        copies = past.expand(len(tail), -1, -1).clone().requires_grad_()
        out = layer(torch.cat([copies, tail], 1))[:, len(past) :]
        # A layer that ignores its input, or copies it as a constant, has no graph to go back.
        if not out.requires_grad:
            return torch.zeros(len(later), past.numel(), dtype=torch.float64)
        (grad,) = torch.autograd.grad(out, copies, look, materialize_grads=True)
        found.append(grad.flatten(1).double().cpu())
    return torch.cat(found)


def _jittered(value: Tensor, generator: torch.Generator) -> Tensor:
    """Every number moved by a unit in the last place, up, down or not."""
    way = torch.randint(-1, 2, value.shape, generator=generator).to(value)
    return value.detach() * (1 + torch.finfo(value.dtype).eps * way)


def _independent(rows: Tensor, far: float) -> bool:
    """Whether all rows are so far from each other's span that rounding is out of the question."""
    values = _singular_values(rows)
    return bool(values[-1] > far * values[0])


def _singular_values(matrix: Tensor) -> Tensor:
    """As `svdvals`, by way of a triangle: three times as fast where rows and columns differ."""
    tall = matrix if len(matrix) > matrix.shape[1] else matrix.mT
    return torch.linalg.svdvals(torch.linalg.qr(tall, mode="r").R)
