"""No step of a merge that fails loses a folder: what was there is somewhere, and merging again
completes."""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.synthetic_store import Plan, write_run

from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.merging import merge

RUN = RunSpec(ModelSpec("lhi", "gru", 8), 0)
OTHER = RunSpec(ModelSpec("rhi", "gru", 8), 0)


def stores_in(folder: Path) -> tuple[Path, Path]:
    """A store with two finished runs, and one in which the first is unfinished, with a checkpoint,
    and the second has failed."""
    source, target = folder / "source", folder / "target"
    for run in (RUN, OTHER):
        write_run(source, Plan(run, True, 1.0, 5))
    here = write_run(target, Plan(RUN, True, 1.0, 5), "spec")
    (here / "state.safetensors").write_bytes(b"days of training")
    write_run(target, Plan(OTHER, True, 1.0, 5), "failure")
    return source, target


def contents(folder: Path) -> set[str]:
    """Digests of all files below a folder, whatever their names."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("twice", [False, True])  # then putting it back fails too
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["replace", "mkdir", "rmdir", "rmtree", "copytree"])
def test_whatever_fails(
    tmp_path: Path, monkeypatch, name: str, error: BaseException, twice: bool
) -> None:
    where = shutil if name in ("rmtree", "copytree") else os
    works, calls, failing = getattr(where, name), 0, 0

    def fails(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == failing or (twice and calls == failing + 1):
            raise error
        return works(*arguments, **options)

    while calls >= failing:  # until it is called no more often
        failing, calls = failing + 1, 0
        source, target = stores_in(tmp_path / str(failing))
        before = {run: contents(target / run.folder) for run in (RUN, OTHER)}
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fails)
            with suppress(StoreError, KeyboardInterrupt):
                merge(source, target)
        for run, kept in before.items():
            is_merged = contents(target / run.folder) == contents(source / run.folder)
            assert is_merged or kept <= contents(target), (failing, run)
        merge(source, target)
        for run in before:
            assert contents(target / run.folder) == contents(source / run.folder)
    assert failing > 2


def test_a_folder_that_cannot_be_put_back_is_named(tmp_path: Path, monkeypatch) -> None:
    source, target = stores_in(tmp_path)
    works, calls = os.replace, 0

    def fails(*arguments):
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise OSError(28, "No space left on device")
        works(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(StoreError, match=r"is kept as .*\.merge\..*old"):
            merge(source, target)
    (old,) = target.glob(".merge.*/old")
    assert (old / "state.safetensors").read_bytes() == b"days of training"
    merged = merge(source, target)
    assert merged.taken == [RUN.name, OTHER.name]
    assert "a merge was stopped while it replaced this folder" in str(merged)
    assert old.is_dir()


def test_a_run_that_finishes_meanwhile_stays(tmp_path: Path, monkeypatch) -> None:
    source, target = stores_in(tmp_path)
    works = shutil.copytree

    def slow(*arguments, **options):
        copied = works(*arguments, **options)
        shutil.copy(source / RUN.folder / "result.json", target / RUN.folder)
        return copied

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", slow)
        merged = merge(source, target)
    assert (merged.taken, merged.already_there) == ([OTHER.name], [RUN.name])
    assert (target / RUN.folder / "state.safetensors").read_bytes() == b"days of training"
    assert not list(target.glob(".merge.*"))
