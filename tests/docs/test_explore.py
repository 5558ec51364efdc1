"""The pages in docs/explore are what the commands in their index make of the shipped runs."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT, WEIGHTS

from ithbit.explorer.page import HOME, SCRIPTS, of_run
from ithbit.html import template_part

FOLDER = ROOT / "docs" / "explore"
COMMANDS = re.findall(
    r"^\$ ithbit explore (.*) -o docs/explore/(.*)$", (FOLDER / "index.md").read_text(), re.M
)
LARGEST = 500_000  # bytes


def runs_of(arguments: str) -> list[Path]:
    """The folders that a command names, by themselves or in its store."""
    stores = {f"${kind}": str(WEIGHTS / kind) for kind in ("uniform", "mixed")}
    named, _, store = arguments.partition(" --store ")
    found = []
    for run in named.split():
        path = f"{store}/{run}-*" if store else f"{run}-*"
        for name, folder in stores.items():
            path = path.replace(name, folder)
        (folder,) = Path("/").glob(path.lstrip("/"))
        found.append(folder)
    return found


def models(page: str) -> list[dict[str, Any]]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(data)["models"]


def test_every_page_has_its_command() -> None:
    assert {page for _, page in COMMANDS} == {path.name for path in FOLDER.glob("*.html")}
    assert len(COMMANDS) == 3


@pytest.mark.parametrize(("arguments", "name"), COMMANDS, ids=[page for _, page in COMMANDS])
def test_a_page_is_current(arguments: str, name: str) -> None:
    page = (FOLDER / name).read_text()
    assert len(page.encode()) < LARGEST
    for part in (*SCRIPTS, "page.css"):
        assert template_part(HOME, part) in page, f"make it again: {part} has changed"
    *trained, construction = models(page)
    wanted = [json.loads(json.dumps(of_run(folder).to_json())) for folder in runs_of(arguments)]
    assert trained == wanted
    assert construction["standing"]["verdict"] == "certified for all inputs"
    verdicts = [each["standing"]["verdict"] for each in trained]
    paragraph = (FOLDER / "index.md").read_text().split(f"`{name}`:")[1].split("\n- ")[0]
    assert all(f"*{verdict}*" in paragraph for verdict in verdicts)


@pytest.mark.parametrize("name", [page for _, page in COMMANDS])
def test_a_browser_admits_the_script_of_a_page(name: str) -> None:
    """A page that was edited by hand would stay empty: its policy names the script's hash."""
    page = (FOLDER / name).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
