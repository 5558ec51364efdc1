"""Training with consistency: what is compared, when it counts, and one seed, one result."""

from dataclasses import replace

import pytest
import torch
from tests.support.one_stack import train

from ithbit.engine import loop
from ithbit.engine.consistency import ConsistentLoss
from ithbit.engine.device import choose_device
from ithbit.engine.optim import AdamState, clip_to_recent
from ithbit.engine.options import TrainingOptions
from ithbit.engine.stack import Stack, fresh_state
from ithbit.engine.steppers.choice import check_switches
from ithbit.engine.tightening import Tightening
from ithbit.engine.training_context import Event, StopRequest, TrainingContext
from ithbit.errors import DeviceError, SpecError
from ithbit.models.classifier import init, logits, stack
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch
from ithbit.tasks.sampling import Examples, draw_examples, paired, stream_keys, with_flips
from ithbit.tasks.tokens import token_table

CPU = choose_device("cpu")
# Three steps and a shorter one.
TINY = Protocol(
    batch_size=32, epoch_examples=112, held_out_examples=32, max_epochs=3, examples="blocks",
    consistency=1.0,
)  # fmt: skip
FAMILIES = [
    ("rhi", "softmax-full", 1), ("lhi", "softmax-causal", 2), ("rhi", "linear-full", 2),
    ("lhi", "linear-causal", 2), ("lhi", "gru", 1), ("rhi", "gru", 2), ("lhi", "mamba2", 2),
]  # fmt: skip


def runs_of(seeds, family=("lhi", "gru", 1), protocol: Protocol = TINY, n_bits=5) -> list[RunSpec]:
    task, name, n_layers = family
    return [RunSpec(ModelSpec(task, name, n_bits, n_layers), seed, protocol) for seed in seeds]


def epoch(number: int, loss: float, accuracy: float) -> Epoch:
    return Epoch(number, loss, loss, accuracy, 1e-3, 0.1)


@pytest.fixture
def tightens_at_once(monkeypatch) -> None:
    """Has runs tighten from their first epoch on, seed by seed at other places, flips included."""

    def after(history) -> Tightening:
        return Tightening(11 + len(history), 5)

    monkeypatch.setattr(loop.Tightening, "after", staticmethod(after))


def test_a_pair_shares_the_index_and_its_bit_alone() -> None:
    drawn = draw_examples(stream_keys([0, 1]), 40, 0, 2000, "blocks")
    pairs = paired(drawn)
    assert torch.equal(pairs.index[:, :1000], pairs.index[:, 1000:])
    assert torch.equal(pairs.answer[:, :1000], pairs.answer[:, 1000:])
    assert torch.equal(pairs.bits[:, :1000], drawn.bits[:, :1000])
    others = pairs.bits[:, 1000:] != drawn.bits[:, 1000:]
    assert others.sum(-1).max() == 1  # only the bit at the index may have changed
    # Of uniform pairs the other bits agree half the time.
    share = (pairs.bits[:, :1000:2] == pairs.bits[:, 1000::2]).double().mean()
    assert abs(share - (1 + 39 / 2) / 40) < 0.01


def test_flips_change_one_bit_each() -> None:
    drawn = draw_examples(stream_keys([3]), 6, 0, 2)
    places = torch.tensor([[4, 0, 2]])
    flipped = with_flips(drawn, places)
    bits = flipped.bits.unflatten(1, (2, 4))
    assert torch.equal(bits[:, :, 0], drawn.bits)
    changed = bits[:, :, 1:] != bits[:, :, :1]
    expected = torch.nn.functional.one_hot(places, 6).bool().unsqueeze(1).expand_as(changed)
    assert torch.equal(changed, expected)
    assert torch.equal(flipped.index.unflatten(1, (2, 4)), drawn.index[..., None].expand(-1, -1, 4))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_term_is_the_mean_over_what_inputs_have_in_common(family) -> None:
    """Against loops over pairs, tokens and flips, in double precision."""
    task, name, n_layers = family
    spec = ModelSpec(task, name, 5, n_layers)
    params = {k: v.double() for k, v in stack([init(spec, 0)]).items()}
    table = token_table(task, 5, torch.float64)
    loss = ConsistentLoss(spec, table, 1.0, torch.ones(1, 2, dtype=torch.float64))
    examples = paired(draw_examples(stream_keys([0]), 5, 0, 12, "blocks"))
    each, _ = loss._compared(params, examples)
    start = 1 if task == "lhi" else 0
    found = loss._pair_distances(each, examples)
    for layer, distances in enumerate(found):
        seen = []
        for k in range(6):
            one, other = each[layer][0, k], each[layer][0, 6 + k]
            for t in range(len(one)):
                bit = t - start
                differs = 0 <= bit < 5 and examples.bits[0, k, bit] != examples.bits[0, 6 + k, bit]
                if not (differs and layer < n_layers - 1):
                    seen.append((one[t] - other[t]).square().sum())
        assert torch.stack(seen).mean().item() == pytest.approx(distances.sum().item())
    assert each[-1].shape[2] == (7 if (task, name) == ("lhi", "gru") else 1)

    found = loss._radii(params, examples, torch.zeros(1, 1, dtype=torch.int64))
    bases = 12 // 6
    for layer, squares in enumerate(found):
        total, count = 0.0, 0
        for b in range(bases):
            base = Examples(examples.bits[:, b : b + 1], examples.index[:, b : b + 1])
            here = loss._compared(params, base)[0][layer][0, 0]
            radius = torch.zeros_like(here)
            for j in range(5):
                if j == base.index.item() - 1:
                    continue
                bits = base.bits.clone()
                bits[..., j] ^= 1
                flipped = Examples(bits, base.index)
                moved = (loss._compared(params, flipped)[0][layer][0, 0] - here).abs()
                if layer < n_layers - 1:
                    moved[j + start] = 0
                radius += moved
            total, count = total + radius.square().sum().item(), count + len(here)
        assert squares.sum().item() == pytest.approx(total / count, rel=1e-6)


def test_what_no_bit_but_the_asked_one_moves_is_consistent() -> None:
    """An LHI softmax model whose first layer attends to nothing has no first distance."""
    spec = ModelSpec("lhi", "softmax-full", 5, 2)
    params = stack([init(spec, 0)])
    params["blocks.0.out.weight"] *= 0
    loss = ConsistentLoss(spec, token_table("lhi", 5), 1.0, torch.ones(1, 2))
    examples = paired(draw_examples(stream_keys([0]), 5, 0, 12))
    each, out = loss._compared(params, examples)
    first, mixed, last = (float(d.sum()) for d in loss._pair_distances(each, examples))
    assert first == 0
    assert mixed > 0 < last
    assert torch.equal(out, logits(params, spec, loss.table, examples))


@pytest.mark.parametrize("weight", [1e-3, 1e4])
def test_the_gradient_is_that_of_the_levelled_term(weight) -> None:
    spec, weights = ModelSpec("lhi", "linear-full", 4, 2), torch.full((1, 2), weight)
    table = token_table("lhi", 4, torch.float64)
    params = {k: v.double().requires_grad_() for k, v in stack([init(spec, 1)]).items()}
    loss = ConsistentLoss(spec, table, 2.0, weights.double())
    examples = draw_examples(stream_keys([0]), 4, 0, 10, "blocks")
    first = torch.zeros(1, 1, dtype=torch.int64)
    _, found = loss.gradients(params, params, examples, first, flips=True)

    each, out = loss._compared(params, paired(examples))
    answers = paired(examples).answer.double()
    total = torch.nn.functional.binary_cross_entropy_with_logits(out, answers)
    distances = loss._pair_distances(each, paired(examples))
    for d in distances + loss._radii(params, paired(examples), first):
        total = total + 2 / 50 * torch.log1p(weight * d.sum() * 50 / 2)
    grads = torch.autograd.grad(total, list(params.values()))
    expected = torch.cat([grad.flatten() for grad in grads])
    assert torch.allclose(found[0], expected, rtol=1e-6, atol=1e-10)


@pytest.mark.usefixtures("tightens_at_once")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_seed_depends_on_itself_alone(family, tmp_path, kept, monkeypatch) -> None:
    """Alone, in a stack, stopped and resumed: the same bits, through pairs and flips."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    runs = runs_of(range(3), family)
    train(runs, tmp_path / "stack", CPU)
    train(runs[1:2], tmp_path / "alone", CPU)
    assert kept(tmp_path / "alone", runs[1]) == kept(tmp_path / "stack", runs[1])

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch) and (event.run.seed, event.what.epoch) == (0, 2):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(runs, tmp_path / "broken", CPU, watch)
    train(runs, tmp_path / "broken", CPU)
    for run in runs:
        assert kept(tmp_path / "broken", run) == kept(tmp_path / "stack", run)


def test_flips_of_one_run_leave_its_neighbours_alone() -> None:
    """Beside a run that takes flips, a run that takes none ends in the bits that it has alone."""
    runs = runs_of(range(2), ("lhi", "softmax-full", 2))
    both = Stack(runs, AdamState.join(list(map(fresh_state, runs))), CPU)
    both.set_consistency([(1.0, 0.0), (1000.0, 1000.0)])
    both.train_epoch([0, 0])
    alone = Stack(runs[:1], fresh_state(runs[0]), CPU)
    alone.set_consistency([(1.0, 0.0)])
    alone.train_epoch([0])
    assert torch.equal(both.state.values[:1], alone.state.values)
    assert torch.equal(both.state.mean[:1], alone.state.mean)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_until_it_is_solved_a_run_is_that_without_consistency(family, tmp_path) -> None:
    """To the last bit, alone and beside one that tightens with pairs and flips."""
    runs = runs_of(range(2), family)
    without = runs_of(range(2), family, replace(TINY, consistency=0.0))
    train(without, tmp_path, CPU)
    train(runs, tmp_path, CPU)
    for run, other in zip(runs, without, strict=True):
        ours, theirs = (RunFolder(tmp_path, each).history() for each in (run, other))
        assert [epoch.train_loss for epoch in ours] == [epoch.train_loss for epoch in theirs]
        assert [epoch.learning_rate for epoch in ours] == [epoch.learning_rate for epoch in theirs]
    states = list(map(fresh_state, runs))
    for state in states:  # recent gradients so small that all that follow would be clipped
        state.steps += 100
        state.square += 1e-12
    beside = Stack(runs, AdamState.join(states), CPU)
    beside.set_consistency([(0.0, 0.0), (1000.0, 1000.0)])
    alone = Stack(without[:1], states[0], CPU)
    assert beside.train_epoch([0, 0])[0] == alone.train_epoch([0])[0]
    assert torch.equal(beside.state.values[:1], alone.state.values)
    assert torch.equal(beside.state.square[:1], alone.state.square)


def test_gradients_are_clipped_to_recent_ones() -> None:
    state = fresh_state(runs_of([0])[0])
    state.steps += 1000
    state.square[:] = (1 - 0.999**1000) / state.square.shape[1]  # a recent norm of 1
    grads = torch.ones_like(state.values)
    large, small = (clip_to_recent(grads * size, state, TINY, 4.0) for size in (1.0, 1e-3))
    assert large.norm().item() == pytest.approx(4.0, rel=1e-4)
    assert torch.equal(small, grads * 1e-3)


def test_a_run_solves_then_tightens_then_ends() -> None:
    protocol = replace(TINY, consistency=2.0)
    history = [epoch(1, 0.7, 0.5)]
    before = Tightening.after(history)
    assert before.weights(protocol) == (0.0, 0.0)
    assert before.rate(protocol, 5e-4) == 5e-4
    history.append(epoch(2, 0.01, 1.0))
    weights, rates = [], []
    while not (now := Tightening.after(history)).finished:
        weights.append(now.weights(protocol))
        rates.append(now.rate(protocol, 5e-4))
        history.append(epoch(len(history) + 1, 0.001, 1.0))
    pairs, flips = zip(*weights, strict=True)
    assert (list(pairs), list(rates)) == (sorted(pairs), sorted(rates, reverse=True))
    assert (pairs[0], pairs[-1], rates[0]) == (2, pytest.approx(2000), TINY.learning_rate / 2)
    assert (flips[0], flips[-1]) == (0, pairs[-1])


def test_the_weight_grows_while_the_loss_is_low() -> None:
    """Where it was too high, it falls back by half, and with single flips stays below that."""
    history = [
        epoch(1, 0.03, 1.0),
        epoch(2, 0.03, 1.0),
        *(epoch(k, 1e-3, 1.0) for k in range(3, 9)),
    ]
    grown = [Tightening.after(history[:k]).grown for k in range(1, 9)]
    assert grown == [0, 0, 1, 2, 3, 4, 5, 6]
    high = [*history, epoch(9, 0.05, 1.0)]
    assert Tightening.after(high).grown == 3
    assert Tightening.after(high).weights(TINY) == Tightening.after(history[:5]).weights(TINY)
    later = [*high, *(epoch(k, 1e-3, 1.0) for k in range(10, 20))]
    assert Tightening.after(later).grown == 11
    high = [*later, epoch(20, 0.05, 1.0)]
    assert Tightening.after(high).grown == 5
    later = [*high, *(epoch(k, 1e-3, 1.0) for k in range(21, 40))]
    assert Tightening.after(later).grown == 10


def test_no_run_ends_in_an_epoch_that_is_not_perfect() -> None:
    history = [epoch(1, 1e-3, 1.0)]
    while Tightening.after(history).epochs_left != 1:
        history.append(epoch(len(history) + 1, 1e-3, 1.0))
    assert not Tightening.after(history).finished
    at = len(history) + 1
    imperfect = epoch(at, 1e-3, 0.999)
    assert not Tightening.after([*history, imperfect]).finished
    assert Tightening.after([*history, imperfect, epoch(at + 1, 1e-3, 1.0)]).finished
    assert Tightening.after([*history, epoch(at, 1e-3, 1.0)]).finished


def test_a_run_that_loses_its_solution_tightens_again_more_slowly() -> None:
    history = [epoch(1, 0.01, 1.0), epoch(2, 0.01, 1.0), epoch(3, 0.6, 0.6)]
    lost = Tightening.after(history)
    assert (lost.done, lost.setbacks) == (None, 1)
    assert lost.weights(TINY) == Tightening().weights(TINY)
    assert lost.rate(TINY, TINY.learning_rate) == TINY.learning_rate / 2
    again = Tightening.after([*history, epoch(4, 0.01, 1.0)])
    first = Tightening(0)
    assert again.rate(TINY, 1.0) == first.rate(TINY, 1.0) / 2


def test_a_run_ends_when_it_is_consistent_and_a_longer_one_is_the_same(tmp_path, kept) -> None:
    """Whatever the held-out loss; the number of epochs allowed does not matter then."""
    easy = replace(
        TINY, batch_size=32, epoch_examples=320, max_epochs=80, learning_rate=1e-2, stop_loss=0.5
    )
    (run,) = runs_of([0], ("lhi", "gru", 1), easy, n_bits=1)
    (done,) = train([run], tmp_path / "one", CPU)
    assert done.stopped_by == "consistency"
    assert done.epochs >= done.first_solved_epoch + 24
    short = replace(run, protocol=replace(easy, max_epochs=done.epochs - 5))
    longer = replace(run, protocol=replace(easy, max_epochs=100))
    assert [r.stopped_by for r in train([short], tmp_path / "two", CPU)] == ["epochs"]
    train([longer], tmp_path / "two", CPU)
    train([longer], tmp_path / "three", CPU)
    assert kept(tmp_path / "two", longer) == kept(tmp_path / "three", longer)
    assert RunFolder(tmp_path / "two", longer).result().stopped_by == "consistency"


@pytest.mark.usefixtures("tightens_at_once")
def test_a_batch_too_small_for_a_pair_is_trained_on_without(tmp_path) -> None:
    protocol = replace(TINY, batch_size=2, epoch_examples=5, max_epochs=1)
    (done,) = train(runs_of([0], protocol=protocol), tmp_path, CPU)
    assert done.epochs == 1


def test_of_long_strings_a_window_is_flipped() -> None:
    """As many bits as there is room for, another window at each step, scaled to all bits."""
    spec = ModelSpec("lhi", "gru", 40)
    loss = ConsistentLoss(spec, token_table("lhi", 40), 1.0, torch.ones(1, 2))
    params = stack([init(spec, 0)])
    examples = draw_examples(stream_keys([0]), 40, 0, 8)
    at = [loss._radii(params, examples, torch.tensor([[k]]))[0] for k in (0, 8, 40)]
    assert not torch.equal(at[0], at[1])
    assert torch.equal(at[0], at[2])
    flipped = with_flips(
        Examples(examples.bits[:, :1], examples.index[:, :1]), torch.arange(7)[None]
    )
    states = loss._compared(params, flipped)[0][0]
    moved = (states[:, 1:] - states[:, :1]).abs()
    moved[:, examples.index[:, 0] - 1 == torch.arange(7)] = 0
    radius = moved.sum(1) * 40 / 7
    assert at[0].sum().item() == pytest.approx(radius.square().sum(-1).mean().item(), rel=1e-4)


@pytest.mark.usefixtures("tightens_at_once")
def test_a_users_layer_trains_with_it_by_its_outputs(tmp_path) -> None:
    from ithbit.models.layer_source import family_of

    name, code = family_of("torch:rnn")
    spec = ModelSpec("lhi", name, 4, code=code)
    (done,) = train([RunSpec(spec, 0, TINY)], tmp_path, CPU)
    assert done.environment["path"] == "module"
    (without,) = train([RunSpec(spec, 0, replace(TINY, consistency=0.0))], tmp_path, CPU)
    assert without.final_loss != done.final_loss


def test_fast_paths_refuse_it_in_a_sentence(tmp_path) -> None:
    (run,) = runs_of([0])
    for switch, sentence in (("compile", "does not follow consistency"), ("kernels", "kernels")):
        context = TrainingContext.of(
            TrainingOptions("cpu", **{switch: "on"}), tmp_path, lambda event: None, StopRequest()
        )
        with pytest.raises(DeviceError, match=sentence):
            check_switches([run], context)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"consistency": -1}, "consistency must be 0 or more and finite, got -1"),
        ({"consistency": float("inf")}, "consistency must be 0 or more and finite, got inf"),
        ({"consistency": "much"}, "consistency must be a number"),
        ({"consistency": 1, "batch_size": 1}, "batches of at least 2 examples"),
        ({"consistency": 1, "stop_when_solved": True}, "leave one of them out"),
    ],
)
def test_wrong_values_are_explained(given, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        Protocol(**given)


def test_ids_without_it_do_not_change() -> None:
    (run,) = runs_of([0], protocol=Protocol())
    assert "consistency" not in str(run.to_json())
    assert run.run_id == RunSpec(run.model, 0, Protocol(consistency=0)).run_id
    one, other = (RunSpec(run.model, 0, Protocol(consistency=value)) for value in (1, 1.0))
    assert one.run_id == other.run_id != run.run_id
