"""Every text of a figure lies inside it and over no other, however long labels are; and a family
has one colour in every figure and on the page."""

import itertools
import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.support.paths import RESULTS
from tests.support.synthetic_store import Plan, write_run, write_store

from ithbit.families import FAMILIES
from ithbit.published import Variant
from ithbit.reporting.cells import Cell, gather
from ithbit.reporting.figures import FIGURES, draw, figure_or_none
from ithbit.reporting.figures.curves import curves_figure
from ithbit.reporting.figures.style import looks
from ithbit.reporting.figures.texts import wrapped
from ithbit.reporting.page.page import render_page
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import Records, load_rows

LONG = "layers.py:AVeryLongNameOfALayerThatKeepsWhatItHasReadInAStateOfManyNumbers"
MINE = "layers.py:Mine"
FAR = Protocol(max_epochs=50, learning_rate=0.00025, epoch_examples=20000, examples="mixed")


def plans(models: list[ModelSpec], *protocols: Protocol) -> list[Plan]:
    runs = [RunSpec(m, seed, p) for m in models for p in protocols for seed in (0, 1)]
    return [Plan(run, run.seed == 0, 1.0 if run.seed == 0 else 0.8, 20) for run in runs]


def readme_plans() -> list[Plan]:
    """As the README's commands leave them: all settings differ from the paper's, each otherwise."""
    families = [("rhi", "softmax-full", 1), ("rhi", "linear-full", 2), ("lhi", "gru", 1)]
    families += [("lhi", f, 2) for f in FAMILIES if f != "gru"]
    short, eight = Protocol(max_epochs=6), ModelSpec("rhi", "softmax-full", 8)
    smoke = Protocol(max_epochs=6, epoch_examples=20000)
    return [
        *plans([ModelSpec(task, family, 4, depth) for task, family, depth in families], smoke),
        *plans([eight], short, Protocol(max_epochs=10)),
        *plans([ModelSpec("rhi", MINE, 4, code="c" * 12)], Protocol(max_epochs=2)),
    ]


def long_plans() -> list[Plan]:
    """Long names beside short ones, each with the paper's settings and far from them."""
    own = [(LONG, "a" * 12), (LONG, "b" * 12), (MINE, "c" * 12)]
    models = [ModelSpec("lhi", f, n, 1, code=code) for f, code in own for n in (8, 32)]
    models += [ModelSpec("rhi", LONG, 8, 3, d_model=32, code="a" * 12)]
    models += [ModelSpec("lhi", "softmax-causal", n, 2) for n in (8, 32)]
    return plans(models, Protocol(), FAR)


def one_family() -> list[Plan]:
    """One family in settings that share much, at lengths close to each other."""
    shared = {"max_epochs": 50, "epoch_examples": 20000, "batch_size": 32}
    protocols = [Protocol(learning_rate=lr, **shared) for lr in (0.003, 0.01)]
    return plans([ModelSpec("lhi", "gru", n) for n in (8, 16, 20, 22, 23, 1024)], *protocols)


STORES = {"readme": readme_plans, "long": long_plans, "one family": one_family}


@pytest.fixture(scope="module", params=[*STORES, "paper"])
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Records:
    if request.param == "paper":
        return load_rows(RESULTS / "paper")
    return load_rows(write_store(tmp_path_factory.mktemp("store"), STORES[request.param]()))


def texts(figure: Figure) -> list[Text]:
    """All texts that are seen, after drawing."""
    figure.draw_without_rendering()
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [*axes.texts, *(axes.title, axes._left_title)]
        if axes.axison:
            found += [axes.xaxis.label, axes.yaxis.label]
            for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                ticks = [t for t in axis.get_major_ticks() if min(low, high) <= t.get_loc()]
                found += [t.label1 for t in ticks if t.get_loc() <= max(low, high)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def check_texts(figure: Figure) -> None:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    assert len(boxes) > 5
    whole = figure.bbox.padded(1)
    outside = [
        text
        for text, box in boxes
        if not (whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1))
    ]
    assert not outside
    # Lines that follow each other may touch: what is compared is a little smaller.
    slim = [(text, box.padded(-1)) for text, box in boxes]
    over = [(a[0], b[0]) for a, b in itertools.combinations(slim, 2) if a[1].overlaps(b[1])]
    assert not over


@pytest.mark.parametrize("name", FIGURES)
def test_every_text_is_inside_and_over_no_other(name: str, records: Records) -> None:
    cells = gather(records)
    figure = figure_or_none(name, cells)
    if figure is None:
        pytest.skip("none of the runs belongs in this figure")
    check_texts(figure)
    for axes in figure.axes:
        assert axes.bbox.width > 100  # labels leave room for what they are about
        assert axes.bbox.height > 60


@pytest.mark.parametrize("variant", [Variant("lhi", LONG, 1), Variant("lhi", "softmax-causal", 2)])
def test_curves_have_room_for_their_texts(tmp_path: Path, variant: Variant) -> None:
    check_texts(curves_figure(load_rows(write_store(tmp_path, long_plans())), Cell(variant, 8)))


def test_a_text_is_broken_between_settings_then_words_then_letters() -> None:
    assert wrapped("d = 8, mixed examples", 5, 9) == "d = 8, mixed examples"
    assert wrapped("d = 8, mixed examples", 1.2, 9) == "d = 8,\nmixed examples"
    assert wrapped("mixed examples", 0.7, 9) == "mixed\nexamples"
    broken = wrapped("x" * 99, 1, 9).split("\n")
    assert "".join(broken) == "x" * 99
    assert len({len(line) for line in broken[:-1]}) == 1


def test_a_layer_has_one_colour_whatever_its_settings() -> None:
    drawn = looks([(MINE, "1"), (MINE, "1", "d = 8"), (LONG, "2"), ("gru", "", "d = 8")])
    assert drawn[MINE, "1"].colour == drawn[MINE, "1", "d = 8"].colour
    assert len({look.colour for look in drawn.values()}) == 3


def test_figures_and_the_page_agree_in_colours(tmp_path: Path) -> None:
    """Although one of the store's layers is in no figure: its only run failed."""
    own = [("a.py:Failed", "a" * 12), ("b.py:Second", "b" * 12), ("c.py:Third", "c" * 12)]
    failed, *rest = [ModelSpec("rhi", family, 8, code=code) for family, code in own]
    write_store(tmp_path, plans([*rest, ModelSpec("rhi", "gru", 8)], Protocol(), FAR))
    write_run(tmp_path, Plan(RunSpec(failed, 0), False, 0.5, 3), "failure")
    records = load_rows(tmp_path)
    page = render_page(records)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    listed = {data["labels"][key]: colour for key, colour in data["colours"].items()}
    assert len({listed[name] for name in ("Failed", "Second", "Third", "GRU")}) == 4
    (legend,) = draw("accuracy", gather(records)).legends
    named = zip(legend.get_texts(), legend.get_lines(), strict=True)
    drawn = {text.get_text().split(",")[0]: line.get_color() for text, line in named}
    assert {name: drawn[name] for name in ("Second", "Third", "GRU")} == {
        name: listed[name] for name in ("Second", "Third", "GRU")
    }
    panels = {axes.get_title("left"): axes for axes in draw("epochs", gather(records)).axes}
    assert panels["RHI Third, L = 1"].get_lines()[0].get_color() == listed["Third"]
    curves = curves_figure(records, Cell(Variant("rhi", "c.py:Third", 1), 8)).axes[0].get_lines()
    assert curves[0].get_color() == listed["Third"]
    assert len({line.get_color() for line in curves[:4]}) == 2  # one for each kind of settings
