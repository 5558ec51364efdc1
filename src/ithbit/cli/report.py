"""`ithbit table`, `compare`, `plot`, `report`, `export`: what the records of a store say.

These commands read run folders, or the tables that `ithbit export` made of them, and never train. A
run folder that cannot be read is named on standard error and left out.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ithbit.report.agreement import Agreement
    from ithbit.report.cells import Cells
    from ithbit.report.rows import Records

Store = Annotated[
    Path,
    typer.Option(
        "--store",
        envvar="ITHBIT_STORE",
        help="Folder that holds the run folders, or the tables of `ithbit export`.",
    ),
]
Settings = Annotated[
    str,
    typer.Option(
        help="Which runs count: 'paper' (the paper's sizes and protocol, ended when first perfect "
        "or not) or 'any'.",
    ),
]
DEFAULT_STORE = Path("runs")
_CELL = ("rhi", "softmax-full", 1, 64, "polynomial")  # whose curves are drawn if none is named


def _records(store: Path, with_histories: bool = False) -> "Records":
    from ithbit.report.rows import load_rows

    records = load_rows(store)
    for note in (records.note(), records.history_note() if with_histories else None):
        if note:
            print(f"ithbit: {note}", file=sys.stderr)
    return records


def _check_settings(settings: str) -> None:
    from ithbit.errors import SpecError
    from ithbit.report.cells import SETTINGS

    if settings not in SETTINGS:
        raise SpecError(f"unknown settings {settings!r}; choose one of {', '.join(SETTINGS)}")


def _cells(store: Path, settings: str) -> "Cells":
    from ithbit.report.cells import gather

    _check_settings(settings)
    return gather(_records(store), settings)


def _put(text: str, out: Path | None) -> None:
    from ithbit.report.output import write_text

    if out is None:
        print(text, end="")
    else:
        print(write_text(out, text))


def table(
    name: Annotated[
        str,
        typer.Argument(help="main, accuracy, positions, cost, length-by-n or length-by-family."),
    ],
    store: Store = DEFAULT_STORE,
    form: Annotated[
        str, typer.Option("--format", "-f", help="text, markdown, csv or latex (booktabs).")
    ] = "text",
    show: Annotated[
        str,
        typer.Option(help="ours, published or both; the published numbers alone need no store."),
    ] = "ours",
    settings: Settings = "paper",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file, not to the terminal.")
    ] = None,
) -> None:
    """Print one of the paper's tables from the runs of a store.

    Counts are successes out of finished runs. A cell with fewer finished runs than the paper has is
    marked *, one without any is –.
    """
    from ithbit.report.render import check_format, render
    from ithbit.report.tables import check_table, table_named

    check_table(name)
    check_format(form, show)
    cells = None if show == "published" else _cells(store, settings)
    _put(render(table_named(name, cells), form, show), out)


def compare(
    store: Store = DEFAULT_STORE,
    alpha: Annotated[
        float,
        typer.Option(help="Accepted chance that a faithful reproduction is called different."),
    ] = 0.05,
    every: Annotated[bool, typer.Option("--all", help="List every cell.")] = False,
    complete: Annotated[
        bool,
        typer.Option(
            "--require-complete", help="Exit with 1 also if a cell is missing or incomplete."
        ),
    ] = False,
    settings: Settings = "paper",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the runs of a store with the published numbers.

    Successes by Fisher's exact test (Holm's correction over cells) and by one exact test over all
    cells together; accuracies by Welch's intervals; epochs by an interval for the ratio of medians;
    parameters by equality. Seconds depend on the machine and are not compared.

    Exit status: 0 if nothing that could be compared differs, 1 if something differs (or, with
    --require-complete, is missing or incomplete), 2 if the command cannot be carried out, as with a
    store that has nothing to compare.
    """
    from ithbit.errors import StoreError
    from ithbit.report.compare import compare as compare_cells

    cells = _cells(store, settings)
    agreement = compare_cells(cells, alpha)
    if not agreement.n_compared:
        raise StoreError(
            f"nothing to compare: the store {store} has no finished run of a cell that the paper "
            "has; `ithbit sweep paper` trains them"
        )
    if as_json:
        print(json.dumps(_as_json(agreement), indent=2, ensure_ascii=False))
    else:
        _print_agreement(agreement, every, cells.notes() + cells.early_notes())
    if not agreement.agrees or (complete and not agreement.complete):
        raise typer.Exit(1)


def _as_json(agreement: "Agreement") -> dict[str, object]:
    return {
        "agrees": agreement.agrees,
        "complete": agreement.complete,
        "verdict": agreement.verdict(),
        "alpha": agreement.alpha,
        "kinds": [asdict(kind) for kind in agreement.kinds],
    }


def _print_agreement(agreement: "Agreement", every: bool, notes: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ithbit.report.agreement import AGREES, DIFFERS, MISSING, TOO_FEW

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(agreement.verdict())
    for note in notes:
        console.print(f"  {note}")
    console.print()
    shape = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    shape.add_column("comparison", no_wrap=True)
    for head in ("agree", "differ", "fewer", "too few", "missing", "least p*"):
        shape.add_column(head, justify="right", no_wrap=True)
    shape.add_column("by", no_wrap=True)
    for kind in agreement.kinds:
        agree, differ, too_few, missing = map(kind.count, (AGREES, DIFFERS, TOO_FEW, MISSING))
        counts = (agree, differ, kind.n_incomplete, too_few, missing)
        least = "" if kind.smallest is None else f"{kind.smallest:.3g}"
        shape.add_row(kind.name, *(str(count or "·") for count in counts), least, kind.method)
    console.print(shape)
    console.print()
    if agreement.n_incomplete or agreement.count(TOO_FEW):
        console.print(
            "fewer: how many of those that agree or differ rest on fewer runs than the\n"
            "  paper's; too few: not judged, for want of runs."
        )
    shares = sum(kind.smallest is not None for kind in agreement.kinds)
    if shares:
        console.print(
            "* corrected over the cells of its kind; a cell differs at "
            f"{agreement.alpha:g}/{shares} = {agreement.alpha / shares:.3g}\n  or less, so that a "
            "faithful reproduction is called different at most\n  "
            f"{agreement.alpha:.0%} of the time. Agreement is no proof that nothing differs."
        )
    listed = agreement.comparisons if every else agreement.largest()
    if listed:
        console.print("\nAll cells" if every else "\nFurthest from agreement")
    for found in listed:
        p_value = "" if found.p_value is None else f"  p = {found.p_value:.2g}"
        interval = ""
        if found.interval is not None:
            interval = f"  interval {found.interval[0]:.3f} to {found.interval[1]:.3f}"
        console.print(
            f"  {found.verdict:8} {found.kind}: {found.cell}: ours {found.ours}, "
            f"published {found.published}{p_value}{interval}"
        )
        if not every:
            for folder in found.runs[:5]:
                console.print(f"             {folder}")
            if len(found.runs) > 5:
                console.print(f"             and {len(found.runs) - 5} more runs")


def plot(
    name: Annotated[
        str,
        typer.Argument(help="successes, accuracy, epochs, positions, length or curves."),
    ],
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File; its ending, .png, .svg or .pdf, is the format."),
    ] = None,
    settings: Settings = "paper",
    task: Annotated[str, typer.Option(help="For curves: rhi or lhi.")] = _CELL[0],
    family: Annotated[
        str, typer.Option(help="For curves: the family, as in `ithbit export`.")
    ] = _CELL[1],
    layers: Annotated[int, typer.Option("--layers", "-L", help="For curves: the depth.")] = _CELL[
        2
    ],
    n_bits: Annotated[int, typer.Option("--n", "-n", help="For curves: the length n.")] = _CELL[3],
    positions: Annotated[str, typer.Option(help="For curves: the encoding.")] = _CELL[4],
) -> None:
    """Draw a figure from the runs of a store.

    `curves` draws the learning curves of one cell, all seeds, finished or not. The others put the
    published numbers beside ours.
    """
    from ithbit.errors import SpecError
    from ithbit.families import family_named, task_named
    from ithbit.models.spec import ModelSpec
    from ithbit.report.figures import check_figure, check_figure_format, draw, draw_curves, save
    from ithbit.report.published import Variant

    check_figure(name)
    path = out or Path(f"{name}.png")
    check_figure_format(path)
    if name != "curves" and (task, family, layers, n_bits, positions) != _CELL:
        raise SpecError(
            "--task, --family, --layers, --n and --positions choose a cell for `ithbit plot "
            f"curves`; {name} shows them all: leave them out"
        )
    if name == "curves":
        spec = ModelSpec(
            task_named(task), family_named(family).name, n_bits, layers, positions=positions
        )
        variant = Variant(spec.task, spec.family, layers)
        figure = draw_curves(_records(store), variant, n_bits, positions)
    else:
        figure = draw(name, _cells(store, settings))
    print(save(figure, path))


def report(
    store: Store = DEFAULT_STORE,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    settings: Settings = "paper",
) -> None:
    """Write one self-contained HTML page: verdict, tables, figures, every run and its curve.

    The page opens from disk and needs no network. A store without a finished run still gets a page,
    which says so.
    """
    from ithbit.report.page import write_page

    _check_settings(settings)
    print(write_page(_records(store, with_histories=True), out, settings))


def export(
    store: Store = DEFAULT_STORE,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the two files; made if need be.")
    ] = Path("export"),
    form: Annotated[str, typer.Option("--format", "-f", help="parquet or csv.")] = "parquet",
) -> None:
    """Write the store as two tidy tables: runs (one row each) and histories (one row an epoch).

    All runs are written, finished or not, of any settings.
    """
    from ithbit.report.export import export as export_records

    for path in export_records(_records(store, with_histories=True), out, form):
        print(path)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (table, compare, plot, report, export):
        app.command()(command)
