"""Every record is read or named: none is lost in silence, none stops the rest."""

import json
import sys
from pathlib import Path
from subprocess import run

import polars as pl
import pytest
from tests.support.synthetic_store import Plan, paper_plans, write_run

from ithbit.errors import StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec, spec_id
from ithbit.store.frame import COLUMNS, Records, export, load_rows


def test_rows_hold_what_the_records_say(paper_records: Records) -> None:
    rows = paper_records.rows
    assert rows.height == 540 + 186
    assert rows.columns == list(COLUMNS)
    assert set(rows["status"]) == {"finished"}
    assert set(rows["settings"]) == {"paper"}
    row = rows.row(by_predicate=pl.col("name") == "lhi_n64_gru_L1d16h2_polynomial_s3", named=True)
    assert (row["task"], row["family"], row["n_layers"], row["seed"]) == ("lhi", "gru", 1, 3)
    assert (row["group"], row["solved"], row["n_parameters"]) == ("constructive", True, 1777)
    assert json.loads(row["environment"])["synthetic"] is True
    assert paper_records.note() is None


def test_what_cannot_be_read_is_named_and_set_aside(mixed_records: Records) -> None:
    reasons = [item.reason for item in mixed_records.set_aside]
    assert len(reasons) == 3
    assert any("no spec.json; half copied?" in reason for reason in reasons)
    assert "result.json is not valid JSON" in reasons
    assert "result.json has schema 2, this version reads 1" in reasons
    note = mixed_records.note()
    assert note is not None
    assert note.startswith("set aside 3 run folders (")
    assert "half_copied-0123456789ab" in note


def test_states_of_a_run(mixed_records: Records) -> None:
    rows = mixed_records.rows
    assert rows.filter(status="failed").height == rows.filter(status="unfinished").height == 1
    failed = rows.filter(status="failed").row(0, named=True)
    assert failed["failed_epoch"] == 3
    assert failed["max_accuracy"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_accuracy": None}, "has no max_accuracy"),
        ({"epochs": "many"}, "has epochs = 'many'"),
        ({"solved": 1}, "has solved = 1"),
        ({"epochs": True}, "has epochs = True"),
        ({"environment": "here"}, "has environment = 'here'"),
        ({"environment": None}, "has no environment"),
        ({"spec": {}}, "has no complete spec"),
        ({"run_id": "ffffffffffff"}, "belongs to another run"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    plans = paper_plans()
    write_run(tmp_path, plans[0])
    folder = write_run(tmp_path, plans[1])
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(record | change))
    records = load_rows(tmp_path)
    assert records.rows.height == 1
    assert [item.folder for item in records.set_aside] == [folder.name]
    assert reason in records.set_aside[0].reason


def test_an_unknown_family_and_a_list_are_set_aside(tmp_path: Path) -> None:
    plans = paper_plans()
    first, second = write_run(tmp_path, plans[0]), write_run(tmp_path, plans[1])
    text = (first / "result.json").read_text().replace('"softmax-full"', '"oracle"')
    (first / "result.json").write_text(text)
    (second / "result.json").write_text("[]")
    reasons = {item.reason for item in load_rows(tmp_path).set_aside}
    assert reasons == {
        "result.json names an unknown task or family",
        "result.json is not a JSON object",
    }


def test_a_result_counts_more_than_an_older_failure(tmp_path: Path) -> None:
    folder = write_run(tmp_path, paper_plans()[0])
    (folder / "failure.json").write_text("{}")
    assert list(load_rows(tmp_path).rows["status"]) == ["finished"]


def test_settings_tell_the_papers_protocol_from_others(tmp_path: Path) -> None:
    plan = paper_plans()[0]
    model = plan.run.model
    wide = ModelSpec(model.task, model.family, model.n_bits, d_model=32)
    for run_spec in (
        plan.run,
        RunSpec(model, 0, Protocol(stop_when_solved=True)),
        RunSpec(model, 0, Protocol(max_epochs=5)),
        RunSpec(wide, 0),
    ):
        write_run(tmp_path, type(plan)(run_spec, True, 1.0, 5))
    rows = load_rows(tmp_path).rows
    found = {
        (row["d_model"], row["max_epochs"], row["stop_when_solved"]): row["settings"]
        for row in rows.iter_rows(named=True)
    }
    assert found == {
        (16, 500, False): "paper",
        (16, 500, True): "early stop",
        (16, 5, False): "other",
        (32, 500, False): "other",
    }


def test_a_protocol_field_that_did_not_exist_yet_has_its_default(tmp_path: Path) -> None:
    folder = write_run(tmp_path, paper_plans()[0])
    record = json.loads((folder / "result.json").read_text())
    protocol = record["spec"]["protocol"]

    def settings() -> list[str]:
        """Of the run as the version whose spec it has would have written it."""
        record["run_id"] = spec_id(record["spec"])
        here = tmp_path / record["run_id"] / f"{record['name']}-{record['run_id']}"
        here.mkdir(parents=True)
        for name in ("spec.json", "result.json"):
            (here / name).write_text(json.dumps(record))
        return list(load_rows(here.parent).rows["settings"])

    del protocol["plateau_threshold"]
    assert settings() == ["paper"]
    protocol["label_noise"] = 0.1
    assert settings() == ["other"]


def test_another_spelling_of_a_spec_is_no_other_run(tmp_path: Path) -> None:
    """A copy whose id was made to fit would count as a run of its own."""
    folder = write_run(tmp_path, paper_plans()[0])
    texts = {name: (folder / name).read_text() for name in ("spec.json", "result.json")}
    for part, name, value in (
        ("protocol", "examples", "uniform"),
        ("model", "code", ""),
        (None, "note", 1),
    ):
        spec = json.loads(texts["spec.json"])["spec"]
        (spec if part is None else spec[part])[name] = value
        made = {"spec": spec, "run_id": spec_id(spec)}
        twin = tmp_path / f"{json.loads(texts['spec.json'])['name']}-{made['run_id']}"
        twin.mkdir()
        for file, text in texts.items():
            (twin / file).write_text(json.dumps(json.loads(text) | made))
        (found,) = (each for each in load_rows(tmp_path).set_aside if each.folder == twin.name)
        assert found.reason == f"spec.json has another spelling of the spec of {folder.name}"
    assert load_rows(tmp_path).rows.height == 1


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_users_layer_is_a_run_like_any(tmp_path: Path, form: str) -> None:
    mine = [ModelSpec("lhi", "layers.py:Mine", 8, code=code) for code in ("a" * 12, "b" * 12)]
    for model in (*mine, ModelSpec("lhi", "gru", 8)):
        write_run(tmp_path / "store", Plan(RunSpec(model, 0), True, 1.0, 9))
    records = load_rows(tmp_path / "store")
    assert set(records.rows.select("family", "code", "group").iter_rows()) == {
        ("layers.py:Mine", "a" * 12, "own layer"),
        ("layers.py:Mine", "b" * 12, "own layer"),
        ("gru", "", "constructive"),
    }
    export(records, tmp_path / "out", form)
    assert load_rows(tmp_path / "out").rows.equals(records.rows)


def test_stores_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist; name the folder of a sweep"):
        load_rows(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        load_rows(tmp_path / "file")
    (tmp_path / "notes").mkdir()
    with pytest.raises(StoreError, match="holds no runs; start some with `ithbit sweep`"):
        load_rows(tmp_path)


def test_reports_need_no_torch() -> None:
    code = (
        "import sys, ithbit.reporting.page.page, ithbit.store.frame, ithbit.api.records;"
        "sys.exit('torch' in sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0
