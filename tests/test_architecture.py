"""Imports go one way; no pickle is read. Held by reading the source, with a test that this can
fail."""

import ast
from pathlib import Path

import pytest

import ithbit

SOURCE = Path(ithbit.__file__).parent

# What each part of the package may import, beside itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "families": {"errors"},
    "spec": {"errors", "families"},
    "published": {"families"},
    "tasks": {"errors", "families"},
    "models": {"errors", "families", "spec", "tasks"},
    "kernels": {"families", "spec", "tasks", "models"},
    "native": {"families", "spec", "tasks", "models"},
    "store": {"errors", "families", "spec"},
    "engine": {
        *("errors", "families", "spec", "tasks", "models", "kernels", "native", "store"),
        "__version__",
    },
    "sweep": {"errors", "families", "spec", "tasks", "models", "store", "engine", "published"},
    "theory": {"errors", "families", "spec", "tasks", "store.writing"},
    "reference": {"errors", "families", "spec", "tasks", "models"},
    "verify": {"errors", "families", "spec", "tasks", "models", "store", "engine", "__version__"},
    "prove": {"errors", "families", "spec", "tasks", "models", "store", "theory", "verify"},
    "exchange": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "verify"),
        "published",
    },
    "loading": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "reference"),
        *("theory", "verify"),
    },
    "selfcontained": {"__version__"},
    "report": {
        *("errors", "families", "spec", "store", "theory", "published"),
        *("selfcontained", "__version__"),
    },
    "explore": {
        *("errors", "families", "spec", "models", "store", "theory", "verify", "selfcontained"),
        "__version__",
    },
    "probe": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "sweep", "theory"),
        *("verify", "published", "__version__"),
    },
    "capacity": {
        *("errors", "families", "spec", "models", "store", "engine", "theory", "verify"),
        *("loading", "probe", "report", "selfcontained", "__version__"),
    },
    "bench": {
        *("errors", "families", "spec", "tasks", "models", "kernels", "native", "engine"),
        *("sweep", "reference"),
    },
    "api": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "sweep", "theory"),
        *("verify", "prove", "loading", "exchange", "probe", "report", "explore", "published"),
        "capacity",
    },
    "shown": set(),
}
ANYBODY = {"shown"}  # how results print: every part may have some
EVERYTHING = {"cli", "__main__", "__init__"}  # doors: they may import anything
NO_TORCH = {"errors", "families", "spec", "theory"}


def imports(tree: ast.AST) -> set[str]:
    """Every module that a source imports, at its top or inside a function; in full names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(part: str, source: str) -> list[str]:
    """What a module of that part of the package does that it may not."""
    tree = ast.parse(source)
    found = imports(tree)
    wrong = []
    for name in sorted(found):
        first, _, rest = name.partition(".")
        if first in ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"):
            wrong.append(f"reads or writes pickles: {name}")
        if first in ("torch", "safetensors", "transformers") and part in NO_TORCH:
            wrong.append(f"{part} imports {name}")
        if first != "ithbit" or part in EVERYTHING or rest.split(".")[0] == part:
            continue
        if not any(f"{rest}.".startswith(f"{allowed}.") for allowed in ALLOWED[part] | ANYBODY):
            wrong.append(f"{part} imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
            wrong.append(f"reads or writes pickles: {ast.unparse(node)}")
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and ast.unparse(node.value) != "False"
        ):
            wrong.append("reads or writes pickles: allow_pickle")
    return wrong


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert violations(part, path.read_text()) == []


def test_every_part_is_known() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert {"tasks", "models", "kernels", "engine", "sweep", "theory", "cli"} <= parts
    assert parts <= ALLOWED.keys() | EVERYTHING


@pytest.mark.parametrize(
    ("part", "source", "said"),
    [
        ("models", "from ithbit.engine import loop", "models imports ithbit.engine.loop"),
        ("models", "import ithbit.theory.layers", "models imports ithbit.theory.layers"),
        ("kernels", "from ithbit import engine", "kernels imports ithbit.engine"),
        ("theory", "def f():\n    from ithbit.models import gru", "theory imports ithbit.models"),
        ("theory", "def f():\n    import torch", "theory imports torch"),
        ("tasks", "from ithbit import models", "tasks imports ithbit.models"),
        ("reference", "from ithbit.engine.loop import train", "reference imports ithbit.engine"),
        ("engine", "from ithbit.sweep import runner", "engine imports ithbit.sweep.runner"),
        ("sweep", "import pickle", "pickles: pickle"),
        ("cli", "import torch\nx = torch.load('a')", "pickles: torch.load"),
        ("engine", "import numpy\nnumpy.load('a', allow_pickle=True)", "pickles: allow_pickle"),
        ("exchange", "from ithbit.report.tables import render", "exchange imports ithbit.report"),
        ("report", "from ithbit.api.records import table", "report imports ithbit.api.records"),
        ("api", "from ithbit.cli import options", "api imports ithbit.cli.options"),
        ("engine", "from ithbit.errors_of_ours import x", "engine imports ithbit.errors_of_ours"),
    ],
)
def test_the_check_can_fail(part, source, said) -> None:
    (found,) = violations(part, source)
    assert said in found


def test_the_check_can_pass() -> None:
    assert violations("engine", "import torch\nfrom ithbit.spec import ModelSpec") == []
    assert violations("reference", "from ithbit.spec import Protocol") == []


def test_no_module_is_over_400_lines() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert sizes
    assert not {path: size for path, size in sizes.items() if size > 400}
