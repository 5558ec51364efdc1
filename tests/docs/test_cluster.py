"""The page docs/cluster.md speaks of commands and options that exist."""

import re
import tomllib

import pytest
from tests.support.paths import ROOT
from typer.testing import CliRunner

from ithbit.cli import app
from ithbit.sweeps.executors.slurm import read_options

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ithbit (.+?)(?: +#.*)?$", PAGE, re.MULTILINE)


def test_the_commands_were_found():
    assert len(COMMANDS) == 10


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_commands_in_the_page_are_understood(line):
    result = CliRunner().invoke(app, [*line.split(), "--help"])
    assert result.exit_code == 0, result.output


def test_an_unknown_option_is_not_understood():
    assert CliRunner().invoke(app, ["sweep", "paper", "--no-such", "--help"]).exit_code == 2


def test_the_profile_in_the_page_is_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    (tmp_path / "gpu.toml").write_text(text)
    options = read_options([], tmp_path / "gpu.toml")
    written = tomllib.loads(text)
    assert options.setup == tuple(written.pop("setup"))
    assert options.python == written.pop("python")
    assert set(options.sbatch) == set(written)
