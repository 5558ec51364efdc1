"""Training on a GPU: the same functions, a captured step, the same resumption."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.support.one_stack import train

from ithbit.engine import cell, loop
from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import bce
from ithbit.engine.optim import AdamState
from ithbit.engine.options import TrainingOptions
from ithbit.engine.stack import Stack, fresh_state
from ithbit.engine.training_context import Event
from ithbit.families import FAMILIES
from ithbit.models import classifier
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result
from ithbit.sweeps.runner import run_all
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

# Whole steps and a shorter one, so that two graphs are captured.
TINY = Protocol(batch_size=64, epoch_examples=224, held_out_examples=100, max_epochs=4)
# A GPU chooses the stacked models' products by the size of the stack: a run alone rounds otherwise
# than in one. Adam divides by the gradient's own size, so that a difference may be a whole small
# step. The kernels' sums have one order: alone and in a stack they give the same bits.
ALONE = {"rel": 1e-3, "abs": 1e-4}


class StopNowError(Exception):
    """What a watcher raises to stop."""


def runs_of(family: str, seeds, protocol: Protocol = TINY) -> list[RunSpec]:
    return [RunSpec(ModelSpec("lhi", family, 6, n_layers=2), seed, protocol) for seed in seeds]


@pytest.fixture(params=["on", "off"])
def kernels(request):
    """Kernels and stacked models in turn."""
    if request.param == "on":
        request.getfixturevalue("triton")
    return request.param


def stack_of(runs: list[RunSpec], kernels: str = "off") -> Stack:
    state = AdamState.join([fresh_state(run) for run in runs])
    return Stack(runs, state, choose_device("cuda"), "kernels" if kernels == "on" else "stacked")


def results_of(store, runs) -> list[object]:
    """Weights and histories, without times."""
    found = []
    for run in runs:
        folder = RunFolder(store, run)
        history = [replace(epoch, seconds=0.0) for epoch in folder.history()]
        found.append((history, (folder.path / "weights.safetensors").read_bytes()))
    return found


def logits_and_gradients(members, spec, dtype, device):
    params = {
        name: value.to(device, dtype).requires_grad_()
        for name, value in classifier.stack(members).items()
    }
    examples = draw_examples(stream_keys([3, 4], device), spec.n_bits, 0, 96)
    table = token_table(spec.task, spec.n_bits, dtype=dtype, device=device)
    out = classifier.logits(params, spec, table, examples)
    loss = bce(out, examples.answer).mean(1).sum()
    grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return [tensor.detach().cpu().double() for tensor in (out, *grads)]


def test_logits_and_gradients_are_those_of_the_cpu_in_double(family, moved) -> None:
    """To 1e-5 of the largest number of each tensor: a sum's error goes with its terms."""
    spec = ModelSpec("lhi", family, n_bits=9, n_layers=2)
    choose_device("cuda")  # no TF32
    members = [moved(spec, seed) for seed in (3, 4)]
    exact = logits_and_gradients(members, spec, torch.float64, torch.device("cpu"))
    found = logits_and_gradients(members, spec, torch.float32, torch.device("cuda"))
    largest = max(float(tensor.abs().max()) for tensor in exact[1:])
    for ours, expected in zip(found, exact, strict=True):
        scale = max(float(expected.abs().max()), 1e-2 * largest)
        assert (ours - expected).abs().max() <= 1e-5 * scale


def test_the_captured_step_is_the_step(family, kernels) -> None:
    """Three epochs replayed and three stepped one by one: the same losses and weights."""
    runs = runs_of(family, range(3))
    captured, plain = stack_of(runs, kernels), stack_of(runs, kernels)
    for epoch in range(3):
        losses = captured.train_epoch([epoch] * 3)
        plain.rows.first.fill_(epoch * TINY.epoch_examples)
        plain.rows.loss_sum.zero_()
        for size in (64, 64, 64, 32):
            plain.stepper.step(size)
        expected = (plain.rows.loss_sum / TINY.epoch_examples).tolist()
        assert losses == pytest.approx(expected, rel=1e-5)
    assert captured.state.steps.tolist() == plain.state.steps.tolist() == [[12]] * 3
    torch.testing.assert_close(captured.state.values, plain.state.values, rtol=1e-3, atol=1e-4)


def test_the_rate_reaches_the_captured_step(kernels) -> None:
    """The graph reads the rate where it lies: a rate of nearly nothing moves nearly nothing."""
    stack = stack_of(runs_of("gru", range(2)), kernels)
    stack.train_epoch([0, 0])
    before = stack.state.values.clone()
    stack.keep([1e-30, 1e-3])
    stack.train_epoch([1, 1])
    moved = (stack.state.values - before).abs().amax(1)
    assert moved[0] == 0
    assert moved[1] > 1e-4


def test_the_captured_evaluation_follows_the_weights(family, kernels) -> None:
    stack = stack_of(runs_of(family, range(2)), kernels)
    before = stack.evaluate()
    stack.state.values.mul_(2.0)
    assert stack.evaluate() != before
    stack.state.values.mul_(0.5)
    assert stack.evaluate() == before


def test_the_same_run_twice_gives_the_same_bits(family, kernels, tmp_path) -> None:
    runs, device = runs_of(family, range(3)), choose_device("cuda")
    path = {"on": "kernels", "off": "stacked"}[kernels]
    for name in ("one", "two"):
        results = train(runs, tmp_path / name, device, kernels=kernels)
        assert [done.environment["path"] for done in results] == [path] * 3
    assert results_of(tmp_path / "one", runs) == results_of(tmp_path / "two", runs)


def test_by_kernels_a_run_depends_on_its_own_seed_alone(family, tmp_path) -> None:
    runs, device = runs_of(family, range(5)), choose_device("cuda")
    train(runs, tmp_path / "five", device, kernels="on")
    for name, some in (("alone", runs[3:4]), ("others", [runs[4], runs[3]])):
        train(some, tmp_path / name, device, kernels="on")
        assert results_of(tmp_path / name, some) == results_of(tmp_path / "five", some)


def test_alone_and_in_a_stack(family, tmp_path) -> None:
    runs, device = runs_of(family, range(5)), choose_device("cuda")
    train(runs, tmp_path / "five", device, kernels="off")
    train(runs[3:4], tmp_path / "alone", device, kernels="off")
    five, alone = (RunFolder(tmp_path / name, runs[3]).history() for name in ("five", "alone"))
    for ours, expected in zip(alone, five, strict=True):
        assert ours.train_loss == pytest.approx(expected.train_loss, **ALONE)
        assert ours.held_out_loss == pytest.approx(expected.held_out_loss, **ALONE)
        assert ours.learning_rate == expected.learning_rate


def test_the_cpu_and_the_gpu_agree(family, kernels, tmp_path) -> None:
    runs = runs_of(family, range(2))
    train(runs, tmp_path / "cpu", choose_device("cpu"))
    train(runs, tmp_path / "cuda", choose_device("cuda"), kernels=kernels)
    for run in runs:
        cpu, gpu = (RunFolder(tmp_path / name, run).history() for name in ("cpu", "cuda"))
        for ours, expected in zip(gpu, cpu, strict=True):
            assert ours.train_loss == pytest.approx(expected.train_loss, **ALONE)
            assert ours.held_out_loss == pytest.approx(expected.held_out_loss, **ALONE)


def test_stopped_and_resumed(family, kernels, tmp_path, monkeypatch) -> None:
    """In the same company, as it is at rest and resumed together, a stack ends with equal bits."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs, device = runs_of(family, range(3)), choose_device("cuda")
    train(runs, tmp_path / "unbroken", device, kernels=kernels)

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (0, 3):
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", device, watch=watch, kernels=kernels)
    train(runs, tmp_path / "broken", device, kernels=kernels)
    assert results_of(tmp_path / "broken", runs) == results_of(tmp_path / "unbroken", runs)


def test_a_loss_that_is_not_finite_fails_its_run_alone(kernels, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs, device = runs_of("softmax-full", range(2)), choose_device("cuda")

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 3:
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path, device, watch=watch, kernels=kernels)
    checkpoint, _ = RunFolder(tmp_path, runs[1]).load(vars(fresh_state(runs[1])))
    checkpoint.tensors["values"] *= 1e30
    RunFolder(tmp_path, runs[1]).save(checkpoint)
    sound, failed = train(runs, tmp_path, device, kernels=kernels)
    assert isinstance(sound, Result)
    assert isinstance(failed, Failure)
    assert "the loss is not finite" in failed.error


def test_whoever_leaves_is_replaced(kernels, tmp_path, monkeypatch) -> None:
    """Five runs, two at a time, that stop in different epochs; as if all had been together."""
    protocol = replace(TINY, max_epochs=12, stop_loss=0.68, learning_rate=1e-2)
    runs, device = runs_of("linear-full", range(5), protocol), choose_device("cuda")
    monkeypatch.setattr(cell, "_CUDA_SEEDS", 2)
    results = train(runs, tmp_path / "two", device, kernels=kernels)
    assert all(isinstance(result, Result) for result in results)
    if kernels == "on":
        monkeypatch.setattr(cell, "_CUDA_SEEDS", 64)
        train(runs, tmp_path / "five", device, kernels=kernels)
        assert results_of(tmp_path / "two", runs) == results_of(tmp_path / "five", runs)


def test_several_stacks_at_once(kernels, tmp_path) -> None:
    """Twelve stacks of six families in eight threads that capture and replay at will."""
    runs = [run for family in FAMILIES for run in runs_of(family, range(3))]
    runs += [replace(run, model=replace(run.model, n_bits=9, n_layers=1)) for run in runs]
    for name in ("one", "two"):
        results = run_all(runs, tmp_path / name, TrainingOptions("cuda", kernels=kernels))
        assert all(isinstance(result, Result) for result in results)
    assert results_of(tmp_path / "one", runs) == results_of(tmp_path / "two", runs)
    device = choose_device("cuda")
    for at in range(0, len(runs), 3):
        train(runs[at : at + 3], tmp_path / "alone", device, kernels=kernels)
    assert results_of(tmp_path / "alone", runs) == results_of(tmp_path / "one", runs)


def test_what_the_kernels_refuse_is_trained_by_the_plain_models_and_said_once(tmp_path) -> None:
    events: list[Event] = []
    models = [ModelSpec("rhi", "gru", n, d_model=12) for n in (4, 5, 6)]
    runs = [RunSpec(model, seed, TINY) for model in models for seed in range(2)]
    results = run_all(runs, tmp_path, TrainingOptions("cuda"), events.append)
    assert {result.environment["path"] for result in results} == {"stacked"}
    assert [event.what for event in events if isinstance(event.what, str)] == [
        "the kernels take a width that is a power of two, 4 or more, got 12: "
        "trained with the stacked models"
    ]


@pytest.fixture
def megabytes():
    """Bounds what torch may take of the GPU's memory, beyond what it holds."""

    def bound(amount: int) -> None:
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        held = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction((held + amount * 2**20) / whole)

    yield bound
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_stack_too_large_for_the_memory_is_halved(kernels, tmp_path, megabytes) -> None:
    protocol = replace(TINY, batch_size=256, epoch_examples=512, max_epochs=2)
    model = ModelSpec("lhi", "softmax-full", n_bits=32, n_layers=2)
    runs = [RunSpec(model, seed, protocol) for seed in range(64)]
    events: list[Event] = []
    megabytes(400)  # enough for one run to the end, the structured inputs included
    results = train(runs, tmp_path, choose_device("cuda"), events.append, kernels=kernels)
    assert all(isinstance(result, Result) for result in results)
    said = [event.what for event in events if isinstance(event.what, str)]
    assert said
    assert all(text.startswith("out of memory with") for text in said)


def test_a_run_too_large_for_the_memory_fails_with_its_message(tmp_path, megabytes) -> None:
    protocol = replace(TINY, batch_size=1 << 16, epoch_examples=1 << 16)
    runs = [RunSpec(ModelSpec("lhi", "mamba2", 64), seed, protocol) for seed in range(2)]
    megabytes(40)
    failures = train(runs, tmp_path, choose_device("cuda"), kernels="off")
    assert all(isinstance(failure, Failure) for failure in failures)
    assert all("out of memory" in failure.error for failure in failures)


_LOST = """
import sys
from pathlib import Path
import torch
from ithbit.engine import cell, loop
from ithbit.store.records import Epoch
from ithbit.spec import Protocol, RunSpec
from ithbit.errors import DeviceError
from ithbit.engine.options import TrainingOptions
from ithbit.spec import ModelSpec
from ithbit.sweeps.runner import run_all
loop.SAVE_SECONDS = 0.0
protocol = Protocol(batch_size=64, epoch_examples=224, held_out_examples=100, max_epochs=100_000)
runs = [RunSpec(ModelSpec("lhi", "gru", n), seed, protocol) for n in (4, 5, 6) for seed in (0, 1)]
def watch(event):
    if isinstance(event.what, Epoch) and event.what.epoch == 5 and event.run == runs[0]:
        # An index out of range: the device asserts, and the context is gone.
        torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")]
try:
    run_all(runs, Path(sys.argv[1]), TrainingOptions("cuda"), watch)
except DeviceError as error:
    print(error)
"""


def test_a_lost_gpu_ends_the_sweep_and_fails_no_run(tmp_path) -> None:
    command = [sys.executable, "-c", _LOST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.stdout.startswith("the GPU failed: "), done.stderr[-3000:]
    assert "the same command resumes" in done.stdout
    assert list(tmp_path.glob("*/failure.json")) == []
    assert list(tmp_path.glob("*/state.safetensors"))


_LAYERS = """
import torch
from torch import nn

class Loop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.enter, self.keep = nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, x):
        h, out = torch.zeros_like(x[:, 0]), []
        for drive in self.enter(x).unbind(1):
            h = torch.tanh(drive + self.keep(h))
            out.append(h)
        return torch.stack(out, 1)

class Conv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 4)
    def forward(self, x):
        return x + torch.relu(self.conv(nn.functional.pad(x.mT, (3, 0)))).mT

class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True)
    def forward(self, x):
        return self.layer(x)

class Asks(Loop):
    def forward(self, x):
        scale = 1.0 if float(x.detach().abs().max()) >= 0 else 2.0
        return super().forward(x) * scale
"""


@pytest.fixture
def own_runs(tmp_path):
    """Makes runs of a layer that lies in a file."""
    file = tmp_path / "layers.py"
    file.write_text(_LAYERS)

    def of(name: str, seeds) -> list[RunSpec]:
        family, code = family_of(name if ":" in name else f"{file}:{name}")
        model = ModelSpec("lhi", family, 6, n_layers=2, code=code)
        return [RunSpec(model, seed, TINY) for seed in seeds]

    return of


OWN = ("Loop", "Conv", "Encoder", "torch:lstm", "torch:gru")


@pytest.mark.parametrize("name", OWN)
def test_the_captured_step_of_a_users_layer_is_the_step(name, own_runs) -> None:
    """Replayed and launched one by one: the same losses and weights, to rounding."""
    (run,) = own_runs(name, [3])
    device = choose_device("cuda")
    captured, eager = (
        Stack([run], fresh_state(run), device, "module", captured) for captured in (True, False)
    )
    for epoch in range(3):
        losses, expected = captured.train_epoch([epoch]), eager.train_epoch([epoch])
        assert losses == pytest.approx(expected, rel=1e-5)
        assert captured.evaluate()[0] == pytest.approx(eager.evaluate()[0], rel=1e-5)
    torch.testing.assert_close(captured.state.values, eager.state.values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", OWN)
def test_users_layers_side_by_side(name, own_runs, tmp_path) -> None:
    """Five seeds, stacked or in five threads: no remark that a step cannot be captured, and each
    as if it had been alone."""
    runs, events = own_runs(name, range(5)), []
    results = run_all(runs, tmp_path / "five", TrainingOptions("cuda"), events.append)
    assert {result.environment["path"] for result in results} == {"module"}
    said = [event.what for event in events if isinstance(event.what, str)]
    assert not [text for text in said if "captured" in text]
    run_all(runs[3:4], tmp_path / "alone", TrainingOptions("cuda"))
    five, alone = (RunFolder(tmp_path / name, runs[3]).history() for name in ("five", "alone"))
    for ours, expected in zip(alone, five, strict=True):
        assert ours.train_loss == pytest.approx(expected.train_loss, **ALONE)
        assert ours.held_out_loss == pytest.approx(expected.held_out_loss, **ALONE)


def test_a_layer_that_cannot_be_captured_is_trained_all_the_same(own_runs, tmp_path) -> None:
    """It asks the device for a number. Said once; afterwards nothing is left in a capture."""
    runs, events = own_runs("Asks", range(3)), []
    results = run_all(runs, tmp_path / "asks", TrainingOptions("cuda"), events.append)
    assert all(isinstance(result, Result) for result in results)
    said = [event.what for event in events if isinstance(event.what, str)]
    assert len([text for text in said if "cannot be captured in a CUDA graph" in text]) == 1
    assert all("train one by one" in text or "cannot be captured" in text for text in said)
    before = torch.cuda.get_rng_state()
    torch.rand(3, device="cuda")
    assert not torch.equal(torch.cuda.get_rng_state(), before)
    torch.cuda.empty_cache()
    other = own_runs("Loop", range(3))
    assert all(
        isinstance(done, Result)
        for done in run_all(other, tmp_path / "loop", TrainingOptions("cuda"))
    )
    twin = [replace(run, model=other[0].model) for run in runs]  # the same layer, captured
    for run, same in zip(runs, twin, strict=True):
        ours, theirs = (
            RunFolder(tmp_path / name, spec).history()
            for name, spec in (("asks", run), ("loop", same))
        )
        assert ours[-1].train_loss == pytest.approx(theirs[-1].train_loss, **ALONE)


def test_a_pause_saves_what_trains_on_a_gpu(tmp_path) -> None:
    """Asked for by the watcher's process: every thread leaves between two graphs, saved."""
    protocol = replace(TINY, max_epochs=100_000)
    runs = [
        RunSpec(ModelSpec("lhi", "gru", n), seed, protocol) for n in (4, 5, 6) for seed in (0, 1)
    ]
    seen: set[RunSpec] = set()

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch > 2:
            seen.add(event.run)
            if len(seen) == len(runs):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped; 6 runs saved"):
        run_all(runs, tmp_path, TrainingOptions("cuda"), watch)
    for run in runs:
        checkpoint, _ = RunFolder(tmp_path, run).load(vars(fresh_state(run)))
        assert checkpoint.epochs_done == len(RunFolder(tmp_path, run).history()) > 2
