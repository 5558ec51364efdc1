"""A user's layer: where it comes from, and how one is built.

A *factory* is any callable that gives an `nn.Module` mapping (batch, token, width) to the same
shape. It is called with the width if it takes one, with nothing if it does not. The module runs in
evaluation mode throughout (no dropout), in training too, so that a result depends on weights and
data alone.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ithbit.errors import LayerError
from ithbit.probe.adapters import ADAPTERS, adapter_named

FAILURES = (Exception, SystemExit)  # what a user's code may raise; sys.exit ends no probe
_WIDTH_NAMES = ("width", "d_model", "dim", "hidden_size")


@dataclass(frozen=True)
class Layer:
    """A factory with a name. `source` is what loads it again in another process, if anything."""

    name: str
    factory: Callable[..., Any]
    source: str | None
    digest: str | None  # of the code it comes from; a change of the code is another layer

    def build(self, width: int, seed: int = 0) -> nn.Module:
        """A module of that width whose initial weights depend on the seed alone."""
        arguments = _arguments(self.factory, self.name, width)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                module = (
                    self.factory(**arguments[1]) if arguments[1] else self.factory(*arguments[0])
                )
            except LayerError:
                raise
            except FAILURES as error:
                raise LayerError(
                    f"{self.name} cannot be built at width {width}: {_said(error)}"
                ) from error
        if not isinstance(module, nn.Module):
            raise LayerError(
                f"{self.name} gives {type(module).__name__}, not a torch.nn.Module; return a module"
            )
        return module.eval()


def load_layer(text: str) -> Layer:
    """The layer that `PATH.py:Factory`, `package.module:Factory` or an adapter's name means.

    >>> load_layer("lstm").build(4)(torch.zeros(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """
    where, colon, name = text.rpartition(":")
    if text in ADAPTERS or where == "fla":
        return Layer(text, adapter_named(text), text, hashlib.sha256(text.encode()).hexdigest())
    if not colon or not where or not name:
        raise LayerError(
            f"{text!r} is no layer; give PATH.py:Factory, package.module:Factory, fla:Class or one "
            f"of {', '.join(ADAPTERS)}"
        )
    if where.endswith(".py"):
        module, path = _load_file(Path(where)), Path(where)
        source = f"{path.resolve()}:{name}"
    else:
        module = _load_module(where)
        path, source = Path(inspect.getsourcefile(module) or ""), text
    factory = getattr(module, name, None)
    if factory is None:
        named = sorted(key for key, value in vars(module).items() if _is_local(value, module))
        there = f"; it has {', '.join(named)}" if named else ""
        raise LayerError(f"{where} has no {name}{there}")
    if not callable(factory):
        raise LayerError(
            f"{name} in {where} is {type(factory).__name__}, which cannot be called; name a class "
            "or a function that gives a module"
        )
    code = path.read_bytes() if path.is_file() else text.encode()
    return Layer(name, factory, source, hashlib.sha256(code + name.encode()).hexdigest())


def layer_of(factory: Callable[..., Any], name: str | None = None) -> Layer:
    """A layer from a callable in this process."""
    if not callable(factory):
        raise LayerError(f"a factory must be callable, got {type(factory).__name__}")
    called = str(name or getattr(factory, "__name__", type(factory).__name__))
    try:
        code = inspect.getsource(factory)
    except (OSError, TypeError):
        return Layer(called, factory, None, None)
    return Layer(called, factory, None, hashlib.sha256(code.encode()).hexdigest())


def apply(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """The module's output, or a sentence on why there is none that can be used."""
    try:
        out = module(x)
    except LayerError:
        raise
    except FAILURES as error:
        raise LayerError(
            f"{name} raises on an input of shape {tuple(x.shape)}: {_said(error)}"
        ) from error
    if isinstance(out, tuple):
        raise LayerError(
            f"{name} returns a tuple of {len(out)}; return its output tensor alone, as with [0]"
        )
    if not isinstance(out, Tensor):
        raise LayerError(f"{name} returns {type(out).__name__}, not a tensor")
    if out.shape != x.shape:
        raise LayerError(
            f"{name} returns shape {tuple(out.shape)} for an input of shape {tuple(x.shape)}; it "
            "must keep (batch, token, width)"
        )
    return out


def _arguments(
    factory: Callable[..., Any], name: str, width: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """How the factory takes the width: by position, by name, or not at all."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):  # a builtin that does not say
        return (), {}
    single = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in single]
    if len(needed) > 1 or (needed and needed[0].kind is inspect.Parameter.KEYWORD_ONLY):
        names = ", ".join(p.name for p in needed)
        raise LayerError(
            f"{name} needs arguments ({names}); wrap it in a function that takes the width alone"
        )
    if needed:
        return (width,), {}
    named = [p.name for p in parameters if p.name in _WIDTH_NAMES]
    return (), {named[0]: width} if named else {}


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LayerError(f"there is no file {path}")
    _look_in(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(f"ithbit_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look it up there
    try:
        spec.loader.exec_module(module)
    except FAILURES as error:
        raise LayerError(f"{path} cannot be imported: {_said(error)}") from error
    return module


def _look_in(folder: Path) -> None:
    """Let imports find what lies beside the user's file; last, so that nothing is hidden by it."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _load_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except FAILURES as error:
        raise LayerError(f"the module {name} cannot be imported: {_said(error)}") from error


def _is_local(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _said(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
