"""The parameters and constants of the trained models, by kind of family: each is written here once.

Models, kernels, compiled code, the explorer's page, theory and proofs read them here. A family
added elsewhere needs no entry: its functions in `models/` are enough to train it.

A block's parameters lie in memory in the order given here; a bias follows its weight, which the
fused and compiled twins of `models/` rely on. Sizes are in letters: d (width), 3d (query, key and
value, or three gates), ff (feed-forward units), heads, and Mamba2's `taps` of the convolution,
`conv` channels (inputs, B and C) and `in` (gate, channels and a step per head).

>>> from ithbit.spec import ModelSpec
>>> block_shapes(ModelSpec("rhi", "gru", n_bits=8))["hh.weight"]
(48, 16)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ithbit.families import family_named
from ithbit.spec import ModelSpec

Shape = tuple[int, ...]
Sizes = Mapping[str, tuple[str, ...]]  # of each parameter, in letters


@dataclass(frozen=True)
class Layout:
    """What each block of a kind of families has, and its stages before the first and after the
    last."""

    block: Sizes
    enter: Sizes = field(default_factory=dict)
    leave: Sizes = field(default_factory=dict)
    norm_eps: float = 0.0  # inside the square root of LayerNorm or RMSNorm
    denominator_eps: float = 0.0  # added to the sum of linear attention's weights
    taps: int = 0  # of the convolution
    activation: Literal["gelu", "relu"] = "gelu"  # of the feed-forward part, if there is one
    feature: Literal["elu+1", "relu+1"] = "elu+1"  # of linear attention's queries and keys

    def places(self, *names: str) -> tuple[int, ...]:
        """Which parameters of a block these are, counted from 0."""
        order = list(self.block)
        return tuple(order.index(name) for name in names)


def _norm(name: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}.weight": ("d",), f"{name}.bias": ("d",)}


_FEED_FORWARD: dict[str, tuple[str, ...]] = {
    "up.weight": ("ff", "d"),
    "up.bias": ("ff",),
    "down.weight": ("d", "ff"),
    "down.bias": ("d",),
}

# BERT's blocks after its embedding stage for given embeddings: one type vector and a LayerNorm.
SOFTMAX = Layout(
    block={
        "qkv.weight": ("3d", "d"),
        "qkv.bias": ("3d",),
        "out.weight": ("d", "d"),
        "out.bias": ("d",),
        **_FEED_FORWARD,
        **_norm("norm1"),
        **_norm("norm2"),
    },
    enter={"type": ("d",), **_norm("norm")},
    norm_eps=1e-12,  # Hugging Face's `BertConfig.layer_norm_eps`
)
# Pre-norm blocks whose projections have no bias.
LINEAR = Layout(
    block={
        **_norm("norm1"),
        "qkv.weight": ("3d", "d"),
        "out.weight": ("d", "d"),
        **_norm("norm2"),
        **_FEED_FORWARD,
    },
    norm_eps=1e-5,  # PyTorch's LayerNorm
    denominator_eps=1e-6,
)
# `torch.nn.GRU`; the three gates are r, z and n.
GRU = Layout(
    block={
        "ih.weight": ("3d", "d"),
        "hh.weight": ("3d", "d"),
        "ih.bias": ("3d",),
        "hh.bias": ("3d",),
    }
)
# fla's Mamba2 with expansion 1, one group and its final norm; with the library's one-word
# vocabulary, which is counted but never used.
MAMBA2 = Layout(
    block={
        "norm.weight": ("d",),
        "in.weight": ("in", "d"),
        "conv.weight": ("taps", "conv"),
        "conv.bias": ("conv",),
        "dt_bias": ("heads",),
        "a_log": ("heads",),
        "skip": ("heads",),
        "gate_norm.weight": ("d",),
        "out.weight": ("d", "d"),
    },
    leave={"norm.weight": ("d",), "unused_word": ("d",)},
    norm_eps=1e-5,
    taps=3,
)

LAYOUTS = {"softmax": SOFTMAX, "linear": LINEAR, "gru": GRU, "mamba2": MAMBA2}


def layout_of(family: str) -> Layout:
    """The layout of one of the six families."""
    return LAYOUTS[family_named(family).kind]


def part_shapes(sizes: Sizes, spec: ModelSpec) -> dict[str, Shape]:
    """A part's parameters at the sizes of a model, in order."""
    d, conv = spec.d_model, spec.d_model + 2 * spec.d_state
    numbers = {
        "d": d,
        "3d": 3 * d,
        "ff": spec.d_ff,
        "heads": spec.n_heads,
        "taps": layout_of(spec.family).taps,
        "conv": conv,
        "in": d + conv + spec.n_heads,
    }
    return {name: tuple(numbers[letter] for letter in shape) for name, shape in sizes.items()}


def block_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The parameters of each block of a model, in order."""
    return part_shapes(layout_of(spec.family).block, spec)


def position_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The parameters of a model's encoding of positions, for any family."""
    if spec.positions == "polynomial":
        return {"polynomial": (spec.d_model, 2)}
    if spec.positions == "learned":
        from ithbit.tasks.indexing import n_tokens  # loads numpy, which the theory does without

        # Twice the length, for the shifted sets; rows past the training length stay as drawn.
        return {"learned": (n_tokens(spec.task, 2 * spec.n_bits), spec.d_model)}
    return {}


def model_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """All parameters of a model of one of the six families, in order.

    >>> list(model_shapes(ModelSpec("rhi", "gru", n_bits=8)))[:3]
    ['embed', 'positions.polynomial', 'blocks.0.ih.weight']
    """
    from ithbit.tasks.indexing import N_FEATURES

    layout, block = layout_of(spec.family), block_shapes(spec)
    parts = {
        "positions": position_shapes(spec),
        "enter": part_shapes(layout.enter, spec),
        **{f"blocks.{layer}": block for layer in range(spec.n_layers)},
        "leave": part_shapes(layout.leave, spec),
        "head": {"weight": (1, spec.d_model), "bias": (1,)},
    }
    shapes: dict[str, Shape] = {"embed": (spec.d_model, N_FEATURES)}
    for prefix, members in parts.items():
        shapes |= {f"{prefix}.{name}": shape for name, shape in members.items()}
    return shapes
