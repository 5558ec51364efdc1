"""What the commands that need run folders say of an export, and of a file in a store's place."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.synthetic_store import paper_plans, write_run

CPU = ("--device", "cpu")
COMMANDS = [
    ("train", "rhi", "gru", "--n", "3", *CPU),
    ("sweep", "smoke", *CPU),
    ("sweep", "smoke", "--dry-run", *CPU),
    ("sweep", "smoke", "--on", "slurm", "--dry-run"),
    ("sweep", "smoke", "--on", "slurm", "--cancel"),
    ("status",),
    ("status", "smoke"),
    ("merge", "runs"),
    ("verify", "--all", *CPU),
    ("verify", "some_run", *CPU),
    ("demo",),
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A store of one run folder."""
    write_run(tmp_path / "runs", paper_plans()[0])
    return tmp_path / "runs"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_export_is_refused(ithbit, runs: Path, tmp_path: Path, command) -> None:
    ithbit("export", "--format", "csv", "-o", "tidy")
    status, out, err = ithbit(*command, "--store", "tidy")
    assert (status, out) == (2, "")
    assert err == (
        "ithbit: tidy holds the tables of `ithbit export`, not run folders; name another folder "
        "(`ithbit table`, `compare`, `plot`, `report` and `export` read the tables)\n"
    )
    tables = sorted(path.name for path in (tmp_path / "tidy").iterdir())
    assert tables == ["histories.csv", "runs.csv"]


def test_an_export_is_no_source_of_a_merge(ithbit, runs: Path, tmp_path: Path) -> None:
    ithbit("export", "-o", "tidy")
    status, out, err = ithbit("merge", "tidy", "--store", "new")
    assert (status, out) == (2, "")
    assert "tidy holds the tables of `ithbit export`, not run folders" in err
    assert not (tmp_path / "new").exists()


def test_run_folders_with_tables_beside_them_are_a_store(ithbit, runs: Path) -> None:
    ithbit("export", "-o", "runs")
    assert ithbit("status")[:2] == (0, "1 done (1 run)\n")
    assert ithbit("merge", "runs", "--store", "new")[1].startswith("1 run merged")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_is_refused_before_anything_is_said(ithbit, runs: Path, command) -> None:
    file = runs.parent / "file"
    file.write_text("mine")
    status, out, err = ithbit(*command, "--store", "file")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ithbit: the store file is a file")
    assert file.read_text() == "mine"


def test_an_export_is_told_without_torch_and_polars(tmp_path: Path) -> None:
    """A machine that only trains has no polars."""
    (tmp_path / "runs.csv").write_text("")
    code = (
        "import sys; sys.argv = ['ithbit', 'status', '--store', '.']\n"
        "from ithbit.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 2\n"
        "assert not {'torch', 'polars'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "holds the tables of `ithbit export`" in done.stderr


@pytest.mark.parametrize(
    "command",
    [("status",), ("table", "main"), ("report",), ("verify", "--all"), ("explore", "some_run")],
    ids=" ".join,
)
def test_a_store_that_may_not_be_read_is_no_traceback(ithbit, monkeypatch, command) -> None:
    stat = Path.stat

    def refuse(path: Path, **given: bool) -> object:
        if str(path).startswith("closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", refuse)
    status, out, err = ithbit(*command, "--store", "closed/runs")
    assert (status, out) == (2, "")
    assert err.startswith("ithbit: cannot read or write closed/runs")
    assert err.endswith(": Permission denied\n")
