"""The same as the command line, in Python: `ithbit.train` and the names that go with it."""

from collections.abc import Iterable
from pathlib import Path

from ithbit.engine.loop import Watcher
from ithbit.engine.paths import Kernels
from ithbit.engine.record import Failure, Result
from ithbit.engine.spec import Protocol, cell
from ithbit.families import Task
from ithbit.models.spec import ModelSpec
from ithbit.sweep.runner import run_all


def train(
    task: Task,
    family: str,
    *,
    n: int,
    layers: int = 1,
    seeds: Iterable[int] = range(5),
    positions: str = "polynomial",
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    protocol: Protocol | None = None,
    store: str | Path = "runs",
    device: str = "auto",
    workers: int | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
    kernels: Kernels = "auto",
) -> list[Result | Failure]:
    """Train one configuration for several seeds; what the store has already is not trained again.

    Returns a `Result` (or, for a run that could not go on, a `Failure`) for each seed. `watch` is
    called with an `Event` for every epoch and outcome. `kernels` "off" keeps a GPU to the plain
    models, "on" refuses what the kernels do not train.
    """
    model = ModelSpec(
        task,
        family,
        n_bits=n,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        d_ff=ff,
        positions=positions,
    )
    runs = cell(model, protocol or Protocol(), seeds)
    return run_all(runs, Path(store), device, workers, watch, retry_failed, kernels)
