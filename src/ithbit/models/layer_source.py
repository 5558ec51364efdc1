"""A user's layer: what identifies it, where it is loaded from, and how it is built.

A *factory* is any callable that returns an `nn.Module` mapping (batch, token, width) to the same
shape. It is called with the width if it takes one, else without arguments. The module always runs
in evaluation mode (no dropout), even in training, so that a result depends only on weights and
data.

A layer is a family: its name has a colon (`layers.py:Mine`) and comes with a *code*, the first
digits of a digest of the file's bytes and the factory's name. The file's location is not part of
it. A factory without a file (a lambda, a class of a notebook) is not resumable: what identifies it
would include everything it refers to, so each time it is given, it gets a code drawn at random.

This module keeps the layers that the process knows, by code; the file is read when a layer is
named, and its code (as it was read) runs when a model is first built. Nothing here needs torch
before that.
"""

import hashlib
import inspect
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ithbit.errors import LayerError
from ithbit.families import FAMILIES, is_added
from ithbit.models.user_code import (
    explained,
    import_module,
    look_in,
    module_file,
    read_code,
    was_edited,
)
from ithbit.spec import CODE_DIGITS, ModelSpec, RunSpec

if TYPE_CHECKING:
    from torch import nn

# The layers of `adapters.py`, known before it is imported; `probe` accepts them without `torch:`.
READY = ("lstm", "rnn", "gru", "transformer-encoder-layer", "transformer-encoder-layer-causal")
_WIDTH_NAMES = ("width", "d_model", "dim", "hidden_size")

_registered: dict[str, "LayerSource"] = {}  # by code
_given_sources: dict[str, str] = {}  # by code: the location that another process of the user gave
_recorded: dict[str, str] = {}  # by code: what a run folder says, see `recorded_layer.py`
BUILDING = threading.RLock()  # torch's seed is global: one thread at a time draws weights
_loading: list[str] = []  # files whose code is running right now


@dataclass(frozen=True)
class LayerSource:
    """A factory and its identity. `source` loads it in another process; None if nothing can."""

    family: str
    digest: str  # drawn at random for a factory without a file
    source: str | None
    text: bytes = field(default=b"", repr=False)  # the file, as it was read
    passed_factory: Callable[..., Any] | None = field(default=None, repr=False)
    must_be_class: bool = False  # only a record names it, in a module: a function is not called

    @property
    def code(self) -> str:
        return self.digest[:CODE_DIGITS]

    @property
    def name(self) -> str:
        return self.family.rpartition(":")[2]

    @cached_property
    def factory(self) -> Callable[..., Any]:
        """The callable itself. First access runs the file's code."""
        if self.passed_factory is not None:
            return self.passed_factory
        assert self.source is not None
        where, _, name = self.source.rpartition(":")
        if where in ("torch", "fla"):
            from ithbit.models.adapters import adapter_named

            return adapter_named(self.source)
        module = (
            _run_file(self, Path(where))
            if where.endswith(".py")
            else import_module(where, self.text)
        )
        factory = getattr(module, name, None)
        if factory is None:
            names = sorted(
                key
                for key, value in vars(module).items()
                if callable(value) and getattr(value, "__module__", None) == module.__name__
            )
            others = f"; it has {', '.join(names)}" if names else ""
            raise LayerError(f"{where} has no {name}{others}")
        if not callable(factory):
            raise LayerError(
                f"{name} in {where} is {type(factory).__name__}, which is not callable; name a "
                "class or a function that returns a module"
            )
        if self.must_be_class:
            import torch

            if not (isinstance(factory, type) and issubclass(factory, torch.nn.Module)):
                raise LayerError(
                    f"layer.json names {name} in {where}, which is no class of torch.nn.Module; "
                    "other things in modules are not called unless you name them, with --layer"
                )
        return factory

    def build(self, width: int, seed: int = 0) -> "nn.Module":
        """A module of that width whose initial weights depend only on the seed."""
        import torch

        positional, keywords = _arguments(self.factory, self.name, width)
        with BUILDING, torch.random.fork_rng():
            torch.manual_seed(seed)
            with explained(f"{self.name} cannot be built at width {width}"):
                module = self.factory(*positional, **keywords)
        if not isinstance(module, torch.nn.Module):
            raise LayerError(
                f"{self.name} must return a torch.nn.Module, got {type(module).__name__}"
            )
        module.eval()
        for part in module.modules():
            if isinstance(part, torch.nn.RNNBase) and not part.dropout:
                part.train()  # else cuDNN has no backward; without dropout nothing else changes
        torch.backends.mha.set_fastpath_enabled(False)  # of eval mode; torch.func refuses it
        return module


def _meant(text: str) -> str:
    """What was meant by a name without a colon, in brackets; empty if nothing is likely.

    >>> _meant("layers.py"), _meant("torch.nn.LSTM"), _meant("lstn")
    (' (did you mean layers.py:YOUR_LAYER?)', ' (did you mean torch.nn:LSTM?)', '')
    """
    module, _, name = text.rpartition(".")
    if name == "py":
        return f" (did you mean {text}:YOUR_LAYER?)"
    return f" (did you mean {module}:{name}?)" if module and name.isidentifier() else ""


def find_layer(text: str, folder: Path = Path()) -> LayerSource:
    """The layer named by `PATH.py:Factory`, `package.module:Factory` or a ready-made layer's name.

    Its code is read, not run. A path is relative to `folder`.

    >>> find_layer("torch:lstm").family, find_layer("lstm").code
    ('torch:lstm', '9247369ab1f2')
    """
    where, _, name = text.rpartition(":")
    if text in READY or (where == "torch" and name in READY):
        return register(LayerSource(f"torch:{name}", _digest(name.encode()), f"torch:{name}"))
    ready = ", ".join(f"torch:{ready}" for ready in READY)
    if where == "torch":
        raise LayerError(
            f"there is no ready-made layer {text}; there are {ready}; for any other, write a class "
            "around it and name that, as in layers.py:Mine"
        )
    if where == "fla":
        return register(LayerSource(text, _digest(text.encode()), text))
    if text in FAMILIES:
        raise LayerError(
            f"{text!r} is a family, not a layer; families are for `ithbit train`, `check` and "
            "`capacity`"
        )
    if not where or not name:
        raise LayerError(
            f"{text!r} is not a layer{_meant(text)}; give PATH.py:Factory, package.module:Factory, "
            f"fla:Class or one of {ready}"
        )
    if where == "python":
        raise LayerError(
            f"{text} exists only in the Python process that made it: pass the factory itself "
            "there, or write it to a file and name that, as in layers.py:Mine"
        )
    if where.endswith(".py"):
        path = folder / where
        code, family, source = read_code(path), f"{path.name}:{name}", f"{path.resolve()}:{name}"
    elif (folder / where).is_file():
        raise LayerError(f"{where} is not Python; give PATH.py:Factory or package.module:Factory")
    else:
        origin = module_file(where)
        code, family, source = (read_code(origin) if origin else text.encode()), text, text
    return register(LayerSource(family, _digest(code + name.encode()), source, code))


def load_layer(text: str) -> LayerSource:
    """The layer of that name, after running its code, so that errors in it are raised here.

    >>> import torch
    >>> load_layer("lstm").build(4)(torch.zeros(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """
    layer = find_layer(text)
    layer.factory  # noqa: B018
    return layer


def layer_of(factory: Callable[..., Any], name: str | None = None) -> LayerSource:
    """A layer from a callable in this process.

    A class or function defined in a file is the layer `file.py:Name`, which other processes load
    from that file. Anything else, or any factory given a `name`, is `python:Name`: known only in
    this process, and another layer each time, since what it refers to may have changed.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(factory, torch.nn.Module):
        raise LayerError(
            f"got an instance of {type(factory).__name__}; give the class, or a function that "
            "makes such a module: every seed and block needs its own"
        )
    if not callable(factory):
        raise LayerError(f"a factory must be callable, got {type(factory).__name__}")
    factory_name = name or str(getattr(factory, "__name__", type(factory).__name__))
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    path = Path(getattr(module, "__file__", None) or "")
    if name is None and path.is_file() and getattr(module, factory_name, None) is factory:
        assert module is not None
        if was_edited(module, path):
            raise LayerError(
                f"{path} has changed since it was imported; reload it, or start Python again"
            )
        is_package = bool(module.__spec__ and module.__spec__.parent)
        source = find_layer(f"{module.__name__ if is_package else path}:{factory_name}")
        return register(replace(source, passed_factory=factory))
    try:
        text = inspect.getsource(factory)  # for the run folder, to be read by people
    except (OSError, TypeError):
        text = ""
    digest = secrets.token_hex(32)
    return register(LayerSource(f"python:{factory_name}", digest, None, text.encode(), factory))


def family_of(layer_or_name: str | Callable[..., Any], folder: Path = Path()) -> tuple[str, str]:
    """Family and code of what a user names: one of the six, or a layer, which is registered.

    >>> family_of("gru")
    ('gru', '')
    """
    if isinstance(layer_or_name, str):
        if ":" not in layer_or_name:
            return layer_or_name, ""
        layer = find_layer(layer_or_name, folder)
    else:
        layer = layer_of(layer_or_name)
    return layer.family, layer.code


def layer_for(model: ModelSpec) -> LayerSource:
    """The layer of a model whose family is a user's layer, found by its code."""
    if model.code not in _registered:
        where = _given_sources.get(model.code) or _recorded.get(model.code)
        if where is None:
            raise LayerError(
                f"the code of {model.family} ({model.code}) is not known here; name its file, as "
                "in `ithbit train rhi layers.py:Mine`"
            )
        remedy = "put the file back there (the run folder has a copy, layer.py, that is never run)"
        try:
            source = find_layer(where)
        except LayerError as error:
            raise LayerError(f"{model.family} cannot be loaded: {error}; {remedy}") from error
        if source.code != model.code:
            raise LayerError(
                f"{model.family} has changed: {where} has the code {source.code}, but this run has "
                f"{model.code}; {remedy}, or train the changed layer, which is another family"
            )
        place = where.rpartition(":")[0]
        ready = place in ("torch", "fla") or place.endswith(".py")
        if model.code not in _given_sources and not ready:
            _registered[model.code] = replace(source, must_be_class=True)
    return _registered[model.code]


def sources(runs: Iterable[RunSpec]) -> dict[str, str]:
    """Where to load the layers of these runs from, by code, for `register_sources` elsewhere."""
    codes = dict.fromkeys(run.model.code for run in runs if run.model.code)
    by_code = {
        code: _registered[code].source if code in _registered else _given_sources.get(code)
        for code in codes
    }
    recorded = {code for code in codes if code in _registered and _registered[code].must_be_class}
    return {code: source for code, source in by_code.items() if source and code not in recorded}


def is_session_only(runs: Iterable[RunSpec]) -> bool:
    """Whether a layer or family of these runs is known only in this process, so no other can
    train it."""
    models = {run.model for run in runs}
    return any(
        is_added(m.family) or (m.code in _registered and _registered[m.code].source is None)
        for m in models
    )


def register_sources(where: Mapping[str, str]) -> None:
    """Record where to load layers from, by code, as another process of the user gives them;
    never from a store. Nothing is read until a layer is needed."""
    _given_sources.update(where)


def learn_from_folder(code: str, source: str) -> None:
    """Record where a run folder says that a layer is, once that may be trusted."""
    _recorded[code] = source


def is_known(code: str) -> bool:
    """Whether this process knows a layer or where it is, other than from a run folder."""
    return code in _registered or code in _given_sources


def register(layer: LayerSource) -> LayerSource:
    """Register a layer by its code; returns the one already known if it is the same."""
    if _loading:
        raise LayerError(
            f"{_loading[-1]} trains or probes while it is imported; put that under "
            '`if __name__ == "__main__":`'
        )
    previous = _registered.get(layer.code)
    same = previous is not None and (previous.family, previous.source) == (
        layer.family,
        layer.source,
    )
    same = same and previous is not None and not previous.must_be_class
    if previous is not None and same and layer.passed_factory in (None, previous.passed_factory):
        return previous  # its code may have run already
    _registered[layer.code] = layer
    return layer


def _arguments(
    factory: Callable[..., Any], name: str, width: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """How the factory takes the width: by position, by name, or not at all."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (ValueError, TypeError):  # a builtin without a signature
        return (), {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 1 or (needed and needed[0].kind is inspect.Parameter.KEYWORD_ONLY):
        names = ", ".join(p.name for p in needed)
        raise LayerError(
            f"{name} needs arguments ({names}); wrap it in a function that takes the width alone"
        )
    if needed:
        return (width,), {}
    width_names = [p.name for p in parameters if p.name in _WIDTH_NAMES]
    return (), {width_names[0]: width} if width_names else {}


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def _run_file(layer: LayerSource, path: Path) -> ModuleType:
    """The module made by a layer's file: the code as it was read, even if the file has changed."""
    look_in(path.parent)
    module = ModuleType(f"ithbit_user_{path.stem}_{layer.code}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look it up there
    _loading.append(str(path))
    try:
        with explained(f"{path} cannot be imported"):
            exec(compile(layer.text, str(path), "exec", dont_inherit=True), module.__dict__)
    finally:
        _loading.pop()
    return module
