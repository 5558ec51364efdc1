"""Left before the end: by a Ctrl-C, saved after the last whole epoch; by the clock, in turns."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.one_stack import runs_of, saved_epochs, train
from tests.support.waiting import wait_until

from ithbit.engine.options import TrainingOptions
from ithbit.engine.stack import Stack
from ithbit.engine.training_context import Event, StopRequest
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Result
from ithbit.sweeps import threads
from ithbit.sweeps.runner import run_all
from ithbit.sweeps.threads import StackQueue

TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=40)


def train_command(store: Path, seeds: str) -> list[str]:
    """Epochs of 50,000 examples, some tenths of a second each, and more than there is time for."""
    command = [sys.executable, "-m", "ithbit", "train", "rhi", "gru", "--n", "3", "--seeds", seeds]
    options = ["--batch-size", "1000", "--max-epochs", "5000", "--compile", "off"]
    options += ["--device", "cpu", "--workers", "2"]
    return [*command, *options, "--store", str(store)]


def test_a_ctrl_c_saves_every_run_and_says_from_where_it_goes_on(tmp_path) -> None:
    """Once to the whole group, as a terminal sends it; no checkpoint is due. Without workers:
    `tests/cli/test_train.py`."""
    seeds = range(3)
    environment = os.environ | {"ITHBIT_SAVE_SECONDS": "10000"}
    process = subprocess.Popen(
        train_command(tmp_path, "0-2"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=environment,
    )
    protocol = Protocol(batch_size=1000, max_epochs=5000)
    runs = [RunSpec(ModelSpec("rhi", "gru", 3), seed, protocol) for seed in seeds]
    folders = [RunFolder(tmp_path, run) for run in runs]
    try:
        for folder in folders:
            wait_until(lambda folder=folder: len(folder.history()) >= 2, "every run has an epoch")
        assert not list(tmp_path.rglob("state.safetensors"))
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    said = err.splitlines()[-1]
    for folder in folders:
        with folder.claimed() as free:
            assert free
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):  # nobody of the group is left
        os.killpg(process.pid, 0)
    epochs = [saved_epochs(tmp_path, run) for run in runs]
    assert epochs == [len(folder.history()) for folder in folders]
    named = ", ".join(f"gru s{seed} after epoch {epochs[seed]}" for seed in seeds)
    assert said == f"ithbit: stopped; 3 runs saved ({named}); the same command continues from there"


def test_a_pause_in_the_middle_of_an_epoch_abandons_it(tmp_path, kept, monkeypatch) -> None:
    runs, stop, steps = runs_of(range(2), TINY), StopRequest(), []
    train(runs, tmp_path / "unbroken")
    take = Stack._take

    def interrupted(self: Stack, chunk: int, count: int) -> None:
        take(self, chunk, count)
        steps.append(count)
        if len(steps) == 7:  # two a whole epoch
            stop.request()

    monkeypatch.setattr(Stack, "_take", interrupted)
    assert train(runs, tmp_path / "broken", stop=stop) == []
    assert len(steps) == 7
    assert [saved_epochs(tmp_path / "broken", run) for run in runs] == [3, 3]
    monkeypatch.undo()
    train(runs, tmp_path / "broken")
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "unbroken", run)


class OwnSignal(BaseException):
    """What a handler of the user's may raise: no error."""


def test_what_is_no_error_saves_too(tmp_path) -> None:
    (run,) = runs_of([0], TINY)

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 5:
            raise OwnSignal

    with pytest.raises(OwnSignal):
        train([run], tmp_path, watch=watch)
    assert saved_epochs(tmp_path, run) == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_in_minutes_gives_every_run_its_turns(workers, tmp_path, kept, monkeypatch) -> None:
    """The time is over at once: one epoch for each, then others until all have ended."""
    monkeypatch.setattr(threads, "TURN_SECONDS", 0.0)
    short = replace(TINY, max_epochs=4)
    runs = [*runs_of(range(3), short), *runs_of(range(3), short, n_bits=2)]
    store = tmp_path / "turns"
    done = 2 - workers  # for two workers the turns alone, which end as this does
    if done:
        assert run_all(runs, store, TrainingOptions("cpu", workers=workers, minutes=0.0)) == []
        assert [saved_epochs(store, run) for run in runs] == [1] * 6
    events: list[Event] = []
    results = run_all(
        runs, store, TrainingOptions("cpu", workers=workers, minutes=60.0), events.append
    )
    assert all(isinstance(result, Result) for result in results)
    run_all(runs, tmp_path / "whole", TrainingOptions("cpu", workers=1))
    for run in runs:
        assert kept(store, run) == kept(tmp_path / "whole", run)
    # Nobody had a second turn before others had their first.
    epochs = [event.what.epoch for event in events if isinstance(event.what, Epoch)]
    assert sorted(epochs) == [epoch for epoch in range(1 + done, 5) for _ in runs]
    if workers == 1:
        assert epochs == sorted(epochs)


def test_turns() -> None:
    stacks = [runs_of([seed], TINY) for seed in range(3)]
    queue = StackQueue(stacks, minutes=1.0)
    assert queue.take() == (stacks[0], threads.TURN_SECONDS)
    queue.requeue_unfinished(dict.fromkeys(stacks[0], 2))
    assert [queue.take(lambda stack: stack != stacks[1])[0] for _ in range(2)] == [
        stacks[2],
        stacks[0],
    ]
    last, seconds = queue.take()
    assert last == stacks[1]
    assert threads.TURN_SECONDS < seconds <= 60  # nobody waits
    assert not queue
    assert queue.take() is None
    assert StackQueue(stacks).take()[1] == float("inf")


_PROGRAM = """
import json, sys
from pathlib import Path
from ithbit.spec import run_from_json
from ithbit.sweeps.executors.ledger import Ledger, Share
from ithbit.sweeps.executors.node import train_share
ledger = Ledger(Path(sys.argv[1]))
with ledger.locked():
    batch = ledger.write([Share((run_from_json(json.loads(sys.argv[2])),))], "cpu")
train_share(batch.path, 0)
"""


def test_a_job_that_a_cluster_ends_is_saved(tmp_path) -> None:
    (run,) = runs_of([0], replace(TINY, max_epochs=10_000_000))
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path), json.dumps(run.to_json())]
    process = subprocess.Popen(command, env=os.environ | {"ITHBIT_SAVE_SECONDS": "10000"})
    try:
        wait_until(lambda: len(RunFolder(tmp_path, run).history()) > 3, "it trains")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert saved_epochs(tmp_path, run) == len(RunFolder(tmp_path, run).history()) > 3
