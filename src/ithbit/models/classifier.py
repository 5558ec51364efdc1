"""The whole model: token features and positions, a family's blocks, one logit at the last token.

Parameters are a flat dict of tensors with a leading seed axis: `embed`, `positions.*`, `enter.*`,
`blocks.0.*` …, `leave.*`, `head.*`. A user's layer may have buffers, constants that are drawn from
the seed and never trained; `logits` takes them in the same dict.

`BLOCKS` is the only place that knows which module implements which family; all users' layers are in
`own_layer`.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.families import family_named
from ithbit.layouts import position_shapes
from ithbit.models import gru, linear_attention, mamba2, own_layer, positions, softmax_attention
from ithbit.models.stacked import Params, Sequence, Stream, TokenStream, linear, part, uniform
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import N_FEATURES, n_tokens
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import TokenTable

_DRAWN = 1 << 20  # larger blocks are counted on the meta device, which makes torch import a lot

_LAYERS = 1000  # of a user's layer without parameters, at most, in a stored run

Init = Callable[[ModelSpec, torch.Generator], Params]


@dataclass(frozen=True)
class Blocks:
    """A family's block, and its stages before the first block and after the last.

    A block mixes tokens (`mix`, residual included), then works on every token alone. What follows
    it, and what works on tokens alone, takes its input up to `normal`. If it `carries_state`, its
    output at a token is all that later tokens get from the past.
    """

    init_block: Init
    mix: Callable[[Params, ModelSpec, Stream, bool], Tensor]
    alone: Callable[[Params, Tensor], Tensor] = lambda params, x: x
    normal: Callable[[Tensor], Tensor] = lambda x: F.layer_norm(x, x.shape[-1:])
    init_enter: Init = lambda spec, generator: {}
    enter: Callable[[Params, Tensor], Tensor] = lambda params, rows: rows
    init_leave: Init = lambda spec, generator: {}
    leave: Callable[[Params, Tensor], Tensor] = lambda params, rows: rows
    carries_state: bool = False

    def block(self, params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
        """One block's output at all tokens, or only at the last: seed batch token dim."""
        return self.alone(params, self.mix(params, spec, stream, readout_only))


_SOFTMAX = Blocks(
    softmax_attention.init_block,
    softmax_attention.mix,
    alone=softmax_attention.feed_forward,
    init_enter=softmax_attention.init_enter,
    enter=softmax_attention.enter,
)
# Weights of a user's layer: `own_layer.init_block`, a seed per block.
_OWN = Blocks(lambda spec, generator: {}, own_layer.block)
_LINEAR = Blocks(
    linear_attention.init_block, linear_attention.mix, alone=linear_attention.feed_forward
)

BLOCKS: dict[str, Blocks] = {
    "softmax-full": _SOFTMAX,
    "softmax-causal": _SOFTMAX,
    "linear-full": _LINEAR,
    "linear-causal": _LINEAR,
    "gru": Blocks(gru.init_block, gru.block, normal=lambda x: x, carries_state=True),
    "mamba2": Blocks(
        mamba2.init_block,
        mamba2.block,
        normal=lambda x: F.rms_norm(x, x.shape[-1:]),
        init_leave=mamba2.init_leave,
        leave=mamba2.leave,
    ),
}


def blocks_of(spec: ModelSpec) -> Blocks:
    """The functions of a model's family."""
    return _OWN if spec.code else BLOCKS[spec.family]


def init(spec: ModelSpec, seed: int) -> Params:
    """Initial parameters of one seed, without the seed axis; they depend only on spec and seed."""
    generator = torch.Generator().manual_seed(seed)
    d, blocks = spec.d_model, blocks_of(spec)
    params: Params = {"embed": uniform(generator, d, N_FEATURES, fan_in=N_FEATURES)}
    parts = {
        "positions": positions.init(spec, generator),
        "enter": blocks.init_enter(spec, generator),
    }
    for layer in range(spec.n_layers):
        parts[f"blocks.{layer}"] = (
            own_layer.init_block(spec, seed, layer)
            if spec.code
            else blocks.init_block(spec, generator)
        )
    parts["leave"] = blocks.init_leave(spec, generator)
    weight, bias = uniform(generator, 1, d, fan_in=d), uniform(generator, 1, fan_in=d)
    parts["head"] = {"weight": weight, "bias": bias}
    for prefix, members in parts.items():
        params |= {f"{prefix}.{name}": value for name, value in members.items()}
    return params


def stack(members: list[Params]) -> Params:
    """Parameters of several seeds as one stack."""
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def with_buffers(params: Params, spec: ModelSpec, seeds: Iterable[int]) -> Params:
    """A stack's parameters together with the buffers of its seeds, if the family has any."""
    if not spec.code:
        return params
    device = params["embed"].device
    buffers = stack([own_layer.init_buffers(spec, seed) for seed in seeds])
    return params | {name: value.to(device) for name, value in buffers.items()}


def n_parameters(spec: ModelSpec) -> int:
    """Number of trained parameters; the published count at the paper's settings.

    >>> n_parameters(ModelSpec("rhi", "softmax-full", n_bits=64))
    3473
    """
    layers = spec.n_layers if spec.code else 1
    sizes = {name: math.prod(shape) for name, shape in _shapes(spec, layers).items()}
    block = sum(size for name, size in sizes.items() if name.startswith("blocks.0."))
    return sum(sizes.values()) + (spec.n_layers - layers) * block


def shapes(
    spec: ModelSpec, seed: int, n_tensors: int, n_numbers: int
) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of the parameters of one seed, in the order of `init`; None if they are not
    that many tensors and numbers. For a file of that size: nothing much larger is allocated.

    >>> list(shapes(ModelSpec("rhi", "gru", n_bits=8), 0, 8, 1777) or {})[:2]
    ['embed', 'positions.polynomial']
    >>> shapes(ModelSpec("rhi", "gru", n_bits=8, d_model=60_000, n_layers=10**8), 0, 8, 1777)
    """
    if spec.code:  # blocks may differ in any way
        few = spec.n_layers <= max(n_tensors, _LAYERS)
        return _shapes(spec, spec.n_layers, seed, n_numbers) if few else None
    one = _shapes(spec, 1, seed, n_numbers)
    block = {name: shape for name, shape in one.items() if name.startswith("blocks.0.")}
    numbers = [sum(map(math.prod, each.values())) for each in (one, block)]
    more = spec.n_layers - 1
    if (len(one) + more * len(block), numbers[0] + more * numbers[1]) != (n_tensors, n_numbers):
        return None
    first = [name for name in one if name.split(".")[0] in ("embed", "positions", "enter")]
    by_name = {name: one[name] for name in first}
    for layer in range(spec.n_layers):
        prefix = f"blocks.{layer}."
        by_name |= {prefix + name.removeprefix("blocks.0."): block[name] for name in block}
    return by_name | {name: shape for name, shape in one.items() if name not in block}


def _shapes(
    spec: ModelSpec, n_layers: int, seed: int = 0, n_numbers: int = 0
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's parameters with the first layers only. Only a table of
    positions grows with n, and a block much larger than `n_numbers` is not drawn."""
    small = replace(spec, n_bits=1, n_layers=n_layers)
    wide = spec.d_model * (spec.d_model + (0 if spec.code else spec.d_ff + spec.d_state))
    with torch.device("meta") if wide > max(_DRAWN, n_numbers) else nullcontext():
        by_name = {name: tuple(value.shape) for name, value in init(small, seed).items()}
    tables = position_shapes(spec)
    return by_name | {f"positions.{name}": shape for name, shape in tables.items()}


def token_vectors(params: Params, spec: ModelSpec, table: TokenTable) -> Tensor:
    """Every token of the table as the first block takes it: seed row dim."""
    rows = linear(table.features.expand(len(params["embed"]), -1, -1), params["embed"])
    added = positions.encode(part(params, "positions"), spec, table.positions, rows.dtype)
    rows = rows if added is None else rows + added
    return blocks_of(spec).enter(part(params, "enter"), rows)


def logits(params: Params, spec: ModelSpec, table: TokenTable, examples: Examples) -> Tensor:
    """The logit of answer 1 for every example: seed batch."""
    ((_, x),) = deque(layer_outputs(params, spec, table, examples), maxlen=1)
    return readout(params, spec, x)


def layer_outputs(
    params: Params,
    spec: ModelSpec,
    table: TokenTable,
    examples: Examples,
    readout_only: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """What every block has mixed, and its output: both seed batch token dim. The last block is
    computed at the last token alone unless not `readout_only`."""
    blocks, rows = blocks_of(spec), token_vectors(params, spec, table)
    one_hot = F.one_hot(examples.index - 1, table.n_bits)
    stream: Stream
    stream = TokenStream(rows, table.task, examples.bits.to(rows.dtype), one_hot.to(rows.dtype))
    for layer in range(spec.n_layers):
        last, own = layer == spec.n_layers - 1, part(params, f"blocks.{layer}")
        mixed = blocks.mix(own, spec, stream, last and readout_only)
        x = blocks.alone(own, mixed)
        yield mixed, x
        stream = Sequence(x)


def readout(params: Params, spec: ModelSpec, x: Tensor) -> Tensor:
    """The logits that the output of the last block gives: seed batch."""
    x = blocks_of(spec).leave(part(params, "leave"), x[:, :, -1])
    # A sum, not a product with one column: CPU libraries add that up in a different order for a
    # stack than for a single seed.
    return (x * params["head.weight"]).sum(-1) + params["head.bias"]


def matrix_numbers(spec: ModelSpec, n_bits: int) -> int:
    """Entries of the token-by-token matrices, per example, of a block computed at all tokens; 0 if
    there is no such block or its matrices are unknown (a user's layer)."""
    family = family_named(spec.family)
    prefix = family.kind == "linear" and family.causal
    if spec.code or spec.n_layers == 1 or not (prefix or family.kind in ("softmax", "mamba2")):
        return 0
    return spec.n_heads * n_tokens(spec.task, n_bits) ** 2
