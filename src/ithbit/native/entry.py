"""The compiled function of a family: made when its module is imported, or loaded from the folder of
`building.py`. numba itself would look for changes only in the file of the entry."""

import threading
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numba import boolean, float32, int64, njit, types, uint8

from ithbit.native.building import mark
from ithbit.native.simd import LANES, LayerArgs, compiled
from ithbit.native.tokens import finish, head, load
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
_LAYOUT = types.Tuple(
    (
        int64[:, ::1],  # where each parameter starts: layer parameter
        int64,  # where the head starts
        int64[::1],  # d, heads, inner and leave of every `LayerArgs`
        int64,  # 1 for LHI, 0 for RHI
        boolean,  # causal
        boolean,  # whether to train
        int64[:, ::1],  # where the memory has what a layer keeps: layer part, and one layer more
        int64[::1],  # where it has the temporary parts, followed by the gradients
    )
)
_SIGNATURE = types.void(_DATA, _LAYOUT, float32[::1])  # the last is working memory

Parts = tuple[tuple[int, ...], tuple[int, ...]]
_thread = threading.local()

# A family has a forward and a backward pass of one layer, for a group of examples of one run: with
# the table, it returns where the last token's output is; with the table's gradient, it turns g, the
# gradient of its output, into gx. Inlined by numba, as `drive` is: otherwise LLVM would process the
# same code again for each.
group = njit(inline="always")


@group
def _layer(p: Any, layout: Any, i: Any, n: Any) -> Any:
    at, _, (d, heads, inner, leave), lhi, causal, _, kept_at, used = layout
    T, places = n + 1 + lhi, (used[-1], at[i], kept_at[i], kept_at[i + 1, 0], used)
    outputs = 1 if i == len(at) - 1 else T
    return LayerArgs(p, *places, d, heads, inner, leave, T, outputs, i == 0, causal)


@group
def drive(forward: Any, backward: Any, data: Any, layout: Any, m: Any) -> None:
    """Process all groups of all runs."""
    values, grads, wide, d_wide, bits, index, logits = data
    at, head_at, sizes, _, _, train, _, used = layout
    layers, n, d, gp = len(at), bits.shape[2], sizes[0], used[-1]
    for k in range(len(values)):
        p = values[k]
        clear(m, gp, len(p) + 2 * n * wide.shape[2])
        for first in range(0, bits.shape[1], LANES):
            load(bits[k], index[k], first, m)
            end, g, gx = 0, used[0], used[1]
            for i in range(layers):
                end = forward(_layer(p, layout, i, n), wide[k], m)
            head(p, gp, head_at, d, m, end, bits[k], index[k], first, logits[k], train, g)
            for i in range(layers - 1, -1 if train else layers - 1, -1):
                backward(_layer(p, layout, i, n), d_wide[k], m, g, gx)
                g, gx = gx, g
        if train:
            finish(n, m, gp, grads[k], gp + len(p), d_wide[k])


def entry(parts: Callable[..., Parts]) -> Callable[[Any], Callable[..., None]]:
    """A family's function, compiled for this CPU; `parts` has the sizes of its memory, in vectors:
    of what a layer keeps, and of what is temporary, of which g and gx are the first.

    It sets the logits of every run's examples and, in training, the gradients of each run's mean
    loss, in arrays that start at 0.
    """

    @cache
    def places(layers: int, n: int, lhi: int, d: int, heads: int, inner: int, _: int) -> Any:
        outputs = [n + 1 + lhi] * (layers - 1) + [1, 1]  # the last one is for the output
        sizes = [parts(n + 1 + lhi, some, d, heads, inner) for some in outputs]
        lengths = [size for own, _ in sizes for size in own]
        starts = np.array([*accumulate([*lengths, *sizes[0][1]], initial=n + 1)])
        return starts[: len(lengths)].reshape(layers + 1, -1), starts[len(lengths) :]

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        made = compiled(function, _SIGNATURE, nogil=True, error_model="numpy")
        mark(function.__module__)

        def run(data: Any, layout: Any) -> None:
            values, wide, n, (at, _, sizes, lhi, *_) = data[0], data[2], data[4].shape[2], layout
            kept_at, used = places(len(at), n, lhi, *sizes.tolist())
            least = LANES * int(used[-1] + values.shape[1] + 2 * n * wide.shape[2])
            # Working memory: this thread's, kept for the next call.
            if len(getattr(_thread, "memory", ())) < least:
                _thread.memory = np.zeros(least, np.float32)
            made(data, (*layout, kept_at, used), _thread.memory)

        return run

    return declare
