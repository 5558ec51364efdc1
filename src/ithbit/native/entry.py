"""The compiled function of a family: made when its module is imported, or loaded from the folder of
`building.py`. numba itself would look for changes only in the file of the entry."""

import threading
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
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
        int64[::1],  # where the parts of the memory start, the last one being the gradients
    )
)
_SIGNATURE = types.void(_DATA, _HOW, float32[::1])  # the last is working memory

_here = threading.local()

# What a family does with a group of examples of one run, given the first of them; `run` is the
# run's part of the data without `grads`. It adds up the gradients of the parameters, followed by
# the sums of `collect`, at the last of its places. Inlined by numba, as `drive` is: otherwise LLVM
# would process the same code again for each.
group = njit(inline="always")


@group
def drive(work: Any, data: Any, how: Any, m: Any) -> None:
    """Process all groups of all runs."""
    values, grads, wide, d_wide, bits, index, logits = data
    gp, n, count = how[6][-1], bits.shape[2], values.shape[1]
    for k in range(len(values)):
        clear(m, gp, count + 2 * n * wide.shape[2])
        for first in range(0, bits.shape[1], LANES):
            load(bits[k], index[k], first, m)
            work((values[k], wide[k], d_wide[k], bits[k], index[k], logits[k]), how, first, m)
        if how[5]:
            finish(n, m, gp, grads[k], gp + count, d_wide[k])


def entry(parts: Callable[..., tuple[int, ...]]) -> Callable[[Any], Callable[..., None]]:
    """A family's function, compiled for this CPU; `parts` has the sizes of its memory, in vectors,
    after the group of examples.

    It sets the logits of every run's examples and, in training, the gradients of each run's mean
    loss, in arrays that start at 0.
    """

    @cache
    def places(layers: int, n: int, lhi: int, *sizes: int) -> Any:
        return np.array([*accumulate(parts(layers, n + 1 + lhi, *sizes), initial=n + 1)])

    def made(function: Callable[..., None]) -> Callable[..., None]:
        there, before = folder(), config.CACHE_DIR
        options = {"nogil": True, "error_model": "numpy", "_nrt": False, "cache": there is not None}
        try:
            config.CACHE_DIR = str(there or "")
            compiled = njit(_SIGNATURE, **options)(function)
        finally:
            config.CACHE_DIR = before
        mark(function.__module__)

        def run(data: Any, how: Any) -> None:
            values, wide, n, (at, _, sizes, lhi, *_) = data[0], data[2], data[4].shape[2], how
            found = places(len(at), n, lhi, *sizes.tolist())
            least = LANES * int(found[-1] + values.shape[1] + 2 * n * wide.shape[2])
            # Working memory: this thread's, kept for the next call.
            if len(getattr(_here, "memory", ())) < least:
                _here.memory = np.zeros(least, np.float32)
            compiled(data, (*how, found), _here.memory)

        return run

    return made
