"""The comparison of success counts, on records that were made up: what it takes, and what it
says."""

import json
import re
import runpy
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.one_stack import train
from tests.support.paths import ROOT
from torch import Tensor, uint8

from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.steppers.stacked import StackedStepper
from ithbit.errors import IthbitError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.frame import export, load_rows
from ithbit.store.records import Failure, Result

SCRIPT = ROOT / "experiments" / "same_science.py"
SHORT = Protocol(stop_when_solved=True)
CELL = "rhi-gru-n16-L1"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def finished(run: RunSpec, side: str | None, solved: bool) -> Result:
    accuracy = 1.0 if solved else 0.75
    first, half, times = 1 if solved else None, 0.5, ("then", "now")
    epochs = min(3, run.protocol.max_epochs)
    return Result(
        run, 100, epochs, "solved" if solved else "epochs", accuracy, first, accuracy,
        0.1, half, half, 1.0, 0.1, *times, {"path": side} if side else {},
    )  # fmt: skip


@pytest.fixture
def keep(script):
    """Writes results of the first cell: so many solved of the seeds, in a store."""

    def write(store: Path, side: str | None, solved: int, seeds, protocol=SHORT) -> None:
        for k, seed in enumerate(seeds):
            run = RunSpec(script["MODELS"][0], seed, protocol)
            folder = RunFolder(store, run)
            folder.create()
            folder.finish(finished(run, side, solved=k < solved), {})

    return write


@pytest.fixture
def compare(script, tmp_path):
    """Runs the script on the first cell without training; its exit status and its row."""

    def run(*options: object) -> tuple[int, dict]:
        where = tmp_path / "out.json"
        fixed = ["--store", tmp_path / "own", "--cell", CELL, "--no-train", "--json", where]
        status = script["main"]([str(option) for option in (*fixed, *options)])
        (row,) = json.loads(where.read_text())["cells"]
        return status, row

    return run


def test_equal_counts_do_not_differ(keep, compare, tmp_path, capsys) -> None:
    keep(tmp_path / "own" / "kernels", "kernels", 8, range(20))
    keep(tmp_path / "own" / "stacked", "stacked", 9, range(20))
    status, row = compare()
    assert (status, row["differs"]) == (0, False)
    assert (row["kernels"]["solved"], row["stacked"]["solved"]) == (8, 9)
    assert capsys.readouterr().out.splitlines()[1].split() == [CELL, "8/20", "9/20", *["1.000"] * 2]


def test_far_counts_differ(keep, compare, tmp_path) -> None:
    keep(tmp_path / "own" / "kernels", "kernels", 2, range(20))
    keep(tmp_path / "own" / "stacked", "stacked", 18, range(20))
    status, row = compare()
    assert (status, row["differs"]) == (1, True)
    assert row["p"] == row["p_holm"] < 1e-5


def test_runs_of_another_store_are_taken_for_the_side_they_name(keep, compare, tmp_path) -> None:
    """Those of the whole protocol too; not those of the other side or of fewer epochs. Records that
    are older than the kernels name none, and are of the stacked models."""
    keep(tmp_path / "own" / "kernels", "kernels", 1, range(2))
    keep(tmp_path / "main", "kernels", 2, range(2, 5), Protocol())
    keep(tmp_path / "main", "stacked", 1, range(5, 7))
    keep(tmp_path / "main", "kernels", 1, range(7, 9), Protocol(max_epochs=9))
    keep(tmp_path / "main", None, 1, range(8, 9))
    status, row = compare("--reuse", tmp_path / "main", "--seeds", "0-8")
    assert (status, row["differs"], row["p"]) == (3, None, None)
    assert row["kernels"] == {"seeds": 9, "done": 5, "solved": 3, "failed": 0, "reused": 3}
    assert row["stacked"] == {"seeds": 9, "done": 3, "solved": 2, "failed": 0, "reused": 3}


def test_an_export_serves_as_the_store_it_is_of(keep, compare, tmp_path) -> None:
    keep(tmp_path / "main", "kernels", 2, range(3))
    export(load_rows(tmp_path / "main"), tmp_path / "tables", "csv")
    _, row = compare("--reuse", tmp_path / "tables", "--seeds", "0-3")
    assert row["kernels"] == {"seeds": 4, "done": 3, "solved": 2, "failed": 0, "reused": 3}


def test_the_first_store_that_has_a_run_counts(keep, compare, tmp_path) -> None:
    keep(tmp_path / "one", "kernels", 1, range(1))
    keep(tmp_path / "two", "kernels", 0, range(2))
    _, row = compare("--reuse", tmp_path / "one", "--reuse", tmp_path / "two", "--seeds", "0-1")
    assert (row["kernels"]["done"], row["kernels"]["solved"]) == (2, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "no store has any of these runs"),
        (["--minutes", "nan"], "--minutes must be above 0, got nan"),
        (["--reuse", "nowhere"], "--reuse takes run folders or an export: the store nowhere"),
        (["--json", "nowhere/x.json"], "cannot write nowhere/x.json: No such file or directory"),
    ],
)
def test_a_wrong_command_is_a_sentence(compare, options, sentence) -> None:
    with pytest.raises(IthbitError, match=re.escape(sentence)):
        compare(*options)


def test_a_failed_run_leaves_its_cell_incomplete(script, keep, compare, tmp_path) -> None:
    keep(tmp_path / "own" / "kernels", "kernels", 2, range(2))
    keep(tmp_path / "own" / "stacked", "stacked", 1, range(1))
    run = RunSpec(script["MODELS"][0], 1, SHORT)
    folder = RunFolder(tmp_path / "own" / "stacked", run)
    folder.create()
    folder.fail(Failure(run, "it broke", "", 1))
    status, row = compare("--seeds", "0-1")
    assert (status, row["differs"]) == (3, None)
    assert (row["stacked"]["done"], row["stacked"]["failed"]) == (1, 1)


def test_what_no_store_has_is_trained(script, keep, tmp_path, capsys) -> None:
    """A side alone, on this machine; a run of another store is not trained again."""
    own, model = tmp_path / "own", replace(script["MODELS"][0], n_bits=2)
    protocol = Protocol(batch_size=8, epoch_examples=8, held_out_examples=8, max_epochs=1)
    runs = [RunSpec(model, seed, protocol) for seed in range(2)]
    other = RunFolder(tmp_path / "main", runs[0])
    other.create()
    other.finish(finished(runs[0], "stacked", solved=True), {})
    known = script["recorded"]([tmp_path / "main"], runs)
    script["train"](runs, "stacked", own, known, "cpu", float("inf"))
    assert RunFolder(own / "stacked", runs[1]).result() is not None
    assert not RunFolder(own / "stacked", runs[0]).path.exists()
    assert capsys.readouterr().out.startswith(f"stacked: {runs[1].name}: ")


def test_training_stops_when_time_is_up(script, tmp_path) -> None:
    protocol = Protocol(batch_size=8, epoch_examples=8, stop_loss=0.0, max_epochs=10**9)
    run = RunSpec(replace(script["MODELS"][0], n_bits=2), 0, protocol)
    with pytest.raises(script["TimeIsUpError"]):
        script["train"]([run], "stacked", tmp_path, {}, "cpu", time.monotonic() + 0.5)
    folder = RunFolder(tmp_path / "stacked", run)
    assert folder.history()
    assert folder.result() is None


# Of torch's own making.
warned = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture
def compiled(script, monkeypatch):
    """Has the stacked models compiled by a backend until the test ends."""
    for place, name in ((StackedStepper, "losses"), (loop, "describe_environment")):
        monkeypatch.setattr(place, name, getattr(place, name))
    settings = torch._dynamo.config
    with settings.patch(recompile_limit=settings.recompile_limit):
        yield script["compile_stacked"]


def trained(store: Path) -> list[Result]:
    """Three short runs, of whole batches and a rest."""
    protocol = Protocol(batch_size=16, epoch_examples=40, held_out_examples=8, max_epochs=3)
    model = ModelSpec("rhi", "linear-causal", 3, d_ff=16)
    found = train(
        [RunSpec(model, seed, protocol) for seed in range(3)], store, choose_device("cpu")
    )
    errors = [one.error for one in found if isinstance(one, Failure)]
    assert not errors
    return found


@warned
def test_compiled_models_train_as_plain_ones_do(compiled, tmp_path) -> None:
    """Whole batches are compiled, for several runs once; the rest of an epoch is not."""
    batches = []

    def noting(graph, inputs):
        batches.append({x.shape[1] for x in inputs if isinstance(x, Tensor) and x.dtype == uint8})
        return graph

    plain = trained(tmp_path / "plain")
    compiled(noting)
    found = trained(tmp_path / "compiled")
    assert batches == [{16}]
    assert [["compiled" in one.environment for one in some] for some in (plain, found)] == [
        [False] * 3,
        [True] * 3,
    ]
    for one, other in zip(plain, found, strict=True):
        assert other.final_loss == pytest.approx(one.final_loss, rel=1e-5)


@warned
def test_a_compiler_that_errs_is_found_out(compiled, tmp_path) -> None:
    def twice(graph, inputs):
        return lambda *values: [2 * loss for loss in graph(*values)]

    compiled(twice)
    with pytest.raises(IthbitError, match=r"gradients of rhi-linear-causal-n3-L1 are 1e\+00 off"):
        trained(tmp_path)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="one GPU is what it is for")
def test_to_compile_takes_one_gpu(compare) -> None:
    with pytest.raises(IthbitError, match="for one CUDA GPU"):
        compare("--compile")
