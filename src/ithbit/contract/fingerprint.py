"""The fingerprint: how many numbers of the past one later output sees (Definition 11 of the paper).

If the k-th output is a smooth function of the k-th token and of p numbers, themselves a smooth
function of the tokens before, then its derivative with respect to these, stacked over many k-th
tokens, has rank at most p. *Proved*: the rank is a lower bound on p. That it is no larger is
*observed*. The causal rank looks at all later outputs and measures the whole state; through filters
that do not depend on the input one output sees one sum per channel, however much they keep.

It is measured at two k, at the layer's own weights and at moved ones, as the causal rank is.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ithbit.contract.jacobian import Point
from ithbit.contract.rank import moved_weights


@dataclass(frozen=True)
class Fingerprint:
    """Ranks at two k; if not `settled`, singular values fade into the rounding."""

    at: tuple[int, int]
    ranks: tuple[int, int]
    settled: bool

    @property
    def numbers(self) -> int | None:
        """The rank, if it is the same at both k; else None."""
        return self.ranks[0] if self.settled and len(set(self.ranks)) == 1 else None

    def sentence(self) -> str:
        """What one later output sees, in words.

        >>> print(Fingerprint((16, 32), (6, 6), True).sentence())
        one later output sees 6 numbers of the past, at k = 16 and at k = 32
        """
        (early, late), (first, last) = self.ranks, self.at
        if self.numbers is not None:
            return (
                f"one later output sees {late} numbers of the past, at k = {first} and at "
                f"k = {last}"
            )
        least = "" if self.settled else "at least "
        return (
            f"one later output sees {least}{early} numbers of the past at k = {first} and "
            f"{least}{late} at k = {last}: not seen to settle"
        )


def fingerprint(layer: nn.Module, width: int, n: int) -> Fingerprint | None:
    """The fingerprint at about n / 2 and at n; None where the derivative is not finite.

    >>> class Gru(nn.GRU):
    ...     def forward(self, x):
    ...         return super().forward(x)[0]
    >>> fingerprint(Gru(3, 3, batch_first=True).double(), width=3, n=12).numbers
    3
    """
    generator = torch.Generator().manual_seed(0)
    like = next(layer.parameters(), torch.zeros(0, dtype=torch.float64))
    at = (max(2, n // 2 + 1), max(3, n))
    past = torch.randn(2, at[1], width, generator=generator, dtype=torch.float64).to(like)
    points = [Point(layer, past[0], 1), Point(layer, past[1], 0, moved_weights(layer, generator))]
    ranks, settled = [], True
    for k in at:
        found = [point.spectrum(k, 1, min((k - 1) * width, 4 * width)) for point in points]
        best = max((each for each in found if each), key=lambda each: each.rank, default=None)
        if best is None:
            return None
        ranks.append(best.rank)
        settled = settled and best.settled
    return Fingerprint(at, (ranks[0], ranks[1]), settled)
