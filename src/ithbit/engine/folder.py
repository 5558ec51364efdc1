"""The folder of one run: the disk is the state.

    spec.json           first; names the run the folder belongs to
    history.jsonl       a line an epoch, appended; the last line of an epoch counts
    state.safetensors   weights and optimiser, replaced every few seconds
    weights.safetensors final weights
    result.json         last; its presence means that the run is finished
    failure.json        or that it failed

Files are written under another name and moved into place in one step, so a reader sees the old file
or the new one. No pickle is read or written. A damaged checkpoint is set aside under another name
and said; a damaged record is an error, and stays.
"""

import errno
import fcntl
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ithbit.engine.optim import AdamState, Plateau
from ithbit.engine.reading import State, UnreadableError, check_kind, read_run
from ithbit.engine.record import (
    SCHEMA,
    Epoch,
    Failure,
    Result,
    failure_from_json,
    result_from_json,
)
from ithbit.engine.spec import RunSpec
from ithbit.engine.stack import fresh_state
from ithbit.errors import StoreError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
_STATE_TENSORS = tuple(field.name for field in fields(AdamState))


@dataclass
class Checkpoint:
    """Where a run stands between two epochs: all that its next epoch depends on."""

    epochs_done: int
    plateau: Plateau
    adam: AdamState  # one row
    started_at: str


class RunFolder:
    """One run's folder in a store."""

    def __init__(self, store: Path, run: RunSpec) -> None:
        self.run = run
        self.path = store / run.folder

    def create(self) -> None:
        """Make the folder with its spec; refuse one that holds another run."""
        with _said_as_store_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            spec = self.path / "spec.json"
            if not spec.exists():
                head = {"schema": SCHEMA, "run_id": self.run.run_id, "name": self.run.name}
                write_atomically(spec, _json_bytes(head | {"spec": self.run.to_json()}))
                return
        found = read_json(spec)
        if found is None or found.get("spec") != self.run.to_json():
            raise StoreError(
                f"{self.path} does not hold the run it is named after; "
                "move it away or choose another --store"
            )

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Hold the folder against other processes: gives whether it was free. Ends with the
        process.

        A file system without locks holds nobody off: two copies of a run then train side by side,
        which costs time and changes nothing.
        """
        with _said_as_store_error(self.path):
            handle = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                yield error.errno in _NO_LOCKS
            else:
                yield True
        finally:
            os.close(handle)

    def result(self) -> Result | None:
        """The finished run's record, or None; one that is not whole is an error, and stays."""
        state, record = self._read()
        return result_from_json(record) if state == "finished" else None

    def failure(self) -> Failure | None:
        """Why the run failed, or None; likewise."""
        state, record = self._read()
        return failure_from_json(record) if state == "failed" else None

    def _read(self) -> tuple[State, dict[str, Any]]:
        ends = (self.path / "result.json", self.path / "failure.json")
        if not any(map(os.path.lexists, ends)):
            return "unfinished", {}  # another process may be about to write the spec
        try:
            return read_run(str(self.path))
        except UnreadableError as reason:
            raise StoreError(
                f"{self.path} holds no readable run ({reason}); it is left as it is: "
                "restore the file, or move the folder away to train anew"
            ) from None

    def forget_failure(self) -> None:
        """Let a failed run be tried again."""
        with _said_as_store_error(self.path):
            (self.path / "failure.json").unlink(missing_ok=True)

    def history(self) -> list[Epoch]:
        """The epochs recorded, in order; torn lines are passed over, and the last word counts."""
        return read_history(self.path / "history.jsonl")

    def keep_history(self, n_epochs: int) -> list[Epoch]:
        """The first epochs, with all else dropped: what follows a checkpoint is trained again."""
        kept = self.history()[:n_epochs]
        if (self.path / "history.jsonl").exists():
            self._write_history(kept)
        return kept

    def complete_history(self, epochs: list[Epoch]) -> None:
        """Have every epoch of a run on record that is about to be finished.

        They are there already unless a second copy of the run, which no lock held off, dropped some
        of them when it began.
        """
        if len(self.history()) < len(epochs):
            self._write_history(epochs)

    def _write_history(self, epochs: list[Epoch]) -> None:
        lines = (json.dumps(asdict(epoch)) + "\n" for epoch in epochs)
        self._write("history.jsonl", "".join(lines).encode())

    def append_epoch(self, epoch: Epoch) -> None:
        """Add one line to the history."""
        line = json.dumps(asdict(epoch)) + "\n"
        with _said_as_store_error(self.path), open(self.path / "history.jsonl", "a+b") as file:
            # A line torn by a crash must not swallow the next one.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = "\n" + line
            file.write(line.encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the state on disk."""
        tensors = {name: value.cpu() for name, value in vars(checkpoint.adam).items()}
        metadata = {
            "schema": str(SCHEMA),
            "run_id": self.run.run_id,
            "epochs_done": str(checkpoint.epochs_done),
            "plateau_best": _exact(checkpoint.plateau.best),
            "plateau_bad_epochs": str(checkpoint.plateau.bad_epochs),
            "started_at": checkpoint.started_at,
        }
        self._write("state.safetensors", save(tensors, metadata))

    def load(self) -> tuple[Checkpoint | None, str | None]:
        """The state on disk, and a sentence if one was there but damaged: that one is set aside.

        To be called by the process that holds the folder.
        """
        with _said_as_store_error(self.path):  # of a process that was killed while it wrote
            for left_over in self.path.glob(".*.safetensors.*"):
                left_over.unlink(missing_ok=True)
        path = self.path / "state.safetensors"
        if not path.exists():
            return None, None
        try:
            checkpoint = self._read_state(path)
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            aside = path.with_name("state.damaged.safetensors")
            with _said_as_store_error(self.path):
                os.replace(path, aside)
            why = f"{type(error).__name__}: {error}"
            said = f"the checkpoint of {self.run.name} is damaged ({why}); kept as {aside.name}"
            return None, said
        return checkpoint, None

    def _read_state(self, path: Path) -> Checkpoint:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            adam = AdamState(**{name: file.get_tensor(name) for name in _STATE_TENSORS})
        if metadata["schema"] != str(SCHEMA) or metadata["run_id"] != self.run.run_id:
            raise ValueError("it belongs to another run or version")
        like = vars(fresh_state(self.run)).values()
        for value, expected in zip(vars(adam).values(), like, strict=True):
            if (value.shape, value.dtype) != (expected.shape, expected.dtype):
                raise ValueError("its tensors are not those of the model")
        if not all(torch.isfinite(value).all() for value in vars(adam).values()):
            raise ValueError("it holds numbers that are not finite")
        done = int(metadata["epochs_done"])
        if [epoch.epoch for epoch in self.history()[:done]] != list(range(1, done + 1)):
            raise ValueError(f"the history lacks epochs before number {done}")
        plateau = Plateau(
            float.fromhex(metadata["plateau_best"]), int(metadata["plateau_bad_epochs"])
        )
        return Checkpoint(done, plateau, adam, metadata["started_at"])

    def finish(self, result: Result, weights: dict[str, Tensor]) -> None:
        """Write the final weights, then the result; then the state is no longer needed.

        The first result stands: a second copy of the run, on a file system without locks, may come
        here later.
        """
        if not os.path.lexists(self.path / "result.json"):
            self._write("weights.safetensors", save(weights, {"run_id": self.run.run_id}))
            self._write("result.json", _json_bytes(result.to_json()))
        with _said_as_store_error(self.path):
            (self.path / "state.safetensors").unlink(missing_ok=True)

    def fail(self, failure: Failure) -> None:
        """Record that the run failed."""
        self._write("failure.json", _json_bytes(failure.to_json()))

    def _write(self, name: str, data: bytes) -> None:
        with _said_as_store_error(self.path):
            write_atomically(self.path / name, data)


def check_store(store: Path) -> None:
    """Make the store if it is missing; a sentence if it cannot hold runs."""
    with _said_as_store_error(store):
        check_kind(store)
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store):
            pass


def write_atomically(path: Path, data: bytes) -> None:
    """Put a file in place in one step, on the disk before it is named."""
    try:
        _write_and_move(path, data)
    except FileNotFoundError:  # a second copy of the run began, and cleared the folder meanwhile
        _write_and_move(path, data)


def _write_and_move(path: Path, data: bytes) -> None:
    # Not mkstemp, whose files are for one user alone: a store may be shared.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no such thing."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read_history(path: Path) -> list[Epoch]:
    """The epochs of a history file in order, each once: its last whole line."""
    epochs: dict[int, Epoch] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                epoch = Epoch(**json.loads(line))
            except (ValueError, TypeError):
                continue
            epochs[epoch.epoch] = epoch
    return [epochs[number] for number in sorted(epochs)]


def _json_bytes(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def _exact(value: float) -> str:
    return value.hex() if math.isfinite(value) else str(value)


@contextmanager
def _said_as_store_error(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a sentence; nothing finished is lost by it."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write to {path}: {error.strerror or error}; what is finished is kept: "
            "mend that and run the same command again"
        ) from error
