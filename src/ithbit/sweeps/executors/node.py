"""One share on a node of a cluster: `python -m ithbit.sweeps.executors.node BATCH.json INDEX`.

A share may be started any number of times, even twice at once. It trains the runs without a result
from their last checkpoints, and waits for the results of runs that another process holds.

Locks work between nodes only if the file system supports them. Where it does not, two copies of a
run train side by side: they compute the same bits, write under names of their own and move files
into place in one step, and the first result stands. If a lock outlives its node, the run folder
stops changing; after half an hour the lock is removed and the run resumes here.

Before a cluster ends a job, it sends SIGTERM: runs are saved, and the job ends.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from ithbit.display import say
from ithbit.errors import BusyError, IthbitError
from ithbit.models.layer_source import register_sources
from ithbit.spec import RunSpec
from ithbit.sweeps.executors.ledger import read_batch

STALE_SECONDS = 1800.0  # without a change by the process that holds a run: epochs are far shorter
_BUSY_SECONDS = 1.0  # between two checks of a run that another process is training


def train_share(path: Path, index: int) -> None:
    """Train the runs of a share until each has a result or a failure."""
    batch = read_batch(path)
    if batch is None:
        say(f"{path} is gone: its runs are finished, or it was never submitted")
        return

    register_sources(batch.layers)

    import torch

    from ithbit.engine.device import choose_device
    from ithbit.engine.loop import train_cell
    from ithbit.engine.outcomes import to_train
    from ithbit.engine.training_context import Event, StopRequest, TrainingContext
    from ithbit.sweeps.runner import group
    from ithbit.sweeps.threads import StackQueue, stacks_per_process, train_in_threads

    def print_remark(event: Event) -> None:
        if isinstance(event.what, str):
            say(event.what)

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    share, stop = batch.shares[index], StopRequest()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda signum, frame: stop.request())
    try:
        context = TrainingContext(
            batch.store, choose_device(batch.device), watch=print_remark, stop=stop
        )
        share.note("ready")
        device = context.device
        todo = to_train(share.runs, context, retry_failed=False)[0]
        # What a share of a CPU holds trains together, on all cores that the task has.
        stacks = group(todo, device, n_workers=1, size=None if device.is_cuda else len(share.runs))
        if len(stacks) > 1:
            n_threads = min(stacks_per_process(device.torch.type), len(stacks))
            train_in_threads(
                StackQueue(stacks),
                context,
                n_threads,
                when_busy=lambda stack: drop_stale_locks(batch.store, stack),
            )
            return
        while not stop.requested:
            try:
                train_cell(to_train(share.runs, context, retry_failed=False)[0], context)
                return
            except BusyError:
                drop_stale_locks(batch.store, share.runs)
                time.sleep(_BUSY_SECONDS)
    except IthbitError as error:
        share.note(f"error {error}")
        raise


def drop_stale_locks(store: Path, runs: Iterable[RunSpec]) -> None:
    """Remove the lock file of every run whose folder has not changed for `STALE_SECONDS`.

    A lock belongs to the file it was taken on: a new file of that name is not locked.
    """
    with tempfile.NamedTemporaryFile(dir=store, prefix=".clock.") as file:
        now = os.stat(file.name).st_mtime  # by the same clock as the other files
    for run in runs:
        folder = store / run.folder
        newest = max((entry.stat().st_mtime for entry in os.scandir(folder)), default=now)
        if now - newest > STALE_SECONDS:
            (folder / "lock").unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        train_share(Path(sys.argv[1]), int(sys.argv[2]))
    except IthbitError as error:
        say(f"ithbit: {error}", file=sys.stderr)
        sys.exit(2)
