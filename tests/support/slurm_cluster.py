"""A real Slurm of several nodes on this machine.

Everything lies in a temporary folder: key, state, spool, logs. The nodes are `slurmd` processes on
ports of their own; node `blind` has a file system of its own where there may be one, which the
others do not see. Ends what it started, by pid, and nothing else.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.paths import ROOT

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2", "n3")
PYTHON_PATH = str(ROOT / "src")


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
