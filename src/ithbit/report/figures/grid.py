"""The success grid: every configuration and length at once, ours beside the published counts."""

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from ithbit.families import TASKS, Task
from ithbit.published import LENGTHS, RUNS_PER_CELL, Variant, published
from ithbit.report.cells import Cells, Verdicts
from ithbit.report.figures.style import FAINT, INK, PAPER

# One hue from light to dark: the order survives in grey and in every kind of colour blindness.
SHADES = LinearSegmentedColormap.from_list(
    "successes", ["#eef3f7", "#9ecae1", "#3182bd", "#0b3c6f"]
)
DIFFERENT = "#D55E00"
_END = 16.9  # where the longer panel of the paper's configurations ends
_TASK_TITLES = {
    "rhi": "Right-hand indexing (index last)",
    "lhi": "Left-hand indexing (index first)",
}


def _square(axes: Axes, x: float, y: float, share: float | None, text: str, ring: bool) -> None:
    if share is None:
        box = Rectangle((x, y), 1, 1, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0)
        axes.add_patch(box)
        axes.text(x + 0.5, y + 0.53, "–", ha="center", va="center", fontsize=8)
        return
    colour = SHADES(share)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor=PAPER, linewidth=1.2))
    red, green, blue = to_rgb(colour)
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
    ink = "white" if dark else "#111111"
    size = 8 if len(text) < 4 else 6.5
    axes.text(x + 0.5, y + 0.53, text, ha="center", va="center", color=ink, fontsize=size)
    if ring:
        axes.add_patch(
            Rectangle(
                (x + 0.06, y + 0.06), 0.88, 0.88, facecolor="none", edgecolor=DIFFERENT, linewidth=2
            )
        )


def _verdict_mark(axes: Axes, x: float, y: float, found: Verdicts) -> None:
    """In the corner: ✗ if a solved run has a counterexample, ✓ if all tried are right on all."""
    if found.wrong or (found.tried and found.right == found.tried):
        mark = "✗" if found.wrong else "✓"
        patch = Circle((x + 0.84, y + 0.18), 0.17, facecolor=PAPER, edgecolor=INK, linewidth=0.5)
        axes.add_patch(patch)
        axes.text(x + 0.84, y + 0.2, mark, ha="center", va="center", fontsize=5, color=INK)


def _draw_row(
    axes: Axes, y: float, variant: Variant, label: str, theirs: dict[int, int], cells: Cells
) -> None:
    at = len(LENGTHS) + 0.7
    for column, n_bits in enumerate(LENGTHS):
        k, m = cells.count(variant, n_bits)
        printed = theirs.get(n_bits)
        # More than half of a published run off; as products: no division, no rounding.
        differs = printed is not None and abs(k * RUNS_PER_CELL - printed * m) * 2 > m
        _square(axes, column, y, k / m if m else None, f"{k}/{m}", differs)
        _verdict_mark(axes, column, y, cells.verdicts([variant], [n_bits]))
        if printed is not None:
            _square(axes, at + column, y, printed / RUNS_PER_CELL, str(printed), False)
    axes.text(-0.25, y + 0.53, f"{label}, L = {variant.n_layers}", ha="right", va="center")


def _heading(axes: Axes, y: float, text: str) -> None:
    axes.text(-0.25, y + 0.62, text, ha="right", va="center", fontweight="bold")
    axes.plot([-4.2, 2 * len(LENGTHS) + 0.7], [y + 0.95] * 2, color=FAINT, linewidth=0.8)


def _panel(axes: Axes, task: Task, cells: Cells, own: list[Variant], end: float) -> None:
    y = 0.0
    for kind, mark in (("constructive", "✓"), ("stress test", "✗")):
        _heading(axes, y, f"{mark} {kind}")
        y += 1.05
        for row in published().successes:
            if (row.task, row.group) == (task, kind):
                _draw_row(axes, y, row.counted, row.label, row.successes, cells)
                y += 1
        y += 0.35
    if own:
        other = any(variant.differs for variant in own)
        _heading(axes, _END, "not the paper's" if other else "own layers")
    for line, variant in enumerate(own):
        _draw_row(axes, _END + 1.05 + line, variant, cells.label(variant), {}, cells)
    for start, title in ((0.0, "ours"), (len(LENGTHS) + 0.7, "published")):
        axes.text(start + 2, -0.95, title, ha="center", fontweight="bold")
        for column, n_bits in enumerate(LENGTHS):
            axes.text(start + column + 0.5, -0.25, str(n_bits), ha="center")
    axes.text(-0.25, -0.25, "n", ha="right", style="italic")
    axes.set_xlim(-4.3, 2 * len(LENGTHS) + 0.8)
    axes.set_ylim(end, -1.5)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(_TASK_TITLES[task], x=0.02, pad=4)


def success_grid(cells: Cells) -> Figure:
    """Successes of all 23 configurations; a ring marks a rate nearer to another count of five.

    Layers and settings that the paper does not have stand below them.
    """
    own = {task: [v for v in cells.own() if v.task == task] for task in TASKS}
    lines = max(map(len, own.values()))
    end = _END + (lines + 1.4 if lines else 0)
    figure = Figure(figsize=(11, 6.2 * (end + 1.5) / (_END + 1.5)), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        _panel(axes, task, cells, own[task], end)
    last = figure.axes[-1]
    _legend(last, cells)
    return figure


def _legend(axes: Axes, cells: Cells) -> None:
    """Key to the shades, in the room that the shorter panel leaves."""
    y = 13.2
    axes.text(-4.2, y + 0.55, "share of successful runs", va="center")
    for step in range(6):
        _square(axes, 0.6 + step, y, step / 5, f"{step}/5", False)
    if cells.by_cell:
        _square(axes, 0.6, y + 1.4, 0.4, "2/5", True)
        axes.text(1.9, y + 1.95, "nearer to another count of 5", va="center")
        _square(axes, 0.6, y + 2.6, None, "", False)
        axes.text(1.9, y + 3.15, "no finished run", va="center", color=INK)
        if cells.n_verified:
            _verdict_mark(axes, -4.9, y - 1, Verdicts(1, 1, 0, 0))
            axes.text(-3.7, y - 0.8, "tried runs right on all inputs", va="center")
            _verdict_mark(axes, 2.8, y - 1, Verdicts(1, 0, 1, 0))
            axes.text(4.0, y - 0.8, "a counterexample", va="center")
