"""A store as a whole: what is done, running, failed or missing.

Reads names, JSON and locks, never tensors, so that `ithbit status` answers at once.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from ithbit.errors import StoreError
from ithbit.spec import RunSpec
from ithbit.store.reading import check_kind, open_regular, read_run, run_folders
from ithbit.store.schema import UnreadableError
from ithbit.store.writing import translate_os_errors

RunStatus = Literal["done", "running", "queued", "stopped", "failed", "set aside", "missing"]
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)


def check_store(store: Path) -> None:
    """Create the store if it is missing; raise `StoreError` if it cannot hold runs."""
    with translate_os_errors(store):
        check_kind(store)
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store):
            pass


def need_store(store: Path) -> None:
    """Raise `StoreError` if there is no store to read."""
    if not store.exists():
        raise StoreError(f"there is no store {store}; train something first, or give --store")
    check_kind(store)


def need_folder(store: Path, label: str, advice: str) -> None:
    """Raise `StoreError` with this advice if a store is no folder."""
    if not store.is_dir():
        kind = "is a file, not a folder" if store.exists() else "does not exist"
        raise StoreError(f"{label} {kind}; {advice}")
    check_kind(store)


def need_runs(store: Path) -> list[tuple[str, str]]:
    """The `run_folders` of a store; raises `StoreError` if there is no store, or no run in it."""
    advice = "name the folder of a sweep with --store, or start one with `ithbit sweep`"
    need_folder(store, f"the store {store}", advice)
    folders = list(run_folders(store))
    if not folders:
        raise StoreError(
            f"the store {store} holds no runs; start some with `ithbit sweep`, or name another "
            "folder with --store"
        )
    return folders


def folder_status(folder: Path) -> RunStatus:
    """The status of the run in a folder; *running* means that a process holds its lock.

    *set aside*: its record is not valid, and no table counts it; `recorded` says why.

    Only a queue knows what is queued, and a lock held on another machine may not be visible: see
    `executors.ledger.live_runs`.
    """
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return "missing"
    except OSError:  # not a folder, or no permission to read it
        return "set aside"
    if "result.json" not in names and "lock" in names and _is_locked(folder / "lock"):
        return "running"
    return recorded(folder)[0]


def recorded(folder: Path) -> tuple[RunStatus, str | None]:
    """The status by the record alone, and why the run is set aside or failed, else None."""
    try:
        state, record = read_run(str(folder))
    except UnreadableError as error:
        return "set aside", str(error)
    if state == "failed":
        return "failed", str(record["error"])
    return "done" if state == "finished" else "stopped", None


def statuses(store: Path, runs: Iterable[RunSpec]) -> dict[RunSpec, RunStatus]:
    """The status of each run of a sweep in a store."""
    return {run: folder_status(store / run.folder) for run in runs}


def _is_locked(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as lock:  # raised also by file systems without locks
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
