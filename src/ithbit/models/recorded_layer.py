"""Where the code of a user's layer may be loaded from if only a run folder says where it is.

A run folder is data, and anyone may have written it: its `layer.json` can name any file, and its
spec the digest of that file. So code is never loaded from inside a store, nor from where a relative
path or a name leads that the user did not give, nor a module in the current folder. What is left is
the file that the user trained, at its absolute path and with its digest, a class of `nn.Module` in
an installed module, or a ready-made layer. A function in an installed module is not called: there
are some that run what is in the current folder, as those that run tests or scripts.
"""

import os
import re
import sys
from pathlib import Path

from ithbit.errors import LayerError
from ithbit.models.layer_source import is_known, learn_from_folder
from ithbit.models.user_code import is_found_elsewhere, is_only_here, module_file

_INSTALLED = re.compile(r"site-packages|dist-packages|python3(\.\d+)?t?")  # in a path
_RUN_FOLDER = re.compile(r".+-[0-9a-f]{12}")


def learn_recorded(code: str, source: str, store: Path) -> None:
    """Learn from a run folder of a store where its layer is, unless the process knows it; raises
    `LayerError` if code must not be loaded from there."""
    if is_known(code):
        return
    where, _, name = source.rpartition(":")
    refused = f"layer.json names {source!r:.200}"
    remedy = "name the layer's file yourself, with --layer"
    if where == "torch" or (where == "fla" and not is_only_here("fla")):
        learn_from_folder(code, source)
        return
    if not where.endswith(".py"):
        if where.partition(".")[0] in sys.stdlib_module_names:
            raise LayerError(f"{refused}, which is no layer but Python's own module")
        if where.rpartition(".")[2] == "__main__":
            raise LayerError(f"{refused}, a program and no layer")
        around = _store_around(Path.cwd() / "module.py", store)  # where modules are looked for, too
        if around:
            raise LayerError(
                f"{refused}, a module, and this folder is a store "
                f"({_reason(around, store)}); go to another one"
            )
        if not is_found_elsewhere(where):  # else code that came with a store would run too
            raise LayerError(f"{refused}, a module that only this folder may have; {remedy}")
        path = module_file(where)
        if path is None:
            raise LayerError(f"{refused}, a module without a file")
    else:
        path = Path(where)
        if not path.is_absolute():
            raise LayerError(f"{refused}, which is no absolute path; {remedy}")
    try:
        resolved = path.resolve()
        is_other = os.path.lexists(resolved) and not resolved.is_file()
    except (OSError, RuntimeError, ValueError):  # a link to itself, a name that no file can have
        is_other = True
    if is_other:
        raise LayerError(f"{refused}, which is not a file; {remedy}")
    for each in (Path(os.path.normpath(path.absolute())), resolved):
        if where.endswith(".py") and any(map(_INSTALLED.fullmatch, each.parts)):
            raise LayerError(f"{refused}, a file of an installed program; {remedy}")
        if around := _store_around(each, store):
            raise LayerError(
                f"{refused}, a file inside a store ({_reason(around, store)}): code is never run "
                f"from there; {remedy}"
            )
    learn_from_folder(code, f"{resolved}:{name}" if where.endswith(".py") else source)


def _store_around(path: Path, store: Path) -> Path | None:
    """The folder that makes this file one inside a store: this store, or any folder above the file
    that is or holds a run folder."""
    if store.resolve() in path.parents:
        return store.resolve()
    return next(filter(holds_a_run, path.parents), None)


def _reason(around: Path, store: Path) -> str:
    """Why files below this folder are inside a store: users may not know of a stray run folder."""
    folder = repr(str(around))
    return folder if around == store.resolve() else f"{folder} is or holds a run folder"


def holds_a_run(folder: Path) -> bool:
    if _is_run_folder(folder):
        return True
    try:
        with os.scandir(folder) as entries:
            return any(
                _RUN_FOLDER.fullmatch(entry.name) and _is_run_folder(folder / entry.name)
                for entry in entries
            )
    except OSError:
        return False


def _is_run_folder(folder: Path) -> bool:
    return os.path.lexists(folder / "spec.json")
