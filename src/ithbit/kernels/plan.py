"""What the kernels of a stack need to know, their working memory, and what a family must launch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch
import triton
from torch import Tensor

from ithbit.models import positions
from ithbit.models.classifier import init
from ithbit.models.stacked import part
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import words_per_example


@dataclass(frozen=True)
class LaunchPlan:
    """A model, the size of its stack, and where each parameter lies in a row.

    `capacity` is the largest number of examples that a run draws in a step. `buffer` allocates
    working memory once and then returns the same tensor, so that a captured step finds it in place.
    """

    model: ModelSpec
    n_seeds: int
    capacity: int
    device: torch.device
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many numbers each parameter has; they lie in the order of `init`."""
        return {name: value.numel() for name, value in init(self.model, seed=0).items()}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each parameter starts in a row."""
        return dict(zip(self.sizes, accumulate(self.sizes.values(), initial=0), strict=False))

    @cached_property
    def n_parameters(self) -> int:
        return sum(self.sizes.values())

    @property
    def n_tokens(self) -> int:
        return n_tokens(self.model.task, self.model.n_bits)

    @property
    def draws(self) -> dict[str, int]:
        """What kernels need to draw tokens: bits, 1 for LHI, and words of an example."""
        model = self.model
        lhi = int(model.task == "lhi")
        return {"N": model.n_bits, "LHI": lhi, "WORDS": words_per_example(model.n_bits)}

    @property
    def encoding(self) -> int:
        """Where the parameters of the positions start in a row; 0 if there are none."""
        return self.offsets.get(f"positions.{self.model.positions}", 0)

    def block(self, layer: int) -> int:
        """Where a layer's parameters start; they lie in the order of its `init_block`."""
        return min(at for name, at in self.offsets.items() if name.startswith(f"blocks.{layer}."))

    @cached_property
    def in_block(self) -> dict[str, int]:
        """Where each parameter of a block starts within it."""
        start = self.block(0)
        return {name: at - start for name, at in part(self.offsets, "blocks.0").items()}

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Working memory (seed, …) by name, initially zero."""
        if name not in self._buffers:
            sizes = (self.n_seeds, *shape)
            self._buffers[name] = torch.zeros(sizes, dtype=torch.float32, device=self.device)
        return self._buffers[name]

    def rows(self, name: str, *shape: int) -> Tensor:
        """The same for numbers of every token: (seed, example, token, …)."""
        return self.buffer(name, self.capacity, self.n_tokens, *shape)

    @cached_property
    def waves(self) -> Tensor:
        """The fixed numbers of sinusoidal (token, D) or rotary positions (cosine or sine, token,
        D); a single 0 for other encodings."""
        model, tokens = self.model, torch.arange(self.n_tokens)
        table = torch.zeros(1)
        if model.positions == "sinusoidal":
            sine, cosine = positions.waves(tokens, model.d_model, torch.float32)
            table = torch.stack([sine, cosine], -1).flatten(-2)
        elif model.positions == "rotary":
            sine, cosine = positions.waves(tokens, model.d_head, torch.float32)
            pairs = torch.stack([cosine, sine]).repeat_interleave(2, -1)
            table = pairs.repeat(1, 1, model.n_heads)
        return table.contiguous().to(self.device)


@dataclass(frozen=True)
class Launches(ABC):
    """A family's launches on examples first … first + count - 1 of every run."""

    plan: LaunchPlan
    values: Tensor  # seed parameter
    keys: Tensor  # of each run's stream
    first: Tensor  # seed 1
    count: int
    cuts: int  # of these examples, see `draws.py`

    @staticmethod
    @abstractmethod
    def shares(plan: LaunchPlan, name: str) -> int:
        """How many programs store a share of a parameter's gradient: as many as the kernel has that
        computes it."""

    @abstractmethod
    def run(self, results: Tensor, partials: Tensor | None) -> None:
        """Write the examples' logits to `results` (seed, capacity).

        In training write their losses there instead, and each program's share of the gradient of
        their mean to `partials` (seed, program, parameter).
        """

    def grid(self, n_programs: int) -> tuple[int, int]:
        """So many programs for every run."""
        return n_programs, self.plan.n_seeds


def shared_out(tiles: int, most: int) -> tuple[int, int]:
    """Programs per run, at most `most`, and how many of its tiles each goes over."""
    each = triton.cdiv(tiles, most)
    return triton.cdiv(tiles, each), each
