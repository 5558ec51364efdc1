"""A worker process: trains the stacks it is given, one JSON line in and many out.

Started by `processes.py` with pipes; the arguments are store, device, kernels and compile. A stack
is a line {"number": …, "runs": [spec, …], "layers": {code: source}, "seconds": at most}; answers
are lines {"kind": …, "run_id": …, "data": …} for the engine's events, then {"kind": "left",
"number": …, "data": {run id: epochs saved}} with the unfinished runs, or {"kind": "busy", "number":
…} if another process holds some. On a GPU several stacks train at once. A worker that cannot write
to the disk sends {"kind": "error"} and continues. When its input ends, it saves what it is training
and exits.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO, cast

from ithbit import errors
from ithbit.engine.device import choose_device, one_thread
from ithbit.engine.how import Event, How, Notice, Pause
from ithbit.engine.loop import train_cell
from ithbit.engine.steppers import Compile, Kernels
from ithbit.errors import BusyError, IthbitError
from ithbit.models.layer_source import learn
from ithbit.spec import RunSpec, run_from_json
from ithbit.store.records import Epoch, Failure, Result, failure_from_json, result_from_json
from ithbit.sweep.threads import at_once, shared

# What an event may hold, by its kind: its class, and how it is written to a line and read back.
_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "epoch": (Epoch, asdict, lambda data: Epoch(**data)),
    "result": (Result, Result.to_json, result_from_json),
    "failure": (Failure, Failure.to_json, failure_from_json),
    "notice": (Notice, str, Notice),
    "remark": (str, str, str),
}


def event_to_json(event: Event) -> dict[str, Any]:
    """An event of the engine as a line between processes."""
    kind = next(kind for kind, (of, *_) in _KINDS.items() if isinstance(event.what, of))
    return {"kind": kind, "run_id": event.run.run_id, "data": _KINDS[kind][1](event.what)}


def event_from_json(line: dict[str, Any], run: RunSpec) -> Event:
    """The event that `event_to_json` wrote about a run."""
    if line["kind"] not in _KINDS:
        raise ValueError(f"no event: {line['kind']}")
    return Event(run, _KINDS[line["kind"]][2](line["data"]))


def error_from_json(line: dict[str, Any]) -> IthbitError:
    """The error that a worker reported, of the same class."""
    data = line["data"]
    kind: type[IthbitError] = getattr(errors, data["type"])
    return kind(data["text"])


def serve(
    store: Path,
    device_name: str,
    kernels: Kernels,
    stacks: Iterable[str],
    answers: TextIO,
    compile: Compile = "auto",
) -> None:
    """Train stack after stack; when the input ends, save what is unfinished and return."""
    pause, lock = Pause(), threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock:
            try:
                answers.write(json.dumps(line) + "\n")
                answers.flush()
            except BrokenPipeError:  # the parent is gone: the input will end, too
                pause.ask()

    watch = shared(lambda event: say(event_to_json(event)), pause)
    how = How(store, choose_device(device_name), kernels, watch, pause, compile)

    def train(line: str) -> None:
        order = json.loads(line)
        learn(order["layers"])
        runs = [run_from_json(data) for data in order["runs"]]
        try:
            left = train_cell(runs, replace(how, pause=pause.within(order["seconds"])))
            data = {unfinished.spec.run_id: unfinished.epochs for unfinished in left}
            say({"kind": "left", "number": order["number"], "data": data})
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

    with one_thread(), ThreadPoolExecutor(at_once(device_name)) as threads:
        for line in stacks:
            threads.submit(train_or_die, line)
        pause.ask()


def main() -> None:
    """Serve on the standard streams of this process."""
    store, device_name, kernels, compile = sys.argv[1:]
    # Nothing but answers may reach the pipe, whatever libraries print, in Python or in C.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    choices = cast(Kernels, kernels), cast(Compile, compile)
    serve(Path(store), device_name, choices[0], sys.stdin, answers, choices[1])
