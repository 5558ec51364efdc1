"""A finished run as its folder has it: read once, and handed to whatever verifies, proves, loads or
shows it.

The weights file is read once, when it is first needed: the bytes that are hashed are those that are
evaluated and proved. Its tensors are compared with the spec before anything else is allocated.
"""

import hashlib
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from ithbit.engine.memory import need_memory
from ithbit.errors import StoreError
from ithbit.models.classifier import shapes
from ithbit.models.recorded_layer import learn_recorded
from ithbit.spec import RunSpec, run_from_json
from ithbit.store import reading
from ithbit.store.folder import RunFolder
from ithbit.store.linked_files import check_linked_files, open_regular, owner, sha256_of_file
from ithbit.store.records import Result, VerificationRecord, from_json
from ithbit.store.schema import UnreadableError
from ithbit.store.status import folder_status, need_runs

_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run in its folder. Only `load_verification` reads the disk each time: another
    process may have stored a record since."""

    path: Path
    record: dict[str, Any]  # result.json, complete and checked

    @cached_property
    def spec(self) -> RunSpec:
        """Raises `StoreError` if it is not a spec of this version."""
        try:
            return run_from_json(self.record["spec"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{self.path} holds no readable run: {error}; restore the folder"
            ) from error

    @cached_property
    def result(self) -> Result:
        return from_json(Result, self.record)

    @property
    def solved(self) -> bool:
        """The paper's criterion: all held-out samples right at the best epoch."""
        return bool(self.record["max_accuracy"] == 1.0)

    @property
    def solved_at_end(self) -> bool:
        """The same at the last epoch, whose weights are stored."""
        return bool(self.record["final_accuracy"] == 1.0)

    @cached_property
    def weights_file(self) -> bytes:
        """The bytes of the weights file, whatever they are; raises `StoreError` if there are none.
        Any other reader wants `weights`."""
        try:
            with open_regular(self.path / _WEIGHTS) as file:
                size = os.fstat(file.fileno()).st_size
                advice = "a run's weights are smaller; restore the file"
                need_memory(f"reading the weights of {self.record['name']}", 3 * size, advice)
                return file.read()
        except OSError as error:
            raise StoreError(
                f"{self.path} has no {_WEIGHTS} that can be read ({error.strerror}), though its "
                "run is finished; restore the file, or move the folder away and train the run again"
            ) from error

    @cached_property
    def weights_sha256(self) -> str:
        return hashlib.sha256(self.weights_file).hexdigest()

    @cached_property
    def weights(self) -> bytes:
        """The bytes of the weights file, whose tensors fit the spec; raises `StoreError` if they do
        not. Those of a user's layer are compared when its code is needed, and not before."""
        run, weights = self.spec, self.weights_file
        if (other := owner(weights)) not in (None, self.record["run_id"]):
            raise StoreError(
                f"{self.path} has the weights of another run, {other!r:.40}; restore the file"
            )
        if (origin := RunFolder(self.path.parent, run).layer()) and origin.source:
            learn_recorded(origin.code, origin.source, self.path.parent)
        if not run.model.code:
            check_tensors(run, weights)
        return weights

    def check_unchanged(self, weights_sha256: str) -> None:
        """Raise `StoreError` unless these are the weights read here, and those on disk now."""
        if not weights_sha256 == self.weights_sha256 == sha256_of_file(self.path / _WEIGHTS):
            raise StoreError(f"the weights in {self.path} were changed while they were verified")

    def load_verification(self) -> VerificationRecord | None:
        """What is on record of these weights now; raises `UnreadableError` for a record that does
        not count. Without weights there is nothing to compare with, and any record counts."""
        folder = str(self.path)
        data = reading.read_json(f"{folder}/verification.json")
        if data is None:
            return None
        record = reading.parse_verification(data, self.record)
        try:
            digest = self.weights_sha256
        except StoreError:
            digest = None
        return check_linked_files(folder, record, digest)

    def read_verification(self) -> VerificationRecord | None:
        """As `load_verification`, but None for a record that does not count."""
        try:
            return self.load_verification()
        except UnreadableError:
            return None


def read_stored_run(folder: Path) -> StoredRun:
    """The finished run of a folder; raises `StoreError` with the reason if it has none."""
    try:
        state, record = reading.read_run(str(folder))
    except UnreadableError as reason:
        raise StoreError(f"{folder} holds no readable run: {reason}") from None
    if state != "finished":
        raise StoreError(
            f"{folder} has no result.json: only a finished run has weights; finish it first"
        )
    return StoredRun(folder, record)


def check_tensors(run: RunSpec, weights: bytes) -> list[str]:
    """The names of a run's parameters, in order; raises `StoreError` unless the file has just
    these, with the right shapes and in float32. Nothing larger than the file is allocated, whatever
    the spec says."""
    try:
        tensors = dict(deserialize(weights))
    except SafetensorError as error:
        raise StoreError(f"the weights of {run.name} are damaged: {error}") from error
    for name, each in sorted(tensors.items()):
        if each["dtype"] != "F32":
            raise StoreError(
                f"the weights of {run.name} are not float32: {name!r:.80} is {each['dtype']}; "
                "restore the folder"
            )
    stored = {name: tuple(each["shape"]) for name, each in tensors.items()}
    expected = shapes(run.model, run.seed, len(stored), sum(map(math.prod, stored.values())))
    if stored != expected:
        raise StoreError(f"the weights of {run.name} do not fit its model; restore the folder")
    return list(expected)


def finished_folders(store: Path) -> list[Path]:
    """The folders of finished runs and of those set aside; raises `StoreError` if none exist."""
    folders = [store / name for _, name in need_runs(store)]
    finished = [folder for folder in folders if folder_status(folder) in ("done", "set aside")]
    if not finished:
        raise StoreError(f"no run of the store {store} has finished; `ithbit status` lists them")
    return finished
