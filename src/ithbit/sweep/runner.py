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
from ithbit.engine.loop import Event, Notice, Watcher, stack_size
from ithbit.engine.paths import Kernels, check_kernels, compiling
from ithbit.engine.record import Failure, Result
from ithbit.engine.spec import RunSpec
from ithbit.errors import StoreError
from ithbit.sweep.local import LocalPool, Worker, worker_devices
from ithbit.sweep.threads import BUSY_SECONDS, Audience, at_once, heed_ctrl_c, train_side_by_side
from ithbit.sweep.worker import error_from_json, event_from_json

MAX_ATTEMPTS = 3  # workers that may die over a run before it is recorded as failed
_NAMED = 5  # of damaged runs, in a message

Stack = list[RunSpec]


def run_all(
    runs: Iterable[RunSpec],
    store: Path,
    device_name: str = "auto",
    workers: int | None = None,
    watch: Watcher = lambda event: None,
    retry_failed: bool = False,
    kernels: Kernels = "auto",
) -> list[Result | Failure]:
    """Train every run that has no result yet; the outcome of each, in the order given.

    On a GPU one process trains several stacks side by side, and there is a process a GPU; on a CPU
    there is a worker a core unless told otherwise. Runs that another process holds are waited for.
    """
    runs = list(dict.fromkeys(runs))
    device = choose_device(device_name)
    check_kernels(kernels, runs, device)
    check_store(store)
    todo = []
    for run, done in zip(runs, _outcomes(store, runs), strict=True):
        if retry_failed and isinstance(done, Failure):  # once: none is tried for ever
            RunFolder(store, run).forget_failure()
            done = None
        if done is None:
            todo.append(run)
        else:
            watch(Event(run, done))
    devices = worker_devices(device_name, device, workers)
    audience = Audience(watch)
    if device.is_cuda and len(devices) == 1:  # whole cells: whoever leaves a stack is replaced
        stacks = group(todo, device, 1, size=max(1, len(todo)))
    else:
        stacks = group(todo, device, len(devices))
    by_kernels = todo if device.is_cuda and kernels != "off" else []
    with compiling(
        by_kernels, device, lambda text: audience.tell(Event(todo[0], Notice(text)))
    ) as ready:
        if len(devices) == 1 or len(stacks) <= 1:
            n_stacks = at_once(device.torch.type)
            train_side_by_side(stacks, store, device, n_stacks, audience, kernels, ready)
        else:
            while not all(map(ready, todo)):
                time.sleep(BUSY_SECONDS)
            devices = devices[: len(stacks)]
            heed_ctrl_c(
                lambda: _train_in_pool(stacks, store, devices, audience.tell, kernels),
                audience,
                mid_epoch=True,
            )
    found = [outcome(store, run) for run in runs]
    assert all(found)
    return [done for done in found if done is not None]


def outcome(store: Path, run: RunSpec) -> Result | Failure | None:
    """What the store has of a run, or None if it is to be trained."""
    folder = RunFolder(store, run)
    return folder.result() or folder.failure()


def _outcomes(store: Path, runs: Stack) -> list[Result | Failure | None]:
    """What the store has of each run; all that is damaged is named at once."""
    found, damaged = [], []
    for run in runs:
        try:
            found.append(outcome(store, run))
        except StoreError as error:
            damaged.append((RunFolder(store, run).path, error))
    if len(damaged) == 1:
        raise damaged[0][1]
    if damaged:
        named = ", ".join(str(path) for path, _ in damaged[:_NAMED])
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        raise StoreError(
            f"{len(damaged)} folders hold no readable run (`ithbit status` says why); they are "
            "left as they are: restore the files, or move the folders away to train anew: "
            f"{named}{more}"
        )
    return found


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


def _train_in_pool(
    stacks: list[Stack],
    store: Path,
    devices: list[str],
    watch: Watcher,
    kernels: Kernels,
) -> None:
    """Hand the stacks to workers, one on each device named, until every run has an outcome."""
    by_id = {run.run_id: run for stack in stacks for run in stack}
    attempts: dict[str, int] = defaultdict(int)
    waiting = deque(stacks)
    with LocalPool(store, kernels) as pool:
        at_work = [pool.start_worker(device_name) for device_name in devices]
        while at_work:
            _deal(waiting, at_work, attempts)
            worker, answer = pool.answers.get()
            if answer is None:
                if worker in at_work:
                    at_work.remove(worker)
                    waiting.extend(_after_death(worker, store, attempts, watch))
                    if waiting:
                        at_work.append(pool.start_worker(worker.device_name))
            elif answer["kind"] == "idle":
                worker.orders.pop(answer["order"])
            elif answer["kind"] == "busy":
                waiting.append(worker.orders.pop(answer["order"]))
                time.sleep(BUSY_SECONDS)
            elif answer["kind"] == "error":
                raise error_from_json(answer)
            else:
                watch(event_from_json(answer, by_id[answer["run_id"]]))
            if not waiting:
                at_work = [worker for worker in at_work if worker.orders]


def _deal(waiting: deque[Stack], at_work: list[Worker], attempts: dict[str, int]) -> None:
    """Hand stacks out while a worker has room, each to the one that has the fewest.

    Whoever is at its last attempt has a worker to itself, so that it does not fail for another.
    """
    while waiting:
        worker = min(at_work, key=lambda worker: len(worker.orders))
        alone = any(attempts[run.run_id] == MAX_ATTEMPTS - 1 for run in waiting[0])
        if not worker.has_room or (alone and worker.orders):
            break
        worker.give(waiting.popleft(), alone)


def _after_death(
    worker: Worker, store: Path, attempts: dict[str, int], watch: Watcher
) -> list[Stack]:
    """What of a dead worker's stack is to be tried again; what died too often is recorded."""
    status = worker.process.returncode
    how = f"signal {-status}" if status < 0 else f"status {status}"
    again = []
    for run in worker.runs:
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
