"""A check in a process of its own, with limits: a layer that hangs, exits, crashes or allocates
without end ends that process and not the user's, and gets a sentence.

`check_in_child` starts it and needs no torch. The child imports the layer, checks it, and writes
lines of JSON to a pipe: what it does next, and at last the report.
"""

import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from ithbit.contract.child_process import ChildProcess, child_process
from ithbit.contract.findings import CheckSettings, ContractReport, report_from_json

if TYPE_CHECKING:
    import subprocess

_GIB = 1 << 30
_POLL = 0.05  # seconds between looks at the child


@dataclass(frozen=True)
class Limits:
    """What the child may use: seconds to start, for one call, and in all; bytes of memory."""

    start: float = 180.0
    call: float = 15.0
    total: float = 180.0
    memory: int = 4 * _GIB


def limits_for(settings: CheckSettings) -> Limits:
    """The limits of a check: kernels for a GPU may be compiled in the first calls."""
    slow = 1.0 if settings.device == "cpu" else 8.0
    memory = 4 * _GIB if settings.device == "cpu" else 16 * _GIB
    return Limits(180.0, slow * max(15.0, settings.seconds), 120.0 + 12 * settings.seconds, memory)


def check_in_child(
    name: str,
    settings: CheckSettings,
    limits: Limits | None = None,
    kind: Literal["layer", "model"] = "layer",
) -> ContractReport:
    """Check a layer or a whole model that is named, in another process."""
    return report_of_child(kind, name, settings, limits or limits_for(settings))


def report_of_child(
    kind: str, name: str, settings: CheckSettings, limits: Limits
) -> ContractReport:
    """The report of a child that checks something named; a reason it cannot be checked, if the
    child ends without one."""
    began, child = time.monotonic(), child_process()
    try:
        child.send(json.dumps({"kind": kind, "name": name, "settings": asdict(settings)}))
        watch = _Watch(child.process, limits)
        report = watch.follow(child.pipe)
        reason = "" if report is not None else watch.reason or _ending(child, watch)
    finally:
        child.end()
    if report is not None:
        return report
    return ContractReport(name, settings=settings, seconds=time.monotonic() - began, cannot=reason)


@dataclass
class _Doing:
    """What a process does, since when, and its processor time then; nothing, if it waits."""

    what: str
    since: float
    cpu_since: float


class _Watch:
    """Follows a child, and the copy of itself that it may make, by what they write, their time and
    their memory."""

    def __init__(self, process: "subprocess.Popen[bytes]", limits: Limits) -> None:
        self.process, self.limits = process, limits
        self.reason = ""
        self.began = time.monotonic()
        self.doing = {process.pid: _Doing("", self.began, 0.0)}

    def follow(self, pipe: IO[bytes]) -> ContractReport | None:
        """The report, or None with the reason, if it was stopped; without one if it ended."""
        rest = b""
        while not self.reason:
            ready, _, _ = select.select([pipe], [], [], _POLL)
            if ready:
                some = pipe.read(1 << 16)
                if not some:
                    return None
                *lines, rest = (rest + some).split(b"\n")
                for line in lines:
                    data = _line(line)
                    if "report" in data:
                        return report_from_json(data["report"])
                    if "doing" in data:
                        pid = int(data.get("process", self.process.pid))
                        now, cpu = time.monotonic(), _cpu_seconds(pid)
                        self.doing[pid] = _Doing(str(data["doing"]), now, cpu)
            elif self.process.poll() is not None:  # its copy may hold the pipe open
                return None
            self.reason = self._excess()
        return None

    @property
    def when(self) -> str:
        """What the child does, as the end of a sentence."""
        return _when(self.doing[self.process.pid])

    def _excess(self) -> str:
        """Which limit is exceeded, as a sentence."""
        for pid in list(self.doing):
            if pid != self.process.pid and not _memory(pid):  # it has ended
                del self.doing[pid]
        now, limits = time.monotonic(), self.limits
        for pid, doing in self.doing.items():
            when = _when(doing)
            if (used := _memory(pid)) > limits.memory:
                allowed = f"{limits.memory / _GIB:.3g} GiB"
                return f"it uses more than {allowed}{when} ({used / _GIB:.1f} GiB)"
            if not doing.what and len(self.doing) > 1:  # it waits for its copy
                continue
            waited = now - doing.since
            limit = limits.call if doing.what else limits.start
            # On a busy machine a process that computes is no worse for waiting.
            busy = _cpu_seconds(pid) - doing.cpu_since
            late = busy > 0.5 * limit or busy < 0.05 * waited or waited > 5 * limit
            if waited > limit and late:
                return f"it does not return{when}: stopped after {waited:.0f} seconds"
            if now - self.began > limits.total + limits.start:
                return f"it takes too long: stopped after {now - self.began:.0f} seconds{when}"
        return ""


def _when(doing: _Doing) -> str:
    return f" when {doing.what}" if doing.what else " when its code is imported"


def _line(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _ending(child: ChildProcess, watch: _Watch) -> str:
    """Why a child ended without a report."""
    status = child.process.wait()
    when = watch.when
    if status < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-status).name}{when}"
        return f"its process was ended by signal {-status}{when}"
    child.output.seek(0)
    lines = child.output.read()[-2000:].decode(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines and status not in (0, 3) else ""
    return f"it ends its process (status {status}){when}{last}"


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process, 0 where it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _memory(pid: int) -> int:
    """Bytes that a process holds, 0 where that cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def main() -> None:
    """The child: its argument is the pipe. It imports what a check needs, then reads what to
    check; none if the parent has ended."""
    pipe = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    import_module("ithbit.contract.check")  # torch above all, while the parent reads its options
    gc.freeze()
    gc.enable()
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    request = json.loads(line)
    settings = request["settings"]
    chosen = CheckSettings(**settings | {"allow": tuple(settings["allow"])})

    def write(data: dict[str, Any]) -> None:
        pipe.write(json.dumps(data).encode() + b"\n")

    _limit_files()
    report = _checker(request["kind"])(
        request["name"], chosen, lambda text: write({"doing": text, "process": os.getpid()})
    )
    sys.stdout.flush()
    write({"report": report.to_json()})
    os._exit(0)  # whatever threads a layer has left


def _limit_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # what a layer prints goes to a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, resource.getrlimit(1)[1]))


def _checker(kind: str) -> Callable[[str, CheckSettings, Callable[[str], None]], ContractReport]:
    if kind == "model":
        from ithbit.contract.whole_models import check_model

        return lambda name, settings, beat: check_model(name, settings, name, beat)
    assert kind == "layer", kind
    from ithbit.contract.check import check_contract

    def check(name: str, settings: CheckSettings, beat: Callable[[str], None]) -> ContractReport:
        return check_contract(name, settings, name, beat, two_processes=True)

    return check
