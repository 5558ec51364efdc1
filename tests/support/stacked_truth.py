"""A step of the kernels held to the stacked models, whose float64 results are the truth.

A distance is the largest difference in a tensor, relative to the largest number in it. The bar is
1e-5. Some numbers are worse conditioned than that: Mamba2's dt_bias, a_log and others whose
gradients are small differences of large sums move by more where the weights move by half a unit in
their last place. There, and only there, the kernels may be twice as far as the stacked models in
float32 are: the farthest of some steps from weights so nudged, because in a tensor of two numbers
one rounding may be lucky.
"""

from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from ithbit.engine.evaluate import bce
from ithbit.engine.optim import AdamState, adamw_step, clip_rows
from ithbit.kernels.step import Step
from ithbit.models.classifier import init, logits
from ithbit.models.stacked import Params, packed, unpacked
from ithbit.spec import ModelSpec, Protocol
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEEDS = (3, 8, 5)
TOLERANCE = 1e-5
NUDGES = range(8)  # float32 steps that say how far float32 may be


@dataclass(frozen=True)
class Start:
    """A stack in the middle of its training: weights, moments, counters and rates, a row a run."""

    spec: ModelSpec
    seeds: tuple[int, ...]
    state: AdamState
    first: torch.Tensor  # seed 1
    examples: str = "uniform"

    @property
    def keys(self) -> torch.Tensor:
        return stream_keys(list(self.seeds), DEVICE)

    def params(self, rows: torch.Tensor) -> Params:
        """Rows of parameters, by name."""
        return unpacked(rows, init(self.spec, 0))

    def rows(self, which: list[int]) -> "Start":
        """Some of its runs as a stack of their own."""
        seeds = tuple(self.seeds[k] for k in which)
        state, first = self.state.rows(which), self.first[which].clone()
        return replace(self, seeds=seeds, state=state, first=first)


def started(spec: ModelSpec, n_seeds: int = 2) -> Start:
    """Weights some way off their initial values, moments of a gradient's size, unequal counters."""
    seeds = SEEDS[:n_seeds]
    generator = torch.Generator().manual_seed(1)

    rows = torch.stack([packed(init(spec, seed)) for seed in seeds])

    def normal() -> torch.Tensor:
        return torch.empty(rows.shape).normal_(generator=generator)

    values = rows + 0.3 * normal()
    mean, square = 0.05 * normal(), (0.1 * normal()) ** 2 + 0.0025
    steps = torch.arange(n_seeds).unsqueeze(1) * 7
    # Rates so large that the step is seen in the weights' rounding.
    rates = 0.1 / (1 + torch.arange(n_seeds, dtype=torch.float64).unsqueeze(1))
    first = torch.arange(n_seeds).unsqueeze(1) * 950 + 50
    state = AdamState(values, mean, square, steps, rates).to(DEVICE)
    return Start(spec, seeds, state, first.to(DEVICE))


def protocol_for(grads: torch.Tensor) -> Protocol:
    """Clipping at a norm between those of the runs: some are clipped, some are not."""
    norms = grads.double().norm(dim=1)
    return Protocol(clip_norm=(norms.min() * norms.max()).sqrt().item())


@dataclass(frozen=True)
class Taken:
    """What a step left, every number by a name, and the clipping it was taken with."""

    numbers: dict[str, torch.Tensor]
    protocol: Protocol

    def distances(self, truth: "Taken") -> dict[str, float]:
        """How far each tensor is from the true one."""
        found = {}
        for name, expected in truth.numbers.items():
            scale = expected.abs().max().clamp(min=1e-30)
            found[name] = ((self.numbers[name].double() - expected).abs().max() / scale).item()
        return found

    def equals(self, other: "Taken") -> bool:
        """Bit for bit."""
        assert self.numbers.keys() == other.numbers.keys()
        return all(torch.equal(x, other.numbers[name]) for name, x in self.numbers.items())

    def rows(self, which: list[int]) -> "Taken":
        return Taken({name: x[which] for name, x in self.numbers.items()}, self.protocol)


def named(start: Start, prefix: str, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Rows of parameters, each by its name."""
    return {f"{prefix} {name}": value for name, value in start.params(rows).items()}


def by_models(
    start: Start,
    count: int,
    dtype: torch.dtype,
    protocol: Protocol | None = None,
    n_logits: int = 0,
) -> Taken:
    """A step by the stacked models and autograd, and the first logits of each stream if asked."""
    spec, state = start.spec, start.state.rows(list(range(len(start.seeds))))
    state.values, state.mean, state.square = (
        rows.to(dtype) for rows in (state.values, state.mean, state.square)
    )
    table = token_table(spec.task, spec.n_bits, dtype=dtype, device=DEVICE)
    examples = draw_examples(start.keys, spec.n_bits, start.first, count, start.examples)
    leaf = state.values.clone().requires_grad_()
    losses = bce(logits(start.params(leaf), spec, table, examples), examples.answer)
    (grads,) = torch.autograd.grad(losses.mean(1).sum(), leaf)
    protocol = protocol or protocol_for(grads)
    adamw_step(state, clip_rows(grads, protocol.clip_norm), protocol)
    numbers = {
        "losses": losses.detach(),
        "loss sum": losses.detach().double().sum(1),
        **named(start, "gradient", grads),
        "weights": state.values,
        "mean": state.mean,
        "square": state.square,
    }
    if n_logits:
        first = torch.zeros_like(start.first)
        examples = draw_examples(start.keys, spec.n_bits, first, n_logits)
        with torch.no_grad():
            numbers["logits"] = logits(start.params(leaf), spec, table, examples)
    return Taken(numbers, protocol)


def by_kernels(start: Start, count: int, protocol: Protocol, step: Step) -> Taken:
    """A step by the kernels, with the memory of `step`."""
    n_seeds = len(start.seeds)
    state, first = start.state.rows(list(range(n_seeds))), start.first.clone()
    loss_sum = torch.zeros(n_seeds, dtype=torch.float64, device=DEVICE)
    step.gradients(state.values, start.keys, first, count, loss_sum, state.steps)
    step.adamw(state.values, state.mean, state.square, state.steps, state.learning_rate, protocol)
    assert torch.equal(state.steps, start.state.steps + 1)
    assert torch.equal(first, start.first + count)
    numbers = {
        "losses": step.losses[:, :count].clone(),
        "loss sum": loss_sum,
        **named(start, "gradient", step.grads.clone()),
        "weights": state.values,
        "mean": state.mean,
        "square": state.square,
    }
    return Taken(numbers, protocol)


def fresh_step(start: Start, capacity: int) -> Step:
    """A step with memory of its own."""
    return Step(start.spec, len(start.seeds), capacity, DEVICE, start.examples)


def nudged(start: Start, seed: int) -> Start:
    """The stack with its weights about half a unit in the last place off."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(start.state.values.shape).normal_(generator=generator).to(DEVICE)
    state = replace(start.state, values=start.state.values * (1 + 2**-24 * noise))
    return replace(start, state=state)


def too_far(
    spec: ModelSpec,
    count: int,
    capacity: int,
    n_logits: int = 0,
    n_seeds: int = 2,
    examples: str = "uniform",
) -> dict[str, tuple[float, float]]:
    """What the kernels' step on `count` examples has beyond its bar: by name, distance and bar."""
    start = replace(started(spec, n_seeds), examples=examples)
    truth = by_models(start, count, torch.float64, n_logits=n_logits)
    step = fresh_step(start, capacity)
    taken = by_kernels(start, count, truth.protocol, step)
    if n_logits:
        taken.numbers["logits"] = step.logits(start.state.values, start.keys, n_logits)
    far = {name: d for name, d in taken.distances(truth).items() if not d <= TOLERANCE}
    if not far:
        return {}
    rounded = [
        by_models(nudged(start, seed), count, torch.float32, truth.protocol, n_logits)
        for seed in NUDGES
    ]
    bars = {name: 2 * max(other.distances(truth)[name] for other in rounded) for name in far}
    return {name: (far[name], bars[name]) for name in far if not far[name] <= bars[name]}
