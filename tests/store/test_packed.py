"""A packed store is read like the folder it was made of; a foreign or damaged one is refused."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.paths import WEIGHTS

import ithbit
from ithbit.errors import SpecError, StoreError
from ithbit.store.packed import FILES, opened, pack

NAMES = ("rhi_n16_softmax-full_L1d16h2_polynomial_s0", "lhi_n64_gru_L1d16h2_polynomial_s1")
FOLDER = "lhi_n2_gru_L1d16h2_polynomial_s0-0123456789ab"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "runs"
    for name in NAMES:
        (run,) = (WEIGHTS / "mixed").glob(f"{name}-*")
        shutil.copytree(run, folder / run.name)
        (folder / run.name / "lock").touch()
    (folder / run.name / "verification.json").unlink()  # of the last one: to be found again
    return folder


@pytest.fixture(scope="module")
def packed(store: Path) -> Path:
    return pack(store, store.with_suffix(".zip"))


def test_every_file_comes_back_and_equal_stores_give_equal_files(store, packed, tmp_path) -> None:
    for folder in store.iterdir():
        copy = opened(packed) / folder.name
        kept = {file.name for file in folder.iterdir()} & set(FILES)
        assert {file.name for file in copy.iterdir()} == kept
        assert all((copy / name).read_bytes() == (folder / name).read_bytes() for name in kept)
    assert pack(store, tmp_path / "other.zip").read_bytes() == packed.read_bytes()
    assert opened(packed) == opened(packed)
    assert opened(store) == store


def test_readers_take_it(store, packed, tmp_path) -> None:
    assert ithbit.runs(packed).equals(ithbit.runs(store))
    assert str(ithbit.table("main", store=packed)) == str(ithbit.table("main", store=store))
    assert ithbit.status(store=packed).counts == {"done": 2}
    (one, two) = (ithbit.load(NAMES[0], store=place, library=False) for place in (store, packed))
    bits = "1011001110001111"
    assert one(bits, 3).item() == two(bits, 3).item()
    assert str(ithbit.merge(packed, store=tmp_path / "all")).startswith("2 runs merged")
    page = ithbit.report(packed, out=tmp_path / "report.html").read_text()
    assert str(packed) in page
    assert "ithbit-" not in page.replace("ithbit-theme", "")


def test_a_run_inside_it_is_verified_and_nothing_is_saved(packed) -> None:
    before = packed.read_bytes()
    run = packed / next(opened(packed).glob(f"{NAMES[1]}-*")).name
    found = ithbit.verify(str(run), budget=2000, seed=3, device="cpu")
    assert found[0].is_new
    assert packed.read_bytes() == before
    assert found.notes == [f"{packed} is a packed store: what was found is shown, not saved"]


def test_a_run_is_named_as_in_a_folder(packed) -> None:
    by_name, by_path = ithbit.load(NAMES[1], store=packed), ithbit.load(packed / NAMES[1])
    bits = "01" * 32
    assert by_name(bits, 5).item() == by_path(bits, 5).item()
    with pytest.raises(StoreError, match="there is no run 'none' in") as refused:
        ithbit.load(packed / "none")
    assert f"in {packed}; `ithbit status --json --store {packed}` lists" in str(refused.value)


def test_writers_refuse_it(packed) -> None:
    with pytest.raises(StoreError, match="is a file; give a folder with --store"):
        ithbit.train("lhi", "gru", n=2, seeds=[0], store=packed)


def test_export_packs(store, packed, tmp_path) -> None:
    (out,) = ithbit.export(store, out=tmp_path / "all.zip", output_format="zip")
    assert out.read_bytes() == packed.read_bytes()
    with pytest.raises(SpecError, match=r"ends in \.zip"):
        ithbit.export(store, out=tmp_path / "all", output_format="zip")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../evil-0123456789ab/spec.json", "which is no file of a run"),
        ("/tmp/x-0123456789ab/spec.json", "which is no file of a run"),
        (f"{FOLDER}/../spec.json", "which is no file of a run"),
        (f"{FOLDER}/layer.py", "which is no file of a run"),
        (f"{FOLDER}/", "which is no file of a run"),
        ("spec.json", "which is no file of a run"),
        ("..-0123456789ab/spec.json", ""),
    ],
)
def test_names_that_are_not_a_runs_are_refused(tmp_path, name, message) -> None:
    path = tmp_path / "foreign.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, json.dumps({}))
    if message:
        with pytest.raises(StoreError, match=message):
            opened(path)
    else:  # an odd name of a folder, but one inside
        assert (opened(path) / "..-0123456789ab" / "spec.json").is_file()
    assert not (tmp_path / "evil-0123456789ab").exists()


def test_damage_is_a_sentence(packed, tmp_path) -> None:
    data = bytearray(packed.read_bytes())
    with zipfile.ZipFile(packed) as archive:
        start = archive.infolist()[2].header_offset
    data[start + 200] ^= 255
    for name, content in {
        "one-byte": bytes(data),
        "cut": bytes(data[: len(data) // 2]),
        "empty": b"",
        "text": b"no archive",
    }.items():
        path = tmp_path / f"{name}.zip"
        path.write_bytes(content)
        with pytest.raises(StoreError, match="packed store"):
            opened(path)


def test_any_changed_byte_is_a_sentence_or_harmless(tmp_path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "small.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{FOLDER}/spec.json", rng.bytes(300) + b"abc" * 400)
    data, refused = path.read_bytes(), 0
    for k in range(150):
        changed = bytearray(data)
        changed[rng.integers(len(data))] = rng.integers(256)
        other = tmp_path / f"{k}.zip"
        other.write_bytes(changed)
        try:
            opened(other)
        except StoreError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions_are_refused(tmp_path, method) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(f"{FOLDER}/spec.json", "{}")
    with pytest.raises(StoreError, match="compressed in another way"):
        opened(path)


def test_a_small_file_of_much_is_refused(tmp_path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{FOLDER}/history.jsonl", bytes(80 << 20))
    with pytest.raises(StoreError, match="more than can be unpacked"):
        opened(path)


def test_a_file_twice_and_one_too_large(tmp_path) -> None:
    twice = tmp_path / "twice.zip"
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr(f"{FOLDER}/spec.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(f"{FOLDER}/spec.json", "{ }")
    with pytest.raises(StoreError, match="holds a file twice"):
        opened(twice)
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{FOLDER}/spec.json", "0" * 1000)
        archive.infolist()[0].file_size = 1 << 40  # what the directory at the end states
    with pytest.raises(StoreError, match="more than can be unpacked"):
        opened(bomb)
