"""What is compiled of a family: one function, when its module is imported, or read from the folder
of `building.py`. numba itself would look for changes in the file of the entry alone."""

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
        int64[:, ::1],  # where parameters start: layer parameter
        int64,  # and where the head does
        int64[::1],  # sizes
        int64,  # 1 for LHI, 0 for RHI
        boolean,  # causal
        boolean,  # to train
    )
)
_SIGNATURE = int64(_DATA, _HOW, float32[::1])  # the last is memory to work in

# What a family does with a group of examples of one run, by the first of them; `run` is the run's
# part of the data but for `grads`. It gives back where in the memory it adds up gradients of
# parameters, behind which `collect` has its sums; before the first group, at -1, nothing but that.
# Inlined by numba, as `drive` is: LLVM would go over the same code once more for each of them.
group = njit(inline="always")


@group
def drive(work: Any, data: Any, how: Any, m: Any) -> Any:
    """All groups of all runs; with too little memory nothing but the number of floats needed."""
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

    It sets the logits of every run's examples and, to train, adds to the gradients of each run's
    mean loss. Given too little memory it does nothing and gives the number of floats it needs,
    else 0.
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
