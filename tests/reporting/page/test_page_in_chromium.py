"""The page in a real Chromium: it is opened from disk, clicked, filtered, sorted and themed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.chromium import CHROMIUM, Browser, complaints
from tests.support.synthetic_store import Plan, write_run, write_verification

from ithbit.families import FAMILIES
from ithbit.published import LENGTHS
from ithbit.reporting.page.page import write_page
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import Records, load_rows

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian's package chromium)"
)

ROWS = "document.querySelectorAll('#run-table tr.run').length"
COUNT = "document.getElementById('count').textContent"


def column(number: int) -> str:
    """Script for the texts of a column of the list, counted from one."""
    return (
        "[...document.querySelectorAll('#run-table tr.run')]"
        f".map(row => row.children[{number - 1}].textContent)"
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, mixed_records: Records) -> Path:
    return write_page(mixed_records, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def wide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a store whose runs fill every column of the list and of the accuracy table."""
    store = tmp_path_factory.mktemp("wide")
    for n_bits in LENGTHS:
        for seed, verdict in enumerate(("right on all inputs", "refuted")):
            run = RunSpec(ModelSpec("rhi", "softmax-causal", n_bits), seed)
            folder = write_run(store, Plan(run, True, 1.0, 400, 123456), with_history=False)
            write_verification(folder, run, verdict)
    return write_page(load_rows(store), store / "report.html")


@pytest.fixture
def page(browser: Browser, path: Path) -> Browser:
    browser.size(1280, 900)
    browser.prefer("light")
    browser.open(path)
    browser.js("localStorage.clear()")
    browser.open(path)
    return browser


def test_it_opens_without_a_complaint_or_a_request(page: Browser, path: Path) -> None:
    page.settled()
    urls = [
        event["params"]["request"]["url"]
        for event in page.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert [url for url in urls if not url.startswith("data:")] == [path.as_uri()]
    assert complaints(page) == []
    assert page.js("document.querySelectorAll('figure svg').length") == 5


def test_hostile_text_stays_text(page: Browser) -> None:
    page.type("#filters [name=text]", "onerror")
    assert page.js(ROWS) == 1
    page.click("#run-table tr.run")
    assert "<img src=x" in page.js("document.querySelector('.detail .failed').textContent")
    page.settled()
    assert page.js("document.title").startswith("ithbit report")
    assert page.js("document.images.length") == 0
    assert complaints(page) == []


def test_a_click_opens_a_run_and_draws_its_curve(page: Browser) -> None:
    assert page.js("document.querySelectorAll('.detail').length") == 0
    page.click("#run-table tr.run:nth-child(2)")
    assert page.js("document.querySelectorAll('.detail svg').length") == 2
    points = page.js("document.querySelector('.detail polyline').getAttribute('points')")
    assert len(points.split()) > 5
    assert "NaN" not in points
    page.click("#run-table tr.run.open")
    assert page.js("document.querySelectorAll('.detail').length") == 0


def test_the_keyboard_opens_a_run_too(page: Browser) -> None:
    page.js("document.querySelector('#run-table tr.run').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r")
    assert page.js("document.querySelectorAll('.detail').length") == 1


def test_filters_narrow_the_list(page: Browser) -> None:
    everything = page.js(ROWS)
    page.choose("#filters [name=family]", "gru")
    page.choose("#filters [name=n_bits]", "64")
    assert 0 < page.js(ROWS) < everything
    assert set(page.js(column(2))) == {"GRU"}
    assert set(page.js(column(4))) == {"64"}
    assert page.js(COUNT).startswith(f"{page.js(ROWS)} of {everything} runs")
    page.click("#filters button[type=reset]")
    page.settled()
    assert page.js(ROWS) == everything


def test_few_runs_are_drawn_together(page: Browser) -> None:
    page.choose("#filters [name=task]", "lhi")
    page.choose("#filters [name=family]", "gru")
    page.choose("#filters [name=n_bits]", "8")
    runs = page.js(ROWS)
    assert runs == 5
    assert page.js("document.querySelectorAll('#overlay svg:first-child polyline').length") == runs


def test_a_head_sorts_and_turns_round(page: Browser) -> None:
    accuracy = 9
    page.click("#run-table [data-sort=max_accuracy]")
    values = [float(text) for text in page.js(column(accuracy)) if text != "–"]
    assert values == sorted(values)
    assert values[0] < values[-1]
    page.click("#run-table [data-sort=max_accuracy]")
    texts = page.js(column(accuracy))
    values = [float(text) for text in texts if text != "–"]
    assert values == sorted(values, reverse=True)
    assert texts[-1] == "–"  # a run without the number stands last either way
    assert page.js("document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == (
        "descending"
    )


def test_numbers_sort_as_numbers(page: Browser) -> None:
    page.click("#run-table [data-sort=n_bits]")
    lengths = [int(text) for text in page.js(column(4))]
    assert lengths == sorted(lengths)
    assert set(lengths) == {8, 64}


def test_a_cell_of_a_table_lists_its_runs(page: Browser) -> None:
    cell = '#table-main td[data-look-up*=\'"lhi"\'][data-look-up*=\'"gru"\'][data-look-up*=" 64"]'
    page.click(cell)
    page.settled()
    assert page.js(ROWS) == 5
    assert set(page.js(column(1))) == {"LHI"}
    assert set(page.js(column(4))) == {"64"}


def test_the_switch_shows_the_published_numbers(page: Browser) -> None:
    def visible(kind: str) -> bool:
        return page.js(
            f"getComputedStyle(document.querySelector('#table-main .{kind}')).display !== 'none'"
        )

    assert (visible("ours"), visible("pub")) == (True, False)
    page.click(".switch [data-show=published]")
    assert (visible("ours"), visible("pub")) == (False, True)
    page.click(".switch [data-show=both]")
    assert (visible("ours"), visible("pub")) == (True, True)
    assert "published" in page.js("document.querySelector('#table-main td').title")


def test_light_and_dark(page: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.js(ground)
    page.prefer("dark")
    page.wait_for("document.documentElement.dataset.theme === 'dark'")
    dark = page.js(ground)
    assert light != dark
    page.click("#theme")  # light, whatever the system says
    assert page.js(ground) == light
    page.click("#theme")
    assert page.js(ground) == dark
    page.prefer("light")
    page.settled()
    assert page.js(ground) == dark


def test_no_part_is_wider_than_a_phone(page: Browser, path: Path) -> None:
    for width in (390, 1280):
        page.size(width, 844)
        page.open(path)
        page.click("#run-table tr.run")
        assert page.js("document.documentElement.scrollWidth") == width


def test_every_column_is_seen_where_there_is_room(browser: Browser, wide_path: Path) -> None:
    browser.size(1400, 900)
    browser.open(wide_path)
    browser.click(".switch [data-show=both]")
    hidden = browser.js(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => e.closest('[id]').id)"
    )
    assert hidden == []


def test_the_switch_shows_verdicts_with_our_numbers_alone(
    browser: Browser, wide_path: Path
) -> None:
    browser.open(wide_path)

    def visible(column: int) -> list[str]:
        row = "#table-accuracy tr:has([data-look-up*=softmax-causal])"
        return browser.js(
            f"[...document.querySelectorAll('{row} td:nth-of-type({column}) span')]"
            ".filter(span => getComputedStyle(span).display !== 'none').map(span => span.className)"
        )

    assert set(visible(1)) == {"ours", "marks"}
    browser.click(".switch [data-show=both]")
    assert set(visible(1)) == {"ours", "pub", "marks"}
    browser.click(".switch [data-show=published]")
    assert set(visible(1)) == {"pub"}


@pytest.mark.parametrize(("epochs", "ticks"), [(1, ["0", "1"]), (5, ["0", "3", "5"])])
def test_ticks_stand_at_whole_epochs(
    browser: Browser, tmp_path: Path, epochs: int, ticks: list[str]
) -> None:
    run = RunSpec(ModelSpec("lhi", "gru", 8), 0)
    write_run(tmp_path, Plan(run, True, 1.0, epochs))
    browser.open(write_page(load_rows(tmp_path), tmp_path / "report.html"))
    browser.click("#run-table tr.run")
    found = browser.js(
        "[...document.querySelectorAll('.detail svg:first-of-type .tick')]"
        ".map(t => [t.textContent, Number(t.getAttribute('x'))])"
    )
    assert [text for text, _ in found] == ticks
    # A tick stands where a point of its epoch does.
    points = browser.js("document.querySelector('.detail polyline').getAttribute('points')")
    places = [float(point.split(",")[0]) for point in points.split()]
    assert found[-1][1] == pytest.approx(places[-1], abs=0.1)
    at = dict(zip(range(1, epochs + 1), places, strict=True))
    assert all(abs(x - at[int(text)]) < 0.1 for text, x in found[1:])


def test_curves_of_unlike_runs_are_told_apart_on_the_page(browser: Browser, tmp_path: Path) -> None:
    for width in (8, 16, 32):
        write_run(
            tmp_path, Plan(RunSpec(ModelSpec("lhi", "gru", 8, d_model=width), 0), True, 1.0, 4)
        )
    browser.open(write_page(load_rows(tmp_path), tmp_path / "report.html"))
    named = browser.js(
        "[...document.querySelectorAll('#overlay .key > span')].map(e => e.innerText)"
    )
    assert named == ["GRU", "GRU, d = 8", "GRU, d = 32"]

    def looks(of: str) -> list[list[str]]:
        return browser.js(
            f"[...document.querySelectorAll('#overlay {of}')]"
            ".map(e => [e.getAttribute('stroke'), e.getAttribute('stroke-dasharray')])"
        )

    # A colour is a family's, in the key and the curves as in the list; a dash is its settings'.
    drawn = looks(".key line")
    assert looks("svg:not(.line):nth-of-type(1) polyline") == drawn
    assert len({dash for _, dash in drawn}) == 3
    assert {colour for colour, _ in drawn} == {FAMILIES["gru"].colour}
    dots = browser.js(
        "[...document.querySelectorAll('#run-table .dot')].map(e => e.style.background)"
    )
    red, green, blue = (int(FAMILIES["gru"].colour[at : at + 2], 16) for at in (1, 3, 5))
    assert set(dots) == {f"rgb({red}, {green}, {blue})"}
    browser.click("#table-main td[data-look-up*='d = 32']")
    browser.settled()
    assert browser.js(ROWS) == 1


def test_long_labels_leave_the_numbers_in_sight(browser: Browser, tmp_path: Path) -> None:
    name = "layers.py:AVeryLongNameOfALayerThatKeepsWhatItHasReadInAStateOfManyNumbers"
    model = ModelSpec("lhi", name, 8, code="a" * 12)
    far = Protocol(max_epochs=50, learning_rate=0.00025, epoch_examples=20000, examples="mixed")
    for protocol in (Protocol(), far):
        write_run(tmp_path, Plan(RunSpec(model, 0, protocol), True, 1.0, 4))
    browser.size(800, 900)
    browser.open(write_page(load_rows(tmp_path), tmp_path / "report.html"))
    ends = browser.js(
        "[...document.querySelectorAll('#table-main td')].filter(e => e.offsetWidth)"
        ".map(e => e.getBoundingClientRect().right)"
    )
    browser.size(1280, 900)
    assert ends
    assert max(ends) < 800
