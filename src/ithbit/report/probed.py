"""What `ithbit probe` left in a store, for the page: a line a layer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Probed:
    """One probed layer, in words."""

    name: str
    width: int
    causal: str
    rank: str
    solved: str


def probed_layers(store: Path) -> list[Probed]:
    """The layers of a store in the order of their names; a report that cannot be read is passed
    over."""
    found = []
    for path in sorted((store / "probe").glob("*/report.json")):
        try:
            found.append(_line(json.loads(path.read_bytes())))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _line(data: dict[str, Any]) -> Probed:
    cells: dict[str, list[bool]] = {}
    for run in data["runs"]:
        cell = run["cell"]
        name = f"{cell['task'].upper()} n={cell['n_bits']} L={cell['n_layers']}"
        cells.setdefault(name, []).append(run["max_accuracy"] == 1.0)
    leak = data["behaviour"]["leak"]
    return Probed(
        str(data["layer"]),
        int(data["width"]),
        "yes" if leak is None else f"no: output {leak['token']} sees token {leak['later']}",
        str(data["causal_rank"]["sentence"]),
        ", ".join(f"{name}: {sum(right)}/{len(right)}" for name, right in cells.items()),
    )
