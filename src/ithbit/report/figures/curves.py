"""Learning curves of one cell, all seeds."""

from matplotlib.figure import Figure

from ithbit.errors import StoreError
from ithbit.families import FAMILIES
from ithbit.report.figures.style import LOOKS, chance_line
from ithbit.report.published import Variant
from ithbit.report.rows import Records

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v")


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
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    look = LOOKS[variant.family]
    drawn = 0
    chosen = rows.select("seed", "run_id", "folder", "status")
    for seed, run_id, folder, status in chosen.iter_rows():
        history = records.history(run_id, folder)
        if not history:
            continue
        note = "" if status == "finished" else f" ({status})"
        style = {
            "color": look.colour,
            "linestyle": _DASHES[drawn % len(_DASHES)],
            "marker": _MARKERS[drawn % len(_MARKERS)],
            "markevery": (0.04 + 0.03 * (drawn % 5), 0.2),
            "markersize": 4.5,
            "linewidth": 1.2,
            "alpha": 0.55 + 0.45 * ((drawn % 3) / 2),
            "label": f"seed {seed}{note}",
        }
        epochs = [line["epoch"] for line in history]
        for axes, key in ((left, "held_out_accuracy"), (right, "held_out_loss")):
            values = [line.get(key) for line in history]
            axes.plot(epochs, [float("nan") if v is None else v for v in values], **style)
        drawn += 1
    if not drawn:
        raise StoreError(
            f"the store {records.store} has no history of {variant.task} {variant.family} with "
            f"{variant.n_layers} layers, n = {n_bits}, {positions} positions; `ithbit export` "
            "lists what it has"
        )
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
    where = f"{variant.task.upper()} {label}, L = {variant.n_layers}, n = {n_bits}"
    left.set_title(f"{where}, {positions} positions")
    if drawn <= 20:
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=8)
    return figure
