"""Training a user's layer under the protocol of the six families, and keeping what came of it.

The optimiser, schedule, data and success criterion are the engine's. A finished run is two files in
`<store>/probe/<layer>-<digest>/`: `<run>.safetensors` and `<run>.json`, the latter last, and is
never trained again as long as the layer's code is the same; `report.json` is the latest report.
They are no run folders, so the paper's tables do not see them.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import bce
from ithbit.engine.folder import read_json, write_atomically
from ithbit.engine.optim import AdamState, Layout, Plateau, adamw_step, clip_rows
from ithbit.engine.spec import Protocol
from ithbit.errors import StoreError
from ithbit.models.stacked import Params
from ithbit.probe.layer import Layer, load_layer
from ithbit.probe.model import Cell, Network, network
from ithbit.probe.verify import examine
from ithbit.tasks.sampling import HELD_OUT_SEED, Examples, draw_examples, stream_keys

SCHEMA = 1
_EXHAUSTIVE = 1 << 14  # inputs that are all tried after training without being asked: n up to 10
_BATCHES_DRAWN = 16  # at a time: drawing one by one costs a small model a tenth of its step


@dataclass(frozen=True)
class ProbeRun:
    """A run that ended. `verdict` is that of trying all inputs of a solved run, if they are few."""

    layer: str
    cell: Cell
    seed: int
    epochs: int
    stopped_by: str  # solved, loss, epochs, time or not finite
    max_accuracy: float
    first_solved_epoch: int | None
    n_parameters: int
    seconds: float
    verdict: str | None

    @property
    def solved(self) -> bool:
        return self.max_accuracy == 1.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"solved": self.solved}


@dataclass(frozen=True)
class Place:
    """Where the runs of one layer are kept; a name and a digest of its code and the protocol."""

    folder: Path

    @classmethod
    def of(cls, store: Path, layer: Layer, protocol: Protocol) -> "Place | None":
        """None for a layer whose code cannot be read: its runs could not be told apart."""
        if layer.digest is None:
            return None
        settings = json.dumps(asdict(protocol), sort_keys=True)
        digest = hashlib.sha256((layer.digest + settings).encode()).hexdigest()[:12]
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in layer.name)
        return cls(store / "probe" / f"{name}-{digest}")

    def find(self, cell: Cell, seed: int) -> ProbeRun | None:
        """The finished run, None if there is none that can be read."""
        data = read_json(self.folder / f"{cell.name}_s{seed}.json")
        if data is None or data.get("schema") != SCHEMA:
            return None
        try:
            fields = {name: data[name] for name in ProbeRun.__dataclass_fields__}
            return ProbeRun(**fields | {"cell": Cell(**data["cell"])})
        except (KeyError, TypeError):
            return None

    def keep_report(self, data: dict[str, Any]) -> None:
        """Write the whole report beside the runs, for the page."""
        self._write("report.json", (json.dumps(data, indent=1) + "\n").encode())

    def keep(self, run: ProbeRun, weights: Params) -> None:
        """Write the weights, then the record."""
        name = f"{run.cell.name}_s{run.seed}"
        text = json.dumps({"schema": SCHEMA} | run.to_json(), indent=1, allow_nan=False)
        self._write(f"{name}.safetensors", save(weights))
        self._write(f"{name}.json", (text + "\n").encode())

    def _write(self, name: str, data: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, data)
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror or error}") from error


@dataclass
class _Member:
    """A run on its way."""

    seed: int
    plateau: Plateau
    rate: float
    epochs: int = 0
    best: float = 0.0
    first_solved: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """Runs of one cell that are trained together, and how far they have come."""

    cell: Cell
    seeds: tuple[int, ...]
    members: tuple[_Member, ...] = ()  # none before the first epoch
    state: dict[str, Any] | None = None  # their `AdamState`, as arrays

    def ended(self, layer: Layer) -> list[ProbeRun]:
        """What can be said of the runs if they are left where they are."""
        assert self.state is not None
        size = self.state["values"].shape[1]
        return [_run(layer, self.cell, member, "time", size, None) for member in self.members]


def train_cell(
    layer: Layer,
    cell: Cell,
    seeds: list[int],
    protocol: Protocol,
    place: Place | None,
    device_name: str = "auto",
    stacked: bool = True,
) -> list[ProbeRun]:
    """Train what is not kept already; the runs in the order of the seeds."""
    groups = [seeds] if stacked else [[seed] for seed in seeds]
    done: dict[int, ProbeRun] = {}
    for group in groups:
        runs, _ = train_for(
            math.inf, layer, Work(cell, tuple(group)), protocol, place, device_name, stacked
        )
        done |= {run.seed: run for run in runs}
    return [done[seed] for seed in seeds]


def train_for(
    seconds: float,
    layer: Layer,
    work: Work,
    protocol: Protocol,
    place: Place | None,
    device_name: str,
    stacked: bool,
) -> tuple[list[ProbeRun], Work | None]:
    """Train so long, one epoch at least: the runs that ended, and the work that is left, if any.

    Runs that are kept already are read. A run gives the same result in one go and in several.
    """
    until = time.monotonic() + seconds
    device = choose_device(device_name).torch
    if work.state is not None:
        state = AdamState(*map(torch.from_numpy, work.state.values())).to(device)
        return _train(layer, work, list(work.members), state, protocol, place, stacked, until)
    done = {seed: run for seed in work.seeds if place and (run := place.find(work.cell, seed))}
    todo = [seed for seed in work.seeds if seed not in done]
    members = [_Member(seed, Plateau(), protocol.learning_rate) for seed in todo]
    if not todo:
        return list(done.values()), None
    _, params = network(layer, work.cell, todo, device, stacked)
    layout = _layout(params)
    rows = [
        layout.pack({name: value[k] for name, value in params.items()}) for k in range(len(todo))
    ]
    states = [AdamState.start(row.cpu(), protocol.learning_rate) for row in rows]
    state = AdamState.join(states).to(device)
    runs, left = _train(layer, work, members, state, protocol, place, stacked, until)
    return [*done.values(), *runs], left


def train_source(
    seconds: float,
    source: str,
    work: Work,
    protocol: Protocol,
    place: Place | None,
    device_name: str,
    stacked: bool,
) -> tuple[list[ProbeRun], Work | None]:
    """`train_for` in a process of its own, for a layer that can be loaded again."""
    torch.set_num_threads(1)
    return train_for(seconds, load_layer(source), work, protocol, place, device_name, stacked)


def _layout(params: Params) -> Layout:
    return Layout({name: value.shape[1:] for name, value in params.items()})


def _train(
    layer: Layer,
    work: Work,
    members: list[_Member],
    state: AdamState,
    protocol: Protocol,
    place: Place | None,
    stacked: bool,
    until: float,
) -> tuple[list[ProbeRun], Work | None]:
    cell, device = work.cell, state.values.device
    net, params = network(layer, cell, [member.seed for member in members], device, stacked)
    layout = _layout(params)
    finished: list[ProbeRun] = []
    while members:
        keys = stream_keys([member.seed for member in members], device)
        held_out = draw_examples(
            stream_keys([member.seed + HELD_OUT_SEED for member in members], device),
            cell.n_bits,
            0,
            protocol.held_out_examples,
        )
        leaving: dict[int, str] = {}
        while not leaving:
            leaving = _epoch(net, layout, state, members, keys, held_out, protocol)
            if time.monotonic() >= until:
                break
        for k, reason in leaving.items():
            row = {name: value[0] for name, value in layout.views(state.values[[k]]).items()}
            finished.append(
                _finish(layer, net.of([k]), row, members[k], reason, layout.size, place, device)
            )
        stay = [k for k in range(len(members)) if k not in leaving]
        members = [members[k] for k in stay]
        if stay:
            net, state = net.of(stay), state.rows(stay)
        if members and time.monotonic() >= until:
            arrays = {name: value.cpu().numpy() for name, value in vars(state).items()}
            return finished, Work(cell, work.seeds, tuple(members), arrays)
    return finished, None


def _epoch(
    net: Network,
    layout: Layout,
    state: AdamState,
    members: list[_Member],
    keys: Tensor,
    held_out: Examples,
    protocol: Protocol,
) -> dict[int, str]:
    """Train and evaluate every member once; who stops, and why."""
    started = time.perf_counter()
    params = {
        name: value.detach().requires_grad_() for name, value in layout.views(state.values).items()
    }
    first, last = members[0].epochs * protocol.epoch_examples, protocol.epoch_examples
    total = torch.zeros(len(members), dtype=torch.float64, device=keys.device)
    for examples in _batches(keys, net.cell.n_bits, first, protocol):
        count = examples.index.shape[1]
        loss = bce(net.logits(params, examples), examples.answer).mean(1)
        grads = torch.autograd.grad(loss.sum(), list(params.values()), materialize_grads=True)
        rows = torch.cat([grad.reshape(len(members), -1) for grad in grads], dim=1)
        adamw_step(state, clip_rows(rows, protocol.clip_norm), protocol)
        total += loss.detach().double() * count
    with torch.no_grad():
        out = net.logits(params, held_out)
        held_loss = bce(out, held_out.answer).mean(1).tolist()
        right = ((out.sigmoid() >= 0.5) == (held_out.answer == 1)).double().mean(1).tolist()
    seconds = (time.perf_counter() - started) / len(members)
    leaving = {}
    for k, member in enumerate(members):
        member.epochs += 1
        member.seconds += seconds
        member.best = max(member.best, right[k])
        if right[k] == 1.0 and member.first_solved is None:
            member.first_solved = member.epochs
        train_loss = float(total[k]) / last
        member.rate = member.plateau.next_rate(member.rate, train_loss, protocol)
        if not math.isfinite(train_loss + held_loss[k]):
            leaving[k] = "not finite"
        elif held_loss[k] <= protocol.stop_loss:
            leaving[k] = "loss"
        elif protocol.stop_when_solved and right[k] == 1.0:
            leaving[k] = "solved"
        elif member.epochs >= protocol.max_epochs:
            leaving[k] = "epochs"
    rates = [[member.rate] for member in members]
    state.learning_rate.copy_(torch.tensor(rates, dtype=torch.float64))
    return leaving


def _batches(keys: Tensor, n_bits: int, first: int, protocol: Protocol) -> Iterator[Examples]:
    """The batches of an epoch whose first example is number `first`."""
    size, last = protocol.batch_size, first + protocol.epoch_examples
    for start in range(first, last, _BATCHES_DRAWN * size):
        drawn = draw_examples(keys, n_bits, start, min(_BATCHES_DRAWN * size, last - start))
        parts = zip(drawn.bits.split(size, 1), drawn.index.split(size, 1), strict=True)
        yield from (Examples(bits, index) for bits, index in parts)


def _finish(
    layer: Layer,
    net: Network,
    row: Params,
    member: _Member,
    reason: str,
    n_parameters: int,
    place: Place | None,
    device: torch.device,
) -> ProbeRun:
    """The record of a run, with all inputs tried where it is solved and they are few."""
    n, verdict = net.cell.n_bits, None
    if n << n <= _EXHAUSTIVE and reason != "not finite" and member.best == 1.0:
        one = {name: value.unsqueeze(0) for name, value in row.items()}

        def model(bits: Tensor, index: Tensor) -> Tensor:
            return net.logits(one, Examples(bits[None], index[None]))[0]

        # One thread: a module may keep buffers of its own while it computes.
        verdict = examine(model, n, device, workers=1).verdict
    run = _run(layer, net.cell, member, reason, n_parameters, verdict)
    if place is not None:
        place.keep(run, {name: value.cpu().contiguous() for name, value in row.items()})
    return run


def _run(
    layer: Layer, cell: Cell, member: _Member, reason: str, n_parameters: int, verdict: str | None
) -> ProbeRun:
    return ProbeRun(
        layer.name,
        cell,
        member.seed,
        member.epochs,
        reason,
        member.best,
        member.first_solved,
        n_parameters,
        member.seconds,
        verdict,
    )
