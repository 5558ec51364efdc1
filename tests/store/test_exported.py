"""An export read back is its store, in either format; what is damaged or foreign is refused."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
from tests.support.synthetic_store import paper_plans, write_run, write_store

import ithbit
from ithbit.errors import StoreError
from ithbit.reporting.cells import gather
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.page.curves import thin_curve, thin_epochs
from ithbit.reporting.page.page import render_page
from ithbit.reporting.tables.main import TABLES
from ithbit.store.frame import Records, export, load_rows
from ithbit.store.records import Epoch

RESULTS = Path(ithbit.__file__).parents[2] / "results"


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_round_trip(tmp_path: Path, mixed_records: Records, form: str) -> None:
    export(mixed_records, tmp_path, form)
    again = load_rows(tmp_path)
    assert again.is_export
    assert again.rows.equals(mixed_records.rows)
    assert again.histories().equals(mixed_records.histories())
    for name in TABLES:
        theirs, ours = (TABLES[name](gather(r)) for r in (mixed_records, again))
        assert (theirs.rows, theirs.columns) == (ours.rows, ours.columns)
    for run_id, folder in again.rows.select("run_id", "folder").iter_rows():
        curve = thin_curve(f"{mixed_records.store}/{folder}", 12)
        assert thin_epochs(again.history(run_id, folder), 12) == curve != ""
    assert again.history_note() is None


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_odd_values_survive(tmp_path: Path, form: str) -> None:
    store = write_store(tmp_path / "store", paper_plans()[:1])
    folder = write_run(store, paper_plans()[1])
    odd = Epoch(1, 5e-324, 1.7e308, 0.1 + 0.2, 1e-3, 1e-300)
    (folder / "history.jsonl").write_text(json.dumps(asdict(odd)) + "\n")
    failed = write_run(store, paper_plans()[2], "failure")
    text = (failed / "failure.json").read_text().replace("out of memory", 'a, \\"b\\"\\nc')
    (failed / "failure.json").write_text(text)
    records = load_rows(store)
    export(records, tmp_path, form)
    again = load_rows(tmp_path)
    assert again.rows.equals(records.rows)
    assert again.histories().equals(records.histories())


def test_our_runs_say_what_the_docs_say() -> None:
    records = load_rows(RESULTS / "paper")
    assert records.rows.height == 2106
    cells = gather(records)
    agreement = compare(cells)
    assert (agreement.n_compared, len(agreement.comparisons)) == (258, 258)
    assert agreement.agrees
    totals = [row for row in TABLES["main"](cells).rows if row.kind == "total"]
    assert [[f"{value.ours} {value.marks}".strip() for value in row.values] for row in totals] == [
        ["160/160 40a", "160/160 35a 5p", "159/160 21r 13n 5p", "158/160 28r 7n 5p"],
        ["286/300 71a", "192/300 11r 41a", "67/300 18r", "0/300"],
    ]
    row = records.rows.row(0, named=True)
    assert len(records.history(row["run_id"], row["folder"])) == row["epochs"]


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("stacked-n8", 135),
        ("stacked-n64", 35),
        ("stacked-cpu", 27),
        ("beyond", 80),
        ("same-science/kernels", 20),
        ("same-science/stacked", 155),
    ],
)
def test_our_other_exports_are_read_too(name: str, runs: int) -> None:
    assert load_rows(RESULTS / name).rows.height == runs


@pytest.mark.usefixtures("without_figures")
def test_without_histories(tmp_path: Path, mixed_records: Records) -> None:
    export(mixed_records, tmp_path, "csv")[1].unlink()
    records = load_rows(tmp_path)
    note = records.history_note()
    assert note == f"{tmp_path} has no table of histories: there are no learning curves"
    assert records.histories().is_empty()
    assert render_page(records).startswith("<!doctype html>")


def test_run_folders_count_more_than_an_export_beside_them(
    tmp_path: Path, mixed_records: Records
) -> None:
    export(mixed_records, tmp_path, "csv")
    write_run(tmp_path, paper_plans()[0])
    assert load_rows(tmp_path).rows.height == 1


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("max_accuracy", "accuracy", "lacks the column 'max_accuracy'"),
        ("run_id,", "note,run_id,", "has the column 'note'"),
        (",paper,", ",mine,", "row 1 has settings = 'mine'"),
        (",constructive,", ",proved,", "row 1 has group = 'proved'"),
        (",finished,", ",done,", "row 1 has status = 'done'"),
        (",lhi,", ",mhi,", "row 1 has task = 'mhi'"),
        (",1777,", ",many,", "row 1 has n_parameters = 'many'"),
        (",1777,", ",,", "row 1 has no n_parameters"),
        (",true,", ",yes,", "row 1 has solved = 'yes'"),
        ('"{""device""', '"[""device""', "row 1 has environment = "),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, mixed_records: Records, before: str, after: str, reason: str
) -> None:
    path = export(mixed_records, tmp_path, "csv")[0]
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(StoreError, match=reason) as said:
        load_rows(tmp_path)
    assert str(path) in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_torn_files_and_files_that_are_none(
    tmp_path: Path, mixed_records: Records, form: str
) -> None:
    path = export(mixed_records, tmp_path, form)[0]
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:-1], b"", b"\x80\x04\x95junk\n", b"a,b\n1,2\n"):
        path.write_bytes(data)
        with pytest.raises(StoreError, match=f"runs.{form}"):
            load_rows(tmp_path)


def test_a_table_at_which_its_reader_panics_is_a_sentence(
    tmp_path: Path, mixed_records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some damaged bytes make polars panic, which is no `Exception`."""

    def panic(path: Path) -> None:
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    export(mixed_records, tmp_path, "parquet")
    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(StoreError, match=r"runs\.parquet cannot be read as parquet"):
        load_rows(tmp_path)


def test_columns_of_another_type_twice_a_run_and_two_tables(
    tmp_path: Path, mixed_records: Records
) -> None:
    path = tmp_path / "runs.parquet"
    rows = mixed_records.rows
    rows.with_columns(pl.col("epochs").cast(pl.Float64)).write_parquet(path)
    with pytest.raises(StoreError, match="the column 'epochs' has Float64, not Int64"):
        load_rows(tmp_path)
    rows.with_columns(note=pl.lit("x")).write_parquet(path)
    with pytest.raises(StoreError, match="has the column 'note'"):
        load_rows(tmp_path)
    pl.concat([rows, rows]).write_parquet(path)
    with pytest.raises(StoreError, match=rf"row {rows.height + 1} has run_id = .* a second time"):
        load_rows(tmp_path)
    rows.clear().write_parquet(path)
    with pytest.raises(StoreError, match="has no rows"):
        load_rows(tmp_path)
    rows.write_csv(tmp_path / "runs.csv")
    with pytest.raises(StoreError, match=r"holds both runs.parquet and runs.csv; keep one"):
        load_rows(tmp_path)


def test_histories_of_other_runs_are_refused(tmp_path: Path, mixed_records: Records) -> None:
    export(mixed_records, tmp_path, "parquet")
    path = tmp_path / "runs.parquet"
    rows = mixed_records.rows
    rows.tail(rows.height - 1).write_parquet(path)
    with pytest.raises(StoreError, match="which is not a run of the table in its folder"):
        load_rows(tmp_path).histories()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verification": "proved"}, "row 1 has verification = 'proved'"),
        ({"certificate_sha256": "x"}, "row 1 has certificate_sha256 = 'x'"),
    ],
)
def test_only_verdicts_are_verdicts(
    tmp_path: Path, mixed_records: Records, changes: dict[str, str], reason: str
) -> None:
    """A word of the tables is none: *proved* would need no certificate."""
    rows = mixed_records.rows.filter(status="finished")
    rows.with_columns(**{k: pl.lit(v) for k, v in changes.items()}).write_csv(tmp_path / "runs.csv")
    with pytest.raises(StoreError, match=reason):
        load_rows(tmp_path)


def test_what_other_columns_contradict_is_set_aside(tmp_path: Path, mixed_records: Records) -> None:
    rows = mixed_records.rows.filter(status="finished", settings="paper").head(1)
    other = "abcdefabcdef"
    for changes, reason in (
        ({"settings": "early stop"}, "has settings = 'early stop', but is of others"),
        ({"learning_rate": 0.5}, "has settings = 'paper', but is of others"),
        ({"run_id": other, "folder": f"x-{other}"}, "row 2 is the same run as row 1"),
        ({"status": "failed", "error": "out of memory"}, "max_accuracy = .*status = 'failed'"),
        ({"status": "unfinished"}, "has max_accuracy = .*, but status = 'unfinished'"),
    ):
        changed = rows.with_columns(**{name: pl.lit(value) for name, value in changes.items()})
        if "run_id" in changes:
            changed = pl.concat([rows, changed])
        changed.write_parquet(tmp_path / "runs.parquet")
        (found,) = load_rows(tmp_path).set_aside
        assert re.search(reason, found.reason), found.reason
    verified = {"verification": "right on all inputs", "status": "failed", "max_accuracy": None}
    rows.with_columns(**{name: pl.lit(value) for name, value in verified.items()}).with_columns(
        pl.col("max_accuracy").cast(pl.Float64), error=pl.lit("out of memory")
    ).write_parquet(tmp_path / "runs.parquet")
    (found,) = load_rows(tmp_path).set_aside
    assert "verification = 'right on all inputs', but status = 'failed'" in found.reason
