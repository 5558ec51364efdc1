"""The documentation site: `make docs`.

The sources are the Markdown files where they lie in the repository, so that a link between two of
them works on a forge and on the site alike. `sphinx-build -c docs . OUT` has the checkout's root as
its source folder for that reason.
"""

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ithbit

ROOT = Path(__file__).resolve().parents[1]
EXPLORE = ROOT / "docs" / "explore"

project = "ithbit"
author = "The ithbit authors"
copyright = f"2026, {author}"
version = release = ithbit.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    *("docs/**.md", "docs/**.ipynb", "README.md", "results/README.md"),
    *("results/weights/README.md", "experiments/README.md"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"),
]
exclude_patterns = [
    *("src", "tests", "runs", "build", "dist", ".*", "**/.ipynb_checkpoints"),
]

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_output_stderr = "remove"  # libraries' remarks at import

default_role = "literal"  # docstrings have `names` as in Markdown
autodoc_member_order = "bysource"
add_module_names = False
maximum_signature_line_length = 88
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"ithbit {release}"
html_copy_source = False


def every_public_name_at_hand() -> None:
    """Import what `ithbit` imports on first use: `ithbit.sweep` is a function, not its package."""
    for name in ithbit.__all__:
        if find_spec(f"ithbit.{name}"):
            import_module(f"ithbit.{name}")
    for name, home in ithbit._HOME.items():
        vars(ithbit)[name] = getattr(import_module(f"ithbit.{home}"), name)


def list_explorable_pages(app: Any, docname: str, source: list[str]) -> None:
    """Put a link to every page of docs/explore where the page on them asks for it."""
    if docname == "docs/explore/index":
        pages = sorted(EXPLORE.glob("*.html"))
        links = [f'<li><a href="{page.name}">{page.stem}</a></li>' for page in pages]
        listed = "\n".join(["<ul>", *links, "</ul>"]) if links else "*No page has been made yet.*"
        source[0] = source[0].replace("<!-- pages -->", listed)


def add_plain_pages(app: Any, error: Exception | None) -> None:
    """Add to what Sphinx makes: the explorable pages as they are, and a link to them at the top."""
    if error is None:
        for page in EXPLORE.glob("*.html"):
            shutil.copy(page, Path(app.outdir) / "docs" / "explore" / page.name)
        home = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(home + "<title>ithbit</title>\n")


def setup(app: Any) -> None:
    every_public_name_at_hand()
    app.connect("source-read", list_explorable_pages)
    app.connect("build-finished", add_plain_pages)
