"""What was submitted, kept in the store under `.jobs`:

    lock                 held while looking and submitting, so that nothing is submitted twice
    00007-1f0c.json      a batch: its shares, each with its runs; written before it is submitted
    00007-1f0c/          what is known about its shares, by their place in the batch
      submitted          the cluster's name for the batch, once it has one
      3.trace            a line for each stage it reached: started, ready, error …, held
      3.log              what it printed
      3.closed           it was cancelled, or its error was reported: not retried automatically

A batch whose runs all have results is removed by the next sweep of the store. Reads JSON only,
never tensors.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ithbit.errors import StoreError, normalize
from ithbit.models.layer_source import sources
from ithbit.spec import RunSpec, run_from_json
from ithbit.store.linked_files import need_within, open_regular
from ithbit.store.reading import read_json
from ithbit.store.records import SCHEMA
from ithbit.store.schema import UnreadableError
from ithbit.store.writing import translate_os_errors, write_atomically

_NAME = re.compile(r"[0-9]{5,18}-[0-9a-f]+")  # of a batch
_MOST_TEXT = 1 << 20  # bytes of a trace or log that are read, from its end

Handle = tuple[str, int]  # of a share that was submitted: its batch's name, and its place there


@dataclass(frozen=True)
class Job:
    """What a cluster says of a share that it has queued or is running."""

    job_id: str  # the cluster's own name for it
    state: str  # such as PENDING or RUNNING
    reason: str = ""  # why it is not running, if known

    @property
    def is_running(self) -> bool:
        return self.state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")

    @property
    def failed_to_launch(self) -> bool:
        """Whether the cluster holds it after a failed launch, until it is released."""
        return "launch failed" in self.reason.replace("_", " ").lower() and not self.is_running


@dataclass(frozen=True)
class Share:
    """Runs for one process; its batch sets its place."""

    runs: tuple[RunSpec, ...]
    attempt: int = 1  # number in a row without a new epoch
    epochs: int = 0  # of the runs together when it was submitted
    folder: Path = Path()  # of its batch
    index: int = 0

    @property
    def handle(self) -> Handle:
        return self.folder.name, self.index

    @property
    def submitted(self) -> bool:
        """Whether the cluster is known to have accepted its batch."""
        return (self.folder / "submitted").exists()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.index}.log"

    def trace(self) -> list[str]:
        """The stages that it reached, in order, including those of earlier starts."""
        # Creating a file here makes a network file system ask its server for the folder's contents.
        with translate_os_errors(self.folder), tempfile.TemporaryFile(dir=self.folder):
            pass
        return _lines(self.folder / f"{self.index}.trace")

    def log_lines(self) -> list[str]:
        """The end of what it printed."""
        return _lines(self.log)

    def note(self, line: str) -> None:
        """Add a line to its trace."""
        with open(self.folder / f"{self.index}.trace", "a") as file:
            file.write(line + "\n")

    @property
    def is_closed(self) -> bool:
        return (self.folder / f"{self.index}.closed").exists()

    def close(self) -> None:
        (self.folder / f"{self.index}.closed").touch()


def _lines(path: Path) -> list[str]:
    """The last lines of a text file that other processes append to; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_TEXT))
            return file.read(_MOST_TEXT).decode(errors="replace").strip().splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class Batch:
    """A list of shares that were, or are about to be, submitted at once."""

    name: str
    store: Path
    device: str  # cpu or cuda
    shares: tuple[Share, ...]
    layers: Mapping[str, str] = field(default_factory=dict, compare=False)  # their places, by code

    def __post_init__(self) -> None:
        shares = (replace(s, folder=self.folder, index=k) for k, s in enumerate(self.shares))
        normalize(self, shares=tuple(shares))

    @property
    def path(self) -> Path:
        return self.store / ".jobs" / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        return self.store / ".jobs" / self.name


def read_batch(path: Path) -> Batch | None:
    """The batch in a file, or None if the file is not there (any more)."""
    try:
        data = read_json(str(path))
    except UnreadableError as error:
        raise StoreError(f"{path} cannot be read: {error}; move it away") from error
    if data is None:
        return None
    try:
        shares = tuple(
            Share(
                tuple(map(run_from_json, share["runs"])),
                _count(share["attempt"]),
                _count(share["epochs"]),
            )
            for share in data["tasks"]
        )
        if not (_NAME.fullmatch(path.stem) and isinstance(data["device"], str)):
            raise ValueError(path.stem)
        layers = {str(code): str(source) for code, source in data.get("layers", {}).items()}
        return Batch(path.stem, path.parent.parent, data["device"], shares, layers)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StoreError(f"{path} is no batch of this version; move it away") from None


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no count")
    return value


class Ledger:
    """The batches of one store."""

    def __init__(self, store: Path) -> None:
        self.store = store.resolve()
        self.folder = self.store / ".jobs"

    @contextmanager
    def locked(self) -> Iterator[int | None]:
        """Hold the lock for looking and submitting; yields None if the file system has no locks."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with translate_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            need_within(self.folder)
            file = open(os.open(self.folder / "lock", flags, 0o666), "rb")  # noqa: SIM115
        with file as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                yield None
            else:
                yield lock.fileno()

    def batches(self) -> list[Batch]:
        """All batches, oldest first."""
        batches = (read_batch(path) for path in sorted(self.folder.glob("*.json")))
        return [batch for batch in batches if batch is not None]

    def shares(self) -> list[Share]:
        """The shares of all batches, oldest first."""
        return [share for batch in self.batches() for share in batch.shares]

    def write(self, shares: Sequence[Share], device: str) -> Batch:
        """Record a batch that is about to be submitted; the lock must be held."""
        names = [path.stem for path in self.folder.glob("*.json")]
        number = max((int(name.partition("-")[0]) for name in names), default=0) + 1
        batch = Batch(f"{number:05d}-{secrets.token_hex(4)}", self.store, device, tuple(shares))
        entries = [
            {
                "runs": [run.to_json() for run in share.runs],
                "attempt": share.attempt,
                "epochs": share.epochs,
            }
            for share in shares
        ]
        record = {"schema": SCHEMA, "device": device, "tasks": entries}
        if layers := sources(run for share in shares for run in share.runs):
            record["layers"] = layers
        with translate_os_errors(self.folder):
            batch.folder.mkdir()
            write_atomically(batch.path, json.dumps(record, indent=1).encode())
        return batch

    def remove(self, batch: Batch) -> None:
        """Forget a batch; if one of its shares still starts, it finds nothing to do."""
        batch.path.unlink(missing_ok=True)
        shutil.rmtree(batch.folder, ignore_errors=True)


def live_runs(store: Path, live: dict[Handle, Job]) -> dict[RunSpec, Job]:
    """The runs of a store whose share is queued or running, each with its job."""
    shares = [share for share in Ledger(store).shares() if share.handle in live]
    return {run: live[share.handle] for share in shares for run in share.runs}
