"""What the kernels of a stack need to know, and their working memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ithbit.models.classifier import init
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import CUTS, words_per_example


@dataclass(frozen=True)
class Plan:
    """A model, the size of its stack, and where each parameter lies in a row.

    `capacity` is the largest number of examples that a run draws in a step. `buffer` allocates
    working memory once and then returns the same tensor, so that a captured step finds it in place.
    """

    model: ModelSpec
    n_seeds: int
    capacity: int
    device: torch.device
    offsets: dict[str, int]
    n_parameters: int
    cuts: int = 0  # of the training examples, see `draws.py`; logits are for uniform examples
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: ModelSpec, n_seeds: int, capacity: int, device: torch.device, examples: str
    ) -> "Plan":
        """The plan of a stack; parameters lie in the order of `init`."""
        offsets, start = {}, 0
        for name, value in init(model, seed=0).items():
            offsets[name] = start
            start += value.numel()
        return cls(model, n_seeds, capacity, device, offsets, start, CUTS[examples])

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each parameter has, in order."""
        ends = [*list(self.offsets.values())[1:], self.n_parameters]
        return {name: end - at for (name, at), end in zip(self.offsets.items(), ends, strict=True)}

    @property
    def n_tokens(self) -> int:
        return n_tokens(self.model.task, self.model.n_bits)

    @property
    def n_words(self) -> int:
        return words_per_example(self.model.n_bits)

    @property
    def lhi(self) -> bool:
        return self.model.task == "lhi"

    def block(self, layer: int) -> int:
        """Where a layer's parameters start; they lie in the order of its `init_block`."""
        return min(at for name, at in self.offsets.items() if name.startswith(f"blocks.{layer}."))

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Working memory (seed, …) by name, initially zero."""
        if name not in self._buffers:
            whole = (self.n_seeds, *shape)
            self._buffers[name] = torch.zeros(whole, dtype=torch.float32, device=self.device)
        return self._buffers[name]

    def constant(self, name: str, make: "Callable[[Plan], Tensor]") -> Tensor:
        """Fixed numbers by name, made on first use."""
        if name not in self._buffers:
            self._buffers[name] = make(self)
        return self._buffers[name]
