import torch
from tests.support.their_gradients import export_gradients

from ithbit.models import classifier
from ithbit.reference import weights
from ithbit.reference.models import build
from ithbit.tasks.sampling import draw_examples, stream_keys


def test_weights_come_back_as_they_went(spec, moved, library) -> None:
    """Ours -> module -> ours, bit for bit, under the same names and in the same order."""
    params = moved(spec, dtype=torch.float32)
    module = build(spec)
    weights.load(module, spec, params)
    back = weights.export(module, spec)
    assert list(back) == list(params) == list(classifier.init(spec, 0))
    assert all(torch.equal(back[name], params[name]) for name in params)


def test_a_module_can_be_copied_through_our_parameters(spec, library) -> None:
    """Module -> ours -> another module: every trained tensor and every logit is the same."""
    one, other = (build(spec, seed=seed) for seed in (0, 1))
    examples = draw_examples(stream_keys([1]), spec.n_bits, first=0, count=4)
    bits, index = examples.bits[0], examples.index[0]
    with torch.no_grad():
        assert not torch.equal(one(bits, index), other(bits, index))
        weights.load(other, spec, weights.export(one, spec))
        assert torch.equal(one(bits, index), other(bits, index))
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_exported_weights_are_copies(spec, library) -> None:
    module = build(spec)
    before = weights.export(module, spec)
    kept = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1)
    assert all(torch.equal(before[name], kept[name]) for name in kept)


def test_gradients_of_what_is_not_read_are_zero(spec, library) -> None:
    module = build(spec)
    examples = draw_examples(stream_keys([1]), spec.n_bits, first=0, count=4)
    module(examples.bits[0], examples.index[0]).sum().backward()
    gradients = export_gradients(module, spec)
    shapes = {name: value.shape for name, value in classifier.init(spec, 0).items()}
    assert {name: value.shape for name, value in gradients.items()} == shapes
    assert gradients["head.bias"].item() == 4
    if spec.family == "mamba2":
        assert gradients["leave.unused_word"].norm() == 0
