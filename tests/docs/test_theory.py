"""The page docs/theory.md says what the code says."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ithbit.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `((?:rhi|lhi) [^`]+)` \|(.*)\|$", PAGE, re.MULTILINE)


def test_the_table_was_found():
    assert len(ROWS) == 17
    assert "ithbit verdict  " in PAGE


@pytest.mark.parametrize(("options", "cells"), ROWS)
def test_n_star_in_the_page(options, cells):
    for n_layers, cell in enumerate((cell.strip() for cell in cells.split("|")), start=1):
        if not cell:
            continue
        arguments = ["bound", *options.split(), "--layers", str(n_layers), "--all", "--json"]
        found = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).output)
        counted = {
            route["route"]: route["n_star"]
            for route in found["routes"]
            if route["route"].startswith("counting")
        }
        shown = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", cell)]
        assert shown[0] == found["n_star"]
        assert ("*" in cell) == ("Theorem 8.3" in found["rests_on"])
        if "*" in cell:
            assert shown == sorted(counted.values())


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+\.py|\w+/)`", PAGE))))
def test_paths_in_the_page_exist(path):
    theory = ROOT / "src" / "ithbit" / "theory"
    places = [theory / path, theory.parent / path, theory / "constructions" / path, ROOT / path]
    assert any(place.exists() for place in places)


@pytest.mark.parametrize("line", re.findall(r"^ithbit (.+?)(?: +#.*)?$", PAGE, re.MULTILINE))
def test_commands_in_the_page_run(line):
    result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
