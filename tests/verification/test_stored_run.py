"""A stored run: its weights are read and hashed once, its record whenever it is wanted."""

import hashlib
import shutil
from pathlib import Path

import pytest
from tests.support.paths import WEIGHTS

import ithbit
from ithbit.errors import StoreError
from ithbit.store import linked_files
from ithbit.store.schema import UnreadableError
from ithbit.verification import stored_run
from ithbit.verification.stored_run import read_stored_run

SHIPPED = next((WEIGHTS / "uniform").glob("lhi_n64_gru_L1d16h2_polynomial_s3-*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / SHIPPED.name))


def test_the_bytes_that_are_hashed_are_those_that_are_evaluated(folder: Path) -> None:
    """Also if the file is replaced in between."""
    stored, file = read_stored_run(folder), folder / "weights.safetensors"
    first = file.read_bytes()
    digest = stored.weights_sha256
    file.write_bytes(b"others")
    assert stored.weights == stored.weights_file == first
    assert digest == hashlib.sha256(first).hexdigest()
    with pytest.raises(StoreError, match="were changed while they were verified"):
        stored.check_unchanged(digest)


def test_the_record_is_read_from_disk_each_time(folder: Path) -> None:
    stored, file = read_stored_run(folder), folder / "verification.json"
    record, written = stored.load_verification(), file.read_bytes()
    assert record is not None
    assert record.weights_sha256 == stored.weights_sha256
    file.unlink()
    assert stored.load_verification() is None
    file.write_bytes(written[:-9])
    assert stored.read_verification() is None
    with pytest.raises(UnreadableError, match="is not valid JSON"):
        stored.load_verification()


def test_damaged_weights_are_not_those_of_the_record(folder: Path) -> None:
    """Though they can be read: a record counts without comparison only where nothing can be."""
    file = folder / "weights.safetensors"
    file.write_bytes(b"no tensors")
    stored = read_stored_run(folder)
    with pytest.raises(UnreadableError, match="is about other weights"):
        stored.load_verification()
    with pytest.raises(StoreError, match="are damaged"):
        _ = stored.weights
    file.unlink()
    stored = read_stored_run(folder)
    assert stored.load_verification() is not None
    with pytest.raises(StoreError, match=f"{folder.name} has no weights.safetensors that can be"):
        _ = stored.weights


def test_verify_opens_the_weights_once_before_it_writes(folder: Path, monkeypatch) -> None:
    opened: list[str] = []

    def open_regular(path: str | Path):
        opened.append(Path(path).name)
        return original(path)

    original = linked_files.open_regular
    monkeypatch.setattr(stored_run, "open_regular", open_regular)
    monkeypatch.setattr(linked_files, "open_regular", open_regular)
    found = ithbit.verify(folder, budget=3000, device="cpu", store=folder.parent)
    assert not found[0].is_new  # so nothing is written
    assert opened.count("weights.safetensors") == 1
