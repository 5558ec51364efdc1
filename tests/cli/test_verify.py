"""`ithbit verify`: what it prints, where its record shows, how it ends."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.one_stack import train
from tests.support.synthetic_store import Plan, write_run, write_verification

from ithbit.engine.device import choose_device
from ithbit.spec import ModelSpec, Protocol, RunSpec, spec_id
from ithbit.store.folder import RunFolder

RUN = RunSpec(ModelSpec("lhi", "gru", n_bits=3), 0, Protocol(epoch_examples=2048, max_epochs=1))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    train([RUN], tmp_path / "runs", choose_device("cpu"))
    return tmp_path / "runs"


def test_a_run_by_folder_name_and_id(ithbit, store: Path) -> None:
    name = f"{RUN.name}-{RUN.run_id}"
    outputs = [
        ithbit("verify", which, "--store", store, "--device", "cpu")[1]
        .split(" (")[0]
        .removeprefix("on record: ")
        for which in (store / name, name, RUN.name, RUN.run_id)
    ]
    assert len(set(outputs)) == 1
    assert "refuted: wrong on" in outputs[0]
    assert "of all 24 inputs" in outputs[0]


def test_all_as_json(ithbit, store: Path) -> None:
    status, out, _ = ithbit("verify", "--all", "--store", store, "--json", "--device", "cpu")
    data = json.loads(out)
    assert status == 0  # the run does not count as solved, so its refutation is no news
    assert data["summary"]["all"] == {"runs": 1, "refuted": 1}
    assert data["runs"][0]["name"] == RUN.name
    # What has a record is not tried again, and still belongs to the answer.
    written = next(store.glob("*/verification.json")).stat().st_mtime_ns
    status, out, _ = ithbit("verify", "--all", "--store", store, "--device", "cpu")
    assert (status, "observed in float32" in out) == (0, True)
    assert next(store.glob("*/verification.json")).stat().st_mtime_ns == written


def test_a_bad_folder_does_not_stop_the_others(ithbit, store: Path) -> None:
    other = RunSpec(RUN.model, 1, RUN.protocol)
    folder = write_run(store, Plan(other, True, 1.0, 5))  # a result without weights
    status, out, err = ithbit("verify", "--all", "--store", store, "--device", "cpu")
    assert status == 1
    assert f"{RUN.folder}: refuted" in out
    assert "set aside, since they cannot be read or tried: 1 run" in out
    assert f"set aside: {folder} has no weights.safetensors" in err
    assert "though its run is finished; restore the file" in err
    _, out, _ = ithbit("verify", "--all", "--store", store, "--device", "cpu", "--json")
    assert [str(folder) in why for why in json.loads(out)["set_aside"]] == [True]


def test_runs_of_one_name_are_told_apart(ithbit, store: Path) -> None:
    other = RunSpec(RUN.model, RUN.seed, replace(RUN.protocol, batch_size=32))
    train([other], store, choose_device("cpu"))
    out = ithbit("verify", "--all", "--store", store, "--device", "cpu")[1]
    assert RUN.name == other.name
    assert {f"{RUN.folder}: refuted", f"{other.folder}: refuted"} == {
        ": ".join(line.split(": ")[:2]) for line in out.splitlines()[:4] if line[:3] == "lhi"
    }


def test_what_cannot_be_read_is_worded_as_in_tables(ithbit, store: Path) -> None:
    folder = store / f"{RUN.name}-{RUN.run_id}"
    whole = (folder / "result.json").read_text()
    for text, reason in (
        ("{", "result.json is not valid JSON"),
        ("{}", "result.json has schema None, this version reads 1"),
        (whole.replace('"max_accuracy"', '"accuracy"'), "result.json has no max_accuracy"),
    ):
        (folder / "result.json").write_text(text)
        status, _, err = ithbit("verify", "--all", "--store", store, "--device", "cpu")
        assert (status, err) == (
            1,
            f"ithbit: set aside: {folder} holds no readable run: {reason}\n",
        )
        assert reason in ithbit("table", "main", "--store", store)[2]
    (folder / "result.json").write_text(whole)
    (store / "half_copied-0123456789ab").mkdir()
    status, _, err = ithbit("verify", "--all", "--store", store, "--device", "cpu")
    assert (status, "it has no spec.json; half copied?" in err) == (1, True)


def test_a_spec_that_makes_no_sense_sets_its_run_aside(ithbit, store: Path) -> None:
    """Every field has its type and the id is the spec's, but a model of no layers there is not."""
    spec = RUN.to_json()
    spec["model"]["n_layers"] = 0
    for name in ("spec.json", "result.json"):
        file = store / RUN.folder / name
        record = json.loads(file.read_text()) | {"run_id": spec_id(spec), "spec": spec}
        file.write_text(json.dumps(record))
    (store / RUN.folder).rename(store / f"{RUN.name}-{spec_id(spec)}")
    status, _, err = ithbit("verify", "--all", "--store", store, "--device", "cpu")
    assert (status, "layers must be at least 1, got 0" in err) == (1, True)


def test_a_store_without_runs(ithbit, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        found = ithbit("verify", "--all", "--store", name, "--device", "cpu")
        assert found == ithbit("table", "main", "--store", name)
        assert found[0] == 2


def test_a_store_of_unfinished_runs(ithbit, tmp_path: Path) -> None:
    RunFolder(tmp_path, RunSpec(ModelSpec("lhi", "gru", n_bits=3), 0)).create()
    status, out, err = ithbit("verify", "--all", "--store", tmp_path, "--device", "cpu")
    assert (status, out) == (2, "")
    assert f"no run of the store {tmp_path} has finished" in err


def test_a_larger_budget_is_tried_again(ithbit, tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=20), 0, Protocol(epoch_examples=64, max_epochs=1))
    train([run], tmp_path, choose_device("cpu"))
    tried = []
    for budget in (2000, 2000, 8000):
        arguments = ("--count", "--budget", budget, "--store", tmp_path, "--device", "cpu")
        data = json.loads(ithbit("verify", "--all", "--json", *arguments)[1])
        tried.append(data["runs"][0]["n_evaluated"])
    assert tried[0] == tried[1] <= 2000 < tried[2] <= 8000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name runs to verify, or give --all"),
        (("--all", "x"), "name runs to verify, or give --all"),
        (("nothing",), "there is no run 'nothing'"),
        (("--all", "--budget", "0"), "the budget is a number of inputs from 1, got 0"),
        ((RUN.name, "--budget", "0"), "the budget is a number of inputs from 1, got 0"),
        ((RUN.name, "--seed", "-1"), "the seed is a number from 0 and below 2^63, got -1"),
        (("--all", "--seed", "-1"), "the seed is a number from 0 and below 2^63, got -1"),
    ],
)
def test_mistakes(ithbit, store: Path, arguments: tuple[str, ...], sentence: str) -> None:
    status, out, err = ithbit("verify", *arguments, "--store", store, "--device", "cpu")
    assert (status, out) == (2, "")
    assert sentence in err


def test_verdicts_reach_tables_figure_and_page(ithbit, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    for seed, verdict in enumerate(("right on all inputs", "refuted", None)):
        run = RunSpec(ModelSpec("lhi", "gru", n_bits=8), seed)
        folder = write_run(store, Plan(run, True, 1.0, 50))
        if verdict:
            write_verification(folder, run, verdict)
    (folder / "verification.json").write_text("{")  # unreadable: as if it were not there
    for table in ("main", "accuracy"):
        status, out, _ = ithbit("table", table, "--store", store)
        assert status == 0
        assert "letters, of the solved runs: r refuted" in out
        assert "1r 1a" in out
    status, out, err = ithbit("report", "--store", store, "-o", tmp_path / "page.html")
    assert (status, err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    figure = page.split('id="figure-successes"')[1].split("</figure>")[0]
    assert "bar: refuted<" in figure  # the legend
    out = ithbit("compare", "--store", store)[1]
    assert "3 of 3 runs solved; of these 1" in " ".join(out.split())
    assert "1 right on all inputs, 1 not tried" in " ".join(out.split())
    assert '"refuted"' in page  # the list of runs


def test_without_verification_the_tables_stay_as_they_are(ithbit, tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=8), 0)
    write_run(tmp_path / "runs", Plan(run, True, 1.0, 50))
    assert "all inputs" not in ithbit("table", "main", "--store", tmp_path / "runs")[1]


def test_a_record_of_other_weights_leaves_no_letter(ithbit, tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=8), 0)
    folder = write_run(tmp_path / "runs", Plan(run, True, 1.0, 50))
    write_verification(folder, run, "refuted")
    assert " 1r" in ithbit("table", "main", "--store", tmp_path / "runs")[1]
    (folder / "weights.safetensors").write_bytes(b"others")
    assert " 1r" not in ithbit("table", "main", "--store", tmp_path / "runs")[1]
