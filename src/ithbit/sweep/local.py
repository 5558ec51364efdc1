"""Workers on this machine: processes that share its cores, with one thread each.

Small models gain little from a second thread and much from a second process, so a CPU gets a worker
a core. A GPU gets one worker, which trains several stacks at once. A worker that dies takes no run
with it: what it was training goes back to the queue.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ithbit.engine.device import Device
from ithbit.engine.paths import Kernels
from ithbit.engine.spec import RunSpec
from ithbit.sweep.threads import at_once

# Ctrl-C reaches the whole group; the parent decides, and ends its workers with SIGTERM. First of
# all, for the imports take seconds.
_START = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from ithbit.sweep.worker import main
main()
"""


@dataclass
class Worker:
    """One worker process and the stacks it has in hand, by the number of the order."""

    process: subprocess.Popen[str]
    device_name: str
    orders: dict[int, list[RunSpec]] = field(default_factory=dict)
    n_given: int = 0

    @property
    def has_room(self) -> bool:
        return len(self.orders) < at_once(self.device_name)

    @property
    def runs(self) -> list[RunSpec]:
        """All that it is training."""
        return [run for stack in self.orders.values() for run in stack]

    def give(self, stack: list[RunSpec]) -> None:
        """Hand it a stack; a worker that is gone already will be noticed by its silence."""
        self.n_given += 1
        self.orders[self.n_given] = stack
        order = {"order": self.n_given, "runs": [run.to_json() for run in stack]}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass


Answer = tuple[Worker, dict[str, Any] | None]  # None: the worker is gone


class LocalPool:
    """Workers on one store; use as a context."""

    def __init__(self, store: Path, kernels: Kernels) -> None:
        self.store, self.kernels = store, kernels
        self.answers: queue.Queue[Answer] = queue.Queue()
        self._workers: list[Worker] = []
        self._listeners: list[threading.Thread] = []

    def __enter__(self) -> "LocalPool":
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker, listener in zip(self._workers, self._listeners, strict=True):
            worker.process.wait()
            listener.join()
            assert worker.process.stdin is not None
            with suppress(BrokenPipeError):  # an order that it did not live to read
                worker.process.stdin.close()

    def command(self, device_name: str) -> list[str]:
        """What starts a worker on a device."""
        return [sys.executable, "-c", _START, str(self.store), device_name, self.kernels]

    def start_worker(self, device_name: str) -> Worker:
        """Start one more worker; its answers come through the queue."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            self.command(device_name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        worker = Worker(process, device_name)
        self._workers.append(worker)
        listener = threading.Thread(target=self._listen, args=(worker,), daemon=True)
        self._listeners.append(listener)
        listener.start()
        return worker

    def _listen(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                try:
                    self.answers.put((worker, json.loads(line)))
                except ValueError:  # cut off in the middle of a line: the end follows
                    break
        worker.process.wait()
        self.answers.put((worker, None))


def worker_devices(asked: str, device: Device, workers: int | None) -> list[str]:
    """The device of each worker: a worker a core, or a worker a GPU, unless told how many.

    Of several GPUs all are used, unless one was asked for by its number.
    """
    if not device.is_cuda:
        return ["cpu"] * (workers or usable_cores())
    n_gpus = 1 if ":" in asked else torch.cuda.device_count()
    if n_gpus == 1:
        return [str(device.torch)] * (workers or 1)
    return [f"cuda:{k % n_gpus}" for k in range(workers or n_gpus)]


def usable_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
