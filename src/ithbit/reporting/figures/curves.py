"""Learning curves of one cell, all seeds."""

from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ithbit.errors import StoreError, first_of
from ithbit.families import family_named
from ithbit.published import Settings
from ithbit.reporting.cells import SHORT, Cell, layers_of
from ithbit.reporting.differences import (
    settings_of,
    settings_order,
    settings_text,
    split_shared_and_distinct,
)
from ithbit.reporting.figures.style import RC, SPARE, chance_line, looks
from ithbit.reporting.figures.texts import LINE, grow, legend_below, n_lines, width_of, wrapped
from ithbit.store.frame import Records

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v")
_MAX_STYLES = len(_DASHES)  # more runs are thin lines, and the legend does not name their seeds
_END: dict[str, Any] = {"marker": "o", "markersize": 3, "linestyle": ""}
_LEGEND_RIGHT = 2.4  # inches of the longest label for which the legend is right of the panels
_NAMED = 8  # cells named in a message


@mpl.rc_context(RC)
def curves_figure(records: Records, cell: Cell) -> Figure:
    """Held-out accuracy and loss by epoch, one line per run, whatever its settings or status.

    Where runs differ in more than the seed, colours and the legend distinguish them.

    Raises `StoreError` if the cell has no run with a history.
    """
    variant, n_bits, positions = cell
    rows = records.rows.filter(
        task=variant.task,
        family=variant.family,
        n_layers=variant.n_layers,
        n_bits=n_bits,
        positions=positions,
    )
    runs = [
        (run, settings_of(run), history)
        for run in rows.iter_rows(named=True)
        if (history := records.history(run["run_id"], run["folder"]))
    ]
    if not runs:
        raise StoreError(_nothing(records, cell))
    runs.sort(key=lambda each: (each[0]["code"], settings_order(each[1]), each[0]["seed"]))
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = list(dict.fromkeys((run["code"], settings) for run, settings, _ in runs))
    layer = (variant.family, kinds[0][0])
    look = looks([layer], layers_of(records.rows))[layer]
    named = dict(zip(kinds, _named(kinds), strict=True))
    free = [look.colour, *(colour for colour in SPARE if colour != look.colour)]
    colours = dict(zip(kinds, cycle(free), strict=False))
    unnamed = dict(named)  # kinds whose first line is still to come
    few = len(runs) <= _MAX_STYLES
    ended = [run["stop_when_solved"] and run["solved"] for run, *_ in runs]
    for at, (run, settings, history) in enumerate(runs):
        kind = run["code"], settings
        colour, of = colours[kind], named[kind]
        style: dict[str, Any] = {"color": colour, "linewidth": 0.8, "alpha": 0.6}
        style["label"] = unnamed.pop(kind, "")
        if few:
            note = "" if run["status"] == "finished" else f" ({run['status']})"
            note = f", {of}{note}" if of else note
            style = {
                "color": colour,
                "linestyle": _DASHES[at],
                "marker": _MARKERS[at],
                "markevery": (0.04 + 0.03 * at, 0.2),
                "markersize": 4.5,
                "linewidth": 1.2,
                "alpha": 0.55 + 0.45 * ((at % 3) / 2),
                "label": f"seed {run['seed']}{note}",
            }
        epochs = [line.epoch for line in history]
        for axes, key in ((left, "held_out_accuracy"), (right, "held_out_loss")):
            shown = [getattr(line, key) for line in history]
            axes.plot(epochs, shown, **style)
            if ended[at]:
                axes.plot(epochs[-1:], shown[-1:], color=colour, **_END)
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label = family_named(variant.family).label
    name = f"{variant.task.upper()} {label}, L = {variant.n_layers}, n = {n_bits}"
    more = sum(run["status"] != "finished" for run, *_ in runs)
    seeds = "" if few else f", {len(runs)} runs{f', {more} not finished' if more else ''}"
    shared = settings_text(split_shared_and_distinct(settings for _, settings in kinds)[0])
    differs = f", {shared}" if shared else ""
    title = f"{name}{differs}, {positions} positions{seeds}"
    title = wrapped(title, figure.get_figwidth() - 1.2, 10, "bold")
    left.set_title(title)  # has the width of both panels
    grow(figure, 10 * LINE * (n_lines(title) - 1))
    handles = left.get_legend_handles_labels()[0]
    if any(ended):
        handles.append(Line2D([], [], color=look.colour, label="ended when first perfect", **_END))
    if few and max(width_of(str(each.get_label()), 8) for each in handles) < _LEGEND_RIGHT:
        figure.legend(handles=handles, loc="outside right center", fontsize=8)
    elif handles:
        legend_below(figure, handles, 4, size=8)
    return figure


def _named(kinds: list[tuple[str, Settings]]) -> list[str]:
    """What distinguishes runs with these codes and settings; empty if there is one kind."""
    if len(kinds) == 1:
        return [""]
    n_codes, n_settings = (len(set(parts)) for parts in zip(*kinds, strict=True))
    distinct = split_shared_and_distinct(settings for _, settings in kinds)[1]
    names = []
    for code, settings in kinds:
        name = [code[:SHORT]] if n_codes > 1 else []
        if n_settings > 1:
            name.append(settings_text(distinct[settings]) or "the paper's settings")
        names.append(", ".join(name))
    return names


def _nothing(records: Records, cell: Cell) -> str:
    """Why there is no curve, and which cells may have some."""
    variant, n_bits, positions = cell
    message = (
        f"the store {records.store} has no history of {variant.task} {variant.family}, "
        f"L = {variant.n_layers}, n = {n_bits}, {positions} positions"
    )
    if note := records.history_note():
        return f"{message}: {note}"
    cells = records.rows.select("task", "family", "n_layers", "n_bits", "positions").unique()
    named = [
        f"{task} {family} L = {depth} n = {n} {encoding}"
        for task, family, depth, n, encoding in cells.sort(cells.columns).iter_rows()
    ]
    return f"{message}; it has runs of {first_of(named, _NAMED) or 'nothing'}"
