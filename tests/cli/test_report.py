"""The commands that read records: what they print, where, and how they end."""

import json
from pathlib import Path

import pytest
from tests.support.paths import RESULTS
from tests.support.synthetic_store import Plan, paper_plans, write_run, write_store

from ithbit.spec import ModelSpec, Protocol, RunSpec


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's GRU runs, with histories at n = 8, and a half-copied folder."""
    store = tmp_path_factory.mktemp("store")
    for plan in paper_plans():
        if plan.run.model.family == "gru":
            write_run(store, plan, with_history=plan.run.model.n_bits == 8)
    return store


def test_table(ithbit, store: Path) -> None:
    status, out, err = ithbit("table", "main", "--store", store, "--show", "both")
    assert (status, err) == (0, "")
    assert "LHI    GRU              1   ✓" in out
    assert "5/5 (5)" in out


def test_the_store_may_come_from_the_environment(
    ithbit, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITHBIT_STORE", str(store))
    assert ithbit("table", "cost")[0] == 0


def test_published_needs_no_store(ithbit) -> None:
    status, out, _ = ithbit("table", "cost", "--show", "published", "--format", "csv")
    assert status == 0
    assert "LHI,GRU,1,5/5,1777,325,2.04,0.062" in out


def test_table_into_a_file(ithbit, store: Path, tmp_path: Path) -> None:
    status, out, _ = ithbit("table", "main", "--store", store, "-f", "latex", "-o", "t/main.tex")
    assert (status, out) == (0, "t/main.tex\n")
    assert r"\toprule" in (tmp_path / "t/main.tex").read_text()


def test_what_is_set_aside_is_said_on_standard_error(ithbit, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", paper_plans()[:5], with_history=False)
    (store / "half_copied-0123456789ab").mkdir()
    status, out, err = ithbit("table", "main", "--store", store)
    assert status == 0
    assert err == (
        "ithbit: set aside 1 run folder (half_copied-0123456789ab: it has no spec.json; half "
        "copied?)\n"
    )
    assert "set aside" not in out


def test_compare_agrees(ithbit, store: Path) -> None:
    status, out, _ = ithbit("compare", "--store", store)
    assert status == 0
    assert "\nNo evidence of a difference: none of " in out
    assert "are missing" in out
    assert ithbit("compare", "--store", store, "--require-complete")[0] == 1


def test_compare_counts_what_rests_on_fewer_runs(ithbit, tmp_path: Path) -> None:
    plans = [plan for plan in paper_plans() if plan.run.model == ModelSpec("rhi", "gru", 8)]
    store = write_store(tmp_path / "store", plans[:3], with_history=False)
    out = ithbit("compare", "--store", store)[1]
    said, lines = " ".join(out.split()), out.splitlines()
    assert "Of 258 in all, 253 are missing and 5 rest on fewer runs than the paper's." in said
    assert "  all 1 cell with runs: 3/3 solved, 3.0 expected, p = 1: no evidence;" in out
    assert "Main table: 3 of 3 runs solved; of these 3 not tried." in said
    head = next(k for k, line in enumerate(lines) if line.startswith("comparison"))
    at = lines[head].index("fewer") + len("fewer")
    assert [line[at - 5 : at].strip() for line in lines[head + 2 : head + 10]] == [
        *"1211",
        *"····",
    ]
    assert any(line.startswith("fewer: how many of those that are judged") for line in lines)
    assert said.endswith("approximations hold. No evidence is no proof that nothing differs.")
    assert max(map(len, lines)) <= 80


def test_compare_disagrees(ithbit, tmp_path: Path) -> None:
    model = ModelSpec("lhi", "gru", 64)
    plans = [Plan(RunSpec(model, seed), True, 1.0, 300 + 12 * seed, 1778) for seed in range(5)]
    store = write_store(tmp_path / "store", plans, with_history=False)
    status, out, _ = ithbit("compare", "--store", store)
    assert status == 1
    assert "\nDisagreement: 1 of " in out
    assert "parameters: LHI GRU L=1 n=64: ours 1778, published 1777" in out
    assert plans[0].run.run_id in out


def test_compare_as_json_and_in_full(ithbit, store: Path) -> None:
    status, out, _ = ithbit("compare", "--store", store, "--json")
    data = json.loads(out)
    assert status == 0
    assert data["agrees"] is True
    assert data["complete"] is False
    assert len(data["kinds"]) == 8
    status, out, _ = ithbit("compare", "--store", store, "--all")
    assert out.count("\n  missing ") > 100


def test_plot(ithbit, store: Path, tmp_path: Path) -> None:
    status, out, _ = ithbit("plot", "epochs", "--store", store, "-o", "epochs.svg")
    assert (status, out) == (0, "epochs.svg\n")
    assert (tmp_path / "epochs.svg").stat().st_size > 10_000
    cell = ("--task", "lhi", "--family", "gru", "--layers", "1", "--n", "8")
    assert ithbit("plot", "curves", "--store", store, *cell)[:2] == (0, "curves.png\n")


def test_report_and_export(ithbit, store: Path, tmp_path: Path) -> None:
    status, out, _ = ithbit("report", "--store", store, "-o", "page.html")
    assert (status, out) == (0, "page.html\n")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    status, out, _ = ithbit("export", "--store", store, "--format", "csv", "-o", "tidy")
    assert (status, out) == (0, "tidy/runs.csv\ntidy/histories.csv\n")


def test_an_export_is_not_given_a_second_format(ithbit, store: Path, tmp_path: Path) -> None:
    ithbit("export", "--store", store, "--format", "csv", "-o", "tidy")
    before = sorted((tmp_path / "tidy").iterdir())
    status, out, err = ithbit("export", "--store", "tidy", "-o", "tidy")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "tidy already has runs.csv, and a table in two formats cannot be read" in err
    assert sorted((tmp_path / "tidy").iterdir()) == before
    assert ithbit("export", "--store", store, "--format", "csv", "-o", "tidy")[0] == 0


def test_an_export_is_read_where_a_store_is(ithbit, store: Path, tmp_path: Path) -> None:
    commands: list[list[str]] = [["table", "main"], ["compare", "--all"], ["export", "-o", "twice"]]
    ithbit("export", "--store", store, "--format", "csv", "-o", "tidy")
    for command in commands[:2]:
        assert ithbit(*command, "--store", "tidy") == ithbit(*command, "--store", store)
    assert ithbit(*commands[2], "--format", "csv", "--store", "tidy")[0] == 0
    for name in ("runs.csv", "histories.csv"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "tidy" / name).read_bytes()
    cell = ("--task", "lhi", "--family", "gru", "--layers", "1", "--n", "8")
    assert ithbit("plot", "curves", "--store", "tidy", *cell)[:2] == (0, "curves.png\n")
    (tmp_path / "tidy/histories.csv").unlink()
    status, _, err = ithbit("export", "-o", "thrice", "--store", "tidy")
    assert (status, err.count("\n")) == (0, 1)
    assert "tidy has no table of histories: there are no learning curves" in err
    status, _, err = ithbit("plot", "curves", "--store", "tidy", *cell)
    assert (status, "the store tidy has no history of lhi gru" in err) == (2, True)
    (tmp_path / "tidy/runs.csv").write_text("task,accuracy\nrhi,1\n")
    status, _, err = ithbit("compare", "--store", "tidy")
    assert (status, "tidy/runs.csv lacks the column 'run_id'" in err) == (2, True)


def test_compare_of_our_runs(ithbit) -> None:
    paper = RESULTS / "paper"
    status, out, err = ithbit("compare", "--store", paper)
    assert (status, err) == (0, "")
    assert "\nNo evidence of a difference: none of 258 comparisons differs.\n" in out
    assert "  all 92 cells with runs: 1182/1840 solved, 1179.2 expected, p = 0.43: no" in out
    assert ithbit("compare", "--store", paper, "--require-complete")[0] == 0


def test_any_settings(ithbit, tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", 8), 0, Protocol(max_epochs=3))
    store = write_store(tmp_path / "store", [Plan(run, True, 1.0, 3)])
    status, _, err = ithbit("table", "main", "--store", store, "--settings", "paper")
    assert status == 2
    assert "count runs of any settings with --settings any" in err
    status, out, _ = ithbit("table", "main", "--store", store)
    assert status == 0
    assert "1/1" in out
    assert "all runs differ from the paper's settings in: epochs = 3" in out
    status, out, err = ithbit("compare", "--store", store)
    assert (status, out) == (2, "")
    assert "nothing to compare" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "mian"], "unknown table 'mian'; choose one of main, accuracy, positions"),
        (["table", "main", "--format", "xls"], "unknown format 'xls'; choose one of text"),
        (["table", "main", "--show", "all"], "cannot show 'all'; choose one of ours"),
        (["table", "main", "--settings", "mine"], "unknown settings 'mine'; choose one of any"),
        (["report", "--settings", "mine"], "unknown settings 'mine'"),
        (["plot", "pie"], "unknown figure 'pie'; choose one of successes"),
        (["plot", "length", "-o", "a.jpg"], "its extension must be one of .png, .svg, .pdf"),
        (["plot", "curves", "--family", "oracle"], "unknown family 'oracle'; choose one of"),
        (["plot", "curves", "--task", "mhi"], "unknown task 'mhi'; choose one of rhi, lhi"),
        (["plot", "curves", "--n", "7"], "has no history of rhi softmax-full, L = 1, n = 7"),
        (["plot", "curves", "--positions", "x"], "unknown positions 'x'; choose one of none"),
        (["plot", "successes", "--n", "8"], "successes shows them all: leave them out"),
        (["export", "--format", "xlsx"], "unknown format 'xlsx'; choose one of parquet, csv"),
        (["compare", "--alpha", "2"], "alpha must lie between 0 and 1, got 2.0"),
        (["report", "-o", "/dev/null/page.html"], "cannot write /dev/null/page.html"),
        (["table", "main", "-o", "."], "it is a folder; name a file"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(
    ithbit, store: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, out, err = ithbit(*arguments, "--store", store)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("ithbit: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [["table", "main"], ["compare"], ["plot", "epochs"], ["report"], ["export"]]
)
def test_stores_that_are_none(ithbit, tmp_path: Path, command: list[str]) -> None:
    status, _, err = ithbit(*command, "--store", "nowhere")
    assert status == 2
    assert "the store nowhere does not exist" in err
    (tmp_path / "file").write_text("")
    assert ithbit(*command, "--store", "file")[0] == 2
    (tmp_path / "empty").mkdir()
    status, _, err = ithbit(*command, "--store", "empty")
    assert status == 2
    assert "the store empty holds no runs; start some with `ithbit sweep`" in err


@pytest.mark.parametrize("command", [["table", "main"], ["compare"], ["plot", "epochs"]])
def test_a_store_with_only_failures(ithbit, tmp_path: Path, command: list[str]) -> None:
    write_run(tmp_path / "store", paper_plans()[0], "failure")
    status, _, err = ithbit(*command, "--store", "store")
    assert status == 2
    assert "no run of the store store has finished (1 failed, 0 unfinished, 0 set aside)" in err


def test_nothing_of_the_papers_to_compare(ithbit, tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", 128), 0)
    store = write_store(tmp_path / "store", [Plan(run, True, 1.0, 3)])
    status, _, err = ithbit("compare", "--store", store)
    assert status == 2
    assert "nothing to compare" in err
    assert "`ithbit sweep paper` trains them" in err
