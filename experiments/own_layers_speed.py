"""How fast users' layers train: a plain PyTorch loop, one run at a time, versus our engine.

    python experiments/own_layers_speed.py [--n 64] [--seeds 5] [--device cuda] [--json FILE]

Four layers: a recurrence written as a Python loop, `nn.LSTM`, `nn.TransformerEncoderLayer` and a
causal convolution, one layer of width 16 each, under the paper's protocol. The plain loop is what a
user would write: a module, `torch.optim.AdamW`, `clip_grad_norm_`, steps launched one by one; one
whole epoch with its evaluation is timed, after a few warm-up steps. Ours are ordinary runs of a
store, once with one seed and once with all: the time after the first epoch, which captures the
steps, divided by the number of epochs of all runs that ended in that time. Both sides use the same
data and the same batches, in fp32 without TF32. Under three minutes on one GPU.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.engine.device import Device, choose_device
from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import Event
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol, cell
from ithbit.store.records import Epoch, Failure, Result
from ithbit.sweeps.runner import run_all
from ithbit.tasks.indexing import N_FEATURES, n_tokens
from ithbit.tasks.sampling import HELD_OUT_SEED, Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

WIDTH = 16
BARS = {"LoopRecurrence": 15, "Lstm": 5, "Encoder": 5, "CausalConv": 5}
_WARM_UP = 10  # steps


class LoopRecurrence(nn.Module):
    """A gated recurrence written as a Python loop over tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.keep = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), []
        for drive in self.enter(x).unbind(1):
            gate, new = (drive + self.keep(h)).chunk(2, -1)
            gate = torch.sigmoid(gate)
            h = gate * h + (1 - gate) * torch.tanh(new)
            out.append(h)
        return x + torch.stack(out, 1)


class Lstm(nn.Module):
    """`nn.LSTM`, its outputs alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cell(x)[0]
        return out


class Encoder(nn.Module):
    """`nn.TransformerEncoderLayer` as it is, without dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class CausalConv(nn.Module):
    """A causal convolution over the last eight tokens, channel mixing included."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.leave = nn.Conv1d(width, width, 8), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        past = F.pad(x.mT, (7, 0))
        return x + self.leave(torch.relu(self.conv(past)).mT)


LAYERS = (LoopRecurrence, Lstm, Encoder, CausalConv)


class Plain(nn.Module):
    """Embedding, positions, the layer and a head, as a user would write them."""

    def __init__(self, layer: type[nn.Module], n_bits: int) -> None:
        super().__init__()
        self.embed = nn.Linear(N_FEATURES, WIDTH, bias=False)
        self.place = nn.Linear(2, WIDTH, bias=False)
        self.layer, self.head = layer(WIDTH), nn.Linear(WIDTH, 1)
        at = torch.linspace(0, 1, n_tokens("rhi", n_bits))
        self.register_buffer("at", torch.stack([at, at**2], -1))

    def forward(self, features: Tensor) -> Tensor:
        x = self.embed(features) + self.place(self.at)
        out: Tensor = self.head(self.layer(x)[:, -1])[:, 0]
        return out


def eager_seconds(layer: type[nn.Module], n_bits: int, protocol: Protocol, device: Device) -> float:
    """Seconds per epoch of one run in a plain training loop."""
    where = device.torch
    model = Plain(layer, n_bits).to(where)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=protocol.learning_rate, weight_decay=protocol.weight_decay
    )
    table = token_table("rhi", n_bits, device=where)
    keys, held_out_keys = (stream_keys([seed], where) for seed in (0, HELD_OUT_SEED))

    def logits(examples: Examples) -> Tensor:
        bits, query = examples.bits[0].long(), 2 * n_bits + examples.index[0, :, None] - 1
        bit_rows = torch.arange(n_bits, device=where) + n_bits * bits
        out: Tensor = model(table.features[torch.cat([bit_rows, query], -1)])
        return out

    def step(first: int, count: int) -> Tensor:
        examples = draw_examples(keys, n_bits, first, count)
        loss = F.binary_cross_entropy_with_logits(logits(examples), examples.answer[0].float())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), protocol.clip_norm)
        optimiser.step()
        return loss.detach() * count

    for k in range(_WARM_UP):
        step(k * protocol.batch_size, protocol.batch_size)
    device.synchronize()
    started = time.perf_counter()
    total = torch.zeros((), device=where)
    for first in range(0, protocol.epoch_examples, protocol.batch_size):
        total += step(first, min(protocol.batch_size, protocol.epoch_examples - first))
    with torch.no_grad():
        held_out = draw_examples(held_out_keys, n_bits, 0, protocol.held_out_examples)
        right = (logits(held_out) >= 0) == (held_out.answer[0] == 1)
        accuracy = right.double().mean().item()
    assert torch.isfinite(total).item()
    assert 0 <= accuracy <= 1
    device.synchronize()
    return time.perf_counter() - started


def our_seconds(
    layer: type[nn.Module], n_bits: int, protocol: Protocol, device: str, n_seeds: int
) -> tuple[float, list[str]]:
    """Seconds per run and epoch with the engine, and its remarks."""
    family, code = family_of(f"{Path(__file__).resolve()}:{layer.__name__}")
    runs = cell(
        ModelSpec("rhi", family, n_bits, d_model=WIDTH, code=code), protocol, range(n_seeds)
    )
    ends: list[tuple[int, float]] = []  # epoch, when
    said: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event.what, Epoch):
            ends.append((event.what.epoch, time.perf_counter()))
        elif not isinstance(event.what, Result | Failure):
            said.append(event.what)

    with tempfile.TemporaryDirectory() as store:
        for done in run_all(runs, Path(store), TrainingOptions(device, workers=1), watch):
            assert isinstance(done, Result), done
            assert done.stepper == "module"
    begun = max(when for epoch, when in ends if epoch == 1)
    later = [when for _, when in ends if when > begun]
    return (max(later) - begun) / len(later), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=6, help="of ours; the first is not counted")
    parser.add_argument("--epoch-examples", type=int, default=Protocol().epoch_examples)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = choose_device(given.device)
    protocol = Protocol(max_epochs=given.epochs, epoch_examples=given.epoch_examples, stop_loss=0.0)
    print(f"{device.reason}; torch {torch.__version__}; n = {given.n}, {given.seeds} seeds")
    print("seconds per run and epoch, and how many times as fast as the plain loop")
    head = f"{'layer':<16}{'plain loop':>12}{'ours, 1 run':>13}{f'ours, {given.seeds} runs':>14}"
    print(f"{head}{'ratio':>9}{'bar':>6}")
    rows = []
    for layer in LAYERS:
        eager = eager_seconds(layer, given.n, protocol, device)
        alone, _ = our_seconds(layer, given.n, protocol, given.device, 1)
        ours, said = our_seconds(layer, given.n, protocol, given.device, given.seeds)
        bar = BARS[layer.__name__]
        line = f"{layer.__name__:<16}{eager:>12.4f}{alone:>13.4f}{ours:>14.4f}{eager / ours:>9.1f}"
        print(f"{line}{bar:>6}", flush=True)
        for remark in said:
            print(f"  {remark}")
        row = {"layer": layer.__name__, "plain": eager, "alone": alone, "ours": ours}
        rows.append(row | {"ratio": eager / ours, "bar": bar, "said": said})
    if given.json:
        record = {"device": device.reason, "torch": torch.__version__, "n": given.n, "rows": rows}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    if device.is_cuda and any(row["ratio"] < row["bar"] for row in rows):
        sys.exit("a layer is below its bar")


if __name__ == "__main__":
    main()
