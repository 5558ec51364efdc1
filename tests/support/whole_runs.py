"""The paper's protocol the obvious way: one run, eager steps, stock optimiser and schedule.

The data are the engine's: training example k of epoch e is number e · epoch_examples + k of the
seed's stream, and the held-out set is the stream of seed + 10,000. Losses are summed on the device
and read once an epoch.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn

from ithbit.models.stacked import Params
from ithbit.reference import weights
from ithbit.reference.models import build
from ithbit.reference.train import optimiser_of, step_on
from ithbit.spec import RunSpec
from ithbit.tasks.sampling import HELD_OUT_SEED, Examples, draw_examples, stream_keys


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave. Losses are means over examples; the rate is the one trained with."""

    train_loss: float
    held_out_loss: float
    accuracy: float  # held out
    learning_rate: float
    seconds: float  # of the training steps
    evaluation_seconds: float


@dataclass(frozen=True)
class Trained:
    """A finished run: its module, and one record an epoch."""

    module: nn.Module
    history: list[Epoch]


def train(
    run: RunSpec, device: torch.device | str = "cpu", params: Params | None = None
) -> Trained:
    """Train one run until its held-out loss is at most `stop_loss` or its epochs are spent.

    It starts from `params` (one seed, no seed axis), or from the library's own initial weights.

    >>> from ithbit.spec import ModelSpec, Protocol
    >>> small = Protocol(epoch_examples=100, held_out_examples=50, max_epochs=2)
    >>> trained = train(RunSpec(ModelSpec("lhi", "gru", n_bits=4), seed=0, protocol=small))
    >>> len(trained.history), trained.history[0].learning_rate
    (2, 0.001)
    """
    device, protocol, n = torch.device(device), run.protocol, run.model.n_bits
    module = build(run.model, device, run.seed)
    if params is not None:
        weights.load(module, run.model, params)
    optimiser = optimiser_of(module, protocol)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser,
        factor=protocol.plateau_factor,
        patience=protocol.plateau_patience,
        threshold=protocol.plateau_threshold,
        min_lr=protocol.min_learning_rate,
    )
    key = stream_keys([run.seed], device)
    held_out = draw_examples(
        stream_keys([run.seed + HELD_OUT_SEED], device), n, 0, protocol.held_out_examples
    )
    history: list[Epoch] = []
    for epoch in range(protocol.max_epochs):
        began = _clock(device)
        rate = optimiser.param_groups[0]["lr"]
        total = torch.zeros((), device=device)
        for first in range(0, protocol.epoch_examples, protocol.batch_size):
            size = min(protocol.batch_size, protocol.epoch_examples - first)
            number = epoch * protocol.epoch_examples + first
            examples = draw_examples(key, n, number, size, protocol.examples)
            total += step_on(module, optimiser, protocol, examples) * size
        trained = _clock(device)
        loss, accuracy = _evaluate(module, held_out, protocol.batch_size)
        evaluated = _clock(device)
        train_loss = total.item() / protocol.epoch_examples
        history.append(
            Epoch(train_loss, loss, accuracy, rate, trained - began, evaluated - trained)
        )
        schedule.step(train_loss)
        if loss <= protocol.stop_loss or (protocol.stop_when_solved and accuracy == 1.0):
            break
    return Trained(module, history)


@torch.no_grad()
def _evaluate(module: nn.Module, held_out: Examples, batch_size: int) -> tuple[float, float]:
    """Mean loss and accuracy; a logit of 0 or more answers 1, as sigmoid(logit) >= 0.5 does."""
    module.eval()
    batches = zip(
        held_out.bits[0].split(batch_size), held_out.index[0].split(batch_size), strict=True
    )
    logits = torch.cat([module(bits, index) for bits, index in batches])
    module.train()
    answer = held_out.answer[0]
    loss = F.binary_cross_entropy_with_logits(logits, answer.to(logits.dtype))
    right = (logits >= 0) == (answer == 1)
    return loss.item(), right.double().mean().item()


def _clock(device: torch.device) -> float:
    """Seconds on a steady clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
