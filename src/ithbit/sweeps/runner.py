"""Running any set of runs on one store: what is not finished is grouped into stacks and trained.

`run_all` is the one entry point, for a single cell (`ithbit train`) and for a whole sweep. The
store decides: a run is done when its result is there, whichever process wrote it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ithbit.engine.cell import stack_size
from ithbit.engine.device import Device
from ithbit.engine.memory import host_bytes
from ithbit.engine.options import TrainingOptions
from ithbit.engine.outcomes import to_train
from ithbit.engine.steppers.choice import compiling, stacking_obstacle
from ithbit.engine.training_context import (
    StopRequest,
    TrainingContext,
    Watcher,
    interruption,
    stop_on_ctrl_c,
)
from ithbit.models.layer_source import is_session_only
from ithbit.spec import RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure, Result
from ithbit.sweeps.processes import train_in_processes, worker_devices
from ithbit.sweeps.threads import (
    BUSY_SECONDS,
    Stack,
    StackQueue,
    stacks_per_process,
    thread_safe_watcher,
    train_in_threads,
)


def run_all(
    runs: Iterable[RunSpec],
    store: Path,
    options: TrainingOptions,
    watch: Watcher = lambda event: None,
) -> list[Result | Failure]:
    """Train every run that has no result yet; return the outcomes, in the order of the runs.

    There is one process per GPU, which trains several stacks side by side; on a CPU there is one
    worker per core, unless `workers` is given. Runs held by another process are waited for. With a
    limit in minutes runs train in turns, and those that have not ended by then have no outcome: the
    next call resumes them. Ctrl-C saves all runs and raises `StoppedError`.
    """
    runs = list(dict.fromkeys(runs))
    device, stop = options.chosen_device, StopRequest()
    context = TrainingContext.of(options, store, thread_safe_watcher(watch, stop), stop)
    todo, needed = to_train(runs, context, options.retry_failed)
    workers = 1 if is_session_only(todo) else options.workers
    devices = worker_devices(options.device, device, workers)
    # On one GPU, a stack is a cell: a run that ends is replaced by the next.
    stacks = group(todo, device, len(devices), one_stack=device.is_cuda and len(devices) == 1)
    turns, devices = StackQueue(stacks, options.minutes), devices[: len(stacks)]
    if not device.is_cuda:  # workers share the machine's memory
        devices = devices[: max(1, host_bytes() // max(1, needed))]
    with stop_on_ctrl_c(stop), compiling(todo, context) as ready:
        if len(devices) <= 1:
            n_threads = min(stacks_per_process(device.torch.type), len(stacks))
            train_in_threads(turns, context, n_threads, ready)
        else:
            while not (stop.requested or all(map(ready, todo))):
                time.sleep(BUSY_SECONDS)
            train_in_processes(turns, context, devices, todo)
    if stop.requested:
        saved = turns.unfinished
        open_runs = [r for r in todo if r in saved and not RunFolder(store, r).outcome()]
        raise interruption({run: saved[run] for run in open_runs})
    return [outcome for run in runs if (outcome := RunFolder(store, run).outcome())]


def group(
    runs: Iterable[RunSpec],
    device: Device,
    n_workers: int,
    size: int | None = None,
    one_stack: bool = False,
) -> list[Stack]:
    """Stacks of one spec each, up to the device's `stack_size`; largest first, so that none trails.

    Where there are more workers than cells, a cell is split so that every worker has a share.
    With a `size` every stack has that size, except a cell's last one; with `one_stack` a cell is
    one stack, unless its seeds must train alone.
    """
    cells: dict[tuple[object, object], Stack] = defaultdict(list)
    for run in runs:
        cells[run.model, run.protocol].append(run)
    share = max(1, n_workers // max(1, len(cells)))
    stacks = []
    for cell in cells.values():
        each = size or min(stack_size(cell[0], device), -(-len(cell) // share))
        if one_stack and not stacking_obstacle(cell[0].model, device):
            each = len(cell)
        stacks += [cell[start : start + each] for start in range(0, len(cell), each)]

    def work(stack: Stack) -> int:
        """Roughly: tokens times layers."""
        return len(stack) * stack[0].model.n_layers * (stack[0].model.n_bits + 2)

    return sorted(stacks, key=work, reverse=True)
