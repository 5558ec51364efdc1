"""Files of a store that were made to harm whoever reads them: too large for memory, links out of
the store, values that no run has."""

import json
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import polars as pl
import pytest
from tests.support.paths import WEIGHTS
from tests.support.synthetic_store import Plan, paper_plans, write_run, write_store

import ithbit
from ithbit.errors import StoreError
from ithbit.reporting.page.page import render_page
from ithbit.spec import ModelSpec, RunSpec, spec_id
from ithbit.store import frame, linked_files
from ithbit.store.bounded_json import MOST_VALUES, bounded_json
from ithbit.store.folder import RunFolder
from ithbit.store.frame import export, load_rows
from ithbit.store.merging import merge
from ithbit.store.packed import pack
from ithbit.store.probed import probed_layers
from ithbit.store.reading import read_history
from ithbit.theory.certificate_file import CertificateError, read_certificate
from ithbit.verification.proofs.branch_and_bound import read_part

RUN = RunSpec(ModelSpec("lhi", "gru", 8), 0)
MANY = b"[" + b"[]," * (MOST_VALUES // 2 + 1) + b"[]]"
SECRET = "a private key"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a finished run, in a store of its own."""
    return write_run(tmp_path / "store", Plan(RUN, True, 1.0, 5))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's that is in no store."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text(SECRET)
    return tmp_path / "private" / "key"


def test_a_history_without_end_is_not_read(run: Path) -> None:
    with open(run / "history.jsonl", "r+b") as file:
        file.truncate(200 << 20)
    tracemalloc.start()
    assert read_history(str(run)) == []
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_text_that_needs_fifty_times_its_memory_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too much"):
        bounded_json(MANY)
    (tmp_path / "certificate.json").write_bytes(MANY)
    with pytest.raises(CertificateError, match="too much"):
        read_certificate(tmp_path / "certificate.json")
    (source,) = (WEIGHTS / "blocks").glob("rhi_n16_softmax-full_L1*_s0-*")
    folder = shutil.copytree(source, tmp_path / "runs" / source.name)
    record = json.loads((folder / "verification.json").read_bytes())
    assert load_rows(folder.parent).rows["verification"].to_list() == ["proved on all inputs"]
    (folder / "proof.json").write_bytes(MANY)
    record["proof"]["certificate_sha256"] = linked_files.sha256_of_file(folder / "proof.json")
    (folder / "verification.json").write_text(json.dumps(record))
    tracemalloc.start()
    assert load_rows(folder.parent).rows["verification"].to_list() == ["right on all inputs"]
    assert tracemalloc.get_traced_memory()[1] < 4 * len(MANY)
    tracemalloc.stop()


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_table_of_more_rows_than_fit_is_not_read(tmp_path: Path, monkeypatch, form: str) -> None:
    export(load_rows(write_store(tmp_path / "store", paper_plans()[:3])), tmp_path / "tables", form)
    assert load_rows(tmp_path / "tables").rows.height == 3
    monkeypatch.setattr(frame, "_MOST_CELLS", 2 * len(frame.COLUMNS))
    with pytest.raises(StoreError, match="too large to be read: such a table may have 2 rows"):
        load_rows(tmp_path / "tables")


def test_a_small_parquet_file_of_many_rows(tmp_path: Path) -> None:
    """A few kilobytes, and a gigabyte of numbers."""
    most = frame._MOST_CELLS // len(frame.COLUMNS)
    pl.DataFrame({"run_id": pl.repeat("x", most + 1, eager=True)}).write_parquet(
        tmp_path / "runs.parquet"
    )
    assert (tmp_path / "runs.parquet").stat().st_size < 1 << 20
    with pytest.raises(StoreError, match="too large to be read"):
        load_rows(tmp_path)


def test_a_table_of_endless_text(tmp_path: Path) -> None:
    with open(tmp_path / "runs.csv", "wb") as file:
        file.truncate(1 << 40)  # no bytes on disk
    with pytest.raises(StoreError, match="too large to be read"):
        load_rows(tmp_path)


def test_null_for_a_field_with_a_default_is_the_default(tmp_path: Path) -> None:
    export(
        load_rows(write_store(tmp_path / "store", paper_plans()[:2])), tmp_path / "tables", "csv"
    )
    file = tmp_path / "tables" / "runs.csv"
    table = pl.read_csv(file, infer_schema=False)
    none = pl.lit(None, pl.String)
    table.with_columns(code=none, examples=none).write_csv(file)
    records = load_rows(tmp_path / "tables")
    assert records.rows["code"].to_list() == ["", ""]
    assert records.rows["examples"].to_list() == ["uniform", "uniform"]
    assert "<html" in render_page(records)


def test_a_link_out_of_the_store_is_neither_packed_nor_merged(
    run: Path, secret: Path, tmp_path: Path
) -> None:
    (run / "history.jsonl").unlink()
    (run / "history.jsonl").symlink_to(secret)
    with pytest.raises(StoreError, match=r"history.jsonl is a link that leads out of the store"):
        pack(run.parent, tmp_path / "packed.zip")
    assert not (tmp_path / "packed.zip").exists()
    merged = merge(run.parent, tmp_path / "other")
    assert [folder for folder, _ in merged.set_aside] == [run.name]
    assert "leads out of the store" in str(merged)
    found = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text(errors="replace") for path in found)
    # A link to another file of the same store is a file like others.
    (run / "history.jsonl").unlink()
    (run / "history.jsonl").symlink_to("spec.json")
    with zipfile.ZipFile(pack(run.parent, tmp_path / "packed.zip")) as packed:
        assert packed.read(f"{run.name}/history.jsonl") == (run / "spec.json").read_bytes()


def test_missing_weights_are_not_taken_through_a_link(
    run: Path, secret: Path, tmp_path: Path
) -> None:
    (run / "weights.safetensors").symlink_to(secret)
    other = shutil.copytree(run, tmp_path / "other" / run.name, symlinks=True)
    (other / "weights.safetensors").unlink()
    assert "got missing" not in str(merge(run.parent, tmp_path / "other"))
    assert not (other / "weights.safetensors").exists()


def test_nothing_is_written_through_a_link_out_of_the_store(tmp_path: Path) -> None:
    (source,) = (WEIGHTS / "uniform").glob("rhi_n16_softmax-full_L1*_s0-*")
    outside = shutil.copytree(source, tmp_path / "outside" / source.name)
    for name in ("verification.json", "proof.json"):
        (outside / name).unlink(missing_ok=True)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / source.name).symlink_to(outside)
    before = sorted(path.name for path in outside.iterdir())
    options = {"budget": 1000, "prove": True, "seconds": 1.0}
    verified = ithbit.verify(source.name, store=tmp_path / "store", **options)
    assert "leads out of the store" in verified.not_kept[0]
    assert sorted(path.name for path in outside.iterdir()) == before


def test_a_lock_that_is_a_link_creates_nothing_elsewhere(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store", RUN)
    folder.create()
    (folder.path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot write"), folder.claimed():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_spelled_otherwise_is_a_copy(run: Path) -> None:
    """0 for 0.0 gives another id, and would count the same run twice, or in the place of it."""
    for number, value in enumerate((0, -0.0), 1):
        spec = RUN.to_json()
        spec["protocol"]["weight_decay"] = value
        other = shutil.copytree(run, run.with_name(f"{RUN.name}-{spec_id(spec)}"))
        for name in ("spec.json", "result.json"):
            data = json.loads((other / name).read_bytes())
            text = json.dumps(data | {"run_id": spec_id(spec), "spec": spec})
            (other / name).write_text(text)
        records = load_rows(run.parent)
        assert records.rows["folder"].to_list() == [run.name]
        assert len(records.set_aside) == number
        assert f"the same run as {run.name}, which counts" in records.set_aside[0].reason
    shutil.rmtree(run)  # alone, it is a run like others
    assert load_rows(run.parent).rows.height == 2


@pytest.mark.parametrize("value", [{"a": 1}, [1], "x\x1b", True])
def test_a_probed_protocol_of_odd_values_is_passed_over(run: Path, value: object) -> None:
    report = {
        "schema": 1,
        "layer": "Mine",
        "width": 16,
        "behaviour": {"leak": None},
        "causal_rank": {"sentence": "flat at 3"},
        "runs": [],
        "protocol": {"max_epochs": 3, "d_model": value, "odd": value},
    }
    folder = run.parent / "probe" / "Mine-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report))
    (probed,) = probed_layers(run.parent)
    assert probed.protocol == {"max_epochs": 3}  # other names are no fields of it
    assert "<html" in render_page(load_rows(run.parent))
    report["protocol"] = {"learning_rate": value}
    (folder / "report.json").write_text(json.dumps(report))
    assert probed_layers(run.parent) == []


def test_a_weights_file_of_endless_names_has_no_owner() -> None:
    header = b'{"__metadata__": {"run_id": "x", "y": ' + MANY + b"}}"
    tracemalloc.start()
    assert linked_files.owner(len(header).to_bytes(8, "little") + header) is None
    assert tracemalloc.get_traced_memory()[1] < 3 * len(MANY)
    tracemalloc.stop()


def test_an_unfinished_search_without_end_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "proof.part.safetensors", "wb") as file:
        file.truncate(1 << 40)  # no bytes on disk
    with pytest.raises(CertificateError, match="more than 1,073,741,824 bytes"):
        read_part(tmp_path / "proof.part.safetensors", "0" * 64, 8)
