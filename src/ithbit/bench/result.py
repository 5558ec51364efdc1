"""The result of a bench as plain data that can be written and read, with its ratios and shares.

*Observed*: absolute times vary from machine to machine, the ratios of one run much less.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ithbit.errors import StoreError
from ithbit.families import Task

SCHEMA = 2
STEPPERS = ("reference", "stacked", "compiled", "kernels")


@dataclass(frozen=True)
class Ceilings:
    """The best throughput of the machine, *observed* in the run that is compared with it."""

    fp32_flops: float  # operations per second of a large square product in fp32, TF32 off
    copy_bytes: float  # bytes read and written per second by a large copy


@dataclass(frozen=True)
class Row:
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
        reference, taken = self.seconds.get("reference"), self.seconds.get(stepper)
        return reference / taken if reference and taken else None


@dataclass(frozen=True)
class Result:
    """A whole bench. `remarks` apply to all rows, such as why there are no kernels; `ceilings` is
    None in results from before they were measured."""

    environment: dict[str, Any]
    settings: dict[str, Any]  # steps and repeats timed, steps per epoch, batch
    ceilings: Ceilings | None
    remarks: tuple[str, ...]
    rows: tuple[Row, ...]

    def shares(self, row: Row, stepper: str) -> tuple[float, float] | None:
        """Shares of the fp32 and of the copy ceiling reached by the necessary work of an epoch."""
        taken = row.seconds.get(stepper)
        if taken is None or self.ceilings is None:
            return None
        per_second = self.settings["epoch_steps"] / taken
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
            "rows": [asdict(row) | self._derived(row) for row in self.rows],
        }

    def _derived(self, row: Row) -> dict[str, Any]:
        shares = {stepper: self.shares(row, stepper) for stepper in STEPPERS}
        return {
            "ratios": {stepper: row.ratio(stepper) for stepper in STEPPERS[1:]},
            "fp32_share": {stepper: share and share[0] for stepper, share in shares.items()},
            "copy_share": {stepper: share and share[1] for stepper, share in shares.items()},
        }


def from_json(data: dict[str, Any]) -> Result:
    """The result that `to_json` wrote; raises KeyError or TypeError for anything else."""
    if data["schema"] != SCHEMA:
        raise KeyError(f"schema {data['schema']}")
    names = [member.name for member in fields(Row)]
    ceilings = data["ceilings"]
    return Result(
        data["environment"],
        data["settings"],
        None if ceilings is None else Ceilings(**ceilings),
        tuple(data["remarks"]),
        tuple(Row(**{name: row[name] for name in names}) for row in data["rows"]),
    )


def read_result(path: Path) -> Result:
    """The result in a file."""
    try:
        return from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} holds no bench result of this version; give a file that "
            "`ithbit bench --json FILE` wrote"
        ) from error
