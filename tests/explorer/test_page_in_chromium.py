"""The page in a real Chromium: it is opened from disk, clicked, typed at, tapped and searched."""

import json
from pathlib import Path

import pytest
import torch
from tests.support.chromium import Browser, complaints
from tests.support.families import PAPER_FAMILIES
from tests.support.made_up import drawn, entry, renamed
from tests.support.paths import WEIGHTS

from ithbit.explorer.page import gather, write_page
from ithbit.loading.model import load_model
from ithbit.spec import ModelSpec

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">"
BITS = "[...document.querySelectorAll('.bit')].map(each => each.textContent).join('')"
ASKED = "document.querySelector('.asked .place').textContent"
SAYS = "[...document.querySelectorAll('#summary .says')].map(each => each.textContent)"
PLACES = "[...document.querySelectorAll('.places')].map(each => each.parentNode.textContent)"

TRIED = f"{PLACES}.every(each => each.includes('of 32 right'))"  # the last that a change sets off


def shipped(name: str) -> Path:
    (folder,) = WEIGHTS.glob(f"{name}-*")
    return folder


def requests(page: Browser) -> list[str]:
    sent = [event for event in page.events if event.get("method") == "Network.requestWillBeSent"]
    urls = [event["params"]["request"]["url"] for event in sent]
    return [url for url in urls if not url.startswith("data:")]


def press(page: Browser, key: str, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text)


REFUTED = "uniform/lhi_n32_gru_L1d16h2_polynomial_s3"
STANDS = "mixed/lhi_n32_gru_L1d16h2_polynomial_s1"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A refuted run, one that stands, and the construction."""
    made = gather([shipped(REFUTED), shipped(STANDS)])
    return write_page(made, tmp_path_factory.mktemp("explore") / "page.html")


@pytest.fixture
def page(browser: Browser, path: Path) -> Browser:
    browser.size(1400, 900)
    browser.prefer("light")
    browser.open(path)
    browser.wait_for(TRIED)
    return browser


def test_a_refuted_run_opens_on_its_counterexample(page: Browser, path: Path) -> None:
    case = json.loads(shipped(REFUTED).joinpath("verification.json").read_text())["counterexample"]
    assert (page.js(BITS), page.js(ASKED)) == (case["bits"], str(case["index"]))
    right = case["bits"][case["index"] - 1]
    wrong, *others = page.js(SAYS)
    assert f"answers {1 - int(right)}, wrong" in wrong
    assert len(others) == 2
    assert all(f"answers {right}, right" in each for each in others)
    assert "on record as a wrong answer of A" in page.js(
        "document.getElementById('note').textContent"
    )
    assert page.js("document.querySelector('article .verdict b').textContent") == "refuted"
    page.wait_for(TRIED)
    first, *rest = page.js(PLACES)
    assert f"wrong at {case['index']}" in first or f", {case['index']}" in first
    assert all("32 of 32 right" in each for each in rest)
    assert requests(page) == [path.as_uri()]
    assert complaints(page) == []


def test_a_click_on_a_bit_and_on_a_number(page: Browser) -> None:
    before = page.js(BITS)
    page.click(".cell:nth-child(3) .bit")
    assert page.js(BITS) == before[:2] + str(1 - int(before[2])) + before[3:]
    page.click(".cell:nth-child(5) .place")
    assert page.js(ASKED) == "5"
    with torch.no_grad():
        logit = float(load_model(shipped(REFUTED), "float64")(page.js(BITS), 5))
    shown = page.js("document.querySelector('article .says').textContent").replace("−", "-")
    assert f"Logit {logit:.3f}" in shown


def test_the_keyboard(page: Browser) -> None:
    before = page.js(BITS)
    page.js("document.querySelector('.bit').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        press(page, key)
    press(page, " ", " ")
    assert page.js(BITS) == before[0] + str(1 - int(before[1])) + before[2:]
    press(page, "Enter", "\r")
    assert page.js(ASKED) == "2"
    press(page, "End")
    press(page, "Enter", "\r")
    assert page.js(ASKED) == "32"
    assert page.js("document.querySelectorAll('.bit[tabindex=\"0\"]').length") == 1


def test_a_finger(page: Browser, path: Path) -> None:
    page.size(400, 800)
    page.open(path)
    before = page.js(BITS)
    x, y = page.js(
        "(() => { const box = document.querySelector('.bit').getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait_for(f"{BITS} !== {json.dumps(before)}")
    assert page.js(BITS) == str(1 - int(before[0])) + before[1:]


def test_ready_inputs_and_the_number_field(page: Browser) -> None:
    page.click("[data-preset=ones]")
    assert page.js(BITS) == "1" * 32
    page.choose("#index", "7")
    page.click("[data-preset=gap]")
    assert page.js(BITS) == "1" * 6 + "0" + "1" * 25
    page.click("[data-preset=invert]")
    assert page.js(BITS) == "0" * 6 + "1" + "0" * 25
    for nonsense in ("0", "33", "1.5", ""):
        page.choose("#index", nonsense)
        assert page.js(ASKED) == "7"
    page.click("article .recorded")
    assert "on record" in page.js("document.getElementById('note').textContent")


def test_the_button_finds_a_wrong_answer(page: Browser) -> None:
    page.click("[data-preset=ones]")
    page.wait_for(TRIED)
    page.click("article .find")
    page.wait_for("document.querySelector('.result').textContent.includes('Found at try')")
    page.wait_for(TRIED)
    assert ", wrong" in page.js(SAYS)[0]
    page.click("article:nth-child(2) .find")
    page.wait_for("document.querySelectorAll('.result')[1].textContent.includes('Tried')")
    page.click("article:nth-child(2) .find")
    assert page.js("document.querySelectorAll('.result')[1].textContent").endswith("Stopped.")


def test_the_map_of_strings_with_one_odd_bit(page: Browser) -> None:
    page.click("article .odd summary")
    captions = "[...document.querySelectorAll('.odd figcaption')].map(each => each.textContent)"
    page.wait_for(f"{captions}.filter(each => each.includes('of 1,024 wrong.')).length === 2")
    strings = torch.eye(32, dtype=torch.long).repeat_interleave(32, 0)
    index = torch.arange(1, 33).repeat(32)
    model = load_model(shipped(REFUTED), "float64")
    for caption, bits in zip(page.js(captions), (strings, 1 - strings), strict=True):
        with torch.no_grad():
            says = model(bits, index) > 0
        wrong = int((says != bits.gather(1, index[:, None] - 1)[:, 0].bool()).sum())
        assert f" {wrong} of 1,024" in caption


def test_a_picture_is_read_and_clicked(page: Browser) -> None:
    page.click("article .inside figure canvas")
    assert "number" in page.js("document.getElementById('tip').textContent")
    assert "where the answer" not in page.js("document.getElementById('watched').textContent")


def test_a_picture_out_of_view_is_drawn_when_it_is_seen(page: Browser) -> None:
    """As it would be had it been in view all the time."""
    last = "document.querySelector('article .inside > figure:last-of-type')"
    pixels = f"{last}.querySelector('canvas').toDataURL()"
    invert = "document.querySelector('[data-preset=invert]').click()"
    page.js("scrollTo(0, 0)")
    page.settled()
    before = page.js(pixels)
    page.js(invert)
    assert page.js(pixels) == before
    page.js(f"{last}.scrollIntoView()")
    page.wait_for(f"{pixels} !== {json.dumps(before)}")
    late = page.js(pixels)
    page.js(invert)
    assert page.js(pixels) == before
    page.js(invert)
    assert page.js(pixels) == late


def test_light_and_dark(page: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    pixel = "[...{}.getContext('2d').getImageData(0, 0, 32, 1).data].join()".format(
        "document.querySelector('.inside canvas')"
    )
    light, drawn_light = page.js(ground), page.js(pixel)
    page.prefer("dark")
    page.wait_for("document.documentElement.dataset.theme === 'dark'")
    dark = page.js(ground)
    assert light != dark
    assert page.js(pixel) != drawn_light
    page.click("#theme")  # light, whatever the system says
    assert (page.js(ground), page.js(pixel)) == (light, drawn_light)
    page.click("#theme")
    assert page.js(ground) == dark


def test_nothing_is_wider_than_the_window(page: Browser, path: Path) -> None:
    for width in (400, 700, 1400):
        page.size(width, 900)
        page.open(path)
        page.js("document.querySelectorAll('details').forEach(each => (each.open = true))")
        page.settled()
        assert page.js("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_every_family_is_drawn(browser: Browser, tmp_path: Path, family: str) -> None:
    """With all that can be opened open, under a hostile name."""
    spec = ModelSpec("rhi", family, 8, 2)
    path = tmp_path / "page.html"
    browser.open(write_page([renamed(entry(spec, drawn(spec)), HOSTILE)], path))
    browser.js("document.querySelectorAll('details').forEach(each => (each.open = true))")
    browser.settled()
    browser.click("[data-preset=invert]")
    assert browser.js("document.querySelector('h2').textContent") == f"A {HOSTILE}"
    assert browser.js("document.images.length") == 0
    assert browser.js("document.title").startswith("ithbit explore")
    undrawn = "[...document.querySelectorAll('figure')].filter(each => !each.innerText.trim())"
    assert browser.js(f"{undrawn}.length") == 0
    blank = (
        "[...document.querySelectorAll('.inside canvas')].filter(each => each.width > 1"
        " && new Set(new Uint32Array("
        "each.getContext('2d').getImageData(0, 0, each.width, each.height).data.buffer)).size < 2)"
    )
    assert browser.js(f"{blank}.map(each => each.ariaLabel)") == []
    assert requests(browser) == [path.as_uri()]
    assert complaints(browser) == []
