"""What holds of every command: how its help looks, and where its store comes from."""

import re
from dataclasses import fields
from inspect import signature
from itertools import pairwise

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import ithbit
from ithbit import __version__
from ithbit.cli import app
from ithbit.cli.application import _GROUPS
from ithbit.cli.options import PLOT, TABLE
from ithbit.reporting.figures import FIGURES
from ithbit.reporting.tables.main import TABLES
from ithbit.spec import Protocol

NAMED = get_command(app).commands
COMMANDS = sorted(NAMED)
STORED = [name for name in COMMANDS if any(p.name == "store" for p in NAMED[name].params)]


def paragraphs(text: str) -> list[list[str]]:
    """The prose of a help page as it is shown: what stands between the usage and the first box."""
    prose = "\n".join(line.strip() for line in text.split("╭")[0].splitlines())
    return [part.splitlines() for part in prose.strip().split("\n\n")[1:]]


@pytest.mark.parametrize("command", COMMANDS)
def test_paragraphs_of_help_fill_eighty_columns(command) -> None:
    """No line is so short that the first word of the next one would have fitted."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert "<bool>" not in shown.stdout  # a flag takes no value
    found = paragraphs(shown.stdout)
    assert found
    for lines in found:
        for line, following in pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > 78, (line, following)


def test_every_command_is_in_one_group() -> None:
    named = [name for names in _GROUPS.values() for name in names]
    assert len(named) == len(set(named))
    assert set(COMMANDS) <= set(named)


def test_the_help_names_every_table_and_figure() -> None:
    """Help must not import what draws them, so their names are written in `cli/options.py` too."""
    for text, names in ((TABLE["name"], TABLES), (PLOT["name"], (*FIGURES, "curves"))):
        assert set(re.findall(r"[\w-]+", text)) - {"or"} == set(names)


def test_status_takes_the_settings_that_sweep_takes() -> None:
    """Else the runs of a sweep with such a setting could not be looked up."""
    settings = {field.name for field in fields(Protocol)} & set(signature(ithbit.sweep).parameters)
    assert "consistency" in settings
    assert settings <= set(signature(ithbit.status).parameters)


def test_names_as_tables_print_them_are_accepted(ithbit) -> None:
    assert ithbit("params", "LHI", "GRU", "--n", "4") == ithbit("params", "lhi", "gru", "--n", "4")
    status, said, _ = ithbit("verdict", "RHI", "RNN", "--n", "100")
    assert status == 0
    assert said == ithbit("verdict", "rhi", "rnn", "--n", "100")[1]
    assert ithbit("params", "lhi", "Gru U", "--n", "4")[0] == 2


def test_the_version_is_told(ithbit) -> None:
    assert ithbit("--version") == (0, f"ithbit {__version__}\n", "")


def test_the_commands_with_a_store() -> None:
    for name in ("train", "sweep", "status", "merge", "verify", "probe", "table", "report", "demo"):
        assert name in STORED


@pytest.mark.parametrize("command", STORED)
def test_every_store_may_come_from_the_environment(command) -> None:
    (store,) = (option for option in NAMED[command].params if option.name == "store")
    assert store.envvar == "ITHBIT_STORE"
    shown = CliRunner().invoke(app, [command, "--help"]).stdout
    assert "[env var: ITHBIT_STORE]" in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize("words", [["status"], ["verify", "--all"]])
def test_the_store_of_the_environment_is_the_one_that_is_read(ithbit, monkeypatch, words) -> None:
    monkeypatch.setenv("ITHBIT_STORE", "elsewhere")
    status, _, said = ithbit(*words)
    assert status == 2
    assert "elsewhere" in said
