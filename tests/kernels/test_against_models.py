"""The kernels against the stacked models: logits, losses, every gradient, one optimiser step.

On a machine without a GPU the kernels run under Triton's interpreter, on small shapes.
"""

import pytest
import torch

from ithbit.engine.evaluate import bce
from ithbit.engine.optim import Layout
from ithbit.families import FAMILIES
from ithbit.kernels.step import Step, refusal
from ithbit.models.classifier import init, logits
from ithbit.models.spec import ModelSpec
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEEDS = [3, 8]
TOLERANCE = 1e-5


def distance(found, expected):
    """Largest difference, relative to the largest number expected."""
    scale = expected.abs().max().clamp(min=1e-30)
    return ((found.double() - expected.double()).abs().max() / scale).item()


def random_rows(spec, scale=0.3):
    """Parameters (seed, parameter) some way off their initial values, and their layout."""
    members = [init(spec, seed) for seed in SEEDS]
    generator = torch.Generator().manual_seed(1)
    for member in members:
        for value in member.values():
            value += scale * torch.empty_like(value).normal_(generator=generator)
    layout = Layout.of(members[0])
    return torch.stack([layout.pack(member) for member in members]).to(DEVICE), layout


def stacked(spec, rows, layout, first, count, dtype=torch.float64):
    """Logits, losses and gradients (seed, parameter) by the stacked models in double precision."""
    rows = rows.to(dtype).requires_grad_()
    table = token_table(spec.task, spec.n_bits, dtype=dtype, device=DEVICE)
    examples = draw_examples(stream_keys(SEEDS, DEVICE), spec.n_bits, first, count)
    out = logits(layout.views(rows), spec, table, examples)
    losses = bce(out, examples.answer)
    (grads,) = torch.autograd.grad(losses.mean(1).sum(), rows)
    return out.detach(), losses.detach(), grads


def check(spec, count, capacity):
    """One step of the kernels on `count` examples against the stacked models."""
    rows, layout = random_rows(spec)
    first = torch.tensor([[50], [1000]], device=DEVICE)
    _, losses, grads = stacked(spec, rows, layout, first, count)
    step = Step(spec, len(SEEDS), capacity, DEVICE)
    keys = stream_keys(SEEDS, DEVICE)
    loss_sum = torch.zeros(len(SEEDS), dtype=torch.float64, device=DEVICE)
    steps = torch.zeros(len(SEEDS), 1, dtype=torch.int64, device=DEVICE)
    moved = first.clone()
    step.gradients(rows, keys, moved, count, loss_sum, steps)
    assert distance(step.losses[:, :count], losses) <= TOLERANCE
    assert distance(loss_sum, losses.double().sum(1)) <= TOLERANCE
    assert steps.tolist() == [[1], [1]]
    assert (moved - first).tolist() == [[count], [count]]
    found, expected = layout.views(step.grads), layout.views(grads)
    far = {name: distance(found[name], expected[name]) for name in expected}
    assert {name: d for name, d in far.items() if d > TOLERANCE} == {}
    zero = torch.zeros_like(first)
    out, _, _ = stacked(spec, rows, layout, zero, capacity + 1)
    assert distance(step.logits(rows, keys, capacity + 1), out) <= TOLERANCE


ADDED = ("none", "learned", "sinusoidal")  # beside polynomial, which the other tests have
VARIANTS = [
    (task, family, layers) for family in FAMILIES for task in ("rhi", "lhi") for layers in (1, 2)
]


@pytest.mark.parametrize(("task", "family", "layers"), VARIANTS)
@pytest.mark.parametrize("n_bits", [1, 8, 33])
def test_step(task, family, layers, n_bits):
    check(ModelSpec(task, family, n_bits, layers), count=5, capacity=7)


ENCODED = [
    *((family, encoding, 8) for family in ("gru", "mamba2") for encoding in ADDED),
    *(("linear-causal", encoding, 3) for encoding in ADDED),
    ("softmax-full", "learned", 3),
    ("softmax-full", "rotary", 3),
    ("softmax-causal", "rotary", 3),
]


@pytest.mark.parametrize(("family", "encoding", "n_bits"), ENCODED)
def test_encodings(family, encoding, n_bits):
    spec = ModelSpec("lhi", family, n_bits, n_layers=2, positions=encoding)
    assert refusal(spec) is None
    check(spec, count=5, capacity=7)


@pytest.mark.parametrize(
    ("spec", "count", "capacity"),
    [
        (ModelSpec("lhi", "gru", 2, n_layers=3), 5, 7),  # a layer neither first nor last
        (ModelSpec("rhi", "gru", 2, d_model=32), 5, 7),
        (ModelSpec("lhi", "gru", 1, n_layers=2), 9, 20),  # three programs, the last all past count
    ],
)
def test_gru_step(spec, count, capacity):
    check(spec, count, capacity)


def test_gru_alone_and_in_a_stack():
    spec = ModelSpec("rhi", "gru", 3, n_layers=2)
    rows, _ = random_rows(spec)
    found = []
    for chosen in ([0, 1], [1]):
        step = Step(spec, len(chosen), 4, DEVICE)
        first = torch.full((len(chosen), 1), 6, device=DEVICE)
        loss_sum = torch.zeros(len(chosen), dtype=torch.float64, device=DEVICE)
        steps = torch.zeros_like(first)
        keys = stream_keys([SEEDS[i] for i in chosen], DEVICE)
        step.gradients(rows[chosen], keys, first, 4, loss_sum, steps)
        found.append((step.losses[-1], step.grads[-1], loss_sum[-1]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
