"""The page with weights that are NaN, infinite or too large for float32: never right."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.explorer.test_model_in_chromium import HUNT, load
from tests.explorer.test_page_in_chromium import PLACES, SAYS
from tests.support.chromium import Browser, complaints
from tests.support.damaged_weights import SPECS, damaged, drawn, every_input, plainly_right, stacked
from tests.support.made_up import entry

from ithbit.explorer.page import PageModel, write_page
from ithbit.spec import ModelSpec
from ithbit.store.records import Case

RIGHT = """data.map((each) => { const net = ithbit.read(each.model);
  const right = (row, k) => ithbit.margin(net, Array.from(row, Number), each.index[k]) > 0;
  return each.bits.map(right); })"""


def check(browser: Browser, folder: Path, specs: list[ModelSpec], every: int) -> None:
    cases = [
        (spec, (name, value), params)
        for spec in specs
        for name, value, params in [("nothing", 0.0, drawn(spec)), *list(damaged(spec))[::every]]
    ]
    examples = every_input(3, 1)
    strings = ["".join(map(str, row)) for row in examples.bits[0].tolist()]
    index = examples.index[0].tolist()
    load(
        browser,
        folder,
        [
            {"model": entry(spec, params).to_json(), "bits": strings, "index": index}
            for spec, _, params in cases
        ],
    )
    for found, (spec, what, params) in zip(browser.js(RIGHT), cases, strict=True):
        truth = plainly_right(stacked([params]), spec, examples)[0].tolist()
        assert [k for k, right in enumerate(found) if right and not truth[k]] == [], (spec, what)
        if what[0] == "nothing":
            assert found == truth  # whole weights are answered


def test_margins(browser: Browser, tmp_path: Path) -> None:
    check(browser, tmp_path, [spec for spec in SPECS if spec.task == "lhi"], every=11)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("task", ["rhi", "lhi"])
def test_margins_with_every_tensor(browser: Browser, tmp_path: Path, task, layers) -> None:
    for spec in SPECS:
        if (spec.task, spec.n_layers) == (task, layers):
            check(browser, tmp_path, [spec], every=1)


def broken(value: float) -> PageModel:
    """Right wherever the bit is 1, but for one number."""
    spec = ModelSpec("lhi", "linear-causal", 4, 2)
    params = drawn(spec)
    params["head.weight"].zero_()
    params["head.bias"].fill_(1.0)
    params["blocks.1.qkv.weight"][3, 2] = value
    made = entry(spec, params)
    return replace(made, case=Case("1111", 1, None))


@pytest.mark.parametrize("value", [math.nan, 1e38])
def test_the_search_counts_it_as_wrong(browser: Browser, tmp_path: Path, value) -> None:
    load(browser, tmp_path, broken(value).to_json())
    found = browser.js(HUNT.replace("return value;", "return {...value, least: `${value.least}`,"
                                    " found: value.found && value.found.index};"))  # fmt: skip
    assert found == {"tried": 1, "least": "-Infinity", "found": 1}


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e38])
def test_the_page_says_so(browser: Browser, tmp_path: Path, value) -> None:
    whole = broken(0.25)
    browser.open(write_page([broken(value), whole], tmp_path / "page.html"))
    browser.click("[data-preset=ones]")
    browser.wait_for(f"{PLACES}[1].includes('4 of 4 right')")  # of all ones, not as it opened
    first, second = browser.js(SAYS)
    assert "answers no finite number, wrong" in first
    assert "answers 1, right" in second
    assert ["0 of 4 right" in each for each in browser.js(PLACES)] == [True, False]
    said = browser.js("document.querySelector('article .says').textContent")
    assert "Logit not finite, margin not finite. Single precision may overflow" in said
    browser.click("article .find")
    result = "document.querySelector('article .result').textContent"
    browser.wait_for(f"{result}.includes('Found')")
    assert "Found at try 1: asked for bit 1, it answers no finite number" in browser.js(result)
    browser.click("article .recorded")
    for summary in ("article .odd summary", "article .inside > details:last-child summary"):
        browser.click(summary)
    browser.wait_for(
        "document.querySelector('article .odd').textContent.includes('16 of 16 wrong.')"
    )
    assert "NaN" not in browser.js("document.body.innerText")
    assert "Infinity" not in browser.js("document.body.innerText")
    assert complaints(browser) == []


def test_a_model_that_is_infinitely_sure_is_wrong(browser: Browser, tmp_path: Path) -> None:
    load(browser, tmp_path)
    found = [browser.js(f"ithbit.marginOf({value}, {bit}) > 0")
             for value in ("Infinity", "-Infinity", "NaN") for bit in (0, 1)]  # fmt: skip
    assert found == [False] * 6
    assert browser.js("ithbit.marginOf(2, 0)") == -2
    assert browser.js("ithbit.marginOf(2, 1)") == 2
