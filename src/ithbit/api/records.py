"""Reading the records of a store: frames, tables, the comparison, figures, the report page.

These functions read run folders, or the tables that `export` made from them, and never train. A run
folder that cannot be read is left out, with a warning on standard error.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.arguments import as_list, checked, renamed
from ithbit.display import Printable, printable, say
from ithbit.errors import SpecError, StoreError, first_of, number, one_of

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from ithbit.reporting.cells import Cell, Cells
    from ithbit.reporting.comparison.agreement import Agreement
    from ithbit.reporting.tables.table import ReportTable
    from ithbit.store.frame import Records

CELL = ("rhi", "softmax-full", 1, 64, "polynomial")  # whose curves are drawn by default


def _records(store: str | Path, with_histories: bool = False) -> "Records":
    from ithbit.store.frame import load_rows
    from ithbit.store.packed import opened

    # Messages and pages name the store as it was given, also where a packed one is read.
    records = replace(load_rows(opened(store)), store=Path(store))
    for note in (records.note(), records.history_note() if with_histories else None):
        if note:
            say(f"ithbit: {note}", file=sys.stderr)
    return records


def _cells(store: str | Path, settings: str) -> "Cells":
    from ithbit.reporting.cells import SETTINGS, gather

    one_of("unknown settings", settings, SETTINGS)
    return gather(_records(store), settings)


@checked
def runs(store: str | Path = "runs", *, histories: bool = False) -> "pl.DataFrame":
    """Read a store as a polars frame: one row per run, or with `histories` one per run and epoch.

    `solved` is null for a run that says nothing about learning: one that is unfinished, or that
    failed for a reason other than a non-finite loss.

    >>> frame = runs("results/paper")
    >>> frame.filter(family="gru", task="lhi", n_bits=8)["solved"].sum()
    20
    """
    records = _records(store, with_histories=histories)
    return records.histories() if histories else records.rows


@checked
def histories(store: str | Path = "runs") -> "pl.DataFrame":
    """Read a store as a polars frame with one row per run and epoch: `runs` with `histories`.

    >>> frame = histories("results/paper")
    >>> frame.select("epoch", "held_out_accuracy").height == frame.height > 540
    True
    """
    return runs(store, histories=True)


@dataclass(frozen=True, repr=False)
class PaperTable(Printable):
    """One of the paper's tables, with the format it prints in."""

    table: "ReportTable"
    format: str
    show: str
    out: Path | None = None  # where it was written

    def __str__(self) -> str:
        from ithbit.reporting.tables.render import FORMATS

        return printable(FORMATS[self.format](self.table, self.show).removesuffix("\n"))

    def render(self) -> Iterator[str]:
        yield str(self) if self.out is None else str(self.out)


@renamed(format="output_format")
@checked
def table(
    name: str,
    *,
    store: str | Path = "runs",
    output_format: str = "text",
    show: str = "ours",
    settings: str = "any",
    out: str | Path | None = None,
) -> PaperTable:
    """Make one of the paper's tables from the runs of a store.

    A count is the number of solved runs out of those that finished or diverged; letters, explained
    in the notes, give the verification of the solved ones. Runs with different settings are listed
    separately. A cell with fewer runs than in the paper is marked `*`, one without any is –. The
    published numbers alone need no store.

    >>> print(table("length-by-n", show="published", output_format="csv"))
    Train n,Solved,Accuracy at n/2,Accuracy at 2n
    8,45/45,0.629±0.091,0.535±0.026
    ...
    """
    from ithbit.reporting.cells import Cells
    from ithbit.reporting.tables.main import TABLES
    from ithbit.reporting.tables.render import FORMATS, SHOWS
    from ithbit.store.writing import write_text

    one_of("unknown table", name, TABLES)
    one_of("unknown format", output_format, FORMATS)
    one_of("cannot show", show, SHOWS)
    cells = Cells() if show == "published" else _cells(store, settings)
    path = None if out is None else Path(out)
    paper_table = PaperTable(TABLES[name](cells), output_format, show, path)
    if paper_table.out is not None:
        write_text(paper_table.out, f"{paper_table}\n")
    return paper_table


@renamed(all="all_cells")
@checked
def compare(
    store: str | Path = "runs",
    *,
    alpha: float = 0.05,
    all_cells: bool = False,
    settings: str = "any",
) -> "Agreement":
    """Compare the runs of a store with the published numbers.

    First, all cells at once: an exact test whether ours succeed more often, or less often,
    throughout (of Mantel and Haenszel's kind; also over constructive cells and stress tests alone).
    Then successes cell by cell by Fisher's exact test (Holm's correction over cells) and by one
    exact test against differences in any direction; accuracies by Welch's intervals; epochs by an
    interval for the ratio of medians; parameters by equality. Seconds depend on the machine and are
    not compared. No evidence of a difference is no proof of agreement: with five published seeds a
    single cell shows only a total reversal, and each comparison says what would have differed. With
    `all_cells`, every cell is shown.

    >>> print(compare("results/paper").verdict())
    No evidence of a difference: none of 258 comparisons differs.
    """
    from ithbit.reporting.comparison.compare import compare as compare_cells

    agreement = compare_cells(_cells(store, settings), number("alpha", alpha))
    if not agreement.n_compared:
        raise StoreError(
            f"nothing to compare: the store {store} has no finished run of a cell that the paper "
            "has; `ithbit sweep paper` trains them"
        )
    return replace(agreement, all=all_cells)


@checked
def plot(
    name: str,
    *,
    store: str | Path = "runs",
    out: str | Path | None = None,
    settings: str = "any",
    task: str | Iterable[str] = CELL[0],
    family: str | Iterable[str] = CELL[1],
    layers: int | Iterable[int] = CELL[2],
    n: int | Iterable[int] = CELL[3],
    positions: str | Iterable[str] = CELL[4],
) -> "Figure":
    """Draw a figure from the runs of a store.

    `curves` draws the learning curves of one cell, all seeds, finished or not; with several tasks,
    families, depths, lengths or encodings, of every combination side by side. The other figures
    show the published numbers next to ours.

    >>> len(plot("positions", store="results/paper").axes)
    2
    >>> len(plot("curves", store="results/paper", family=["gru", "mamba2"], n=[8, 64]).axes)
    2
    """
    from ithbit.reporting.figures import FIGURES, check_figure_format, draw, save
    from ithbit.reporting.figures.cell_curves import cell_curves_figure, cell_name
    from ithbit.reporting.figures.curves import curves_figure

    one_of("unknown figure", name, (*FIGURES, "curves"))
    if out is not None:
        check_figure_format(Path(out))
    choices = [as_list(each) for each in (task, family, layers, n, positions)]
    if name != "curves" and choices != [[each] for each in CELL]:
        raise SpecError(
            "--task, --family, --layers, --n and --positions choose a cell for `ithbit plot "
            f"curves`; {name} shows them all: leave them out"
        )
    if name == "curves":
        cells = [_cell(*each) for each in product(*choices)]
        if not cells:
            raise SpecError("curves need at least one task, family, depth, length and encoding")
        records = _records(store)
        if len(cells) == 1:
            figure = curves_figure(records, cells[0])
        else:
            figure, without = cell_curves_figure(records, cells)
            if without:
                names = first_of([cell_name(cell) for cell in without], 3)
                say(f"ithbit: no learning curves of {names}", file=sys.stderr)
    else:
        gathered = _cells(store, settings)
        figure = draw(name, gathered)
        for note in gathered.ended_notes():  # a table prints these below itself
            say(f"ithbit: {note}", file=sys.stderr)
    if out is not None:
        save(figure, Path(out))
    return figure


def _cell(task: str, family: str, layers: int, n: int, positions: str) -> "Cell":
    """The cell of a figure; raises `SpecError` for a model that there cannot be."""
    from ithbit.families import family_named, task_named
    from ithbit.published import Variant
    from ithbit.reporting.cells import Cell
    from ithbit.spec import CODE_DIGITS, ModelSpec

    descriptor = family_named(family)
    code = "0" * CODE_DIGITS if descriptor.own else ""  # any code will do: curves are found by name
    spec = ModelSpec(task_named(task), descriptor.name, n, layers, positions=positions, code=code)
    return Cell(Variant(spec.task, spec.family, layers), n, positions)


@checked
def report(
    store: str | Path = "runs", *, out: str | Path = "report.html", settings: str = "any"
) -> Path:
    """Write one self-contained HTML page: what is solved and stands, tables, figures, every run.

    The page opens from disk and needs no network. For a store with only probed layers, it shows
    those.

    >>> report("nowhere")
    Traceback (most recent call last):
    ...
    ithbit.errors.StoreError: the store nowhere does not exist; name the folder of a sweep ...
    """
    from ithbit.reporting.cells import SETTINGS
    from ithbit.reporting.page.page import write_page
    from ithbit.store.frame import no_rows
    from ithbit.store.probed import probed_layers

    one_of("unknown settings", settings, SETTINGS)
    try:
        records = _records(store, with_histories=True)
    except StoreError:
        if not probed_layers(Path(store)):
            raise
        records = no_rows(Path(store))  # probes only
    return write_page(records, Path(out), settings)


@renamed(format="output_format")
@checked
def export(
    store: str | Path = "runs", *, out: str | Path = "export", output_format: str = "parquet"
) -> list[Path]:
    """Write the store as two tidy tables: runs (one row each) and histories (one row per epoch).

    All runs are written, finished or not, whatever their settings. With the format zip the store
    itself is packed into one file, `out` or else STORE.zip: its finished and failed runs with
    weights, records and proofs. Every command that reads a store reads such a file as well.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     _ = ithbit.train("lhi", "gru", n=2, seeds=[0], protocol=tiny, store=store, workers=1)
    ...     files = export(store, out=f"{store}/tables", output_format="csv")
    ...     [path.name for path in files]
    ['runs.csv', 'histories.csv']
    """
    from ithbit.store.frame import export as export_records
    from ithbit.store.packed import SUFFIX, pack

    one_of("unknown format", output_format, ("parquet", "csv", "zip"))
    if output_format == "zip":
        path = Path(store).with_suffix(SUFFIX) if str(out) == "export" else Path(out)
        if path.suffix.lower() != SUFFIX:
            raise SpecError(f"a packed store is a file that ends in {SUFFIX}, got {path}")
        return [pack(Path(store), path)]
    return export_records(_records(store, with_histories=True), Path(out), output_format)
