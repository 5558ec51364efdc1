"""Compiled code as a stepper: what it trains, when it takes over, and where it is not to be had."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.support.one_stack import train

from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.steppers import choice, stacked
from ithbit.engine.training_context import Event, Notice
from ithbit.errors import DeviceError
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Result

pytest.importorskip("numba")
CPU = choose_device("cpu")
TINY = Protocol(batch_size=8, epoch_examples=20, held_out_examples=12, max_epochs=3)


def runs_of(seeds, **model) -> list[RunSpec]:
    spec = ModelSpec("rhi", **{"family": "gru", "n_bits": 3} | model)
    return [RunSpec(spec, seed, TINY) for seed in seeds]


def paths(results) -> set[str]:
    assert all(isinstance(result, Result) for result in results)
    return {result.environment["path"] for result in results}


class StopNowError(Exception):
    """What a watcher raises to stop."""


def test_compiled_code_trains_what_the_plain_models_do(tmp_path) -> None:
    runs = runs_of(range(2))
    assert paths(train(runs, tmp_path / "on", CPU, compile="on")) == {"compiled"}
    assert paths(train(runs, tmp_path / "off", CPU, compile="off")) == {"stacked"}
    for run in runs:
        ours, theirs = (RunFolder(tmp_path / name, run).history() for name in ("on", "off"))
        for epoch, expected in zip(ours, theirs, strict=True):
            assert epoch.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
            assert epoch.held_out_loss == pytest.approx(expected.held_out_loss, rel=1e-4)
            assert epoch.held_out_accuracy == expected.held_out_accuracy


def test_compiled_a_run_depends_on_its_own_seed_alone(tmp_path, kept, monkeypatch) -> None:
    """Alone, in a stack, stopped and resumed: the same bits."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs = runs_of(range(3))
    train(runs, tmp_path / "stack", CPU, compile="on")
    train(runs[1:2], tmp_path / "alone", CPU, compile="on")
    assert kept(tmp_path / "alone", runs[1]) == kept(tmp_path / "stack", runs[1])

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (0, 2):
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", CPU, watch, compile="on")
    train(runs, tmp_path / "broken", CPU, compile="on")
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "stack", run)


def test_a_short_run_is_left_to_the_plain_models(tmp_path) -> None:
    """Also where its family is compiled: what a run does follows from its spec."""
    importlib.import_module(building.module_of("gru"))
    assert paths(train(runs_of([0]), tmp_path, CPU)) == {"stacked"}


class Clock:
    """A clock by which a step of one kind takes longer than one of the other."""

    def __init__(self, monkeypatch, slow: str) -> None:
        self.now, self.slow = 0.0, slow
        monkeypatch.setattr(choice, "_clock", lambda: self.now)
        for kind in (stacked.CompiledStepper, stacked.StackedStepper):
            monkeypatch.setattr(kind, "learn", self.counted(kind.learn, kind.name))

    def counted(self, learn, name):
        def step(stepper, examples) -> None:
            learn(stepper, examples)
            self.now += 2.0 if name == self.slow else 1.0

        return step


@pytest.fixture
def worthwhile(monkeypatch, tmp_path) -> None:
    """Has the shortest run be long enough, and compiled code the faster, unknown as yet."""
    monkeypatch.setattr(choice, "_PAYS", 1)
    monkeypatch.setattr(choice, "_note", lambda run: tmp_path / "note")
    Clock(monkeypatch, slow="stacked")


@pytest.mark.usefixtures("worthwhile")
@pytest.mark.parametrize(("slow", "fast"), [("stacked", "compiled"), ("compiled", "stacked")])
def test_the_faster_one_is_kept_and_a_trial_leaves_no_trace(
    slow, fast, tmp_path, kept, monkeypatch
) -> None:
    """The same bits as where nothing was tried; and whoever comes later goes the same way."""
    monkeypatch.setattr(building, "ready", lambda spec: True)
    Clock(monkeypatch, slow)
    runs = runs_of(range(2))
    assert paths(train(runs, tmp_path / "auto", CPU)) == {fast}
    choice = "on" if fast == "compiled" else "off"
    train(runs, tmp_path / "events", CPU, compile=choice)
    for run in runs:
        assert kept(tmp_path / "auto", run) == kept(tmp_path / "events", run)
    Clock(monkeypatch, slow=fast)
    assert paths(train(runs_of([2]), tmp_path / "auto", CPU)) == {fast}


@pytest.mark.usefixtures("worthwhile")
def test_compiled_code_that_is_slower_is_left_alone_from_then_on(tmp_path, monkeypatch) -> None:
    """Its trial is the only one, although it is ready at the end of every epoch."""
    tried = []
    monkeypatch.setattr(building, "ready", lambda spec: True)
    monkeypatch.setattr(choice, "_note", lambda run: tried.append(run))
    Clock(monkeypatch, slow="compiled")
    assert paths(train(runs_of(range(2)), tmp_path, CPU)) == {"stacked"}
    assert len(tried) == 1


def test_a_note_speaks_of_one_model_and_batch_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(building, "folder", lambda: tmp_path)
    first, second = runs_of(range(2))
    assert choice._note(first) == choice._note(second)
    others = [runs_of([0], n_bits=4)[0], RunSpec(first.model, 0, replace(TINY, batch_size=9))]
    assert len({choice._note(run) for run in (first, *others)}) == 3
    assert {choice._note(first).parent} == {tmp_path}


@pytest.mark.usefixtures("worthwhile")
def test_a_run_changes_over_when_its_family_is_compiled(tmp_path, kept, monkeypatch) -> None:
    """From the end of that epoch on: as if it had been stopped there and resumed compiled."""
    runs, seen = runs_of(range(2)), []

    def watch(event: Event) -> None:
        seen.extend([event.what.epoch] if isinstance(event.what, Epoch) else [])

    monkeypatch.setattr(building, "ready", lambda spec: 2 in seen)
    assert paths(train(runs, tmp_path / "auto", CPU, watch)) == {"compiled"}
    first = [RunSpec(run.model, run.seed, replace(TINY, max_epochs=2)) for run in runs]
    train(first, tmp_path / "plain", CPU, compile="off")
    train(runs, tmp_path / "compiled", CPU, compile="on")
    for run, short in zip(runs, first, strict=True):
        ours = RunFolder(tmp_path / "auto", run).history()
        plain = RunFolder(tmp_path / "plain", short).history()
        losses = [(epoch.train_loss, epoch.held_out_loss) for epoch in ours]
        assert losses[:2] == [(epoch.train_loss, epoch.held_out_loss) for epoch in plain]
        whole = RunFolder(tmp_path / "compiled", run).history()
        assert losses[2] == pytest.approx((whole[2].train_loss, whole[2].held_out_loss), rel=1e-4)


@pytest.mark.usefixtures("worthwhile")
def test_compiled_code_that_fails_gives_way_to_the_plain_models(
    tmp_path, kept, monkeypatch
) -> None:
    def broken(*arguments):
        raise RuntimeError("an illegal instruction")

    monkeypatch.setattr(building, "ready", lambda spec: True)
    monkeypatch.setattr("ithbit.native.model.gradients", broken)
    runs, events = runs_of(range(2)), []
    assert paths(train(runs, tmp_path / "fell_back", CPU, events.append)) == {"stacked"}
    train(runs, tmp_path / "plain", CPU, compile="off")
    for run in runs:
        assert kept(tmp_path / "fell_back", run) == kept(tmp_path / "plain", run)
    assert [event.what for event in events if isinstance(event.what, Notice)] == [
        "compiled code of gru failed (RuntimeError: an illegal instruction): trained with the "
        "stacked models"
    ]


@pytest.mark.usefixtures("worthwhile")
def test_compiling_that_fails_is_said(monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(building, "ready", lambda spec: False)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with building.building([run.model for run in runs_of([0])], said.append):
        for thread in building.threading.enumerate():
            if thread.name.endswith("(watch)"):
                thread.join()
    assert said == ["compiling failed (no message): trained with the stacked models"]


def test_compiled_code_that_is_not_to_be_had_is_refused_by_a_sentence(tmp_path) -> None:
    runs = runs_of([0], family="softmax-full", positions="rotary")
    with pytest.raises(DeviceError, match="compile 'on' was asked for, but there is no compiled"):
        train(runs, tmp_path, CPU, compile="on")


_WITHOUT = """
import sys
from pathlib import Path
if sys.argv[2] == "no numba":
    sys.modules["numba"] = None
from ithbit.engine.steppers import choice
choice._PAYS = 1
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.engine.options import TrainingOptions
from ithbit.sweeps.runner import run_all
tiny = Protocol(batch_size=8, epoch_examples=20, held_out_examples=12, max_epochs=1)
runs = [RunSpec(ModelSpec("rhi", "gru", 2), seed, tiny) for seed in range(2)]
events = []
results = run_all(runs, Path(sys.argv[1]), TrainingOptions("cpu", 1), events.append)
assert {result.environment["path"] for result in results} == {"stacked"}, results
print(*(event.what for event in events if isinstance(event.what, str)), sep="\\n")
"""


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (
            "no numba",
            "compiled code needs numba, which is not installed: trained with the stacked models\n",
        ),
        ("no folder", "no folder to keep compiled code in: trained with the stacked models\n"),
    ],
)
def test_a_machine_that_lacks_something_trains_and_says_so_once(lacking, said, tmp_path) -> None:
    """The folder is a file, so that not even root can write there."""
    (tmp_path / "file").touch()
    where = {"XDG_CACHE_HOME": str(tmp_path / "file")} if lacking == "no folder" else {}
    command = [sys.executable, "-c", _WITHOUT, str(tmp_path / "store"), lacking]
    done = subprocess.run(
        command, env=os.environ | where, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr
