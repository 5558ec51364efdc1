"""One table in four formats."""

import csv
import io
from dataclasses import replace

import pytest
from tests.support.paths import RESULTS

import ithbit
from ithbit.errors import SpecError
from ithbit.reporting.cells import Cells, gather
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.render import FORMATS, SHOWS
from ithbit.reporting.tables.table import ReportTable, TableRow, Value
from ithbit.store.frame import load_rows

TABLE = ReportTable(
    "toy",
    "A toy",
    ("Task", "Model"),
    ("n=8", "n=128"),
    (
        TableRow(("RHI", "A & B_1"), (Value("3/4*", "5"), Value("1/1*", None))),
        TableRow(("LHI", "C"), (Value(None, "0"), Value(None, None))),
        TableRow(("LHI", "D"), (Value("1/5", None), Value(None, None)), "extra"),
    ),
    ("how to read it", "100 % ours"),
)


def shows_any(row: TableRow, show: str) -> bool:
    """Whether a row has a number of this kind; a table of ours alone has none of the paper's."""
    return show == "both" or any(getattr(value, show) for value in row.values)


def test_every_table_in_every_format_and_view(paper_cells: Cells) -> None:
    for name in TABLES:
        table = TABLES[name](paper_cells)
        for form in FORMATS:
            for show in SHOWS:
                text = FORMATS[form](table, show)
                assert text.endswith("\n")
                rows = [row for row in table.rows if shows_any(row, show)]
                assert len(text.splitlines()) > len(rows)


def test_text() -> None:
    lines = FORMATS["text"](TABLE, "both").splitlines()
    assert lines[0] == "A toy; ours (published)"
    assert "RHI    A & B_1   3/4* (5)    1/1*" in lines
    assert "LHI    C            – (0)       –" in lines
    assert "LHI    D          1/5 (–)       –" in lines
    assert "  100 % ours" in lines


def test_a_table_that_only_we_have() -> None:
    """It has no published numbers: that is said, and not that our runs are missing."""
    ours = ReportTable(
        "ours", "Ours", ("Task",), ("n=8",), (TableRow(("RHI",), (Value("3", None),)),), ("how",)
    )
    assert "The paper has no numbers for this table." in FORMATS["text"](ours, "published")
    assert "RHI      3" in FORMATS["text"](ours, "both")
    none = replace(ours, rows=())
    assert "No finished run of the store belongs in this table." in FORMATS["text"](none, "ours")


@pytest.fixture(scope="module")
def shipped_cells() -> Cells:
    """Our run of the paper's sweeps, with a verdict of trying all inputs in every row."""
    return gather(load_rows(RESULTS / "paper"))


@pytest.mark.parametrize("show", SHOWS)
@pytest.mark.parametrize("name", TABLES)
def test_a_terminal_of_eighty_columns_holds_every_line(
    shipped_cells: Cells, name: str, show: str
) -> None:
    table = TABLES[name](shipped_cells)
    text = FORMATS["text"](table, show)
    assert max(map(len, text.splitlines())) <= 80
    # Nothing is lost by it, and no number is broken.
    words = text.split()
    for row in table.rows:
        for at in range(len(table.columns)):
            ours, theirs = row.values[at].ours, row.values[at].published
            shown = theirs if show == "published" else ours
            assert shown is None or all(word in words for word in shown.split())
            assert show != "both" or theirs is None or f"({theirs})" in words


def test_a_row_that_is_too_wide_has_the_published_below(shipped_cells: Cells) -> None:
    lines = FORMATS["text"](TABLES["cost"](shipped_cells), "both").splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("LHI    Mamba"))
    assert lines[at].split()[:6] == ["LHI", "Mamba", "2", "20/20", "3261", "148"]
    assert lines[at + 1].split() == ["(4/5)", "(3261)", "(113)", "(9.01)", "(0.184)"]


def test_totals_and_heads_break_before_rows_do(shipped_cells: Cells) -> None:
    lines = FORMATS["text"](TABLES["main"](shipped_cells), "ours").splitlines()
    row = "LHI   Mamba           2  ✓     20/20 5a     20/20 5a  19/20 1r 3n  20/20 2r 3n"
    assert row in lines
    assert "      Total, stress      ✗      286/300  192/300 11r   67/300 18r        0/300" in lines
    assert "      test                          71a          41a" in lines


def test_published_leaves_out_what_the_paper_does_not_have() -> None:
    text = FORMATS["text"](TABLE, "published")
    assert "n=128" not in text
    assert "D" not in text.replace("A toy", "").split("─")[-1]
    assert "how to read it" in text
    assert "100 % ours" not in text


def test_markdown() -> None:
    lines = FORMATS["markdown"](TABLE, "ours").splitlines()
    assert "| Task | Model | n=8 | n=128 |" in lines
    assert "| --- | --- | ---: | ---: |" in lines
    assert r"| RHI | A & B_1 | 3/4\* | 1/1\* |" in lines


def test_csv_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](TABLE, "both"))))
    assert rows[0] == {
        "Task": "RHI",
        "Model": "A & B_1",
        "n=8": "3/4*",
        "n=8 published": "5",
        "n=128": "1/1*",
        "n=128 published": "",
    }
    assert FORMATS["csv"](TABLE, "published").splitlines()[0].split(",") == [
        "Task",
        "Model",
        "n=8",
    ]


def test_latex_escapes_and_rules() -> None:
    text = FORMATS["latex"](TABLE, "ours")
    assert r"\begin{tabular}{llrr}" in text
    assert r"RHI & A \& B\_1 & 3/4\textsuperscript{*} & 1/1\textsuperscript{*} \\" in text
    assert text.count(r"\midrule") == 2  # the row without runs of ours is left out
    assert r"100 \% ours" in text
    assert text.index(r"\toprule") < text.index(r"\bottomrule")
    assert text.count("{") == text.count("}")


def test_latex_of_the_papers_tables_is_ascii(paper_cells: Cells) -> None:
    for name in TABLES:
        text = FORMATS["latex"](TABLES[name](paper_cells), "both")
        assert text.isascii(), {letter for letter in text if not letter.isascii()}


def test_unknown_table_format_and_view() -> None:
    with pytest.raises(SpecError, match="unknown table 'mian'; choose one of main, accuracy"):
        ithbit.table("mian")
    with pytest.raises(SpecError, match="unknown format 'xls'; choose one of text, markdown"):
        ithbit.table("main", output_format="xls")
    with pytest.raises(SpecError, match="cannot show 'theirs'; choose one of ours, published"):
        ithbit.table("main", show="theirs")
