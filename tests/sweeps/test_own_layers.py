"""Users' layers in other processes: given where the code is, and stopped by a sentence if it has
changed."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.paths import TOY_LAYERS

from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import Event, Notice
from ithbit.errors import LayerError
from ithbit.models import layer_source
from ithbit.models.layer_source import family_of, sources
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Result
from ithbit.sweeps.executors.ledger import Ledger, Share, read_batch
from ithbit.sweeps.executors.node import train_share
from ithbit.sweeps.processes import serve
from ithbit.sweeps.runner import run_all

TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=2)


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    path = tmp_path / "layers.py"
    path.write_bytes(TOY_LAYERS.read_bytes())
    return path


def runs_of(given, *seeds: int, n: int = 3) -> list[RunSpec]:
    family, code = family_of(given)
    model = ModelSpec("rhi", family, n, d_model=4, code=code)
    return [RunSpec(model, seed, TINY) for seed in seeds]


def test_a_file_that_changed_before_a_worker_read_it(tmp_path: Path, layers, monkeypatch) -> None:
    runs = runs_of(f"{layers}:RunningMean", 0)
    order = {"number": 1, "runs": [run.to_json() for run in runs], "layers": sources(runs)}
    monkeypatch.setattr(layer_source, "_registered", {})  # as in another process
    layers.write_text(layers.read_text() + "# changed\n")
    answers = io.StringIO()
    line = io.StringIO(json.dumps(order | {"seconds": 60.0}) + "\n")
    serve(tmp_path / "runs", TrainingOptions("cpu"), line, answers)
    error = json.loads(answers.getvalue())["data"]
    assert error["type"] == "LayerError"
    assert re.search(r"layers\.py:RunningMean has changed: .*put the file back", error["text"])
    assert RunFolder(tmp_path / "runs", runs[0]).result() is None


def test_an_error_of_a_worker_keeps_its_class(tmp_path: Path, layers) -> None:
    runs = [run for n in (2, 3) for run in runs_of(f"{layers}:RunningMean", 0, n=n)]
    layers.write_text(layers.read_text() + "# changed\n")
    with pytest.raises(LayerError, match="has changed"):
        run_all(runs, tmp_path / "runs", TrainingOptions("cpu", workers=2))


def test_a_file_that_changes_the_folder_leaves_the_store_where_it_is(
    tmp_path: Path, layers: Path, monkeypatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    move = f"import os\nif os.getppid() != {os.getppid()}:\n"
    layers.write_text(f"{move}    os.chdir({str(tmp_path / 'elsewhere')!r})\n" + layers.read_text())
    monkeypatch.chdir(tmp_path)
    runs = runs_of(f"{layers}:RunningMean", 0, 1)
    outcomes = run_all(runs, Path("store"), TrainingOptions("cpu", workers=2))
    assert [type(done) for done in outcomes] == [Result, Result]
    assert len(list((tmp_path / "store").glob("*/result.json"))) == 2


def test_a_share_on_a_cluster_is_told(tmp_path: Path, layers: Path) -> None:
    (run,) = runs_of(f"{layers}:RunningMean", 0)
    ledger = Ledger(tmp_path / "runs")
    with ledger.locked():
        batch = ledger.write([Share((run,))], "cpu")
    node = [sys.executable, "-m", "ithbit.sweeps.executors.node", str(batch.path), "0"]
    layers.write_text(layers.read_text() + "# changed\n")
    done = subprocess.run(node, capture_output=True, text=True)
    assert done.returncode == 2
    assert "layers.py:RunningMean has changed" in done.stderr
    assert "layers.py:RunningMean has changed" in batch.shares[0].trace()[-1]
    assert read_batch(batch.path) == batch  # reading needs no code
    train_share(batch.path, 0)  # here the code is known as it was
    assert isinstance(RunFolder(tmp_path / "runs", run).result(), Result)
    origin = RunFolder(tmp_path / "runs", run).layer()
    assert origin is not None
    assert origin.source == f"{layers}:RunningMean"


def test_what_lives_in_this_process_is_trained_here(tmp_path: Path) -> None:
    width_of = 4
    runs = runs_of(lambda width: torch.nn.Linear(width_of, width), 0, 1, 2)
    results = run_all(runs, tmp_path, TrainingOptions("cpu", workers=2))
    assert all(isinstance(result, Result) for result in results)
    origin = RunFolder(tmp_path, runs[0]).layer()
    assert origin is not None
    assert (origin.family, origin.source) == ("python:<lambda>", None)


def test_a_stack_that_fails_goes_on_one_at_a_time(tmp_path: Path) -> None:
    """In a stack nobody knows whose fault it was."""
    functorch = torch._C._functorch

    class Tires(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stacked = functorch.maybe_get_level(x) > 0 and len(functorch.get_unwrapped(x)) > 1
            if stacked and events:  # the trial passes
                raise ValueError("tired of stacks")
            return super().forward(x)

    events: list[Event] = []
    runs = runs_of(lambda width: Tires(width, width), 0, 1)
    runs = [replace(run, protocol=replace(TINY, max_epochs=3)) for run in runs]
    results = run_all(runs, tmp_path, TrainingOptions("cpu", workers=1), events.append)
    assert [result.epochs for result in results if isinstance(result, Result)] == [3, 3]
    (notice,) = (event.what for event in events if isinstance(event.what, Notice))
    assert "failed with 2 runs at once (ValueError: tired of stacks): trained one at a" in notice
