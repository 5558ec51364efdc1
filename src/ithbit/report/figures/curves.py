"""Learning curves of one cell, all seeds."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ithbit.errors import StoreError
from ithbit.families import FAMILIES
from ithbit.report.figures.style import LOOKS, chance_line
from ithbit.report.published import Variant
from ithbit.report.rows import Records

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v")
_TOLD_APART = len(_DASHES)  # more seeds are thin lines, and only what became of them is told
_END: dict[str, Any] = {"marker": "o", "markersize": 3, "linestyle": ""}
_NAMED = 8  # cells, in a message


def curves_figure(
    records: Records, variant: Variant, n_bits: int, positions: str = "polynomial"
) -> Figure:
    """Held-out accuracy and loss by epoch, one line a seed, whatever the run's settings or state.

    Raises `StoreError` if the cell has no run with a history.
    """
    rows = records.rows.filter(
        task=variant.task,
        family=variant.family,
        n_layers=variant.n_layers,
        n_bits=n_bits,
        positions=positions,
    ).sort("seed")
    columns = ("seed", "run_id", "folder", "status", "stop_when_solved", "solved")
    runs = [
        (run, history)
        for run in rows.select(columns).iter_rows(named=True)
        if (history := records.history(run["run_id"], run["folder"]))
    ]
    if not runs:
        raise StoreError(_nothing(records, variant, n_bits, positions))
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    look = LOOKS[variant.family]
    few = len(runs) <= _TOLD_APART
    ended = [run["stop_when_solved"] and run["solved"] for run, _ in runs]
    for at, (run, history) in enumerate(runs):
        style: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "alpha": 0.6}
        if few:
            note = "" if run["status"] == "finished" else f" ({run['status']})"
            style = {
                "color": look.colour,
                "linestyle": _DASHES[at],
                "marker": _MARKERS[at],
                "markevery": (0.04 + 0.03 * at, 0.2),
                "markersize": 4.5,
                "linewidth": 1.2,
                "alpha": 0.55 + 0.45 * ((at % 3) / 2),
                "label": f"seed {run['seed']}{note}",
            }
        epochs = [line["epoch"] for line in history]
        for axes, key in ((left, "held_out_accuracy"), (right, "held_out_loss")):
            values = [line.get(key) for line in history]
            shown = [float("nan") if v is None else v for v in values]
            axes.plot(epochs, shown, **style)
            if ended[at]:
                axes.plot(epochs[-1:], shown[-1:], color=look.colour, **_END)
    chance_line(left)
    left.set_ylim(0.42, 1.03)
    left.set_ylabel("held-out accuracy")
    right.set_yscale("log")
    right.set_ylabel("held-out loss")
    right.axhline(1e-6, linewidth=0.8, linestyle=":", color=look.colour)
    for axes in (left, right):
        axes.grid(axis="y")
        axes.set_xlabel("epoch")
        axes.set_xlim(left=0)
    label = FAMILIES[variant.family].label
    cell = f"{variant.task.upper()} {label}, L = {variant.n_layers}, n = {n_bits}"
    seeds = "" if few else f", {len(runs)} runs"
    left.set_title(f"{cell}, {positions} positions{seeds}")
    handles, labels = left.get_legend_handles_labels()
    if any(ended):
        handles.append(Line2D([], [], color=look.colour, **_END))
        labels.append("ended when first perfect")
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside right center" if few else "outside lower center",
            fontsize=8,
        )
    return figure


def _nothing(records: Records, variant: Variant, n_bits: int, positions: str) -> str:
    """Why there is no curve, and of which cells there may be some."""
    said = (
        f"the store {records.store} has no history of {variant.task} {variant.family}, "
        f"L = {variant.n_layers}, n = {n_bits}, {positions} positions"
    )
    if note := records.history_note():
        return f"{said}: {note}"
    cells = records.rows.select("task", "family", "n_layers", "n_bits", "positions").unique()
    named = [
        f"{task} {family} L = {depth} n = {n} {encoding}"
        for task, family, depth, n, encoding in cells.sort(cells.columns).iter_rows()
    ]
    more = f" and {len(named) - _NAMED} more cells" if len(named) > _NAMED else ""
    return f"{said}; it has runs of {', '.join(named[:_NAMED]) or 'nothing'}{more}"
