"""The site's hand-written lists are whole."""

import json
import re

from tests.support.paths import ROOT

import ithbit

DOCS = ROOT / "docs"


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^\.\. auto\w+:: ithbit\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(ithbit.__all__)


def test_every_figure_is_in_the_gallery() -> None:
    shown = re.findall(r"\(images/(.+?)\)", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").iterdir())


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text()
    blocks = re.findall(r"^```{toctree}\n(.*?)^```$", contents, re.M | re.S)
    entries = {line.split("<")[-1].rstrip(">") for block in blocks for line in block.splitlines()}
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    assert pages - {"index"} <= entries


def test_notebook_is_kept_without_outputs() -> None:
    cells = json.loads((DOCS / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
