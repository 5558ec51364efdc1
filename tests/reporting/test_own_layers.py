"""Users' layers beside the six families: in tables, figures and on the page; never compared."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest
from tests.support.families import PAPER_FAMILIES

from ithbit.families import FAMILIES, TASKS
from ithbit.published import Variant
from ithbit.reporting.cells import Cell, Cells, gather, labels
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.figures import draw
from ithbit.reporting.figures.curves import curves_figure
from ithbit.reporting.page.page import render_page
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.render import FORMATS, SHOWS
from ithbit.store.frame import Records
from ithbit.theory.summary_table import table as derived_table

MINE, ALONE, GRU = "layers.py:Mine", "other.py:Alone", "mine.py:GRU"
OWN = ((MINE, "aaaaaaaaaaaa"), (MINE, "bbbbbbbbbbbb"), (ALONE, "cccccccccccc"), (GRU, "d" * 12))


@pytest.fixture(scope="module")
def own_records(mixed_records: Records) -> Records:
    """The made-up store and, from its GRU runs, the runs of four users' layers."""
    rows = mixed_records.rows
    gru = rows.filter(task="lhi", family="gru", n_layers=1, positions="polynomial")
    parts = [
        gru.with_columns(
            family=pl.lit(family), code=pl.lit(code), group=pl.lit("own layer"), n_layers=pl.lit(3)
        )
        for family, code in OWN
    ]
    return replace(mixed_records, rows=pl.concat([rows, *parts], how="vertical_relaxed"))


@pytest.fixture(scope="module")
def own_cells(own_records: Records) -> Cells:
    return gather(own_records)


@pytest.fixture(scope="module")
def own_page(own_records: Records) -> str:
    return render_page(own_records)


def test_two_codes_of_one_name_and_a_name_that_a_family_has_are_told_apart() -> None:
    shown = labels(OWN)
    assert [shown[layer] for layer in OWN] == ["Mine aaaaaa", "Mine bbbbbb", "Alone", "GRU dddddd"]
    assert labels(OWN[1:])[OWN[1]] == "Mine"
    assert len(set(shown.values())) == len(shown)


@pytest.mark.parametrize("name", ["main", "accuracy"])
def test_rows_stand_beside_the_six(name: str, own_cells: Cells, mixed_records: Records) -> None:
    table = TABLES[name](own_cells)
    extra = [row for row in table.rows if row.labels[1] in ("Mine aaaaaa", "Mine bbbbbb", "Alone")]
    assert [row.labels for row in extra] == [
        ("LHI", "Mine aaaaaa", "3", "–"),
        ("LHI", "Mine bbbbbb", "3", "–"),
        ("LHI", "Alone", "3", "–"),
    ]
    gru = next(row for row in table.rows if row.variant == Variant("lhi", "gru", 1))
    for row in extra:
        assert [v.ours and v.ours.strip("*") for v in row.values] == [
            v.ours and v.ours.strip("*") for v in gru.values
        ]
        assert not any(value.published for value in row.values)
    without = {row.labels: row.values for row in TABLES[name](gather(mixed_records)).rows}
    assert all(row.values == without[row.labels] for row in table.rows if row.labels in without)
    for form in FORMATS:
        for show in SHOWS:
            assert ("Mine aaaaaa" in FORMATS[form](table, show)) == (show != "published")


def test_only_the_papers_cells_are_compared(own_cells: Cells, mixed_records: Records) -> None:
    assert compare(own_cells) == compare(gather(mixed_records))


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text"))]


def test_the_grid_has_them_below_the_papers(own_cells: Cells, mixed_records: Records) -> None:
    grid, paper = draw("successes", own_cells), draw("successes", gather(mixed_records))
    assert {"own layers", "Mine aaaaaa, L = 3", "Alone, L = 3"} <= set(texts(grid))
    assert "own layers" not in texts(paper)
    assert grid.get_figheight() > paper.get_figheight()


def test_the_accuracy_has_a_line_and_a_name_for_each(own_cells: Cells) -> None:
    figure = draw("accuracy", own_cells)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-1] == "published mean (open)"
    assert names[-5:-1] == ["Mine aaaaaa", "Mine bbbbbb", "GRU dddddd", "Alone"]
    panel = next(axes for axes in figure.axes if axes.get_title("left") == "LHI, L = 3")
    assert len(panel.containers) == len(OWN)


def test_curves_name_the_code_where_there_are_two(own_records: Records) -> None:
    both = curves_figure(own_records, Cell(Variant("lhi", MINE, 3), 64))
    assert both.axes[0].get_title("left").startswith("LHI Mine, L = 3, n = 64")
    for code in ("aaaaaa", "bbbbbb"):
        assert any(code in text for text in texts(both))
    alone = curves_figure(own_records, Cell(Variant("lhi", ALONE, 3), 64))
    assert not any("cccccc" in text for text in texts(alone))


def test_the_page_lists_them(own_page: str) -> None:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', own_page, re.S)
    assert block is not None
    data = json.loads(block[1])
    assert data["labels"][f"{MINE} aaaaaa"] == "Mine aaaaaa"
    assert set(data["labels"]) == set(data["colours"])
    at = {name: place for place, name in enumerate(data["columns"])}
    assert {row[at["family"]] for row in data["rows"]} <= data["labels"].keys()
    assert {row[at["group"]] for row in data["rows"]} >= {"own layer"}
    line = re.search(
        r'>Alone</th><td class="num">3</td><td class="num">–</td><td title="">–</td>', own_page
    )
    assert line, "the theory's table has the layer, with nothing proved"


def test_the_theory_column_is_derived_and_is_the_papers(own_page: str) -> None:
    derived = {(entry.family, entry.task): entry.min_layers for entry in derived_table()}
    for name in PAPER_FAMILIES:
        for task in TASKS:
            assert derived[FAMILIES[name].formal, task] == FAMILIES[name].min_layers[task]
    rows = re.findall(
        r'<tr><th scope="row">(\w+)</th><th scope="row">(.*?)</th><td class="num">\d</td>'
        r'<td class="num">(.*?)</td>',
        own_page,
    )
    labels = {family.label: name for name, family in FAMILIES.items()}
    shown = [(labels[label], task.lower(), text) for task, label, text in rows if label in labels]
    assert len(shown) >= 4
    assert all(
        text == str(FAMILIES[family].min_layers[task] or "ω(1)") for family, task, text in shown
    )
