"""A bench as an aligned table for people."""

from statistics import geometric_mean

from ithbit.bench.result import PATHS, Result, Row


def result_text(result: Result) -> str:
    """The machine, a row for each configuration, and what the columns mean."""
    shown = [path for path in PATHS if any(path in (r.seconds | r.errors) for r in result.rows)]
    table = [_head(result, shown), *(_cells(result, row, shown) for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [_machine(result), ""]
    for cells in table:
        texts = [
            cell.ljust(width) if k in (1, 2) else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(texts).rstrip())
    lines += ["", *_means(result, shown), *_legend(result), *_notes(result)]
    return "\n".join(lines) + "\n"


def _machine(result: Result) -> str:
    env, ceilings = result.environment, result.ceilings
    text = f"{env['device_name'] or env['device']}"
    if env.get("cores"):
        text += f", {env['cores']} cores"
    text += f", torch {env['torch']}"
    if env.get("triton"):
        text += f", triton {env['triton']}"
    if env.get("commit"):
        text += f", commit {env['commit'][:12]}"
    if ceilings is not None:
        text += (
            f"\nceilings measured in this run: {ceilings.fp32_flops / 1e12:.3g} TFLOP/s fp32 "
            f"(TF32 off), {ceilings.copy_bytes / 1e9:.3g} GB/s copied"
        )
    return text


def _head(result: Result, shown: list[str]) -> list[str]:
    head = ["n", "task", "family", "L", "seeds", *(f"{path} s" for path in shown)]
    for path in _fast(shown):
        head.append(f"{path} ratio")
    for path in _fast(shown) if result.ceilings is not None else []:
        head += [f"{path} fp32", "copy"]
    return head


def _fast(shown: list[str]) -> list[str]:
    return [path for path in shown if path != "reference"]


def _cells(result: Result, row: Row, shown: list[str]) -> list[str]:
    cells = [str(row.n), row.task, row.family, str(row.layers), str(row.seeds)]
    for path in shown:
        taken = row.seconds.get(path)
        missing = "failed" if path in row.errors else "–"
        cells.append(missing if taken is None else f"{taken:.4g}")
    for path in _fast(shown):
        ratio = row.ratio(path)
        cells.append("–" if ratio is None else f"{ratio:.1f}")
    for path in _fast(shown) if result.ceilings is not None else []:
        shares = result.shares(row, path)
        cells += ["–", "–"] if shares is None else [f"{100 * share:.2g}%" for share in shares]
    return cells


def _means(result: Result, shown: list[str]) -> list[str]:
    lines = []
    for path in _fast(shown):
        for seeds in sorted({row.seeds for row in result.rows}):
            rows = [row for row in result.rows if row.seeds == seeds and row.constructive]
            ratios = [ratio for row in rows if (ratio := row.ratio(path)) is not None]
            if ratios:
                lines.append(
                    f"reference / {path}, {seeds} seeds, {len(ratios)} constructive "
                    f"configurations: geometric mean {geometric_mean(ratios):.1f}, "
                    f"{min(ratios):.1f} to {max(ratios):.1f}"
                )
    return lines


def _legend(result: Result) -> list[str]:
    s = result.settings
    lines = []
    if "steps" in s:
        lines.append(
            f"Seconds per run and epoch: {s['steps']} optimiser steps of {s['batch']} examples, "
            f"median of {s['repeats']}, scaled to the {s['epoch_steps']} steps of an epoch; "
            "evaluation left out."
        )
    if result.ceilings is not None:
        lines.append(
            "fp32, copy: share of the ceiling reached by the products, and by the activations "
            "moved once each way, that a step cannot do without; lower bounds."
        )
    return lines


def _notes(result: Result) -> list[str]:
    """Remarks, and each failure once with the configurations that met it."""
    met: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        for path, text in row.errors.items():
            name = f"{row.task} {row.family} L={row.layers}"
            names = met.setdefault((path, text), [])
            names += [name] if name not in names else []
    failures = [
        f"{path} failed ({', '.join(names)}): {text}" for (path, text), names in met.items()
    ]
    return [f"Note: {text}" for text in (*result.remarks, *failures)]
