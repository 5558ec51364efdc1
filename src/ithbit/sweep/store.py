"""A store as a whole: what is done, running, failed or missing, and merging another store in.

Looks at names, JSON and locks, never at tensors, so that `ithbit status` answers at once.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ithbit.engine.reading import State, UnreadableError, check_kind, read_run, run_folders
from ithbit.engine.spec import RunSpec
from ithbit.errors import StoreError

RunStatus = Literal["done", "running", "queued", "stopped", "failed", "set aside", "missing"]
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)


def need_store(store: Path) -> None:
    """A sentence if there is no store to look at."""
    if not store.exists():
        raise StoreError(f"there is no store {store}; train something first, or give --store")
    check_kind(store)


def need_runs(store: Path) -> list[tuple[str, str]]:
    """What `run_folders` gives; a sentence if there is no store, or no run in it."""
    if not store.is_dir():
        kind = "is a file, not a folder" if store.exists() else "does not exist"
        raise StoreError(
            f"the store {store} {kind}; name the folder of a sweep with --store, or start one with "
            "`ithbit sweep`"
        )
    check_kind(store)
    found = list(run_folders(store))
    if not found:
        raise StoreError(
            f"the store {store} holds no runs; start some with `ithbit sweep`, or name another "
            "folder with --store"
        )
    return found


def folder_status(folder: Path) -> RunStatus:
    """Where the run of a folder stands; a lock that a process holds means that it is at work.

    *set aside*: its record is not whole, and no table counts it; `problem` says why.

    Only a queue knows what is queued, and a lock of another machine may not be seen: see
    `executors.ledger.live_runs`.
    """
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return "missing"
    except OSError:  # no folder, or not ours to look into
        return "set aside"
    if "result.json" not in names and "lock" in names and _is_locked(folder / "lock"):
        return "running"
    try:
        state, _ = read_run(str(folder))
    except UnreadableError:
        return "set aside"
    by_state: dict[State, RunStatus] = {"finished": "done", "failed": "failed"}
    return by_state.get(state, "stopped")


def problem(folder: Path) -> str | None:
    """Why the run of a folder is set aside, None if its record is whole."""
    try:
        read_run(str(folder))
    except UnreadableError as reason:
        return str(reason)
    return None


def statuses(store: Path, runs: Iterable[RunSpec]) -> dict[RunSpec, RunStatus]:
    """Where each run of a sweep stands in a store."""
    return {run: folder_status(store / run.folder) for run in runs}


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return False
    finally:
        os.close(handle)
    return False


@dataclass(frozen=True)
class Merged:
    """What came of merging one store into another."""

    taken: list[str]
    already_there: list[str]
    unfinished: list[str]
    set_aside: list[tuple[str, str]]  # folder and reason


def merge(source: Path, target: Path) -> Merged:
    """Take the finished and failed runs of another store in; what is finished here stays as it is.

    A run folder appears whole or not at all: it is copied beside and moved in one step. An
    unfinished folder of the same run makes room for the finished one; a damaged result does not.
    """
    if not source.is_dir():
        kind = "is a file, not a folder" if source.exists() else "does not exist"
        raise StoreError(f"{source} {kind}; name the store to take runs from")
    for store in (source, target):
        check_kind(store)
    if target.exists() and source.resolve() == target.resolve():
        raise StoreError(f"{source} and {target} are the same store")
    target.mkdir(parents=True, exist_ok=True)
    merged = Merged([], [], [], [])
    for name, folder in run_folders(source):
        if why := problem(source / folder):
            merged.set_aside.append((folder, why))
        elif folder_status(source / folder) not in ("done", "failed"):
            merged.unfinished.append(name)
        elif folder_status(target / folder) in ("done", "running"):
            merged.already_there.append(name)
        elif _stays(target / folder) and (why := problem(target / folder)):
            merged.set_aside.append((folder, f"{target} has a damaged one: {why}"))
        else:
            _copy_in(source / folder, target / folder)
            merged.taken.append(name)
    return merged


def _stays(folder: Path) -> bool:
    """Whether there is something in a run folder's place that a person may miss."""
    return folder.is_file() or os.path.lexists(folder / "result.json")


def _copy_in(source: Path, target: Path) -> None:
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".merge."))
    try:
        skip = shutil.ignore_patterns("lock", ".*")
        shutil.copytree(source, beside / "run", ignore=skip)
        if target.exists():
            os.replace(target, beside / "old")
        os.replace(beside / "run", target)
    except OSError as error:
        raise StoreError(f"cannot write to {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
