"""The finite-precision bound: a state of S b-bit numbers distinguishes at most 2^(S b) strings, so
n values of V each need S b >= n log2 V.

If the state after the n bits, all layers together, is S numbers of b bits, and the model is
evaluated recurrently and deterministically, then RHI needs S b >= n: two strings with the same
state get the same answers. It holds for any activation and normalisation, but not for parallel
evaluation (quadratic attention, cumulative sums, chunked scans), where the last token is
not a function of one rounded state.

*Proved* for such an evaluation. For a user's layer S itself is not proved: a declared state is the
user's claim, and a measured rank is the least size that a smooth state can have, so the bound is
*conditional* on it.
"""

from dataclasses import dataclass, replace

from ithbit.families import Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds.cited import whole_part
from ithbit.theory.complexity import causal_complexity

BITS = 32  # float32


def state_bits(task: Task, arch: Architecture, bits: int = BITS) -> int | None:
    """The bits S b of the recurrent state after n tokens, or None where no bound follows.

    No bound follows for LHI, where the index comes first, nor for softmax and for two or more full
    layers, whose state grows with n. The window of Mamba2's convolution in layer 1 holds the last
    tokens of the input themselves; they are not counted, but held fixed (`stages.fixed_bits`).

    >>> from ithbit.theory.architecture import architecture
    >>> state_bits("rhi", architecture("gru", "trained"))
    512
    """
    assert bits >= 1
    L = arch.n_layers
    if task == "lhi" or arch.kind == "softmax" or not (arch.causal or L == 1):
        return None
    kept = L * causal_complexity(replace(arch, family=arch.causal_twin)).dimension
    window = (arch.conv - 1) * arch.conv_channels if arch.kind == "mamba2" else 0
    return bits * (kept - window)


def values_held(bits: int, values: int) -> int:
    """The most values, of V each, that so many bits can hold: the whole part of bits / log2 V.

    >>> values_held(512, 4096), values_held(512, 3)
    (42, 323)
    """
    from flint import arb

    if values & (values - 1) == 0:
        return bits // (values.bit_length() - 1)
    return whole_part(lambda: bits * arb.const_log2() / arb(values).log(), bits.bit_length())


@dataclass(frozen=True)
class StateBound:
    """RHI is impossible for n > `n_star` if the state has this size."""

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
    """The bound at each depth; none for a layer that is not causal or whose rank still grows.

    Uses the declared state if it is at least the measured one, else the measured one.
    """
    if not causal or state is None:
        return []
    used = max(state, declared or 0)
    return [StateBound(used, depth, BITS, used == declared) for depth in layers]
