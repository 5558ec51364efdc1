"""The command line in this process, for all tests of what commands print and how they end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ithbit.cli import main


@pytest.fixture
def ithbit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in an empty folder: exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["ithbit", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call
