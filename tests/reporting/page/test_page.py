"""The page as text: complete, self-contained and safe. `test_page_in_chromium` uses it."""

import base64
import dataclasses
import hashlib
import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup
from tests.support.synthetic_store import HOSTILE, Plan, paper_plans, write_run, write_verification

from ithbit.published import published
from ithbit.reporting.comparison.statistics import fisher_exact, holm
from ithbit.reporting.page.page import RUN_COLUMNS, render_page, write_page
from ithbit.reporting.page.sections import report_page
from ithbit.reporting.tables.main import TABLES
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.frame import Records, load_rows


class Elements(HTMLParser):
    """Tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def mixed_page(mixed_records: Records) -> str:
    return render_page(mixed_records)


@pytest.fixture(scope="module")
def beyond_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Runs at a length that the paper does not have, all verified: two of a constructive
    configuration, and two that no total of the main table counts."""
    store = tmp_path_factory.mktemp("beyond")
    gru = ModelSpec("lhi", "gru", 128)
    twin = ModelSpec("rhi", "softmax-causal", 128)
    turned = dataclasses.replace(gru, positions="sinusoidal")
    for model, seed, solved in (
        (gru, 0, True),
        (gru, 1, False),
        (twin, 0, True),
        (turned, 0, True),
    ):
        run = RunSpec(model, seed)
        folder = write_run(store, Plan(run, solved, 1.0 if solved else 0.9, 9), with_history=False)
        write_verification(folder, run, "refuted")
    return render_page(load_rows(store))


def runs_of(page: str) -> list[dict[str, object]]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert text is not None
    data = json.loads(text[1])
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]


def test_everything_is_on_the_page(mixed_page: str, mixed_records: Records) -> None:
    ids = {attributes.get("id") for _, attributes in Elements(mixed_page).tags}
    assert {"results", "agreement", "theory", "tables", "figures", "runs", "machines"} <= ids
    assert {f"table-{name}" for name in TABLES} <= ids
    assert {f"figure-{name}" for name in ("successes", "accuracy", "epochs", "length")} <= ids
    assert "3 run folders set aside" in mixed_page
    runs = runs_of(mixed_page)
    assert len(runs) == mixed_records.rows.height
    assert list(runs[0]) == [*RUN_COLUMNS, "curve"]
    assert all(run["curve"] for run in runs)


def test_nothing_is_fetched(mixed_page: str) -> None:
    for tag, attributes in Elements(mixed_page).tags:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    style = re.search(r"<style>(.*?)</style>", mixed_page, re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_policy_names_the_one_script(mixed_page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", mixed_page, re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in mixed_page
    assert "default-src 'none'" in mixed_page


def test_text_from_records_is_escaped(mixed_page: str) -> None:
    assert HOSTILE not in mixed_page
    assert "<img" not in mixed_page
    runs = [run for run in runs_of(mixed_page) if run["error"] == HOSTILE]
    assert len(runs) == 1
    assert mixed_page.count("</script>") == 2


@pytest.mark.usefixtures("without_figures")
def test_a_store_path_is_escaped(tmp_path: Path) -> None:
    store = tmp_path / "<b>runs<b>"
    write_run(store, paper_plans()[0])
    page = render_page(load_rows(store))
    assert "<b>runs<b>" not in page
    assert "&lt;b&gt;runs&lt;b&gt;" in page


@pytest.mark.usefixtures("without_figures")
def test_what_contradicts_itself_is_named_and_neither_listed_nor_counted(tmp_path: Path) -> None:
    write_run(tmp_path, paper_plans()[0])
    folder = write_run(tmp_path, paper_plans()[1])
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(record | {"final_loss": -1.0}))
    page = render_page(load_rows(tmp_path))
    assert len(runs_of(page)) == 1
    assert "result.json has final_loss = -1.0, which is not a number from 0" in page


def test_figures_take_the_pages_colours(mixed_page: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", mixed_page, re.S)
    assert len(svgs) == 5
    for svg in svgs:
        assert "var(--ink)" in svg
        assert "#1a1b1c" not in svg


@pytest.mark.usefixtures("without_figures")
def test_a_store_of_failures_still_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "store", paper_plans()[0], "failure")
    page = render_page(load_rows(tmp_path / "store"))
    assert "no run of the store" in page
    assert "<figure" not in page
    assert "ublished" not in re.sub("<style.*?</style>|<script.*?</script>", "", page, flags=re.S)
    assert runs_of(page)[0]["status"] == "failed"


def banner(page: str) -> tuple[str, ...]:
    """The class, the headline and the sentence of the page's verdict."""
    found = re.search(r'<div class="verdict (\w+)">\s*<b>(.*?)</b>\s*<p>(.*?)</p>', page, re.S)
    assert found is not None
    return found.groups()


def test_the_banner_claims_no_more_than_was_compared(mixed_page: str, beyond_page: str) -> None:
    assert '<div class="verdict' not in beyond_page
    assert "nothing is compared with its numbers" in beyond_page
    kind, headline, sentence = banner(mixed_page)
    compared = re.search(r"none of (\d+) comparisons differs", sentence)
    assert compared is not None
    assert kind == "good"
    assert headline == (
        "✓ No evidence of a difference from the published numbers where compared: "
        f"{compared[1]} of 258"
    )


def stands(page: str) -> dict[str, list[int]]:
    """The opening table: runs, solved, refuted, not refuted, bounded (unchecked), right on all
    inputs, proved, not tried."""
    table = re.search(r'id="standing">.*?</table>', page, re.S)
    assert table is not None
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table[0])
    return {name: [int(n) for n in re.findall(r">(\d+)<", cells)] for name, cells in rows}


def test_the_page_opens_with_how_runs_stand(beyond_page: str) -> None:
    assert stands(beyond_page) == {
        "constructive": [3, 2, 2, 0, 0, 0, 0, 0],
        "constructive, sinusoidal positions": [1, 1, 1, 0, 0, 0, 0, 0],
    }
    assert beyond_page.index('id="standing"') < beyond_page.index('id="table-main"')
    for word in ("refuted", "not refuted", "bounded (unchecked)", "right on all inputs", "proved"):
        assert beyond_page.count(f"<dt>{word} ") == 1  # explained once


def test_backticks_are_code(beyond_page: str, tmp_path: Path) -> None:
    assert "`" not in "".join(re.findall(r'<ul class="notes">(.*?)</ul>', beyond_page, re.S))
    store = tmp_path / "`<b>`"
    write_run(store, paper_plans()[0], "failure")
    page = render_page(load_rows(store))
    assert "<code>&lt;b&gt;</code>" in page
    assert "see <code>ithbit status</code>" in page


def test_what_a_single_cell_can_show_is_worked_out_right(mixed_page: str) -> None:
    found = re.findall(r"0/(\d+) against 5/5 has p = ([\d.]+)", mixed_page)
    assert [runs for runs, _ in found] == ["5", "20"]
    n_cells = sum(len(row.successes) for row in published().successes)
    assert f"among the {n_cells} cells" in mixed_page
    corrected = []
    for runs, printed in found:
        least = fisher_exact((0, int(runs)), (5, 5))
        corrected.append(holm([least, *[1.0] * (n_cells - 1)])[0])
        assert f"{corrected[-1]:.2g}" == printed
    # Seven kinds of comparison share the accepted chance of a false alarm.
    assert corrected[1] <= 0.05 / 7 < corrected[0]


def test_the_tests_of_many_cells_are_on_the_page(mixed_page: str) -> None:
    assert "Hypothesis: in every cell our runs succeed with the same probability" in mixed_page
    assert re.search(r"<li>all \d+ cells with runs: \d+/\d+ solved, [\d.]+ expected", mixed_page)
    assert "<th>would differ</th>" in mixed_page


def test_a_ring_is_captioned_as_it_is_drawn(mixed_page: str) -> None:
    caption = re.search(r'id="figure-successes".*?<figcaption>(.*?)</figcaption>', mixed_page, re.S)
    assert caption is not None
    assert "A ring marks a count that, out of five, would be another one" in caption[1]


def test_the_page_is_written_and_equal_stores_give_equal_pages(
    tmp_path: Path, mixed_records: Records, mixed_page: str
) -> None:
    path = write_page(mixed_records, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == mixed_page


@pytest.mark.usefixtures("without_figures")
def test_theory_stands_beside_training(paper_records: Records) -> None:
    page = render_page(paper_records)
    rows = re.findall(r'<tr><th scope="row">(\w+)</th><th scope="row">(.*?)</th>(.*?)</tr>', page)
    cells = {
        (task, *re.findall(r">([^<>]*)</", rest)[:1], label): rest for task, label, rest in rows
    }
    possible = re.findall(r"<td[^>]*>(.*?)</td>", cells["LHI", "2", "Mamba"])
    assert possible[1].startswith("2")
    assert possible[2].startswith("possible for every n, margin ≥ 1.")
    assert possible[3:5] == ["64", "<b>4</b>/5"]
    assert possible[-1] == "4/5"  # published
    hopeless = re.findall(r"<td[^>]*>(.*?)</td>", cells["RHI", "4", "GRU"])
    assert hopeless[1] == "ω(1)"
    assert hopeless[2].startswith("not ruled out up to n = ")
    assert hopeless[4] == "<b>0</b>/5"


@pytest.mark.usefixtures("without_figures")
def test_a_longer_run_of_the_ablation_is_not_the_longest_of_its_variant(tmp_path: Path) -> None:
    learned = RunSpec(ModelSpec("lhi", "gru", 32, 1, positions="learned"), 0)
    for run in (RunSpec(ModelSpec("lhi", "gru", 8, 1), 0), learned):
        write_run(tmp_path, Plan(run, True, 1.0, 3), with_history=False)
    page = render_page(load_rows(tmp_path))
    assert '<td class="num">8</td><td class="num"><b>1</b>/1</td>' in page


def only_plain(value: object) -> bool:
    """Whether a value is data all the way down: nothing in it has to be called."""
    if dataclasses.is_dataclass(value):
        return all(only_plain(getattr(value, each.name)) for each in dataclasses.fields(value))
    if isinstance(value, tuple):
        return all(map(only_plain, value))
    return value is None or type(value) in (str, int, float, bool, Markup)


@pytest.mark.usefixtures("without_figures")
def test_the_template_gets_plain_data_alone(mixed_records: Records) -> None:
    page = report_page(mixed_records, "any")
    assert page.comparison is not None
    assert page.main_table is not None
    assert only_plain(page)
    assert not only_plain(dataclasses.replace(page, theory=(mixed_records,)))
    html = Path(inspect.getfile(report_page)).parent / "template" / "page.html"
    macros = ("row_head", "paper_table")  # the template's own
    called = re.findall(r"\b(\w+)\(", " ".join(re.findall(r"{{.*?}}|{%.*?%}", html.read_text())))
    assert set(called) <= set(macros)
