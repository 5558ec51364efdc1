"""A finished run goes on when only `max_epochs` grew, and ends as if it had been asked for so."""

from dataclasses import replace

import pytest
from tests.support.one_stack import train

from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.training_context import Event, Notice
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch

CPU = choose_device("cpu")
# A rate that is cut after nearly every epoch: the schedule must go on too.
SHORT = Protocol(
    batch_size=32, epoch_examples=112, held_out_examples=80, max_epochs=3,
    plateau_patience=0, learning_rate=1e-2, min_learning_rate=1e-4,
)  # fmt: skip


def runs_of(protocol: Protocol, max_epochs: int, family: str = "gru") -> list[RunSpec]:
    model, protocol = ModelSpec("lhi", family, 4), replace(protocol, max_epochs=max_epochs)
    return [RunSpec(model, seed, protocol) for seed in range(2)]


def epochs(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.run.seed, event.what.epoch) for event in events if isinstance(event.what, Epoch)]


def notices(events: list[Event]) -> list[str]:
    return [event.what for event in events if isinstance(event.what, Notice)]


@pytest.fixture
def ends_alike(tmp_path, kept):
    """Whether runs of a store have the bits of those that were trained at once."""

    def check(runs: list[RunSpec]) -> None:
        train(runs, tmp_path / "at once", CPU)
        for run in runs:
            assert kept(tmp_path / "longer", run) == kept(tmp_path / "at once", run)

    return check


@pytest.mark.parametrize("family", ["gru", "softmax-causal"])
def test_it_goes_on_where_it_ended(family, tmp_path, ends_alike) -> None:
    store, events = tmp_path / "longer", []
    train(runs_of(SHORT, 2, family), store, CPU)
    train(runs_of(SHORT, 4, family), store, CPU)
    longer = runs_of(SHORT, 7, family)
    train(longer, store, CPU, events.append)
    assert epochs(events) == [(seed, epoch) for epoch in (5, 6, 7) for seed in (0, 1)]
    assert notices(events) == ["a finished run of at most 4 epochs continues from epoch 4"] * 2
    ends_alike(longer)


def test_stopped_on_its_way_it_still_does(tmp_path, ends_alike, monkeypatch) -> None:
    store, longer = tmp_path / "longer", runs_of(SHORT, 7)
    train(runs_of(SHORT, 3), store, CPU)

    def stop_at(epoch: int):
        def watch(event: Event) -> None:
            if isinstance(event.what, Epoch) and event.what.epoch == epoch:
                raise InterruptedError

        return watch

    for save_seconds, epoch in ((1e9, 4), (0.0, 6)):  # not saved, saved
        monkeypatch.setattr(loop, "SAVE_SECONDS", save_seconds)
        with pytest.raises(InterruptedError):
            train(longer, store, CPU, stop_at(epoch))
    train(longer, store, CPU)
    ends_alike(longer)


@pytest.mark.parametrize("change", [{"stop_loss": 0.69}, {"stop_when_solved": True}], ids=str)
def test_one_that_needed_fewer_epochs_ends_where_it_did(change, tmp_path, ends_alike) -> None:
    """And nothing is trained."""
    easy = replace(SHORT, epoch_examples=1024, held_out_examples=2, **change)
    store, longer, events = tmp_path / "longer", runs_of(easy, 60), []
    done = train(runs_of(easy, 30), store, CPU)
    assert "epochs" not in {result.stopped_by for result in done}
    train(longer, store, CPU, events.append)
    assert epochs(events) == []
    ends_alike(longer)


def test_of_earlier_versions_the_state_is_missing(tmp_path, ends_alike) -> None:
    """Or it is damaged: the run is trained from the beginning, which is said."""
    store, shorter, longer = tmp_path / "longer", runs_of(SHORT, 3), runs_of(SHORT, 5)
    train(shorter, store, CPU)
    (RunFolder(store, shorter[0]).path / "state.safetensors").unlink()
    (RunFolder(store, shorter[1]).path / "state.safetensors").write_bytes(b"not a state")
    events: list[Event] = []
    train(longer, store, CPU, events.append)
    assert epochs(events) == [(seed, epoch) for epoch in range(1, 6) for seed in (0, 1)]
    assert set(notices(events)) == {
        "a finished run of at most 3 epochs is here, but without a usable optimiser state (earlier "
        "versions kept none): trained from scratch"
    }
    ends_alike(longer)


def test_what_differs_in_more_is_another_run(tmp_path) -> None:
    store, events = tmp_path / "longer", []
    train(runs_of(SHORT, 3), store, CPU)
    train(runs_of(replace(SHORT, learning_rate=2e-2), 4), store, CPU, events.append)
    train(runs_of(SHORT, 2), store, CPU, events.append)  # fewer epochs
    assert notices(events) == []
    assert len(epochs(events)) == 2 * (4 + 2)
