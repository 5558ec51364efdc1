"""A copy of a run's folder under another name is named and counted by no reader."""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.synthetic_store import Plan, write_run

import ithbit
from ithbit.api.trained import folder_of
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.reading import read_run
from ithbit.store.schema import UnreadableError
from ithbit.sweeps.estimate import observed_pace

RUN = RunSpec(ModelSpec("lhi", "gru", 8), 0)
COPY = f"backup-{RUN.folder}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "runs", Plan(RUN, True, 1.0, 5))
    shutil.copytree(folder, folder.with_name(COPY))
    return tmp_path / "runs"


@pytest.mark.filterwarnings("ignore:set aside")
@pytest.mark.usefixtures("without_figures")
def test_it_counts_in_no_reader(store: Path, tmp_path: Path, capsys) -> None:
    assert ithbit.runs(store)["folder"].to_list() == [RUN.folder]
    assert set(ithbit.runs(store, histories=True)["run_id"]) == {RUN.run_id}
    said = capsys.readouterr().err
    assert f"set aside 1 run folder ({COPY}: it is a copy of {RUN.folder}, which counts" in said
    assert ithbit.status(store=store).runs == {RUN.folder: "done", COPY: "set aside"}
    assert "1/1" in str(ithbit.table("main", store=store, settings="any"))
    ithbit.export(store, out=tmp_path / "tables")
    assert len(ithbit.runs(tmp_path / "tables")) == 1
    page = ithbit.report(store, out=tmp_path / "page.html", settings="any").read_text()
    assert COPY not in page.partition("<script")[2]
    merged = ithbit.merge(store, store=tmp_path / "other")
    assert (merged.taken, [name for name, _ in merged.set_aside]) == ([RUN.name], [COPY])
    assert [path.name for path in (tmp_path / "other").iterdir()] == [RUN.folder]
    found = ithbit.verify(all_runs=True, store=store, device="cpu")
    assert sum(COPY in each for each in found.set_aside) == 1
    assert observed_pace(store, cuda=False) is not None


def test_an_id_names_the_run_and_not_its_copy(store: Path) -> None:
    assert folder_of(RUN.run_id, store).name == RUN.folder
    with pytest.raises(ithbit.IthbitError, match="it is a copy of"):
        ithbit.verify(COPY, store=store, device="cpu")


def test_a_copy_whose_original_is_gone_is_not_lost_in_silence(store: Path, capsys) -> None:
    shutil.rmtree(store / RUN.folder)
    assert len(ithbit.runs(store)) == 0
    assert f"it is a copy of {RUN.folder}, which is not there; rename it" in capsys.readouterr().err
    (store / COPY).rename(store / RUN.folder)
    assert len(ithbit.runs(store)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run_id": "0123456789ab"}, "spec.json belongs to another run"),
        ({"name": "rhi_n8_gru_L1d16h2_polynomial_s0"}, "spec.json has the name of another run"),
        ({"spec": RunSpec(RUN.model, 1).to_json()}, "spec.json has the spec of another run"),
    ],
)
def test_a_record_of_another_run_is_refused(store: Path, change, reason: str) -> None:
    file = store / RUN.folder / "spec.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UnreadableError, match=reason):
        read_run(str(file.parent))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema": 1, "max_accuracy": 0.5, "max_accuracy": 1.0}', "has 'max_accuracy' twice"),
        ('{"schema": 1, "seconds": NaN}', "is not valid JSON"),
        ('{"schema": 1, "name": "\\ud800"}', "is not valid JSON"),
        ('{"schema": 1, "name": ' + "[" * 400 + "]" * 400 + "}", "is not valid JSON"),
        ('{"schema": 1}'.encode("utf-16"), "is not valid JSON"),
    ],
)
def test_records_are_strict_json(store: Path, text: str | bytes, reason: str) -> None:
    file = store / RUN.folder / "result.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UnreadableError, match=f"result.json {reason}"):
        read_run(str(file.parent))
