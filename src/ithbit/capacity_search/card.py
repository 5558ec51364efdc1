"""The capacity card: one HTML file with a search's results, its figure and a summary in words.

The figure shows the largest n learnt against the size of the state on logarithmic axes, with the
limits that are proved and those of floats. All text is escaped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import fmean, linear_regression

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ithbit.capacity_search.result import HEADS, Capacities, Capacity, atlas, cells
from ithbit.display import lower_text, pluralize, upper_text
from ithbit.families import FAMILIES, family_named
from ithbit.html import filled_page
from ithbit.reporting.comparison.statistics import student_quantile
from ithbit.reporting.figures import for_page
from ithbit.reporting.figures.style import INK, PAPER, RC, SPARE
from ithbit.theory.bounds.state import BITS

_FEWEST = 4  # distinct states needed to fit an exponent
_FILLED = 0.95
_MARKERS = "oDsv"  # by depth


def render_card(capacities: Capacities) -> str:
    """The card of a search as HTML, its cells shown among the known ones."""
    own = {each.cell for each in capacities}
    others = [each for each in atlas() if each.cell not in own]
    return filled_page(
        "ithbit.capacity_search",
        "card.html",
        layers=", ".join(dict.fromkeys(each.label for each in capacities)),
        lines=[*(each.sentence() for each in capacities), *capacities.stuck],
        heads=HEADS,
        rows=[cells(each) for each in capacities],
        asked=capacities.asked,
        figure=for_page(capacity_figure(others, tuple(capacities)), "capacity"),
        exponents=[each.sentence() for each in fits(others)],
    )


@dataclass(frozen=True)
class Fit:
    """n = scale · S^exponent, by least squares in logarithms over the brackets of one family.

    The interval has level 95 % if the residuals are independent and normal.
    """

    family: str
    exponent: float
    low: float
    high: float
    scale: float
    points: int

    def sentence(self) -> str:
        """The exponent with its interval.

        >>> Fit("gru", 0.5, 0.4, 0.6, 2.0, 6).sentence()
        'GRU: n ∝ S^0.50 (0.40 to 0.60, 6 cells)'
        """
        span = f"{lower_text(self.low, places=2)} to {upper_text(self.high, places=2)}"
        label = family_named(self.family).label
        return f"{label}: n ∝ S^{self.exponent:.2f} ({span}, {self.points} cells)"


def fit(family: str, rows: Sequence[Capacity]) -> Fit | None:
    """The fitted exponent of one family on RHI; None if it has too few distinct states."""
    points = [
        (math.log(each.state), math.log(each.middle))
        for each in rows
        if each.family == family and each.task == "rhi" and each.final and each.state
        if each.middle is not None
    ]
    if len({x for x, _ in points}) < _FEWEST:
        return None
    xs, ys = zip(*points, strict=True)
    slope, start = linear_regression(xs, ys)
    rest = sum((y - start - slope * x) ** 2 for x, y in points)
    free, middle = len(points) - 2, fmean(xs)
    error = math.sqrt(rest / free / sum((x - middle) ** 2 for x in xs))
    reach = student_quantile(1 - _FILLED, free) * error
    return Fit(family, slope, slope - reach, slope + reach, math.exp(start), len(points))


def fits(rows: Sequence[Capacity]) -> list[Fit]:
    """The fitted exponents of the families that have enough cells."""
    families = dict.fromkeys(each.family for each in rows)
    return [power_law for family in families if (power_law := fit(family, rows)) is not None]


@mpl.rc_context(RC)
def capacity_figure(others: Sequence[Capacity], own: Sequence[Capacity] = ()) -> Figure:
    """Cells on RHI: a mark at what is solved, a line up to what failed. Cells without a state, or
    whose state is not known, stand in a panel of their own. A user's cells are drawn as stars."""
    points = [each for each in (*others, *own) if each.task == "rhi" and each.solved_at]
    with_state = [each for each in points if each.state]
    stateless = [each for each in points if not each.state]
    stateless.sort(key=lambda each: (each.family, each.layers, each.width))
    colours = _colours([each.family for each in points])
    markers = dict(zip(sorted({each.layers for each in points}), cycle(_MARKERS), strict=False))

    def draw(axes: Axes, x: float, each: Capacity) -> None:
        _draw(axes, x, each, each in own, colours[each.family], markers[each.layers])

    figure = Figure(figsize=(8.6, 5.6), layout="constrained")
    # A second panel has so many cells side by side.
    widths = [6.0, 0.4 + 0.28 * len(stateless)] if stateless else [1.0]
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)
    axes, *strip = panels[0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for each in with_state:
        draw(axes, each.state or 0, each)
    states = [each.state for each in with_state if each.state] or [1, 1024]
    ends = min(states) / 1.5, max(states) * 1.5
    lengths = [n for each in points for n in (each.failed_at, each.solved_at, each.n_star)]
    bottom = min([2, *(0.8 * each.solved_at for each in points)])
    top = 3 * max([64, *(n for n in lengths if n)])
    _limits(axes, ends, top)
    for power_law in fits(others):
        fitted = [e.state or 1 for e in with_state if e.family == power_law.family and e.final]
        span = [float(end(fitted)) for end in (min, max)]
        axes.plot(
            span, [power_law.scale * end**power_law.exponent for end in span],
            color=colours[power_law.family], linewidth=0.8, alpha=0.6, zorder=1,
        )  # fmt: skip
    axes.set_xlim(*ends)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("numbers in the state, all layers")
    axes.set_ylabel("n: solved (mark), failed (end of the line)")
    axes.set_title("Largest n learnt (right-hand indexing)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(handles=_legend(points, colours, markers), loc="upper left", fontsize=8)
    for panel in strip:
        for place, each in enumerate(stateless):
            draw(panel, place, each)
        panel.set_xlim(-0.6, len(stateless) - 0.4)
        panel.set_xticks(range(len(stateless)), [str(each.width) for each in stateless])
        fixed = all(each.family in FAMILIES for each in stateless)
        why = "no fixed state" if fixed else "state not fixed or not known"
        panel.set_xlabel(f"width; {why}")
    for panel in (axes, *strip):
        panel.grid(which="major")
    return figure


def _limits(axes: Axes, ends: tuple[float, float], top: float) -> None:
    """32·S and one bit per number, each named where its line leaves the axes."""
    for text, factor, line in (
        (f"{BITS}·S: 32-bit numbers", BITS, "-"),
        ("one bit per number", 1, ":"),
    ):
        axes.plot(ends, [factor * end for end in ends], line, color=INK, linewidth=1)
        leaves = min(ends[1], top / factor)
        axes.annotate(
            text, (leaves, factor * leaves), ha="right", va="top", fontsize=7, color=INK,
            xytext=(-16, 0), textcoords="offset points",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def _draw(axes: Axes, x: float, each: Capacity, is_own: bool, colour: str, marker: str) -> None:
    low, high = each.solved_at, each.failed_at
    edge = INK if is_own else PAPER if each.final else colour
    axes.plot(
        [x], [low], "*" if is_own else marker, color=colour if each.final else PAPER,
        markeredgecolor=edge, markeredgewidth=0.8,
        markersize=14 if is_own else 6, zorder=4 if is_own else 3,
    )  # fmt: skip
    top = high if high is not None else 1.3 * low
    axes.plot([x] * 2, [low, top], color=colour, linewidth=1.5, zorder=2)
    if high is None:
        axes.plot([x], [top], "^", color=colour, markersize=4)
    if each.n_star is not None:
        axes.plot([x], [each.n_star], "_", color=colour, markersize=12, zorder=2)


def _colours(families: Sequence[str]) -> dict[str, str]:
    spare = iter(SPARE * len(families))
    return {
        name: (FAMILIES[name].colour if name in FAMILIES else next(spare))
        for name in dict.fromkeys(families)
    }


def _legend(
    points: Sequence[Capacity], colours: dict[str, str], markers: dict[int, str]
) -> list[Line2D]:
    line, mark = partial(Line2D, [], [], linewidth=3), partial(Line2D, [], [], linestyle="")
    handles = [line(color=c, label=family_named(name).label) for name, c in colours.items()]
    handles += [
        mark(color=INK, marker=marker, label=pluralize(depth, "layer"))
        for depth, marker in markers.items()
    ]
    if not all(each.final for each in points):
        handles.append(
            mark(color=PAPER, markeredgecolor=INK, marker=_MARKERS[0], label="search not done")
        )
    statuses = sorted({each.n_star_status for each in points if each.n_star is not None})
    handles += [mark(color=INK, marker="_", label=f"n* ({status})") for status in statuses]
    return handles
