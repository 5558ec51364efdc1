"""Runs of one spec, trained in this process as a stack: what tests of the engine begin with."""

from collections.abc import Sequence
from pathlib import Path

from ithbit.engine.device import Device, choose_device
from ithbit.engine.loop import train_cell
from ithbit.engine.options import Switch
from ithbit.engine.outcomes import to_train
from ithbit.engine.training_context import StopRequest, TrainingContext, Watcher
from ithbit.spec import RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure, Result


def train(
    runs: Sequence[RunSpec],
    store: Path,
    device: Device | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
    kernels: Switch = "auto",
    stop: StopRequest | None = None,
    compile: Switch = "auto",
) -> list[Result | Failure]:
    """Train what is not finished, and return the outcomes, in the order of the runs."""
    context = TrainingContext(
        store, device or choose_device(), kernels, watch, stop or StopRequest(), compile
    )
    train_cell(to_train(runs, context, retry_failed)[0], context)
    return [done for run in runs if (done := RunFolder(store, run).outcome())]
