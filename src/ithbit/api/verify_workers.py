"""Runs verified side by side, in processes with one thread each.

A worker (`main`) gets folders through its input, a JSON line each, and answers with lines: how far
the search for a proof is, and at last what came of the folder. It is a process of its own command
instead of a fork, so that it works from any script and with torch's threads.
"""

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit import errors
from ithbit.errors import IthbitError, StoreError

if TYPE_CHECKING:
    from ithbit.verification.proofs.branch_and_bound import SearchResult
    from ithbit.verification.stored_verification import VerifyOptions, VerifyOutcome

_LEAVE_SECONDS = 30.0  # for a process that was interrupted to save its search

Json = dict[str, Any]
_START = "from ithbit.api.verify_workers import main; main()"


@dataclass
class FolderOutcome:
    """What came of the run of a folder."""

    outcome: "VerifyOutcome | None" = None  # None: not wanted, or it could not be verified
    owner: Json = field(default_factory=dict)  # the run's own record, to read that of `outcome`
    solved: bool = False
    solved_at_end: bool = False
    notes: list[str] = field(default_factory=list)
    error: IthbitError | None = None


def verify_folder(
    folder: Path,
    options: "VerifyOptions",
    solved_only: bool,
    watch: "Callable[[SearchResult], None] | None" = None,
    one_by_one: Any = iter,
) -> FolderOutcome:
    """Verify the run of a folder, unless it does not count as solved and only those are wanted."""
    from ithbit.verification.stored_run import read_stored_run
    from ithbit.verification.stored_verification import verify_stored

    result = FolderOutcome()
    try:
        stored = read_stored_run(folder)
        result.solved, result.solved_at_end = stored.solved, stored.solved_at_end
        result.owner = dict(stored.record)
        if stored.solved or not solved_only:
            result.outcome = verify_stored(stored, options, watch, one_by_one, result.notes.append)
    except IthbitError as error:
        result.error = error
    return result


def verify_side_by_side(
    folders: Sequence[Path],
    options: "VerifyOptions",
    solved_only: bool,
    workers: int,
    layers: Sequence[str],
    watch: Callable[[Path, str], None],
) -> Generator[tuple[Path, FolderOutcome], None, None]:
    """What came of every folder, as it is verified; `watch` gets how far the proofs are. If this
    process is interrupted, its workers save their searches as far as they got."""
    todo: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for folder in folders:
        todo.put(folder)
    fixed = {name: value for name, value in vars(options).items() if name != "device"}
    request = {"options": fixed, "device": str(options.device.torch), "solved_only": solved_only}
    request["layers"] = list(layers)
    answers: queue.SimpleQueue[tuple[Path, FolderOutcome | str]] = queue.SimpleQueue()
    processes: list[subprocess.Popen[str]] = []

    def work() -> None:
        process = None
        while True:
            with suppress(queue.Empty):
                folder = todo.get_nowait()
                if process is None or process.poll() is not None:
                    process = _worker()
                    processes.append(process)
                answers.put((folder, _result(process, folder, request, answers)))
                continue
            return

    pool = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            pool.submit(work)
        n_left = len(folders)
        while n_left:
            folder, answer = answers.get()
            if isinstance(answer, str):
                watch(folder, answer)
            else:
                n_left -= 1
                yield folder, answer
    finally:
        with suppress(queue.Empty):
            while True:
                todo.get_nowait()
        for process in processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in processes:
            try:
                process.wait(_LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        pool.shutdown()
        for process in processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _worker() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _result(
    process: "subprocess.Popen[str]",
    folder: Path,
    request: Json,
    answers: "queue.SimpleQueue[tuple[Path, FolderOutcome | str]]",
) -> FolderOutcome:
    """Have a worker verify a folder; its reports go to `answers`."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request | {"folder": str(folder)}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "outcome" in answer:
                return _outcome_from_json(answer)
            answers.put((folder, answer["progress"]))
    except (OSError, ValueError):
        pass
    process.kill()
    return FolderOutcome(
        error=StoreError(f"{folder}: the process that verified it died; is there enough memory?")
    )


def _outcome_to_json(result: FolderOutcome) -> Json:
    outcome, error = result.outcome, result.error
    return {
        "outcome": outcome and vars(outcome) | {"record": outcome.record.to_json()},
        "owner": result.owner,
        "solved": result.solved,
        "solved_at_end": result.solved_at_end,
        "notes": result.notes,
        "error": error and [type(error).__name__, str(error)],
    }


def _outcome_from_json(answer: Json) -> FolderOutcome:
    from ithbit.store.reading import parse_verification
    from ithbit.verification.stored_verification import VerifyOutcome

    outcome, error = answer.pop("outcome"), answer.pop("error")
    owner = answer.pop("owner")
    if outcome is not None:
        outcome = VerifyOutcome(
            **outcome | {"record": parse_verification(outcome["record"], owner)}
        )
    if error is not None:
        error = getattr(errors, error[0], StoreError)(error[1])
    return FolderOutcome(outcome=outcome, error=error, **answer)


def main() -> None:
    """The worker: verify the folders that come, until the input ends."""
    from ithbit.engine.device import choose_device, one_thread
    from ithbit.models.layer_source import find_layer
    from ithbit.verification.stored_verification import VerifyOptions

    def answer(line: Json) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def watch(progress: "SearchResult") -> None:
        answer({"progress": progress.sentence()})

    with suppress(KeyboardInterrupt, BrokenPipeError), one_thread():
        for line in sys.stdin:
            request = json.loads(line)
            options = VerifyOptions(choose_device(request["device"]), **request["options"])
            for layer in request["layers"]:
                find_layer(layer)
            folder = Path(request["folder"])
            answer(_outcome_to_json(verify_folder(folder, options, request["solved_only"], watch)))
