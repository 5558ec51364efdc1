"""Whether compiled code is available, and compiling it in a separate process during training.

Compiled code is kept in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), in one folder
per version of these sources, with a mark for each kind of family that is complete.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ithbit.families import FAMILIES, family_named
from ithbit.spec import ModelSpec

_GAINS = ("mamba2", "softmax", "gru", "linear")  # kinds, by how much compiling helps
_TILE = 4  # coordinates of a head that are mixed at a time


def refusal(spec: ModelSpec) -> str | None:
    """Why there can be no compiled code for such a model; None if there can be."""
    family = family_named(spec.family)
    if family.kind not in _GAINS:
        return f"there is no compiled code for {spec.family}"
    if spec.positions == "rotary":
        return "there is no compiled code for rotary positions"
    if family.has_heads and spec.d_head % _TILE:
        return f"compiled code needs a head size that is a multiple of {_TILE}, got {spec.d_head}"
    if importlib.util.find_spec("numba") is None:
        return "compiled code needs numba, which is not installed"
    return None


@cache
def folder() -> Path | None:
    """Where compiled code is kept; None if nothing can be written there."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    # Constants of the layouts are compiled into the code.
    for path in (*sorted(package.glob("*.py")), package.parent / "layouts.py"):
        digest.update(path.read_bytes())
    where = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    code_folder, trial = where / "ithbit" / f"native-{digest.hexdigest()[:12]}", f".{os.getpid()}"
    try:
        code_folder.mkdir(parents=True, exist_ok=True)
        (code_folder / trial).touch()
        (code_folder / trial).unlink()
    except OSError:
        return None
    return code_folder


def ready(spec: ModelSpec) -> bool:
    """Whether the code of a model's family has been compiled on this machine."""
    code_folder = folder()
    return code_folder is not None and (code_folder / FAMILIES[spec.family].kind).exists()


def module_of(kind: str) -> str:
    """The module whose import compiles a kind of families, or loads what was compiled."""
    return f"ithbit.native.{kind}"


def mark(module: str) -> None:
    """Note that all of a module's code is in the folder."""
    code_folder = folder()
    if code_folder is not None:
        with suppress(OSError):
            (code_folder / module.rpartition(".")[2]).touch()


@contextmanager
def building(specs: Iterable[ModelSpec], say: Callable[[str], None]) -> Iterator[None]:
    """Compile in a separate process what these models need and this machine lacks.

    A failure is reported; runs for which nothing is compiled train with the stacked models.
    """
    missing = {FAMILIES[spec.family].kind for spec in specs if not ready(spec)}
    kinds = sorted(missing, key=_GAINS.index)
    if not kinds or folder() is None:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {', '.join(map(module_of, kinds))}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def watch() -> None:
        _, error = process.communicate()
        if process.returncode > 0:
            why = (error.strip().splitlines() or ["no message"])[-1][:200]
            say(f"compiling failed ({why}): trained with the stacked models")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        process.kill()
        watcher.join()
