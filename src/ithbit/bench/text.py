"""A bench as aligned text tables for a terminal of eighty columns."""

from statistics import geometric_mean

from ithbit.bench.result import STEPPERS, Result
from ithbit.wrapping import COLUMNS, aligned, wrapped

_NAMES = ("n", "task", "family", "L", "seeds")


def result_text(result: Result) -> str:
    """The machine, a row for each configuration in each table, and what the columns mean."""
    shown = [
        stepper
        for stepper in STEPPERS
        if any(stepper in (r.seconds | r.errors) for r in result.rows)
    ]
    lines = [*_machine(result), "", *_times(result, shown)]
    if result.ceilings is not None:
        lines += ["", *_shares(result, shown)]
    feet = [*_means(result, shown), *_legend(result, shown), *_notes(result)]
    lines += ["", *(line for foot in feet for line in wrapped(foot, then="  "))]
    return "\n".join(lines) + "\n"


def _machine(result: Result) -> list[str]:
    env, ceilings = result.environment, result.ceilings
    text = f"{env['device_name'] or env['device']}"
    if env.get("cores"):
        text += f", {env['cores']} cores"
    text += f", torch {env['torch']}"
    if env.get("triton"):
        text += f", triton {env['triton']}"
    if env.get("commit"):
        text += f", commit {env['commit'][:12]}"
    lines = wrapped(text, then="  ")
    if ceilings is not None:
        lines += wrapped(
            f"ceilings measured in this run: {ceilings.fp32_flops / 1e12:.3g} TFLOP/s fp32 "
            f"(TF32 off), {ceilings.copy_bytes / 1e9:,.4g} GB/s copied",
            then="  ",
        )
    return lines


def _fast(shown: list[str]) -> list[str]:
    return [stepper for stepper in shown if stepper != "reference"]


def _times(result: Result, shown: list[str]) -> list[str]:
    """The table of seconds, and of ratios to the reference."""
    heads = [(stepper, "s") for stepper in shown] + [(stepper, "ratio") for stepper in _fast(shown)]
    rows = []
    for row in result.rows:
        cells = []
        for stepper in shown:
            taken = row.seconds.get(stepper)
            missing = "failed" if stepper in row.errors else "–"
            cells.append(missing if taken is None else f"{taken:.4g}")
        for stepper in _fast(shown):
            ratio = row.ratio(stepper)
            cells.append("–" if ratio is None else f"{ratio:.1f}")
        rows.append(cells)
    return _table(result, heads, rows)


def _shares(result: Result, shown: list[str]) -> list[str]:
    """The table of shares of the ceilings."""
    heads = [(stepper, ceiling) for stepper in _fast(shown) for ceiling in ("fp32", "copy")]
    rows = []
    for row in result.rows:
        cells = []
        for stepper in _fast(shown):
            found = result.shares(row, stepper)
            cells += ["–", "–"] if found is None else [f"{100 * share:.2g}%" for share in found]
        rows.append(cells)
    return _table(result, heads, rows)


def _table(result: Result, heads: list[tuple[str, str]], rows: list[list[str]]) -> list[str]:
    """Lines of a table: a head of two lines, then one row per configuration."""
    table = [
        [*("" for _ in _NAMES), *(stepper for stepper, _ in heads)],
        [*_NAMES, *(unit for _, unit in heads)],
        *(
            [str(row.n), row.task, row.family, str(row.layers), str(row.seeds), *cells]
            for row, cells in zip(result.rows, rows, strict=True)
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else 1
    to_left = [k in (1, 2) for k in range(len(widths))]
    return [line for cells in table for line in aligned(cells, widths, gap, to_left)]


def _means(result: Result, shown: list[str]) -> list[str]:
    lines = []
    for stepper in _fast(shown):
        for seeds in sorted({row.seeds for row in result.rows}):
            rows = [row for row in result.rows if row.seeds == seeds and row.constructive]
            ratios = [ratio for row in rows if (ratio := row.ratio(stepper)) is not None]
            if ratios:
                lines.append(
                    f"reference / {stepper}, {seeds} seeds, {len(ratios)} constructive "
                    f"configurations: geometric mean {geometric_mean(ratios):.1f}, "
                    f"{min(ratios):.1f} to {max(ratios):.1f}"
                )
    return lines


def _legend(result: Result, shown: list[str]) -> list[str]:
    s = result.settings
    seconds = "s: seconds per run and epoch"
    if "steps" in s:
        seconds += (
            f": {s['steps']} optimiser steps of {s['batch']} examples, median of {s['repeats']}, "
            f"scaled to the {s['epoch_steps']} steps of an epoch; evaluation left out"
        )
    lines = [f"{seconds}."]
    if _fast(shown):
        lines.append("ratio: how many times as fast as the reference.")
    if result.ceilings is not None:
        lines.append(
            "fp32, copy: share of the ceiling reached by the products, and by the activations "
            "moved once each way, that a step cannot do without; lower bounds."
        )
    return lines


def _notes(result: Result) -> list[str]:
    """Remarks, and each failure once with the configurations it occurred in."""
    met: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        for stepper, text in row.errors.items():
            names = met.setdefault((stepper, text), [])
            names += [row.name] if row.name not in names else []
    failures = [
        f"{stepper} failed ({', '.join(names)}): {text}" for (stepper, text), names in met.items()
    ]
    return [f"Note: {text}" for text in (*result.remarks, *failures)]
