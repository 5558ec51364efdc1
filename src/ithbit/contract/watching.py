"""What a user's code does beside computing: it is noticed, and undone where that is possible."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError
from ithbit.models.user_code import error_text


class CannotCheckError(LayerError):
    """A layer that cannot be checked, with the reason in one sentence."""


class _Printed(io.TextIOBase):
    """Notes what is printed: the first of it."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text = (self.text + text)[:80]
        return len(text)


@contextlib.contextmanager
def watched(when: str, building: bool = False) -> Iterator[None]:
    """Context of a user's code: what it prints is kept from standard output, and if it does not
    only compute, it cannot be checked. While it is built, it may print,
    and set what imports set."""
    printed = _Printed()
    before = _state()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except SystemExit as error:
        raise CannotCheckError(f"it exits (status {error.code}) when {when}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise CannotCheckError(f"it ends with {error_text(error)} when {when}") from None
    finally:
        after = _state()
        names = [name for name in before if not (building and name in _SET_BY_IMPORTS)]
        changed = [name for name in names if before[name] != after[name]]
        _restore(before, after)
    if changed:
        raise CannotCheckError(
            f"it changes {' and '.join(changed)} when {when}: a layer must leave global state alone"
        )
    if printed.text and not building:
        shown = printed.text.strip().splitlines()
        raise CannotCheckError(
            f"it prints ({shown[0] if shown else 'blank lines'!r}) when {when}: a layer must only "
            "compute; take the print out"
        )


def _state() -> dict[str, Any]:
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": str(torch.get_default_device()),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "torch's number of threads": torch.get_num_threads(),
        "whether torch is deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch's precision of matrix products": torch.get_float32_matmul_precision(),
        "the current folder": _folder(),
        "the environment": _environment(),
        "sys.path": tuple(sys.path),
        "the recursion limit": sys.getrecursionlimit(),
        "functions of torch": _functions(),
    }


_LATEST: list[dict[Any, Any]] = [{}, {}]  # the environment as bytes, and as text


def _environment() -> dict[str, str]:
    """The environment without what compilers set; decoded again only if it has changed."""
    held = getattr(os.environ, "_data", None)
    if held is None or held != _LATEST[0]:
        shown = {k: v for k, v in os.environ.items() if not k.startswith(_COMPILERS)}
        _LATEST[:] = [dict(held or {}), shown]
    return _LATEST[1]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


_WATCHED_FUNCTIONS = [
    (module, name)
    for module, names in (
        (torch, ("randn", "rand", "matmul", "einsum", "cumsum", "softmax", "where")),
        (nn.functional, ("softmax", "linear", "scaled_dot_product_attention", "dropout")),
        (nn.Module, ("__call__", "__setattr__", "train", "to")),
        (Tensor, ("cumsum", "softmax", "__getitem__", "__matmul__", "backward")),
    )
    for name in names
]


def _functions() -> tuple[int, ...]:
    return tuple(id(getattr(module, name)) for module, name in _WATCHED_FUNCTIONS)


_COMPILERS = ("TORCH", "TRITON", "CUDA", "KMP_")  # which torch sets itself when it compiles
_SET_BY_IMPORTS = ("the environment", "sys.path", "the recursion limit")
_ORIGINAL_FUNCTIONS = [getattr(module, name) for module, name in _WATCHED_FUNCTIONS]


def _restore(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Undo what a layer changed, where that is possible: others use this process too."""
    setters: dict[str, Callable[[Any], object]] = {
        "torch's default dtype": torch.set_default_dtype,
        "torch's default device": torch.set_default_device,
        "whether gradients are recorded": torch.set_grad_enabled,
        "torch's number of threads": torch.set_num_threads,
        "whether torch is deterministic": torch.use_deterministic_algorithms,
        "torch's precision of matrix products": torch.set_float32_matmul_precision,
        "the recursion limit": sys.setrecursionlimit,
    }
    for name, setter in setters.items():
        if before[name] != after[name]:
            setter(before[name])
    sys.path[:] = before["sys.path"]
    if before["the environment"] != after["the environment"]:
        for name in after["the environment"].keys() - before["the environment"].keys():
            del os.environ[name]
        os.environ.update(before["the environment"])
    if before["the current folder"]:
        os.chdir(before["the current folder"])
    if before["functions of torch"] != after["functions of torch"]:
        for (module, name), original in zip(_WATCHED_FUNCTIONS, _ORIGINAL_FUNCTIONS, strict=True):
            if getattr(module, name) is not original:
                setattr(module, name, original)
