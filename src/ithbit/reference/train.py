"""One run of the libraries' models, step by step: eager, with the stock optimiser.

Nothing here is tuned, and nothing is slowed down on purpose. The tests train whole runs this way.
"""

from collections.abc import Callable
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.reference.models import build
from ithbit.spec import ModelSpec, Protocol
from ithbit.tasks.sampling import Examples, draw_examples, stream_keys


def stepper(
    spec: ModelSpec, protocol: Protocol = Protocol(), device: torch.device | str = "cpu"
) -> Callable[[], Tensor]:
    """A function that takes the next optimiser step of a fresh run on a full batch and returns the
    loss.

    It does not synchronise the device: callers that measure time must.

    >>> step = stepper(ModelSpec("lhi", "gru", n_bits=4), Protocol(batch_size=8))
    >>> step() != step()
    tensor(True)
    """
    module, size = build(spec, device), protocol.batch_size
    optimiser = optimiser_of(module, protocol)
    key = stream_keys([0], device)
    firsts = count(0, size)

    def step() -> Tensor:
        examples = draw_examples(key, spec.n_bits, next(firsts), size, protocol.examples)
        return step_on(module, optimiser, protocol, examples)

    return step


def optimiser_of(module: nn.Module, protocol: Protocol) -> torch.optim.AdamW:
    """The protocol's optimiser: stock AdamW."""
    return torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad],
        lr=protocol.learning_rate,
        betas=(protocol.beta1, protocol.beta2),
        eps=protocol.eps,
        weight_decay=protocol.weight_decay,
    )


def step_on(
    module: nn.Module, optimiser: torch.optim.Optimizer, protocol: Protocol, examples: Examples
) -> Tensor:
    """Take one step on the examples of a stack of one; returns the loss before it."""
    logits = module(examples.bits[0], examples.index[0])
    loss = F.binary_cross_entropy_with_logits(logits, examples.answer[0].to(logits.dtype))
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), protocol.clip_norm)
    optimiser.step()
    return loss.detach()
