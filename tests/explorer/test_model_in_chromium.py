"""The models in JavaScript give PyTorch's numbers: logits, streams and attention maps."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.chromium import Browser
from tests.support.made_up import drawn, entry, in_torch, inputs, streams
from tests.support.paths import WEIGHTS

from ithbit.explorer.page import HOME, PageModel, construction, of_run, of_solution
from ithbit.families import FAMILIES
from ithbit.html import safe_json, template_part
from ithbit.loading.model import TrainedModel, load_model
from ithbit.spec import ModelSpec
from ithbit.tasks.structured import plain_strings
from ithbit.theory.constructions import TRAINED

# Both compute in float64: rounding gives 1e-11, while a wrong constant or a step in float32 gives
# more than this. What is promised is 1e-5.
TOLERANCE = 1e-7
Case = tuple[PageModel, TrainedModel]


def depths(n_bits: int) -> list[Case]:
    """Every family with one to four layers; the tasks in turn."""
    specs = [
        ModelSpec("rhi" if (layers + at) % 2 else "lhi", family, n_bits, layers)
        for at, family in enumerate(FAMILIES)
        for layers in (1, 2, 3, 4)
    ]
    return [(entry(spec, params := drawn(spec)), in_torch(spec, params)) for spec in specs]


def positions() -> list[Case]:
    kinds = [("gru", "none"), ("linear-full", "learned"), ("mamba2", "sinusoidal")]
    kinds += [("softmax-causal", "rotary"), ("softmax-full", "rotary")]
    found = []
    for family, kind in kinds:
        spec = ModelSpec("lhi", family, 8, 2, positions=kind)
        params = drawn(spec)
        # A table of twice the length, as it is trained; the page reads the first half.
        found.append((entry(spec, params), in_torch(spec, params)))
    return found


def constructions(n_bits: int) -> list[Case]:
    found = []
    for each in TRAINED:
        solution = construction(ModelSpec(each.task, each.family, n_bits, each.depth))
        assert solution is not None
        model = load_model(solution, "float64", library=False)
        found.append((of_solution(solution), model))
    return found


def shipped(n_bits: int, library: bool) -> list[Case]:
    folders = sorted(WEIGHTS.glob(f"uniform/*_n{n_bits}_*_s4-*"))
    assert len(folders) == 8
    return [(of_run(folder), load_model(folder, "float64", library=library)) for folder in folders]


def load(browser: Browser, folder: Path, data: object = None) -> None:
    """Open a page that has the page's own scripts for computing, and the data."""
    script = "\n".join(template_part(HOME, name) for name in ("model.js", "search.js"))
    text = f"<!doctype html><script>{script}\nconst data = {safe_json(data)};</script>"
    path = folder / "models.html"
    path.write_text(text, encoding="utf-8")
    browser.open(path)


def assert_same_logits(browser: Browser, folder: Path, cases: list[Case], count: int) -> None:
    asked = [inputs(made.spec.n_bits, count) for made, _ in cases]
    strings = [["".join(map(str, row)) for row in bits.tolist()] for bits, _ in asked]
    load(
        browser,
        folder,
        [
            {"model": made.to_json(), "bits": bits, "index": index.tolist()}
            for (made, _), bits, (_, index) in zip(cases, strings, asked, strict=True)
        ],
    )
    for at, ((made, model), (bits, index)) in enumerate(zip(cases, asked, strict=True)):
        with torch.no_grad():
            parts = zip(bits.split(200), index.split(200), strict=True)
            wanted = torch.cat([model(*part) for part in parts])
        found = browser.js(
            f"(({{model, bits, index}}) => {{ const net = ithbit.read(model); return bits.map("
            f"(row, k) => ithbit.logit(net, Array.from(row, Number), index[k])); }})(data[{at}])"
        )
        assert wanted.std() > 1e-3, "the inputs must make a difference"
        np.testing.assert_allclose(
            found, wanted.numpy(), rtol=0, atol=TOLERANCE, err_msg=str(made.spec)
        )


@pytest.mark.parametrize("n_bits", [8, 64])
def test_logits_of_every_family_and_depth(browser: Browser, tmp_path: Path, n_bits: int) -> None:
    assert_same_logits(browser, tmp_path, depths(n_bits), 24)


def test_logits_with_other_positions(browser: Browser, tmp_path: Path) -> None:
    assert_same_logits(browser, tmp_path, positions(), 24)


@pytest.mark.parametrize("n_bits", [8, 64])
def test_logits_of_constructions(browser: Browser, tmp_path: Path, n_bits: int) -> None:
    assert_same_logits(browser, tmp_path, constructions(n_bits), 24)


def test_logits_of_shipped_runs(browser: Browser, tmp_path: Path) -> None:
    assert_same_logits(browser, tmp_path, shipped(64, library=False), 24)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["depths", "constructions", "shipped"])
@pytest.mark.parametrize("n_bits", [8, 64])
def test_logits_on_two_thousand_inputs(
    browser: Browser, tmp_path: Path, what: str, n_bits: int
) -> None:
    if what == "shipped":  # the libraries' own modules: BERT, nn.GRU, Mamba2
        cases = shipped(n_bits, library=True) if n_bits == 64 else shipped(16, library=True)
    else:
        cases = depths(n_bits) if what == "depths" else constructions(n_bits)
    for case in cases:
        assert_same_logits(browser, tmp_path, [case], 2000)


@pytest.fixture(scope="module")
def traced() -> list[Case]:
    return [case for case in depths(8) if case[0].spec.n_layers == 2]


def test_streams_and_maps(browser: Browser, tmp_path: Path, traced: list[Case]) -> None:
    bits, index = "01101110", 3
    load(browser, tmp_path, [made.to_json() for made, _ in traced])
    for at, (made, model) in enumerate(traced):
        found = browser.js(
            f"(() => {{ const net = ithbit.read(data[{at}]), bits = Array.from({bits!r}, Number);"
            f" const trace = ithbit.explain(net, bits, {index});"
            " return {stream: trace.stream.map(x => [...x]),"
            " maps: trace.maps.map(m => [...m.data]),"
            f" both: [trace.logit, ithbit.logit(net, bits, {index})],"
            " rows: trace.rows.map(r => [r.name, r.data.length / r.width])}; })()"
        )
        wanted = [x.flatten().tolist() for x in streams(model, bits, index)]
        np.testing.assert_allclose(found["stream"], wanted, rtol=0, atol=TOLERANCE)
        # The last block at all tokens, and at the last alone.
        assert math.isclose(*found["both"], rel_tol=0, abs_tol=1e-12)
        tokens = 9 if made.spec.task == "rhi" else 10
        assert {rows for _, rows in found["rows"]} == {tokens}
        if FAMILIES[made.spec.family].attention:
            maps = model.attention(bits, index).flatten(0, 1).flatten(1)
            np.testing.assert_allclose(found["maps"], maps.numpy(), rtol=0, atol=TOLERANCE)


def test_the_map_of_a_state_space_is_its_recurrence(browser: Browser, tmp_path: Path) -> None:
    """At every token: state times C from the rows, and the map times the inputs, are the same."""
    spec = ModelSpec("rhi", "mamba2", 8, 1)
    load(browser, tmp_path, entry(spec, drawn(spec)).to_json())
    found = browser.js(
        "(() => { const net = ithbit.read(data), trace = ithbit.explain(net, [0,1,1,0,1,1,1,0], 3);"
        " const rows = Object.fromEntries(trace.rows.map(r => [r.name, [...r.data]]));"
        " return {rows, maps: trace.maps.map(m => [...m.data])}; })()"
    )
    d, n, size = spec.d_model, spec.d_state, spec.d_head
    mixed = np.array(found["rows"]["inputs, B and C"]).reshape(9, d + 2 * n)
    state = np.array(found["rows"]["state"]).reshape(9, d, n)
    read = np.einsum("tcn,tn->tc", state, mixed[:, d + n :])
    for head, values in enumerate(found["maps"]):
        own = slice(head * size, (head + 1) * size)
        taken = np.array(values).reshape(9, 9) @ mixed[:, :d][:, own]
        np.testing.assert_allclose(taken, read[:, own], rtol=0, atol=1e-10)


def test_erf(browser: Browser, tmp_path: Path) -> None:
    load(browser, tmp_path)
    places = np.linspace(-7, 7, 4001).tolist()
    found = browser.js(f"{json.dumps(places)}.map(ithbit.erf)")
    np.testing.assert_allclose(found, [math.erf(x) for x in places], rtol=0, atol=1e-11)


@pytest.mark.parametrize("n_bits", [1, 2, 9, 32])
def test_plain_strings_are_those_of_verify(browser: Browser, tmp_path: Path, n_bits: int) -> None:
    load(browser, tmp_path)
    assert browser.js(f"hunting.plainStrings({n_bits})") == plain_strings(n_bits).tolist()


HUNT = """(() => { const net = ithbit.read(data), n = data.spec.n;
  let seed = 1; const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const going = hunting.hunt(net, ithbit.margin, n, random);
  for (;;) { const {value, done} = going.next(); if (done) return value; } })()"""


def test_the_hunt_finds_a_wrong_answer_and_only_a_real_one(
    browser: Browser, tmp_path: Path
) -> None:
    (folder,) = WEIGHTS.glob("uniform/lhi_n32_gru_*_s3-*")
    load(browser, tmp_path, of_run(folder).to_json())
    found = browser.js(HUNT)["found"]
    bits, index = "".join(map(str, found["bits"])), found["index"]
    with torch.no_grad():
        logit = float(load_model(folder, "float64")(bits, index))
    margin = logit if bits[index - 1] == "1" else -logit
    assert margin < 0
    assert math.isclose(margin, found["margin"], abs_tol=TOLERANCE)


def test_the_hunt_ends_where_there_is_nothing_to_find(browser: Browser, tmp_path: Path) -> None:
    solution = construction(ModelSpec("rhi", "softmax-full", 4))
    assert solution is not None
    load(browser, tmp_path, of_solution(solution).to_json())
    ended = browser.js(HUNT)
    assert ended["found"] is None
    assert ended["least"] > 1.9
    assert ended["tried"] > 4 * len(plain_strings(4))


def test_the_hunt_descends_where_plain_strings_are_right(browser: Browser, tmp_path: Path) -> None:
    """A margin that is wrong at one string alone, and falls on the way to it."""
    load(browser, tmp_path)
    found = browser.js(
        "(() => { const hidden = [1,1,0,1,0,0,0,1,1,0,1,1]; let most = 0;"
        " const margin = (_, bits) => bits.filter((bit, at) => bit !== hidden[at]).length - 0.5;"
        " const going = hunting.hunt(null, margin, 12);"
        " for (;;) { const {value, done} = going.next(); if (done) return value; } })()"
    )
    assert found["found"]["bits"] == [1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1]


def test_the_comparison_can_fail(browser: Browser, tmp_path: Path) -> None:
    made, model = depths(8)[0]
    other = {name: value * 1.00001 for name, value in made.weights.items()}
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same_logits(browser, tmp_path, [(replace(made, weights=other), model)], 4)
