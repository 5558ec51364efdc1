"""A worker process: trains the stacks it is given, one JSON line in and many out.

Started by `local.py` with pipes; the arguments are store, device and kernels. A task is a line
{"order": number, "runs": [spec, …]}; the answers are lines {"kind": …, "run_id": …, "data": …}
for what the engine tells, then {"kind": "idle", "order": number}. On a GPU several tasks are at
work at once. A worker that cannot write to the disk says {"kind": "error"} and goes on; it ends
when its input ends, or with the reader of its output.
"""

import json
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, cast

from ithbit import errors
from ithbit.engine.loop import Event, Notice
from ithbit.engine.paths import Kernels
from ithbit.engine.record import Epoch, Failure, Result, failure_from_json, result_from_json
from ithbit.engine.spec import RunSpec, run_from_json
from ithbit.errors import BusyError, IthbitError


def event_to_json(event: Event) -> dict[str, Any]:
    """An event of the engine as a line between processes."""
    match event.what:
        case Epoch():
            kind, data = "epoch", asdict(event.what)
        case Result():
            kind, data = "result", event.what.to_json()
        case Failure():
            kind, data = "failure", event.what.to_json()
        case Notice():
            kind, data = "notice", {"text": event.what}
        case remark:
            kind, data = "remark", {"text": remark}
    return {"kind": kind, "run_id": event.run.run_id, "data": data}


def event_from_json(line: dict[str, Any], run: RunSpec) -> Event:
    """The event that `event_to_json` wrote about a run."""
    data = line["data"]
    match line["kind"]:
        case "epoch":
            return Event(run, Epoch(**data))
        case "result":
            return Event(run, result_from_json(data))
        case "failure":
            return Event(run, failure_from_json(data))
        case "notice":
            return Event(run, Notice(data["text"]))
        case "remark":
            return Event(run, data["text"])
    raise ValueError(f"no event: {line['kind']}")


def error_from_json(line: dict[str, Any]) -> IthbitError:
    """The error that a worker met, of the class it had there."""
    data = line["data"]
    kind: type[IthbitError] = getattr(errors, data["type"])
    return kind(data["text"])


def serve(store: Path, device_name: str, kernels: Kernels, tasks: TextIO, answers: TextIO) -> None:
    """Train task after task until there are no more."""
    from ithbit.engine.device import choose_device
    from ithbit.engine.loop import train
    from ithbit.sweep.threads import Audience, at_once

    device = choose_device(device_name)
    lock = threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(line) + "\n")
            answers.flush()

    audience = Audience(lambda event: say(event_to_json(event)))

    def do(task: str) -> None:
        order = json.loads(task)
        runs = [run_from_json(data) for data in order["runs"]]
        try:
            train(runs, store, device, audience.tell, kernels=kernels)
            say({"kind": "idle", "order": order["order"]})
        except BusyError:
            say({"kind": "busy", "order": order["order"]})
        except IthbitError as error:
            data = {"type": type(error).__name__, "text": str(error)}
            say({"kind": "error", "data": data})

    def do_or_die(task: str) -> None:
        try:
            do(task)
        except BaseException:  # nobody looks at a thread: the process ends, and that is seen
            traceback.print_exc()
            os._exit(1)

    n_threads = at_once(device_name)
    if n_threads == 1:
        for task in tasks:
            do(task)
        return
    with device.one_thread(), ThreadPoolExecutor(n_threads) as threads:
        for task in tasks:
            threads.submit(do_or_die, task)


def main() -> None:
    """Serve on the standard streams of this process."""
    store, device_name, kernels = sys.argv[1:]
    # Nothing but answers may reach the pipe, whatever libraries print, in Python or in C.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve(Path(store), device_name, cast(Kernels, kernels), sys.stdin, answers)
    except BrokenPipeError:
        sys.exit(1)
