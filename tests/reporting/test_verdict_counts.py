"""How solved runs stand, cell by cell, in every table, in figures and in the comparison."""

import csv
import io
from dataclasses import replace

import polars as pl
import pytest
from tests.support.synthetic_store import Plan, write_store

from ithbit.published import Variant
from ithbit.reporting.cells import gather
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.figures import draw
from ithbit.reporting.figures.grid import STANDING
from ithbit.reporting.page.page import render_page
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.render import FORMATS
from ithbit.reporting.verdict_counts import WORDS, VerdictCounts
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.frame import Records, load_rows

GRU = Variant("lhi", "gru", 1)
# Of the nine runs at n = 64: one was wrong at the end of its training, the last is not solved.
COUNTS = dict(zip(WORDS, (2, 2, 1, 1, 1), strict=True))
SAID = ["refuted", "not refuted", "unsettled", "right on all inputs", "proved on all inputs"]
SAID += [None, "bounded (unchecked)", None, "refuted"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    model = ModelSpec("lhi", "gru", 64)
    plans = [Plan(RunSpec(model, s), s < 8, 1.0 if s < 8 else 0.9, 50) for s in range(9)]
    plans.append(Plan(RunSpec(replace(model, n_bits=8), 0), True, 1.0, 50))
    found = load_rows(write_store(tmp_path_factory.mktemp("s"), plans, with_history=False))
    rows = found.rows.sort("n_bits", "seed")
    words = pl.Series("verification", [None, *SAID], pl.String)
    wrong = pl.Series("structured_wrong", [0] * 6 + [3, 0, 0, 0], pl.Int64)  # of seed 5 at n = 64
    return replace(found, rows=rows.with_columns(words, wrong))


def test_each_word_is_counted_once(records: Records) -> None:
    found = gather(records).verdict_counts([GRU], 64)
    assert found == VerdictCounts(9, 8, COUNTS)
    assert found.marks() == "2r 2n 1b 1a 1p"
    assert found.sentence() == (
        "8 of 9 runs solved; of these 2 refuted, 2 not refuted, 1 bounded (unchecked), "
        "1 right on all inputs, 1 proved, 1 not tried"
    )
    assert gather(records).verdict_counts([GRU], 8).marks() == ""


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_them(records: Records, name: str) -> None:
    table = TABLES[name](gather(records))
    # The ablation of encodings has the seeds 0, 1 and 2.
    counts = ("1", "2") if name == "positions" else ("2", "2", "1", "1", "1")
    said = dict(zip(WORDS, counts, strict=False))
    for form in ("text", "markdown", "latex"):
        text = " ".join(FORMATS[form](table, "ours").split())
        assert " ".join(f"{n}{WORDS[word][0]}" for word, n in said.items()) in text
        for word in said:
            assert text.count(f"{WORDS[word][0]} {word} (") == 1  # explained once
    rows = csv.DictReader(io.StringIO(FORMATS["csv"](table, "both")))
    shares = [[v for head, v in row.items() if head.endswith(tuple(WORDS)) and v] for row in rows]
    assert {tuple(each) for each in shares if each} == {counts}
    # Where the published numbers stand alone nothing is said of ours.
    assert "refuted" not in FORMATS["text"](table, "published")


def test_the_grid_has_a_bar_for_each_cell(records: Records) -> None:
    figure = draw("successes", gather(records))
    bars = [patch for patch in figure.axes[0].patches if 0 < patch.get_height() < 0.2]
    assert [round(patch.get_width() * 8 / 0.8) for patch in bars] == [2, 2, 1, 1, 1]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [f"bar: {word}" for word in STANDING] == words[-5:]


def test_the_comparison_is_of_samples_and_says_what_that_is_worth(records: Records) -> None:
    agreement = compare(gather(records))
    (cell,) = [c for c in agreement.kinds[0].comparisons if c.cell == "LHI GRU L=1 n=64"]
    assert (cell.ours, cell.published) == ("8/9", "5/5")
    assert agreement.standing == VerdictCounts(10, 9, COUNTS)
    shown = str(replace(agreement, all=True))
    assert "Main table: 9 of 10 runs solved" in shown
    assert "ours 8/9 2r 2n 1b 1a 1p, published 5/5" in " ".join(shown.split())
    data = agreement.to_json()
    assert data["standing"]["refuted"] == 2
    (kept,) = [c for c in data["kinds"][0]["comparisons"] if c["cell"] == cell.cell]
    assert (kept["standing"]["solved"], kept["standing"]["proved"]) == (8, 1)


@pytest.mark.usefixtures("without_figures")
def test_the_page_has_them_in_the_opening_in_cells_and_beside_theory(records: Records) -> None:
    page = render_page(records)
    assert '<span class="marks">2r 2n 1b 1a 1p</span>' in page
    assert "8 of 9 runs solved; of these 2 refuted" in page  # under the pointer
    row = page.split('<th scope="row">GRU</th><td class="num">1</td>')[1].split("</tr>")[0]
    assert "possible for every n" in row
    assert "<b>8</b>/9" in row
    for old in ("counterexample", "verified"):
        assert old not in page
