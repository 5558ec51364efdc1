"""What is compiled of a family: one function, when its module is imported, or read from the folder
of `building.py`. numba itself would look for changes in the file of the entry alone."""

from collections.abc import Callable
from typing import Any

from numba import boolean, config, float32, int64, njit, uint8

from ithbit.native.building import folder, mark

_SIGNATURE = int64(
    float32[:, ::1],  # values: run parameter
    float32[:, ::1],  # their gradients
    float32[:, :, ::1],  # wide: run row column
    float32[:, :, ::1],  # its gradient
    uint8[:, :, ::1],  # bits: run example bit
    int64[:, ::1],  # index, from 1: run example
    float32[:, ::1],  # logits: run example
    int64[:, ::1],  # where parameters start: layer parameter
    int64,  # and where the head does
    int64[::1],  # sizes
    int64,  # 1 for LHI, 0 for RHI
    boolean,  # causal
    boolean,  # to train
    float32[::1],  # memory to work in
)


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
