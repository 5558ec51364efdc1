"""A sweep on the cluster of the tests, and what it is to come to."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.slurm_cluster import Cluster, until

from ithbit.engine.options import TrainingOptions
from ithbit.spec import RunSpec
from ithbit.store.records import Result
from ithbit.sweeps.runner import run_all
from ithbit.sweeps.select import sweep_runs

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
    """A sweep of four runs in two shares, started as a user would, and what is seen of it."""

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

    def start_and_freeze(self, *options: str) -> int:
        """Start, and stop the first share where it has a checkpoint; its pid."""
        self.start(*options)
        return self.freeze(0)

    def freeze(self, index: int) -> int:
        """Stop a share where it has a checkpoint: however fast the machine is, what happens next
        hits it in the middle of its work. Its pid."""
        checkpoint = self.path(2 * index) / "state.safetensors"
        until(checkpoint.exists, every=0.02)
        (process,) = self.processes(index)
        os.kill(process, signal.SIGSTOP)
        return process

    def end(self) -> str:
        """Wait for the submitter, which must say that all went well; what it said."""
        assert self.submitter is not None
        output, errors = self.submitter.communicate(timeout=100)
        assert self.submitter.returncode == 0, errors
        assert "of 4 seeds" in output
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
        """The pids of the copies of a share that are running."""
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
        """Number, state, node and reason of a share's job."""
        for job_id, state, node, reason in self.cluster.queue():
            if job_id.endswith(f"_{index}"):
                return job_id, state, node, reason
        return "", "", "", ""

    def running_job(self, index: int) -> tuple[str, str, str, str]:
        return until(lambda: (job := self.job(index))[1] == "RUNNING" and job)

    def starts(self, index: int) -> list[str]:
        """The nodes that a share was started on, over all batches."""
        nodes = []
        for trace in sorted((self.store / ".jobs").glob(f"*/{index}.trace")):
            lines = trace.read_text().splitlines()
            nodes += [line.split()[-1] for line in lines if line.startswith("started")]
        return nodes

    def ready(self, index: int) -> int:
        """How many times a share came up, over all batches."""
        traces = (self.store / ".jobs").glob(f"*/{index}.trace")
        return sum(trace.read_text().splitlines().count("ready") for trace in traces)

    def submitted(self) -> list[str]:
        return [path.read_text() for path in sorted((self.store / ".jobs").glob("*/submitted"))]

    def batches(self) -> list[Path]:
        """What was entered to be submitted, whether or not the submitter lived to note its name."""
        return sorted((self.store / ".jobs").glob("*.json"))

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
        outcomes = run_all(self.runs, self.store, TrainingOptions("cpu", workers=1))
        assert all(isinstance(outcome, Result) for outcome in outcomes)

    def check(self, store: Path) -> None:
        """Every run has one result, equal to the local one bit for bit."""
        folders = [path for path in store.iterdir() if not path.name.startswith(".")]
        assert len(folders) == len(self.runs)
        for run in self.runs:
            assert outcome_bits(store, run) == outcome_bits(self.store, run)
