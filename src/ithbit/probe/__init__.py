"""The same verdict for any PyTorch layer, and every input of a trained model instead of a sample.

The package can be called: `ithbit.probe(factory)` is `ithbit.probe.api.probe(factory)`.

>>> import torch, ithbit
>>> report = ithbit.probe(lambda width: torch.nn.Identity(), width=2, rank_n=4, train=False)
>>> report.behaviour.leak, report.rank.ranks
(None, (0, 0, 0, 0))
"""

import sys
from types import ModuleType
from typing import Any


class _Probe(ModuleType):
    """A package that is also the function it is named after."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ithbit.probe.api import probe

        return probe(*args, **kwargs)


sys.modules[__name__].__class__ = _Probe
