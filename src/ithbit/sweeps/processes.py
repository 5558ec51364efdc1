"""Workers on this machine: single-threaded processes that share its cores.

Small models gain little from a second thread and much from a second process, so a CPU gets one
worker per core. A GPU gets one worker, which trains several stacks at once. If a worker dies, what
it was training goes back to the queue.

A worker (`main`) gets store, device, kernels and compile as arguments, and stacks through its
input, one JSON line each: {"number": …, "runs": [spec, …], "layers": {code: source}, "seconds": at
most}. It answers with lines {"kind": …, "run_id": …, "data": …} for the engine's events, then
{"kind": "unfinished", "number": …, "data": {run id: epochs saved}} with the unfinished runs, or
{"kind": "busy", "number": …} if another process holds some. A worker that cannot write to the disk
sends {"kind": "error"} and continues. When its input ends, it saves what it is training and exits.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from ithbit import errors
from ithbit.engine.device import Device, one_thread, usable_cores
from ithbit.engine.loop import train_cell
from ithbit.engine.options import TrainingOptions
from ithbit.engine.outcomes import record_failure
from ithbit.engine.training_context import Event, Notice, StopRequest, TrainingContext
from ithbit.errors import BusyError, IthbitError
from ithbit.models.layer_source import register_sources, sources
from ithbit.spec import RunSpec, run_from_json
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result, from_json
from ithbit.sweeps.threads import (
    BUSY_SECONDS,
    Stack,
    StackQueue,
    stacks_per_process,
    thread_safe_watcher,
)

MAX_ATTEMPTS = 3  # deaths of its worker after which a run is recorded as failed
LEAVE_SECONDS = 60.0  # for a worker to save what it is training and exit; then it is killed
_SIGNAL_SECONDS = 0.5  # between two checks for an interruption

# Ctrl-C reaches the whole group, but the parent decides. Ignored before the imports, which take
# seconds.
_START = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from ithbit.sweeps.processes import main
main()
"""

# What an event may hold, by its kind: its class, and how it is written to a line and read back.
_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "epoch": (Epoch, asdict, lambda data: Epoch(**data)),
    "result": (Result, Result.to_json, lambda data: from_json(Result, data)),
    "failure": (Failure, Failure.to_json, lambda data: from_json(Failure, data)),
    "notice": (Notice, str, Notice),
    "remark": (str, str, str),
}


class Worker:
    """A worker process and the stacks it is training, by number; its answers go to a queue."""

    def __init__(
        self, context: TrainingContext, device_name: str, answers: "queue.SimpleQueue[Answer]"
    ) -> None:
        self.device_name = device_name
        self.stacks: dict[int, Stack] = {}
        self._n_given = 0
        self._alone = False  # the last stack must have the worker to itself
        self.process = subprocess.Popen(
            worker_command(context, device_name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self.listener.start()

    @property
    def has_room(self) -> bool:
        return not self.stacks or (
            not self._alone and len(self.stacks) < stacks_per_process(self.device_name)
        )

    def give(self, stack: Stack, seconds: float, alone: bool) -> None:
        """Send it a stack; if the worker is already gone, its listener reports that."""
        self._n_given, self._alone = self._n_given + 1, alone
        self.stacks[self._n_given] = stack
        runs, layers = [run.to_json() for run in stack], sources(stack)
        line = {"number": self._n_given, "runs": runs, "layers": layers, "seconds": seconds}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()

    def _listen(self, answers: "queue.SimpleQueue[Answer]") -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    answers.put((self, json.loads(line)))
                except ValueError:  # cut off in the middle of a line: the end follows
                    break
        self.process.wait()
        answers.put((self, None))


Answer = tuple[Worker, dict[str, Any] | None]  # None: the worker is gone


def worker_command(context: TrainingContext, device_name: str) -> list[str]:
    """The command that starts a worker on a device."""
    arguments = [str(context.store), device_name, context.kernels, context.compile]
    return [sys.executable, "-c", _START, *arguments]


@contextmanager
def _all_stopped(workers: list[Worker]) -> Iterator[None]:
    """At the end of this context, stop all the workers that the list then has."""
    try:
        yield
    finally:
        deadline = time.monotonic() + LEAVE_SECONDS
        try:
            for worker in workers:
                assert worker.process.stdin is not None
                with suppress(BrokenPipeError):  # it died before it read a stack
                    worker.process.stdin.close()
            for worker in workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also after a second interruption, which does not wait
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                worker.process.wait()
                worker.listener.join()


def worker_devices(name: str, device: Device, workers: int | None) -> list[str]:
    """The device of each worker: one worker per core or per GPU, unless `workers` is given.

    All GPUs are used, unless the user's name of the device has a number.
    """
    if not device.is_cuda:
        return ["cpu"] * (workers or usable_cores())
    n_gpus = 1 if ":" in name else torch.cuda.device_count()
    if n_gpus == 1:
        return [str(device.torch)] * (workers or 1)
    return [f"cuda:{k % n_gpus}" for k in range(workers or n_gpus)]


def train_in_processes(
    turns: StackQueue, context: TrainingContext, devices: list[str], runs: list[RunSpec]
) -> None:
    """Send the stacks to workers, one per device listed, until every run has an outcome."""
    by_id = {run.run_id: run for run in runs}
    attempts: dict[str, int] = defaultdict(int)
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    workers: list[Worker] = []  # also those that are gone

    def requeue(answer: dict[str, Any]) -> None:
        turns.requeue_unfinished(
            {by_id[run_id]: epochs for run_id, epochs in answer["data"].items()}
        )

    with _all_stopped(workers):
        workers += (Worker(context, device_name, answers) for device_name in devices)
        running = list(workers)
        while running and not context.stop.requested:
            _assign_stacks(turns, running, attempts)
            if not turns and not any(worker.stacks for worker in running):
                break
            try:
                worker, answer = answers.get(timeout=_SIGNAL_SECONDS)
            except queue.Empty:
                continue
            if answer is None:
                running.remove(worker)
                for stack in _requeue_after_crash(worker, context, attempts):
                    turns.requeue(stack)
                if turns:
                    workers.append(Worker(context, worker.device_name, answers))
                    running.append(workers[-1])
            elif answer["kind"] == "unfinished":
                worker.stacks.pop(answer["number"])
                requeue(answer)
            elif answer["kind"] == "busy":
                turns.requeue(worker.stacks.pop(answer["number"]))
                time.sleep(BUSY_SECONDS)
            elif answer["kind"] == "error":
                raise getattr(errors, answer["data"]["type"])(answer["data"]["text"])
            else:
                context.watch(event_from_json(answer, by_id[answer["run_id"]]))
    while not answers.empty():  # sent after their input was closed
        _, answer = answers.get()
        if answer is not None and answer["kind"] == "unfinished":
            requeue(answer)


def _assign_stacks(turns: StackQueue, running: list[Worker], attempts: dict[str, int]) -> None:
    """Send out stacks while a worker has room, each to the worker that has the fewest.

    A run at its last attempt gets a worker to itself, so that it cannot fail because of another.
    """

    def is_last(stack: Stack) -> bool:
        return any(attempts[run.run_id] == MAX_ATTEMPTS - 1 for run in stack)

    while True:
        worker = min(running, key=lambda worker: len(worker.stacks))
        fits = (lambda stack: not is_last(stack)) if worker.stacks else (lambda stack: True)
        turn = turns.take(fits) if worker.has_room else None
        if turn is None:
            break
        worker.give(*turn, alone=is_last(turn[0]))


def _requeue_after_crash(
    worker: Worker, context: TrainingContext, attempts: dict[str, int]
) -> list[Stack]:
    """A dead worker's runs to try again; those whose worker died too often are recorded as
    failed."""
    status = worker.process.returncode
    how_it_died = f"signal {-status}" if status < 0 else f"status {status}"
    again = []
    for run in (run for stack in worker.stacks.values() for run in stack):
        if RunFolder(context.store, run).outcome() is not None:
            continue
        attempts[run.run_id] += 1
        if attempts[run.run_id] < MAX_ATTEMPTS:
            again.append(run)
        else:
            error = f"its worker process died {MAX_ATTEMPTS} times, last with {how_it_died}"
            context.watch(Event(run, record_failure(context.store, run, error)))
    if again:
        names = ", ".join(run.name for run in again)
        context.watch(Event(again[0], f"a worker died with {how_it_died}; trained again: {names}"))
    return [[run] for run in again]  # alone: a run that kills its worker affects no other


def event_to_json(event: Event) -> dict[str, Any]:
    """An event of the engine as a line between processes."""
    kind = next(kind for kind, (of, *_) in _KINDS.items() if isinstance(event.what, of))
    return {"kind": kind, "run_id": event.run.run_id, "data": _KINDS[kind][1](event.what)}


def event_from_json(line: dict[str, Any], run: RunSpec) -> Event:
    """The event that `event_to_json` wrote about a run."""
    return Event(run, _KINDS[line["kind"]][2](line["data"]))


def serve(store: Path, options: TrainingOptions, stacks: Iterable[str], answers: TextIO) -> None:
    """Train stack after stack; when the input ends, save what is unfinished and return."""
    stop, lock = StopRequest(), threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock:
            try:
                answers.write(json.dumps(line) + "\n")
                answers.flush()
            except BrokenPipeError:  # the parent is gone: the input will end, too
                stop.request()

    watch = thread_safe_watcher(lambda event: say(event_to_json(event)), stop)
    context = TrainingContext.of(options, store, watch, stop)

    def train(line: str) -> None:
        order = json.loads(line)
        register_sources(order["layers"])
        runs = [run_from_json(data) for data in order["runs"]]
        try:
            turn = replace(context, stop=stop.within(order["seconds"]))
            data = {run.run_id: epochs for run, epochs in train_cell(runs, turn).items()}
            say({"kind": "unfinished", "number": order["number"], "data": data})
        except BusyError:
            say({"kind": "busy", "number": order["number"]})
        except IthbitError as error:
            say({"kind": "error", "data": {"type": type(error).__name__, "text": str(error)}})

    def train_or_die(line: str) -> None:
        try:
            train(line)
        except BaseException:  # unseen in a thread, so end the process: the parent notices that
            traceback.print_exc()
            os._exit(1)

    with one_thread(), ThreadPoolExecutor(stacks_per_process(options.device)) as threads:
        for line in stacks:
            threads.submit(train_or_die, line)
        stop.request()


def main() -> None:
    """Serve on the standard streams of this process."""
    store, device_name, kernels, compile = sys.argv[1:]
    # Nothing but answers may reach the pipe, whatever libraries print, in Python or in C.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = TrainingOptions(device_name, kernels=kernels, compile=compile)
    folder = Path(store).absolute()  # a user's file may change the folder when it is imported
    serve(folder, options, sys.stdin, answers)
