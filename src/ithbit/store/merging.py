"""Merging the runs of another store into one, without losing anything from either."""

import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ithbit.display import Printable, pluralize
from ithbit.errors import StoreError
from ithbit.store.linked_files import leads_out, need_within, open_regular, read_regular
from ithbit.store.reading import check_kind, read_run, run_folders
from ithbit.store.records import failure_kind
from ithbit.store.status import folder_status, need_folder, recorded
from ithbit.store.writing import translate_os_errors, write_atomically

_RESULT = "result.json"
_STAGING, _OLD = ".merge.", "old"  # the folder in which a run is copied, and what was in its place


@dataclass(frozen=True, repr=False)
class Merged(Printable):
    """The outcome of merging one store into another."""

    taken: list[str]
    already_there: list[str]
    unfinished: list[str]
    set_aside: list[tuple[str, str]]  # folder and reason
    completed: list[str] = field(default_factory=list)  # of those already there

    def render(self) -> Iterator[str]:
        yield (
            f"{pluralize(len(self.taken), 'run')} merged, {len(self.already_there)} were there "
            f"already, {len(self.unfinished)} unfinished ones left out, "
            f"{len(self.set_aside)} set aside"
        )
        if self.completed:
            yield f"  {pluralize(len(self.completed), 'run')} got missing weights or verdicts"
        for folder, why in self.set_aside:
            yield f"  set aside: {folder}: {why}"


def merge(source: Path, target: Path) -> Merged:
    """Copy the finished and failed runs of another store in; finished runs here stay as they are,
    but get the weights and what was verified of them if they lack these and the results are equal.

    A run folder appears whole or not at all: it is copied next to its place and moved in one step.
    It replaces an unfinished or failed folder of the same run, but not a damaged result. A run that
    could not be run there replaces nothing.
    """
    need_folder(source, str(source), advice := "name the store to take runs from")
    check_kind(target)
    if target.exists() and source.resolve() == target.resolve():
        raise StoreError(f"{source} and {target} are the same store")
    with translate_os_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    merged, folders = Merged([], [], [], []), list(run_folders(source))
    if not folders and any(source.iterdir()):
        raise StoreError(f"{source} holds no runs; {advice}")
    for name, folder in folders:
        status, why = recorded(source / folder)
        recorded_status, reason = recorded(target / folder)
        not_run = status == "failed" and not _diverged(source / folder)
        if status == "set aside":
            merged.set_aside.append((folder, str(why)))
        elif folder_status(source / folder) not in ("done", "failed"):
            merged.unfinished.append(name)
        elif (target_status := folder_status(target / folder)) in ("done", "running") or (
            target_status in ("failed", "stopped") and not_run
        ):
            merged.already_there.append(name)
            if target_status == "done" and _complete(source / folder, target / folder):
                merged.completed.append(name)
        elif recorded_status == "set aside" and _stays(target / folder):
            merged.set_aside.append((folder, f"{target} has a damaged one: {reason}"))
        elif (bad := _unreadable(source / folder)) is not None:
            merged.set_aside.append((folder, bad))
        else:
            with translate_os_errors(target / folder):
                is_taken = _copy_in(source / folder, target / folder)
            (merged.taken if is_taken else merged.already_there).append(name)
    merged.set_aside.extend(_left_over(target))
    return merged


def _diverged(folder: Path) -> bool:
    """Whether a run diverged, which is an outcome of training as a result is."""
    state, record = read_run(str(folder))
    return state == "failed" and failure_kind(record.get("kind"), record["error"]) == "diverged"


def _stays(folder: Path) -> bool:
    """Whether a run folder's place holds something that must not be overwritten."""
    return folder.is_file() or os.path.lexists(folder / _RESULT)


def _unreadable(folder: Path) -> str | None:
    """Why a run folder cannot be copied: something in it that is not a file that can be read. A
    device, a FIFO or a link to a folder might be copied without end. Nor is what a link in it leads
    to outside of the store: it may be anything of the user's."""
    for root, folders, names in os.walk(folder):
        for name in (*names, *(each for each in folders if os.path.islink(f"{root}/{each}"))):
            if name == "lock" or name.startswith("."):
                continue
            if leads_out(f"{root}/{name}", folder.parent):
                return f"{name} is a link that leads out of the store"
            try:
                open_regular(f"{root}/{name}").close()
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
    return None


def _complete(source: Path, target: Path) -> bool:
    """Copy what a finished run here lacks from another copy of it; whether there was something."""
    lacking = [
        name
        for name in ("weights.safetensors", "verification.json", "proof.json")
        if (source / name).is_file()
        and not leads_out(source / name, source.parent)
        and not os.path.lexists(target / name)
    ]
    if not lacking or not filecmp.cmp(source / _RESULT, target / _RESULT, shallow=False):
        return False
    with translate_os_errors(target):
        need_within(target)
        for name in lacking:
            write_atomically(target / name, read_regular(source / name))
    return True


def _copy_in(source: Path, target: Path) -> bool:
    """Copy a run folder into its place, unless the run there is finished or running by now. What
    was in its place is moved aside first, put back if the copy cannot take its place, and deleted
    only once the copy is there."""
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=_STAGING))
    run, old = staging / "run", staging / _OLD
    try:
        skip = shutil.ignore_patterns("lock", ".*")
        shutil.copytree(source, run, ignore=skip)
        if folder_status(target) in ("done", "running"):
            return False
        if os.path.lexists(target):
            os.replace(target, old)
        os.replace(run, target)
        return True
    except BaseException as error:
        if os.path.lexists(old) and not os.path.lexists(target):
            try:
                os.replace(old, target)
            except OSError as again:
                message = f"{again.strerror or again}; the folder that was there is kept as {old}"
                raise OSError(again.errno, message) from error
        if isinstance(error, shutil.Error):  # a list: source, target and why, of every file
            raise OSError(error.args[0][0][-1]) from error
        raise
    finally:
        if os.path.lexists(old) and os.path.lexists(target) and not os.path.lexists(run):
            shutil.rmtree(old, ignore_errors=True)  # replaced
        shutil.rmtree(run, ignore_errors=True)
        with suppress(OSError):
            staging.rmdir()


def _left_over(store: Path) -> Iterator[tuple[str, str]]:
    """Folders that a merge displaced when it was killed, and what to do about each."""
    for old in sorted(store.glob(f"{_STAGING}*/{_OLD}")):
        what = "a merge was stopped while it replaced this folder; move it back, or delete it"
        yield str(old.relative_to(store)), what
