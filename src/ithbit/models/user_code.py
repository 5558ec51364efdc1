"""A user's Python code: finding a module's file without running anything, reading it, and running
just what was read."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ithbit.errors import LayerError

FAILURES = (Exception, SystemExit)  # what a user's code may raise; sys.exit must not end training


def read_code(path: Path) -> bytes:
    """The bytes of a user's file; raises `LayerError` if there are none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LayerError(f"there is no file {path}") from None
    except OSError as error:
        raise LayerError(f"{path} cannot be read: {error.strerror or error}") from error


def look_in(folder: Path) -> None:
    """Let imports find modules next to the user's file; last on the path, so it shadows nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def module_file(name: str) -> Path | None:
    """The file of an importable module, None if it has none. The current folder comes last."""
    with explained(f"the module {name} cannot be imported"):
        spec = _module_spec(name)
        if spec is None:
            look_in(Path.cwd())
            spec = _module_spec(name)
    if spec is None:
        raise LayerError(f"the module {name} cannot be imported: there is no such module")
    return Path(spec.origin) if spec.has_location and spec.origin else None


def is_found_elsewhere(name: str) -> bool:
    """Whether a module is found without the current folder, and is the one that is found with it.
    Nothing is added to where modules are looked for."""
    search_path, folder = sys.path[:], Path.cwd().resolve()
    with explained(f"the module {name} cannot be imported"):
        spec = _module_spec(name)
        sys.path[:] = [each for each in search_path if Path(each).resolve() != folder]
        try:
            other = _module_spec(name)
        finally:
            sys.path[:] = search_path
    return other is not None and spec is not None and spec.origin == other.origin


def is_only_here(name: str) -> bool:
    """Whether a module is found, and would not be without the current folder."""
    with explained(f"the module {name} cannot be imported"):
        spec = _module_spec(name)
    return spec is not None and not is_found_elsewhere(name)


def _module_spec(name: str) -> ModuleSpec | None:
    """The spec of a module, found without importing the packages around it."""
    parent, dot, last = name.rpartition(".")
    where: Sequence[str] | None = None
    if not last or (dot and not parent):
        return None
    if parent in sys.modules:
        where = getattr(sys.modules[parent], "__path__", ())
    elif parent:
        around = _module_spec(parent)
        where = (around and around.submodule_search_locations) or ()
        where = getattr(where, "_path", where)  # of a namespace, which else looks for its parent
    if where is not None and not where:
        return None
    specs = (finder.find_spec(name, where) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def import_module(name: str, text: bytes) -> ModuleType:
    """The module of that name, whose file has this text: the text runs, even if the file has
    changed since, unless the module is imported already."""
    module, origin = sys.modules.get(name), module_file(name)
    if module is not None and origin is not None and was_edited(module, origin):
        raise LayerError(f"the module {name} has changed since it was imported; start Python again")
    with explained(f"the module {name} cannot be imported"):
        spec = None if module is not None or origin is None else _module_spec(name)
        if spec is None or origin is None or origin.suffix != ".py":
            return importlib.import_module(name)
        parent, _, last = name.rpartition(".")
        package = importlib.import_module(parent) if parent else None
        module = sys.modules.get(name)
        if module is not None:  # imported by its package just now
            if read_code(origin) != text:
                raise LayerError(f"{origin} has changed while it was imported; start Python again")
            return module
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            exec(compile(text, str(origin), "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        if package is not None:
            setattr(package, last, sys.modules[name])
        return sys.modules[name]


def was_edited(module: ModuleType, path: Path) -> bool:
    """Whether a module's file is known to have changed since it was imported.

    A class in memory may be older than the file that is hashed to identify it, and Python records
    the time of what it imported only in the head of the bytecode cache (PEP 552: bytes 4 to 8 are 0
    and 8 to 12 the file's time), which no public function reads. Without one, nothing is detected.
    """
    cached = getattr(module.__spec__, "cached", None)
    with suppress(OSError):
        if cached and (head := Path(cached).read_bytes()[:16])[4:8] == bytes(4):
            stamp = int(path.stat().st_mtime) & 0xFFFFFFFF
            return head[8:12] != stamp.to_bytes(4, "little")
    return False


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Context in which whatever a user's code raises becomes a `LayerError` that begins so."""
    try:
        yield
    except LayerError:
        raise
    except FAILURES as error:
        raise LayerError(f"{what}: {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
