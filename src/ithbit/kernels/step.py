"""A stack's training step and logits, computed by kernels: the entry point.

`refusal` explains why the kernels cannot train a model; the stacked models train what the
kernels do not.
"""

import math
import sys

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITCallable

from ithbit.families import family_named
from ithbit.kernels import optimiser
from ithbit.kernels.attention import step as attention
from ithbit.kernels.gru import step as gru
from ithbit.kernels.mamba2 import step as mamba2
from ithbit.kernels.plan import Launches, LaunchPlan
from ithbit.spec import ModelSpec, Protocol
from ithbit.tasks.sampling import CUTS

MAX_BITS = 512
_LEAST = 4  # smallest width, of a token, a hidden layer or a state
_LEAST_HEAD = 2  # softmax attention's heads are loaded two or four numbers at a time


def _name_kernels() -> None:
    """Make Triton compute, in a fixed order, the keys under which it caches kernels.

    A key depends on which functions the process has hashed before. Processes that launch in another
    order would not find each other's kernels, and would compile every one again.
    """
    for module in sorted(name for name in sys.modules if name.startswith("ithbit.kernels.")):
        for value in vars(sys.modules[module]).values():
            if isinstance(value, JITCallable):
                _ = value.cache_key


_name_kernels()


_BY_KIND: dict[str, type[Launches]] = {
    "softmax": attention.AttentionLaunches,
    "linear": attention.AttentionLaunches,
    "gru": gru.GruLaunches,
    "mamba2": mamba2.Mamba2Launches,
}


def refusal(model: ModelSpec) -> str | None:
    """Why the kernels cannot train this model; None if they can."""
    family = family_named(model.family)
    if family.kind not in _BY_KIND:
        return f"there are no kernels for the family {model.family}"
    if model.n_bits > MAX_BITS:
        return f"the kernels take up to {MAX_BITS} bits, got {model.n_bits}"
    sizes = {"width": model.d_model, "feed-forward width": model.d_ff}
    if family.has_state:
        sizes["state"] = model.d_state
    for name, size in sizes.items():
        if size < _LEAST or size & (size - 1):
            return f"the kernels take a {name} that is a power of two, {_LEAST} or more, got {size}"
    if family.kind == "softmax" and model.d_head < _LEAST_HEAD:
        return (
            f"the kernels take softmax heads of {_LEAST_HEAD} numbers or more, got {model.d_head}"
        )
    return None


class Step:
    """The fused step of one stack; `values` and the rest are rows (seed, parameter)."""

    def __init__(
        self,
        model: ModelSpec,
        n_seeds: int,
        capacity: int,
        device: torch.device,
        examples: str = "uniform",
    ) -> None:
        self.plan = plan = LaunchPlan(model, n_seeds, capacity, device)
        self.family, self.cuts = _BY_KIND[family_named(model.family).kind], CUTS[examples]
        shares = {name: self.family.shares(plan, name) for name in plan.sizes}
        self.losses = plan.buffer("losses", capacity)
        self.partials = plan.buffer("partials", max(shares.values()), plan.n_parameters)
        of_each = [shares[name] for name, size in plan.sizes.items() for _ in range(size)]
        blocks = range(0, plan.n_parameters, optimiser.BLOCK)
        most = [max(of_each[at : at + optimiser.BLOCK]) for at in blocks]
        self.shares = torch.tensor(most, dtype=torch.int32, device=device)
        self.grads = plan.buffer("grads", plan.n_parameters)
        self.squares = plan.buffer("squares", len(blocks))

    def gradients(
        self,
        values: Tensor,
        keys: Tensor,
        first: Tensor,
        count: int,
        loss_sum: Tensor,
        steps: Tensor,
    ) -> None:
        """Fill `losses` and `grads`; count the step in `loss_sum` (seed), `steps` and `first`."""
        launches = self.family(self.plan, values, keys, first, count, self.cuts)
        launches.run(self.losses, self.partials)
        optimiser.sum_shares[launches.grid(self.squares.shape[1])](
            self.partials, self.shares, self.grads, self.squares, self.losses, loss_sum, steps,
            first, count, self.plan.n_parameters, self.plan.capacity,
            PROGRAMS=self.partials.shape[1], BLOCK=optimiser.BLOCK, ROWS=optimiser.ROWS,
            LOSSES=triton.next_power_of_2(self.plan.capacity),
        )  # fmt: skip

    def adamw(
        self,
        values: Tensor,
        mean: Tensor,
        square: Tensor,
        steps: Tensor,
        rate: Tensor,
        protocol: Protocol,
    ) -> None:
        """Clip each run's gradient and take its AdamW step, in place."""
        blocks, beta1, beta2 = self.squares.shape[1], protocol.beta1, protocol.beta2
        optimiser.adamw[(blocks, self.plan.n_seeds)](
            values, mean, square, self.grads, self.squares, steps, rate,
            self.plan.n_parameters, blocks,
            BETA1=beta1, BETA2=beta2, LOG_BETA1=math.log(beta1), LOG_BETA2=math.log(beta2),
            EPS=protocol.eps, DECAY=protocol.weight_decay, CLIP=protocol.clip_norm,
            BLOCK=optimiser.BLOCK, MAX_BLOCKS=triton.next_power_of_2(blocks),
        )  # fmt: skip

    def logits(self, values: Tensor, keys: Tensor, count: int) -> Tensor:
        """Logits of the first `count` uniform examples of every key's stream: seed count."""
        plan, parts = self.plan, []
        for start in range(0, count, plan.capacity):
            size = min(plan.capacity, count - start)
            first = torch.full((plan.n_seeds, 1), start, dtype=torch.int64, device=plan.device)
            out = plan.buffer("logits", plan.capacity)
            self.family(plan, values, keys, first, size, cuts=0).run(out, None)
            parts.append(out[:, :size].clone())
        return torch.cat(parts, 1)
