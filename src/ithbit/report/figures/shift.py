"""Encodings, and accuracy at other lengths than the trained one."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ithbit.families import family_named
from ithbit.published import LengthRow, published
from ithbit.report.cells import Cells, Summary, count, solved, summary
from ithbit.report.figures.style import FAINT, INK, chance_line, lengths_axis
from ithbit.report.tables.appendix import length_runs, positions_runs

_LENGTH_FILLS = {32: ("#9ecae1", ""), 64: ("#3182bd", "///")}


def positions_figure(cells: Cells) -> Figure:
    """Success rate and mean maximum accuracy of each encoding; diamonds are published."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = published().positions
    names = list(dict.fromkeys(row.positions for row in rows))
    for row in rows:
        colour, hatch = _LENGTH_FILLS[row.n_bits]
        x = names.index(row.positions) + (-0.2 if row.n_bits == 32 else 0.2)
        runs = positions_runs(cells, row.positions, row.n_bits)
        found = summary(runs, "max_accuracy")
        ours: tuple[float | None, float | None] = (None, None)
        if found is not None:
            k, m = count(runs)
            ours = (k / m, found.mean)
            left.annotate(
                f"{k}/{m}",
                (x, max(k / m, row.successes / row.runs)),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
            )
        for axes, height, theirs in (
            (left, ours[0], row.successes / row.runs),
            (right, ours[1], row.accuracy),
        ):
            if height is not None:
                axes.bar(x, height, 0.36, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.6)
            axes.plot(x, theirs, marker="D", markersize=6, color="#E69F00", markeredgecolor=INK)
    for axes, title in (
        (left, "share of successful runs"),
        (right, "mean max. held-out accuracy, from chance up"),
    ):
        axes.set_xticks(range(len(names)), [name.capitalize() for name in names])
        axes.grid(axis="y")
        axes.set_title(title)
    left.set_ylim(0, 1.16)
    right.set_ylim(0.5, 1.03)
    handles = [
        *(
            Patch(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.6)
            for colour, hatch in _LENGTH_FILLS.values()
        ),
        Line2D([], [], marker="D", color="#E69F00", markeredgecolor=INK, linestyle=""),
    ]
    labels = ["ours, n = 32", "ours, n = 64", "published"]
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


_SIDES = (("half", "n/2", "#0072B2", "o"), ("double", "2n", "#D55E00", "^"))


def _ours(cells: Cells, row: LengthRow, side: str) -> Summary | None:
    return summary(solved(length_runs(cells, row.n_bits, row.variant)), f"{side}_length_accuracy")


def _draw_by_n(axes: Axes, cells: Cells) -> None:
    rows = published().length_by_n
    for side, where, colour, marker in _SIDES:
        means = [getattr(row, side) for row in rows]
        shift = 0.97 if side == "half" else 1.03
        axes.errorbar(
            [row.n_bits * shift * 1.07 for row in rows],
            [mean.mean for mean in means],
            [mean.sd for mean in means],
            marker=marker,
            markerfacecolor="none",
            markersize=7,
            color=colour,
            linestyle=":",
            linewidth=1,
            capsize=2,
        )
        found = [(row.n_bits * shift, _ours(cells, row, side)) for row in rows]
        drawn = [(x, s) for x, s in found if s is not None]
        axes.errorbar(
            [x for x, _ in drawn],
            [s.mean for _, s in drawn],
            [s.sd or 0.0 for _, s in drawn],
            marker=marker,
            markersize=5,
            color=colour,
            linestyle="-",
            capsize=2,
            label=f"at {where}",
        )
    lengths_axis(axes, [row.n_bits for row in rows])
    axes.set_xlabel("trained length n")
    axes.set_ylabel("accuracy at another length")
    axes.grid(axis="y")
    chance_line(axes, left=True)
    axes.set_title("all constructive variants")


def _draw_by_family(axes: Axes, cells: Cells) -> None:
    rows = published().length_by_family
    for y, row in enumerate(rows):
        for side, _, colour, marker in _SIDES:
            theirs = getattr(row, side)
            below = -0.2 if side == "half" else 0.16
            axes.errorbar(
                theirs.mean,
                y + below + 0.09,
                xerr=theirs.sd,
                marker=marker,
                markerfacecolor="none",
                markersize=6,
                color=colour,
                capsize=2,
                elinewidth=0.8,
                linestyle=":",
            )
            found = _ours(cells, row, side)
            if found is not None:
                axes.errorbar(
                    found.mean,
                    y + below - 0.06,
                    xerr=found.sd or 0.0,
                    marker=marker,
                    markersize=4.5,
                    color=colour,
                    capsize=2,
                )
    labels = []
    for row in rows:
        assert row.variant is not None
        v = row.variant
        labels.append(f"{v.task.upper()} {family_named(v.family).label}, L = {v.n_layers}")
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.axvline(0.5, color=INK, linestyle=":", linewidth=0.8)
    for y in range(len(rows) - 1):
        axes.axhline(y + 0.5, color=FAINT, linewidth=0.5)
    axes.set_xlabel("accuracy at another length")
    axes.set_title("trained at n = 64")


def length_figure(cells: Cells) -> Figure:
    """Accuracy at n/2 and 2n of the runs that succeeded at n; bars are ± one sd."""
    figure = Figure(figsize=(10.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _draw_by_n(left, cells)
    _draw_by_family(right, cells)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"ours, at {where}")
        for _, where, colour, marker in _SIDES
    ] + [
        Line2D(
            [],
            [],
            color=colour,
            marker=marker,
            markerfacecolor="none",
            linestyle=":",
            label=f"published, at {where}",
        )
        for _, where, colour, marker in _SIDES
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure
