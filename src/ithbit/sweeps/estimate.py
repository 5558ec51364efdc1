"""How long a sweep may take: a rough nominal pace for each run, corrected by the pace of finished
runs in the store.

*Empirical*, and an upper bound in one sense only: every run is assumed to use all its epochs.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path

from ithbit.families import family_named
from ithbit.spec import RunSpec
from ithbit.store.reading import ended, run_folders
from ithbit.store.records import Result
from ithbit.store.schema import UnreadableError

_STEP_OVERHEAD = 1.0  # milliseconds
_GPU_SHARE = 1 / 50  # of the nominal seconds, for a stack of five on a recent GPU


def nominal_epoch_seconds(run: RunSpec) -> float:
    """Seconds of one epoch on one CPU core, from measurements of its family."""
    model, protocol = run.model, run.protocol
    block, last = family_named(model.family).step_milliseconds
    size = (model.n_bits + 2) / 66 * protocol.batch_size / 256 * model.d_model / 16
    step = _STEP_OVERHEAD + size * (block * (model.n_layers - 1) + last)
    return protocol.epoch_steps * step / 1000


def longest_seconds(runs: Iterable[RunSpec], store: Path, n_workers: int, cuda: bool) -> float:
    """Seconds until all the runs are done, if each takes every epoch it is allowed."""
    pace = observed_pace(store, cuda) or (_GPU_SHARE if cuda else 1.0)
    return pace * sum(nominal_epoch_seconds(r) * r.protocol.max_epochs for r in runs) / n_workers


def observed_pace(store: Path, cuda: bool, most: int = 200) -> float | None:
    """Observed over nominal seconds per epoch, the median over finished runs on such a device."""
    ratios: list[float] = []
    if store.is_dir():
        for _, folder in run_folders(store):
            if len(ratios) >= most:
                break
            try:
                outcome = ended(f"{store}/{folder}")
            except (UnreadableError, ValueError, TypeError):
                continue
            if (
                isinstance(outcome, Result)
                and (outcome.environment.get("device") == "cuda") == cuda
            ):
                ratios.append(outcome.seconds_per_epoch / nominal_epoch_seconds(outcome.spec))
    return statistics.median(ratios) if ratios else None
