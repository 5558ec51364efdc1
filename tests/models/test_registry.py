"""Properties of every stacked model, each written once and run over the whole table."""

from dataclasses import replace

import pytest
import torch
from tests.support import every_token
from tests.support.their_gradients import export_gradients

from ithbit.families import FAMILIES
from ithbit.models import classifier
from ithbit.models.classifier import BLOCKS
from ithbit.models.stacked import Params, Sequence, part
from ithbit.reference import weights
from ithbit.reference.models import build
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

# Relative to the norm of the tensor that is compared with.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# A multiple of 32, which is what CPU kernels take at a time: they may round the rest otherwise.
BATCH = 32


def examples_of(spec: ModelSpec, n_seeds: int = 1) -> Examples:
    return draw_examples(stream_keys(list(range(n_seeds))), spec.n_bits, first=0, count=BATCH)


def outputs(
    params: Params, spec: ModelSpec, examples: Examples, savings: bool = True
) -> tuple[torch.Tensor, Params]:
    """Logits of a stack, and the gradients of a fixed random combination of each seed's."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    dtype = params["embed"].dtype
    table = token_table(spec.task, examples.bits.shape[-1], dtype=dtype)
    model = classifier if savings else every_token
    logits = model.logits(leaves, spec, table, examples)
    gradients = torch.autograd.grad(
        (logits * direction(dtype)).sum(), list(leaves.values()), allow_unused=True
    )
    return logits.detach(), {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def direction(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(BATCH, generator=torch.Generator().manual_seed(5)).to(dtype)


def assert_close(
    ours: torch.Tensor, theirs: torch.Tensor, tolerance: float, what: str, slack: float = 0.0
) -> None:
    """Equal up to `tolerance` times the norm of `theirs`, plus `slack`."""
    assert ours.shape == theirs.shape, what
    error, size = (ours - theirs).norm().item(), theirs.norm().item()
    assert error <= tolerance * size + slack, f"{what}: {error:.2e} off a norm of {size:.2e}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("savings", [True, False], ids=["savings", "plain"])
def test_forward_and_gradients_equal_the_reference(spec, dtype, savings, moved, library) -> None:
    params = moved(spec, dtype=dtype)
    module = build(spec).double() if dtype == torch.float64 else build(spec)
    weights.load(module, spec, params)
    examples = examples_of(spec)
    theirs = module(examples.bits[0], examples.index[0])
    (theirs * direction(dtype)).sum().backward()

    logits, gradients = outputs(classifier.stack([params]), spec, examples, savings)

    assert_close(logits[0], theirs.detach(), TOLERANCE[dtype], "logits")
    expected = export_gradients(module, spec)
    # Some gradients all but cancel: none can be better than one rounding of the whole.
    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm().item()
    slack = torch.finfo(dtype).eps * whole
    for name, gradient in expected.items():
        assert_close(gradients[name][0], gradient, TOLERANCE[dtype], f"gradient of {name}", slack)


def test_every_parameter_but_the_unused_word_has_a_gradient(spec, moved) -> None:
    _, gradients = outputs(classifier.stack([moved(spec)]), spec, examples_of(spec))
    idle = {name for name, gradient in gradients.items() if gradient.norm() == 0}
    assert idle <= {"leave.unused_word"}


def test_savings_change_nothing(spec, moved) -> None:
    params, examples = classifier.stack([moved(spec)]), examples_of(spec)
    fast, slow = (outputs(params, spec, examples, savings) for savings in (True, False))
    assert_close(fast[0], slow[0], TOLERANCE[torch.float64], "logits")
    for name in params:
        assert_close(fast[1][name], slow[1][name], TOLERANCE[torch.float64], name)


def test_a_seed_alone_equals_the_seed_in_a_stack(spec, moved) -> None:
    """Bit for bit on a CPU, logits and gradients, in the precision that is trained in.

    At n = 1 to rounding: the query is then read by a product with one column, which a CPU library
    sums in another order for a stack.
    """
    members = [moved(spec, seed, torch.float32) for seed in range(3)]
    examples = examples_of(spec, n_seeds=3)
    logits, gradients = outputs(classifier.stack(members), spec, examples)
    for seed, member in enumerate(members):
        alone = Examples(examples.bits[seed : seed + 1], examples.index[seed : seed + 1])
        own_logits, own_gradients = outputs(classifier.stack([member]), spec, alone)
        assert torch.equal(logits[seed], own_logits[0])
        for name in member:
            if spec.n_bits > 1:
                assert torch.equal(gradients[name][seed], own_gradients[name][0]), name
            else:
                assert_close(gradients[name][seed], own_gradients[name][0], 1e-5, name)


def test_the_order_of_a_batch_only_orders_the_logits(spec, moved) -> None:
    params, examples = classifier.stack([moved(spec)]), examples_of(spec)
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(6))
    shuffled = Examples(examples.bits[:, order], examples.index[:, order])
    table = token_table(spec.task, spec.n_bits, dtype=torch.float64)
    straight = classifier.logits(params, spec, table, examples)
    assert straight.unique().numel() > 1
    permuted = classifier.logits(params, spec, table, shuffled)
    assert_close(permuted, straight[:, order], 1e-14, "logits")


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("savings", [True, False], ids=["savings", "plain"])
def test_full_equals_causal_at_the_readout_of_one_layer(kind, task, savings, moved) -> None:
    """The paper's remark on one-layer masks; at two layers the two differ."""
    for layers, equal in ((1, True), (2, False)):
        full = ModelSpec(task, f"{kind}-full", n_bits=6, n_layers=layers)
        causal = replace(full, family=f"{kind}-causal")
        params, examples = classifier.stack([moved(full)]), examples_of(full)
        ours = outputs(params, full, examples, savings)[0]
        theirs = outputs(params, causal, examples, savings)[0]
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=0) is equal


def test_a_causal_block_ignores_later_tokens(spec, moved) -> None:
    """And a full one does not: every earlier token's output moves with the last token."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 6, spec.d_model, generator=generator, dtype=torch.float64)
    params = part(classifier.stack([moved(spec, seed) for seed in (0, 1)]), "blocks.0")
    block = BLOCKS[spec.family].block
    before = block(params, spec, Sequence(x), False)
    for t in range(1, 6):
        later = torch.randn(x[:, :, t:].shape, generator=generator, dtype=torch.float64)
        after = block(params, spec, Sequence(torch.cat([x[:, :, :t], later], dim=2)), False)
        moved_by = (after - before).abs().amax((0, 1, 3))
        assert (moved_by[t:] > 1e-6).all()
        if FAMILIES[spec.family].causal:
            assert (moved_by[:t] < 1e-13).all()
        else:
            assert (moved_by[:t] > 1e-6).all()


def test_a_block_at_the_readout_is_its_last_token(spec, moved) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1, 3, 6, spec.d_model, generator=generator, dtype=torch.float64)
    params = part(classifier.stack([moved(spec)]), "blocks.0")
    block = BLOCKS[spec.family].block
    whole = block(params, spec, Sequence(x), False)
    last = block(params, spec, Sequence(x), True)
    assert whole.shape == x.shape
    assert_close(last, whole[:, :, -1:], 1e-13, "last token")
