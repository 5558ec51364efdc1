"""Room for texts: labels are as long as the settings and names in a store, and stay readable.

A text is wrapped to the width it has, a legend takes as many columns as fit, and the figure grows.
Lengths are in inches, sizes of fonts in points.
"""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.textpath import text_to_path

from ithbit.reporting.figures.style import RC

LINE = 1.25 / 72  # height of a line of text per point of its size
_BREAKS = (", ", " ", "")  # where a text is broken: between settings, words, letters


def width_of(text: str, size: float, weight: str = "normal") -> float:
    """How wide a line of text is."""
    font = FontProperties(family=RC["font.sans-serif"], size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def wrapped(text: str, width: float, size: float, weight: str = "normal") -> str:
    """The text in lines of at most this width, broken between settings if that is enough.

    >>> print(wrapped("GRU, epoch examples = 20000, epochs = 6", 2, 9))
    GRU, epoch examples = 20000,
    epochs = 6
    """
    return "\n".join(line.rstrip() for line in _lines(text, width, size, weight, _BREAKS))


def row_label(name: str, settings: str, width: float) -> str:
    """The name of a row and its settings, which start on a line of their own if one is too short.

    >>> print(row_label("GRU, L = 1", ", epoch examples = 20000, epochs = 6", 2.5))
    GRU, L = 1
    epoch examples = 20000, epochs = 6
    """
    if width_of(name + settings, 9) <= width:
        return name + settings
    parts = filter(None, (name, settings.removeprefix(", ")))
    return "\n".join(wrapped(part, width, 9) for part in parts)


def _lines(text: str, width: float, size: float, weight: str, breaks: tuple[str, ...]) -> list[str]:
    if not breaks or width_of(text.rstrip(), size, weight) <= width:
        return [text]
    between, *finer = breaks
    pieces = text.split(between) if between else list(text)
    lines: list[str] = []
    for at, piece in enumerate(pieces):
        piece += between if at + 1 < len(pieces) else ""
        if lines and width_of((lines[-1] + piece).rstrip(), size, weight) <= width:
            lines[-1] += piece
        else:
            lines += _lines(piece, width, size, weight, tuple(finer))
    return lines


def n_lines(text: str) -> int:
    """The number of lines of a wrapped text."""
    return text.count("\n") + 1


def grow(figure: Figure, by: float) -> None:
    """Make the figure taller."""
    figure.set_figheight(figure.get_figheight() + max(0.0, by))


def legend_below(
    figure: Figure, handles: Sequence[Artist], columns: int, size: float = 9
) -> Legend:
    """A legend of these, with their labels, below the panels in at most so many columns; the figure
    has half an inch for it already and grows where it takes more."""
    width = figure.get_figwidth() - 0.2
    shown = [wrapped(str(each.get_label()), width - 0.8, size) for each in handles]
    for n_columns in range(columns, 0, -1):
        legend = figure.legend(
            handles, shown, loc="outside lower center", ncols=n_columns, fontsize=size
        )
        box = legend.get_window_extent()
        if box.width <= width * figure.dpi or n_columns == 1:
            break
        legend.remove()
    grow(figure, box.height / figure.dpi - 0.5)
    return legend


def headline(figure: Figure, text: str) -> None:
    """A line above all panels, or several, for which the figure grows."""
    shown = wrapped(text, figure.get_figwidth() - 0.3, 10)
    figure.suptitle(shown, fontsize=10)
    grow(figure, 10 * LINE * n_lines(shown))
