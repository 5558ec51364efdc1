"""Figures of encodings, and of accuracy at other lengths than the trained one."""

from itertools import accumulate, cycle, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ithbit.published import Mean, Settings, Variant, published
from ithbit.reporting.cells import Cells, solved, summary
from ithbit.reporting.figures.style import FAINT, INK, chance_line, lengths_axis
from ithbit.reporting.figures.texts import LINE, legend_below, n_lines, row_label, width_of, wrapped
from ithbit.reporting.verdict_counts import WORDS, count_verdicts

_LENGTH_FILLS = {32: ("#9ecae1", ""), 64: ("#3182bd", "///")}
_EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
_DIAMOND: dict[str, Any] = {"marker": "D", "color": "#E69F00", "markeredgecolor": INK}


def positions_figure(cells: Cells) -> Figure | None:
    """Share of solved runs and mean maximum accuracy of each encoding; diamonds are published."""
    runs = {row: cells.positions_runs(row.positions, row.n_bits) for row in published().positions}
    rows = [row for row in runs if not runs[row].is_empty()]
    if not rows:
        return None
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row.positions for row in rows))
    for row in rows:
        colour, hatch = _LENGTH_FILLS[row.n_bits]
        x = names.index(row.positions) + (-0.2 if row.n_bits == 32 else 0.2)
        accuracy, counts = summary(runs[row], "max_accuracy"), count_verdicts(runs[row])
        share, printed = counts.solved / counts.runs, row.successes / row.runs
        left.annotate(
            f"{counts.solved}/{counts.runs} {counts.marks()}".strip().replace(" ", "\n"),
            (x, max(share, printed)),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
        )
        mean = accuracy.mean if accuracy else 0.0  # all diverged in their first epoch: no bar
        for axes, height, theirs in ((left, share, printed), (right, mean, row.accuracy)):
            axes.bar(x, height, 0.36, color=colour, hatch=hatch, **_EDGE)
            axes.plot(x, theirs, markersize=6, **_DIAMOND)
    all_counts = [count_verdicts(runs[row]) for row in rows]
    letters = [
        f"{w[0]} {word}" for word, w in WORDS.items() if any(s.counts[word] for s in all_counts)
    ]
    for axes, title in (
        (left, f"share of solved runs ({', '.join(letters)})".removesuffix(" ()")),
        (right, "mean max. held-out accuracy, from chance up"),
    ):
        axes.set_xticks(range(len(names)), [name.capitalize() for name in names])
        axes.grid(axis="y")
        axes.set_xlabel("encoding of positions")
        axes.set_title(wrapped(title, 4.5, 10, "bold"))
    left.set_ylim(0, 1.25)
    left.set_yticks([0.2 * step for step in range(6)])  # no share is above 1
    right.set_ylim(0.5, 1.03)
    bars = [
        Patch(facecolor=colour, hatch=hatch, label=f"ours, n = {n_bits}", **_EDGE)
        for n_bits, (colour, hatch) in _LENGTH_FILLS.items()
    ]
    legend_below(figure, [*bars, Line2D([], [], linestyle="", label="published", **_DIAMOND)], 3)
    return figure


_SIDES = (("half", "n/2", "#0072B2", "o"), ("double", "2n", "#D55E00", "^"))
_OPEN: dict[str, Any] = {"markerfacecolor": "none", "linestyle": ":"}  # the look of published ones
_GAPS = ((9, 1), (9, 4), (5, 1, 1, 1, 1, 1))
_ROW = 0.38  # inches of a row whose label has one line
_DASHES: tuple[Any, ...] = ("-", "--", "-.", *((0, gap) for gap in _GAPS))  # published is dotted


def _ours(
    cells: Cells, n_bits: int, variant: Variant | None, side: str, differs: Settings = ()
) -> Mean | None:
    runs = cells.length_runs(n_bits, variant, differs)
    return summary(solved(runs), f"{side}_length_accuracy")


def _draw_by_n(axes: Axes, cells: Cells) -> list[Line2D]:
    """The nine constructive variants together; returns a handle for each kind of settings."""
    paper = published().length_by_n
    lengths = cells.lengths()
    handles = []
    for differs, dash in zip(cells.settings_shown(), cycle(_DASHES), strict=False):
        any_points = False
        for side, _, colour, marker in _SIDES:
            shift = 0.97 if side == "half" else 1.03
            summaries = {n: _ours(cells, n, None, side, differs) for n in lengths}
            summary_at = {n * shift: s for n, s in summaries.items() if s is not None}
            any_points = any_points or bool(summary_at)
            printed = {
                n * shift * 1.07: getattr(paper[n], side)
                for n in lengths
                if n in paper and summaries[n] and not differs
            }
            ours: dict[str, Any] = {"markersize": 5, "linestyle": dash}
            theirs = _OPEN | {"markersize": 7, "linewidth": 1}
            for points, style in ((summary_at, ours), (printed, theirs)):
                means = [each.mean for each in points.values()]
                sds = [each.sd or 0.0 for each in points.values()]
                axes.errorbar(
                    list(points), means, sds, marker=marker, color=colour, capsize=2, **style
                )
        if any_points and len(cells.settings_shown()) > 1:
            label = cells.suffix(differs).removeprefix(", ") or "the paper's settings"
            handles.append(Line2D([], [], color=INK, linestyle=dash, label=label))
    lengths_axis(axes, lengths)
    axes.set_xlabel("trained length n")
    axes.set_ylabel("accuracy at another length")
    axes.grid(axis="y")
    chance_line(axes, left=True)
    axes.set_title("the paper's constructive variants")
    return handles


def _named(cells: Cells, variant: Variant) -> str:
    """A row's label."""
    name = f"{variant.task.upper()} {cells.family(variant)}, L = {variant.n_layers}"
    return row_label(name, cells.suffix(variant.differs), 2.6)


def _tall(name: str) -> float:
    """The height of a row with this label; that of most is 1."""
    return max(1.0, (9 * LINE * n_lines(name) + 0.08) / _ROW)


def _draw_by_family(axes: Axes, cells: Cells) -> None:
    n_bits = cells.length_shown()
    paper = published().length_by_family if n_bits == 64 else {}
    rows = [
        v for v in cells.variants_at(n_bits) if not solved(cells.length_runs(n_bits, v)).is_empty()
    ]
    names = [_named(cells, v) for v in rows]
    ends = list(accumulate(map(_tall, names), initial=-0.5))
    middles = [(top + bottom) / 2 for top, bottom in pairwise(ends)]
    for y, variant in zip(middles, rows, strict=True):
        printed = paper.get(variant)
        for side, _, colour, marker in _SIDES:
            below = -0.2 if side == "half" else 0.16
            theirs = getattr(printed, side) if printed else None
            for accuracy, at, style in (
                (theirs, below + 0.09, _OPEN | {"markersize": 6, "elinewidth": 0.8}),
                (_ours(cells, n_bits, variant, side), below - 0.06, {"markersize": 4.5}),
            ):
                if accuracy is not None:
                    style |= {"marker": marker, "color": colour, "capsize": 2}
                    axes.errorbar(accuracy.mean, y + at, xerr=accuracy.sd or 0.0, **style)
    axes.set_yticks(middles, names)
    axes.invert_yaxis()
    axes.axvline(0.5, color=INK, linestyle=":", linewidth=0.8)
    for y in ends[1:-1]:
        axes.axhline(y, color=FAINT, linewidth=0.5)
    axes.set_xlabel("accuracy at another length")
    axes.set_title(f"trained at n = {n_bits}")


def length_figure(cells: Cells) -> Figure | None:
    """Accuracy at n/2 and 2n of the runs that were solved at n; bars are ± one sd."""
    n_bits = cells.length_shown()
    variants = cells.variants_at(n_bits)
    shown = [*((n, None) for n in cells.lengths()), *((n_bits, v) for v in variants)]
    if all(solved(cells.length_runs(*each)).is_empty() for each in shown):
        return None
    names = [_named(cells, v) for v in variants]
    width = max((width_of(line, 9) for name in names for line in name.split("\n")), default=0)
    size = (10.5 + max(0.0, width - 1.8), max(4.8, 1.2 + _ROW * sum(map(_tall, names))))
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    settings_handles = _draw_by_n(left, cells)
    _draw_by_family(right, cells)
    whose: dict[str, dict[str, Any]] = {"ours": {}, "published": _OPEN}
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"{name}, at {where}", **style)
        for name, style in list(whose.items())[: 1 if cells.all_nonstandard else 2]
        for _, where, colour, marker in _SIDES
    ]
    legend_below(figure, handles + settings_handles, 4)
    return figure
