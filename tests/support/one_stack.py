"""Runs of one spec, trained in this process as a stack, and what they saved: what tests of the
engine begin with."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ithbit.engine.device import Device, choose_device
from ithbit.engine.loop import train_cell
from ithbit.engine.options import Switch
from ithbit.engine.outcomes import to_train
from ithbit.engine.stack import fresh_state
from ithbit.engine.training_context import StopRequest, TrainingContext, Watcher
from ithbit.spec import ModelSpec, Protocol, RunSpec
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


def runs_of(seeds: Iterable[int], protocol: Protocol, **model: int) -> list[RunSpec]:
    """GRUs on RHI, of three bits unless given otherwise."""
    spec = ModelSpec("rhi", "gru", **{"n_bits": 3} | model)
    return [RunSpec(spec, seed, protocol) for seed in seeds]


def saved_epochs(store: Path, run: RunSpec) -> int:
    """The epochs in a run's checkpoint."""
    checkpoint, remark = RunFolder(store, run).load(vars(fresh_state(run)))
    assert remark is None
    return 0 if checkpoint is None else checkpoint.epochs_done
