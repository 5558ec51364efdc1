"""A user's layer in our embedding and head, depth by stacking, for several seeds at once.

Token features, polynomial positions and the logit at the last token are those of the six families
(`models/classifier.py`); between them stand L modules of the factory, one after the other, with
nothing around them: residuals and norms are the layer's own affair. Parameters are a flat dict with
a leading seed axis: `embed`, `polynomial`, `blocks.0.*` …, `head.weight`, `head.bias`. Embedded
tokens are made of the token table as the families make theirs; only the modules are stacked by
`vmap`.
"""

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ithbit.families import Task
from ithbit.models.stacked import Params, linear, part
from ithbit.models.stream import Table
from ithbit.probe.layer import Layer
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import N_FEATURES, TokenTable, token_table


@dataclass(frozen=True)
class Cell:
    """What is trained: one task, length and depth."""

    task: Task
    n_bits: int
    n_layers: int
    width: int = 16

    @property
    def name(self) -> str:
        return f"{self.task}_n{self.n_bits}_L{self.n_layers}d{self.width}"


@dataclass(frozen=True)
class Network:
    """The functions of one cell: the modules' code, without their weights."""

    cell: Cell
    modules: list[nn.Module]
    buffers: Params  # seed …; constants of the modules, never trained
    table: TokenTable
    positions: Tensor  # row 2
    stacked: bool

    def logits(self, params: Params, examples: Examples) -> Tensor:
        """The logit of answer 1 for every example: seed batch."""
        seeds = len(params["embed"])
        rows = linear(self.table.features.expand(seeds, -1, -1), params["embed"])
        rows = rows + linear(self.positions.expand(seeds, -1, -1), params["polynomial"])
        one_hot = F.one_hot(examples.index - 1, self.cell.n_bits).to(rows.dtype)
        x = Table(rows, self.cell.task, examples.bits.to(rows.dtype), one_hot).all(rows)
        blocks = {name: value for name, value in params.items() if name.startswith("blocks.")}
        if self.stacked:
            x = vmap(self._blocks)(blocks, self.buffers, x)
        else:
            alone = zip(_unstacked(blocks, seeds), _unstacked(self.buffers, seeds), x, strict=True)
            x = torch.stack([self._blocks(*one) for one in alone])
        return (x[:, :, -1] * params["head.weight"].unsqueeze(1)).sum(-1) + params["head.bias"]

    def _blocks(self, params: Params, buffers: Params, x: Tensor) -> Tensor:
        """The modules one after the other, for one seed: batch token dim."""
        for layer, module in enumerate(self.modules):
            prefix = f"blocks.{layer}"
            x = functional_call(module, (part(params, prefix), part(buffers, prefix)), (x,))
        return x

    def of(self, rows: list[int]) -> "Network":
        """The same for some of the seeds."""
        buffers = {name: value[rows] for name, value in self.buffers.items()}
        return Network(self.cell, self.modules, buffers, self.table, self.positions, self.stacked)


def _unstacked(stack: Params, seeds: int) -> list[Params]:
    """The members of a stack, each without the seed axis."""
    rows = {name: value.unbind(0) for name, value in stack.items()}
    return [{name: members[k] for name, members in rows.items()} for k in range(seeds)]


def network(
    layer: Layer, cell: Cell, seeds: list[int], device: torch.device, stacked: bool
) -> tuple[Network, Params]:
    """The functions of a cell and the initial parameters of its seeds, stacked."""
    built = [_build(layer, cell, seed) for seed in seeds]
    params = {name: torch.stack([p[name] for _, p, _ in built]) for name in built[0][1]}
    buffers = {name: torch.stack([b[name] for _, _, b in built]) for name in built[0][2]}
    table = token_table(cell.task, cell.n_bits, device=device)
    place = table.positions.float() / (n_tokens(cell.task, cell.n_bits) - 1)
    found = Network(
        cell,
        [module.to(device) for module in built[0][0]],
        {name: value.to(device) for name, value in buffers.items()},
        table,
        torch.stack([place, place**2], -1),
        stacked,
    )
    return found, {name: value.to(device) for name, value in params.items()}


def _build(layer: Layer, cell: Cell, seed: int) -> tuple[list[nn.Module], Params, Params]:
    """Modules, parameters and buffers of one seed."""
    generator = torch.Generator().manual_seed(seed)
    d = cell.width

    def uniform(*shape: int, fan_in: int) -> Tensor:
        return torch.empty(shape).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)

    # Drawn as PyTorch draws linear maps, like the families' own.
    params: Params = {
        "embed": uniform(d, N_FEATURES, fan_in=N_FEATURES),
        "polynomial": uniform(d, 2, fan_in=2),
    }
    buffers: Params = {}
    modules = []
    for number in range(cell.n_layers):
        module = layer.build(d, seed=1000 * seed + number)
        modules.append(module)
        for name, value in module.named_parameters():
            params[f"blocks.{number}.{name}"] = value.detach().clone()
        for name, constant in module.named_buffers():
            buffers[f"blocks.{number}.{name}"] = constant.detach().clone()
    params["head.weight"] = uniform(d, fan_in=d)
    params["head.bias"] = uniform(1, fan_in=d)
    return modules, params, buffers


def why_not_stacked(layer: Layer, cell: Cell, device: torch.device) -> str | None:
    """Why seeds of this layer cannot be trained in one stack, None if they can.

    Tried for real: forward and backward pass of two seeds in a stack and one by one must agree.
    """
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (2, 4, cell.n_bits), generator=generator).to(device, torch.uint8)
    index = torch.randint(1, cell.n_bits + 1, (2, 4), generator=generator).to(device)
    examples = Examples(bits, index)
    found = []
    for stacked in (False, True):
        net, params = network(layer, cell, [0, 1], device, stacked)
        leaves = {name: value.requires_grad_() for name, value in params.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error" if stacked else "default")
                out = net.logits(leaves, examples)
                grads = torch.autograd.grad(
                    out.sum(), list(leaves.values()), materialize_grads=True
                )
        except Exception as error:
            if not stacked:
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return lines[0].rstrip(".")[:120]
        found.append(torch.cat([out.detach().flatten(), *(g.flatten() for g in grads)]))
    if not torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-4):
        return "its outputs in a stack are not those of one seed by itself"
    return None
