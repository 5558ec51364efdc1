"""Causal layers as two maps, what is kept of the past and what finishes the output: the programs
whose operations the formulas of `ithbit.theory.complexity` count.

`formal` and `trained` have the maps, and `count` runs a completion on scalars that count.
"""

from collections.abc import Sequence
from typing import Protocol

from tests.support.completions import formal, trained
from tests.support.completions.scalar import Counted, Scalar, Tally, Vector, plain

__all__ = ["CausalLayer", "count", "formal", "trained"]


class CausalLayer(Protocol):
    """A causal layer as its two maps."""

    def fingerprint(self, xs: Sequence[Sequence[float]]) -> list[float]:
        """What is kept of the inputs so far."""
        ...

    def completion(self, fingerprint: Vector, x: Vector) -> list[Scalar]:
        """The output at the next token."""
        ...


def count(
    layer: CausalLayer, fingerprint: Sequence[float], x: Sequence[float]
) -> tuple[list[float], Tally]:
    """The layer's output at the next token and the operations spent on it. Exact.

    >>> from completions.formal import Mlp, RnnLayer
    >>> one = Mlp((((1.0, 1.0),),), ((0.0,),))  # x + h
    >>> layer = RnnLayer(1, one, one)
    >>> count(layer, layer.fingerprint([[1.0], [2.0]]), [4.0])[0]
    [11.0]
    """
    tally = Tally()
    kept = [Counted(u, tally) for u in fingerprint]
    output = layer.completion(kept, [Counted(u, tally) for u in x])
    tally.outputs += len(output)
    return [plain(u) for u in output], tally
