"""Kernels and stacked models behind one stack: the same training, and one for the other."""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from tests.support.one_stack import train

from ithbit.engine import cell as cells
from ithbit.engine import loop
from ithbit.engine.cell import stack_size
from ithbit.engine.device import Device, choose_device
from ithbit.engine.evaluate import ordered_mean, structured_answers
from ithbit.engine.loop import train_cell
from ithbit.engine.steppers.choice import compile_refusal, refusal
from ithbit.engine.training_context import Event, Notice, TrainingContext
from ithbit.errors import DeviceError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result

CPU = choose_device("cpu")
# Two whole steps and a shorter one.
TINY = Protocol(batch_size=8, epoch_examples=20, held_out_examples=12, max_epochs=2)
# One of each for the interpreter, which is slow.
TINIEST = Protocol(batch_size=3, epoch_examples=5, held_out_examples=4, max_epochs=2)


@pytest.fixture
def interpreted(triton) -> None:
    """Skips a test where the kernels would not run under Triton's interpreter."""
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled where there is a GPU")


class StopNowError(Exception):
    """What a watcher raises to stop."""


def runs_of(seeds, protocol: Protocol = TINY, **model) -> list[RunSpec]:
    spec = ModelSpec("rhi", **{"family": "linear-full", "n_bits": 3} | model)
    return [RunSpec(spec, seed, protocol) for seed in seeds]


@dataclass(frozen=True)
class LaterProtocol(Protocol):
    """A protocol with a field that kernels and compiled code have not heard of."""

    smoothing: float = 0.0


@pytest.mark.usefixtures("interpreted")
def test_kernels_and_compiled_code_refuse_what_they_do_not_follow() -> None:
    model = ModelSpec("rhi", "gru", 4)
    for protocol, name in (
        (Protocol(consistency=1.0), "consistency"),
        (LaterProtocol(smoothing=0.1), "smoothing"),
    ):
        assert refusal(model, protocol, CPU) == f"the kernels do not follow {name}"
        assert compile_refusal(model, protocol) == f"compiled code does not follow {name}"
    for protocol in (Protocol(examples="mixed", weight_decay=0.1), LaterProtocol()):
        assert "follow" not in (refusal(model, protocol, CPU) or "")
        assert "follow" not in (compile_refusal(model, protocol) or "")


@pytest.mark.usefixtures("interpreted")
def test_the_kernels_train_what_the_plain_models_do(tmp_path) -> None:
    """To 1e-4: both are fp32, and Adam's first steps divide by small numbers."""
    runs = runs_of(range(2), TINIEST, family="gru", n_bits=2)
    fused = train(runs, tmp_path / "fused", CPU, kernels="on")
    plain = train(runs, tmp_path / "plain", CPU, kernels="auto")
    assert {result.environment["path"] for result in fused} == {"kernels"}
    assert {result.environment["path"] for result in plain} == {"stacked"}
    for run in runs:
        ours, theirs = (RunFolder(tmp_path / name, run).history() for name in ("fused", "plain"))
        for epoch, expected in zip(ours, theirs, strict=True):
            assert epoch.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
            assert epoch.held_out_loss == pytest.approx(expected.held_out_loss, rel=1e-4)
            assert epoch.held_out_accuracy == expected.held_out_accuracy


@pytest.mark.usefixtures("interpreted")
def test_by_kernels_a_run_depends_on_its_own_seed_alone(tmp_path, kept, monkeypatch) -> None:
    """Alone, in a stack, stopped and resumed: the same bits."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs = runs_of(range(2), TINIEST, family="gru", n_bits=1)
    train(runs, tmp_path / "pair", CPU, kernels="on")
    train(runs[1:], tmp_path / "alone", CPU, kernels="on")
    assert kept(tmp_path / "alone", runs[1]) == kept(tmp_path / "pair", runs[1])

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (0, 2):
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", CPU, watch, kernels="on")
    train(runs, tmp_path / "broken", CPU, kernels="on")
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "pair", run)


@pytest.fixture
def by_kernels(monkeypatch) -> None:
    """Has runs trained by the kernels, whatever `refusal` says of them."""
    monkeypatch.setattr(cells, "choose_stepper", lambda run, *others: ("kernels", []))


def test_kernels_that_fail_give_way_to_the_plain_models(tmp_path, kept, request) -> None:
    """A width of 12 is refused for a reason: a kernel's tiles are powers of two."""
    runs, events = runs_of(range(3), d_model=12), []
    train(runs, tmp_path / "plain", CPU)
    request.getfixturevalue("by_kernels")
    assert (
        train_cell(runs, TrainingContext(tmp_path / "fell_back", CPU, "auto", events.append)) == {}
    )
    for run in runs:
        assert kept(tmp_path / "fell_back", run) == kept(tmp_path / "plain", run)
    (notice,) = [event.what for event in events if isinstance(event.what, str)]
    assert isinstance(notice, Notice)
    assert notice.startswith("the kernels of linear-full failed (")
    assert notice.endswith("): trained with the stacked models")


@pytest.mark.usefixtures("by_kernels")
def test_kernels_that_were_insisted_on_fail_with_their_runs(tmp_path) -> None:
    runs, events = runs_of(range(2), d_model=12), []
    train_cell(runs, TrainingContext(tmp_path, CPU, "on", events.append))
    assert [type(event.what) for event in events] == [Failure, Failure]


class SmallMemoryStack(cells.Stack):
    """A stack on a device that holds two runs, or one epoch of more."""

    def evaluate(self):
        if len(self.runs) > 2 and int(self.state.steps.max()) > 4 * self.protocol.epoch_steps:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return super().evaluate()


@pytest.mark.parametrize("save_seconds", [0.0, 1e9])
def test_a_stack_too_large_for_the_memory_is_halved(
    save_seconds, tmp_path, kept, leftovers, monkeypatch
) -> None:
    """After some epochs: the runs go on from their last whole one, saved or not."""
    runs, events = runs_of(range(5), replace(TINY, max_epochs=7)), []
    train(runs, tmp_path / "large", CPU)
    monkeypatch.setattr(cells, "Stack", SmallMemoryStack)
    monkeypatch.setattr(loop, "SAVE_SECONDS", save_seconds)
    results = train(runs, tmp_path / "small", CPU, events.append)
    assert all(isinstance(result, Result) for result in results)
    for run in runs:
        assert kept(tmp_path / "small", run) == kept(tmp_path / "large", run)
    said = [event.what for event in events if isinstance(event.what, str)]
    assert said == ["out of memory with 5 runs of linear-full at once: trained 2 at a time"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "fault", [torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()]
)
def test_a_fault_after_the_last_epoch_adds_none(fault, tmp_path, kept, monkeypatch) -> None:
    """All epochs are done, and the memory is too small for what comes then, or somebody leaves."""
    runs = runs_of(range(4), replace(TINY, max_epochs=3))
    train(runs, tmp_path / "smooth", CPU)
    faults = [None, fault]

    def structured(*arguments):
        if faults and (raised := faults.pop(0)):
            raise raised
        return structured_answers(*arguments)

    monkeypatch.setattr(loop, "structured_answers", structured)
    if isinstance(fault, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            train(runs, tmp_path / "rough", CPU)
    train(runs, tmp_path / "rough", CPU)
    assert faults == []
    for run in runs:
        assert kept(tmp_path / "rough", run) == kept(tmp_path / "smooth", run)


class NoMemoryStack(cells.Stack):
    def train_epoch(self, epochs, abandoned):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def test_one_run_too_large_for_the_memory_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cells, "Stack", NoMemoryStack)
    failures = train(runs_of(range(3)), tmp_path, CPU)
    assert [failure.error for failure in failures] == [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    ] * 3


class LostDevice(Device):
    """A device that fails, and answers no more."""

    def is_lost(self) -> bool:
        return True


def test_a_lost_device_ends_the_training_and_fails_no_run(tmp_path, kept, monkeypatch) -> None:
    """The crash is real: a batch that no memory holds, let through."""
    monkeypatch.setattr("ithbit.engine.outcomes.check_memory", lambda *arguments: 0)
    too_much = replace(TINY, batch_size=1 << 45, epoch_examples=1 << 45)
    runs = runs_of(range(2), too_much)
    with pytest.raises(DeviceError, match=r"the GPU failed: .*; finished runs .* same command"):
        train(runs, tmp_path, LostDevice(torch.device("cpu"), "for a test"))
    for run in runs:
        folder = RunFolder(tmp_path, run)
        assert not isinstance(folder.outcome(), Failure)
        with folder.claimed() as free:
            assert free


def test_whoever_leaves_is_replaced(tmp_path, kept, monkeypatch) -> None:
    """Five runs that stop in different epochs, two at a time: never fewer while one waits."""
    protocol = Protocol(
        batch_size=32,
        epoch_examples=112,
        held_out_examples=80,
        max_epochs=12,
        stop_loss=0.66,
        learning_rate=1e-2,
    )
    runs = runs_of(range(5), protocol, family="gru", n_bits=4)
    monkeypatch.setattr(cells, "_CPU_TOKENS", 2 * 32 * 5)
    assert stack_size(runs[0], CPU) == 2
    events: list[Event] = []
    results = train(runs, tmp_path / "two", CPU, events.append)
    assert len({result.epochs for result in results}) >= 2
    seen: list[tuple[int, ...]] = []  # who was in the stack, epoch by epoch
    for event in events:
        if isinstance(event.what, Epoch):
            if not seen or event.run.seed <= seen[-1][-1]:
                seen.append(())
            seen[-1] += (event.run.seed,)
    assert {len(company) for company in seen if max(company) < 4} == {2}
    assert len(set(seen)) >= 4
    for run in runs:
        train([run], tmp_path / "alone", CPU)
        assert kept(tmp_path / "two", run) == kept(tmp_path / "alone", run)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_bits": 513}, "the kernels take up to 512 bits, got 513"),
        ({"d_model": 12}, "the kernels take a width that is a power of two, 4 or more, got 12"),
    ],
)
def test_kernels_are_refused_by_a_sentence(changes, said, tmp_path) -> None:
    runs = runs_of([0], **changes)
    assert refusal(runs[0].model, TINY, CPU) == said
    with pytest.raises(DeviceError, match=f"kernels 'on' were asked for, but {said}; use auto"):
        train(runs, tmp_path, CPU, kernels="on")
    assert refusal(runs_of([0])[0].model, TINY, CPU) is None
    assert "betas" in refusal(runs_of([0])[0].model, replace(TINY, beta1=0.0), CPU)


_NO_TRITON = """
import sys
sys.modules["triton"] = None
from pathlib import Path
from ithbit import train
from ithbit.spec import Protocol
from ithbit.errors import DeviceError
tiny = Protocol(batch_size=8, epoch_examples=20, held_out_examples=12, max_epochs=1)
(done,) = train("rhi", "gru", n=2, seeds=[0], protocol=tiny, store=sys.argv[1], device="cpu")
assert done.environment["path"] == "stacked"
try:
    train("rhi", "gru", n=2, seeds=[0], store=sys.argv[1], device="cpu", kernels="on")
except DeviceError as error:
    print(error)
"""


def test_a_machine_without_triton_has_the_plain_models(tmp_path) -> None:
    command = [sys.executable, "-c", _NO_TRITON, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernels 'on' were asked for, but the kernels need Triton, which")


_PLAIN = """
import sys
import ithbit
import ithbit.cli
tiny = ithbit.Protocol(batch_size=8, epoch_examples=20, held_out_examples=12, max_epochs=1)
ithbit.train("rhi", "gru", n=2, seeds=[0], protocol=tiny, store=sys.argv[1], device="cpu")
assert "torch" in sys.modules
assert "triton" not in sys.modules
"""


def test_training_on_a_cpu_does_not_import_triton(tmp_path) -> None:
    command = [sys.executable, "-c", _PLAIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_ordered_mean_is_the_mean_of_each_row() -> None:
    x = torch.randn(5, 2000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ordered_mean(x), x.double().mean(1), rtol=1e-12, atol=0)
    assert torch.equal(ordered_mean(x)[3:4], ordered_mean(x[3:4]))
    assert ordered_mean(x[:, :1]).tolist() == x[:, 0].tolist()
