"""Imports go one way; no pickle is read. Held by reading the source, with a test that this can
fail."""

import ast
import re
from pathlib import Path

import pytest
from tests.support.paths import ROOT

import ithbit

SOURCE = Path(ithbit.__file__).parent

# What each part of the package may import, besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "families": {"errors"},
    "spec": {"errors", "families"},
    "published": {"families"},
    "tasks": {"errors", "families"},
    "layouts": {"families", "spec", "tasks"},
    "models": {"errors", "families", "spec", "tasks", "layouts"},
    "kernels": {"families", "spec", "tasks", "layouts", "models"},
    "native": {"families", "spec", "tasks", "layouts", "models"},
    "store": {"errors", "families", "spec"},
    "engine": {
        *("errors", "families", "spec", "tasks", "models", "kernels", "native", "store"),
        "__version__",
    },
    "sweeps": {"errors", "families", "spec", "tasks", "models", "store", "engine", "published"},
    "theory": {
        *("errors", "families", "spec", "tasks", "layouts"),
        *("store.writing", "store.bounded_json"),
    },
    "reference": {"errors", "families", "spec", "tasks", "models"},
    "verification": {
        *("errors", "families", "spec", "tasks", "layouts", "models", "store", "engine", "theory"),
        "__version__",
    },
    "external_models": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "verification"),
        "published",
    },
    "loading": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "reference"),
        *("theory", "verification"),
    },
    "html": {"__version__"},
    "reporting": {
        *("errors", "families", "spec", "store", "theory", "published"),
        *("html", "__version__"),
    },
    "explorer": {
        *("errors", "families", "spec", "layouts", "models", "store", "theory", "verification"),
        *("html", "__version__"),
    },
    "contract": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "sweeps", "theory"),
        *("verification", "published", "reference", "loading", "__version__"),
    },
    "capacity_search": {
        *("errors", "families", "spec", "models", "store", "engine", "theory", "verification"),
        *("loading", "contract", "reporting", "html", "__version__"),
    },
    "bench": {
        *("errors", "families", "spec", "tasks", "layouts", "models", "kernels", "native"),
        *("engine", "sweeps", "reference", "store.writing"),
    },
    "api": {
        *("errors", "families", "spec", "tasks", "models", "store", "engine", "sweeps", "theory"),
        *(
            "verification",
            "loading",
            "external_models",
            "contract",
            "reporting",
            "explorer",
            "published",
        ),
        "capacity_search",
    },
    "display": set(),
}
ANYBODY = {"display"}  # how results print: every part may have some
EVERYTHING = {"cli", "__main__", "__init__"}  # these may import anything
NO_TORCH = {"errors", "families", "spec", "layouts", "theory"}


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
    assert {"tasks", "models", "kernels", "engine", "sweeps", "theory", "cli"} <= parts
    assert parts <= ALLOWED.keys() | EVERYTHING


def listed_parts(page: str) -> list[str]:
    """The parts of the package in the order in which the page's tree lists them."""
    tree = page.split("```text\nsrc/ithbit/\n")[1].split("```")[0]
    return re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE)


def test_the_page_lists_every_part_below_those_that_it_may_import() -> None:
    listed = listed_parts((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(ALLOWED.keys() | {"cli"})
    for part, allowed in ALLOWED.items():
        above = set(listed[: listed.index(part)]) | {"__version__"}
        assert {name.split(".")[0] for name in allowed} <= above, part


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
        ("engine", "from ithbit.sweeps import runner", "engine imports ithbit.sweeps.runner"),
        ("sweeps", "import pickle", "pickles: pickle"),
        ("cli", "import torch\nx = torch.load('a')", "pickles: torch.load"),
        ("engine", "import numpy\nnumpy.load('a', allow_pickle=True)", "pickles: allow_pickle"),
        (
            "external_models",
            "from ithbit.reporting.tables import render",
            "external_models imports ithbit.reporting",
        ),
        (
            "reporting",
            "from ithbit.api.records import table",
            "reporting imports ithbit.api.records",
        ),
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


def class_names(source: str) -> list[str]:
    """The classes at the top of a module."""
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def repeated(sources: dict[str, str]) -> dict[str, list[str]]:
    """Class names that several modules define, and which ones do."""
    homes: dict[str, list[str]] = {}
    for module, source in sources.items():
        for name in class_names(source):
            homes.setdefault(name, []).append(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_a_class_name_is_defined_once() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in MODULES}
    assert repeated(sources) == {}
    assert repeated(sources | {"other.py": "class RunSpec:\n    pass"}) == {
        "RunSpec": ["spec.py", "other.py"]
    }


def test_no_part_is_named_like_a_public_function() -> None:
    """Importing it would replace the function."""
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert not parts & set(ithbit.__all__)
    assert "train" in ithbit.__all__


def test_what_checks_a_certificate_knows_nothing_of_the_search() -> None:
    """A second implementation shares the format and the arithmetic library, and no bounds."""
    checks = sorted((SOURCE / "verification" / "checks").glob("*.py"))
    assert len(checks) > 1
    for path in checks:
        for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            assert not name.startswith("ithbit.verification.proofs"), (path, name)


METAPHORS = re.compile(r"(?<![a-z])(doors?|told|survives?|mends?|fallen)(?![a-z])", re.IGNORECASE)


def test_the_source_speaks_in_the_fields_words() -> None:
    """In names (`was_told`) and prose alike; the words are those that once stood for something."""
    assert METAPHORS.findall("was_told, Door and survives; recommended, indoors") == [
        *("told", "Door", "survives")
    ]
    kinds = {".py", ".js", ".html", ".css"}
    found = {
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in SOURCE.rglob("*")
        if path.suffix in kinds
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if METAPHORS.search(line)
    }
    assert found == set()
