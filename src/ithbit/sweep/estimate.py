"""How long a sweep may take: a rough nominal pace for each run, corrected by what the store has
seen.

*Empirical*, and an upper bound in one sense only: every run is taken to use all its epochs.
"""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from ithbit.engine.reading import run_folders
from ithbit.engine.spec import RunSpec
from ithbit.sweep.store import folder_status

# Milliseconds of a step of 256 examples at n = 64 on one CPU core: each block but the last, and the
# last one, which is needed at one token only.
_STEP = {
    "softmax-full": (30.0, 4.0),
    "softmax-causal": (34.0, 4.0),
    "linear-full": (20.0, 4.0),
    "linear-causal": (36.0, 4.0),
    "gru": (12.0, 12.0),
    "mamba2": (48.0, 12.0),
}
_STEP_OVERHEAD = 1.0
_GPU_SHARE = 1 / 50  # of that, for a stack of five on a recent GPU


def nominal_epoch_seconds(run: RunSpec) -> float:
    """Seconds of one epoch on one CPU core, from a table of measurements."""
    model, protocol = run.model, run.protocol
    block, last = _STEP[model.family]
    size = (model.n_bits + 2) / 66 * protocol.batch_size / 256 * model.d_model / 16
    step = _STEP_OVERHEAD + size * (block * (model.n_layers - 1) + last)
    return protocol.epoch_steps * step / 1000


def longest_seconds(runs: Iterable[RunSpec], store: Path, n_workers: int, cuda: bool) -> float:
    """Seconds until all the runs are done, if each takes every epoch it is allowed."""
    pace = observed_pace(store, cuda) or (_GPU_SHARE if cuda else 1.0)
    return pace * sum(nominal_epoch_seconds(r) * r.protocol.max_epochs for r in runs) / n_workers


def observed_pace(store: Path, cuda: bool, most: int = 200) -> float | None:
    """Observed over nominal seconds an epoch, the median of finished runs on such a device."""
    from ithbit.engine.record import result_from_json

    ratios: list[float] = []
    if store.is_dir():
        for _, folder in run_folders(store):
            if len(ratios) >= most:
                break
            if folder_status(store / folder) != "done":
                continue
            try:
                result = result_from_json(json.loads((store / folder / "result.json").read_bytes()))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if (result.environment.get("device") == "cuda") == cuda:
                ratios.append(result.seconds_per_epoch / nominal_epoch_seconds(result.spec))
    return statistics.median(ratios) if ratios else None
