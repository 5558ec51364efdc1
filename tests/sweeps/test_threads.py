"""Several stacks at once in one process: what they leave, whom they tell, how they are stopped."""

import json
import math
import os
import queue
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from tests.support.one_stack import saved_epochs, train

from ithbit.engine import loop
from ithbit.engine.device import Device, choose_device
from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import (
    Event,
    Notice,
    StopRequest,
    TrainingContext,
    interruption,
    stop_on_ctrl_c,
)
from ithbit.errors import DeviceError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result
from ithbit.sweeps import processes
from ithbit.sweeps.processes import usable_cores, worker_command, worker_devices
from ithbit.sweeps.threads import StackQueue, thread_safe_watcher, train_in_threads

CPU = choose_device("cpu")
GPU = Device(torch.device("cuda", 0), "not used")
TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=12)


class StopNowError(Exception):
    """What a watcher raises to stop."""


def cells(n_cells: int = 5, protocol: Protocol = TINY) -> list[list[RunSpec]]:
    """Stacks of two runs, each of another length."""
    models = [ModelSpec("rhi", "gru", n_bits=n) for n in range(1, n_cells + 1)]
    return [[RunSpec(model, seed, protocol) for seed in range(2)] for model in models]


LONG = cells(3, replace(TINY, max_epochs=500))  # to be interrupted


def side_by_side(
    stacks,
    store,
    n_threads,
    watch=lambda event: None,
    ready=lambda run: True,
    device=CPU,
    stop=None,
) -> None:
    """Train stacks in threads as `run_all` does; a Ctrl-C ends it with what was saved."""
    stop, turns = stop or StopRequest(), StackQueue(stacks)
    how = TrainingContext(store, device, "auto", thread_safe_watcher(watch, stop), stop)
    with stop_on_ctrl_c(stop):
        train_in_threads(turns, how, n_threads, ready)
    if stop.requested:
        raise interruption(turns.unfinished)


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.endswith("(work)")}


@pytest.fixture
def undisturbed(tmp_path, kept):
    """What the runs leave that are trained stack after stack."""

    def of(stacks: list[list[RunSpec]]) -> list[dict[str, object]]:
        for stack in stacks:
            train(stack, tmp_path / "undisturbed", CPU)
        return [kept(tmp_path / "undisturbed", run) for stack in stacks for run in stack]

    return of


def test_a_stack_that_is_not_ready_lets_others_pass(tmp_path) -> None:
    slow, *others = cells(3)
    ended: list[RunSpec] = []

    def watch(event: Event) -> None:
        if isinstance(event.what, Result):
            ended.append(event.run)

    def ready(run: RunSpec) -> bool:
        return run not in slow or len(ended) == 4

    side_by_side([slow, *others], tmp_path, 2, watch, ready)
    assert set(ended[:4]) == {run for stack in others for run in stack}
    assert set(ended[4:]) == set(slow)


def test_side_by_side_the_bits_are_the_same(tmp_path, kept, undisturbed) -> None:
    stacks = cells()
    expected = undisturbed(stacks)
    events: list[Event] = []
    callers, inside = set(), []

    def watch(event: Event) -> None:
        inside.append(event)
        events.append(event)
        callers.add(threading.current_thread())
        time.sleep(0.0005)  # long enough for another to come in, if it could
        assert inside == [event]
        inside.clear()

    side_by_side(stacks, tmp_path / "side", 3, watch)
    runs = [run for stack in stacks for run in stack]
    assert [kept(tmp_path / "side", run) for run in runs] == expected
    assert len(callers) == 3
    assert ours() == set()
    for run in runs:
        folder = RunFolder(tmp_path / "side", run)
        of_run = [event.what for event in events if event.run == run]
        assert of_run == [*folder.history(), folder.result()]


def test_the_number_of_threads_of_torch_is_put_back(tmp_path) -> None:
    found: list[int] = []

    def look() -> None:
        found.append(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        side_by_side(cells(3), tmp_path, 3, lambda event: look())
        assert set(found) == {1}
        assert torch.get_num_threads() == 2
        found.clear()
        fresh = threading.Thread(target=look)
        fresh.start()
        fresh.join()
        assert found == [2]
    finally:
        torch.set_num_threads(1)


def test_a_watcher_that_raises_ends_all_threads(tmp_path, kept, undisturbed, monkeypatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    stacks = cells()
    expected = undisturbed(stacks)
    after: list[Event] = []

    def watch(event: Event) -> None:
        if after or (isinstance(event.what, Epoch) and event.what.epoch == 5):
            after.append(event)
            raise StopNowError

    with pytest.raises(StopNowError):
        side_by_side(stacks, tmp_path / "side", 3, watch)
    assert len(after) == 1  # nobody gets anything after that
    assert ours() == set()
    runs = [run for stack in stacks for run in stack]
    folders = [RunFolder(tmp_path / "side", run) for run in runs]
    assert any((folder.path / "state.safetensors").exists() for folder in folders)
    assert not any((folder.path / "failure.json").exists() for folder in folders)
    side_by_side(stacks, tmp_path / "side", 3)
    assert [kept(tmp_path / "side", run) for run in runs] == expected


class Pressing:
    """Presses Ctrl-C while it is finalised, where Python drops what a handler raises."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def handlers():
    """Sets handlers of signals, for this test alone."""
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    yield signal.signal
    for number, handler in former.items():
        signal.signal(number, handler)


def sends(signum: int, when: int):
    """A watcher that sends this process one signal, upon one of the events it gets."""
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if len(events) == when:
            os.kill(os.getpid(), signum)

    return watch


def test_an_interruption_ends_all_threads(tmp_path) -> None:
    """Pressed once, in the first epochs of some threads and while others are being started."""
    for when in range(1, 25):
        store = tmp_path / str(when)
        with pytest.raises(KeyboardInterrupt, match="stopped"):
            side_by_side(LONG, store, 3, sends(signal.SIGINT, when))
        assert ours() == set()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        for run in (run for stack in LONG for run in stack):
            assert RunFolder(store, run).outcome() is None
            if RunFolder(store, run).path.exists():
                with RunFolder(store, run).claimed() as free:
                    assert free
                assert saved_epochs(store, run) == len(RunFolder(store, run).history())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is dropped
@pytest.mark.parametrize("n_stacks", [1, 3])
def test_an_interruption_in_a_finaliser_is_not_lost(n_stacks, tmp_path, handlers) -> None:
    # The waiting thread runs no code of ours but the handlers of signals: one drops the object.
    handlers(signal.SIGUSR1, lambda signum, frame: Pressing() and None)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(LONG, tmp_path, n_stacks, sends(signal.SIGUSR1, 9))
    assert ours() == set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_leaves_gradients_as_they_were(tmp_path) -> None:
    def watch(event: Event) -> None:
        torch.set_grad_enabled(False)  # as if it struck where an evaluation puts that back
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            side_by_side(LONG, tmp_path, 1, watch)
        assert torch.is_grad_enabled()
        with torch.no_grad():  # the user's
            side_by_side(cells(1), tmp_path, 1)
            assert not torch.is_grad_enabled()
        assert all(RunFolder(tmp_path, run).result() for run in cells(1)[0])
    finally:
        torch.set_grad_enabled(True)


def test_a_second_interruption_waits_for_no_thread(tmp_path) -> None:
    go_on = threading.Event()

    def watch(event: Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not stop.requested:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        assert go_on.wait(60)  # as in a long epoch

    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt, match="stopped at once"):
        side_by_side(LONG, tmp_path, 3, watch, stop=stop)
    left = ours()
    assert left
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    go_on.set()
    for thread in left:
        thread.join()


@pytest.mark.parametrize("n_stacks", [1, 3])
def test_a_handler_of_the_users_stays(n_stacks, tmp_path, handlers) -> None:
    stacks, seen = cells(3), []

    def note(signum: int, frame: object) -> None:
        seen.append(signum)

    def stop(signum: int, frame: object) -> None:
        raise StopNowError

    for handler in (note, signal.SIG_IGN):
        handlers(signal.SIGINT, handler)
        store = tmp_path / str(handler)
        side_by_side(stacks, store, n_stacks, sends(signal.SIGINT, 9))
        assert all(RunFolder(store, run).result() for stack in stacks for run in stack)
        assert signal.getsignal(signal.SIGINT) is handler
    assert seen == [signal.SIGINT]
    handlers(signal.SIGINT, stop)
    with pytest.raises(StopNowError):
        side_by_side(LONG, tmp_path, n_stacks, sends(signal.SIGINT, 9))
    assert ours() == set()


def test_outside_the_main_thread(tmp_path) -> None:
    stacks = cells(3)
    outside = threading.Thread(target=side_by_side, args=(stacks, tmp_path, 3))
    outside.start()
    outside.join()
    assert all(RunFolder(tmp_path, run).result() for stack in stacks for run in stack)


class LosingDevice(Device):
    """A device that is lost as soon as something fails on it."""

    def is_lost(self) -> bool:
        return True


def test_a_lost_device_ends_the_sweep(tmp_path) -> None:
    """One stack crashes (a batch that no memory holds); the others are stopped, none fails."""
    endless = cells(3, replace(TINY, max_epochs=10_000_000))
    endless[1] = [
        replace(run, protocol=replace(TINY, batch_size=1 << 45, epoch_examples=1 << 45))
        for run in endless[1]
    ]
    device = LosingDevice(torch.device("cpu"), "for a test")
    events: list[Event] = []
    with pytest.raises(DeviceError, match=r"the GPU failed: .* the same command resumes"):
        side_by_side(endless, tmp_path, 3, events.append, device=device)
    assert ours() == set()
    assert not any(isinstance(event.what, Result | Failure) for event in events)


def test_a_notice_is_passed_on_once_and_a_remark_every_time() -> None:
    events: list[Event] = []
    tell, run = thread_safe_watcher(events.append, StopRequest()), cells()[0][0]
    for what in (Notice("slow"), "seen", Notice("slow"), "seen", Notice("slower")):
        tell(Event(run, what))
    assert [event.what for event in events] == ["slow", "seen", "seen", "slower"]


class Answers:
    """What a worker writes to; the `n_stacks` lines about stacks are the end of its input."""

    def __init__(self, n_stacks: int) -> None:
        self.lines: list[dict[str, object]] = []
        self.done: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.n_stacks = n_stacks

    def write(self, line: str) -> None:
        self.lines.append(json.loads(line))
        if self.lines[-1]["kind"] == "unfinished":
            self.done.put(None)

    def flush(self) -> None:
        pass

    def after(self, lines: list[str]):
        """The lines, and an end that comes when each has its answer."""
        yield from lines
        for _ in range(self.n_stacks):
            self.done.get(timeout=60)


def lines_of(stacks: list[list[RunSpec]], seconds: float = math.inf) -> list[str]:
    """What a worker is given."""
    return [
        json.dumps(
            {"number": k, "runs": [r.to_json() for r in stack], "layers": {}, "seconds": seconds}
        )
        for k, stack in enumerate(stacks)
    ]


def test_a_worker_trains_several_stacks_at_once(tmp_path, kept, undisturbed, monkeypatch) -> None:
    monkeypatch.setattr(processes, "stacks_per_process", lambda device_name: 3)
    stacks, answers = cells(4), Answers(4)
    processes.serve(
        tmp_path / "worker", TrainingOptions("cpu"), answers.after(lines_of(stacks)), answers
    )
    found = answers.lines
    assert sorted(line["number"] for line in found if line["kind"] == "unfinished") == [0, 1, 2, 3]
    assert all(line["data"] == {} for line in found if line["kind"] == "unfinished")
    assert sum(line["kind"] == "result" for line in found) == 8
    runs = [run for stack in stacks for run in stack]
    assert [kept(tmp_path / "worker", run) for run in runs] == undisturbed(stacks)


def test_a_worker_whose_input_ends_saves_what_it_trains(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(processes, "stacks_per_process", lambda device_name: 2)
    stacks, answers = LONG[:2], Answers(0)

    def given():
        yield from lines_of(stacks)
        while len({line["run_id"] for line in answers.lines if line["kind"] == "epoch"}) < 4:
            time.sleep(0.001)

    processes.serve(tmp_path, TrainingOptions("cpu"), given(), answers)
    unfinished = [line["data"] for line in answers.lines if line["kind"] == "unfinished"]
    assert [len(data) for data in unfinished] == [2, 2]
    for run in (run for stack in stacks for run in stack):
        (epochs,) = [data[run.run_id] for data in unfinished if run.run_id in data]
        assert 0 < epochs == saved_epochs(tmp_path, run) == len(RunFolder(tmp_path, run).history())


@pytest.mark.parametrize(
    ("asked", "n_gpus", "workers", "devices"),
    [
        ("auto", 1, None, ["cuda:0"]),
        ("auto", 4, None, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda", 2, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:0", 2, None, ["cuda:0"]),
    ],
)
def test_a_worker_a_gpu(asked, n_gpus, workers, devices, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert worker_devices(asked, GPU, workers) == devices
    command = worker_command(TrainingContext(tmp_path, GPU, "off"), devices[-1])
    assert command[-4:] == [str(tmp_path), devices[-1], "off", "auto"]


def test_a_worker_a_core() -> None:
    assert worker_devices("auto", CPU, None) == ["cpu"] * usable_cores()
    assert worker_devices("cpu", CPU, 3) == ["cpu"] * 3
