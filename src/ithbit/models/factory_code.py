"""The code of a factory that exists only in a Python session, as text that identifies it.

A function's source does not show the values it closes over, nor what else of the session it calls,
so the text includes both: two lambdas on one line that differ in a number are two layers.
"""

import builtins
import dis
import inspect
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (int, float, complex, str, bytes, type(None))


def code_text(factory: Any) -> str | None:
    """The source of the factory and of what it uses from its session; None if it cannot be read.

    >>> code_text(len) is None
    True
    """
    try:
        return "\n".join(_parts("factory", factory, set(), top=True))
    except (OSError, TypeError):
        return None


def _parts(name: str, value: Any, seen: set[int], top: bool = False) -> Iterator[str]:
    """The text of one value; raises TypeError or OSError if it has none."""
    if isinstance(value, partial):
        yield from _parts(name, value.func, seen, top)
        for key, item in (*enumerate(value.args), *sorted(value.keywords.items())):
            yield from _parts(f"{name}.{key}", item, seen)
    elif isinstance(value, list | tuple | set | frozenset | dict):
        yield f"{name} = {type(value).__name__}"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _parts(f"{name}[{key!r}]", item, seen)
    elif isinstance(value, _PLAIN):
        yield f"{name} = {value!r}"
    elif isinstance(value, ModuleType) or (not top and _is_elsewhere(value)):
        yield f"{name} = {getattr(value, '__module__', '')}.{getattr(value, '__name__', '')}"
    elif id(value) not in seen:
        seen.add(id(value))
        yield inspect.getsource(value)
        members = {"": value} if isinstance(value, FunctionType) else vars(value)
        for key, member in members.items():
            member = getattr(member, "__func__", member)
            if isinstance(member, FunctionType):
                yield from _references(member, seen)
            elif isinstance(member, _PLAIN) and not key.startswith("__"):
                yield f"{key} = {member!r}"
        for base in getattr(value, "__bases__", ()):
            yield from _parts(base.__name__, base, seen)


def _references(function: FunctionType, seen: set[int]) -> Iterator[str]:
    """The text of what a function uses from outside: closure, globals and defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    used = {name: cell.cell_contents for name, cell in cells}
    for name in _global_names(function.__code__):
        if name in function.__globals__ and not hasattr(builtins, name):
            used[name] = function.__globals__[name]
    for name in sorted(used):
        yield from _parts(name, used[name], seen)
    yield from _parts("defaults", (function.__defaults__, function.__kwdefaults__), seen)


def _global_names(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_elsewhere(value: Any) -> bool:
    """Whether a class or function is defined in an importable module: its name identifies it."""
    return (
        callable(value)
        and getattr(value, "__module__", "__main__") not in ("__main__", None)
        and "<" not in getattr(value, "__qualname__", "<")
    )
