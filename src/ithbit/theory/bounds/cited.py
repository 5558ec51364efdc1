"""Anthony and Bartlett's theorems on algorithms with real parameters, with their constants.

*Neural Network Learning: Theoretical Foundations*, Theorems 8.4 and 8.14; the paper's Theorem 3 is
8.14 up to constants. Both are about a class computed from p parameters by an algorithm of at most t
operations, including the 0/1 output, q of them exponentials. They are *cited*, constants included,
and not proved here; `counting` is, and is far tighter where both apply. Square roots,
logarithms and erf are not among their operations, so of the trained blocks only nn.GRU is covered.
An algorithm must be defined for all parameters: every division by a sum that could vanish is
guarded by one comparison.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ithbit.families import Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.complexity import causal_complexity, mlp_operations

Program = tuple[int, int, int]  # p parameters, t operations, q of them exponentials


def vc_without_exponentials(parameters: int, operations: int) -> int:
    """VC dimension by Theorem 8.4: at most 4 p (t + 2), without exponentials. Cited.

    >>> vc_without_exponentials(16, 12449)
    796864
    """
    return 4 * parameters * (operations + 2)


def vc_with_exponentials(parameters: int, operations: int, exponentials: int) -> int:
    """VC dimension by Theorem 8.14, the smaller of its two forms. Cited.

    t^2 p (p + 19 log2(9p)), and with at most q exponentials
    (p (q+1))^2 + 11 p (q+1) (t + log2(9 p (q+1))).

    >>> vc_with_exponentials(16, 3345, 48)
    29572190
    """
    p, t = parameters, operations
    u = p * (exponentials + 1)
    first = t * t * p * p + _whole_part_of_log2(9 * p, 19 * t * t * p)
    second = u * u + 11 * u * t + _whole_part_of_log2(9 * u, 11 * u)
    return min(first, second)


def _whole_part_of_log2(x: int, factor: int) -> int:
    """floor(factor log2 x), exact.

    >>> _whole_part_of_log2(8, 10), _whole_part_of_log2(9, 10**20)
    (30, 316992500144231236290)
    """
    from flint import arb

    if x & (x - 1) == 0:
        return factor * (x.bit_length() - 1)
    bits = factor.bit_length() + x.bit_length().bit_length()
    return whole_part(lambda: factor * (arb(x).log() / arb.const_log2()), bits)


def whole_part(ball: Callable[[], Any], bits: int) -> int:
    """The whole part, of so many bits, of an irrational number: some precision of the ball tells
    the number from every integer."""
    from flint import ctx

    precision = 64 + bits
    while True:
        with ctx.workprec(precision):
            whole = ball().floor().unique_fmpz()
        if whole is not None:
            return int(whole)
        precision *= 2


def program(task: Task, arch: Architecture) -> Program | None:
    """The decision as an algorithm, or None where these theorems do not apply.

    RHI: the fingerprints of all layers are the parameters; the operations are those of the
    completion maps, then the difference of the two logits, its comparison and the output. What
    depends on the index alone, layer 1's exponentials included, is part of the input.

    >>> from ithbit.theory.architecture import architecture
    >>> program("rhi", architecture("rnn"))
    (16, 12449, 0)
    """
    d, L = arch.width, arch.n_layers
    readout = 2 * d + 1
    if task == "lhi":
        return _lhi_program(arch, readout) if L == 1 and arch.model == "formal" else None
    if arch.kind == "softmax" or not (arch.causal or L == 1):
        return None
    # One full layer computes what one causal layer does at the last token (Remark 7).
    layer = causal_complexity(replace(arch, family=arch.causal_twin))
    if not layer.covered:
        return None
    linear = arch.kind == "linear"
    guards = L * arch.heads if linear else 0
    operations = L * (layer.operations - d) + guards + readout
    return L * layer.dimension, operations, layer.exponentials * (L - 1 if linear else L)


def _lhi_program(arch: Architecture, readout: int) -> Program | None:
    d, H = arch.width, arch.heads
    if arch.attention:
        # alpha + beta and gamma + rho, the guarded quotients, the residual, the MLP.
        operations = (d + H) + (H + d) + d + mlp_operations(d, arch.hidden, d)
        return d + H, operations + readout, 0
    if arch.kind == "ssm":
        constant = arch.transition == "constant"
        operations = (d if constant else 2 * d * d) + mlp_operations(2 * d, arch.hidden, d)
        return d if constant else d * d + d, operations + readout, 0
    return None
