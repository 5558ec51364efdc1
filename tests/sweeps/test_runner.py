"""Many runs on one store: workers that die, processes that share, interruptions of every kind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.one_stack import runs_of, train
from tests.support.paths import TOY_LAYERS
from tests.support.waiting import wait_until

from ithbit.engine.cell import stack_size
from ithbit.engine.device import choose_device
from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import Event, Notice, StopRequest, TrainingContext
from ithbit.errors import StoreError
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result
from ithbit.sweeps import processes
from ithbit.sweeps.presets import paper
from ithbit.sweeps.processes import event_from_json, event_to_json, train_in_processes
from ithbit.sweeps.runner import group, run_all
from ithbit.sweeps.threads import StackQueue

CPU = choose_device("cpu")
TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=40)
ENDLESS = replace(TINY, max_epochs=10_000_000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def has_history(store: Path, run: RunSpec) -> bool:
    return len(RunFolder(store, run).history()) > 0


def children(pid: int) -> list[int]:
    """The living worker processes of a process."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                command = (path / "cmdline").read_bytes()
            except OSError:  # gone meanwhile
                continue
            if int(stat[1]) == pid and stat[0] != "Z" and b"ithbit.sweeps.processes" in command:
                found.append(int(path.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def holder(store: Path, run: RunSpec) -> int | None:
    """The process that holds a run's folder."""
    inode = (RunFolder(store, run).path / "lock").stat().st_ino
    for entry in Path("/proc/locks").read_text().splitlines():
        fields = entry.split()
        if fields[1] == "FLOCK" and fields[5].split(":")[2] == str(inode):
            return int(fields[4])
    return None


@pytest.fixture
def undisturbed(tmp_path, kept):
    """What runs leave that were trained in one go, in this process."""

    def of(runs: list[RunSpec]) -> list[dict[str, object]]:
        store = tmp_path / "undisturbed"
        assert all(
            isinstance(done, Result)
            for done in run_all(runs, store, TrainingOptions("cpu", workers=1))
        )
        return [kept(store, run) for run in runs]

    return of


def test_workers_give_the_same_bits_as_this_process(tmp_path, kept, undisturbed) -> None:
    """Also of users' layers, whose code they load by themselves."""
    runs = runs_of(range(3), TINY) + runs_of([7], TINY, n_layers=2)
    for given in (f"{TOY_LAYERS}:RunningMean", "torch:lstm"):
        family, code = family_of(given)
        model = ModelSpec("rhi", family, 3, d_model=4, code=code)
        runs.append(RunSpec(model, 0, replace(TINY, max_epochs=2)))
    expected = undisturbed(runs)
    store, events = tmp_path / "workers", []
    results = run_all(runs, store, TrainingOptions("cpu", workers=2), events.append)
    assert [kept(store, run) for run in runs] == expected
    assert results == [RunFolder(store, run).result() for run in runs]
    assert [r.environment["path"] for r in results] == ["stacked"] * 4 + ["module"] * 2
    for run, result in zip(runs, results, strict=True):  # and the watcher got everything
        of_run = [event.what for event in events if event.run == run]
        of_run = [what for what in of_run if not isinstance(what, str)]
        assert of_run == [*RunFolder(store, run).history(), result]

    events.clear()  # now that all is done, nothing is trained and no worker started
    assert run_all(runs, store, TrainingOptions("cpu", workers=2), events.append) == results
    assert [event.what for event in events] == results


def test_nothing_to_do(tmp_path) -> None:
    assert run_all([], tmp_path, TrainingOptions("cpu")) == []
    assert run_all([], tmp_path, TrainingOptions("cpu", workers=4)) == []


def test_a_run_given_twice_is_trained_once(tmp_path) -> None:
    (run,) = runs_of([0], TINY)
    assert len(run_all([run, run], tmp_path, TrainingOptions("cpu"))) == 1


@linux
@pytest.mark.slow  # the next test has a part of it
def test_a_worker_that_is_killed_takes_no_run_with_it(tmp_path, kept, undisturbed) -> None:
    runs = runs_of(range(4), replace(TINY, max_epochs=150))
    expected = undisturbed(runs)
    store, killed, remarks = tmp_path / "killed", [], []

    def watch(event: Event) -> None:
        if isinstance(event.what, str):
            remarks.append(event.what)
        elif isinstance(event.what, Epoch) and event.what.epoch == 20 and not killed:
            killed.append(holder(store, event.run))
            os.kill(killed[0], signal.SIGKILL)

    results = run_all(runs, store, TrainingOptions("cpu", workers=2), watch)
    assert len(killed) == 1
    assert [text.partition(";")[0] for text in remarks] == ["a worker died with signal 9"]
    assert all(isinstance(result, Result) for result in results)
    assert [kept(store, run) for run in runs] == expected


@linux
def test_a_run_whose_workers_die_is_recorded_and_its_neighbours_go_on(
    tmp_path, kept, undisturbed, monkeypatch
) -> None:
    """As on GPUs each worker holds several stacks, and one that is killed gives all of them back.
    The run that kills them takes neither its own stack along nor another."""
    monkeypatch.setattr(processes, "stacks_per_process", lambda device_name: 4)
    protocol = replace(TINY, max_epochs=60)
    runs = runs_of(range(2), protocol, n_bits=5)
    runs += [run for n in range(1, 5) for run in runs_of([0], protocol, n_bits=n)]
    expected = undisturbed(runs)
    store, holders, killed, bad = tmp_path / "killed", set(), [], runs[1]
    assert group(runs, CPU, 2)[0] == runs[:2]  # the second run shares its stack

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 5:
            holders.add(holder(store, event.run))
        pid = holder(store, bad) if event.run == bad and isinstance(event.what, Epoch) else None
        if pid is not None and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    results = run_all(runs, store, TrainingOptions("cpu", workers=2), watch)
    assert len(killed) == processes.MAX_ATTEMPTS == 3
    assert isinstance(results[1], Failure)
    assert results[1].error == "its worker process died 3 times, last with signal 9"
    assert RunFolder(store, bad).outcome() == results[1]
    assert len(holders - {None}) >= 2  # each of the two, or who was started for the dead
    for k in (0, *range(2, 6)):
        assert kept(store, runs[k]) == expected[k]

    assert (
        run_all(runs, store, TrainingOptions("cpu", workers=2))[1] == results[1]
    )  # not tried again unasked
    events: list[Event] = []
    run_all(runs, store, TrainingOptions("cpu", workers=1, retry_failed=True), events.append)
    assert kept(store, bad) == expected[1]
    assert not any(isinstance(event.what, Failure) for event in events)  # it is tried again instead


def test_workers_that_cannot_start_are_recorded(tmp_path, monkeypatch) -> None:
    """They die before they have made a folder."""
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "no python here"))
    failures = run_all(
        runs_of(range(2), TINY), tmp_path / "store", TrainingOptions("cpu", workers=2)
    )
    assert [failure.error for failure in failures] == [
        "its worker process died 3 times, last with status 1"
    ] * 2


_PROGRAM = """
import json, sys
from pathlib import Path
from ithbit.engine.options import TrainingOptions
from ithbit.spec import run_from_json
from ithbit.sweeps.runner import run_all
if __name__ == "__main__":
    runs = [run_from_json(data) for data in json.loads(sys.argv[2])]
    options = TrainingOptions("cpu", int(sys.argv[3]), compile="off")
    done = run_all(runs, Path(sys.argv[1]), options)
    print(json.dumps([result.to_json() for result in done]))
"""


def sweeping(runs: list[RunSpec], store: Path, workers: int) -> subprocess.Popen[str]:
    """A process that runs a sweep, in a group of its own."""
    specs = json.dumps([run.to_json() for run in runs])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(store), specs, str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_two_sweeps_on_one_store(tmp_path, kept, undisturbed) -> None:
    """The second takes what is free, waits for what the first holds, and gives all results."""
    protocol = replace(TINY, max_epochs=60)
    runs = runs_of(range(4), protocol) + runs_of(range(2), protocol, n_layers=2)
    expected = undisturbed(runs)
    store = tmp_path / "shared"
    first = sweeping(runs, store, workers=1)
    try:
        wait_until(lambda: any(has_history(store, run) for run in runs), "the first sweep begins")
        results = run_all(runs[::-1], store, TrainingOptions("cpu", workers=1))
        out, err = first.communicate(timeout=90)
    finally:
        first.kill()
        first.wait()
    assert err == ""
    assert json.loads(out) == [result.to_json() for result in results[::-1]]
    assert [kept(store, run) for run in runs] == expected


@linux
def test_workers_end_with_their_parent(tmp_path) -> None:
    runs = runs_of(range(2), ENDLESS)
    parent = sweeping(runs, tmp_path, workers=2)
    try:
        for run in runs:
            wait_until(lambda run=run: has_history(tmp_path, run), "both workers train")
        workers = children(parent.pid)
        assert len(workers) == 2
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: not any(map(is_alive, workers)), "the workers end")
    for run in runs:
        assert not isinstance(RunFolder(tmp_path, run).outcome(), Failure)
        with RunFolder(tmp_path, run).claimed() as free:
            assert free


@linux
def test_a_second_ctrl_c_waits_for_no_worker(tmp_path) -> None:
    """The workers are held, as in a long step: they cannot save, and end with the second one."""
    runs = runs_of(range(2), ENDLESS)
    parent = sweeping(runs, tmp_path, workers=2)
    try:
        for run in runs:
            wait_until(lambda run=run: has_history(tmp_path, run), "both workers train")
        workers = children(parent.pid)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        os.kill(parent.pid, signal.SIGINT)
        time.sleep(2)
        assert parent.poll() is None
        os.kill(parent.pid, signal.SIGINT)
        _, err = parent.communicate(timeout=30)
    finally:
        parent.kill()
        parent.wait()
    assert "stopped at once; the same command continues from what was saved" in err
    assert not any(map(is_alive, workers))


def test_an_error_of_the_store_ends_the_sweep_with_its_sentence(tmp_path) -> None:
    runs = runs_of(range(2), TINY)
    folder = RunFolder(tmp_path, runs[1])
    folder.create()
    (folder.path / "spec.json").write_text("{}")
    how = TrainingContext(tmp_path, CPU, "auto", pytest.fail, StopRequest())
    with pytest.raises(StoreError, match="does not hold the run it is named after"):
        train_in_processes(StackQueue([runs]), how, ["cpu"], runs)
    if sys.platform == "linux":
        assert children(os.getpid()) == []


@pytest.mark.parametrize("n_workers", [1, 2, 7, 64])
@pytest.mark.parametrize("n_seeds", [1, 2, 5, 40])
def test_grouping(n_workers, n_seeds) -> None:
    runs = runs_of(range(n_seeds), TINY) + runs_of(range(n_seeds), n_bits=64, protocol=Protocol())
    stacks = group(runs, CPU, n_workers)
    assert sorted(run.run_id for stack in stacks for run in stack) == sorted(
        run.run_id for run in runs
    )
    assert all(len({(run.model, run.protocol) for run in stack}) == 1 for stack in stacks)
    assert all(0 < len(stack) <= stack_size(stack[0], CPU) for stack in stacks)
    assert len(stacks) >= min(n_workers, len(runs)) / 2  # shares are equal, or one smaller
    assert group(runs, CPU, n_workers) == stacks


def test_the_longest_stacks_come_first() -> None:
    stacks = group(paper(), CPU, 2)
    work = [len(stack) * stack[0].model.n_layers * (stack[0].model.n_bits + 2) for stack in stacks]
    assert work == sorted(work, reverse=True)
    assert sum(map(len, stacks)) == 540
    assert group([], CPU, 2) == []


def test_events_travel_between_processes(tmp_path) -> None:
    events: list[Event] = []
    sound, failing = runs_of([0], TINY) + runs_of([0], replace(TINY, learning_rate=1e30))
    train([sound], tmp_path, CPU, watch=events.append)
    train([failing], tmp_path, CPU, watch=events.append)
    events.append(Event(sound, "a remark [with brackets]"))
    events.append(Event(sound, Notice("so it is trained")))
    assert {type(event.what) for event in events} == {Epoch, Result, Failure, str, Notice}
    for event in events:
        line = json.loads(json.dumps(event_to_json(event)))
        assert event_from_json(line, event.run) == event
        assert type(event_from_json(line, event.run).what) is type(event.what)
