"""The page docs/theory.md says what the code says."""

import json
import re

import pytest
from tests.support.paths import ROOT
from typer.testing import CliRunner

from ithbit.cli import app
from ithbit.theory.architecture import architecture
from ithbit.theory.bounds import all_routes
from ithbit.theory.certificate import METHODS
from ithbit.theory.certifiers.every_n import trained_every_n
from ithbit.theory.constructions import TRAINED, construct_trained, entry_of

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


MARGINS = {
    "BERT, RHI": ("rhi", "softmax-full", "angle"),
    "BERT, LHI": ("lhi", "softmax-full", "angle"),
    "linear attention, RHI": ("rhi", "linear-full", "linear window"),
    "linear attention, LHI": ("lhi", "linear-full", "linear window"),
    "Mamba2, LHI": ("lhi", "mamba2", "mamba2 window"),
    "nn.GRU, LHI": ("lhi", "gru", "latch"),
}


@pytest.mark.parametrize("row", MARGINS)
def test_margins_in_the_page_are_certified_and_rounded_down(row):
    task, family, method = MARGINS[row]
    (cells,) = re.findall(rf"^\| {row}.*? \| (\d) \| (\d).*? \| (.*?) \| (\S+) \|$", PAGE, re.M)
    entry = entry_of(TRAINED, task, family)
    assert (int(cells[0]), int(cells[1])) == (entry.depth, entry.least_width)
    texts = cells[2].removesuffix(" at each").split(", ")
    texts *= 4 if len(texts) == 1 else 1
    for n, text in zip((8, 64, 1024, 4096), texts, strict=True):
        margin = METHODS[method].bound(construct_trained(task, family, n)).margin
        step = 10.0 ** -len(text.partition(".")[2])
        assert float(text) <= margin < float(text) + step
    always = trained_every_n(task, family).margin
    assert float(cells[3]) <= always < float(cells[3]) + 0.001


def test_ratios_in_the_page():
    def ratio(family, layers, width=16, hidden=64, **kind):
        arch = architecture(family, n_layers=layers, width=width, hidden=hidden, **kind)
        found = {route.name: route.n_star for route in all_routes("rhi", arch)}
        return found.get("Anthony–Bartlett 8.4", 0) / found["counting (A)"]

    ratios = [
        *(ratio("rnn", layers) for layers in (1, 2, 3, 4)),
        *(ratio("ssm", layers, transition="constant") for layers in (1, 2, 3, 4)),
        *(ratio(family, 1) for family in ("ssm", "linear-causal", "linear-full")),
    ]
    assert f"{min(ratios):,.0f} to {max(ratios):,.0f} times" in " ".join(PAGE.split())
    assert f"({ratio('rnn', 1, 1, 4):.0f} for an RNN of width 1" in " ".join(PAGE.split())
