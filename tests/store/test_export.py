"""The exported tables hold every run and every epoch."""

from pathlib import Path

import polars as pl
import pytest

from ithbit.errors import OutputError, SpecError
from ithbit.store.frame import Records, export
from ithbit.store.reading import read_history


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_runs_and_histories(tmp_path: Path, mixed_records: Records, form: str) -> None:
    paths = export(mixed_records, tmp_path, form)
    assert [path.name for path in paths] == [f"runs.{form}", f"histories.{form}"]
    read = pl.read_parquet if form == "parquet" else pl.read_csv
    runs, histories = (read(path) for path in paths)
    assert runs.height == mixed_records.rows.height
    assert runs.columns == mixed_records.rows.columns
    row = mixed_records.rows.row(0, named=True)
    one = histories.filter(run_id=row["run_id"])
    expected = read_history(f"{mixed_records.store}/{row['folder']}")
    assert one.height == row["epochs"] == len(expected)
    assert one["held_out_accuracy"].to_list() == [e.held_out_accuracy for e in expected]


def test_unknown_format(tmp_path: Path, mixed_records: Records) -> None:
    with pytest.raises(SpecError, match="unknown format 'xlsx'; choose one of parquet, csv"):
        export(mixed_records, tmp_path, "xlsx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", ["runs.csv", "histories.csv"])
def test_a_table_in_the_other_format(tmp_path: Path, mixed_records: Records, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(
        OutputError, match=f"already has {there}, .* name another folder with --out"
    ):
        export(mixed_records, tmp_path, "parquet")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"
