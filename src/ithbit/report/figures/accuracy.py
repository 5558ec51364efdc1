"""Accuracy against length, and epochs to solve."""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ithbit.families import FAMILIES, TASKS
from ithbit.report.cells import Cells, median, shown_lengths, summary
from ithbit.report.figures.style import FAINT, INK, LOOKS, chance_line, lengths_axis
from ithbit.report.published import LENGTHS, AccuracyRow, Variant, published


def _draw_variant(axes: Axes, row: AccuracyRow, cells: Cells | None) -> None:
    look = LOOKS[row.variant.family]
    # Families are set a little apart: many of them sit at 1 together.
    shift = 1.0 + 0.035 * (list(LOOKS).index(row.variant.family) - 2.5)
    theirs = [row.accuracy[n_bits] for n_bits in LENGTHS]
    axes.plot(
        [n_bits * shift for n_bits in LENGTHS],
        [cell.mean for cell in theirs],
        linestyle="none",
        marker=look.marker,
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=look.colour,
        markeredgewidth=0.9,
        alpha=0.8,
        zorder=2,
    )
    if cells is None:
        return
    found = [(n, summary(cells.runs(row.variant, n), "max_accuracy")) for n in cells.lengths()]
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


def accuracy_figure(cells: Cells | None) -> Figure:
    """Mean maximum held-out accuracy by n, one panel a task and depth; bars are ± one sd."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True, sharey=True)
    lengths = shown_lengths(cells)
    for line, task in enumerate(TASKS):
        for depth in range(1, 5):
            axes = panels[line][depth - 1]
            rows = [
                row
                for row in published().accuracy
                if row.variant.task == task and row.variant.n_layers == depth
            ]
            if not rows:
                axes.axis("off")
                continue
            axes.grid(axis="y")
            chance_line(axes, text=depth == 1)
            for row in rows:
                _draw_variant(axes, row, cells)
            axes.set_title(f"{task.upper()}, L = {depth}")
            lengths_axis(axes, lengths)
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("length n")
            if depth == 1:
                axes.set_ylabel("max. held-out accuracy")
    panels[0][0].set_ylim(0.45, 1.04)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dash, markersize=5)
        for look in (LOOKS[name] for name in FAMILIES)
    ]
    handles.append(
        Line2D([], [], color=INK, marker="o", markersize=9, markerfacecolor="none", linestyle="")
    )
    labels = [*(family.label for family in FAMILIES.values()), "published mean (open)"]
    figure.legend(handles, labels, loc="center", bbox_to_anchor=(0.76, 0.27), ncols=2)
    return figure


def epochs_figure(cells: Cells | None) -> Figure:
    """Epochs until solved, seed by seed, for the nine constructive variants."""
    figure = Figure(figsize=(9.5, 7.2), layout="constrained")
    panels = figure.subplots(3, 3, sharex=True, sharey=True)
    lengths = shown_lengths(cells)
    for axes, row in zip(panels.flat, published().cost, strict=True):
        axes.grid(axis="y")
        if cells is not None:
            _draw_epochs(axes, row.variant, cells, lengths)
        axes.plot(
            [64 * 1.15], [row.median_epochs], marker="*", markersize=9, color=INK, linestyle=""
        )
        label = FAMILIES[row.variant.family].label
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
    look = LOOKS[variant.family]
    medians, frames = [], []
    for n_bits in lengths:
        runs, whole = (cells.runs(variant, n_bits, whole=only) for only in (False, True))
        if runs is None:
            continue
        if whole is not None:
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
