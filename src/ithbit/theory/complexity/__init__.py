"""Causal complexity: what a causal layer keeps of the past, and what finishing its output costs.

`causal_complexity` has the closed formulas; `formal` and `trained` have the two maps as programs,
and `count` runs a completion on counting scalars, which must give the formula.
"""

from collections.abc import Sequence
from typing import Protocol

from ithbit.theory.complexity.formulas import Complexity, causal_complexity, mlp_operations
from ithbit.theory.complexity.scalar import Counted, Scalar, Tally, Vector, plain

__all__ = ["CausalLayer", "Complexity", "causal_complexity", "count", "mlp_operations"]


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

    >>> from ithbit.theory.complexity.formal import Mlp, RnnLayer
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
