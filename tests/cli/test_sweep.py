"""`ithbit sweep`, `status` and `merge` as a person uses them."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.synthetic_store import paper_plans, write_run

from ithbit import status, sweep
from ithbit.spec import Protocol
from ithbit.sweeps.select import sweep_runs

Ithbit = Callable[..., tuple[int, str, str]]

SWEEP = """
task = "rhi"
family = ["gru", "linear-full"]
layers = 1
n = 2
seeds = "0-1"
[protocol]
epoch_examples = 64
batch_size = 32
held_out_examples = 32
max_epochs = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(SWEEP)
    return tmp_path


def test_a_sweep_from_file_to_status_to_merge(ithbit: Ithbit, folder: Path) -> None:
    status, out, _ = ithbit("sweep", "mine.toml", "--dry-run", "--device", "cpu")
    assert status == 0
    assert "4 runs, 0 done already; the rest takes at most about" in out
    assert not (folder / "runs").exists()
    status, out, err = ithbit("sweep", "mine.toml", "--device", "cpu", "--workers", "1")
    assert status == 0, err
    assert "4 runs: " in out
    assert "0 failed. Run folders: runs/" in out
    assert json.loads(ithbit("status", "mine.toml", "--json")[1])["counts"] == {"done": 4}
    assert "4 done, 6 missing (10 runs)" in ithbit("status", "mine.toml", "--seeds", "0-4")[1]
    again = ithbit("sweep", "mine.toml", "--dry-run", "--device", "cpu")[1]
    assert "4 runs, 4 done already" in again
    assert "4 runs merged, 0 were there already" in ithbit("merge", "runs", "--store", "other")[1]


def test_runs_with_consistency_are_other_runs(ithbit: Ithbit, folder: Path) -> None:
    """Trained beside those without it; tables list them apart."""
    words = ("mine.toml", "--family", "gru", "--seeds", "0")
    for more in ((), ("--consistency", "1")):
        status, _, err = ithbit("sweep", *words, *more, "--device", "cpu", "--workers", "1")
        assert status == 0, err
        assert json.loads(ithbit("status", *words, *more, "--json")[1])["counts"] == {"done": 1}
    table = " ".join(ithbit("table", "main")[1].split())
    assert "blocks examples, consistency = 1" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["sweep", "nope"],
            "unknown sweep 'nope'; choose one of paper, positions, longer, smoke, demo",
        ),
        (["sweep", "paper", "--family", "lstm"], "unknown family 'lstm'"),
        (["sweep", "paper", "--task", "mid"], "unknown task 'mid'"),
        (["sweep", "paper", "--n", "96"], "filters: it has only --n 8, 16, 32, 64"),
        (["sweep", "paper", "--workers", "0"], "workers must be at least 1, got 0"),
        (["sweep", "mine.toml", "--kernels", "yes"], "unknown choice of kernels 'yes'; choose one"),
        (["sweep", "mine.toml", "--kernels", "off", "--on", "slurm"], "needs --on local"),
        (["sweep", "mine.toml", "--device", "cuda:x"], "unknown device 'cuda:x'; choose one of"),
        (["sweep", "paper", "--max-epochs", "0"], "max_epochs must be at least 1, got 0"),
        (
            ["sweep", "paper", "--consistency", "-1"],
            "consistency must be 0 or more and finite, got -1",
        ),
        (["status"], "there is no store runs"),
        (["status", "--store", "mine.toml"], "is a file"),
        (["merge", "nowhere"], "nowhere does not exist; name the store to take runs from"),
        (["merge", "mine.toml"], "mine.toml is a file, not a folder; name the store to take"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(
    words: list[str], said: str, ithbit: Ithbit, folder: Path
) -> None:
    status, _, err = ithbit(*words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert not (folder / "runs").exists()


def test_kernels_that_are_insisted_on_need_a_gpu(
    ithbit: Ithbit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside the tests there is no interpreter: without a GPU the kernels do not run."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    status, _, err = ithbit("sweep", "mine.toml", "--kernels", "on", "--device", "cpu")
    assert status == 2
    assert "kernels 'on' were asked for, but the kernels need a CUDA GPU" in err
    assert not (folder / "runs").exists()


def test_status_sets_aside_what_tables_do(ithbit: Ithbit, tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "runs", plan) for plan in paper_plans()[:5]]
    (folders[0] / "result.json").write_text('{"x":')
    (folders[1] / "result.json").write_text("{}")
    (folders[2] / "spec.json").write_text("{}")
    text = (folders[3] / "result.json").read_text()
    (folders[3] / "result.json").write_text(
        text.replace('"max_accuracy": 1.0', '"max_accuracy": "high"')
    )
    ended, out, _ = ithbit("status")
    assert ended == 0
    assert out.startswith("1 done, 4 set aside (5 runs)\n")
    assert f"set aside {folders[0].name}: result.json is not valid JSON" in out
    assert "result.json has max_accuracy = 'high'" in out
    counts = json.loads(ithbit("status", "paper", "--json")[1])["counts"]
    assert counts["set aside"] == 4
    assert "set aside 4 run folders" in ithbit("table", "main")[2]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The name leaves the protocol out; the folder has the id."""
    plan = paper_plans()[0]
    kinds = ("result", "spec", "failure")
    plans = [
        replace(plan, run=replace(plan.run, protocol=Protocol(max_epochs=epochs)))
        for epochs in (500, 100, 50)
    ]
    folders = [write_run(tmp_path, p, kind).name for p, kind in zip(plans, kinds, strict=True)]
    assert len({p.run.name for p in plans}) == 1
    found = status(store=tmp_path)
    first, *listed = str(found).splitlines()
    assert first == "1 done, 1 stopped, 1 failed (3 runs)"
    assert [line.split()[:2] for line in listed] == [
        ["stopped", folders[1]],
        ["failed", f"{folders[2]}:"],  # and why
    ]
    runs = found.to_json()["runs"]
    assert [runs[folder] for folder in folders] == ["done", "stopped", "failed"]


def test_runs_of_one_name_in_one_sweep(folder: Path) -> None:
    """Nor has the name the width of the feed-forward part."""
    sheet, store = folder / "mine.toml", folder / "runs"
    sheet.write_text('seeds = 0\nff = [64, 32]\nn = 2\nlayers = 1\nfamily = "gru"\ntask = "rhi"\n')
    first, second = sweep_runs(str(sheet))
    assert first.name == second.name
    write_run(store, replace(paper_plans()[0], run=first))
    assert str(status(sheet, store=store)) == "1 done, 1 missing (2 runs)"
    out = str(sweep(sheet, store=store, device="cpu", dry_run=True))
    assert out.count(first.folder) == out.count(second.folder) == 1


def test_status_needs_no_torch(folder: Path) -> None:
    (folder / "runs").mkdir()
    code = (
        "import sys; sys.argv = ['ithbit', 'status'];"
        "from ithbit.cli import app; app(standalone_mode=False);"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no runs in runs/ yet" in done.stdout
