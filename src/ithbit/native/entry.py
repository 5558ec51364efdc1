"""The compiled function of a family: made when its module is imported, or loaded from the folder of
`building.py`. numba itself would look for changes only in the file of the entry."""

from collections.abc import Callable
from typing import Any

from numba import boolean, config, float32, int64, njit, types, uint8

from ithbit.native.building import folder, mark
from ithbit.native.simd import LANES
from ithbit.native.tokens import finish, load
from ithbit.native.tokenwise import clear

_DATA = types.Tuple(
    (
        float32[:, ::1],  # values: run parameter
        float32[:, ::1],  # their gradients
        float32[:, :, ::1],  # wide: run row column
        float32[:, :, ::1],  # its gradient
        uint8[:, :, ::1],  # bits: run example bit
        int64[:, ::1],  # index, from 1: run example
        float32[:, ::1],  # logits: run example
    )
)
_HOW = types.Tuple(
    (
        int64[:, ::1],  # where each parameter starts: layer parameter
        int64,  # where the head starts
        int64[::1],  # sizes
        int64,  # 1 for LHI, 0 for RHI
        boolean,  # causal
        boolean,  # whether to train
    )
)
_SIGNATURE = int64(_DATA, _HOW, float32[::1])  # the last is working memory

# What a family does with a group of examples of one run, given the first of them; `run` is the
# run's part of the data without `grads`. It returns where in the memory it adds up the gradients of
# the parameters, followed by the sums of `collect`; before the first group, at -1, it does only
# that. Inlined by numba, as `drive` is: otherwise LLVM would process the same code again for each.
group = njit(inline="always")


@group
def drive(work: Any, data: Any, how: Any, m: Any) -> Any:
    """Process all groups of all runs; with too little memory, return how many floats it takes."""
    values, grads, wide, d_wide, bits, index, logits = data
    n, train, groups = bits.shape[2], how[5], -(-bits.shape[1] // LANES)
    gp, more = 0, 2 * n * wide.shape[2]
    for number in range(-1, len(values) * groups):
        k, at = max(number, 0) // groups, max(number, 0) % groups
        first = at * LANES if number >= 0 else -1
        if first == 0:
            clear(m, gp, values.shape[1] + more)
        if first >= 0:
            load(bits[k], index[k], first, m, 0)
        gp = work((values[k], wide[k], d_wide[k], bits[k], index[k], logits[k]), how, first, m)
        sums = gp + values.shape[1]
        if first < 0 and len(m) < LANES * (sums + more):
            return LANES * (sums + more)
        if train and first >= 0 and at == groups - 1:
            finish(n, m, gp, grads[k], sums, d_wide[k])
    return 0


def entry(function: Callable[..., int]) -> Any:
    """A family's function, compiled for this CPU.

    It sets the logits of every run's examples and, in training, the gradients of each run's mean
    loss, in arrays that start at 0. Given too little memory it does nothing and returns the number
    of floats it needs, else 0.
    """
    there, before = folder(), config.CACHE_DIR
    options = {"nogil": True, "error_model": "numpy", "_nrt": False, "cache": there is not None}
    try:
        config.CACHE_DIR = str(there or "")
        made = njit(_SIGNATURE, **options)(function)
    finally:
        config.CACHE_DIR = before
    mark(function.__module__)
    return made
