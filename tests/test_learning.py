"""Learning agrees with the paper at n = 8: shipped results by default, trained anew if asked."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from tests.support.paths import RESULTS

from ithbit.engine.options import TrainingOptions
from ithbit.published import SuccessRow, published
from ithbit.reporting.comparison.statistics import fisher_exact
from ithbit.spec import Protocol
from ithbit.store.records import Result
from ithbit.sweeps.presets import cross, paper
from ithbit.sweeps.runner import run_all

SHIPPED = RESULTS / "paper" / "runs.csv"
ROWS = published().successes
# Not corrected over the 23 cells: with runs as few as these a corrected test could hardly fail.
LEVEL = 0.05


def row_id(row: SuccessRow) -> str:
    return f"{row.task}-{row.families[0]}-L{row.n_layers}"


@pytest.fixture(scope="module")
def shipped() -> pl.DataFrame:
    return pl.read_csv(SHIPPED).filter(pl.col("n_bits") == 8)


def test_the_shipped_runs_are_the_sweep_at_n_8_with_twenty_seeds(shipped: pl.DataFrame) -> None:
    first = [run for run in paper() if run.model.n_bits == 8]
    rows = [(row.task, row.families[0], row.n_layers) for row in ROWS]
    more = cross(rows, [8], range(5, 20), protocol=Protocol(stop_when_solved=True))
    assert sorted(shipped["run_id"]) == sorted(run.run_id for run in first + more)
    assert set(shipped["status"]) == {"finished"}


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_shipped_successes_agree_with_the_paper(row: SuccessRow, shipped: pl.DataFrame) -> None:
    cell = shipped.filter(
        (pl.col("task") == row.task)
        & (pl.col("family") == row.families[0])
        & (pl.col("n_layers") == row.n_layers)
    )
    assert len(cell) == 20
    assert fisher_exact((int(cell["solved"].sum()), 20), (row.successes[8], 5)) >= LEVEL


def test_the_totals_that_the_docs_print(shipped: pl.DataFrame) -> None:
    counted = {(row.task, row.families[0], row.n_layers): row.group for row in ROWS}
    totals: Counter[tuple[str, bool]] = Counter()
    for run in shipped.iter_rows(named=True):
        group = counted.get((run["task"], run["family"], run["n_layers"]))
        if group:
            totals[group, run["solved"]] += 1
    page = (SHIPPED.parents[2] / "docs" / "reproduction.md").read_text()
    for group in ("constructive", "stress test"):
        solved, failed = totals[group, True], totals[group, False]
        assert f"{solved}/{solved + failed} (" in page


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_training_anew_agrees_with_the_paper(row: SuccessRow, tmp_path: Path) -> None:
    variant = (row.task, row.families[0], row.n_layers)
    runs = [
        run
        for run in paper()
        if (run.model.task, run.model.family, run.model.n_layers) == variant
        and run.model.n_bits == 8
    ]
    results = [run for run in run_all(runs, tmp_path, TrainingOptions()) if isinstance(run, Result)]
    assert len(results) == 5
    solved = sum(result.solved for result in results)
    assert fisher_exact((solved, 5), (row.successes[8], 5)) >= LEVEL
