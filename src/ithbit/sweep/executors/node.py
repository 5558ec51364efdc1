"""One share on a node of a cluster: `python -m ithbit.sweep.executors.node BATCH.json INDEX`.

A share may be started any number of times, and twice at once. It trains what has no result, from
the last checkpoint on, and leaves runs alone that another process holds, waiting for their results.

Locks hold between nodes only if the file system carries them. Where it does not, two copies of a
run train side by side: they compute the same bits, write under names of their own and move files
into place in one step, and the first result stands. Where a lock outlives its node, the run folder
stops changing; after half an hour the lock is taken away and the run goes on here.

Where a cluster ends a job it sends SIGTERM first: runs are saved, and the job ends.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from ithbit.errors import BusyError, IthbitError
from ithbit.spec import RunSpec
from ithbit.sweep.executors.ledger import read_batch

STALE_SECONDS = 1800.0  # without a sign of life from whoever holds a run: epochs are far shorter
_BUSY_SECONDS = 1.0  # between two looks at a run that another process is training


def train_share(path: Path, index: int) -> None:
    """Train the runs of a share until each has a result or a failure."""
    batch = read_batch(path)
    if batch is None:
        print(f"{path} is gone: its runs are finished, or it was never handed over")
        return

    import torch

    from ithbit.engine.device import choose_device
    from ithbit.engine.how import Event, Pause
    from ithbit.engine.loop import train

    def print_remark(event: Event) -> None:
        if isinstance(event.what, str):
            print(event.what, flush=True)

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    runs, pause = batch.shares[index].runs, Pause()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda signum, frame: pause.ask())
    try:
        device = choose_device(batch.device)
        batch.note(index, "ready")
        while not pause.asked:
            try:
                train(runs, batch.store, device, watch=print_remark, pause=pause)
                return
            except BusyError:
                drop_stale_locks(batch.store, runs)
                time.sleep(_BUSY_SECONDS)
    except IthbitError as error:
        batch.note(index, f"error {error}")
        raise


def drop_stale_locks(store: Path, runs: tuple[RunSpec, ...]) -> None:
    """Take the lock file of every run away whose folder has not changed for long.

    A lock belongs to the file it was taken on: on the new file of that name nobody has one.
    """
    with tempfile.NamedTemporaryFile(dir=store, prefix=".clock.") as file:
        now = os.stat(file.name).st_mtime  # by the clock that stamps the other files, too
    for run in runs:
        folder = store / run.folder
        newest = max((entry.stat().st_mtime for entry in os.scandir(folder)), default=now)
        if now - newest > STALE_SECONDS:
            (folder / "lock").unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        train_share(Path(sys.argv[1]), int(sys.argv[2]))
    except IthbitError as error:
        print(f"ithbit: {error}", file=sys.stderr)
        sys.exit(2)
