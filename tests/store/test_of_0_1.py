"""A store that 0.1 wrote is read as 0.1 read it, and its unfinished runs go on as if nothing were.

`tests/stores/v0_1` has finished, failed, unfinished, damaged, verified and probed runs; beside it
is what 0.1 said of them.
"""

import csv
import hashlib
import json
import shutil
from collections import Counter
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from tests.support.one_stack import train
from tests.support.paths import TESTS
from typer.testing import CliRunner

from ithbit.cli import app
from ithbit.engine.device import choose_device
from ithbit.engine.training_context import Event
from ithbit.spec import ModelSpec, Protocol, run_from_json
from ithbit.store.folder import RunFolder
from ithbit.store.frame import COLUMNS, export, load_rows
from ithbit.store.merging import merge
from ithbit.store.probed import ProbedRun, probed_layers
from ithbit.store.reading import read_verification, run_folders
from ithbit.store.records import Epoch
from ithbit.store.schema import read_as
from ithbit.store.status import folder_status

STORES = TESTS / "stores"
STORE = STORES / "v0_1"
SAID = json.loads((STORES / "v0_1_expected.json").read_text())
# What 0.1 called its verdicts.
WORDS = {"counterexample": "refuted", "verified on all inputs": "right on all inputs"}
# Columns that 0.1 did not have: those of the fields added since, and of records.
SINCE = {f.name for f in (*fields(ModelSpec), *fields(Protocol)) if "since" in f.metadata}
NEW = SINCE | {
    "certificate_sha256",
    "failure_kind",
    "structured_tried",
    "structured_wrong",
    "structured_example",
}


def say(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, [*arguments, "--store", str(STORE)])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return shutil.copytree(STORE, tmp_path / "store")


def test_status_and_reasons() -> None:
    status = json.loads(say("status", "--json")[0])
    reasons = status.pop("reasons")  # since 0.2
    assert status == SAID["status"]
    assert SAID["set_aside"].items() <= reasons.items()
    found = {item.folder: item.reason for item in load_rows(STORE).set_aside}
    assert found == SAID["set_aside"]


# 0.1 added unlike runs up in one row; each has its own now.
POOLED = {name: f"{name} --settings any --format csv" for name in ("main", "accuracy")}


def cells(text: str) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a table by what stands left of its numbers, as far as they are filled."""
    rows = list(csv.reader(text.splitlines()))
    heads = ("Task", "Model family", "L", "Thm.", "Encoding", "n", "Train n")
    left = sum(head in heads for head in rows[0])
    named = {tuple(row[:left]): dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    return {
        key: {k: v for k, v in row.items() if v and k not in heads} for key, row in named.items()
    }


@pytest.mark.parametrize("command", sorted(SAID["tables"].keys() - POOLED.values()))
def test_tables(command: str) -> None:
    """Every number that 0.1 gave; verdicts stand behind each cell now, not in a column."""
    settings = () if "--settings" in command else ("--settings", "paper")
    out, err = say("table", *command.split(), *settings)
    now = cells(out)
    for key, row in cells(SAID["tables"][command]).items():
        row.pop("all inputs", None)
        said = {{"Successes": "Solved"}.get(head, head): value for head, value in row.items()}
        assert said.items() <= now.get(key, {}).items()
    assert err == SAID["note"]


def successes(text: str) -> Counter[tuple[str, str, str]]:
    """By task, depth and length: how many seeds, and how many succeeded."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in csv.DictReader(text.splitlines()):
        for column, cell in row.items():
            counts = column.startswith("n=") and " " not in column
            if counts and cell and not row["Model family"].startswith("Total"):
                solved, seeds = cell.split()[0].rstrip("*").split("/")
                found[row["Task"], row["L"], f"{column} solved"] += int(solved)
                found[row["Task"], row["L"], f"{column} seeds"] += int(seeds)
    return found


def test_rows_that_0_1_pooled_add_up_to_what_it_said() -> None:
    out, _ = say("table", *POOLED["main"].split())
    said = SAID["tables"][POOLED["main"]]
    counted = successes(out)
    assert out != said
    assert all(counted[key] >= many for key, many in successes(said).items())


def test_comparison() -> None:
    said = json.loads(say("compare", "--json")[0])
    compared = [one for kind in said["kinds"] for one in kind["comparisons"]]
    found = [
        one
        for one in compared
        if one["verdict"] != "missing" and one["kind"] != "successes one way"  # of later versions
    ]
    before = [dict(one) for one in SAID["compare"]["found"]]
    for one in [*found, *before]:
        for later in ("standing", "detects"):
            one.pop(later, None)
        one["verdict"] = one["verdict"].replace("agrees", "no evidence")
        one.pop("interval")  # alpha is shared with one more kind
    assert rounded(found) == rounded(before)
    assert (said["agrees"], said["complete"]) == (True, False)


def rounded(value: object) -> object:
    """Numbers to twelve digits: another way to a p-value may round its last ones otherwise."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def test_export(tmp_path: Path) -> None:
    """Nothing but columns is new; and what 0.1 exported is read as the store that it is of."""
    said = {}
    (tmp_path / "then").mkdir()
    for name, text in SAID["export"].items():
        said[name] = tmp_path / "then" / f"{name}.csv"
        said[name].write_text(text)
    for path in export(load_rows(STORE), tmp_path / "now", "csv"):
        now, then = (pl.read_csv(p, infer_schema=False) for p in (path, said[path.stem]))
        if path.stem == "runs":
            diverged = pl.col("error").str.starts_with("the loss is not finite in epoch 1:")
            then = then.with_columns(
                pl.col("verification").replace(WORDS),
                solved=pl.when(diverged).then(pl.lit("false")).otherwise("solved"),
            )
        assert now.select(then.columns).equals(then)
        assert set(now.columns) - set(then.columns) == (NEW if path.stem == "runs" else set())
    assert COLUMNS.keys() > NEW
    exported, kept = load_rows(tmp_path / "then"), load_rows(STORE)
    assert exported.rows.equals(kept.rows)
    assert exported.histories().equals(kept.histories())


def test_ids_stay() -> None:
    """And a spec has no field that 0.1 did not hash, unless it is declared as later."""
    parts = {"model": ModelSpec, "protocol": Protocol}
    early = {
        part: [item.name for item in fields(kind) if "since" not in item.metadata]
        for part, kind in parts.items()
    }
    for folder in SAID["status"]["runs"]:
        path = STORE / folder / "spec.json"
        if folder not in SAID["set_aside"]:
            record = json.loads(path.read_text())
            assert {part: list(record["spec"][part]) for part in parts} == early
            run = run_from_json(record["spec"])
            assert (run.run_id, run.folder, run.to_json()) == (
                record["run_id"],
                folder,
                record["spec"],
            )


def test_verifications() -> None:
    verified = {path.parent: read_verification(str(path.parent)) for path in STORE.glob("*/veri*")}
    damaged = SAID["made"]["finished, damaged verification"]
    assert [folder.name for folder, found in verified.items() if found is None] == damaged
    whole = {found.run_id: found for found in verified.values() if found is not None}
    assert len(whole) == 6
    for folder, found in verified.items():
        if found is not None:
            assert found.found.verdict == WORDS[SAID["verdicts"][found.run_id]]
            path = folder / "verification.json"
            said = json.loads(path.read_text())
            said["verdict"] = found.found.verdict
            later = {"effort": "", "method": "", "stages": None, "proof": None}
            assert json.loads(json.dumps(found.to_json())) == said | later


def test_probes() -> None:
    new = ("ranks", "singular_values", "protocol")
    read = [{k: v for k, v in vars(p).items() if k not in new} for p in probed_layers(STORE)]
    assert read == SAID["probed_layers"]
    again = SAID["probe_again"]["runs"]
    (folder,) = STORE.glob("probe/RunningMean-*")
    for said in again:
        cell = said["cell"]
        name = f"{cell['task']}_n4_L{cell['n_layers']}d4_s{said['seed']}.json"
        run = read_as(ProbedRun, json.loads((folder / name).read_text()), name)
        assert vars(run.cell) == cell
        assert {k: v for k, v in vars(run).items() if k not in ("cell", "seconds", "run_id")} == {
            k: v for k, v in said.items() if k not in ("cell", "seconds", "solved")
        }


def test_merging(tmp_path: Path) -> None:
    merged = merge(STORE, tmp_path)
    assert f"{len(merged.taken)} runs taken in" in SAID["merge"]
    assert dict(merged.set_aside) == SAID["set_aside"]
    kept = {f: s for f, s in SAID["status"]["runs"].items() if s in ("done", "failed")}
    assert {folder: folder_status(tmp_path / folder) for _, folder in run_folders(tmp_path)} == kept


@pytest.mark.parametrize("folder", [name for name in SAID["resumed"] if "_s0-" in name])
def test_unfinished_runs_resume(folder: str, store: Path) -> None:
    """Bit for bit, on a machine that computes as the one did where the store was written."""
    said = SAID["resumed"][folder]
    run = run_from_json(json.loads((store / folder / "spec.json").read_text())["spec"])
    events: list[Event] = []
    (result,) = train([run], store, choose_device("cpu"), watch=events.append)
    epochs = [event.what.epoch for event in events if isinstance(event.what, Epoch)]
    assert epochs == said["epochs_trained_on_resume"]
    remarks = [remark.replace("starting anew", "starting again") for remark in said["remarks"]]
    assert [str(event.what) for event in events if isinstance(event.what, str)] == remarks
    kept = RunFolder(store, run)
    # Since 0.2 the state stays where the epochs ran out.
    assert {path.name for path in kept.path.iterdir()} - {"state.safetensors"} == set(
        said["files_after"]
    )
    assert [epoch.epoch for epoch in kept.history()] == list(range(1, len(said["history"]) + 1))
    here = {name: result.environment[name] for name in ("torch", "cpu")}
    if here | {"vectors": torch.backends.cpu.get_cpu_capability()} != SAID["machine"]:
        pytest.skip("this machine may round otherwise than the one that wrote the store")
    history = [{k: v for k, v in vars(epoch).items() if k != "seconds"} for epoch in kept.history()]
    assert history == said["history"]
    record = result.to_json() | {"path": result.environment["path"]}
    assert {name: record[name] for name in said["result"]} == said["result"]
    tensors = load_file(kept.path / "weights.safetensors")
    digests = {k: hashlib.sha256(v.numpy().tobytes()).hexdigest() for k, v in tensors.items()}
    assert digests == said["weights"]
