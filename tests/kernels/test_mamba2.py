"""How Mamba2's kernels share out their work changes no result."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from ithbit.kernels.mamba2 import step as mamba2
from ithbit.kernels.step import Step
from ithbit.models.classifier import init
from ithbit.models.stacked import packed
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import stream_keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CAPACITY, COUNT = 18, 17  # tiles of eight sequences, and of sixteen queries, the last with one


def gradients(spec, seeds):
    """One step's gradients (seed, parameter) of a stack, and its step."""
    members = [init(spec, seed) for seed in seeds]
    rows = torch.stack(list(map(packed, members)))
    # Some way off their initial values, at which a query has next to no gradient.
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    rows = (rows + 0.3 * noise).to(DEVICE)
    step = Step(spec, len(seeds), CAPACITY, DEVICE)
    first = torch.zeros(len(seeds), 1, dtype=torch.int64, device=DEVICE)
    loss_sum = torch.zeros(len(seeds), dtype=torch.float64, device=DEVICE)
    keys = stream_keys(seeds, DEVICE)
    step.gradients(rows, keys, first, COUNT, loss_sum, torch.zeros_like(first))
    return step.grads, step


def test_tiles_of_one_program_add_up(monkeypatch):
    """Learned positions have a share of their own beside the others'."""
    spec = ModelSpec("lhi", "mamba2", n_bits=1, n_layers=2, positions="learned")
    expected, apart = gradients(spec, [1])
    monkeypatch.setattr(mamba2, "MAX_PROGRAMS", 1)
    monkeypatch.setattr(mamba2, "MAX_BACK_PROGRAMS", 1)
    monkeypatch.setattr(mamba2, "_TALLIED", 8)
    found, together = gradients(spec, [1])
    assert apart.partials.shape[1] > together.partials.shape[1] == 1
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())


def test_a_smaller_batch_finds_nothing_of_the_one_before():
    spec = ModelSpec("lhi", "mamba2", n_bits=5, n_layers=1)
    member = init(spec, 1)
    rows = packed(member)[None].to(DEVICE)
    found = []
    for counts in ([CAPACITY, 3], [3]):
        step = Step(spec, 1, CAPACITY, DEVICE)
        for count in counts:
            first = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
            loss_sum = torch.zeros(1, dtype=torch.float64, device=DEVICE)
            step.gradients(
                rows, stream_keys([1], DEVICE), first, count, loss_sum, torch.zeros_like(first)
            )
        found.append(step.grads)
    assert found[0].abs().max() > 0
    assert torch.equal(*found)
