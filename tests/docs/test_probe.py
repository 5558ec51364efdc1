"""The page docs/probe.md says what the code says."""

import re

import pytest
import typer.main
from tests.support.paths import ROOT

from ithbit.cli import app
from ithbit.models.adapters import ADAPTERS

PAGE = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ithbit (\w+)(.*?)(?: +#.*)?$", PAGE, re.MULTILINE)


def test_the_commands_were_found() -> None:
    assert {name for name, _ in COMMANDS} == {"train", "probe", "verify", "data", "score"}


@pytest.mark.parametrize(("name", "rest"), COMMANDS)
def test_options_of_the_commands_exist(name: str, rest: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    assert set(re.findall(r" (--?[a-z][a-z-]*)", rest)) <= known


@pytest.mark.parametrize("name", ADAPTERS)
def test_ready_layers_are_named(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("layer", ["LeakyIntegrator", "SlidingWindow", "Hybrid"])
def test_examples_have_their_reports(layer: str) -> None:
    text = (ROOT / "examples" / f"{layer}.txt").read_text(encoding="utf-8")
    assert text.startswith(f"{layer}, width 16")
    assert "What does training find? (observed)" in text
