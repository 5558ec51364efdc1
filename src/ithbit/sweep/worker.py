"""A worker process: trains the stacks it is given, one JSON line in and many out.

Started by `local.py` with pipes; the arguments are store and device. A task is a line
{"runs": [spec, …]}; the answers are lines {"kind": …, "run_id": …, "data": …}
for what the engine tells, then {"kind": "idle"}. A worker that cannot write to the disk says
{"kind": "error"} and goes on; it ends when its input ends, or with the reader of its output.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ithbit.engine.loop import Event
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
        case "remark":
            return Event(run, data["text"])
    raise ValueError(f"no event: {line['kind']}")


def serve(store: Path, device_name: str, tasks: TextIO, answers: TextIO) -> None:
    """Train task after task until there are no more."""
    from ithbit.engine.device import choose_device
    from ithbit.engine.loop import train

    device = choose_device(device_name)

    def say(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    for task in tasks:
        order = json.loads(task)
        runs = [run_from_json(data) for data in order["runs"]]
        try:
            train(runs, store, device, watch=lambda event: say(event_to_json(event)))
            say({"kind": "idle"})
        except BusyError:
            say({"kind": "busy"})
        except IthbitError as error:
            say({"kind": "error", "data": {"text": str(error)}})


def main() -> None:
    """Serve on the standard streams of this process."""
    store, device_name = sys.argv[1:]
    # Nothing but answers may reach the pipe, whatever libraries print, in Python or in C.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve(Path(store), device_name, sys.stdin, answers)
    except BrokenPipeError:
        sys.exit(1)
