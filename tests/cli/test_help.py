"""What `--help` looks like, of every command."""

from itertools import pairwise

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ithbit.cli import app, flowing

COMMANDS = sorted(get_command(app).commands)


def paragraphs(text: str) -> list[list[str]]:
    """The prose of a help page as it is shown: what stands between the usage and the first box."""
    prose = "\n".join(line.strip() for line in text.split("╭")[0].splitlines())
    return [part.splitlines() for part in prose.strip().split("\n\n")[1:]]


@pytest.mark.parametrize("command", COMMANDS)
def test_paragraphs_of_help_fill_eighty_columns(command) -> None:
    """No line is so short that the first word of the next one would have fitted."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    found = paragraphs(shown.stdout)
    assert found
    for lines in found:
        for line, following in pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > 78, (line, following)


@pytest.mark.parametrize(
    "kept", ["\b\nas\nwritten", "- a\n- b", "1. a\n2. b", "such as\n    code\n    code"]
)
def test_lists_and_blocks_of_help_stay_as_they_are_written(kept) -> None:
    assert flowing(f"It flows\non.\n\n{kept}\n\nAnd\non.") == f"It flows on.\n\n{kept}\n\nAnd on."
