from dataclasses import astuple, replace

import pytest
import torch
import torch.nn.functional as F
from tests.support.whole_runs import Epoch, train

from ithbit.models import classifier
from ithbit.reference import weights
from ithbit.reference.train import stepper
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

# Two epochs of four steps, the last one short; clipped at most of them.
SHORT = Protocol(
    batch_size=32, epoch_examples=106, held_out_examples=50, max_epochs=2, clip_norm=0.2
)


def without_seconds(history: list[Epoch]) -> list[tuple[float, ...]]:
    return [astuple(epoch)[:4] for epoch in history]


def test_a_stacked_model_under_plain_torch_trains_alike(family, library) -> None:
    """The same weights, data, clipping and optimiser give the same losses and final weights."""
    spec = ModelSpec("lhi", family, n_bits=5, n_layers=2)
    start = classifier.init(spec, seed=3)
    trained = train(RunSpec(spec, seed=3, protocol=SHORT), params=start)

    leaves = {name: value[None].clone().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.AdamW(leaves.values(), lr=1e-3, weight_decay=0.0)
    table = token_table("lhi", 5)

    def loss_on(seed: int, first: int, count: int) -> torch.Tensor:
        examples = draw_examples(stream_keys([seed]), 5, first, count)
        logits = classifier.logits(leaves, spec, table, examples)
        return F.binary_cross_entropy_with_logits(logits, examples.answer.float())

    for epoch, record in enumerate(trained.history):
        total = 0.0
        for first, count in ((0, 32), (32, 32), (64, 32), (96, 10)):
            loss = loss_on(3, 106 * epoch + first, count)
            total += loss.item() * count
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(leaves.values(), 0.2)
            optimiser.step()
        assert record.train_loss == pytest.approx(total / 106, rel=1e-5)
        assert record.held_out_loss == pytest.approx(loss_on(10_003, 0, 50).item(), rel=1e-5)
    for name, value in weights.export(trained.module, spec).items():
        # Adam's first steps have the size of the rate whatever the gradient's, so that a gradient
        # of rounding size may step either way: eight steps of 1e-3 bound what that can do.
        moved_by = (value - start[name]).abs().max().item()
        assert moved_by > 0 or name == "leave.unused_word"
        off = (value - leaves[name].detach()[0]).abs()
        assert off.quantile(0.9).item() <= 1e-5, name
        assert off.max().item() <= 16e-3, name


def test_a_run_repeats_itself_and_leaves_the_global_generator_alone(library) -> None:
    run = RunSpec(ModelSpec("rhi", "softmax-causal", n_bits=4), seed=1, protocol=SHORT)
    state = torch.get_rng_state()
    first, again = train(run), train(run)
    assert torch.equal(state, torch.get_rng_state())
    assert without_seconds(first.history) == without_seconds(again.history)
    other = train(replace(run, seed=2))
    assert without_seconds(first.history) != without_seconds(other.history)


def test_the_rate_falls_when_the_training_loss_stands_still() -> None:
    protocol = replace(
        SHORT,
        max_epochs=5,
        plateau_patience=0,
        plateau_threshold=0.999999,  # nothing counts as better
        min_learning_rate=2e-4,
    )
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=4), seed=0, protocol=protocol)
    rates = [epoch.learning_rate for epoch in train(run).history]
    assert rates == [1e-3, 1e-3, 5e-4, 2.5e-4, 2e-4]


def test_a_run_ends_at_the_stop_loss_or_when_solved_if_asked() -> None:
    spec = ModelSpec("rhi", "gru", n_bits=1)
    protocol = replace(SHORT, epoch_examples=3200, max_epochs=4, learning_rate=1e-2, clip_norm=5)
    assert len(train(RunSpec(spec, 0, replace(protocol, stop_loss=10.0))).history) == 1
    whole = train(RunSpec(spec, 0, protocol)).history
    assert len(whole) == 4
    assert [epoch.accuracy for epoch in whole[-3:]] == [1.0, 1.0, 1.0]
    assert whole[-1].held_out_loss < whole[0].held_out_loss
    solved = train(RunSpec(spec, 0, replace(protocol, stop_when_solved=True))).history
    first_solved = next(k for k, epoch in enumerate(whole) if epoch.accuracy == 1.0)
    assert without_seconds(solved) == without_seconds(whole[: first_solved + 1])


def test_steps_one_by_one_are_the_steps_of_an_epoch() -> None:
    spec = ModelSpec("lhi", "gru", n_bits=2)
    protocol = replace(SHORT, epoch_examples=3 * SHORT.batch_size, max_epochs=1)
    step = stepper(spec, protocol)
    (epoch,) = train(RunSpec(spec, 0, protocol)).history
    assert sum(step().item() for _ in range(3)) / 3 == pytest.approx(epoch.train_loss, rel=1e-6)
