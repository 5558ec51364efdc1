"""A user's layer all the way: train, kill, resume, sweep, tables, curves, verify, page, export."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.paths import TOY_LAYERS

from ithbit.models import layer_source, own_layer
from ithbit.models.layer_source import family_of
from ithbit.sweeps.select import sweep_runs

HERE = ("--device", "cpu", "--workers", 1)
SWEEP = """
task = ["rhi", "lhi"]
family = ["gru", "{layers}:RunningMean", "torch:rnn"]
layers = [1]
n = [3]
width = [4]
seeds = "0-1"
[protocol]
epoch_examples = 1024
held_out_examples = 256
max_epochs = 2
"""
ONE = """
task = "rhi"
family = "layers.py:{name}"
layers = 1
n = 4
width = 8
seeds = "0-1"
[protocol]
epoch_examples = 1024
held_out_examples = 256
max_epochs = 40
"""


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    path = tmp_path / "layers.py"
    path.write_bytes(TOY_LAYERS.read_bytes())
    return path


@pytest.fixture
def as_if_new(monkeypatch: pytest.MonkeyPatch):
    """Forgets every layer, as another process would know none."""

    def forget() -> None:
        for known in ("_registered", "_given_sources"):
            monkeypatch.setattr(layer_source, known, {})
        own_layer.stacking_obstacle.cache_clear()

    return forget


def test_killed_and_resumed_bit_for_bit(ithbit, tmp_path: Path, layers: Path, kept) -> None:
    (tmp_path / "mine.toml").write_text(ONE.format(name="RunningMean"))
    sweep = ("sweep", "mine.toml", "--device", "cpu", "--workers", "1")
    runs = sweep_runs(str(tmp_path / "mine.toml"))
    history = tmp_path / "killed" / runs[0].folder / "history.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "ithbit", *sweep, "--store", "killed"],
        cwd=tmp_path,
        env=os.environ | {"ITHBIT_SAVE_SECONDS": "0"},
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not (
        history.exists() and len(history.read_bytes().splitlines()) >= 3
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "2 stopped" in ithbit("status", "--store", "killed")[1]
    assert ithbit(*sweep, "--store", "killed")[0] == 0
    assert ithbit(*sweep, "--store", "whole")[0] == 0
    for run in runs:
        assert kept(tmp_path / "killed", run) == kept(tmp_path / "whole", run)


@pytest.mark.usefixtures("without_figures")
def test_beside_the_six_in_a_sweep(ithbit, tmp_path: Path, layers: Path, as_if_new) -> None:
    (tmp_path / "sweeps").mkdir()
    # A path in a sweep's file is relative to that file.
    (tmp_path / "sweeps" / "mine.toml").write_text(SWEEP.format(layers="../layers.py"))
    sweep = ("sweep", "sweeps/mine.toml", "--device", "cpu")
    assert ithbit(*sweep, "--workers", 1)[1].startswith("12 runs: ")
    as_if_new()
    status, out, _ = ithbit("status", "sweeps/mine.toml", "--family", "layers.py:RunningMean")
    assert (status, out) == (0, "4 done (4 runs)\n")
    out = ithbit("table", "main", "--settings", "any")[1]
    assert "RunningMean" in out
    assert "rnn" in out
    cell = ("--family", "layers.py:RunningMean", "--n", 3)
    assert ithbit("plot", "curves", *cell, "-o", "curves.svg")[0] == 0
    assert "RunningMean" in (tmp_path / "curves.svg").read_text()
    assert ithbit("report", "-o", "page.html")[0] == 0
    assert "RunningMean" in (tmp_path / "page.html").read_text()
    assert ithbit("export", "-o", "tables")[0] == 0
    assert ithbit("table", "main", "--settings", "any", "--store", "tables")[1] == out
    # All of that without the layer's code; this needs it, and finds it where it lay.
    _, out, err = ithbit("verify", "--all", "--device", "cpu")
    assert "12 runs" in out, err
    records = list((tmp_path / "runs").glob("*RunningMean*/verification.json"))
    assert len(records) == 4
    folder = records[0].parent
    assert (folder / "layer.py").read_bytes() == layers.read_bytes()
    kept = json.loads((folder / "layer.json").read_text())
    assert kept["source"] == f"{layers}:RunningMean"
    assert (kept["family"], kept["code"]) == family_of(kept["source"])


def test_a_changed_file_is_another_layer(ithbit, tmp_path: Path, layers: Path, as_if_new) -> None:
    train = ("train", "rhi", "layers.py:LoopCell", "--n", 3, "--width", 4, "--seeds", "0", *HERE)
    assert ithbit(*train, "--max-epochs", 1)[0] == 0
    (first,) = (tmp_path / "runs").iterdir()
    layers.write_text(layers.read_text() + "# changed\n")
    assert ithbit(*train, "--max-epochs", 1)[0] == 0
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert len({json.loads((f / "spec.json").read_text())["name"] for f in folders}) == 1
    rows = ithbit("table", "main", "--settings", "any")[1].splitlines()
    assert sum("LoopCell" in row for row in rows) == 2
    as_if_new()
    (second,) = (f for f in folders if f != first)
    assert ithbit("verify", second.name, "--device", "cpu")[0] in (0, 1)
    status, _, err = ithbit("verify", first.name, "--device", "cpu")
    assert status == 2
    assert "layers.py:LoopCell has changed" in err
    assert "put the file back there" in err
    layers.unlink()
    as_if_new()
    status, _, err = ithbit("verify", first.name, "--device", "cpu")
    assert (status, "there is no file" in err, "layer.py" in err) == (2, True, True)


def test_runs_of_a_changed_layer_are_set_aside(ithbit, tmp_path: Path, layers, as_if_new) -> None:
    few = ("--n", 3, "--width", 4, "--seeds", "0", "--max-epochs", 1, *HERE)
    verify = ("verify", "--all", "--device", "cpu", "--json")
    before = layers.read_bytes()
    assert ithbit("train", "rhi", "layers.py:LoopCell", *few)[0] == 0
    (first,) = (tmp_path / "runs").iterdir()
    layers.write_bytes(before + b"# changed\n")
    assert ithbit("train", "rhi", "layers.py:LoopCell", *few)[0] == 0
    assert ithbit("train", "rhi", "gru", *few)[0] == 0
    as_if_new()
    status, out, err = ithbit(*verify)
    found = json.loads(out)
    assert (status, found["summary"]["all"]["runs"]) == (1, 2)
    assert [first.name in why and "has changed" in why for why in found["set_aside"]] == [True]
    assert "ithbit: set aside: " in err
    # The way out: the copy in the folder, put back by the user.
    layers.write_bytes((first / "layer.py").read_bytes())
    as_if_new()
    _, out, _ = ithbit(*verify)
    found = json.loads(out)
    assert (found["summary"]["all"]["runs"], found["set_aside"]) == (3, [])


def test_what_a_layer_prints_is_no_output(ithbit, layers: Path) -> None:
    train = ("train", "rhi", "layers.py:Prints", "--n", 3, "--width", 4, "--seeds", "0", *HERE)
    status, out, _ = ithbit(*train, "--max-epochs", 1, "--json")
    assert status == 0
    assert json.loads(out)[0]["epochs"] == 1


def test_one_that_raises_late_is_recorded(ithbit, tmp_path: Path, layers: Path) -> None:
    (tmp_path / "mine.toml").write_text(ONE.format(name="RaisesLate"))
    status, out, _ = ithbit("sweep", "mine.toml", *HERE)
    assert status == 1
    assert "seeds 0, 1 failed: ValueError: too far from home" in out
    for path in (tmp_path / "runs").glob("*/failure.json"):
        failure = json.loads(path.read_text())
        assert failure["epoch"] >= 3
        assert "in forward" in failure["traceback"]
        assert "too far from home" in failure["error"]


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        ("nowhere.py:Mine", "there is no file nowhere.py"),
        ("layers.py:Missing", "layers.py has no Missing; it has "),
        ("layers.py:Counts", "Counts changes its buffer calls while it computes"),
        ("nothing", "unknown family 'nothing'"),
        ("python:Mine", "python:Mine exists only in the Python process that made it"),
        ("fla:GLA", "fla:GLA needs a CUDA GPU"),
    ],
)
def test_mistakes_are_one_sentence(ithbit, layers: Path, family: str, sentence: str) -> None:
    status, out, err = ithbit("train", "rhi", family, "--n", 3, "--width", 4, *HERE)
    assert (status, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) <= 2  # the device is reported before


def test_a_plan_refuses_what_training_would(ithbit, tmp_path: Path, layers: Path) -> None:
    (tmp_path / "mine.toml").write_text(ONE.format(name="Missing"))
    status, out, err = ithbit("sweep", "mine.toml", "--dry-run", "--device", "cpu")
    assert (status, out) == (2, "")
    assert "layers.py has no Missing; it has " in err


def test_rotary_is_refused(ithbit, layers: Path) -> None:
    status, _, err = ithbit("train", "rhi", "layers.py:LoopCell", "--positions", "rotary")
    assert status == 2
    assert "rotary positions need a softmax family, got family 'layers.py:LoopCell'" in err


def test_a_sweep_says_all_mistakes_at_once(ithbit, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SWEEP.format(layers="gone.py").replace("3", "0"))
    status, _, err = ithbit("sweep", "mine.toml")
    assert status == 2
    assert "gone.py" in err
    assert "n must be at least 1, got 0" in err
