"""Training a user's layer: the engine's protocol, stacked or not, kept and not done twice."""

import math
import time
from pathlib import Path

import pytest
import torch

from ithbit.engine.device import choose_device
from ithbit.engine.optim import Layout
from ithbit.engine.spec import Protocol, RunSpec
from ithbit.engine.stack import Stack, fresh_state
from ithbit.models.spec import ModelSpec
from ithbit.probe.layer import Layer, layer_of, load_layer
from ithbit.probe.model import Cell, network, why_not_stacked
from ithbit.probe.train import Place, Work, train_cell, train_for
from ithbit.probe.turns import train_in_turns
from ithbit.tasks.sampling import draw_examples, stream_keys

CPU = torch.device("cpu")
SHORT = Protocol(epoch_examples=1024, held_out_examples=200, max_epochs=3)
CELL = Cell("lhi", 3, 2, 4)
FILE = Path(__file__).with_name("bad_layers.py")


class Mixer(torch.nn.Module):
    """A running mean through a small network, with a constant that is no parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = torch.nn.Linear(2 * width, width)
        self.gain = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return x + self.gain * torch.tanh(self.map(torch.cat([x, mean], -1)) + self.shift)


def accuracies(layer: Layer, stacked: bool, seeds: list[int], place: Place | None = None):
    runs = train_cell(layer, CELL, seeds, SHORT, place, "cpu", stacked)
    return [(run.seed, run.epochs, run.max_accuracy, run.verdict) for run in runs]


def test_a_seed_is_the_same_in_a_stack_and_alone() -> None:
    layer = layer_of(Mixer)
    assert why_not_stacked(layer, CELL, CPU) is None
    stacked = accuracies(layer, True, [0, 1, 2])
    assert stacked == accuracies(layer, False, [0, 1, 2])
    assert stacked[1:2] == accuracies(layer, True, [1])
    assert len({accuracy for _, _, accuracy, _ in stacked}) > 1  # seeds differ


def outcomes(runs):
    return sorted((run.seed, run.epochs, run.stopped_by, run.max_accuracy) for run in runs)


def test_a_run_is_the_same_in_turns_and_in_one_go() -> None:
    layer, whole = layer_of(Mixer), train_cell(layer_of(Mixer), CELL, [0, 1], SHORT, None, "cpu")
    work: Work | None = Work(CELL, (0, 1))
    turns, runs = 0, []
    while work is not None:
        ended, work = train_for(0.0, layer, work, SHORT, None, "cpu", True)
        turns, runs = turns + 1, runs + ended
    assert turns == 3
    assert outcomes(runs) == outcomes(whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_has_no_time_left_ends_and_is_not_kept(tmp_path: Path, workers: int) -> None:
    layer = load_layer(f"{FILE}:StateOfThree")
    place = Place.of(tmp_path, layer, SHORT)
    work = [Work(CELL, (0, 1)), Work(CELL, (2,))]
    runs = list(train_in_turns(layer, work, SHORT, place, "cpu", True, workers, time.monotonic()))
    assert [(seed, epochs, reason) for seed, epochs, reason, _ in outcomes(runs)] == [
        (seed, 1, "time") for seed in (0, 1, 2)
    ]
    assert not list(tmp_path.rglob("*.json"))
    without = train_in_turns(layer, work, SHORT, place, "cpu", True, workers, math.inf)
    assert outcomes(without) == outcomes(train_cell(layer, CELL, [0, 1, 2], SHORT, None, "cpu"))
    assert len(list(tmp_path.rglob("*_s?.json"))) == 3


def test_layers_that_refuse_to_be_stacked_are_told_and_trained_all_the_same() -> None:
    layer = load_layer("lstm")
    assert "Batching rule not implemented" in (why_not_stacked(layer, CELL, CPU) or "")
    assert [seed for seed, *_ in accuracies(layer, False, [0, 1])] == [0, 1]


def test_the_same_steps_as_the_engine() -> None:
    """`nn.GRU` through the probe and the GRU family take the same steps from the same weights."""
    cell, protocol = Cell("rhi", 4, 1, 6), Protocol(epoch_examples=512, held_out_examples=50)
    run = RunSpec(ModelSpec("rhi", "gru", 4, d_model=6), 0, protocol)
    stack = Stack([run], fresh_state(run), choose_device("cpu"))
    net, params = network(load_layer("gru"), cell, [0], CPU, stacked=False)
    theirs = stack.way.params
    named = {
        "embed": "embed",
        "polynomial": "positions.polynomial",
        "blocks.0.cell.weight_ih_l0": "blocks.0.ih.weight",
        "blocks.0.cell.weight_hh_l0": "blocks.0.hh.weight",
        "blocks.0.cell.bias_ih_l0": "blocks.0.ih.bias",
        "blocks.0.cell.bias_hh_l0": "blocks.0.hh.bias",
        "head.weight": "head.weight",
        "head.bias": "head.bias",
    }
    assert set(named) == set(params)
    ours = {name: theirs[named[name]].detach().reshape(params[name].shape) for name in params}
    examples = draw_examples(stream_keys([0]), 4, 0, 64)
    from ithbit.models.classifier import logits

    assert torch.allclose(
        net.logits(ours, examples), logits(theirs, run.model, stack.way.table, examples), atol=1e-5
    )
    from ithbit.engine.evaluate import held_out_examples
    from ithbit.engine.optim import AdamState, Plateau
    from ithbit.probe.train import _epoch, _Member

    layout = Layout({name: value.shape[1:] for name, value in ours.items()})
    state = AdamState.start(layout.pack({name: v[0] for name, v in ours.items()}), 1e-3)
    member = _Member(0, Plateau(), 1e-3)
    held_out = held_out_examples(run.model, protocol, [0], CPU)
    _epoch(net, layout, state, [member], stream_keys([0]), held_out, protocol)
    stack.train_epoch([0])
    moved = layout.views(state.values)
    for name, value in moved.items():
        expected = stack.way.params[named[name]].detach().reshape(value.shape)
        assert torch.allclose(value, expected, atol=1e-4), name


def test_finished_runs_are_kept_and_read(tmp_path: Path) -> None:
    layer = load_layer(f"{FILE}:StateOfThree")
    place = Place.of(tmp_path, layer, SHORT)
    assert place is not None
    first = accuracies(layer, True, [0, 1], place)
    record = place.folder / f"{CELL.name}_s0.json"
    assert record.exists()
    assert (place.folder / f"{CELL.name}_s0.safetensors").exists()
    written = record.stat().st_mtime_ns
    assert accuracies(layer, True, [0, 1, 2], place)[:2] == first
    assert record.stat().st_mtime_ns == written
    record.write_text("{")  # a damaged record is trained again
    assert accuracies(layer, True, [0], place) == first[:1]
    # Other code or another protocol is another place.
    assert Place.of(tmp_path, load_layer("rnn"), SHORT) != place
    assert Place.of(tmp_path, layer, Protocol()) != place


def test_a_solved_run_stops_and_has_all_inputs_tried() -> None:
    protocol = Protocol(
        epoch_examples=8192, held_out_examples=200, max_epochs=30, stop_when_solved=True
    )
    (run,) = train_cell(load_layer("lstm"), Cell("rhi", 2, 1, 8), [0], protocol, None, "cpu", False)
    assert (run.solved, run.stopped_by, run.verdict) == (True, "solved", "verified on all inputs")
    assert run.first_solved_epoch == run.epochs < 30


def test_a_loss_that_is_not_finite_ends_the_run_alone() -> None:
    class Explodes(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1e30))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * 1e10

    (run,) = train_cell(layer_of(Explodes), CELL, [0], SHORT, None, "cpu", True)
    assert (run.stopped_by, run.epochs, run.verdict) == ("not finite", 1, None)


def test_wrong_seeds_do_not_share_weights() -> None:
    _, params = network(load_layer("rnn"), CELL, [0, 1], CPU, False)
    assert not any(torch.equal(value[0], value[1]) for value in params.values())


@pytest.mark.parametrize("name", ["rnn", "transformer-encoder-layer-causal"])
def test_adapters_train(name: str) -> None:
    layer = load_layer(name)
    stacked = why_not_stacked(layer, CELL, CPU) is None
    assert accuracies(layer, stacked, [0])[0][1] == 3
