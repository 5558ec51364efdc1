"""What is compiled of a family: one function, by its module's import, or read from a folder.

The folder is the user's (`XDG_CACHE_HOME`, else `~/.cache`), one for each state of this package's
sources: numba itself would look at the file of the entry alone. Where it cannot be written, every
process compiles for itself.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import boolean, config, float32, int64, njit, uint8

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


@cache
def folder() -> Path | None:
    """Where compiled code is kept, None if nothing can be written there."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    where = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    found = where / "ithbit" / f"native-{digest.hexdigest()[:12]}"
    try:
        found.mkdir(parents=True, exist_ok=True)
        (found / f".{os.getpid()}").touch()
        (found / f".{os.getpid()}").unlink()
    except OSError:
        return None
    return found


def entry(function: Callable[..., None]) -> Any:
    """A family's function, compiled for this CPU.

    It sets the logits of every run's examples and, to train, adds to the gradients of each run's
    mean loss. Given too little memory it does nothing and gives the number of floats it needs,
    else 0.
    """
    there, before = folder(), config.CACHE_DIR
    try:
        config.CACHE_DIR = str(there or "")
        make = njit(_SIGNATURE, nogil=True, error_model="numpy", _nrt=False, cache=there is not None)
        return make(function)
    finally:
        config.CACHE_DIR = before
