import pytest
import torch

from ithbit.families import FAMILIES, POSITIONS, family_named
from ithbit.models import classifier
from ithbit.reference import weights
from ithbit.reference.models import build
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table


@pytest.mark.parametrize(
    ("task", "family", "layers", "published"),
    [
        ("rhi", "softmax-full", 1, 3473),
        ("rhi", "softmax-causal", 1, 3473),
        ("rhi", "linear-full", 2, 6577),
        ("lhi", "gru", 1, 1777),
        ("lhi", "mamba2", 2, 3261),
        ("lhi", "softmax-full", 2, 6753),
        ("lhi", "softmax-causal", 2, 6753),
        ("lhi", "linear-full", 2, 6577),
        ("lhi", "linear-causal", 2, 6577),
    ],
)
def test_parameter_counts_are_the_published_ones(task, family, layers, published) -> None:
    """The paper's table of runtime and model scale, row by row."""
    assert classifier.n_parameters(ModelSpec(task, family, n_bits=64, n_layers=layers)) == published


def test_initial_weights_depend_on_the_seed_alone(spec) -> None:
    state = torch.get_rng_state()
    one, again, other = (classifier.init(spec, seed) for seed in (4, 4, 5))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["embed"], other["embed"])
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in one.values())


def test_a_stack_holds_its_members_in_order(spec) -> None:
    members = [classifier.init(spec, seed) for seed in (3, 1)]
    stacked = classifier.stack(members)
    assert list(stacked) == list(members[0])
    for name, value in stacked.items():
        assert torch.equal(value, torch.stack([member[name] for member in members]))


@pytest.mark.parametrize(
    ("family", "positions"),
    [
        (family, positions)
        for family in FAMILIES
        for positions in POSITIONS
        if family_named(family).takes(positions)
    ],
)
@pytest.mark.parametrize("task", ["rhi", "lhi"])
def test_other_lengths_than_the_trained_can_be_read(
    task, family, positions, moved, library
) -> None:
    """Half and twice the length, as the reference reads them."""
    spec = ModelSpec(task, family, n_bits=6, n_layers=2, positions=positions)
    params = moved(spec)
    module = build(spec).double()
    weights.load(module, spec, params)
    for n in (3, 12):
        examples = draw_examples(stream_keys([0]), n, first=0, count=5)
        table = token_table(task, n, dtype=torch.float64)
        ours = classifier.logits(classifier.stack([params]), spec, table, examples)[0]
        theirs = module(examples.bits[0], examples.index[0]).detach()
        assert (ours - theirs).norm() <= 1e-10 * theirs.norm()
