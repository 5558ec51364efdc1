"""Compiled code against the stacked models: the same logits and gradients, whatever the shape."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support.families import PAPER_FAMILIES

from ithbit.engine.evaluate import bce
from ithbit.models import classifier
from ithbit.models.magnitudes import stays_finite
from ithbit.models.stacked import Params, packed, unpacked
from ithbit.native.building import refusal
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

pytest.importorskip("numba")
from ithbit.native.model import gradients, logits, raw_logits


def started(spec: ModelSpec, seeds: int, spread: float = 0.3) -> Params:
    """Weights some way off their start, so that nothing is zero."""
    members = [classifier.init(spec, seed) for seed in range(seeds)]
    values = torch.stack(list(map(packed, members)))
    values += spread * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    return {name: v.detach().requires_grad_() for name, v in unpacked(values, members[0]).items()}


def drawn(spec: ModelSpec, seeds: int, count: int) -> Examples:
    return draw_examples(stream_keys(list(range(seeds))), spec.n_bits, 0, count)


def by_plain(params: Params, spec: ModelSpec, examples: Examples) -> tuple[torch.Tensor, ...]:
    """The slow twin, in double precision."""
    params = {name: value.detach().double().requires_grad_() for name, value in params.items()}
    table = token_table(spec.task, spec.n_bits, dtype=torch.float64)
    out = classifier.logits(params, spec, table, examples)
    loss = bce(out, examples.answer).mean(1).sum()
    grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return out.detach(), torch.cat([grad.flatten(1) for grad in grads], 1)


def compare(spec: ModelSpec, count: int = 13, seeds: int = 2, spread: float = 0.3) -> None:
    params, examples = started(spec, seeds, spread), drawn(spec, seeds, count)
    table = token_table(spec.task, spec.n_bits)
    expected, slopes = by_plain(params, spec, examples)
    out, grads = gradients(params, spec, table, examples)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    size = slopes.abs().amax().clamp(min=1)
    torch.testing.assert_close(grads.double() / size, slopes / size, rtol=0, atol=1e-5)
    sorted_by_name = dict(sorted(params.items()))  # as a file of weights has them
    assert torch.equal(logits(sorted_by_name, spec, table, examples), out)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_logits_and_gradients_are_those_of_the_plain_models(family, task, layers) -> None:
    compare(ModelSpec(task, family, 6, layers))


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (1, {}),
        (16, {"n_bits": 1}),
        (9, {"d_model": 12, "n_heads": 3, "d_ff": 7, "d_state": 5}),
        (5, {"n_bits": 70}),
        (3, {"positions": "learned"}),
        (3, {"positions": "sinusoidal"}),
        (3, {"positions": "none"}),
    ],
)
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_other_shapes(family, count, changes) -> None:
    compare(ModelSpec("lhi", family, **{"n_bits": 4, "n_layers": 2} | changes), count)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_large_weights(family) -> None:
    """Gates that are shut, attention that is sharp: exponentials far out."""
    spec = ModelSpec("rhi", family, 5, 1)
    params, examples = started(spec, 1, 3.0), drawn(spec, 1, 8)
    expected, _ = by_plain(params, spec, examples)
    out = logits(params, spec, token_table("rhi", 5), examples)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_seed_does_not_depend_on_its_stack(family) -> None:
    spec = ModelSpec("lhi", family, 5, 2)
    params, examples = started(spec, 3), drawn(spec, 3, 11)
    table = token_table("lhi", 5)
    together = gradients(params, spec, table, examples)
    for seed in range(3):
        own = {name: v[seed : seed + 1].detach().requires_grad_() for name, v in params.items()}
        one = slice(seed, seed + 1)
        alone = gradients(own, spec, table, Examples(examples.bits[one], examples.index[one]))
        assert torch.equal(alone[0], together[0][one])
        assert torch.equal(alone[1], together[1][one])


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_what_is_not_a_number_stays_so(family) -> None:
    spec = ModelSpec("rhi", family, 3, 2)
    params = started(spec, 1)
    params["embed"].data[0, 0, 0] = torch.nan
    assert logits(params, spec, token_table("rhi", 3), drawn(spec, 1, 8)).isnan().all()


def test_refusals() -> None:
    assert refusal(ModelSpec("rhi", "gru", 4, d_model=3)) is None
    rotary = ModelSpec("rhi", "softmax-full", 4, positions="rotary")
    assert refusal(rotary) == "there is no compiled code for rotary positions"
    narrow = ModelSpec("rhi", "mamba2", 4, d_model=12, n_heads=2)
    assert refusal(narrow) == "compiled code needs a head size that is a multiple of 4, got 6"


_OLD_CPU = """
import sys
from llvmlite import binding
features = binding.get_host_cpu_features()
for name in features:
    if name.startswith(("avx", "fma", "f16c")):
        features[name] = False
binding.get_host_cpu_features = lambda: features
from ithbit.native import building, simd
assert simd.LANES == 8
building.folder = lambda: None
sys.path.insert(0, sys.argv[1])
from tests.native.test_model import compare
from tests.support.families import PAPER_FAMILIES
from ithbit.spec import ModelSpec
for family in PAPER_FAMILIES:
    compare(ModelSpec("lhi", family, 5, 2), 19)
"""


@pytest.mark.slow
def test_an_old_cpu() -> None:
    """Compiled without the wide registers and the products with a sum that this one may have."""
    command = [sys.executable, "-c", _OLD_CPU, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


def zeros(spec: ModelSpec) -> Params:
    return {name: torch.zeros_like(v)[None] for name, v in classifier.init(spec, 0).items()}


def same_as_plain(params: Params, spec: ModelSpec) -> None:
    """On both inputs of one bit: the compiled code itself, where the screen lets it answer."""
    examples = Examples(torch.tensor([[[0], [1]]], dtype=torch.uint8), torch.ones(1, 2).long())
    table = token_table("rhi", 1)
    assert stays_finite(params, spec, 1).all()
    expected = classifier.logits(params, spec, table, examples)
    torch.testing.assert_close(raw_logits(params, spec, table, examples), expected)


def test_a_token_of_weight_0_is_not_seen() -> None:
    """A bit that attention gives the weight e^-1000, and values that show what is left of it."""
    spec = ModelSpec("rhi", "softmax-full", 1, 1, d_model=4, n_heads=1, d_ff=1)
    params = zeros(spec)
    params["embed"][0, :, 0] = torch.tensor([-2.0, 0, 1, 1])
    params["embed"][0, :, 3] = torch.tensor([2.0, -2, 0, 0])
    params["enter.norm.weight"][...] = params["blocks.0.norm2.weight"][...] = 1
    params["blocks.0.qkv.bias"][0, 0] = 1000
    params["blocks.0.qkv.weight"][0, 4, 2] = -1
    params["blocks.0.qkv.weight"][0, 8, :2] = torch.tensor([1e13, -1e13])
    params["blocks.0.out.weight"][0, :2, 0] = torch.tensor([1.0, -1])
    params["blocks.0.norm1.weight"][...] = 1e13
    params["head.weight"][0, 0, :2] = torch.tensor([0.5, -0.5])
    params["head.bias"][...] = -0.25
    same_as_plain(params, spec)


def test_a_tiny_state_is_not_lost() -> None:
    """A GRU whose head multiplies a state of 1e-9 by 1e12."""
    spec = ModelSpec("rhi", "gru", 1, 1, d_model=2)
    params = zeros(spec)
    params["embed"][0, :, [0, 1, 3]] = torch.tensor([[-1.0, 0, 2], [0, 1, 0]])
    params["blocks.0.ih.weight"][0, 4:] = torch.tensor([[1, 0], [0, 1e-9]])
    params["head.weight"][...] = torch.tensor([1, 1e12])
    same_as_plain(params, spec)


def test_a_gate_that_is_shut_lets_nothing_through() -> None:
    """A reset gate of e^-200 before a number of 1e29."""
    spec = ModelSpec("rhi", "gru", 1, 1, d_model=1)
    params = zeros(spec)
    params["embed"][0, 0, [0, 3]] = torch.tensor([-1.0, 2])
    params["blocks.0.ih.weight"][0, :, 0] = torch.tensor([0, 0, 1e-11])
    params["blocks.0.ih.bias"][0, :2] = torch.tensor([-200.0, 0])
    params["blocks.0.hh.bias"][0, 2] = 1e29
    params["head.weight"][...] = 1e10
    same_as_plain(params, spec)


def test_a_tiny_state_that_is_kept_is_not_lost() -> None:
    """The query's update gate is shut, beside a candidate of 1."""
    spec = ModelSpec("rhi", "gru", 1, 1, d_model=1)
    params = zeros(spec)
    params["embed"][0, 0, [0, 1, 3]] = torch.tensor([-1e-9, 100, 2e-9])
    params["blocks.0.ih.weight"][0, :, 0] = torch.tensor([0.0, 1, 1])
    params["head.weight"][...] = 1e9
    same_as_plain(params, spec)


@pytest.mark.parametrize("at", [-2.0, -0.75, 0.74, 1.87, 2.11, 2.18])
def test_gelu_is_right_to_rounding(at) -> None:
    """Its last digits: a bias takes the others away, and what is left is multiplied by 1e8."""
    spec = ModelSpec("rhi", "linear-full", 1, 1, d_model=4, n_heads=1, d_ff=1)
    params = zeros(spec)
    params["blocks.0.up.bias"][...] = at
    params["blocks.0.down.weight"][0, 1, 0] = 1e8
    gelu = torch.nn.functional.gelu(params["blocks.0.up.bias"].double())
    params["blocks.0.down.bias"][0, 1] = -1e8 * gelu[0, 0]
    params["head.weight"][0, 0, 1] = 1
    examples = Examples(torch.tensor([[[0], [1]]], dtype=torch.uint8), torch.ones(1, 2).long())
    out = raw_logits(params, spec, token_table("rhi", 1), examples)
    expected, _ = by_plain(params, spec, examples)
    ulp = 1e8 * 2.0**-23 * max(1, abs(at) / 2)
    assert (out - expected).abs().max() < ulp / (1 if at > 1 else 2)
