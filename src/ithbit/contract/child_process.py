"""The process in which a check runs. The command line starts it before it reads its own options,
since both import for a while. Nothing here needs torch, and little else is imported."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# What an import leaves is not garbage: looking for some takes a tenth of the time of torch's.
_PROGRAM = "import gc; gc.disable(); from ithbit.contract.child import main; main()"
_KEPT = str(1 << 30)  # bytes


@dataclass(frozen=True)
class ChildProcess:
    """A process that waits for a line on its standard input: what to check. It writes to `pipe`;
    what the layer prints goes to `output`."""

    process: "subprocess.Popen[bytes]"
    pipe: IO[bytes]
    output: IO[bytes]

    def send(self, request: str) -> None:
        """Say what to check."""
        given = self.process.stdin
        assert given is not None
        with suppress(BrokenPipeError), given:
            given.write(request.encode() + b"\n")

    def end(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self.pipe.close()
        self.output.close()


_AHEAD: list[ChildProcess] = []


def start_ahead() -> None:
    """Start a process that the next check takes."""
    _AHEAD.append(_started())


def end_ahead() -> None:
    """End a process that no check took."""
    while _AHEAD:
        _AHEAD.pop().end()


def child_process() -> ChildProcess:
    """A process for one check: the one that was started ahead, or a new one."""
    return _AHEAD.pop() if _AHEAD else _started()


def _started() -> ChildProcess:
    reading, writing = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(writing)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
            env=_environment(),
        )
    finally:
        os.close(writing)
    return ChildProcess(process, os.fdopen(reading, "rb", buffering=0), output)


def _environment() -> dict[str, str]:
    """One thread, this very package, and memory that is kept for the next call: to give it back
    and get it again takes a third of the time of a large layer."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), _KEPT)
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return kept | os.environ | own
