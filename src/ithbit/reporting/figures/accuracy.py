"""Accuracy against length, and epochs to solve."""

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ithbit.families import TASKS, Family
from ithbit.published import Mean, Variant, published
from ithbit.reporting.cells import Cell, Cells, full_protocol_runs, median, summary
from ithbit.reporting.figures.style import INK, chance_line, lengths_axis, looks
from ithbit.reporting.figures.texts import LINE, grow, legend_below, n_lines, wrapped


def _draw_variant(
    axes: Axes, variant: Variant, theirs: dict[int, Mean], cells: Cells, look: Family, shift: float
) -> None:
    axes.plot(
        [n_bits * shift for n_bits in theirs],
        [cell.mean for cell in theirs.values()],
        linestyle="none",
        marker=look.marker,
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=look.colour,
        markeredgewidth=0.9,
        alpha=0.8,
        zorder=2,
    )
    summaries = [(n, summary(cells.runs(variant, n), "max_accuracy")) for n in cells.lengths()]
    points = [(n_bits, s) for n_bits, s in summaries if s is not None]
    axes.errorbar(
        [n_bits * shift for n_bits, _ in points],
        [s.mean for _, s in points],
        # No accuracy is above 1: the upper half of a bar ends there.
        yerr=[
            [s.sd or 0.0 for _, s in points],
            [min(s.sd or 0.0, 1.0 - s.mean) for _, s in points],
        ],
        color=look.colour,
        marker=look.marker,
        markersize=4,
        linestyle=look.dash,
        linewidth=1.4,
        elinewidth=1.0,
        capsize=2,
        zorder=3,
    )


def _panels(
    count: int, most: int, width: float, height: float, below: float
) -> tuple[Figure, list[Axes]]:
    """Panels of a size in inches, at most `most` side by side, with room `below` for a legend."""
    columns = min(most, count)
    lines = -(-count // columns)
    size = (0.4 + width * max(2, columns), height * lines + below)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[count:]:
        axes.axis("off")
    for axes in grid.flat[:count]:
        axes.grid(axis="y")
        axes.tick_params(labelbottom=True)
    return figure, list(grid.flat[:count])


def accuracy_figure(cells: Cells) -> Figure | None:
    """Mean maximum held-out accuracy by n, one panel per task and depth; bars are ± one sd.

    Published means are drawn next to runs of the same variant.
    """
    paper = published().accuracy
    variants, lengths = cells.variants(), cells.lengths()
    shown = sorted({(TASKS.index(v.task), v.n_layers) for v in variants})
    if not shown:
        return None
    figure, panels = _panels(len(shown), 4, 2.65, 2.4, 0.9)
    styles = looks((variant.layer for variant in variants), cells.layers)
    for number, (axes, (task, depth)) in enumerate(zip(panels, shown, strict=True)):
        chance_line(axes, text=number == 0)
        for variant in variants:
            if (variant.task, variant.n_layers) == (TASKS[task], depth):
                # Families are drawn a little apart: many of them coincide at 1.
                place = list(styles).index(variant.layer) - (len(styles) - 1) / 2
                shift = 1.0 + 0.035 * min(1.0, 6 / len(styles)) * place
                look = styles[variant.layer]
                _draw_variant(axes, variant, paper.get(variant, {}), cells, look, shift)
        axes.set_title(f"{TASKS[task].upper()}, L = {depth}")
        lengths_axis(axes, lengths)
        axes.set_xlabel("length n")
        if number % 4 == 0:
            axes.set_ylabel("max. held-out accuracy")
    panels[0].set_ylim(0.45, 1.04)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dash, markersize=5)
        for look in styles.values()
    ]
    for handle, (family, code, *more) in zip(handles, styles, strict=True):
        handle.set_label(cells.label(Variant("rhi", family, 1, code, *more)))
    if any(variant in paper for variant in variants):
        mark = Line2D([], [], color=INK, marker="o", markersize=9, linestyle="")
        mark.set(markerfacecolor="none", label="published mean (open)")
        handles.append(mark)
    legend_below(figure, handles, min(4, len(shown) + 1))
    return figure


_TITLE = 2.75  # width of a title over a panel of epochs
_EPOCH_MARKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("first perfect epoch", {"marker": "o", "markersize": 4, "linestyle": ""}),
    ("stopped", {"marker": "_", "markersize": 9, "linestyle": ""}),
    ("never solved", {"marker": "x", "markersize": 5, "linestyle": ""}),
    ("median until stopped", {}),
    ("published median until stopped", {"marker": "*", "markersize": 9, "linestyle": ""}),
)


def epochs_figure(cells: Cells) -> Figure | None:
    """Epochs until solved, by seed: the nine constructive variants, and any beyond the paper."""
    paper = published().cost
    shown = [v for v in paper if v in cells.variants()] + cells.own()
    if not shown:
        return None
    figure, panels = _panels(len(shown), 3, 3.05, 2.1, 0.8)
    lengths = cells.lengths()
    styles = looks((variant.layer for variant in shown), cells.layers)
    added = [0.0] * -(-len(shown) // 3)  # what each line of panels needs above its names
    for number, (axes, variant) in enumerate(zip(panels, shown, strict=True)):
        _draw_epochs(axes, variant, cells, lengths, styles[variant.layer])
        if row := paper.get(variant):
            axes.plot([64 * 1.15], [row.median_epochs], color=INK, **_EPOCH_MARKS[-1][1])
        above = _title(axes, variant, cells)
        added[number // 3] = max(added[number // 3], above)
        axes.set_yscale("log")
        lengths_axis(axes, lengths)
        axes.set_xlim(right=max(lengths) * 1.35)  # the published median is drawn right of n = 64
        if number + 3 >= len(shown):
            axes.set_xlabel("length n")
        if number % 3 == 0:
            axes.set_ylabel("epochs")
    whole_epochs(panels[0])
    marks = _EPOCH_MARKS if any(variant in paper for variant in shown) else _EPOCH_MARKS[:-1]
    grow(figure, sum(added))
    legend_below(figure, [Line2D([], [], color=INK, label=t, **mark) for t, mark in marks], 3)
    return figure


def _title(axes: Axes, variant: Variant, cells: Cells) -> float:
    """Name a panel's model, and below that its settings; returns the height that is added to a
    title of one line."""
    size, settings = 9.0, cells.suffix(variant.differs).removeprefix(", ")
    name = f"{variant.task.upper()} {cells.family(variant)}, L = {variant.n_layers}"
    name = wrapped(name, _TITLE, size, "bold")
    above = 0.0
    if settings:
        settings = wrapped(settings, _TITLE, size - 1)
        above = (size - 1) * LINE * n_lines(settings)
        at: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        subtitle = axes.annotate(settings, (0, 1), (0, 5), va="bottom", fontsize=size - 1, **at)
        subtitle.set_in_layout(False)  # the title has room for it
    axes.set_title(name, fontsize=size, pad=6 + 72 * above + (2 if settings else 0))
    return above + size * LINE * (n_lines(name) - 1)


def whole_epochs(axes: Axes) -> None:
    """Tick a logarithmic axis at whole epochs: 1, 3, 10 and so on, or more densely if few."""
    low, high = axes.get_ylim()
    ticks = [t for t in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if low <= t <= high]
    if len(ticks) < 3:
        step = max(1, int(high) // 6)
        every = [t for t in range(max(1, round(low)), int(high) + 1) if t % step == 0]
        apart = (high / low) ** (1 / 9)  # what a number needs of the axis
        ticks = every[:1]
        for t in every[1:]:
            if t > ticks[-1] * apart:
                ticks.append(t)
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()


def _draw_epochs(
    axes: Axes, variant: Variant, cells: Cells, lengths: list[int], look: Family
) -> None:
    """When runs were first perfect, and when those under the whole protocol stopped."""
    runs = cells.of(Cell(variant, n_bits) for n_bits in lengths)
    at, others = pl.int_range(pl.len()).over("n_bits"), pl.len().over("n_bits") - 1
    early = pl.col("stop_when_solved").fill_null(False) & pl.col("solved")
    placed = runs.with_columns(
        # Seeds side by side around n, in their order.
        x=pl.col("n_bits") * (1 + 0.16 * (at / others.clip(1) - 0.5)),
        first=pl.coalesce("first_solved_epoch", "epochs"),
        stop=pl.when(~early).then("epochs"),
        ended=pl.coalesce("epochs", "failed_epoch"),
    )
    solved, missed = placed.filter(pl.col("solved")), placed.filter(~pl.col("solved"))
    for frame, column, marker, size in (
        (solved, "first", "o", 2.8),
        (solved, "stop", "_", 6.0),
        (missed, "ended", "x", 4.5),
    ):
        axes.plot(
            frame["x"].to_list(),
            frame[column].to_list(),
            marker=marker,
            markersize=size,
            color=look.colour,
            linestyle="",
        )
    medians = {n: median(full_protocol_runs(cells.runs(variant, n)), "epochs") for n in lengths}
    points = {n: middle for n, middle in medians.items() if middle is not None}
    if points:
        axes.plot(list(points), list(points.values()), color=look.colour, linestyle=look.dash)
