import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ithbit.engine.optim import AdamState, Plateau, adamw_step, clip_rows
from ithbit.models import classifier
from ithbit.models.stacked import packed, unpacked
from ithbit.spec import ModelSpec, Protocol

SIZE = 37  # numbers a row: no whole number of vectors
# Float32: the operations are torch's own, but for a fused product and sum in its last update.
CLOSE = {torch.float64: {"rtol": 1e-12, "atol": 1e-14}, torch.float32: {"rtol": 2e-6, "atol": 1e-7}}


def gradients(n_rows: int, steps: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Some below and some above the clipping norm, some tiny, some zero."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.empty(steps, n_rows, 1).uniform_(-6, 2, generator=generator)
    found = torch.empty(steps, n_rows, SIZE).normal_(generator=generator) * scale
    found[::7] = 0
    return list(found.to(dtype))


def stacked(rows: torch.Tensor, rates: list[float]) -> AdamState:
    return AdamState.join(
        [AdamState.start(row, rate) for row, rate in zip(rows, rates, strict=True)]
    )


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_row_steps_as_torch_does(dtype, weight_decay) -> None:
    """AdamW after clip_grad_norm_, the rate halved half way, for 200 steps."""
    protocol = Protocol(weight_decay=weight_decay, clip_norm=2.0)
    start = torch.linspace(-1, 1, SIZE).to(dtype)
    weight = nn.Parameter(start.clone())
    stock = torch.optim.AdamW(
        [weight], lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay
    )
    state = AdamState.start(start, 1e-3)
    for step, grads in enumerate(gradients(1, 200, dtype)):
        if step == 100:
            stock.param_groups[0]["lr"] = 5e-4
            state.learning_rate.fill_(5e-4)
        weight.grad = grads[0].clone()
        nn.utils.clip_grad_norm_([weight], 2.0)
        stock.step()
        adamw_step(state, clip_rows(grads, 2.0), protocol)
    torch.testing.assert_close(state.values[0], weight.detach(), **CLOSE[dtype])
    assert (weight.detach() - start).abs().mean() > 1e-3  # it went somewhere


def test_rows_do_not_see_each_other() -> None:
    """Rows of other steps, rates and wild gradients: each ends bit for bit as it does alone."""
    protocol, rates = Protocol(), [1e-3, 3e-2, 1e-5]
    rows = torch.linspace(-2, 2, 3 * SIZE).view(3, SIZE)
    ahead = gradients(1, 5, torch.float32, seed=1)
    grads = gradients(3, 50, torch.float32, seed=2)
    alone = [stacked(row[None], [rate]) for row, rate in zip(rows, rates, strict=True)]
    for early in ahead:  # the second run is five steps ahead of the others
        adamw_step(alone[1], clip_rows(early, 5.0), protocol)
    state = AdamState.join(alone)
    for step, together in enumerate(grads):
        if step == 20:
            together[0] = math.nan
        adamw_step(state, clip_rows(together, 5.0), protocol)
        for k, single in enumerate(alone):
            adamw_step(single, clip_rows(together[k : k + 1], 5.0), protocol)
    assert state.steps.squeeze(1).tolist() == [50, 55, 50]
    assert state.values[0].isnan().all()
    assert state.values[1:].isfinite().all()
    for k, single in enumerate(alone):
        for name, value in vars(single).items():
            ours = getattr(state.rows([k]), name)
            assert torch.equal(ours.nan_to_num(9.0), value.nan_to_num(9.0)), name


def test_clipping_is_by_row() -> None:
    grads = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    clipped = clip_rows(grads, 1.0)
    torch.testing.assert_close(clipped[0], torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert torch.equal(clipped[1:], grads[1:])
    assert clipped.norm(dim=1).max() <= 1.0


def test_rows_are_copies() -> None:
    state = stacked(torch.ones(2, SIZE), [0.1, 0.2])
    taken = state.rows([1])
    adamw_step(state, torch.ones(2, SIZE), Protocol())
    assert taken.values.eq(1).all()
    assert taken.steps.item() == 0
    assert taken.learning_rate.item() == 0.2


def wavy(seed: int, length: int = 400) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(length).uniform_(0.9, 1.1, generator=generator).tolist()
    return [value * 0.99**k for k, value in enumerate(noise)]


JUST = 1 - 1e-4


@pytest.mark.parametrize(
    "losses",
    [
        *(wavy(seed) for seed in range(5)),
        [1.0] * 300,  # never better: cut to the floor
        [0.0] * 100,
        [JUST**k for k in range(200)],  # at the threshold itself, where rounding decides
        [math.nextafter(JUST, 0) ** k for k in range(200)],
        [(1.0 - 1e-5) ** k for k in range(300)],  # always better, never enough
        [1.0, *([2.0] * 31), 0.5, *([2.0] * 31)] * 3,  # better in the last epoch of patience
        [math.inf] * 40 + [1.0] * 40,
        [1.0, *([math.nan] * 70)],
        [-1.0] * 70,  # no loss of ours, but the rule is the rule
    ],
)
@pytest.mark.parametrize(
    "protocol",
    [Protocol(), Protocol(plateau_patience=0), Protocol(plateau_patience=2, plateau_factor=0.999)],
    ids=["paper", "impatient", "gentle"],
)
def test_the_plateau_rule_is_torch_s(losses, protocol) -> None:
    weight = nn.Parameter(torch.zeros(1))
    stock = torch.optim.SGD([weight], lr=protocol.learning_rate)
    schedule = ReduceLROnPlateau(
        stock,
        factor=protocol.plateau_factor,
        patience=protocol.plateau_patience,
        threshold=protocol.plateau_threshold,
        min_lr=protocol.min_learning_rate,
    )
    stock.step()
    plateau, rate = Plateau(), protocol.learning_rate
    ours, theirs = [], []
    for loss in losses:
        rate = plateau.next_rate(rate, loss, protocol)
        schedule.step(loss)
        ours.append(rate)
        theirs.append(stock.param_groups[0]["lr"])
    assert ours == theirs


def test_parameters_and_rows(family) -> None:
    params = classifier.init(ModelSpec("lhi", family, n_bits=3, n_layers=2), seed=4)
    row = packed(params)
    assert row.shape == (classifier.n_parameters(ModelSpec("lhi", family, 3, 2)),)
    back = unpacked(row, params)
    assert list(back) == list(params)
    assert all(torch.equal(back[name], value) for name, value in params.items())
    buffer = torch.stack([row, 2 * row])
    views = unpacked(buffer, params)
    assert torch.equal(views["head.weight"][1], 2 * params["head.weight"])
    buffer += 1  # views, not copies
    assert torch.equal(views["head.weight"][0], params["head.weight"] + 1)
