"""Figures from records, drawn with matplotlib without a display: PNG, SVG or PDF."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from ithbit.display import printable
from ithbit.errors import SpecError, StoreError
from ithbit.reporting.cells import Cells
from ithbit.reporting.differences import settings_text
from ithbit.reporting.figures.accuracy import accuracy_figure, epochs_figure
from ithbit.reporting.figures.grid import NONE, success_grid
from ithbit.reporting.figures.shift import length_figure, positions_figure
from ithbit.reporting.figures.style import FAINT, INK, PAPER, RC
from ithbit.reporting.figures.texts import headline
from ithbit.store.writing import in_memory, write_output

FIGURES: dict[str, Callable[[Cells], Figure | None]] = {
    "successes": success_grid,
    "accuracy": accuracy_figure,
    "epochs": epochs_figure,
    "positions": positions_figure,
    "length": length_figure,
}
FIGURE_FORMATS = ("png", "svg", "pdf")


@mpl.rc_context(RC)
def figure_or_none(name: str, cells: Cells) -> Figure | None:
    """The figure of that name; None if it would have no run in it."""
    figure = FIGURES[name](cells)
    if figure and cells.shared:
        headline(figure, f"all runs: {settings_text(cells.shared)}")
    return figure


def draw(name: str, cells: Cells) -> Figure:
    """The figure of that name; raises `StoreError` if it would have no run in it."""
    if (figure := figure_or_none(name, cells)) is None:
        raise StoreError(f"no finished run of the store belongs in the figure {name!r}")
    return figure


def check_figure_format(path: Path) -> str:
    """The format that a file name asks for."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FIGURE_FORMATS:
        raise SpecError(
            f"cannot draw {path.name!r}: its extension must be one of "
            f"{', '.join('.' + each for each in FIGURE_FORMATS)}"
        )
    return form


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the file's extension; equal figures give equal files."""
    form = check_figure_format(path)
    metadata = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
    with mpl.rc_context({**RC, "svg.hashsalt": path.stem}):
        write = partial(figure.savefig, format=form, dpi=160, metadata=metadata)
        return write_output(path, in_memory(write))


def for_page(figure: Figure, name: str) -> Markup:
    """The figure as an SVG element with the page's own ink, paper and faint lines, which the page
    does not enlarge if it is small. `name` keeps its ids apart from other figures' on the page."""
    with mpl.rc_context({**RC, "svg.hashsalt": name, "svg.id": name}):
        file = in_memory(partial(figure.savefig, format="svg", metadata={"Date": None})).decode()
    svg = printable(file[file.index("<svg") :])  # labels may be a user's
    for colour, variable in ((INK, "ink"), (PAPER, "card"), (FAINT, "line"), (NONE, "s0")):
        svg = svg.replace(colour, f"var(--{variable})")
    small = figure.get_figwidth() < 6
    return Markup(svg.replace("<svg", '<svg class="small"', 1) if small else svg)  # our own text
