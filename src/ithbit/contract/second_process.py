"""A second process for a part of a check, where there are two processors: a copy of this one.

What a check tries does not depend on it, nor on which process does it. The jobs are done in this
one if there is no second one, if it ends early, or if what was found here changes what they need.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ithbit.contract.checking import CheckRun, Clock
from ithbit.contract.findings import ClauseResult, Finding
from ithbit.contract.watching import CannotCheckError
from ithbit.errors import LayerError

Job = Callable[[CheckRun], None]
_EACH = 0.75  # of the seconds that are left, which each of two processes may use


@dataclass(frozen=True)
class _Gained:
    """What a job has added to a check."""

    results: dict[str, ClauseResult]
    lengths: set[int]
    cuts: int
    futures: set[str]
    refused: dict[int, str]
    too_slow: set[int]
    remarks: list[str]
    exact: bool
    after_calls: bool
    seconds: float
    is_over: bool


@dataclass
class SecondProcess:
    """Jobs that a copy of this process does. It begins with the first; the others are done by the
    process that has time for them."""

    run: CheckRun
    jobs: Sequence[Job]
    _pid: int = 0
    _pipe: IO[str] | None = None  # what the copy has found
    _turns: int | None = None  # a pipe with the numbers of jobs that nobody has begun
    _joined: set[int] = field(default_factory=set)

    def start(self) -> "SecondProcess":
        """Begin with the jobs in a copy of this process, if that is safe."""
        if not _can_fork(self.run):
            return self
        self.run.clock = self.run.clock.part(_EACH)
        self.run.total, self.run.in_two = self.run.clock.left, True
        self._turns, turns = os.pipe()
        os.write(turns, bytes(range(1, len(self.jobs))))
        os.close(turns)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _work(self.run, self.jobs, writing, self._turns)
        os.close(writing)
        self._pid, self._pipe = pid, os.fdopen(reading)
        return self

    def first(self) -> None:
        """Add what the first job has found, when it is done."""
        while 0 not in self._joined and self._receive():
            pass
        self._do_here(0)

    def finish(self) -> None:
        """Do the jobs that nobody has begun, and add what the others have found."""
        if self._turns is not None:
            while turn := os.read(self._turns, 1):
                self._do_here(turn[0])
        while len(self._joined) < len(self.jobs) and self._receive():
            pass
        for job in range(len(self.jobs)):
            self._do_here(job)

    def begin_here(self) -> None:
        """End the second process: all jobs are done again, here."""
        self.end()
        self._joined.clear()

    def _do_here(self, job: int) -> None:
        if job not in self._joined:
            self._joined.add(job)
            self.jobs[job](self.run)

    def _receive(self) -> bool:
        """Wait for the next thing that the second process has found; false if it has ended."""
        if self._pipe is None:
            return False
        self.run.caller.beat("")  # this process waits
        line = self._pipe.readline()
        if not line.endswith("\n"):
            self.end()
            return False
        answer = json.loads(line)
        if "cannot" in answer:
            raise CannotCheckError(answer["cannot"])
        _add(self.run, _gained_from(answer["gained"]))
        self._joined.add(answer["job"])
        return True

    def end(self) -> None:
        """End the second process: its other jobs are done here when they are joined."""
        if self._pipe is None:
            return
        self._pipe.close()
        self._pipe = None
        if self._turns is not None:
            os.close(self._turns)
            self._turns = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _can_fork(run: CheckRun) -> bool:
    """Whether a copy of this process is as good as this one: no thread but this one, no GPU, and a
    processor for it."""
    if not run.two_processes or run.settings.device != "cpu":
        return False
    try:
        threads = len(list(Path("/proc/self/task").iterdir()))
        return threads == 1 and len(os.sched_getaffinity(0)) > 1
    except (OSError, AttributeError):
        return False


def _work(run: CheckRun, jobs: Sequence[Job], writing: int, turns: int) -> None:
    """The second process: it does jobs, writes what they add, and ends."""
    status = 1
    try:
        run.clock = Clock(run.clock.left)
        turn = b"\0"
        with os.fdopen(writing, "w") as pipe:
            while turn:
                answer: dict[str, Any]
                try:
                    answer = {"job": turn[0], "gained": asdict(_gained(run, jobs[turn[0]]))}
                except LayerError as error:
                    answer = {"cannot": str(error)}
                pipe.write(json.dumps(answer, default=list) + "\n")
                pipe.flush()
                turn = b"" if "cannot" in answer else os.read(turns, 1)
        status = 0
    finally:
        os._exit(status)


def _gained(run: CheckRun, job: Job) -> _Gained:
    before, spent = dict(run.results), run.clock.spent
    lengths, cuts, remarks = set(run.lengths), run.cuts, len(run.remarks)
    job(run)
    return _Gained(
        {k: v for k, v in run.results.items() if before.get(k) != v},
        run.lengths - lengths,
        run.cuts - cuts,
        set(run.futures),
        dict(run.refused),
        set(run.too_slow),
        run.remarks[remarks:],
        run.exact,
        run.after_calls,
        run.clock.spent - spent,
        run.clock.left < 0,
    )


def _gained_from(answer: dict[str, Any]) -> _Gained:
    results = {}
    for clause, had in answer["results"].items():
        finding = Finding(**had["finding"]) if had["finding"] else None
        results[clause] = ClauseResult(**had | {"finding": finding})
    return _Gained(
        **answer
        | {
            "results": results,
            "lengths": set(answer["lengths"]),
            "futures": set(answer["futures"]),
            "refused": {int(length): why for length, why in answer["refused"].items()},
            "too_slow": set(answer["too_slow"]),
        }
    )


def _add(run: CheckRun, gained: _Gained) -> None:
    for clause, result in gained.results.items():
        had = run.results.get(clause)
        if had is None or (had.finding is None and result.outcome != "not checked"):
            run.results[clause] = result
    run.lengths |= gained.lengths
    run.cuts += gained.cuts
    run.futures |= gained.futures
    run.refused = gained.refused | run.refused
    run.too_slow |= gained.too_slow
    run.remarks += gained.remarks
    run.exact = run.exact and gained.exact
    run.after_calls = run.after_calls or gained.after_calls
    run.seconds_elsewhere += gained.seconds
    run.is_over = run.is_over or gained.is_over
