"""The result of a bench: plain data that can be written and read, with its ratios and shares, and
aligned text tables for a terminal of eighty columns.

*Observed*: absolute times vary from machine to machine, the ratios of one run much less.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from ithbit.display import COLUMNS, aligned, wrapped
from ithbit.errors import StoreError
from ithbit.families import Task
from ithbit.store.writing import json_bytes

SCHEMA = 2
STEPPERS = ("reference", "stacked", "compiled", "kernels")
_NAMES = ("n", "task", "family", "L", "seeds")
# What a file of any other content may raise, when it is read or shown.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Ceilings:
    """The best throughput of the machine, *observed* in the run that is compared with it."""

    fp32_flops: float  # operations per second of a large square product in fp32, TF32 off
    copy_bytes: float  # bytes read and written per second by a large copy


@dataclass(frozen=True)
class BenchRow:
    """One configuration: seconds per run and epoch of each stepper, None where not timed.

    `errors` has a message for each stepper that failed.
    """

    task: Task
    family: str
    layers: int
    n: int
    seeds: int
    constructive: bool
    step_flops: int
    step_bytes: int
    seconds: dict[str, float | None]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task} {self.family} L={self.layers}"

    def ratio(self, stepper: str) -> float | None:
        """How many times as fast as the reference."""
        reference, seconds = self.seconds.get("reference"), self.seconds.get(stepper)
        return reference / seconds if reference and seconds else None


@dataclass(frozen=True)
class BenchResult:
    """A whole bench. `remarks` apply to all rows, such as why there are no kernels; `ceilings` is
    None in results from before they were measured."""

    environment: dict[str, Any]
    settings: dict[str, Any]  # steps and repeats timed, steps per epoch, batch
    ceilings: Ceilings | None
    remarks: tuple[str, ...]
    rows: tuple[BenchRow, ...]

    def shares(self, row: BenchRow, stepper: str) -> tuple[float, float] | None:
        """Shares of the fp32 and of the copy ceiling reached by the necessary work of an epoch."""
        seconds = row.seconds.get(stepper)
        if seconds is None or self.ceilings is None:
            return None
        per_second = self.settings["epoch_steps"] / seconds
        return (
            row.step_flops * per_second / self.ceilings.fp32_flops,
            row.step_bytes * per_second / self.ceilings.copy_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` turns back into an equal result, plus ratios and shares."""
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "settings": self.settings,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "remarks": list(self.remarks),
            "rows": [self._row(row) for row in self.rows],
        }

    def _row(self, row: BenchRow) -> dict[str, Any]:
        shares = {stepper: self.shares(row, stepper) for stepper in STEPPERS}
        return asdict(row) | {
            "ratios": {stepper: row.ratio(stepper) for stepper in STEPPERS[1:]},
            "fp32_share": {stepper: share and share[0] for stepper, share in shares.items()},
            "copy_share": {stepper: share and share[1] for stepper, share in shares.items()},
        }


def from_json(data: dict[str, Any]) -> BenchResult:
    """The result that `to_json` wrote; raises KeyError or TypeError for anything else."""
    if data["schema"] != SCHEMA:
        raise KeyError(f"schema {data['schema']}")
    names = [member.name for member in fields(BenchRow)]
    ceilings = data["ceilings"]
    return BenchResult(
        data["environment"],
        data["settings"],
        None if ceilings is None else Ceilings(**ceilings),
        tuple(data["remarks"]),
        tuple(BenchRow(**{name: row[name] for name in names}) for row in data["rows"]),
    )


def read_result(path: Path) -> BenchResult:
    """The result in a file: one that can be shown and written again."""
    try:
        result = from_json(json.loads(path.read_bytes()))
        _ = result_text(result), json_bytes(result.to_json())
        return result
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise StoreError(
            f"{path} holds no bench result of this version; give a file that "
            "`ithbit bench --json FILE` wrote"
        ) from error


def result_text(result: BenchResult) -> str:
    """The machine, a row for each configuration in each table, and what the columns mean."""
    steppers = [
        stepper
        for stepper in STEPPERS
        if any(stepper in (r.seconds | r.errors) for r in result.rows)
    ]
    fast = [stepper for stepper in steppers if stepper != "reference"]
    times = [(stepper, "s") for stepper in steppers] + [(stepper, "ratio") for stepper in fast]
    lines = [*_machine(result), "", *_table(result, times)]
    if result.ceilings is not None:
        shares = [(stepper, ceiling) for stepper in fast for ceiling in ("fp32", "copy")]
        lines += ["", *_table(result, shares)]
    feet = [*_means(result, fast), *_legend(result, fast), *_notes(result)]
    lines += ["", *(line for foot in feet for line in wrapped(foot, then="  "))]
    return "\n".join(lines) + "\n"


def _machine(result: BenchResult) -> list[str]:
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


def _cell(result: BenchResult, row: BenchRow, stepper: str, unit: str) -> str:
    """The number of a configuration in the column of a stepper and a unit."""
    if unit == "s":
        seconds = row.seconds.get(stepper)
        missing = "failed" if stepper in row.errors else "–"
        return missing if seconds is None else f"{seconds:.4g}"
    if unit == "ratio":
        ratio = row.ratio(stepper)
        return "–" if ratio is None else f"{ratio:.1f}"
    shares = result.shares(row, stepper)
    return "–" if shares is None else f"{100 * shares[unit == 'copy']:.2g}%"


def _table(result: BenchResult, columns: list[tuple[str, str]]) -> list[str]:
    """Lines of a table: a head of two lines, then one row per configuration."""
    table = [
        [*("" for _ in _NAMES), *(stepper for stepper, _ in columns)],
        [*_NAMES, *(unit for _, unit in columns)],
    ]
    for row in result.rows:
        cells = [_cell(result, row, *column) for column in columns]
        table.append([str(row.n), row.task, row.family, str(row.layers), str(row.seeds), *cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else 1
    to_left = [k in (1, 2) for k in range(len(widths))]
    return [line for cells in table for line in aligned(cells, widths, gap, to_left)]


def _means(result: BenchResult, fast: list[str]) -> list[str]:
    lines = []
    for stepper in fast:
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


def _legend(result: BenchResult, fast: list[str]) -> list[str]:
    s = result.settings
    seconds = "s: seconds per run and epoch"
    if "steps" in s:
        seconds += (
            f": {s['steps']} optimiser steps of {s['batch']} examples, median of {s['repeats']}, "
            f"scaled to the {s['epoch_steps']} steps of an epoch; evaluation left out"
        )
    lines = [f"{seconds}."]
    if fast:
        lines.append("ratio: how many times as fast as the reference.")
    if result.ceilings is not None:
        lines.append(
            "fp32, copy: share of the ceiling reached by the products, and by the activations "
            "moved once each way, that a step cannot do without; lower bounds."
        )
    return lines


def _notes(result: BenchResult) -> list[str]:
    """Remarks, and each failure once with the configurations it occurred in."""
    names_by_error: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        for stepper, text in row.errors.items():
            names = names_by_error.setdefault((stepper, text), [])
            names += [row.name] if row.name not in names else []
    failures = [
        f"{stepper} failed ({', '.join(names)}): {text}"
        for (stepper, text), names in names_by_error.items()
    ]
    return [f"Note: {text}" for text in (*result.remarks, *failures)]
