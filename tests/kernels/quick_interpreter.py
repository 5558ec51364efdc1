"""Triton's interpreter without work that changes no result: less than half of its time is left.

It replaces the functions of Triton's language by its own at every call of every inner function;
once per launch is enough. It computes whether 32-bit integers overflow, and drops the answer unless
it debugs. It makes a table of all types to look up one.
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_replace, _np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_EVERYTHING = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_launched = False


class _Replaced(interpreter._LangPatchScope):
    """What one launch replaced; an inner call has replaced nothing and is never restored."""

    def restore(self) -> None:
        global _launched
        super().restore()
        _launched = False


def _once(fn: object) -> _Replaced:
    global _launched
    scope = _Replaced()
    if not _launched:
        scope._changes = _replace(_EVERYTHING)._changes
        _launched = True
    return scope


@cache
def _np_dtype_named(name: str) -> np.dtype:
    return _np_dtype(tl.dtype(name))


def _quick_np_dtype(dtype: tl.dtype) -> np.dtype:
    scalar = dtype.scalar
    return _np_dtype(scalar) if scalar.is_ptr() else _np_dtype_named(scalar.name)


def quicken() -> None:
    """Let the interpreter of this process do the necessary alone."""
    interpreter._patch_lang, interpreter._get_np_dtype = _once, _quick_np_dtype
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
