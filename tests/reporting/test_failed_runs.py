"""What becomes of runs that diverged, and of runs that could not be run."""

from pathlib import Path

import polars as pl
import pytest
from tests.support.synthetic_store import Plan, write_run

from ithbit.api.records import plot
from ithbit.published import Variant
from ithbit.reporting.cells import gather, summary
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.tables.main import TABLES
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.frame import Records, export, load_rows
from ithbit.store.records import Epoch, Failure, FailureKind

GRU, SOFTMAX, SSM = (Variant("lhi", family, 1) for family in ("gru", "softmax-full", "mamba2"))
NAN = "the loss is not finite in epoch 4: nan"


def runs(variant: Variant) -> list[RunSpec]:
    return [RunSpec(ModelSpec("lhi", variant.family, 64), seed) for seed in range(5)]


def fail(store: Path, run: RunSpec, error: str, *accuracies: float, recorded: bool = True) -> None:
    """A run that ended in the epoch after these; records of before have no kind."""
    folder = RunFolder(store, run)
    folder.create()
    for number, accuracy in enumerate(accuracies, 1):
        folder.append_epoch(Epoch(number, 0.5, 0.5, accuracy, 1e-3, 0.1))
    kind: FailureKind = "diverged" if error == NAN else "error"
    folder.fail(Failure(run, error, "", len(accuracies) + 1, kind if recorded else None))


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of GRU two solved, three diverged, one of these after a perfect epoch, one in its first; of
    softmax none could be run; of Mamba2 one finished, one is open, one raised."""
    store = tmp_path_factory.mktemp("sick")
    gru, softmax, ssm = map(runs, (GRU, SOFTMAX, SSM))
    for run in (*gru[:2], ssm[0]):
        write_run(store, Plan(run, True, 1.0, 9))
    fail(store, gru[2], NAN, 0.5, 0.7, 0.6)
    fail(store, gru[3], NAN, 0.9, 1.0, 0.8)
    fail(store, gru[4], NAN)
    for run in softmax:
        fail(store, run, "OutOfMemoryError: CUDA out of memory")
    write_run(store, Plan(ssm[1], True, 1.0, 9), "spec")
    fail(store, ssm[2], "ValueError: no", 1.0)
    return store


@pytest.fixture(params=["folders", "parquet", "csv"])
def records(request: pytest.FixtureRequest, sick: Path, tmp_path: Path) -> Records:
    if request.param == "folders":
        return load_rows(sick)
    export(load_rows(sick), tmp_path, request.param)
    return load_rows(tmp_path)


def test_a_run_that_diverged_counts_and_one_that_could_not_be_run_does_not(records) -> None:
    cells = gather(records)
    counted = {v: cells.verdict_counts([v], 64) for v in (GRU, SOFTMAX, SSM)}
    assert {v: (found.solved, found.runs) for v, found in counted.items()} == {
        GRU: (3, 5),
        SOFTMAX: (0, 0),
        SSM: (1, 1),
    }
    best = summary(cells.runs(GRU, 64), "max_accuracy")
    assert best is not None
    assert (best.runs, best.mean) == (4, pytest.approx((1 + 1 + 0.7 + 1) / 4))
    assert cells.notes()[:2] == [
        "not counted: 1 unfinished and 6 failed runs, which say nothing about learning",
        "3 of the runs diverged: the loss was no longer finite; they count with the best "
        "accuracy they had reached",
    ]
    found = {(c.kind, c.cell): c for c in compare(cells).comparisons}
    assert found["successes", "LHI GRU L=1 n=64"].ours == "3/5"
    assert found["epochs", "LHI GRU L=1 n=64"].ours == "9"  # of those that finished
    assert found["epochs", "LHI GRU L=1 n=64"].incomplete
    assert found["parameters", "LHI GRU L=1 n=64"].ours == "1777"


def test_tables_and_figures_of_such_a_store(sick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = gather(load_rows(sick))
    for name in TABLES:
        assert any("3 of the runs diverged" in note for note in TABLES[name](cells).notes)
    cost = {row.variant: row.values for row in TABLES["cost"](cells).rows}
    assert [value.ours for value in cost[GRU]][:3] == ["3/5", "1777", "9*"]
    plot("epochs", store=sick)
    assert capsys.readouterr().err.splitlines() == [f"ithbit: {note}" for note in cells.notes()]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_store_where_all_diverged_has_a_table(tmp_path: Path, recorded: bool) -> None:
    for run in runs(GRU):
        fail(tmp_path, run, NAN, 0.6, recorded=recorded)
    found = gather(load_rows(tmp_path)).verdict_counts([GRU], 64)
    assert (found.solved, found.runs) == (0, 5)


def test_an_error_that_reads_like_divergence_is_none(tmp_path: Path) -> None:
    """The kind on record counts, not the words of the message."""
    folder = RunFolder(tmp_path, runs(GRU)[0])
    folder.create()
    folder.fail(Failure(folder.run, NAN, "", 1, "error"))
    assert load_rows(tmp_path).rows["solved"].to_list() == [None]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_exports_without_the_kind_of_failures_are_read(
    sick: Path, tmp_path: Path, form: str
) -> None:
    rows = load_rows(sick)
    path, _ = export(rows, tmp_path, form)
    read, write = getattr(pl, f"read_{form}"), f"write_{form}"
    table = read(path)
    assert "failure_kind" in table.columns
    getattr(table.drop("failure_kind"), write)(path)
    assert load_rows(tmp_path).rows.equals(rows.rows)


def test_a_history_that_is_lost_leaves_it_open_what_had_been_reached(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(runs(GRU)[0], True, 1.0, 9))
    fail(tmp_path, runs(GRU)[1], NAN, 1.0, 1.0)
    for path in tmp_path.glob("*/history.jsonl"):
        path.unlink()
    cells = gather(load_rows(tmp_path))
    assert cells.verdict_counts([GRU], 64).runs == 1
    assert "1 failed runs, which say nothing" in cells.notes()[0]


def test_encodings_are_drawn_if_every_run_diverged_at_once(tmp_path: Path) -> None:
    """Such runs count as not solved, but have no accuracy to show."""
    fail(tmp_path, runs(GRU)[0], NAN)
    share, accuracy = plot("positions", store=tmp_path).axes
    assert [patch.get_height() for axes in (share, accuracy) for patch in axes.patches] == [0, 0]
