"""Accuracy against length, and epochs to solve."""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ithbit.families import TASKS, family_named
from ithbit.published import Mean, Variant, published
from ithbit.report.cells import Cells, median, shown_lengths, summary
from ithbit.report.figures.style import FAINT, INK, Look, chance_line, lengths_axis, looks


def _draw_variant(
    axes: Axes, variant: Variant, theirs: dict[int, Mean], cells: Cells, look: Look, shift: float
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
    if not cells.by_cell:
        return
    found = [(n, summary(cells.runs(variant, n), "max_accuracy")) for n in cells.lengths()]
    drawn = [(n_bits, s) for n_bits, s in found if s is not None]
    axes.errorbar(
        [n_bits * shift for n_bits, _ in drawn],
        [s.mean for _, s in drawn],
        # No accuracy is above 1: the upper half of a bar ends there.
        yerr=[
            [s.sd or 0.0 for _, s in drawn],
            [min(s.sd or 0.0, 1.0 - s.mean) for _, s in drawn],
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


def accuracy_figure(cells: Cells) -> Figure:
    """Mean maximum held-out accuracy by n, one panel a task and depth; bars are ± one sd."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True)
    lengths, own = shown_lengths(cells), cells.own()
    paper = {row.variant: row.accuracy for row in published().accuracy}
    styles = looks(variant.layer for variant in own)
    place = {layer: at for at, layer in enumerate(styles)}
    empty = []
    for line, task in enumerate(TASKS):
        for depth in range(1, 5):
            axes = panels[line][depth - 1]
            shown = [v for v in (*paper, *own) if (v.task, v.n_layers) == (task, depth)]
            if not shown:
                axes.axis("off")
                empty.append((task, depth))
                continue
            axes.grid(axis="y")
            chance_line(axes, text=depth == 1)
            for variant in shown:
                layer = variant.layer
                # Families are set a little apart: many of them sit at 1 together.
                shift = 1.0 + 0.035 * (place[layer] % 10 - 2.5)
                _draw_variant(axes, variant, paper.get(variant, {}), cells, styles[layer], shift)
            axes.set_title(f"{task.upper()}, L = {depth}")
            lengths_axis(axes, lengths)
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("length n")
            if depth == 1:
                axes.set_ylabel("max. held-out accuracy")
    panels[0][0].set_ylim(0.45, 1.04)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dash, markersize=5)
        for look in styles.values()
    ]
    handles.append(
        Line2D([], [], color=INK, marker="o", markersize=9, markerfacecolor="none", linestyle="")
    )
    labels = [cells.label(Variant("rhi", f, 1, code, *more)) for f, code, *more in styles]
    labels.append("published mean (open)")
    if {("lhi", 3), ("lhi", 4)} <= set(empty):
        figure.legend(handles, labels, loc="center", bbox_to_anchor=(0.76, 0.27), ncols=2)
    else:
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def epochs_figure(cells: Cells) -> Figure:
    """Epochs until solved, seed by seed, for the nine constructive variants."""
    figure = Figure(figsize=(9.5, 7.2), layout="constrained")
    panels = figure.subplots(3, 3, sharex=True, sharey=True)
    lengths = shown_lengths(cells)
    for axes, row in zip(panels.flat, published().cost, strict=True):
        axes.grid(axis="y")
        _draw_epochs(axes, row.variant, cells, lengths)
        axes.plot(
            [64 * 1.15], [row.median_epochs], marker="*", markersize=9, color=INK, linestyle=""
        )
        label = family_named(row.variant.family).label
        axes.set_title(f"{row.variant.task.upper()} {label}, L = {row.variant.n_layers}")
        axes.set_yscale("log")
        lengths_axis(axes, lengths)
        axes.set_xlim(right=max(lengths) * 1.35)  # the published median stands beside n = 64
        axes.set_yticks([3, 10, 30, 100, 300, 500], ["3", "10", "30", "100", "300", "500"])
        axes.minorticks_off()
        axes.axhline(500, color=FAINT, linewidth=1.2, zorder=0)
    panels[0][0].set_ylim(top=640)
    for axes in panels[-1]:
        axes.set_xlabel("length n")
    for axes in panels[:, 0]:
        axes.set_ylabel("epochs")
    handles = [
        Line2D([], [], color=INK, marker="o", markersize=4, linestyle=""),
        Line2D([], [], color=INK, marker="_", markersize=9, linestyle=""),
        Line2D([], [], color=INK, marker="x", markersize=5, linestyle=""),
        Line2D([], [], color=INK, linewidth=1.4),
        Line2D([], [], color=INK, marker="*", markersize=9, linestyle=""),
    ]
    labels = [
        "first perfect epoch",
        "stopped",
        "never solved",
        "median until stopped",
        "published median until stopped",
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _draw_epochs(axes: Axes, variant: Variant, cells: Cells, lengths: list[int]) -> None:
    """When runs were first perfect, and when those under the whole protocol stopped."""
    look = looks()[variant.family, ""]
    medians, frames = [], []
    for n_bits in lengths:
        runs, whole = (cells.runs(variant, n_bits, whole=only) for only in (False, True))
        if runs.is_empty():
            continue
        if not whole.is_empty():
            medians.append((n_bits, median(whole, "epochs")))
        # Seeds side by side around n, in their order.
        spread = max(1, runs.height - 1)
        x = [n_bits * (1 + 0.16 * (at / spread - 0.5)) for at in range(runs.height)]
        ended = pl.col("stop_when_solved").fill_null(False) & pl.col("solved")
        stop = pl.when(~ended).then("epochs")
        frames.append(runs.with_columns(stop=stop, x=pl.Series(x)))
    if not frames:
        return
    placed = pl.concat(frames).with_columns(first=pl.coalesce("first_solved_epoch", "epochs"))
    solved, missed = placed.filter(pl.col("solved")), placed.filter(~pl.col("solved"))
    for frame, column, marker, size in (
        (solved, "first", "o", 2.8),
        (solved, "stop", "_", 6.0),
        (missed, "epochs", "x", 4.5),
    ):
        axes.plot(
            frame["x"].to_list(),
            frame[column].to_list(),
            marker=marker,
            markersize=size,
            color=look.colour,
            linestyle="",
        )
    if medians:
        axes.plot(*zip(*medians, strict=True), color=look.colour, linestyle=look.dash)
