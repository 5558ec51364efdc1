"""The finite-precision bound: a state of S numbers of b bits tells at most 2^(S b) strings apart.

If the state after the n bits, all layers together, is S numbers of b bits and the model is
evaluated recurrently and deterministically, then RHI needs S b >= n: two strings with the same
state get the same answers. It holds for any activation and normalisation, but not for parallel
evaluation (quadratic attention, cumulative sums, chunked scans), where the last token is no
function of one rounded state.
"""

from ithbit.families import Task
from ithbit.theory.architecture import Architecture


def state_bits(task: Task, arch: Architecture, bits: int = 32) -> int | None:
    """The bits S b of the recurrent state after n tokens, or None where no bound follows.

    No bound follows for LHI, where the index comes first, nor for softmax and for two or more full
    layers, whose state grows with n. The window of Mamba2's convolution in layer 1 holds the last
    bits of the input themselves, one bit each.

    >>> from ithbit.theory.architecture import architecture
    >>> state_bits("rhi", architecture("gru", "trained"))
    512
    """
    assert bits >= 1
    L, d = arch.n_layers, arch.width
    if task == "lhi" or arch.family.startswith("softmax") or not (arch.causal or L == 1):
        return None
    if arch.family == "mamba2":
        old = arch.conv - 1
        return bits * (L * d * arch.state + (L - 1) * old * arch.conv_channels) + old
    numbers = d * (arch.head_width + 1) if arch.family.startswith("linear") else d
    return bits * L * numbers
