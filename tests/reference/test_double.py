import torch

from ithbit.reference.models import InDouble, build
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import draw_examples, stream_keys


def test_the_plain_module_is_not_in_double_precision_by_itself(library) -> None:
    """Which is why the wrapper is needed: Mamba2 rounds its states to single precision."""
    module = build(ModelSpec("rhi", "mamba2", n_bits=4)).double()
    examples = draw_examples(stream_keys([0]), 4, first=0, count=3)
    with torch.no_grad():
        rounded = module(examples.bits[0], examples.index[0])
        exact = InDouble(module)(examples.bits[0], examples.index[0])
    assert 0 < (rounded - exact).abs().max().item() < 1e-5
