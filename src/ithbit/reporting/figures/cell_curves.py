"""Learning curves of several cells side by side: a panel per task and length, a colour per model.

Every run is a thin line; the thick one is the median of all, where a run that has ended counts with
its last value.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ithbit.errors import StoreError, first_of
from ithbit.families import family_named
from ithbit.reporting.cells import Cell
from ithbit.reporting.figures.style import RC, SPARE, chance_line
from ithbit.reporting.figures.texts import legend_below
from ithbit.store.frame import Records

_Model = tuple[str, int, str]  # family, layers, encoding: what a colour stands for
_DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
_NAMED = 4  # empty cells named in the message


@mpl.rc_context(RC)
def cell_curves_figure(records: Records, cells: Sequence[Cell]) -> tuple[Figure, list[Cell]]:
    """Held-out accuracy by epoch of every run of these cells, and the cells that have none.

    Raises `StoreError` if no cell has a run with a history.
    """
    curves = {cell: _curves(records, cell) for cell in cells}
    without = [cell for cell in cells if not curves[cell]]
    shown = [cell for cell in cells if curves[cell]]
    if not shown:
        named = first_of([cell_name(cell) for cell in cells], _NAMED)
        note = records.history_note()
        raise StoreError(
            f"the store {records.store} has no history of {named}{f': {note}' if note else ''}"
        )
    tasks = list(dict.fromkeys(cell.variant.task for cell in shown))
    lengths = sorted({cell.n_bits for cell in shown})
    styles = _styles(list(dict.fromkeys(map(_model, shown))))
    size = (max(4.2, 0.8 + 2.7 * len(lengths)), 0.9 + 2.3 * len(tasks))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(tasks), len(lengths), squeeze=False, sharey=True)
    for row, task in zip(grid, tasks, strict=True):
        for axes, n in zip(row, lengths, strict=True):
            in_panel = [c for c in shown if (c.variant.task, c.n_bits) == (task, n)]
            axes.set_title(f"{task.upper()}, n = {n}" + ("" if in_panel else ": no runs"))
            for cell in in_panel:
                style = styles[_model(cell)]
                for curve in curves[cell]:
                    epochs = np.arange(1, len(curve) + 1)
                    axes.plot(epochs, curve, **style, linewidth=0.6, alpha=0.35)
                middle = _median(curves[cell])
                axes.plot(np.arange(1, len(middle) + 1), middle, **style, linewidth=1.8)
            chance_line(axes, text=axes is grid[0, 0])
            axes.set_ylim(0.42, 1.03)
            axes.set_xlim(left=0)
            axes.grid(axis="y")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        row[0].set_ylabel("held-out accuracy")
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    many = len({model[0] for model in styles}) < len(styles)
    handles = [
        Line2D([], [], **style, linewidth=1.8, label=_label(model, many))
        for model, style in styles.items()
    ]
    thin = Line2D([], [], color="#88837A", linewidth=0.6, label="one seed (thick: median)")
    legend_below(figure, [*handles, thin], 4, size=8)
    return figure, without


def _model(cell: Cell) -> _Model:
    return cell.variant.family, cell.variant.n_layers, cell.positions


def cell_name(cell: Cell) -> str:
    """A cell in words, for a message."""
    variant = cell.variant
    return (
        f"{variant.task} {variant.family}, L = {variant.n_layers}, n = {cell.n_bits}, "
        f"{cell.positions} positions"
    )


def _label(model: _Model, many: bool) -> str:
    """What a colour stands for; depth and encoding where a family appears with several."""
    family, layers, positions = model
    label = f"{family_named(family).label}, L = {layers}"
    return f"{label}, {positions}" if many else label


def _styles(models: list[_Model]) -> dict[_Model, dict[str, Any]]:
    """A colour and dash per model: a family's own, then the spare ones."""
    spare, dashes = cycle(SPARE), cycle(_DASHES)
    taken: set[tuple[str, str]] = set()
    styles: dict[_Model, dict[str, Any]] = {}
    for model in models:
        family = family_named(model[0])
        look = family.colour or next(spare), str(family.dash)
        while look in taken:
            look = next(spare), next(dashes)
        taken.add(look)
        styles[model] = {"color": look[0], "linestyle": look[1]}
    return styles


def _curves(records: Records, cell: Cell) -> list[np.ndarray]:
    rows = records.rows.filter(
        task=cell.variant.task,
        family=cell.variant.family,
        n_layers=cell.variant.n_layers,
        n_bits=cell.n_bits,
        positions=cell.positions,
    )
    histories = (
        records.history(run["run_id"], run["folder"]) for run in rows.iter_rows(named=True)
    )
    return [np.array([epoch.held_out_accuracy for epoch in h], float) for h in histories if h]


def _median(curves: list[np.ndarray]) -> np.ndarray:
    longest = max(map(len, curves))
    padded = [np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in curves]
    return np.median(padded, axis=0)
