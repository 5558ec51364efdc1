"""A real Slurm of several nodes on this machine, for as long as the tests run.

Everything lies in a temporary folder: key, state, spool, logs. The nodes are `slurmd` processes on
ports of their own; node `blind` has a file system of its own where there may be one, which the
others do not see. Ends what it started, by pid, and nothing else.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ithbit.engine.record import Result
from ithbit.engine.spec import RunSpec
from ithbit.sweep.runner import run_all
from ithbit.sweep.select import sweep_runs

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2", "n3")
PYTHON_PATH = str(Path(__file__).parents[3] / "src")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slurm")


def until(condition: Callable[[], object], seconds: float = 60.0, every: float = 0.1) -> object:
    """Wait for a condition and give its value; fails if it does not come true."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain"
        time.sleep(every)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has no command line."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill(*pids: int) -> None:
    """End processes at once, without a word to them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Cluster:
    """Slurm's processes and what the tests do to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blind_folder = folder / "blind"
        self.launch_fails = folder / "launch-fails"  # where this is, the next launch fails
        for name in ("state", "spool", "log", "run", "gpu", "blind"):
            (folder / name).mkdir()
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": PYTHON_PATH,
            "OMP_NUM_THREADS": "1",
            "ITHBIT_SAVE_SECONDS": "0.5",  # so that short runs have checkpoints
        }
        self._write_configuration()

    def _write_configuration(self) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        ports = free_ports(len(NODES) + 2)
        prolog = folder / "prolog"
        prolog.write_text(f"#!/bin/sh\nif rm {self.launch_fails} 2>/dev/null; then exit 1; fi\n")
        prolog.chmod(0o755)
        lines = [
            "ClusterName=ci",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            f"AuthInfo=socket={folder}/run/munge.sock,cred_expire=5",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool/%n",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,"
            "bf_interval=1",
            f"Prolog={prolog}",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdTimeout=10",
            "KillWait=2",
            "MaxArraySize=4",  # so that a small sweep needs several arrays
            "GresTypes=gpu",
        ]
        gpus = []
        for name, port in zip((*NODES, "blind"), ports[1:], strict=True):
            (folder / "spool" / name).mkdir()
            device = folder / "gpu" / name
            os.mknod(device, 0o20666, os.makedev(1, 3))  # as /dev/null: a GPU must be a device
            gpus.append(f"NodeName={name} Name=gpu File={device}")
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 "
                "RealMemory=4000 Gres=gpu:1 State=UNKNOWN"
            )
        nodes = ",".join(NODES)
        lines += [
            f"PartitionName=main Nodes={nodes} Default=YES PriorityTier=1 GraceTime=0 "
            "MaxTime=INFINITE State=UP",
            f"PartitionName=high Nodes={nodes} PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE "
            "State=UP",
            "PartitionName=blind Nodes=blind PriorityTier=1 MaxTime=INFINITE State=UP",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "gres.conf").write_text("\n".join(gpus) + "\n")

    def call(self, *command: str, check: bool = True) -> str:
        """What a command says, run as a user of this cluster."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def start(self) -> None:
        folder = self.folder
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.call(
            "munged",
            f"--key-file={key}",
            f"--socket={folder}/run/munge.sock",
            f"--pid-file={folder}/run/munged.pid",
            f"--log-file={folder}/log/munged.log",
            f"--seed-file={folder}/state/seed",
        )
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(self.ready, 30)

    def start_controller(self) -> None:
        self.call("slurmctld")
        until(lambda: "is UP" in self.call("scontrol", "ping", check=False), 30)

    def start_node(self, node: str) -> None:
        self.call("slurmd", "-N", node)

    def start_blind_node(self) -> None:
        """A node that has an empty file system where the others have `blind_folder`."""
        hide = 'mount -t tmpfs none "$0" && exec slurmd -N blind'
        self.call("unshare", "-m", "sh", "-c", hide, str(self.blind_folder))
        until(lambda: "idle" in self.call("sinfo", "-h", "-n", "blind", "-o", "%T"), 30)

    def revive(self) -> None:
        """Start again what a test has killed."""
        if gone(self.pid("slurmctld")):
            self.start_controller()
        for node in NODES:
            if gone(self.pid(f"slurmd.{node}")):
                self.start_node(node)
            elif self.call("sinfo", "-h", "-n", node, "-o", "%T").startswith(("down", "drain")):
                self.call("scontrol", "update", f"nodename={node}", "state=resume")

    def ready(self) -> bool:
        states = self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        return states == ["idle"] * len(NODES)

    def pid(self, name: str) -> int:
        """The pid of a daemon: munged, slurmctld or slurmd.NODE."""
        return int((self.folder / "run" / f"{name}.pid").read_text())

    def queue(self, form: str = "%i|%T|%N|%r") -> list[list[str]]:
        lines = self.call("squeue", "-h", "-r", "-o", form, check=False).splitlines()
        return [line.split("|") for line in lines]

    def stop(self) -> None:
        subprocess.run(["scancel", "-u", "root"], env=self.environment, timeout=30, check=False)
        end = time.monotonic() + 15
        while self.queue() and time.monotonic() < end:
            time.sleep(0.2)
        for name in (*(f"slurmd.{node}" for node in (*NODES, "blind")), "slurmctld", "munged"):
            path = self.folder / "run" / f"{name}.pid"
            if not path.exists():
                continue
            pid = self.pid(name)
            if gone(pid):
                continue
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 10
            while not gone(pid) and time.monotonic() < end:
                time.sleep(0.1)
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs Slurm (slurm-wlm and munge): no {', '.join(missing)}")
    if os.getuid():
        pytest.skip("needs root, to start Slurm's daemons")
    folder = tmp_path_factory.mktemp("slurm")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)  # munged refuses a socket below folders that others cannot enter
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


SWEEP = """
task = "rhi"
family = "gru"
layers = 1
n = 3
seeds = "0-3"
[protocol]
epoch_examples = {examples}
held_out_examples = 100
max_epochs = {epochs}
stop_loss = 1e-30
"""


class Sweep:
    """A sweep of four runs in two tasks, started as a user would, and what is seen of it."""

    def __init__(self, cluster: Cluster, sheet: Path, store: Path) -> None:
        self.cluster, self.sheet, self.store = cluster, sheet, store
        self.runs = sweep_runs(str(sheet))
        self.submitter: subprocess.Popen[str] | None = None
        self.started: list[subprocess.Popen[str]] = []

    def ithbit(self, command: str, *options: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "ithbit", command, str(self.sheet)]
        process = subprocess.Popen(
            [*words, "--store", str(self.store), *options],
            env=self.cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def start(self, *options: str) -> None:
        self.submitter = self.ithbit("sweep", "--on", "slurm", "--runs-per-task", "2", *options)

    def start_and_train(self, *options: str) -> None:
        """Start, and wait until the first task has a checkpoint."""
        self.start(*options)
        until((self.path(0) / "state.safetensors").exists)

    def end(self) -> str:
        """Wait for the submitter, which must say that all went well; what it said."""
        assert self.submitter is not None
        output, errors = self.submitter.communicate(timeout=100)
        assert self.submitter.returncode == 0, errors
        assert "4 runs" in output
        return output + errors

    def path(self, seed: int) -> Path:
        run = self.runs[seed]
        return self.store / f"{run.name}-{run.run_id}"

    def epochs(self, seed: int) -> list[int]:
        """The numbers of the epochs as they were written, repetitions included."""
        path = self.path(seed) / "history.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["epoch"] for line in lines if line.endswith("}")]

    def processes(self, index: int) -> list[int]:
        """The pids of the copies of a task that are running."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            ours = any(word.startswith(f"{self.store}/.jobs/") for word in words)
            if ours and words[-2] == str(index):
                found.append(int(entry.name))
        return found

    def job(self, index: int) -> tuple[str, str, str, str]:
        """Number, state, node and reason of a task's job."""
        for job_id, state, node, reason in self.cluster.queue():
            if job_id.endswith(f"_{index}"):
                return job_id, state, node, reason
        return "", "", "", ""

    def running_job(self, index: int) -> tuple[str, str, str, str]:
        return until(lambda: (job := self.job(index))[1] == "RUNNING" and job)

    def starts(self, index: int) -> list[str]:
        """The nodes that a task was started on, over all batches."""
        nodes = []
        for trace in sorted((self.store / ".jobs").glob(f"*/{index}.trace")):
            lines = trace.read_text().splitlines()
            nodes += [line.split()[-1] for line in lines if line.startswith("started")]
        return nodes

    def ready(self, index: int) -> int:
        """How many times a task came up, over all batches."""
        traces = (self.store / ".jobs").glob(f"*/{index}.trace")
        return sum(trace.read_text().splitlines().count("ready") for trace in traces)

    def submitted(self) -> list[str]:
        return [path.read_text() for path in sorted((self.store / ".jobs").glob("*/submitted"))]

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def outcome_bits(store: Path, run: RunSpec) -> tuple[object, ...]:
    """All of a run that does not depend on when and where it was trained."""
    folder = store / f"{run.name}-{run.run_id}"
    assert not (folder / "failure.json").exists()
    result = json.loads((folder / "result.json").read_bytes())
    times = ("seconds_per_epoch", "evaluation_seconds", "started_at", "finished_at", "environment")
    for name in times:
        del result[name]
    epochs = {}
    for line in (folder / "history.jsonl").read_text().splitlines():
        epoch = json.loads(line)
        del epoch["seconds"]
        epochs.setdefault(epoch["epoch"], epoch)
        assert epochs[epoch["epoch"]] == epoch, "an epoch that was trained twice must be the same"
    weights = (folder / "weights.safetensors").read_bytes()
    return result, [epochs[number] for number in sorted(epochs)], weights


class Expected:
    """A sweep and what it comes to on this machine without a cluster."""

    def __init__(self, folder: Path, examples: int, epochs: int) -> None:
        self.sheet = folder / "sweep.toml"
        self.sheet.write_text(SWEEP.format(examples=examples, epochs=epochs))
        self.store = folder / "local"
        self.runs = sweep_runs(str(self.sheet))
        outcomes = run_all(self.runs, self.store, "cpu", workers=1)
        assert all(isinstance(outcome, Result) for outcome in outcomes)

    def check(self, store: Path) -> None:
        """Every run has one result, equal to the local one bit for bit."""
        folders = [path for path in store.iterdir() if not path.name.startswith(".")]
        assert len(folders) == len(self.runs)
        for run in self.runs:
            assert outcome_bits(store, run) == outcome_bits(self.store, run)


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Runs of a few seconds: long enough to be hit by a fault after their first checkpoint."""
    return Expected(tmp_path_factory.mktemp("expected"), examples=1024, epochs=300)


@pytest.fixture
def sweep(cluster: Cluster, expected: Expected, tmp_path: Path) -> Iterator[Sweep]:
    """A sweep with a store of its own; leaves an idle cluster behind."""
    sweep = Sweep(cluster, expected.sheet, tmp_path / "runs")
    yield sweep
    sweep.stop()
    cluster.call("scancel", "-u", "root", check=False)
    cluster.revive()
    until(lambda: not cluster.queue(), 30)
    until(cluster.ready, 30)
