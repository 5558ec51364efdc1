"""What `ithbit probe` left in a store under `probe/`.

A layer's folder is `<layer>-<digest>`, with `report.json`, the latest report; 0.1 also left one
`.json` file per finished run there. Records that are damaged or contradict themselves are skipped.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ithbit.families import Task
from ithbit.spec import Protocol, since_0_2
from ithbit.store.reading import read_json
from ithbit.store.records import Amount, Count, FromOne, Share
from ithbit.store.schema import UnreadableError, check, read_as, schema

Ended = Literal[  # time: may continue
    "solved", "loss", "epochs", "consistency", "time", "not finite", "failed"
]


@dataclass(frozen=True)
class ProbedCell:
    """What was trained, with all its seeds."""

    task: Task
    n_bits: FromOne
    n_layers: FromOne
    width: FromOne


@dataclass(frozen=True)
class ProbedRun:
    """A run as the store had it. `verdict` comes from trying all inputs of a solved run, if they
    are few."""

    layer: str
    cell: ProbedCell
    seed: int
    epochs: FromOne
    stopped_by: Ended
    max_accuracy: Share
    first_solved_epoch: FromOne | None
    n_parameters: Count
    seconds: Amount
    verdict: str | None
    run_id: str = since_0_2("")

    @property
    def solved(self) -> bool:
        return self.max_accuracy == 1.0

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        return {"run_id": data.pop("run_id"), **data, "solved": self.solved}


@dataclass(frozen=True)
class Probed:
    """One probed layer, in words."""

    name: str
    width: int
    causal: str
    rank: str
    solved: str
    ranks: tuple[int, ...] = ()  # from k = 1 on; empty if the layer could not be measured
    singular_values: tuple[float, ...] = ()  # at the last k, in units of the noise
    protocol: Mapping[str, Any] = field(default_factory=dict)  # of its runs; 0.1 did not keep it


def probed_layers(store: Path) -> list[Probed]:
    """The probed layers of a store, in the order of folder names."""
    lines = []
    for path in sorted((store / "probe").glob("*/report.json")):
        try:
            if data := read_json(str(path)):
                lines.append(_line(data))
        except (UnreadableError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return lines


def _run(data: dict[str, Any]) -> ProbedRun:
    run = read_as(ProbedRun, data, "it")
    first = run.first_solved_epoch
    if (first is not None) != run.solved or (first or 0) > run.epochs:
        raise UnreadableError(f"it has first_solved_epoch = {first}")
    return run


def _count(runs: list[ProbedRun]) -> str:
    """Solved runs out of all that ended (earlier reports also list those that could not be run),
    and how many are unfinished."""
    ran = [run for run in runs if run.stopped_by != "failed"]
    finished = [run for run in ran if run.solved or run.stopped_by != "time"]
    counts = (
        f"{sum(run.solved for run in finished)}/{len(finished)}" if ran else "none could be run"
    )
    return counts + (
        f" ({len(ran) - len(finished)} unfinished)" if len(ran) > len(finished) else ""
    )


def _protocol(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a protocol that the data have; raises `UnreadableError` for other values."""
    known = {name: field for name, field in schema(Protocol).items() if data.get(name) is not None}
    check(data, known, "its protocol")
    return {name: data[name] for name in known}


def _line(data: dict[str, Any]) -> Probed:
    cells: dict[str, list[ProbedRun]] = {}
    for run in map(_run, data["runs"]):
        cell = run.cell
        name = f"{cell.task.upper()} n={cell.n_bits} L={cell.n_layers}"
        cells.setdefault(name, []).append(run)
    leak = data["behaviour"]["leak"]
    return Probed(
        str(data["layer"]),
        int(data["width"]),
        "yes" if leak is None else f"no: output {leak['token']} sees token {leak['later']}",
        str(data["causal_rank"]["sentence"]),
        ", ".join(f"{name}: {_count(runs)}" for name, runs in cells.items()),
        tuple(map(int, data["causal_rank"].get("ranks") or ())),
        tuple(map(float, data["causal_rank"].get("singular_values") or ())),
        _protocol(dict(data.get("protocol") or {})),
    )
