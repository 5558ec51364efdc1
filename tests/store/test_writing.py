"""Files are whole or not there; what stood there before stays until then."""

import os
from pathlib import Path

import pytest

from ithbit.errors import OutputError
from ithbit.store.writing import write_text


def test_writes_and_makes_folders(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a" / "b.txt", "ω(1)\n")
    assert path.read_text(encoding="utf-8") == "ω(1)\n"
    assert os.listdir(path.parent) == ["b.txt"]
    assert path.stat().st_mode & 0o444


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = write_text(tmp_path / "page.html", "old")

    def breaks(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder; name a file"):
        write_text(tmp_path, "text")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "page.html", tmp_path / "file" / "deeper" / "page.html"):
        with pytest.raises(OutputError, match=f"{path.parent} is not a folder; give another path"):
            write_text(path, "text")
    with pytest.raises(OutputError, match="cannot write /dev/null/x"):
        write_text(Path("/dev/null/x"), "text")
