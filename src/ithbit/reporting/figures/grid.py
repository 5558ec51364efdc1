"""The success grid: every configuration and length at once, ours with the published counts.

The bar in a square shows how its solved runs stand.
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ithbit.families import TASKS, Group, Task, group
from ithbit.published import RUNS_PER_CELL, Variant, published
from ithbit.reporting.cells import Cells
from ithbit.reporting.figures.style import FAINT, INK, PAPER
from ithbit.reporting.figures.texts import LINE, legend_below, n_lines, row_label, width_of
from ithbit.reporting.verdict_counts import WORDS, VerdictCounts

# One hue from light to dark: the order stays visible in grey and in every kind of colour blindness.
NONE = "#eef3f7"
SHADES = LinearSegmentedColormap.from_list("successes", [NONE, "#9ecae1", "#3182bd", "#0b3c6f"])
DIFFERENT = "#D55E00"
# From dark to light and back, so that neighbours differ in grey too.
STANDING = dict(zip(WORDS, ("#B2182B", "#FBE3D6", "#C9BFE3", "#8FD6B8", "#00674B"), strict=True))
_TASK_TITLES = {
    "rhi": "Right-hand indexing (index last)",
    "lhi": "Left-hand indexing (index first)",
}
_GROUPS: dict[Group, str] = {
    "constructive": "✓ constructive",
    "stress test": "✗ stress test",
    "own layer": "own layers",
}
_INCH = 0.315  # side of a square
_LABEL = 3.2  # width of a label in inches
Line = tuple[str, Variant, dict[int, int]]  # label, variant, published successes of five
Block = tuple[str, list[Line]]  # a heading and the lines below it


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
    ink = "white" if dark else "#111111" if share else INK
    size = 8 if len(text) < 4 else min(6.5, 33 / len(text))
    axes.text(x + 0.5, y + 0.45, text, ha="center", va="center", color=ink, fontsize=size)
    if ring:
        axes.add_patch(
            Rectangle(
                (x + 0.06, y + 0.06), 0.88, 0.88, facecolor="none", edgecolor=DIFFERENT, linewidth=2
            )
        )


def _bar(axes: Axes, x: float, y: float, counts: VerdictCounts) -> None:
    """Draw at the bottom how the solved runs stand; those not tried leave a gap."""
    left = x + 0.1
    for word, colour in STANDING.items():
        n = counts.counts[word]
        width = 0.8 * n / max(1, counts.solved)
        if n:
            patch = Rectangle((left, y + 0.73), width, 0.18, facecolor=colour, edgecolor="none")
            axes.add_patch(patch)
        left += width


def _blocks(cells: Cells, task: Task) -> list[Block]:
    """Headings and the lines below them, for what has runs."""
    own = [v for v in cells.own() if v.task == task]
    blocks: list[Block] = []
    for kind, heading in _GROUPS.items():
        lines: list[Line] = [
            (_label(row.label, row.counted, ""), row.counted, row.successes)
            for row in published().successes
            if (row.task, row.group) == (task, kind) and row.counted in cells.variants()
        ]
        lines += [
            (_label(cells.family(v), v, cells.suffix(v.differs)), v, {})
            for v in own
            if group(task, v.family, v.n_layers) == kind
        ]
        blocks += [(heading, lines)] if lines else []
    return blocks


def _label(name: str, variant: Variant, settings: str) -> str:
    return row_label(f"{name}, L = {variant.n_layers}", settings, _LABEL)


def _room(labels: Iterable[str]) -> float:
    """The squares that labels take: layout finds room for a little more, but not for long ones."""
    widths = {label: width_of(label, 9) / _INCH + 0.4 for label in labels}
    widest = max(widths.values())
    return widest if widest > 6 else max(3.6, 0.21 * (max(map(len, widths)) + 1))


def _tall(line: Line) -> float:
    """The height of a line of squares, or of its label if that is taller."""
    return 9 * LINE / _INCH * n_lines(line[0]) + 0.5 if "\n" in line[0] else 1.0


def _draw_line(axes: Axes, y: float, line: Line, cells: Cells, lengths: list[int]) -> None:
    label, variant, theirs = line
    at = len(lengths) + 0.7
    for column, n_bits in enumerate(lengths):
        counts, printed = cells.verdict_counts([variant], n_bits), theirs.get(n_bits)
        k, m = counts.solved, counts.runs
        # Off by more than half of a published run; as products: no division, no rounding.
        differs = printed is not None and abs(k * RUNS_PER_CELL - printed * m) * 2 > m
        _square(axes, column, y, k / m if m else None, f"{k}/{m}", differs)
        _bar(axes, column, y, counts)
        if printed is not None:
            _square(axes, at + column, y, printed / RUNS_PER_CELL, str(printed), False)
    axes.text(-0.25, y + 0.53, label, ha="right", va="center")


def success_grid(cells: Cells) -> Figure | None:
    """Solved runs of all configurations; a ring marks a count that is another one out of five.

    Published counts are drawn next to runs of the same configuration and length.
    """
    lengths = cells.lengths()
    blocks = {task: groups for task in TASKS if (groups := _blocks(cells, task))}
    if not blocks:
        return None
    every = [line for groups in blocks.values() for _, lines in groups for line in lines]
    sides = ["ours", *(["published, of 5"] if any(theirs for _, _, theirs in every) else [])]
    left = -_room(part for label, _, _ in every for part in label.split("\n"))
    right = len(sides) * (len(lengths) + 0.7)
    height = max(
        sum(sum(map(_tall, lines)) + 1.4 for _, lines in groups) for groups in blocks.values()
    )
    wide = max(right - left, 10.0)  # room for a title
    size = (_INCH * wide * len(blocks) + 0.3, _INCH * (height + 5.2))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(blocks), squeeze=False)[0]
    for axes, (task, groups) in zip(panels, blocks.items(), strict=True):
        y = 0.0
        for heading, lines in groups:
            axes.text(-0.25, y + 0.62, heading, ha="right", va="center", fontweight="bold")
            axes.plot([left, right - 0.7], [y + 0.95] * 2, color=FAINT, linewidth=0.8)
            y += 1.05
            for line in lines:
                _draw_line(axes, y + (_tall(line) - 1) / 2, line, cells, lengths)
                y += _tall(line)
            y += 0.35
        for number, title in enumerate(sides):
            start = number * (len(lengths) + 0.7)
            axes.text(start + len(lengths) / 2, -0.95, title, ha="center", fontweight="bold")
            for column, n_bits in enumerate(lengths):
                points = min(9, 27 / len(str(n_bits)))
                axes.text(start + column + 0.5, -0.25, str(n_bits), ha="center", fontsize=points)
        axes.text(-0.25, -0.25, "n", ha="right", style="italic")
        axes.set_xlim(left, left + wide)
        axes.set_ylim(height, -1.5)
        axes.set_aspect("equal")
        axes.axis("off")
        axes.set_title(_TASK_TITLES[task], x=0.02, pad=4)
    legend_below(figure, _legend(cells, every), 4 if len(blocks) > 1 else 2)
    return figure


def _legend(cells: Cells, lines: list[Line]) -> list[Patch]:
    """Key to the shades, the ring, and the bars that occur."""
    edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.4}
    shades = [(0.0, "none solved"), (0.5, "half solved"), (1.0, "all solved")]
    keys = [Patch(facecolor=SHADES(share), label=text, **edge) for share, text in shades]
    if any(theirs for _, _, theirs in lines):
        text = "another count if out of 5"
        keys.append(Patch(facecolor="none", edgecolor=DIFFERENT, linewidth=2, label=text))
    shown = [variant for _, variant, _ in lines]
    counts = [cells.verdict_counts(shown, n_bits) for n_bits in cells.lengths()]
    return keys + [
        Patch(facecolor=colour, label=f"bar: {word}", **edge)
        for word, colour in STANDING.items()
        if any(each.counts[word] for each in counts)
    ]
