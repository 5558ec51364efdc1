"""What the report's template shows, section by section: texts, numbers and flags. All of it is
computed here, so that the template only loops and prints.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from markupsafe import Markup

from ithbit.errors import StoreError
from ithbit.families import Group
from ithbit.published import published
from ithbit.reporting.cells import Cells, gather
from ithbit.reporting.comparison.agreement import TOO_FEW, Agreement
from ithbit.reporting.comparison.compare import compare
from ithbit.reporting.differences import (
    settings_by_text,
    settings_of,
    settings_order,
    settings_text,
)
from ithbit.reporting.figures import FIGURES, figure_or_none, for_page
from ithbit.reporting.page.compared import ComparisonSection, comparison_section
from ithbit.reporting.page.page_tables import (
    PageTable,
    RowLabel,
    code_markup,
    page_table,
    row_label,
)
from ithbit.reporting.page.probe import rank_figure
from ithbit.reporting.page.proved import TheoryRow, theory_rows
from ithbit.reporting.tables.main import TABLES
from ithbit.reporting.tables.table import NOTHING
from ithbit.reporting.verdict_counts import SOLVED, WORDS, count_verdicts
from ithbit.store.frame import Records
from ithbit.store.probed import probed_layers

GROUPS = get_args(Group)
_MOST_SET_ASIDE = 200  # run folders that are listed
_FEW_PROBED = 3  # layers that are shown opened
# What a figure shows, and what to add where the paper's numbers are shown.
_CAPTIONS = {
    "successes": (
        "Solved runs by configuration and length. The bar in a square shows how they stand; runs "
        "that were not tried leave a gap.",
        "A ring marks a count that, out of five, would be another one than the published.",
    ),
    "accuracy": (
        "Maximum held-out accuracy against length, mean and one standard deviation over seeds.",
        "Open marks are the published means.",
    ),
    "epochs": (
        "Epochs to the first perfect epoch and to the end of training, seed by seed.",
        "The star is the published median.",
    ),
    "positions": (
        "Encodings of positions: share of solved runs, how these stand, and mean maximum accuracy.",
        "Diamonds are published.",
    ),
    "length": (
        "Accuracy at half and twice the trained length, of runs that were solved at n.",
        "Open marks are the published means.",
    ),
}


@dataclass(frozen=True)
class VerdictRow:
    """The runs of one group with the same settings, and the verdicts on the solved ones."""

    label: RowLabel
    runs: int
    solved: int
    counts: tuple[int, ...]  # of solved runs, for each verdict
    not_tried: int


@dataclass(frozen=True)
class PageFigure:
    """A figure with its caption."""

    name: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class ProbedSection:
    """A probed layer in words, and the figure of its causal rank, if it was measured."""

    name: str
    width: int
    settings: str
    causal: str
    rank: str
    solved: str
    figure: Markup | None
    is_open: bool


@dataclass(frozen=True)
class Machine:
    """An environment and how many runs finished in it."""

    runs: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ReportPage:
    """Everything on the page but the data of its script."""

    store: str
    n_finished: int
    n_unfinished: int
    n_failed: int
    shared_settings: str  # that all runs have and the paper has not
    problem: Markup | None  # why there are no results
    paper_settings_only: bool
    has_runs: bool
    navigation: tuple[tuple[str, str], ...]  # anchors and titles
    solved_meaning: str
    verdicts: tuple[tuple[str, str, str], ...]  # word, letter and meaning
    headline: str  # what the runs show, in a sentence
    verdict_rows: tuple[VerdictRow, ...]
    main_table: PageTable | None
    theory: tuple[TheoryRow, ...]
    comparison: ComparisonSection | None
    not_compared: str  # why there is no comparison, if there are results
    tables: tuple[PageTable, ...]
    figures: tuple[PageFigure, ...]
    probed: tuple[ProbedSection, ...]
    machines: tuple[Machine, ...]
    paper_environment: tuple[tuple[str, str], ...]
    paper_settings: tuple[tuple[str, str], ...]
    n_set_aside: int
    set_aside: tuple[tuple[str, str], ...]  # folder and reason, of the first ones
    n_more_set_aside: int


def report_page(records: Records, settings: str) -> ReportPage:
    """The content of the report on a store."""
    cells, agreement, problem = _results(records, settings)
    status = Counter(records.rows["status"])
    compared = {(c.kind, c.cell): c for c in agreement.comparisons} if agreement else {}
    made = (TABLES[name](cells) for name in TABLES)
    tables = [page_table(table, compared) for table in made if table.has_ours]
    comparison = comparison_section(agreement) if agreement and agreement.n_compared else None
    theory, figures, probed = tuple(theory_rows(cells)), _figures(cells), _probed(records)
    has_runs = bool(records.rows.height or records.set_aside)
    listed = records.set_aside[:_MOST_SET_ASIDE]
    sections = (
        ("results", "Results", True),
        ("theory", "Theory", theory),
        ("agreement", "Paper", comparison),
        ("tables", "Tables", tables[1:]),
        ("figures", "Figures", figures),
        ("probed", "Probed", probed),
        ("runs", "Runs", has_runs),
        ("machines", "Machines", has_runs),
    )
    return ReportPage(
        store=str(records.store),
        n_finished=status["finished"],
        n_unfinished=status["unfinished"],
        n_failed=status["failed"],
        shared_settings=settings_text(cells.shared),
        problem=None if problem is None else code_markup(problem),
        paper_settings_only=settings == "paper",
        has_runs=has_runs,
        navigation=tuple((anchor, title) for anchor, title, content in sections if content),
        solved_meaning=SOLVED,
        verdicts=tuple((word, letter, meaning) for word, (letter, meaning) in WORDS.items()),
        headline=count_verdicts(cells.of(cells.by_cell)).headline,
        verdict_rows=_verdict_rows(cells),
        main_table=tables[0] if tables else None,
        theory=theory,
        comparison=comparison,
        not_compared=_not_compared(agreement),
        tables=tuple(tables[1:]),
        figures=figures,
        probed=probed,
        machines=_machines(records),
        paper_environment=_texts(published().environment),
        paper_settings=_texts(published().settings),
        n_set_aside=len(records.set_aside),
        set_aside=tuple((item.folder, item.reason) for item in listed),
        n_more_set_aside=len(records.set_aside) - len(listed),
    )


def _results(records: Records, settings: str) -> tuple[Cells, Agreement | None, str | None]:
    """Cells and comparison, or why there are none: a page of failures is still worth reading."""
    if records.rows.is_empty():
        return Cells(), None, "The store holds no runs; `ithbit train` starts some."
    try:
        cells = gather(records, settings)
    except StoreError as error:
        return Cells(), None, str(error)
    return cells, compare(cells), None


def _verdict_rows(cells: Cells) -> tuple[VerdictRow, ...]:
    """Runs by group and settings: all families, depths and lengths of one kind."""

    def order(kind: tuple[str, ...]) -> tuple[Any, ...]:
        differs, of, encoding = kind
        settings = settings_order(behind[differs])
        return encoding != "polynomial", settings, GROUPS.index(of), encoding

    runs = cells.of(cells.by_cell)
    behind = settings_by_text(runs)
    kinds = runs.partition_by("differs", "group", "encoding", as_dict=True)
    rows = []
    for differs, of, encoding in sorted(kinds, key=order):
        name = "no" if encoding == "none" else encoding
        positions = "" if encoding == "polynomial" else f", {name} positions"
        label = row_label(f"{of}{cells.suffix(behind[differs])}{positions}")
        counts = count_verdicts(kinds[differs, of, encoding])
        by_verdict, not_tried = tuple(counts.counts.values()), counts.solved - counts.tried
        rows.append(VerdictRow(label, counts.runs, counts.solved, by_verdict, not_tried))
    return tuple(rows)


def _not_compared(agreement: Agreement | None) -> str:
    if agreement is None:
        return ""
    if agreement.count(TOO_FEW):
        return agreement.verdict()
    return (
        "None of these runs belongs to a cell of the paper: nothing is compared with its numbers."
    )


def _figures(cells: Cells) -> tuple[PageFigure, ...]:
    figures = []
    for name in FIGURES:
        if figure := figure_or_none(name, cells):
            caption, of_published = _CAPTIONS[name]
            if not cells.all_nonstandard:
                caption += f" {of_published}"
            figures.append(PageFigure(name, for_page(figure, name), caption))
    return tuple(figures)


def _probed(records: Records) -> tuple[ProbedSection, ...]:
    layers = probed_layers(records.store)
    return tuple(
        ProbedSection(
            layer.name,
            layer.width,
            settings_text(settings_of({**layer.protocol, "settings": ""})),
            layer.causal,
            layer.rank,
            layer.solved or NOTHING,
            rank_figure(layer.width, layer.ranks, layer.singular_values, f"rank-{at}")
            if layer.ranks
            else None,
            len(layers) <= _FEW_PROBED,
        )
        for at, layer in enumerate(layers)
    )


def _machines(records: Records) -> tuple[Machine, ...]:
    """The environments of finished runs, the most frequent first."""
    counts = Counter(sorted(records.rows["environment"].drop_nulls())).most_common()
    return tuple(
        Machine(f"{number} {'run' if number == 1 else 'runs'}", _texts(json.loads(environment)))
        for environment, number in counts
    )


def _texts(values: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, str(value)) for key, value in values.items())
