"""A store of one's own: its results come first, and unlike runs are never pooled."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tests.support.paths import TESTS
from tests.support.synthetic_store import Plan, write_run, write_store

import ithbit
from ithbit.errors import StoreError
from ithbit.published import Variant
from ithbit.reporting.cells import Cell, Cells, gather
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.differences import settings_text, split_shared_and_distinct
from ithbit.reporting.figures import FIGURES, draw, figure_or_none, for_page
from ithbit.reporting.figures.curves import curves_figure
from ithbit.reporting.page.page import render_page
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.render import FORMATS
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import Records, load_rows

SOFTMAX = ModelSpec("lhi", "softmax-full", 8, 2)
V0_1 = TESTS / "stores" / "v0_1"
# What differs, and what the paper's own value is called beside it.
UNLIKE: dict[str, tuple[dict[str, Any], str, str]] = {
    "width": ({"d_model": 8}, "d = 8", "d = 16"),
    "heads": ({"n_heads": 4}, "heads = 4", "heads = 2"),
    "ff": ({"d_ff": 8}, "ff = 8", "ff = 64"),
    "lr": ({"learning_rate": 0.003}, "lr = 0.003", "lr = 0.001"),
    "examples": ({"examples": "mixed"}, "mixed examples", "uniform examples"),
    "positions": ({"positions": "learned"}, "learned positions", "polynomial positions"),
}


def changed(by: dict[str, Any], protocol: Protocol = Protocol()) -> list[Plan]:
    """Two seeds, both solved, of a run that is changed in this."""
    of_model = {name: value for name, value in by.items() if name in asdict(SOFTMAX)}
    rest = replace(protocol, **{n: value for n, value in by.items() if n not in of_model})
    runs = [RunSpec(replace(SOFTMAX, **of_model), seed, rest) for seed in (0, 1)]
    return [Plan(run, True, 1.0, 3) for run in runs]


def words(figure: Figure) -> str:
    found = figure.findobj(lambda each: hasattr(each, "get_text"))
    return " | ".join(text.get_text() for text in found)


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Two seeds as the paper has them, one solved, and of each kind of change both."""
    plans = [
        replace(plan, solved=bool(at), accuracy=0.8 + at / 5) for at, plan in enumerate(changed({}))
    ]
    plans += [plan for by, _, _ in UNLIKE.values() for plan in changed(by)]
    return load_rows(write_store(tmp_path_factory.mktemp("unlike"), plans))


def test_tables_and_comparison_never_pool(every_kind: Records) -> None:
    cells = gather(every_kind)
    main = {row.labels[1]: row.values for row in TABLES["main"](cells).rows if row.has_ours}
    assert main["Full softmax"][0].ours == "1/2*"
    for _, label, _ in UNLIKE.values():
        assert main[f"Full softmax, {label}"][0].ours == "2/2"
        for name in TABLES.keys() - {"positions"}:
            assert label in " ".join(FORMATS["csv"](TABLES[name](cells), "ours").split())
    (cell,) = [c for c in compare(cells).kinds[0].comparisons if c.verdict != "missing"]
    assert (cell.ours, len(cell.runs)) == ("1/2", 2)


def test_figures_and_curves_name_the_difference(every_kind: Records) -> None:
    cells = gather(every_kind)
    shown = {name: words(figure) for name in FIGURES if (figure := figure_or_none(name, cells))}
    assert set(shown) == {"successes", "accuracy", "epochs", "length"}
    softmax = Variant("lhi", "softmax-full", 2)
    curves = curves_figure(every_kind, Cell(softmax, 8))
    lines = [line for line in curves.axes[0].get_lines() if line.get_label()[0] != "_"]
    assert len({str(line.get_color()) for line in lines}) == len(lines) == len(UNLIKE)
    for kind, (_, label, _) in UNLIKE.items():
        assert all(label in text for text in shown.values())
        assert label in words(curves) or kind == "positions"  # which has curves of its own
    learned = words(curves_figure(every_kind, Cell(softmax, 8, "learned")))
    assert "learned positions" in learned


@pytest.mark.usefixtures("without_figures")
def test_the_page_never_pools(every_kind: Records) -> None:
    page = render_page(every_kind)
    for _, label, _ in UNLIKE.values():
        assert f"constructive, {label}</th><td" in page
        # The paper's p-value is no other row's.
        row = page.split(f"Full softmax, {label}</th>")[1].split("</tr>")[0]
        assert "2/2" in row
        assert "p = " not in row
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    at = data["columns"].index("settings")
    assert {row[at] for row in data["rows"]} == {
        "paper",
        *(label for _, label, _ in UNLIKE.values()),
    }


@pytest.mark.parametrize("kind", UNLIKE)
def test_without_the_papers_settings_both_values_are_named(tmp_path: Path, kind: str) -> None:
    by, label, usual = UNLIKE[kind]
    short = Protocol(max_epochs=3)
    plans = [*changed({}, short), *changed(by, short)]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    table = TABLES["main"](cells)
    labels = {row.labels[1] for row in table.rows}
    assert labels == {f"Full softmax, {label}", f"Full softmax, {usual}"}
    assert "all runs differ from the paper's settings in: epochs = 3" in table.notes
    assert not compare(cells).n_compared


def test_a_page_of_ones_own_has_ones_own_numbers_alone(tmp_path: Path) -> None:
    plans = [
        Plan(
            RunSpec(ModelSpec("rhi", "gru", 4, d_model=width), seed, Protocol(max_epochs=6)),
            True,
            1,
            3,
        )
        for width in (8, 16)
        for seed in (0, 1)
    ]
    page = render_page(load_rows(write_store(tmp_path, plans)))
    text = re.sub("<style.*?</style>|<script.*?</script>", "", page, flags=re.S)
    assert "Agree" not in text
    assert "nothing is compared with its numbers" in text
    assert "ublished" not in text
    assert text.count("all runs: epochs = 6") == 4  # in every figure
    assert text.index("stress test, d = 8</th>") < text.index('id="table-main"')
    assert 'class="switch"' not in text
    # Every figure has runs, at the lengths that were trained.
    assert re.findall(r'<figure id="figure-(\w+)"', text) == [
        "successes",
        "accuracy",
        "epochs",
        "length",
    ]
    assert "n=8" not in text
    assert "2/2" in text.split('id="figure-successes"')[1].split("</figure>")[0]


@pytest.mark.usefixtures("without_figures")
def test_too_few_runs_to_judge_are_no_agreement(tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", 64, positions="learned"), 0)
    page = render_page(load_rows(write_store(tmp_path, [Plan(run, True, 1.0, 9)])))
    assert "Agrees" not in page
    assert "1 has too few runs to judge" in page


def test_runs_of_a_few_of_the_papers_cells_stand_without_the_rest(tmp_path: Path) -> None:
    plans = [Plan(RunSpec(ModelSpec("lhi", "gru", 8), seed), True, 1.0, 30) for seed in range(5)]
    cells = gather(load_rows(write_store(tmp_path, plans)))
    table = TABLES["main"](cells)
    ours = FORMATS["csv"](table, "ours").splitlines()
    assert ours[:2] == ["Task,Model family,L,Thm.,n=8", "LHI,GRU,1,✓,5/5"]
    assert len(ours) == 3  # and the total
    assert len(FORMATS["csv"](table, "both").splitlines()) == 1 + 23 + 2
    figure = draw("successes", cells)
    assert len(figure.axes) == 1
    assert "Mamba" not in words(figure)
    assert "Mamba" not in words(draw("accuracy", cells))
    # Epochs and sizes are published at n = 64 alone.
    assert TABLES["cost"](cells).title.startswith("Size, training length and time at n = 8")


def test_a_figure_that_none_of_the_runs_belongs_in_is_refused(tmp_path: Path) -> None:
    plans = [Plan(RunSpec(ModelSpec("lhi", "gru", 8), 0), True, 1.0, 30)]
    cells = gather(load_rows(write_store(tmp_path, plans)))
    for each in (cells, Cells()):  # published numbers are never drawn alone
        with pytest.raises(StoreError, match="no finished run of the store belongs in the figure"):
            draw("positions", each)
    assert "No finished run of the store belongs in this table" in FORMATS["text"](
        TABLES["positions"](cells), "ours"
    )


def test_shared_and_distinct_settings() -> None:
    wide, batch, mixed = ("d_model", 8), ("batch_size", 64), ("examples", "mixed")
    assert split_shared_and_distinct([(), (wide,)]) == ((), {(): (), (wide,): (wide,)})
    shared, distinct = split_shared_and_distinct([(wide, batch), (batch, mixed)])
    assert settings_text(shared) == "batch = 64"
    named = [settings_text(each) for each in distinct.values()]
    assert named == ["d = 8, uniform examples", "d = 16, mixed examples"]


@pytest.mark.usefixtures("without_figures")
def test_words_are_explained_where_they_are_met(tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "mamba2", 8, 2), 0)
    records = load_rows(write_store(tmp_path, [Plan(run, True, 1.0, 9)]))
    text = " ".join(FORMATS["text"](TABLES["main"](gather(records)), "ours").split())
    page = render_page(records)
    for said in (text, page):
        assert "theorems give a small solution" in said
        assert "most say that there is none once n is large" in said
        assert "mamba2" in said
        assert "ssm" in said
    assert "numbers of the paper" in page
    assert "tab:" not in re.sub("<script.*?</script>", "", page, flags=re.S)


def test_curves_have_ticks_at_whole_epochs(tmp_path: Path) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", 8), 0)
    records = load_rows(write_store(tmp_path, [Plan(run, True, 1.0, 2)]))
    figure = curves_figure(records, Cell(Variant("lhi", "gru", 1), 8))
    for_page(figure, "curves")
    for axes in figure.axes:
        assert all(tick == int(tick) for tick in axes.get_xticks())
    panel = draw("epochs", gather(records)).axes[0]
    assert all(tick == int(tick) for tick in panel.get_yticks())


def test_a_store_of_probes_alone_has_a_page_and_one_of_nothing_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(V0_1 / "probe", tmp_path / "store" / "probe")
    report = next((tmp_path / "store").glob("probe/LoopCell-*/report.json"))
    data = json.loads(report.read_text())
    data["causal_rank"]["singular_values"] = [1e12, 3e11, 0.5]
    report.write_text(json.dumps(data))
    page = ithbit.report(tmp_path / "store", out=tmp_path / "page.html").read_text()
    assert "LoopCell</span> width 8" in page
    probed = page.split('id="probed"')[1].split("</section>")[0]
    assert probed.count("<svg") == 5
    assert probed.count("Singular values at k") == 1  # what 0.1 left has none
    assert "epochs = 12" in probed  # probes of one layer are distinguished
    assert "ublished" not in re.sub("<style.*?</style>|<script.*?</script>", "", page, flags=re.S)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no runs; start some with `ithbit sweep`"):
        ithbit.report(tmp_path / "empty", out=tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_unfinished_runs_alone_have_a_page(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(RunSpec(ModelSpec("lhi", "gru", 8), 0), True, 1.0, 30), "spec")
    page = render_page(load_rows(tmp_path))
    assert "1 unfinished" in page
    assert "No run to show" in page
