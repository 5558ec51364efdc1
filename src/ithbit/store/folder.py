"""The folder of one run: the disk is the state.

    spec.json           written first; names the run the folder belongs to
    history.jsonl       one line per epoch, appended; the last line of an epoch counts
    state.safetensors   weights and optimiser, replaced every few seconds; kept if the epochs ran
                        out, so that a run with only a larger `max_epochs` can resume from there
    weights.safetensors final weights
    result.json         written last; its presence means that the run is finished
    failure.json        its presence means that the run failed
    verification.json   what `ithbit verify` found about the final weights
    proof.json          the certificate, if `ithbit verify --prove` proved it or bounded it
    layer.json          where a user's layer came from
    layer.py            and its code, for the record: never run from here

Files are put in place in one step, so a reader sees either the old file or the new one. No pickle
is read or written. A damaged checkpoint is renamed and reported; a damaged record is an error, and
stays in place.
"""

import errno
import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from ithbit.errors import StoreError
from ithbit.spec import RunSpec
from ithbit.store.linked_files import need_within
from ithbit.store.reading import (
    ended,
    load_verification,
    open_regular,
    read_history,
    read_json,
)
from ithbit.store.records import (
    SCHEMA,
    Epoch,
    Failure,
    LayerOrigin,
    Result,
    VerificationRecord,
    head,
)
from ithbit.store.schema import UnreadableError, read_as
from ithbit.store.writing import json_bytes, translate_os_errors, write_atomically

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


@dataclass
class Checkpoint:
    """The state of a run between two epochs: all that its next epoch depends on."""

    epochs_done: int
    plateau_best: float
    plateau_bad_epochs: int
    tensors: dict[str, Tensor]  # weights and optimiser, by the engine's names
    started_at: str


class RunFolder:
    """One run's folder in a store."""

    def __init__(self, store: Path, run: RunSpec) -> None:
        self.run = run
        self.path = store / run.folder

    def create(self) -> None:
        """Create the folder with its spec; raise `StoreError` if it holds another run."""
        with translate_os_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            need_within(self.path)
            spec = self.path / "spec.json"
            if not spec.exists():
                write_atomically(spec, json_bytes(head(self.run)))
                return
        try:
            stored = read_json(str(spec)) or {}
        except UnreadableError:
            stored = {}
        if stored.get("spec") != self.run.to_json():
            raise StoreError(
                f"{self.path} does not hold the run it is named after; "
                "move it away or choose another --store"
            )

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Lock the folder against other processes; yields whether it was free. The lock ends with
        the process at the latest.

        On a file system without locks, every process gets the folder: two copies of a run then
        train side by side, which costs time and changes nothing.
        """
        with translate_os_errors(self.path):
            # A FIFO in its place must not block, and a link would create a file elsewhere.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            flags |= os.O_NOFOLLOW
            lock = open(os.open(self.path / "lock", flags, 0o666), "ab")  # noqa: SIM115
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                yield error.errno in _NO_LOCKS
            else:
                yield True

    def outcome(self) -> Result | Failure | None:
        """The record of how the run ended, or None; raises `StoreError` if it is damaged."""
        ends = (self.path / "result.json", self.path / "failure.json")
        if not any(map(os.path.lexists, ends)):
            return None  # another process may be about to write the spec
        try:
            return ended(str(self.path))
        except UnreadableError as reason:
            raise self._damaged(reason) from None

    def result(self) -> Result | None:
        """The finished run's record, or None; raises `StoreError` if it is damaged."""
        outcome = self.outcome()
        return outcome if isinstance(outcome, Result) else None

    def _damaged(self, reason: UnreadableError) -> StoreError:
        return StoreError(
            f"{self.path} holds no readable run ({reason}); it is left as it is: "
            "restore the file, or move the folder away to train again"
        )

    def forget_failure(self) -> None:
        """Clear a failure, so that the run is tried again."""
        with translate_os_errors(self.path):
            (self.path / "failure.json").unlink(missing_ok=True)

    def history(self) -> list[Epoch]:
        """The recorded epochs, in order; torn lines are skipped, an epoch's last line counts."""
        return read_history(str(self.path))

    def keep_history(self, n_epochs: int) -> list[Epoch]:
        """Keep only the first epochs, and return them: later ones are trained again."""
        history = self.history()[:n_epochs]
        if (self.path / "history.jsonl").exists():
            self._write_history(history)
        return history

    def complete_history(self, epochs: list[Epoch]) -> None:
        """Make sure that every epoch is recorded, before the run is finished.

        They already are, unless a second copy of the run, on a file system without locks, dropped
        some of them when it started.
        """
        if len(self.history()) < len(epochs):
            self._write_history(epochs)

    def _write_history(self, epochs: list[Epoch]) -> None:
        lines = (json.dumps(asdict(epoch)) + "\n" for epoch in epochs)
        self._write("history.jsonl", "".join(lines).encode())

    def append_epoch(self, epoch: Epoch) -> None:
        """Add one line to the history."""
        line = json.dumps(asdict(epoch)) + "\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            translate_os_errors(self.path),
            open(os.open(self.path / "history.jsonl", flags, 0o666), "a+b") as file,
        ):
            # A line torn by a crash must not corrupt the next one.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = "\n" + line
            file.write(line.encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint on disk."""
        tensors = {name: value.cpu() for name, value in checkpoint.tensors.items()}
        metadata = {
            "schema": str(SCHEMA),
            "run_id": self.run.run_id,
            "epochs_done": str(checkpoint.epochs_done),
            "plateau_best": checkpoint.plateau_best.hex(),
            "plateau_bad_epochs": str(checkpoint.plateau_bad_epochs),
            "started_at": checkpoint.started_at,
        }
        self._write("state.safetensors", save(tensors, metadata))

    def load(self, like: Mapping[str, Tensor]) -> tuple[Checkpoint | None, str | None]:
        """The checkpoint on disk, and a remark if there was one but damaged: it is then renamed.

        Its tensors must have the names, shapes and types of `like`. Only the process that holds
        the folder may call this.
        """
        with translate_os_errors(self.path):  # files of a process killed while writing
            for left_over in self.path.glob(".*.safetensors*"):
                left_over.unlink(missing_ok=True)
        path = self.path / "state.safetensors"
        if not path.exists():
            return None, None
        try:
            checkpoint = self._read_state(path, like)
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            aside = path.with_name("state.damaged.safetensors")
            with translate_os_errors(self.path):
                os.replace(path, aside)
            why = f"{type(error).__name__}: {error}"
            notice = f"the checkpoint of {self.run.name} is damaged ({why}); kept as {aside.name}"
            return None, notice
        except OSError as error:  # a file that may not be read is not damaged
            raise StoreError(
                f"cannot read {path}: {error.strerror or error}; make it readable, or move it away "
                "to start the run again"
            ) from error
        return checkpoint, None

    def _read_state(self, path: Path, like: Mapping[str, Tensor]) -> Checkpoint:
        open_regular(path).close()  # safetensors would wait for a FIFO
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in like}
        if metadata["schema"] != str(SCHEMA) or metadata["run_id"] != self.run.run_id:
            raise ValueError("it belongs to another run or version")
        for name, expected in like.items():
            if (tensors[name].shape, tensors[name].dtype) != (expected.shape, expected.dtype):
                raise ValueError("its tensors are not those of the model")
        if not all(torch.isfinite(value).all() for value in tensors.values()):
            raise ValueError("it holds numbers that are not finite")
        epochs_done = int(metadata["epochs_done"])
        if [epoch.epoch for epoch in self.history()[:epochs_done]] != list(
            range(1, epochs_done + 1)
        ):
            raise ValueError(f"the history lacks epochs before number {epochs_done}")
        best, bad = float.fromhex(metadata["plateau_best"]), int(metadata["plateau_bad_epochs"])
        return Checkpoint(epochs_done, best, bad, tensors, metadata["started_at"])

    def finish(
        self, result: Result, weights: dict[str, Tensor], state: Checkpoint | None = None
    ) -> None:
        """Write the final weights, then the result; then the final state, if a longer run may
        resume from it.

        The first result stands: a second copy of the run, on a file system without locks, may
        finish later.
        """
        if not os.path.lexists(self.path / "result.json"):
            self._write("weights.safetensors", save(weights, {"run_id": self.run.run_id}))
            self._write("result.json", json_bytes(result.to_json()))
        if state is not None:
            self.save(state)
            return
        with translate_os_errors(self.path):
            (self.path / "state.safetensors").unlink(missing_ok=True)

    def shorter(self) -> "RunFolder | None":
        """Of the finished runs in this store that differ from this one only in a smaller
        `max_epochs`, the one with the largest; None if there is none."""
        candidates = []
        for path in self.path.parent.glob(f"{glob.escape(self.run.name)}-*/result.json"):
            with suppress(UnreadableError):
                outcome = ended(str(path.parent))
                run = outcome.spec if isinstance(outcome, Result) else self.run
                epochs = run.protocol.max_epochs
                if epochs < self.run.protocol.max_epochs and self.run == replace(
                    run, protocol=replace(run.protocol, max_epochs=self.run.protocol.max_epochs)
                ):
                    candidates.append((epochs, run))
        return RunFolder(self.path.parent, max(candidates)[1]) if candidates else None

    def begin_as(self, shorter: "RunFolder", like: Mapping[str, Tensor]) -> Checkpoint | None:
        """Start from where a shorter run ended, with its history as the beginning of this one's;
        return that state, or None if it was not kept or is damaged."""
        try:
            state = shorter._read_state(shorter.path / "state.safetensors", like)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError):
            return None
        self._write_history(shorter.history()[: state.epochs_done])
        return state

    def end_as(self, shorter: "RunFolder") -> Result | None:
        """Take over the result of a shorter run unless its epochs ran out: if they did not, more
        epochs change nothing."""
        result = shorter.result()
        if result is None or result.stopped_by == "epochs":
            return None
        result = replace(result, spec=self.run)
        try:
            with open_regular(shorter.path / "weights.safetensors") as file:
                weights = load(file.read())
        except (OSError, SafetensorError):
            return None
        self._write_history(shorter.history())
        self.finish(result, weights)
        return result

    def fail(self, failure: Failure) -> None:
        """Record that the run failed."""
        self._write("failure.json", json_bytes(failure.to_json()))

    def keep_layer(self, source: str | None, code: bytes) -> None:
        """Record where the layer of the run was loaded from, and a copy of its code."""
        origin = LayerOrigin(self.run.model.family, self.run.model.code, source)
        with suppress(UnreadableError):
            if self._read_layer() == origin:
                return
        if code:
            self._write("layer.py", code)
        self._write("layer.json", json_bytes(origin.to_json()))

    def layer(self) -> LayerOrigin | None:
        """Where the layer of the run was loaded from, or None if that was not recorded."""
        try:
            origin, model = self._read_layer(), self.run.model
            if origin and (origin.family, origin.code) != (model.family, model.code):
                raise UnreadableError("layer.json belongs to another layer")
        except UnreadableError as reason:
            raise self._damaged(reason) from None
        return origin

    def _read_layer(self) -> LayerOrigin | None:
        record = read_json(f"{self.path}/layer.json")
        return None if record is None else read_as(LayerOrigin, record, "layer.json")

    def _write(self, name: str, data: bytes) -> None:
        with translate_os_errors(self.path):
            write_atomically(self.path / name, data)


def keep_verification(folder: Path, record: VerificationRecord) -> Path | None:
    """Write what was found about a run to its folder, unless just that is on record. A damaged
    record is renamed, not replaced: its new path is returned."""
    aside = None
    with translate_os_errors(folder):
        need_within(folder)
        try:
            if load_verification(str(folder)) == record:
                return None
        except UnreadableError:
            names = (f"verification.damaged{k}.json" for k in ("", *range(2, 1000)))
            free = next((name for name in names if not os.path.lexists(folder / name)), None)
            if free is not None:
                aside = folder / free
                os.rename(folder / "verification.json", aside)
        write_atomically(folder / "verification.json", json_bytes(record.to_json()))
    return aside
