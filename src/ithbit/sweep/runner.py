"""Running any set of runs on one store: what is not finished is grouped into stacks and trained.

`run_all` is the one way in for a single cell (`ithbit train`) and for a whole sweep. The store is
the truth: a run is done when its result is there, whoever wrote it.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

from ithbit.engine.device import Device, choose_device
from ithbit.engine.folder import RunFolder, check_store
from ithbit.engine.loop import Event, Watcher, stack_size, train
from ithbit.engine.record import Failure, Result
from ithbit.engine.spec import RunSpec
from ithbit.errors import BusyError, StoreError
from ithbit.sweep.local import LocalPool, Worker, usable_cores
from ithbit.sweep.worker import event_from_json

MAX_ATTEMPTS = 3  # workers that may die over a run before it is recorded as failed
_BUSY_SECONDS = 1.0  # between two looks at a run that another process is training

Stack = list[RunSpec]


def run_all(
    runs: Iterable[RunSpec],
    store: Path,
    device_name: str = "auto",
    workers: int | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
) -> list[Result | Failure]:
    """Train every run that has no result yet; the outcome of each, in the order given.

    On a GPU one process trains stack after stack; on a CPU there is a worker a core unless told
    otherwise. Runs that another process holds are waited for.
    """
    runs = list(dict.fromkeys(runs))
    check_store(store)
    device = choose_device(device_name)
    todo = []
    for run in runs:
        if retry_failed:  # once: a run that fails again is not tried for ever
            RunFolder(store, run).forget_failure()
        done = outcome(store, run)
        if done is None:
            todo.append(run)
        else:
            watch(Event(run, done))
    n_workers = workers or (1 if device.is_cuda else usable_cores())
    stacks = group(todo, device, n_workers)
    if n_workers == 1 or len(stacks) <= 1:
        _train_here(stacks, store, device, watch)
    else:
        _train_in_pool(stacks, store, device, min(n_workers, len(stacks)), watch)
    found = [outcome(store, run) for run in runs]
    assert all(found)
    return [done for done in found if done is not None]


def outcome(store: Path, run: RunSpec) -> Result | Failure | None:
    """What the store has of a run, or None if it is to be trained."""
    folder = RunFolder(store, run)
    return folder.result() or folder.failure()


def group(
    runs: Iterable[RunSpec], device: Device, n_workers: int, size: int | None = None
) -> list[Stack]:
    """Runs of one shape stacked, as many as the device likes; longest first, so that none trails.

    Where there are more workers than stacks, a cell is cut up so that every worker has a share.
    With a `size` every stack is of that size, but for a cell's last one.
    """
    cells: dict[tuple[object, object], Stack] = defaultdict(list)
    for run in runs:
        cells[run.model, run.protocol].append(run)
    share = max(1, n_workers // max(1, len(cells)))
    stacks = []
    for cell in cells.values():
        each = size or min(stack_size(cell[0], device), -(-len(cell) // share))
        stacks += [cell[start : start + each] for start in range(0, len(cell), each)]
    return sorted(stacks, key=_work, reverse=True)


def _work(stack: Stack) -> int:
    """A stack's work, roughly: tokens times layers."""
    model = stack[0].model
    return len(stack) * model.n_layers * (model.n_bits + 2)


def _train_here(stacks: list[Stack], store: Path, device: Device, watch: Watcher) -> None:
    waiting = deque(stacks)
    while waiting:
        stack = waiting.popleft()
        try:
            train(stack, store, device, watch)
        except BusyError:
            waiting.append(stack)
            time.sleep(_BUSY_SECONDS)


def _train_in_pool(
    stacks: list[Stack],
    store: Path,
    device: Device,
    n_workers: int,
    watch: Watcher,
) -> None:
    """Hand the stacks to workers until every run has an outcome."""
    by_id = {run.run_id: run for stack in stacks for run in stack}
    attempts: dict[str, int] = defaultdict(int)
    waiting = deque(stacks)
    with LocalPool(store, device.torch.type, n_workers) as pool:
        at_work: list[Worker] = []

        def give_next(worker: Worker) -> None:
            if waiting:
                worker.give(waiting.popleft())
            else:
                at_work.remove(worker)

        for _ in range(n_workers):
            at_work.append(pool.start_worker())
            give_next(at_work[-1])
        while at_work:
            worker, answer = pool.answers.get()
            if answer is None:
                if worker in at_work:
                    at_work.remove(worker)
                    waiting.extend(_after_death(worker, store, attempts, watch))
                    if waiting:
                        at_work.append(pool.start_worker())
                        give_next(at_work[-1])
            elif answer["kind"] == "idle":
                give_next(worker)
            elif answer["kind"] == "busy":
                waiting.append(worker.stack)
                time.sleep(_BUSY_SECONDS)
                give_next(worker)
            elif answer["kind"] == "error":
                raise StoreError(answer["data"]["text"])
            else:
                watch(event_from_json(answer, by_id[answer["run_id"]]))


def _after_death(
    worker: Worker, store: Path, attempts: dict[str, int], watch: Watcher
) -> list[Stack]:
    """What of a dead worker's stack is to be tried again; what died too often is recorded."""
    status = worker.process.returncode
    how = f"signal {-status}" if status < 0 else f"status {status}"
    again = []
    for run in worker.stack:
        if outcome(store, run) is not None:
            continue
        attempts[run.run_id] += 1
        if attempts[run.run_id] < MAX_ATTEMPTS:
            again.append(run)
        else:
            error = f"its worker process died {MAX_ATTEMPTS} times, last with {how}"
            folder = RunFolder(store, run)
            folder.create()  # the worker may not have come so far
            failure = Failure(run, error, "", epoch=len(folder.history()))
            folder.fail(failure)
            watch(Event(run, failure))
    if again:
        names = ", ".join(run.name for run in again)
        watch(Event(again[0], f"a worker died with {how}; trained again: {names}"))
    return [[run] for run in again]  # alone: whoever kills its worker takes no neighbour along
