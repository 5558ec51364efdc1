"""What theory says of a state of S numbers: the finite-precision bound on right-hand indexing.

If the layers are causal, are evaluated recurrently and deterministically, and carry S numbers of b
bits a layer from token to token, RHI needs L S b >= n: two bit strings with the same state get the
same answers. *Proved* for such an evaluation, as in `theory/bounds/state.py`. What is not proved is
S: a declared state is the user's word, and a measured rank is the least that a smooth state can
have, so with it the bound is *conditional*.
"""

from dataclasses import dataclass

BITS = 32  # float32


@dataclass(frozen=True)
class StateBound:
    """RHI is impossible for n > `n_star` if the state is as said."""

    state: int
    n_layers: int
    bits: int
    declared: bool

    @property
    def n_star(self) -> int:
        return self.state * self.n_layers * self.bits

    def sentence(self, n: int) -> str:
        """The bound at a length, in words.

        >>> print(StateBound(3, 1, 32, declared=True).sentence(8))
        L = 1: a declared state of 3 float32 numbers cannot solve RHI past n = 96; vacuous at n = 8
        """
        kind = "declared" if self.declared else "measured"
        speaks = f"vacuous at n = {n}" if n <= self.n_star else f"RHI is impossible at n = {n}"
        return (
            f"L = {self.n_layers}: a {kind} state of {self.state} float{self.bits} numbers cannot "
            f"solve RHI past n = {self.n_star:,}; {speaks}"
        )


def state_bounds(
    state: int | None, declared: int | None, causal: bool, layers: list[int]
) -> list[StateBound]:
    """The bound at each depth; none for a layer that leaks or whose rank still grows.

    The declared state is taken where it is at least what was measured.
    """
    if not causal or state is None:
        return []
    trusted = declared is not None and declared >= state
    used = declared if trusted and declared is not None else state
    return [StateBound(used, depth, BITS, trusted) for depth in layers]
