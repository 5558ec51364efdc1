"""Training on a CPU: a run depends on its own seed alone, and on no interruption."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.support import whole_runs
from tests.support.one_stack import train

from ithbit.engine import loop
from ithbit.engine.cell import stack_size
from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import held_out_examples
from ithbit.engine.stack import fresh_state
from ithbit.engine.training_context import Event
from ithbit.errors import BusyError, SpecError
from ithbit.families import FAMILIES
from ithbit.models import classifier
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result, from_json
from ithbit.tasks.sampling import Examples
from ithbit.tasks.structured import every_index, structured_strings
from ithbit.tasks.tokens import token_table

CPU = choose_device("cpu")

# Steps of 32 and a shorter one of 16: whole vectors, so that the arithmetic is the same at every
# place in a stack. The paper's 256 and 80 are whole vectors too.
TINY = Protocol(batch_size=32, epoch_examples=112, held_out_examples=80, max_epochs=4)
# A rate cut after nearly every epoch, and runs that stop in different epochs.
CUTTING = replace(TINY, plateau_patience=0, learning_rate=1e-2, min_learning_rate=1e-4)


class StopNowError(Exception):
    """What a watcher raises to stop."""


def runs_of(seeds, protocol: Protocol = TINY, family: str = "gru", **model) -> list[RunSpec]:
    spec = ModelSpec("lhi", family, **{"n_bits": 4, "n_layers": 2} | model)
    return [RunSpec(spec, seed, protocol) for seed in seeds]


def stop_after(seed: int, epoch: int):
    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (seed, epoch):
            raise StopNowError

    return watch


@pytest.fixture
def save_often(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)


def test_a_run_depends_on_its_own_seed_alone(family, tmp_path, kept) -> None:
    """Alone, in a stack of five, in another order and company: the same bits."""
    runs = runs_of(range(5), family=family)
    train(runs, tmp_path / "five", CPU)
    for name, seeds in (("alone", [3]), ("pair", [4, 3]), ("three", [6, 3, 0])):
        train(runs_of(seeds, family=family), tmp_path / name, CPU)
        for run in set(runs) & set(runs_of(seeds, family=family)):
            assert kept(tmp_path / name, run) == kept(tmp_path / "five", run), name
    assert kept(tmp_path / "five", runs[3]) != kept(tmp_path / "five", runs[2])


def test_the_last_batch_of_the_paper_is_no_exception(tmp_path, kept) -> None:
    """80 examples are no whole number of what a CPU's loop takes at a time, 32."""
    protocol = replace(TINY, epoch_examples=80, batch_size=256, max_epochs=2)
    runs = runs_of(range(4), protocol, family="linear-full", n_layers=1)
    train(runs, tmp_path / "four", CPU)
    train(runs[3:], tmp_path / "alone", CPU)
    assert kept(tmp_path / "alone", runs[3]) == kept(tmp_path / "four", runs[3])


def test_the_number_of_threads_does_not_matter(tmp_path, kept) -> None:
    (run,) = runs_of([3], replace(TINY, batch_size=256, epoch_examples=256, max_epochs=1))
    run = replace(run, model=ModelSpec("rhi", "softmax-full", n_bits=33))
    train([run], tmp_path / "one", CPU)
    torch.set_num_threads(2)
    try:
        train([run], tmp_path / "two", CPU)
        assert torch.get_num_threads() == 2  # the user's number is put back
    finally:
        torch.set_num_threads(1)
    assert kept(tmp_path / "one", run) == kept(tmp_path / "two", run)


def test_training_agrees_with_the_reference(family, tmp_path, library) -> None:
    """From the same weights: losses to 1e-4, relative; rounding grows over sixteen Adam steps."""
    (run,) = runs_of([5], replace(TINY, clip_norm=0.2, plateau_patience=0), family=family)
    (result,) = train([run], tmp_path, CPU)
    theirs = whole_runs.train(run, params=classifier.init(run.model, run.seed)).history
    ours = RunFolder(tmp_path, run).history()
    assert len(ours) == len(theirs) == result.epochs == 4
    for epoch, expected in zip(ours, theirs, strict=True):
        assert epoch.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert epoch.held_out_loss == pytest.approx(expected.held_out_loss, rel=1e-4)
        assert epoch.held_out_accuracy == pytest.approx(expected.accuracy, abs=1.01 / 80)
        assert epoch.learning_rate == expected.learning_rate


@pytest.mark.parametrize("stop_at", [(0, 1), (2, 1), (1, 2), (2, 3), (2, 4)])
def test_stopped_anywhere_a_run_ends_as_if_it_had_not_been(
    stop_at, tmp_path, kept, leftovers, save_often
) -> None:
    runs = runs_of(range(3), CUTTING, family="mamba2")
    train(runs, tmp_path / "unbroken", CPU)
    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", CPU, watch=stop_after(*stop_at))
    train(runs, tmp_path / "broken", CPU)
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "unbroken", run)
    assert leftovers(tmp_path) == []


def test_stopped_again_and_again_in_changing_company(tmp_path, kept, save_often) -> None:
    """Runs that stand at different epochs share a stack."""
    runs = runs_of(range(3), CUTTING)
    train(runs, tmp_path / "unbroken", CPU)
    store = tmp_path / "broken"
    for company, at in ((runs[:1], (0, 3)), (runs[:2], (1, 2)), (runs[1:], (2, 2))):
        with pytest.raises(StopNowError):
            train(company, store, CPU, watch=stop_after(*at))
    train([runs[2], runs[0], runs[1]], store, CPU)
    for run in runs:
        assert kept(store, run) == kept(tmp_path / "unbroken", run)


def test_stopped_before_the_first_checkpoint(tmp_path, kept) -> None:
    runs = runs_of(range(2))
    train(runs, tmp_path / "unbroken", CPU)
    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", CPU, watch=stop_after(1, 3))
    assert not list((tmp_path / "broken").rglob("state.safetensors"))
    train(runs, tmp_path / "broken", CPU)
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "unbroken", run)


_PROGRAM = """
import json, sys
from pathlib import Path
from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.training_context import TrainingContext
from ithbit.spec import run_from_json
loop.SAVE_SECONDS = 0.0
runs = [run_from_json(data) for data in json.loads(sys.argv[2])]
loop.train_cell(runs, TrainingContext(Path(sys.argv[1]), choose_device("cpu")))
"""


def test_killed_at_random_moments(tmp_path, kept, leftovers) -> None:
    """SIGKILL in the middle of whatever it does: a step, a line of history, a checkpoint."""
    runs = runs_of(range(2), replace(CUTTING, max_epochs=100), n_layers=1)
    train(runs, tmp_path / "unbroken", CPU)
    store, moments = tmp_path / "killed", random.Random(0)
    command = [sys.executable, "-c", _PROGRAM, str(store)]
    command.append(json.dumps([run.to_json() for run in runs]))
    history = RunFolder(store, runs[1]).path / "history.jsonl"
    for kill in range(2):  # `make test-kill` has many
        process = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + 90
            while process.poll() is None and time.monotonic() < deadline:
                if history.exists() and history.read_bytes().count(b"\n") > 5 + 30 * kill:
                    break
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.1))
        finally:
            process.kill()
            assert process.wait() == -signal.SIGKILL, "it should have been killed at work"
    assert RunFolder(store, runs[0]).result() is None
    train(runs, store, CPU)
    for run in runs:
        assert kept(store, run) == kept(tmp_path / "unbroken", run)
    assert leftovers(store) == []


def test_whoever_stops_leaves_and_the_others_do_not_notice(tmp_path, kept) -> None:
    """Runs stop in different epochs, by loss and by the last epoch, in epochs of rate cuts."""
    runs = runs_of(range(5), replace(CUTTING, max_epochs=12, stop_loss=0.66), n_layers=1)
    results = train(runs, tmp_path / "together", CPU)
    assert len({result.epochs for result in results}) >= 3
    assert {result.stopped_by for result in results} == {"loss", "epochs"}
    cuts: set[int] = set()
    for run, result in zip(runs, results, strict=True):
        train([run], tmp_path / "alone", CPU)
        assert kept(tmp_path / "alone", run) == kept(tmp_path / "together", run)
        history = RunFolder(tmp_path / "together", run).history()
        below = [epoch.epoch for epoch in history if epoch.held_out_loss <= 0.66]
        assert below == ([result.epochs] if result.stopped_by == "loss" else [])
        rates = [epoch.learning_rate for epoch in history]
        cuts |= {k for k in range(1, len(rates)) if rates[k] < rates[k - 1]}
    # Some run's rate was cut in an epoch in which another left.
    assert cuts & {result.epochs for result in results if result.epochs < 12}


def test_solved_is_seen_and_stops_only_when_asked(tmp_path) -> None:
    easy = replace(TINY, learning_rate=2e-3, max_epochs=20)
    (run,) = runs_of([0], easy, n_bits=1, n_layers=1)
    (whole,) = train([run], tmp_path, CPU)
    assert whole.stopped_by == "epochs"
    assert whole.epochs == 20
    assert whole.solved
    assert whole.half_length_accuracy is None
    assert 1 < whole.first_solved_epoch < 20
    (early,) = train([replace(run, protocol=replace(easy, stop_when_solved=True))], tmp_path, CPU)
    assert early.stopped_by == "solved"
    assert early.epochs == early.first_solved_epoch == whole.first_solved_epoch


def test_structured_inputs_are_tried_at_the_end(tmp_path) -> None:
    """Asked again with the weights that were kept, the example is wrong; so is the count."""
    (run,) = runs_of([0], n_bits=5)
    (result,) = train([run], tmp_path, CPU)
    assert result.structured_tried == 32 * 5  # all strings of five bits but none twice
    assert 0 < result.structured_wrong < result.structured_tried
    weights = load_file(RunFolder(tmp_path, run).path / "weights.safetensors")
    params = {name: value[None] for name, value in weights.items()}
    table = token_table(run.model.task, 5)
    strings = structured_strings(5, 1000)
    ((bits, index),) = every_index(strings, 160, 160)
    examples = Examples(bits[None], index[None])
    out = classifier.logits(params, run.model, table, examples)
    wrong = ((out > 0) != (examples.answer == 1))[0]
    assert int(wrong.sum()) == result.structured_wrong
    text = "".join(map(str, bits[wrong][0].tolist()))
    assert result.structured_example == f"bits {text}, index {index[wrong][0]}"
    said = f"wrong on {result.structured_wrong} of 160 structured inputs, for example bits {text}"
    assert result.structured_sentence().startswith(said)
    right = replace(result, structured_wrong=0, structured_example=None)
    assert right.structured_sentence() == "right on 160 structured inputs"
    # A record of 0.1 has none of it.
    old = {k: v for k, v in result.to_json().items() if not k.startswith("structured")}
    assert from_json(Result, old).structured_sentence() is None
    assert from_json(Result, old).to_json().keys() == old.keys()


def test_mixed_examples_train_another_model_on_the_same_held_out_set(tmp_path) -> None:
    (run,) = runs_of([0])
    mixed = replace(run, protocol=replace(run.protocol, examples="mixed"))
    (uniform,), (other,) = train([run], tmp_path, CPU), train([mixed], tmp_path, CPU)
    assert RunFolder(tmp_path, run).path != RunFolder(tmp_path, mixed).path
    assert uniform.final_loss != other.final_loss
    sets = [held_out_examples(r.model, r.protocol, [0], CPU.torch) for r in (run, mixed)]
    assert torch.equal(sets[0].bits, sets[1].bits)


def test_the_record_of_a_run(tmp_path) -> None:
    events: list[Event] = []
    (run,) = runs_of([2], family="linear-causal")
    (result,) = train([run], tmp_path, CPU, watch=events.append)
    history = RunFolder(tmp_path, run).history()
    assert [event.what for event in events] == [*history, result]
    assert [epoch.epoch for epoch in history] == [1, 2, 3, 4]
    assert result == RunFolder(tmp_path, run).result()
    assert result.n_parameters == classifier.n_parameters(run.model)
    assert result.max_accuracy == max(epoch.held_out_accuracy for epoch in history)
    assert (result.final_loss, result.final_accuracy) == (
        history[-1].held_out_loss,
        history[-1].held_out_accuracy,
    )
    assert result.environment["torch"] == torch.__version__
    assert result.environment["threads"] == 1
    weights = load_file(RunFolder(tmp_path, run).path / "weights.safetensors")
    start = classifier.init(run.model, run.seed)
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in start.items()
    }
    assert not torch.equal(weights["embed"], start["embed"])


def poison(folder: RunFolder) -> None:
    """Make the checkpoint's next loss overflow, with numbers that are finite."""
    checkpoint, remark = folder.load(vars(fresh_state(folder.run)))
    assert remark is None
    checkpoint.tensors["values"] *= 1e30
    folder.save(checkpoint)


def test_a_loss_that_is_not_finite_fails_its_run_alone(tmp_path, kept, save_often) -> None:
    runs = runs_of(range(3), family="softmax-causal")
    train(runs, tmp_path / "sound", CPU)
    store = tmp_path / "poisoned"
    with pytest.raises(StopNowError):
        train(runs, store, CPU, watch=stop_after(2, 3))
    folder = RunFolder(store, runs[1])
    poison(folder)
    results = train(runs, store, CPU)
    assert [type(result) for result in results] == [Result, Failure, Result]
    assert "the loss is not finite in epoch 3: " in results[1].error
    assert results[1] == folder.outcome()
    assert folder.result() is None
    assert [epoch.epoch for epoch in folder.history()] == [1, 2]
    for k in (0, 2):
        assert kept(store, runs[k]) == kept(tmp_path / "sound", runs[k])

    before = (folder.path / "failure.json").stat().st_mtime_ns
    assert train(runs, store, CPU)[1] == results[1]  # recorded, and not tried again
    assert (folder.path / "failure.json").stat().st_mtime_ns == before
    assert isinstance(train(runs, store, CPU, retry_failed=True)[1], Failure)  # poisoned still
    (folder.path / "state.safetensors").unlink()
    assert isinstance(train(runs, store, CPU, retry_failed=True)[1], Result)
    assert kept(store, runs[1]) == kept(tmp_path / "sound", runs[1])
    assert not (folder.path / "failure.json").exists()


def test_every_run_may_fail(tmp_path) -> None:
    runs = runs_of(range(2), replace(TINY, learning_rate=1e30))
    events: list[Event] = []
    failures = train(runs, tmp_path, CPU, watch=events.append)
    assert all(isinstance(failure, Failure) for failure in failures)
    assert [event.what for event in events if not isinstance(event.what, Epoch)] == failures


def test_a_crash_is_recorded_with_its_traceback(tmp_path, monkeypatch) -> None:
    """A batch that no memory holds, let through: the allocation fails, and the sweep goes on."""
    monkeypatch.setattr("ithbit.engine.outcomes.check_memory", lambda *arguments: 0)
    too_much = replace(TINY, batch_size=1 << 45, epoch_examples=1 << 45)
    failures = train(runs_of(range(2), too_much), tmp_path, CPU)
    for failure in failures:
        assert "RuntimeError" in failure.error
        assert "draw_examples" in failure.traceback
        assert failure.epoch == 0


def test_a_watcher_that_raises_is_no_failure_of_the_run(tmp_path) -> None:
    (run,) = runs_of([0])

    def reader_is_gone(event: Event) -> None:
        raise BrokenPipeError("nobody listens")

    with pytest.raises(BrokenPipeError, match="nobody listens"):
        train([run], tmp_path, CPU, watch=reader_is_gone)
    assert not isinstance(RunFolder(tmp_path, run).outcome(), Failure)
    assert isinstance(train([run], tmp_path, CPU)[0], Result)


def test_finished_runs_are_never_trained_again(tmp_path) -> None:
    runs = runs_of(range(2))
    first = train(runs, tmp_path, CPU)

    def files() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    before = files()
    events: list[Event] = []
    assert train(runs, tmp_path, CPU, watch=events.append, retry_failed=True) == first
    assert [event.what for event in events] == first
    assert files() == before


def test_runs_held_by_another_are_left_to_it(tmp_path) -> None:
    runs = runs_of(range(3))
    folder = RunFolder(tmp_path, runs[1])
    folder.create()
    with folder.claimed() as ours:
        assert ours
        with pytest.raises(BusyError, match=f"another process is training {runs[1].name}; wait"):
            train(runs, tmp_path, CPU)
    assert folder.result() is None
    assert [RunFolder(tmp_path, runs[k]).result() is None for k in (0, 2)] == [False, False]
    assert len(train(runs, tmp_path, CPU)) == 3


def test_what_is_trained_together_differs_by_seed_alone(tmp_path) -> None:
    one, other = runs_of([0]) + runs_of([1], n_bits=3)
    for together in ([one, other], [one, one]):
        with pytest.raises(SpecError, match="must share model and protocol and have a seed each"):
            train(together, tmp_path, CPU)
    assert RunFolder(tmp_path, one).outcome() is None


@pytest.mark.parametrize("n_bits", [1, 8, 64, 4096])
def test_a_stack_has_at_least_one_run(n_bits) -> None:
    (run,) = runs_of([0], Protocol(), n_bits=n_bits)
    assert stack_size(run, CPU) == max(1, 32_768 // (256 * (n_bits + 2)))


_MEMORY = """
import resource, sys
from ithbit.engine.device import choose_device, one_thread
from ithbit.engine.optim import AdamState
from ithbit.spec import RunSpec
from ithbit.engine.stack import Stack, fresh_state
from ithbit.spec import ModelSpec
task, family = sys.argv[1:]
runs = [RunSpec(ModelSpec(task, family, n_bits=64, n_layers=4), seed) for seed in range(20)]
device = choose_device("cpu")
with one_thread():
    stack = Stack(runs, AdamState.join([fresh_state(run) for run in runs]), device)
    for _ in range(2):
        stack.stepper.step(256)
    stack.evaluate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is Linux's")
@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_seeds_of_four_layers_at_64_bits_stay_below_four_gib(family) -> None:
    command = [sys.executable, "-c", _MEMORY, "lhi", family]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 4 << 30, f"{int(done.stdout) / 2**20:.2f} GiB"
