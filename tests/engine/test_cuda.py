"""Training on a GPU: the same functions, a captured step, the same resumption."""

from dataclasses import replace

import pytest
import torch

from ithbit.engine import loop
from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import bce
from ithbit.engine.folder import RunFolder
from ithbit.engine.loop import Event, train
from ithbit.engine.optim import AdamState
from ithbit.engine.record import Epoch, Failure, Result
from ithbit.engine.spec import Protocol, RunSpec
from ithbit.engine.stack import Stack, fresh_state
from ithbit.models import classifier
from ithbit.models.spec import ModelSpec
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

# Whole steps and a shorter one, so that two graphs are captured.
TINY = Protocol(batch_size=64, epoch_examples=224, held_out_examples=100, max_epochs=4)
# A GPU chooses its products by the size of the stack: a run alone rounds otherwise than in one.
# Adam divides by the gradient's own size, so that a difference may be a whole small step.
ALONE = {"rel": 1e-3, "abs": 1e-4}


class StopNowError(Exception):
    """What a watcher raises to stop."""


def runs_of(family: str, seeds, protocol: Protocol = TINY) -> list[RunSpec]:
    return [RunSpec(ModelSpec("lhi", family, 6, n_layers=2), seed, protocol) for seed in seeds]


def stack_of(runs: list[RunSpec]) -> Stack:
    state = AdamState.join([fresh_state(run) for run in runs])
    return Stack(runs, state, choose_device("cuda"))


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


def test_the_captured_step_is_the_step(family) -> None:
    """Three epochs replayed and three stepped one by one: the same losses and weights."""
    runs = runs_of(family, range(3))
    captured, plain = stack_of(runs), stack_of(runs)
    for epoch in range(3):
        losses = captured.train_epoch([epoch] * 3)
        plain.first.fill_(epoch * TINY.epoch_examples)
        plain.loss_sum.zero_()
        for size in (64, 64, 64, 32):
            plain._step_once(size)
        expected = (plain.loss_sum / TINY.epoch_examples).tolist()
        assert losses == pytest.approx(expected, rel=1e-5)
    assert captured.state.steps.tolist() == plain.state.steps.tolist() == [[12]] * 3
    torch.testing.assert_close(captured.state.values, plain.state.values, rtol=1e-3, atol=1e-4)


def test_the_rate_reaches_the_captured_step() -> None:
    """The graph reads the rate where it lies: a rate of nearly nothing moves nearly nothing."""
    stack = stack_of(runs_of("gru", range(2)))
    stack.train_epoch([0, 0])
    before = stack.state.values.clone()
    stack.set_rates([1e-30, 1e-3])
    stack.train_epoch([1, 1])
    moved = (stack.state.values - before).abs().amax(1)
    assert moved[0] == 0
    assert moved[1] > 1e-4


def test_the_same_run_twice_gives_the_same_bits(family, tmp_path) -> None:
    runs, device = runs_of(family, range(3)), choose_device("cuda")
    for name in ("one", "two"):
        assert all(isinstance(done, Result) for done in train(runs, tmp_path / name, device))
    assert results_of(tmp_path / "one", runs) == results_of(tmp_path / "two", runs)


def test_alone_and_in_a_stack(family, tmp_path) -> None:
    runs, device = runs_of(family, range(5)), choose_device("cuda")
    train(runs, tmp_path / "five", device)
    train(runs[3:4], tmp_path / "alone", device)
    five, alone = (RunFolder(tmp_path / name, runs[3]).history() for name in ("five", "alone"))
    for ours, expected in zip(alone, five, strict=True):
        assert ours.train_loss == pytest.approx(expected.train_loss, **ALONE)
        assert ours.held_out_loss == pytest.approx(expected.held_out_loss, **ALONE)
        assert ours.learning_rate == expected.learning_rate


def test_the_cpu_and_the_gpu_agree(family, tmp_path) -> None:
    runs = runs_of(family, range(2))
    train(runs, tmp_path / "cpu", choose_device("cpu"))
    train(runs, tmp_path / "cuda", choose_device("cuda"))
    for run in runs:
        cpu, gpu = (RunFolder(tmp_path / name, run).history() for name in ("cpu", "cuda"))
        for ours, expected in zip(gpu, cpu, strict=True):
            assert ours.train_loss == pytest.approx(expected.train_loss, **ALONE)
            assert ours.held_out_loss == pytest.approx(expected.held_out_loss, **ALONE)


def test_stopped_and_resumed(family, tmp_path, monkeypatch) -> None:
    """In the same company, as it is at rest and resumed together, a stack ends with equal bits."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs, device = runs_of(family, range(3)), choose_device("cuda")
    train(runs, tmp_path / "unbroken", device)

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (0, 3):
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path / "broken", device, watch=watch)
    train(runs, tmp_path / "broken", device)
    assert results_of(tmp_path / "broken", runs) == results_of(tmp_path / "unbroken", runs)


def test_a_loss_that_is_not_finite_fails_its_run_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs, device = runs_of("softmax-full", range(2)), choose_device("cuda")

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and event.what.epoch == 3:
            raise StopNowError

    with pytest.raises(StopNowError):
        train(runs, tmp_path, device, watch=watch)
    checkpoint, _ = RunFolder(tmp_path, runs[1]).load()
    checkpoint.adam.values *= 1e30
    RunFolder(tmp_path, runs[1]).save(checkpoint)
    sound, failed = train(runs, tmp_path, device)
    assert isinstance(sound, Result)
    assert isinstance(failed, Failure)
    assert "the loss is not finite" in failed.error
