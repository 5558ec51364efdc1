from contextlib import nullcontext

import torch

from ithbit.reference import models
from ithbit.spec import ModelSpec
from ithbit.tasks.sampling import draw_examples, stream_keys


def test_the_library_is_not_in_double_precision_by_itself(library, monkeypatch) -> None:
    """Which is why its casts are changed: Mamba2 rounds its states to single precision."""
    module = models.build(ModelSpec("rhi", "mamba2", n_bits=4)).double()
    examples = draw_examples(stream_keys([0]), 4, first=0, count=3)
    with torch.no_grad():
        exact = module(examples.bits[0], examples.index[0])
        monkeypatch.setattr(models, "_KeepDouble", nullcontext)
        rounded = module(examples.bits[0], examples.index[0])
    assert 0 < (rounded - exact).abs().max().item() < 1e-5
